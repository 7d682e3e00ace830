/**
 * The file system as the store uses it: a small synchronous interface, so that a simulation can put an
 * in-memory one in its place that fails, tears writes and forgets what was not synced (fakefs.ts).
 */
import * as nodeFs from "node:fs";
import { flock, type LockAnswer } from "./flock.ts";

/** What `stat` tells. `dev` and `ino` together tell whether a path still names the file that is open. */
export interface FileStat {
  kind: "file" | "directory" | "other";
  size: number;
  /** Permission bits only. */
  mode: number;
  uid: number;
  dev: number;
  ino: number;
}

/** An error with the system's code (`ENOSPC`, `EROFS`, …), as node:fs throws it. */
export interface FsError extends Error {
  code?: string;
}

/** Every call throws an FsError when it fails, except the `…Later` ones, which hand it to `done`. */
export interface StateFs {
  /** `create`: a new file of mode 0600 for writing, EEXIST when there is one. `append`: an existing file. `lock`: made with mode 0600 when missing, never truncated. `directory`: for fsync. */
  open(path: string, how: "create" | "append" | "lock" | "directory"): number;
  close(fd: number): void;
  /** Writes at the end of the file; returns the bytes written, which may be fewer than given. */
  write(fd: number, data: Uint8Array): number;
  /** The whole file. */
  read(path: string): Uint8Array;
  truncate(fd: number, length: number): void;
  fsync(fd: number): void;
  /** fsync off the calling path; `done` is called later, never before this returns. */
  fsyncLater(fd: number, done: (error: FsError | undefined) => void): void;
  /** As fsyncLater, without the metadata that reading back does not need. */
  fdatasyncLater(fd: number, done: (error: FsError | undefined) => void): void;
  rename(from: string, to: string): void;
  unlink(path: string): void;
  /** One directory, without parents; mode 0700. */
  mkdir(path: string): void;
  chmod(path: string, mode: number): void;
  /** Undefined: nothing there. Does not follow a symbolic link at the end of the path. */
  stat(path: string): FileStat | undefined;
  fstat(fd: number): FileStat;
  list(path: string): string[];
  /** Takes an exclusive kernel lock without waiting; it ends with the descriptor or the process. */
  lock(fd: number): LockAnswer;
  /** Effective user id of this process. */
  uid(): number;
}

function toStat(stats: nodeFs.Stats): FileStat {
  return {
    kind: stats.isFile() ? "file" : stats.isDirectory() ? "directory" : "other",
    size: stats.size,
    mode: stats.mode & 0o7777,
    uid: stats.uid,
    dev: stats.dev,
    ino: stats.ino,
  };
}

const { O_WRONLY, O_RDWR, O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = nodeFs.constants;

const openFlags = {
  // O_NOFOLLOW: a link planted at our name must not make us write a credential elsewhere.
  create: O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW,
  append: O_WRONLY | O_APPEND | O_NOFOLLOW,
  lock: O_RDWR | O_CREAT | O_NOFOLLOW,
  directory: O_RDONLY | O_DIRECTORY,
};

/** The machine's file system. */
export const realFs: StateFs = {
  open: (path, how) => nodeFs.openSync(path, openFlags[how], 0o600),
  close: (fd) => nodeFs.closeSync(fd),
  write: (fd, data) => nodeFs.writeSync(fd, data),
  read: (path) => nodeFs.readFileSync(path),
  truncate: (fd, length) => nodeFs.ftruncateSync(fd, length),
  fsync: (fd) => nodeFs.fsyncSync(fd),
  fsyncLater: (fd, done) => nodeFs.fsync(fd, (error) => done(error ?? undefined)),
  fdatasyncLater: (fd, done) => nodeFs.fdatasync(fd, (error) => done(error ?? undefined)),
  rename: (from, to) => nodeFs.renameSync(from, to),
  unlink: (path) => nodeFs.unlinkSync(path),
  mkdir: (path) => nodeFs.mkdirSync(path, { mode: 0o700 }),
  chmod: (path, mode) => nodeFs.chmodSync(path, mode),
  stat: (path) => {
    const stats = nodeFs.lstatSync(path, { throwIfNoEntry: false });
    return stats && toStat(stats);
  },
  fstat: (fd) => toStat(nodeFs.fstatSync(fd)),
  list: (path) => nodeFs.readdirSync(path),
  lock: flock,
  uid: () => process.geteuid?.() ?? 0,
};

/** The system's reason in words that name it: `no space left on device (ENOSPC)`. */
export function reasonOf(error: unknown): string {
  const { code, message } = error as FsError;
  const words: Record<string, string> = {
    ENOSPC: "no space left on the device",
    EDQUOT: "the disk quota is used up",
    EROFS: "the file system is read-only",
    EACCES: "permission denied",
    EPERM: "operation not permitted",
    ENOENT: "no such file or directory",
    ENOTDIR: "a part of the path is not a directory",
    EISDIR: "it is a directory",
    EIO: "input/output error of the device",
    EMFILE: "too many open files in this process",
    ENFILE: "too many open files on this machine",
    ELOOP: "it is a symbolic link",
    EEXIST: "it exists already",
    EBADF: "the descriptor is no longer open",
  };
  if (code === undefined) return message ?? String(error);
  const known = words[code];
  return known === undefined ? `${message} (${code})` : `${known} (${code})`;
}

/** The system's error code, or undefined. */
export function codeOf(error: unknown): string | undefined {
  return (error as FsError).code;
}

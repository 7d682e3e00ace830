/** The directory and the lock: what must be right before a table is read or written. */
import { basename, dirname, join } from "node:path";
import { codeOf, reasonOf, type StateFs } from "./fs.ts";

/** Names of the files of one table, all beside the snapshot so that a rename never crosses file systems. */
export interface Paths {
  directory: string;
  snapshot: string;
  snapshotTmp: string;
  journal: string;
  journalTmp: string;
  lock: string;
}

/** The files that belong to a state path. */
export function pathsOf(path: string): Paths {
  const journal = `${path}.journal`;
  return {
    directory: dirname(path),
    snapshot: path,
    snapshotTmp: `${path}.tmp`,
    journal,
    journalTmp: `${journal}.tmp`,
    lock: `${path}.lock`,
  };
}

/** Why a table could not be opened. */
export type OpenFault =
  /** A file that does not read as what it should be. */
  | "malformed"
  /** A file of this name that is something else. */
  | "not_ours"
  /** Another living process has the table. */
  | "held"
  /** The files cannot be read. */
  | "unreadable"
  /** Directory or files cannot be written. */
  | "unwritable"
  /** Others may write in the directory. */
  | "unsafe"
  /** This machine offers no lock. */
  | "unlockable";

export interface Refused {
  ok: false;
  kind: OpenFault;
  /** What is wrong, at which place, and what to do next. */
  message: string;
}

export function refuse(kind: OpenFault, message: string): Refused {
  return { ok: false, kind, message };
}

/** The ledger's files live beside the table; they do not make the directory somebody else's. */
const LEDGER_FILES = ["audit.db", "audit.db-wal", "audit.db-shm", "audit.db.damaged"];

/**
 * Whether a name in the directory of a table is one of ours. Compared whole: by a prefix the table `/home/a` would
 * make `/home` a directory of nothing but our files, and `/` any.
 */
export function isOwnName(paths: Paths, name: string): boolean {
  const { snapshot, snapshotTmp, journal, journalTmp, lock } = paths;
  return (
    LEDGER_FILES.includes(name) ||
    [snapshot, snapshotTmp, journal, journalTmp, lock].some((path) => basename(path) === name)
  );
}

/**
 * Makes the directory (0700) when it is missing, and judges the one that is there. The table holds release
 * credentials, and whoever may write in its directory may put another table in its place. So a directory or a
 * table of another user's (but root's) is refused, and a directory that others can write in; one that holds
 * nothing but our files is narrowed to 0700; one that holds more (`/var/lib`, say) is not ours to narrow, and
 * the files' own 0600 has to do.
 */
export function prepareDirectory(fs: StateFs, paths: Paths): { ok: true; warnings: string[] } | Refused {
  const { directory } = paths;
  const warnings: string[] = [];
  try {
    // Before anything is made or changed: what follows would lock and narrow the directory above.
    if (basename(paths.snapshot) === "" || fs.stat(paths.snapshot)?.kind === "directory") {
      return refuse(
        "not_ours",
        `${paths.snapshot} is a directory: give --state-path a file in a directory of its own, such as ${join(paths.snapshot, "claims.json")}`,
      );
    }
    makeDirectory(fs, directory);
    // "/." makes stat look through a symbolic link, which a directory may well be (systemd's DynamicUser makes
    // one of /var/lib/vk-sandbox). Not by join, which takes the "/." off again.
    const here = fs.stat(`${directory}/.`);
    if (here?.kind !== "directory") {
      return refuse("unwritable", `${directory} is not a directory: give --state-path a file in a directory`);
    }
    const own = here.uid === fs.uid();
    const foreign = foreignOwner(fs, directory, here.uid) ?? foreignFile(fs, paths);
    if (foreign !== undefined) return foreign;
    if ((here.mode & 0o077) === 0) return { ok: true, warnings };
    const mode = here.mode.toString(8).padStart(4, "0");
    const onlyOurs = fs.list(directory).every((name) => isOwnName(paths, name));
    if (own && onlyOurs) {
      fs.chmod(directory, 0o700);
      warnings.push(`${directory} had mode ${mode} and now has 0700: the table in it holds credentials`);
      return { ok: true, warnings };
    }
    if ((here.mode & 0o022) !== 0) {
      return refuse(
        "unsafe",
        `${directory} has mode ${mode}: others can write in it, and so replace the claims table. Give --state-path a directory of its own, owned by this user, mode 0700`,
      );
    }
    warnings.push(
      `${directory} has mode ${mode} and ${own ? "holds other files too" : "belongs to another user"}, so it is left as it is; the table's files are 0600. A directory of its own (0700) is better`,
    );
    return { ok: true, warnings };
  } catch (error) {
    return refuse(
      "unwritable",
      `${directory}: ${reasonOf(error)}. Make the directory writable for user ${fs.uid()}, or give another --state-path`,
    );
  }
}

/** Root may do anything anyway; anybody else who owns a thing can put another in its place. */
function foreignOwner(fs: StateFs, path: string, owner: number): Refused | undefined {
  if (owner === fs.uid() || owner === 0) return undefined;
  return refuse(
    "unsafe",
    `${path} belongs to user ${owner}, and this provider runs as user ${fs.uid()}: whoever owns it can replace the claims table. If user ${owner} ran the provider before: chown ${fs.uid()} ${path}; else give --state-path a directory of its own`,
  );
}

/** A table that another user made, in a directory that was open once. */
function foreignFile(fs: StateFs, paths: Paths): Refused | undefined {
  for (const path of [paths.snapshot, paths.journal]) {
    const found = fs.stat(path);
    const refused = found === undefined ? undefined : foreignOwner(fs, path, found.uid);
    if (refused !== undefined) return refused;
  }
  return undefined;
}

/** Makes a directory with its parents; each name is synced, or a power cut would take the table with it. */
function makeDirectory(fs: StateFs, path: string): void {
  if (fs.stat(path) !== undefined) return;
  const above = dirname(path);
  if (above !== path) makeDirectory(fs, above);
  fs.mkdir(path);
  try {
    syncDirectory(fs, above);
  } catch (error) {
    // A parent that we may pass through but not read cannot be synced; that is no reason not to start.
    if (codeOf(error) !== "EACCES") throw error;
  }
}

/** Makes the names in a directory durable. */
export function syncDirectory(fs: StateFs, path: string): void {
  const fd = fs.open(path, "directory");
  try {
    fs.fsync(fd);
  } finally {
    closeQuietly(fs, fd);
  }
}

/** What a holder writes into the lock file, so that the one it keeps out can name it. */
export interface Holder {
  pid: number;
  startedAtMs: number;
}

/**
 * Takes the kernel lock of a table. The file stays behind when the lock ends: removing it would let two
 * processes lock two files of one name.
 * @returns the descriptor that holds the lock, to be kept open
 */
export function takeLock(fs: StateFs, paths: Paths, holder: Holder): { ok: true; fd: number } | Refused {
  let fd: number | undefined;
  try {
    fd = fs.open(paths.lock, "lock");
    const answer = fs.lock(fd);
    if (answer === "taken") {
      fs.truncate(fd, 0);
      fs.write(fd, new TextEncoder().encode(`${JSON.stringify(holder)}\n`));
      return { ok: true, fd };
    }
    fs.close(fd);
    if (answer === "held") return refuse("held", heldMessage(fs, paths));
    return refuse(
      "unlockable",
      `${paths.lock}: ${answer.unavailable}. Without a lock two providers could share one table, so this one does not start`,
    );
  } catch (error) {
    if (fd !== undefined) closeQuietly(fs, fd);
    return refuse(
      "unwritable",
      `${paths.lock}: ${reasonOf(error)}. Make ${paths.directory} writable for user ${fs.uid()}, or give another --state-path`,
    );
  }
}

function heldMessage(fs: StateFs, paths: Paths): string {
  const holder = recordedHolder(fs, paths.snapshot);
  const who =
    holder === undefined
      ? "another process (it has not written its name yet)"
      : `process ${holder.pid}, running since ${new Date(holder.startedAtMs).toISOString()}`;
  return `${paths.snapshot} is held by ${who}: stop that process, or give this one another --state-path`;
}

/** Who wrote the lock file last; it says nothing about whether that process still lives. */
export function recordedHolder(fs: StateFs, path: string): Holder | undefined {
  try {
    const value: unknown = JSON.parse(new TextDecoder().decode(fs.read(pathsOf(path).lock)));
    if (typeof value !== "object" || value === null) return undefined;
    const { pid, startedAtMs } = value as Record<string, unknown>;
    if (typeof pid !== "number" || !Number.isSafeInteger(pid)) return undefined;
    if (typeof startedAtMs !== "number" || !(Math.abs(startedAtMs) <= 8.64e15)) return undefined;
    return { pid, startedAtMs };
  } catch {
    return undefined;
  }
}

/** Closes a descriptor that is being given up anyway. */
export function closeQuietly(fs: StateFs, fd: number): void {
  try {
    fs.close(fd);
  } catch {
    // It is closed as far as we are concerned.
  }
}

/** Removes a file that may not be there. */
export function unlinkIfThere(fs: StateFs, path: string): void {
  try {
    fs.unlink(path);
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error;
  }
}

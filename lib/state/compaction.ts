/**
 * Writes the table anew: a snapshot that says how far into which journal it reaches, then a journal that
 * goes on from there. Each file is written under another name, synced, and renamed into place, and the
 * directory is synced between the two renames, so that at every instant (of a crash or of a power cut) the
 * two names hold a snapshot and a journal that fit each other.
 *
 * It is a generator that hands out its waits: the driver syncs and blocks (at start and stop), or syncs
 * beside the running daemon, while commits go on to the old journal and are carried over from `tail`.
 */
import type { Table } from "../provider/types.ts";
import { type FsError, reasonOf, type StateFs } from "./fs.ts";
import { encodeHeader } from "./journal.ts";
import { closeQuietly, type Paths, unlinkIfThere } from "./place.ts";
import { type JournalMark, snapshotSlices } from "./snapshot.ts";

/** A wait of the rewrite: give way to others, or fsync a descriptor and answer with its error. */
export type Step = { kind: "pause" } | { kind: "sync"; fd: number };

/** The journal that has just taken the old one's place. */
export interface NewJournal {
  fd: number;
  generation: number;
  bytes: number;
  dev: number;
  ino: number;
}

export interface Rewrite {
  fs: StateFs;
  paths: Paths;
  /** The table at the instant of `mark`; not changed by anybody while the rewrite runs. */
  table: Table;
  mark: JournalMark;
  /** Lines committed since `mark`; grows while the rewrite runs. */
  tail: Uint8Array[];
  /** Called in the same turn as the rename that puts the new journal in place. */
  adopt(journal: NewJournal): void;
}

export type Rewritten = { ok: true; snapshotBytes: number } | { ok: false; why: string };

/** Syncs of the new journal that may each find more commits; after them one sync blocks. */
const TAIL_ROUNDS_MAX = 4;

/** Writes a file under a temporary name up to its sync; the caller renames it. */
function* fill(
  fs: StateFs,
  path: string,
  parts: Iterable<Uint8Array>,
): Generator<Step, number, FsError | undefined> {
  unlinkIfThere(fs, path);
  const fd = fs.open(path, "create");
  let bytes = 0;
  try {
    for (const part of parts) {
      bytes += writeAll(fs, fd, part);
      yield { kind: "pause" };
    }
    const error = yield { kind: "sync", fd };
    if (error !== undefined) throw error;
  } finally {
    closeQuietly(fs, fd);
  }
  return bytes;
}

function writeAll(fs: StateFs, fd: number, data: Uint8Array): number {
  for (let at = 0; at < data.length; ) {
    const written = fs.write(fd, data.subarray(at));
    if (written <= 0) throw Object.assign(new Error("nothing was written"), { code: "ENOSPC" });
    at += written;
  }
  return data.length;
}

function* syncDirectory(fs: StateFs, path: string): Generator<Step, void, FsError | undefined> {
  const fd = fs.open(path, "directory");
  try {
    const error = yield { kind: "sync", fd };
    if (error !== undefined) throw error;
  } finally {
    closeQuietly(fs, fd);
  }
}

function* encoded(slices: Iterable<string>): Generator<Uint8Array> {
  for (const slice of slices) yield Buffer.from(slice);
}

/** Rewrites snapshot and journal. Whatever fails, what was on disk before still holds. */
export function* rewrite(work: Rewrite): Generator<Step, Rewritten, FsError | undefined> {
  const { fs, paths, table, mark, tail } = work;
  let doing = paths.snapshotTmp;
  let done = false;
  try {
    const snapshotBytes = yield* fill(fs, paths.snapshotTmp, encoded(snapshotSlices(table, mark)));
    doing = paths.snapshot;
    fs.rename(paths.snapshotTmp, paths.snapshot);
    doing = paths.directory;
    yield* syncDirectory(fs, paths.directory);
    if (mark.closed) {
      doing = paths.journal;
      unlinkIfThere(fs, paths.journal);
    } else {
      doing = paths.journalTmp;
      yield* replaceJournal(work, tail);
    }
    doing = paths.directory;
    yield* syncDirectory(fs, paths.directory);
    done = true;
    return { ok: true, snapshotBytes };
  } catch (error) {
    return { ok: false, why: `${doing}: ${reasonOf(error)}` };
  } finally {
    if (!done) removeTemporaries(fs, paths);
  }
}

function* replaceJournal(work: Rewrite, tail: Uint8Array[]): Generator<Step, void, FsError | undefined> {
  const { fs, paths, mark } = work;
  const generation = mark.generation + 1;
  unlinkIfThere(fs, paths.journalTmp);
  const fd = fs.open(paths.journalTmp, "create");
  let adopted = false;
  try {
    const follows = { generation: mark.generation, offset: mark.offset };
    let bytes = writeAll(fs, fd, encodeHeader({ generation, follows }));
    let carried = 0;
    for (let round = 1; ; round++) {
      for (; carried < tail.length; carried++) bytes += writeAll(fs, fd, tail[carried] ?? new Uint8Array());
      // What the old journal has had synced must be synced in the new one before it takes its place.
      if (round > TAIL_ROUNDS_MAX) fs.fsync(fd);
      else {
        const error = yield { kind: "sync", fd };
        if (error !== undefined) throw error;
      }
      if (carried === tail.length) break;
    }
    const { dev, ino } = fs.fstat(fd);
    fs.rename(paths.journalTmp, paths.journal);
    work.adopt({ fd, generation, bytes, dev, ino });
    adopted = true;
  } finally {
    if (!adopted) closeQuietly(fs, fd);
  }
}

function removeTemporaries(fs: StateFs, paths: Paths): void {
  for (const path of [paths.snapshotTmp, paths.journalTmp]) {
    try {
      unlinkIfThere(fs, path);
    } catch {
      // Left for the next rewrite, which removes it before it begins.
    }
  }
}

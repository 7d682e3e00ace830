/**
 * Records each decision about a VM with its evidence, beside the claims table. It is for people: losing it
 * loses no authority, so it never holds up a decision. Notes wait in memory and are written in small
 * batches from a timer.
 *
 * WAL, because then a reader never waits for the daemon nor the daemon for a reader, and because with
 * `synchronous=NORMAL` only checkpoints wait for the disk; those are made by hand when nothing is going on.
 * A power cut may take the last notes and leaves a sound file.
 */
import type { Database, Statement } from "bun:sqlite";
import { chmodSync, closeSync, constants, fstatSync, openSync, renameSync, unlinkSync } from "node:fs";
import type { Note } from "../provider/types.ts";
import { CREATE, SCHEMA_VERSION } from "./schema.ts";

/** Notes waiting to be written; what comes beyond is dropped and counted. */
export const QUEUE_MAX = 10_000;
/** Notes in one transaction: what one turn of the event loop may spend on the ledger, about 0.5 ms. */
export const BATCH_ROWS = 100;
/** How long a note waits for company. */
export const FLUSH_DELAY_MS = 500;
/** Pause after a write that failed. */
export const RETRY_MS = 10_000;
/** Rows taken away for age or number in one turn. */
const PRUNE_ROWS = 500;
/** The WAL is checkpointed in a quiet moment, at the latest after so many rows. */
const CHECKPOINT_ROWS = 2_000;
const REASON_CHARS_MAX = 2_000;

/** How long a decision is kept. */
export const MAX_AGE_MS = 90 * 86_400_000;
/** How many are kept at most: some 60 MB. */
export const MAX_ROWS = 200_000;

export interface LedgerOptions {
  /** The database file, `audit.db` beside the claims table. */
  path: string;
  nowMs: () => number;
  /** Runs a task later; delayMs 0 = after what is waiting now. */
  schedule?: (task: () => void, delayMs: number) => void;
  maxAgeMs?: number;
  maxRows?: number;
  /** Told when the ledger cannot be written, once until it can, and when a damaged one was set aside. */
  onTrouble?: (message: string) => void;
}

export interface LedgerStats {
  written: number;
  queued: number;
  /** Lost because the queue was full. */
  dropped: number;
  /** Writes that failed and were tried again. */
  failures: number;
}

export interface Ledger {
  /** Queues a note; takes a microsecond and never fails. */
  record(note: Note, atMs: number): void;
  /** Writes what is queued. Resolves also when that failed. */
  flush(): Promise<void>;
  /** Writes what is queued and closes the file. */
  close(): Promise<void>;
  stats(): LedgerStats;
}

interface Queued {
  note: Note;
  atMs: number;
}

interface Open {
  database: Database;
  insert: Statement;
  oldest: Statement<{ row: number; at_ms: number }, []>;
}

/** Opens the ledger for writing; the file is made, and bun:sqlite loaded, with the first note. */
export function openLedger(options: LedgerOptions): Ledger {
  const {
    path,
    nowMs,
    schedule = (task, delayMs) => void (delayMs > 0 ? setTimeout(task, delayMs) : setImmediate(task)),
    maxAgeMs = MAX_AGE_MS,
    maxRows = MAX_ROWS,
    onTrouble = () => {},
  } = options;
  const queue: Queued[] = [];
  const stats: LedgerStats = { written: 0, queued: 0, dropped: 0, failures: 0 };
  let open: Open | undefined;
  let due = false;
  let closed = false;
  let troubled = false;
  let uncheckpointed = 0;
  let working: Promise<void> = Promise.resolve();

  function request(delayMs: number): void {
    if (due || closed) return;
    due = true;
    schedule(() => {
      due = false;
      work(BATCH_ROWS);
    }, delayMs);
  }

  function record(note: Note, atMs: number): void {
    if (closed || queue.length >= QUEUE_MAX) {
      stats.dropped++;
      return;
    }
    queue.push({ note, atMs });
    request(FLUSH_DELAY_MS);
  }

  /** Writes up to `rowsMax` notes; one piece of work at a time. */
  function work(rowsMax: number): Promise<void> {
    working = working.then(async () => {
      try {
        await attempt(rowsMax);
        troubled = false;
      } catch (error) {
        failed(error as Error);
        return;
      }
      if (queue.length > 0) request(0);
      else if (uncheckpointed > 0) request(FLUSH_DELAY_MS);
    });
    return working;
  }

  async function attempt(rowsMax: number): Promise<void> {
    try {
      open ??= await begin();
      write(open, rowsMax);
    } catch (error) {
      if (!isDamage(error)) throw error;
      shut();
      setAside((error as Error).message);
      open = await begin();
      write(open, rowsMax);
    }
  }

  function write(target: Open, rowsMax: number): void {
    const { database, insert } = target;
    const batch = queue.slice(0, rowsMax);
    // In a quiet moment, or when there is no quiet moment for long: the only time that waits for the disk.
    if (batch.length === 0 || uncheckpointed >= CHECKPOINT_ROWS) {
      if (uncheckpointed > 0) database.run("PRAGMA wal_checkpoint(PASSIVE)");
      uncheckpointed = 0;
      if (batch.length === 0) return;
    }
    database.transaction(() => {
      for (const { note, atMs } of batch) {
        const { kind, key, id, podUID, reason, cause } = note;
        insert.run(Math.floor(atMs), kind, key, id, podUID, reason.slice(0, REASON_CHARS_MAX), cause ?? null);
      }
      prune(target);
    })();
    queue.splice(0, batch.length);
    stats.written += batch.length;
    uncheckpointed += batch.length;
  }

  /** Takes the oldest rows away, more in a turn than a batch adds, so that the bounds are reached and kept. */
  function prune({ database, oldest }: Open): void {
    const first = oldest.get();
    const last = database.query<{ last: number }, []>("SELECT max(row) last FROM decisions").get()?.last;
    if (first === null || last === undefined) return;
    const tooMany = Math.min(last - maxRows, first.row + PRUNE_ROWS);
    if (tooMany >= first.row) database.run("DELETE FROM decisions WHERE row <= ?", [tooMany]);
    const tooOldMs = Math.floor(nowMs() - maxAgeMs);
    if (first.at_ms >= tooOldMs) return;
    database.run("DELETE FROM decisions WHERE row < ? AND at_ms < ?", [first.row + PRUNE_ROWS, tooOldMs]);
  }

  async function begin(): Promise<Open> {
    const { Database } = await import("bun:sqlite");
    return prepare(new Database(ownFile(path), { readwrite: true, create: false }));
  }

  function failed(error: Error): void {
    stats.failures++;
    shut();
    if (!troubled) {
      onTrouble(
        `${path}: the audit ledger cannot be written: ${error.message}. Decisions go on without it; up to ${QUEUE_MAX} notes wait in memory`,
      );
    }
    troubled = true;
    request(RETRY_MS);
  }

  function setAside(why: string): void {
    // One damaged ledger is kept for whoever wants to look; an earlier one gives way to it.
    const aside = `${path}.damaged`;
    renameSync(path, aside);
    for (const suffix of ["-wal", "-shm"]) remove(path + suffix);
    onTrouble(
      `${path}: the audit ledger is damaged (${why}); it is now ${aside} and a new one is begun. No authority is lost by it`,
    );
  }

  function shut(): void {
    try {
      open?.insert.finalize();
      open?.oldest.finalize();
      open?.database.close();
    } catch {
      // A database that cannot even be closed is given up.
    }
    open = undefined;
    uncheckpointed = 0;
  }

  async function flush(): Promise<void> {
    const failuresBefore = stats.failures;
    do await work(QUEUE_MAX);
    while (queue.length > 0 && stats.failures === failuresBefore);
  }

  return {
    record,
    flush,
    async close() {
      if (closed) return;
      if (queue.length > 0) await flush();
      closed = true;
      await working;
      shut();
    },
    stats: () => ({ ...stats, queued: queue.length }),
  };
}

/** A file of our own with mode 0600 under this path; SQLite gives its -wal and -shm the same mode. */
function ownFile(path: string): string {
  const fd = openSync(path, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o600);
  try {
    if ((fstatSync(fd).mode & 0o077) !== 0) chmodSync(path, 0o600);
  } finally {
    closeSync(fd);
  }
  return path;
}

function prepare(database: Database): Open {
  try {
    // Memory is the daemon's: 128 KiB of pages are enough for appending. No mmap, which would count as ours.
    for (const pragma of [
      "busy_timeout = 100",
      "journal_mode = WAL",
      "synchronous = NORMAL",
      "cache_size = -128",
      "mmap_size = 0",
      "wal_autocheckpoint = 0",
      "journal_size_limit = 1048576",
    ]) {
      database.run(`PRAGMA ${pragma}`);
    }
    const version =
      database.query<{ user_version: number }, []>("PRAGMA user_version").get()?.user_version ?? 0;
    if (version > SCHEMA_VERSION)
      throw new DamagedError(`written in format ${version}, this program writes ${SCHEMA_VERSION}`);
    database.run(CREATE);
    database.run(`PRAGMA user_version = ${SCHEMA_VERSION}`);
    const insert = database.prepare(
      "INSERT INTO decisions (at_ms, kind, pod, id, pod_uid, reason, cause) VALUES (?, ?, ?, ?, ?, ?, ?)",
    );
    const oldest = database.prepare<{ row: number; at_ms: number }, []>(
      "SELECT row, at_ms FROM decisions ORDER BY row LIMIT 1",
    );
    return { database, insert, oldest };
  } catch (error) {
    database.close();
    throw error;
  }
}

class DamagedError extends Error {}

/** Whether the file itself is at fault, so that a new one would do better. */
function isDamage(error: unknown): boolean {
  if (error instanceof DamagedError) return true;
  const { code, message } = error as { code?: string; message?: string };
  if (code === "SQLITE_CORRUPT" || code === "SQLITE_NOTADB" || code?.startsWith("SQLITE_CORRUPT_"))
    return true;
  // A database of somebody else's making, or of a table that is not ours.
  return code === "SQLITE_ERROR" && /has no column|no such (table|column)/.test(message ?? "");
}

function remove(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // There was none.
  }
}

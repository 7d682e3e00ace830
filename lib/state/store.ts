/**
 * The open claims table: commits go to the journal, compactions run beside them, a kernel lock keeps other
 * processes out. Nothing here throws; a commit that did not reach the file says why.
 */
import { applyChanges } from "../provider/table.ts";
import type { Change, Table } from "../provider/types.ts";
import { type Rewritten, rewrite, type Step } from "./compaction.ts";
import { codeOf, type FsError, realFs, reasonOf, type StateFs } from "./fs.ts";
import { encodeCommit, faultOf, LINE_BYTES_MAX } from "./journal.ts";
import { FILE_BYTES_MAX, load } from "./load.ts";
import {
  closeQuietly,
  type Paths,
  pathsOf,
  prepareDirectory,
  type Refused,
  refuse,
  syncDirectory,
  takeLock,
} from "./place.ts";
import { copyTable } from "./snapshot.ts";

/** A journal shorter than this is never compacted, however small the snapshot: about 2,000 commits. */
export const COMPACT_FLOOR_BYTES = 1 << 20;
/** How long a commit waits for company before the journal is synced: what a power cut may take, about. */
export const SYNC_DELAY_MS = 10;
/** Pause after a rewrite that failed; commits go on meanwhile where they can. */
export const REWRITE_RETRY_MS = 10_000;
/** Commits that may pile up behind a rewrite that does not end; beyond it the rewrite is given up. */
const TAIL_BYTES_MAX = 16 << 20;

export interface StoreOptions {
  /** The snapshot's path; the journal and the lock lie beside it. */
  path: string;
  fs?: StateFs;
  /** Runs a task later, never at once; delayMs 0 = after what is waiting now. */
  schedule?: (task: () => void, delayMs: number) => void;
  /** For the name in the lock file. */
  nowMs?: () => number;
  pid?: number;
  /** Told about trouble that no commit's answer carries: a background sync or compaction that failed. */
  onTrouble?: (trouble: Trouble) => void;
  compactFloorBytes?: number;
  syncDelayMs?: number;
}

export interface Trouble {
  kind: "sync_failed" | "compaction_failed";
  /** What failed, where, and what it means. Never a credential. */
  message: string;
}

export type Committed = { ok: true } | { ok: false; why: string };

export interface StoreStats {
  generation: number;
  journalBytes: number;
  snapshotBytes: number;
  /** Committed bytes that a power cut could still take. */
  unsyncedBytes: number;
  commits: number;
  commitFailures: number;
  compactions: number;
  /** Rewrites and background syncs that failed. */
  troubles: number;
  /** Why commits fail at present; absent when they do not. */
  broken?: string;
}

export interface Store {
  /** The table as loaded: the caller's own Maps. Values given to `commit` must not be changed afterwards. */
  readonly table: Table;
  /** What a person should hear about the loading: a torn line cut off, a directory narrowed. */
  readonly warnings: readonly string[];
  /** Appends the changes as one line, all or nothing. After `ok` they survive kill -9. Does not block on the disk. */
  commit(changes: readonly Change[]): Committed;
  /** Waits for the disk: after `ok` everything committed survives a power cut. Blocks. */
  flush(): Committed;
  /** Rewrites the snapshot now. Blocks. */
  compact(): Committed;
  /** Clean stop: a snapshot that the reference reads, no journal, lock freed. On failure the journal stays and nothing is lost. */
  close(): Committed;
  stats(): StoreStats;
}

const OK: Committed = { ok: true };

/**
 * Opens the claims table at `path` for this process alone: directory, lock, load, and a first rewrite, which
 * proves that it can be written. Source of the rules: contract, State file; design, State on disk.
 * @returns the store, or the kind of fault with a message that names place, reason and next step; a file
 *   that is malformed, held or not ours is left as it was
 */
export function openStore(options: StoreOptions): { ok: true; store: Store } | Refused {
  const {
    path,
    fs = realFs,
    schedule = (task, delayMs) => void (delayMs > 0 ? setTimeout(task, delayMs) : setImmediate(task)),
    nowMs = Date.now,
    pid = process.pid,
    onTrouble = () => {},
    compactFloorBytes = COMPACT_FLOOR_BYTES,
    syncDelayMs = SYNC_DELAY_MS,
  } = options;
  const paths = pathsOf(path);
  const place = prepareDirectory(fs, paths);
  if (!place.ok) return place;
  const holder = { pid, startedAtMs: nowMs() };
  const lock = takeLock(fs, paths, holder);
  if (!lock.ok) return lock;
  const loaded = load(fs, paths);
  if (!loaded.ok) {
    closeQuietly(fs, lock.fd);
    return loaded;
  }
  const held = copyTable(loaded.table);
  const { store, abort } = createStore({
    fs,
    paths,
    schedule,
    onTrouble,
    compactFloorBytes,
    syncDelayMs,
    held,
    at: loaded.at,
    lockFd: lock.fd,
    relock: () => takeLock(fs, paths, holder),
    table: loaded.table,
    warnings: [...place.warnings, ...loaded.warnings],
  });
  const first = store.compact();
  if (!first.ok) {
    abort();
    return refuse(
      "unwritable",
      `${first.why}. Free space there or make it writable for user ${fs.uid()}, or give another --state-path`,
    );
  }
  return { ok: true, store };
}

interface Ground {
  fs: StateFs;
  paths: Paths;
  schedule: (task: () => void, delayMs: number) => void;
  onTrouble: (trouble: Trouble) => void;
  compactFloorBytes: number;
  syncDelayMs: number;
  held: Table;
  at: { generation: number; offset: number };
  lockFd: number;
  relock: () => { ok: true; fd: number } | Refused;
  table: Table;
  warnings: string[];
}

interface OpenJournal {
  fd: number;
  generation: number;
  /** Length up to the last whole commit. */
  bytes: number;
  /** Of these, the bytes known to be on the disk. */
  syncedBytes: number;
  /** Whether its name in the directory is known to be on the disk. */
  named: boolean;
  dev: number;
  ino: number;
}

interface Running {
  steps: Generator<Step, Rewritten, FsError | undefined>;
  /** Commits made since the rewrite began; not needed once the new journal is in place. */
  tail: { lines: Uint8Array[]; bytes: number; needed: boolean };
}

function createStore(ground: Ground): { store: Store; abort: () => void } {
  const { fs, paths, schedule, onTrouble, compactFloorBytes, syncDelayMs, held } = ground;
  let { lockFd } = ground;
  let journal: OpenJournal | undefined;
  let at = ground.at;
  /** Why the journal cannot be appended to until it is cut back or rewritten. */
  let broken: string | undefined;
  let closed = false;
  let running: Running | undefined;
  let rewriteDue = false;
  let syncDue = false;
  /** The descriptor a background sync is working on; it must not be closed under it. */
  let syncingFd: number | undefined;
  let retiredFd: number | undefined;
  let snapshotBytes = 0;
  let nextRewriteAtBytes = 0;
  let commits = 0;
  let commitFailures = 0;
  let compactions = 0;
  let troubles = 0;

  function trouble(kind: Trouble["kind"], message: string): void {
    troubles++;
    onTrouble({ kind, message });
  }

  // ---- committing

  function commit(changes: readonly Change[]): Committed {
    const answer = append(changes);
    if (answer.ok) commits++;
    else commitFailures++;
    return answer;
  }

  function append(changes: readonly Change[]): Committed {
    if (closed) return { ok: false, why: `${paths.snapshot}: the table is closed` };
    if (changes.length === 0) return OK;
    for (const change of changes) {
      const fault = faultOf(change);
      if (fault !== undefined) return { ok: false, why: `${paths.journal}: not written: ${fault}` };
    }
    const line = encodeCommit(changes);
    if (line.length > LINE_BYTES_MAX) {
      return {
        ok: false,
        why: `${paths.journal}: not written: ${line.length} bytes in one commit, ${LINE_BYTES_MAX} allowed`,
      };
    }
    broken ??= misplaced();
    if (broken !== undefined) {
      const still = mend();
      if (still !== undefined) return { ok: false, why: still };
    }
    if (journal === undefined) return { ok: false, why: `${paths.journal}: not open` };
    if (journal.bytes + line.length > FILE_BYTES_MAX) {
      return {
        ok: false,
        why: `${paths.journal}: ${journal.bytes} bytes and no compaction has succeeded: see the log for why`,
      };
    }
    let written = 0;
    let why = "the write was cut short; the disk is probably full";
    try {
      written = fs.write(journal.fd, line);
    } catch (error) {
      why = reasonOf(error);
    }
    if (written !== line.length) {
      const message = `${paths.journal}: ${why}`;
      if (!cutBack(journal)) broken = message;
      return { ok: false, why: message };
    }
    journal.bytes += line.length;
    applyChanges(held, changes);
    if (running !== undefined) carry(running, line);
    requestSync();
    if (journal.bytes > nextRewriteAtBytes) requestRewrite(0);
    return OK;
  }

  /** Takes off what a failed write may have left behind the last whole commit. */
  function cutBack(open: OpenJournal): boolean {
    try {
      fs.truncate(open.fd, open.bytes);
      return true;
    } catch {
      try {
        return fs.fstat(open.fd).size === open.bytes;
      } catch {
        return false;
      }
    }
  }

  /** A descriptor goes on accepting writes after its file is removed or its directory moved away. */
  function misplaced(): string | undefined {
    if (journal === undefined) return `${paths.journal}: not open`;
    try {
      const here = fs.stat(paths.journal);
      if (here === undefined) return `${paths.journal} has disappeared`;
      if (here.ino === journal.ino && here.dev === journal.dev) return undefined;
      return `${paths.journal} has been replaced by another file`;
    } catch (error) {
      return `${paths.journal}: ${reasonOf(error)}`;
    }
  }

  /** Makes the journal fit to be appended to again. @returns why not, or undefined when it is */
  function mend(): string | undefined {
    const gone = misplaced();
    if (gone === undefined && journal !== undefined && cutBack(journal)) {
      broken = undefined;
      return undefined;
    }
    const reason = gone ?? broken ?? "the journal is damaged";
    const answer = rewriteNow(false);
    return answer.ok ? undefined : `${reason}; writing it anew failed too: ${answer.why}`;
  }

  /** Whether a rewrite may begin: the directory is there and the lock in it is ours. @returns why not */
  function unready(): string | undefined {
    try {
      // The directory is not made anew: under an unmounted volume that would put the table where nobody looks.
      if (fs.stat(paths.directory) === undefined) {
        return `${paths.directory} has disappeared: bring it back (an empty one will do; the table is in memory)`;
      }
      return stillLocked();
    } catch (error) {
      return `${paths.directory}: ${reasonOf(error)}`;
    }
  }

  /** In a directory that came back as another one our lock is on a file that nobody can find. */
  function stillLocked(): string | undefined {
    const ours = fs.fstat(lockFd);
    const here = fs.stat(paths.lock);
    if (here !== undefined && here.ino === ours.ino && here.dev === ours.dev) return undefined;
    const again = ground.relock();
    if (!again.ok) return again.message;
    closeQuietly(fs, lockFd);
    lockFd = again.fd;
    return undefined;
  }

  // ---- syncing, grouped, beside the commits

  function requestSync(): void {
    if (syncDue || syncingFd !== undefined || closed) return;
    syncDue = true;
    schedule(startSync, syncDelayMs);
  }

  function startSync(): void {
    syncDue = false;
    if (closed || journal === undefined || syncingFd !== undefined) return;
    const target = journal;
    const upTo = target.bytes;
    syncingFd = target.fd;
    fs.fdatasyncLater(target.fd, (error) => {
      syncingFd = undefined;
      if (retiredFd !== undefined) {
        closeQuietly(fs, retiredFd);
        retiredFd = undefined;
      }
      // A journal that was replaced meanwhile had everything carried over and synced.
      if (closed || target !== journal) return;
      if (error !== undefined) {
        trouble("sync_failed", syncMessage(error));
        // The kernel drops the pages of a failed sync: another sync would succeed without them. Write all anew.
        requestRewrite(0);
        return;
      }
      target.syncedBytes = Math.max(target.syncedBytes, upTo);
      if (target.bytes > target.syncedBytes) requestSync();
    });
  }

  function syncMessage(error: FsError): string {
    return `${paths.journal}: sync failed: ${reasonOf(error)}; a power cut could lose the last commits until it is rewritten`;
  }

  function flush(): Committed {
    if (closed || journal === undefined) return { ok: false, why: `${paths.snapshot}: the table is closed` };
    try {
      fs.fsync(journal.fd);
      if (!journal.named) syncDirectory(fs, paths.directory);
      journal.named = true;
      journal.syncedBytes = journal.bytes;
      return OK;
    } catch (error) {
      trouble("sync_failed", syncMessage(error as FsError));
      requestRewrite(0);
      return { ok: false, why: syncMessage(error as FsError) };
    }
  }

  // ---- rewriting

  function begin(final: boolean): Running {
    const tail = { lines: [] as Uint8Array[], bytes: 0, needed: true };
    const steps = rewrite({
      fs,
      paths,
      // A shallow copy is a point in time, since values are replaced and never changed.
      table: copyTable(held),
      mark: { generation: at.generation, offset: journal?.bytes ?? at.offset, closed: final },
      tail: tail.lines,
      adopt: (fresh) => {
        if (journal !== undefined) retire(journal.fd);
        journal = { ...fresh, syncedBytes: fresh.bytes, named: false };
        at = { generation: fresh.generation, offset: fresh.bytes };
        broken = undefined;
        tail.needed = false;
      },
    });
    return { steps, tail };
  }

  function retire(fd: number): void {
    if (fd === syncingFd) retiredFd = fd;
    else closeQuietly(fs, fd);
  }

  function finish(outcome: Rewritten): void {
    running = undefined;
    if (outcome.ok) {
      compactions++;
      snapshotBytes = outcome.snapshotBytes;
      if (journal !== undefined) journal.named = true;
      nextRewriteAtBytes = Math.max(compactFloorBytes, snapshotBytes);
      return;
    }
    trouble("compaction_failed", `${outcome.why}; the old files still hold`);
    nextRewriteAtBytes = Number.POSITIVE_INFINITY;
    if (!closed) requestRewrite(REWRITE_RETRY_MS);
  }

  function requestRewrite(delayMs: number): void {
    if (rewriteDue || closed) return;
    rewriteDue = true;
    schedule(() => {
      rewriteDue = false;
      if (closed || running !== undefined) return;
      const obstacle = unready();
      if (obstacle !== undefined) {
        finish({ ok: false, why: obstacle });
        return;
      }
      const mine = begin(false);
      running = mine;
      proceed(mine.steps, undefined);
    }, delayMs);
  }

  /** Takes a background rewrite one step further. */
  function proceed(steps: Running["steps"], input: FsError | undefined): void {
    if (running?.steps !== steps) return;
    const { done, value } = steps.next(input);
    if (done) finish(value);
    else if (value.kind === "pause") schedule(() => proceed(steps, undefined), 0);
    else fs.fsyncLater(value.fd, (error) => proceed(steps, error));
  }

  function carry({ tail }: Running, line: Uint8Array): void {
    if (!tail.needed) return;
    tail.lines.push(line);
    tail.bytes += line.length;
    if (tail.bytes <= TAIL_BYTES_MAX) return;
    abandon();
    finish({
      ok: false,
      why: `${paths.snapshot}: the rewrite did not end while ${TAIL_BYTES_MAX} bytes were committed`,
    });
  }

  function abandon(): void {
    const steps = running?.steps;
    running = undefined;
    steps?.return({ ok: false, why: "given up" });
  }

  /** Rewrites at once, blocking; a background rewrite is given up for it. */
  function rewriteNow(final: boolean): Committed {
    abandon();
    const obstacle = unready();
    if (obstacle !== undefined) {
      finish({ ok: false, why: obstacle });
      return { ok: false, why: obstacle };
    }
    const { steps } = begin(final);
    let input: FsError | undefined;
    for (;;) {
      const { done, value } = steps.next(input);
      input = undefined;
      if (done) {
        finish(value);
        return value.ok ? OK : { ok: false, why: value.why };
      }
      if (value.kind === "pause") continue;
      try {
        fs.fsync(value.fd);
      } catch (error) {
        input = error as FsError;
        if (codeOf(error) === undefined) input.code = "EIO";
      }
    }
  }

  function close(): Committed {
    if (closed) return OK;
    closed = true;
    const answer = rewriteNow(true);
    abort();
    return answer;
  }

  /** Gives descriptors and lock back and leaves the files as they are. */
  function abort(): void {
    closed = true;
    abandon();
    if (journal !== undefined) retire(journal.fd);
    journal = undefined;
    closeQuietly(fs, lockFd);
  }

  function stats(): StoreStats {
    const unsynced = journal === undefined ? 0 : journal.bytes - (journal.named ? journal.syncedBytes : 0);
    return {
      generation: at.generation,
      journalBytes: journal?.bytes ?? 0,
      snapshotBytes,
      unsyncedBytes: unsynced,
      commits,
      commitFailures,
      compactions,
      troubles,
      ...(broken === undefined ? {} : { broken }),
    };
  }

  const compact = (): Committed =>
    closed ? { ok: false, why: `${paths.snapshot}: the table is closed` } : rewriteNow(false);
  const { table, warnings } = ground;
  return { store: { table, warnings, commit, flush, compact, close, stats }, abort };
}

import { applyChanges, emptyTable } from "../../provider/table.ts";
import type { Change, Table } from "../../provider/types.ts";
import { createFakeDisk, type FakeProcess, type Fault } from "../../state/fakefs.ts";
import { openStore, type Store } from "../../state/index.ts";
import type { Random } from "./random.ts";

/** What becomes of a commit: it holds, it fails, or the process dies before or after it held. */
export type CommitOutcome = "ok" | "failed" | "died_before" | "died_after";

/** Where the claims table lies, as the simulation sees it. */
export interface Disk {
  /** Opens the table for a new process; undefined when that is refused. */
  open(): Table | undefined;
  /** Makes the changes durable; `outcome` is what the simulation orders, the answer what came of it. */
  commit(changes: Change[], outcome: CommitOutcome, random: Random): CommitOutcome;
  /** What a kill -9 at this instant leaves. */
  durable(): Table;
  /** One step of what goes on beside the commits: a sync, a compaction. Returns whether there was one. */
  background(random: Random): boolean;
  /** kill -9. */
  kill(): void;
  /** A clean stop. */
  stop(): void;
  powerCut(random: Random): void;
  /** The file is gone. */
  lose(): void;
  /** A second process tries the table while the first lives; returns whether it got it. */
  trySecond(): boolean;
}

function copyOf(table: Table): Table {
  return {
    rows: new Map(table.rows),
    intents: new Map(table.intents),
    releasing: new Map(table.releasing),
    displaced: new Map(table.displaced),
  };
}

/** A table in memory that is durable by definition, but for the commits a power cut takes. Fast. */
export function createMemoryDisk(initial: Table): Disk {
  let held = initial;
  let synced = copyOf(initial);
  let unsynced: Change[][] = [];
  let open = false;
  return {
    open() {
      open = true;
      return copyOf(held);
    },
    commit(changes, outcome) {
      if (outcome === "ok" || outcome === "died_after") {
        applyChanges(held, changes);
        unsynced.push(changes);
      }
      return outcome;
    },
    durable: () => held,
    background() {
      if (unsynced.length === 0) return false;
      for (const changes of unsynced) applyChanges(synced, changes);
      unsynced = [];
      return true;
    },
    kill() {
      open = false;
    },
    stop() {
      open = false;
    },
    powerCut(random) {
      const kept = random.below(unsynced.length + 1);
      for (const changes of unsynced.slice(0, kept)) applyChanges(synced, changes);
      unsynced = [];
      held = copyOf(synced);
      open = false;
    },
    lose() {
      held = emptyTable();
      synced = emptyTable();
      unsynced = [];
    },
    trySecond: () => !open,
  };
}

const PATH = "/var/lib/vk-sandbox/claims.json";
/** Small, so that compactions happen within a run. */
const COMPACT_FLOOR_BYTES = 2_000;
const ERRORS = ["ENOSPC", "EIO", "EROFS"];

/** The real store on a disk in memory that fails, tears writes and forgets what was not synced. */
export function createRealDisk(initial: Table): Disk {
  const disk = createFakeDisk();
  /** Table of the commits that were answered with ok. */
  let held = emptyTable();
  /** Commits since the last open, for what a power cut may leave. */
  let history: Change[][] = [];
  let base = emptyTable();
  /** A commit during which the process died: it may or may not have held. */
  let doubtful: Change[] | undefined;
  let cut = false;
  let process: FakeProcess | undefined;
  let store: Store | undefined;
  let tasks: (() => void)[] = [];

  function open(): Table | undefined {
    disk.onCall = undefined;
    tasks = [];
    process = disk.process();
    const opened = openStore({
      path: PATH,
      fs: process,
      schedule: (task) => tasks.push(task),
      nowMs: () => 1,
      pid: 1,
      compactFloorBytes: COMPACT_FLOOR_BYTES,
      syncDelayMs: 0,
    });
    if (!opened.ok) throw new Error(`the store does not open: ${opened.message}`);
    store = opened.store;
    const found = textOf(store.table);
    if (cut) {
      const at = prefixes().find((table) => textOf(table) === found);
      if (at === undefined) throw new Error("after a power cut the table is no prefix of what was committed");
      held = at;
    } else if (found !== textOf(held)) {
      if (doubtful !== undefined) applyChanges(held, doubtful);
      if (found !== textOf(held)) throw new Error("after a restart the table is not what was committed");
    }
    cut = false;
    doubtful = undefined;
    base = copyOf(held);
    history = [];
    return copyOf(store.table);
  }

  /** Tables that a power cut may leave: every prefix of what was committed. */
  function prefixes(): Table[] {
    const tables = [copyOf(base)];
    const running = copyOf(base);
    for (const changes of doubtful === undefined ? history : [...history, doubtful]) {
      applyChanges(running, changes);
      tables.push(copyOf(running));
    }
    return tables;
  }

  function orderFault(fault: Fault, skip: number): void {
    let left = skip;
    disk.onCall = ({ name }) => {
      if (name === "stat" || name === "fstat") return undefined;
      if (left-- > 0) return undefined;
      disk.onCall = undefined;
      return fault;
    };
  }

  const real: Disk = {
    open,
    commit(changes, outcome, random) {
      if (store === undefined || process === undefined) throw new Error("the store is not open");
      const bytes = random.below(200);
      if (outcome === "died_before") orderFault({ die: "before", after: random.chance(0.5) ? bytes : 0 }, 0);
      if (outcome === "died_after") orderFault({ die: "after" }, 0);
      if (outcome === "failed") {
        const error = ERRORS[random.below(ERRORS.length)] ?? "EIO";
        orderFault(
          random.chance(0.3) ? { short: bytes } : { error, after: random.chance(0.5) ? bytes : 0 },
          0,
        );
      }
      const answer = store.commit(changes);
      disk.onCall = undefined;
      if (process.dead) {
        doubtful = changes;
        return outcome === "died_after" ? "died_after" : "died_before";
      }
      if (!answer.ok) return "failed";
      applyChanges(held, changes);
      history.push(changes);
      return "ok";
    },
    durable: () => held,
    background(random) {
      if (process === undefined || process.dead) return false;
      const syncs = process.pendingSyncs();
      if (tasks.length + syncs === 0) return false;
      if (random.chance(0.1)) orderFault({ error: "EIO" }, random.below(3));
      if (random.below(tasks.length + syncs) < syncs) process.completeSync();
      else tasks.shift()?.();
      disk.onCall = undefined;
      return true;
    },
    kill() {
      process?.kill();
      store = undefined;
    },
    stop() {
      store?.close();
      process?.kill();
      store = undefined;
    },
    powerCut(random) {
      disk.powerCut({
        bytes: (_, unsynced) => random.below(unsynced + 1),
        names: () => random.chance(0.5),
      });
      cut = true;
      store = undefined;
    },
    lose() {
      const directory = PATH.slice(0, PATH.lastIndexOf("/"));
      disk.removeDirectory(directory);
      held = emptyTable();
      base = emptyTable();
      history = [];
      doubtful = undefined;
      cut = false;
    },
    trySecond() {
      const second = disk.process();
      const opened = openStore({ path: PATH, fs: second, schedule: () => {}, nowMs: () => 1, pid: 2 });
      second.kill();
      return opened.ok;
    },
  };
  plant(initial);
  return real;

  /** The first table, written as a clean stop leaves it. */
  function plant(table: Table): void {
    real.open();
    const changes: Change[] = [];
    for (const [key, value] of table.rows) changes.push({ kind: "row", key, value });
    for (const [id, value] of table.releasing) changes.push({ kind: "releasing", id, value });
    if (changes.length > 0) {
      const answer = store?.commit(changes);
      if (!answer?.ok) throw new Error("the first table could not be written");
      applyChanges(held, changes);
    }
    real.stop();
  }
}

/** A table as text that does not depend on the order of its maps or of fields. */
function textOf(table: Table): string {
  const sorted = (map: Map<string, unknown>) => [...map].sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify(
    [sorted(table.rows), sorted(table.intents), sorted(table.releasing), sorted(table.displaced)],
    (_, value: unknown) =>
      typeof value === "object" && value !== null && !Array.isArray(value)
        ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
        : value,
  );
}

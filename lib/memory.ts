/**
 * Gives memory back when nothing is going on. Two things are worth it (docs/performance.md has the numbers):
 * garbage of a burst, which the runtime keeps until it allocates again, and the pages of the program's own file
 * that only starting up or a burst needed. Those are clean copies of the file: dropped, they stay in the page cache
 * for as long as nobody needs the memory, and come back by a page fault, without a read, when they are executed.
 *
 * And it ends the compiling, once what is hot is compiled.
 */
import { readFileSync, readlinkSync } from "node:fs";
import { type Libc, libc } from "./libc.ts";

/** Resident bytes of files above which those of the program are dropped in a quiet moment; after it idling has 28 MB of them. */
export const FILE_BYTES_MAX = 32 << 20;
/** Growth of what no file backs since the last collection that is worth another one, work or not: listings are garbage too. */
export const ANON_GROWTH_BYTES = 4 << 20;
/** At least this long between two drops: each costs the next handovers their page faults. */
export const DROP_INTERVAL_MS = 30_000;

/**
 * Work after which nothing more is compiled: some thousand Pods, by which what is hot has been. JavaScriptCore would
 * go on for tens of thousands, for ever smaller gains and 8 MB.
 */
export const COMPILED_AFTER_WORK = 10_000;
/** How many times as often as usual a function has to run from then on. */
const JIT_RELUCTANCE = 10_000;

/** madvise(2): the pages are not needed; a private mapping of a file without changes is filled again from the file. */
const MADV_DONTNEED = 4;

/** Resident bytes of this process, by what backs them. */
export interface Resident {
  /** No file: heap, stacks. */
  anonBytes: number;
  /** Files: the program's own above all. */
  fileBytes: number;
}

export interface MemoryOptions {
  /** Runs a full collection, and gives free pages back to the system. */
  collect: () => void;
  /** Resident bytes; undefined where they cannot be told. */
  resident?: () => Resident | undefined;
  /** Drops the program's own clean pages. */
  drop?: () => void;
  /** Makes the runtime compile nothing more. */
  endCompiling?: () => void;
  /** A monotonic clock in ms. */
  ticks: () => number;
}

export interface MemoryKeeper {
  /**
   * To be called every few seconds.
   *
   * @param work a count that grows with whatever is done
   * @param inFlight whether something is going on right now
   */
  look(work: number, inFlight: boolean): void;
}

/** Makes a keeper: in the first quiet look after work it collects, and drops what has piled up. */
export function createMemoryKeeper(options: MemoryOptions): MemoryKeeper {
  const {
    collect,
    resident = residentBytes,
    drop = dropProgramPages,
    endCompiling = () => Bun.unsafe.setJITPolicy(JIT_RELUCTANCE),
    ticks,
  } = options;
  let seen = -1;
  let worked = false;
  let anonBytes = 0;
  let droppedAt = Number.NEGATIVE_INFINITY;
  let compiles = true;
  return {
    look(work, inFlight) {
      if (compiles && work >= COMPILED_AFTER_WORK) {
        compiles = false;
        endCompiling();
      }
      if (work !== seen || inFlight) {
        seen = work;
        worked = true;
        return;
      }
      let now = resident();
      if (worked || (now !== undefined && now.anonBytes > anonBytes + ANON_GROWTH_BYTES)) {
        collect();
        now = resident();
        anonBytes = now?.anonBytes ?? 0;
      }
      worked = false;
      if (now === undefined || now.fileBytes <= FILE_BYTES_MAX) return;
      if (ticks() - droppedAt < DROP_INTERVAL_MS) return;
      droppedAt = ticks();
      drop();
    },
  };
}

/** RssAnon and RssFile of this process (proc(5)); undefined where there is no such file. */
export function residentBytes(): Resident | undefined {
  try {
    const status = readFileSync("/proc/self/status", "latin1");
    const bytes = (name: string) =>
      Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(status)?.[1]) * 1024;
    const anonBytes = bytes("RssAnon");
    const fileBytes = bytes("RssFile");
    return Number.isNaN(anonBytes + fileBytes) ? undefined : { anonBytes, fileBytes };
  } catch {
    return undefined;
  }
}

/** A mapping of a file. */
export interface Mapping {
  start: number;
  bytes: number;
}

/**
 * The mappings of `path` that can be dropped without losing anything: not writable, and without a page of their own
 * (`Anonymous`), such as a relocated one or one that a debugger wrote to.
 *
 * @param smaps text of /proc/PID/smaps (proc(5))
 */
export function droppableMappings(smaps: string, path: string): Mapping[] {
  const found: Mapping[] = [];
  let mapping: Mapping | undefined;
  for (const line of smaps.split("\n")) {
    const head = /^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s+(.*)$/.exec(line);
    if (head !== null) {
      const [, start = "", end = "", rights = "", file] = head;
      const from = Number.parseInt(start, 16);
      const clean = file === path && rights[1] === "-" && rights[3] === "p";
      mapping = clean ? { start: from, bytes: Number.parseInt(end, 16) - from } : undefined;
    } else if (mapping !== undefined && line.startsWith("Anonymous:")) {
      if (/^Anonymous:\s+0 kB$/.test(line)) found.push(mapping);
      mapping = undefined;
    }
  }
  return found;
}

/** Drops the program's own clean pages. Anything that stands in the way leaves them where they are. */
export function dropProgramPages(calls: Libc = libc()): void {
  if ("unavailable" in calls) return;
  try {
    const path = readlinkSync("/proc/self/exe");
    for (const { start, bytes } of droppableMappings(readFileSync("/proc/self/smaps", "latin1"), path))
      calls.madvise(start, bytes, MADV_DONTNEED);
  } catch {
    // No /proc, or one that hides: memory stays as it is.
  }
}

import { describe, expect, test } from "bun:test";
import { applyChanges } from "../provider/table.ts";
import type { Change, Row, Table } from "../provider/types.ts";
import { createFakeDisk, type FakeDisk, type FakeProcess, type Fault, type PowerCutKeep } from "./fakefs.ts";
import { encodeCommit, encodeHeader } from "./journal.ts";
import { copyTable, emptyTable } from "./snapshot.ts";
import { openStore, type Store } from "./store.ts";

const PATH = "/var/lib/vk/claims.json";
/** Thousands of lives a test: about a second on a quiet machine, and a busy one is no failure. */
const TEST_MS_MAX = 120_000;

/** A small generator with a seed: the same seed gives the same run. */
function random(seed: number): (below: number) => number {
  let state = seed * 2654435761 + 1;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

function row(n: number): Row {
  return {
    id: `sb_${n}`,
    token: `token-${n}`,
    address: "10.0.0.1:7777",
    podUID: `pod-${n}`,
    authority: `owner-${n}`,
    claimedAtMs: 1_700_000_000_000 + n,
    deadlineMs: n % 3 === 0 ? 0 : 1_700_086_400_000 + n,
    ...(n % 2 === 0
      ? { owner: { apiVersion: "agents.x-k8s.io/v1beta1", kind: "Sandbox", name: 'ü"\n', uid: `owner-${n}` } }
      : {}),
    ...(n % 5 === 0 ? { supersededAtMs: 1_700_000_001_000 } : {}),
  };
}

function changesOf(pick: (below: number) => number, n: number): Change[] {
  const key = `ns/p${pick(4)}`;
  const intent = {
    podUID: `pod-${n}`,
    authority: "a",
    atMs: 1_700_000_000_000 + n,
    template: "t",
    net: "",
    size: "",
  };
  switch (pick(6)) {
    case 0:
      return [{ kind: "intent", key, value: intent }];
    case 1:
      return [
        { kind: "row", key, value: row(n) },
        { kind: "intent", key, value: null },
      ];
    case 2:
      return [
        { kind: "row", key, value: null },
        { kind: "releasing", id: `sb_${n}`, value: { key, row: row(n), reason: "owner gone" } },
      ];
    case 3:
      return [{ kind: "releasing", id: `sb_${pick(n + 1)}`, value: null }];
    case 4:
      return [{ kind: "displaced", id: `sb_${n}`, value: { key, row: row(n) } }];
    default:
      return [{ kind: "displaced", id: `sb_${pick(n + 1)}`, value: null }];
  }
}

/** The table as text that is equal when the tables are. */
function canon(table: Table): string {
  const sorted = (map: Map<string, unknown>) => [...map].sort(([a], [b]) => (a < b ? -1 : 1));
  const plain = {
    r: sorted(table.rows),
    i: sorted(table.intents),
    l: sorted(table.releasing),
    d: sorted(table.displaced),
  };
  return JSON.stringify(plain, (_, value) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
}

interface Life {
  disk: FakeDisk;
  process: FakeProcess;
  /** The table after each number of commits that could have happened. */
  states: Table[];
  /** Commits that were answered with ok. */
  acknowledged: number;
  /** Commits known to survive a power cut. */
  durable: number;
}

/** Opens, commits, syncs, compacts by the seed until the script ends or the process dies. */
function live(disk: FakeDisk, seed: number, steps: number): Life {
  const pick = random(seed);
  const tasks: (() => void)[] = [];
  const process = disk.process();
  const life: Life = { disk, process, states: [emptyTable()], acknowledged: 0, durable: 0 };
  const opened = openStore({
    path: PATH,
    fs: process,
    schedule: (task) => tasks.push(task),
    nowMs: () => 0,
    pid: 1,
    compactFloorBytes: 600,
  });
  if (!opened.ok) return life;
  const { store } = opened;
  const model = emptyTable();
  for (let n = 1; n <= steps && !process.dead; n++) {
    const action = pick(10);
    if (action < 5) commitOne(store, model, changesOf(pick, n), life);
    else if (action < 7) for (let k = pick(6); k >= 0; k--) tasks.shift()?.();
    else if (action < 9) for (let k = pick(3); k >= 0; k--) process.completeSync();
    else if (pick(3) > 0) store.flush();
    else store.compact();
    if (!process.dead && store.stats().unsyncedBytes === 0) life.durable = life.acknowledged;
  }
  if (!process.dead && pick(2) === 0) store.close();
  return life;
}

function commitOne(store: Store, model: Table, changes: Change[], life: Life): void {
  applyChanges(model, changes);
  const { ok } = store.commit(changes);
  if (!ok && !life.process.dead) throw new Error("a commit failed without a fault");
  // Of one that the process did not live to hear of, either may be true.
  life.states.push(copyTable(model));
  if (ok) life.acknowledged++;
}

/** Loads what is left and tells after how many commits it is; then proves that the store goes on from there. */
function reopen(disk: FakeDisk, states: Table[], what: string): number {
  disk.onCall = undefined;
  const opened = openStore({ path: PATH, fs: disk.process(), schedule: () => {}, nowMs: () => 0, pid: 2 });
  if (!opened.ok) throw new Error(`${what}: ${opened.message}`);
  const found = canon(opened.store.table);
  const after = states.findLastIndex((state) => canon(state) === found);
  if (after < 0) throw new Error(`${what}: not a table that ever was:\n${found}`);
  expect(opened.store.commit([{ kind: "row", key: "ns/after", value: row(7) }])).toEqual({ ok: true });
  disk.powerCut({ bytes: (_, n) => n, names: () => true });
  const again = openStore({ path: PATH, fs: disk.process(), schedule: () => {}, nowMs: () => 0, pid: 3 });
  if (!again.ok) throw new Error(`${what}, opened twice: ${again.message}`);
  expect(again.store.table.rows.get("ns/after")).toEqual(row(7));
  again.store.table.rows.delete("ns/after");
  expect(canon(again.store.table)).toBe(found);
  return after;
}

/** Number of file system calls of a life without faults, with the bytes of each write. */
function callsOf(seed: number, steps: number): { name: string; bytes: number }[] {
  const disk = createFakeDisk();
  const calls: { name: string; bytes: number }[] = [];
  disk.onCall = (call) => {
    calls.push({ name: call.name, bytes: call.bytes ?? 0 });
    return undefined;
  };
  live(disk, seed, steps);
  return calls;
}

function dyingAt(seed: number, steps: number, index: number, fault: Fault): Life {
  const disk = createFakeDisk();
  let count = 0;
  disk.onCall = () => (count++ === index ? fault : undefined);
  return live(disk, seed, steps);
}

function faultsFor(call: { name: string; bytes: number }): Fault[] {
  const faults: Fault[] = [{ die: "before" }, { die: "after" }];
  if (call.name === "write") {
    for (const after of new Set([1, Math.floor(call.bytes / 2), call.bytes - 1, call.bytes]))
      faults.push({ die: "before", after });
  }
  return faults;
}

const keeps: [string, PowerCutKeep][] = Object.entries({
  nothing: {},
  everything: { bytes: (_, n) => n, names: () => true },
  "half of the bytes, all names": { bytes: (_, n) => n >> 1, names: () => true },
  "all bytes, the first name": { bytes: (_, n) => n, names: (_, index) => index === 0 },
  "all bytes, the last name": { bytes: (_, n) => n, names: (_, index, n) => index === n - 1 },
  "no bytes, every other name": { names: (_, index) => index % 2 === 1 },
  "all names, no bytes": { names: () => true },
} satisfies Record<string, PowerCutKeep>);

describe("the table after a death at any call", () => {
  const STEPS = 80;
  for (const seed of [1, 2, 3, 4]) {
    const calls = callsOf(seed, STEPS);

    test(
      `a process killed at any of ${calls.length} calls loses nothing that was committed (seed ${seed})`,
      () => {
        for (const [index, call] of calls.entries()) {
          for (const fault of faultsFor(call)) {
            const life = dyingAt(seed, STEPS, index, fault);
            life.process.kill();
            const what = `seed ${seed}, call ${index} ${call.name}, ${JSON.stringify(fault)}`;
            const after = reopen(life.disk, life.states, what);
            expect(after, what).toBeGreaterThanOrEqual(life.acknowledged);
          }
        }
      },
      TEST_MS_MAX,
    );

    test(
      `a power cut at any of ${calls.length} calls leaves a prefix with everything synced in it (seed ${seed})`,
      () => {
        for (const [index, call] of calls.entries()) {
          for (const [turn, fault] of faultsFor(call).entries()) {
            // Each death with one of the ways to lose power, in turn: all of them would take minutes.
            const [kept, keep] = keeps[(index + turn) % keeps.length] ?? ["nothing", {}];
            const life = dyingAt(seed, STEPS, index, fault);
            life.disk.powerCut(keep);
            const what = `seed ${seed}, call ${index} ${call.name}, ${JSON.stringify(fault)}, kept: ${kept}`;
            const after = reopen(life.disk, life.states, what);
            expect(after, what).toBeGreaterThanOrEqual(life.durable);
          }
        }
      },
      TEST_MS_MAX,
    );
  }
});

describe("a call that fails", () => {
  for (const seed of [11, 12]) {
    test(
      `a failure at any call leaves every acknowledged commit and none that was refused (seed ${seed})`,
      () => {
        const STEPS = 80;
        const calls = callsOf(seed, STEPS);
        for (const [index, call] of calls.entries()) {
          const faults: Fault[] = [{ error: "EIO" }, { error: "ENOSPC", after: 3 }];
          if (call.name === "write") faults.push({ short: call.bytes >> 1 });
          for (const [turn, fault] of faults.entries()) {
            const times = (index + turn) % 2 === 0 ? 1 : 3;
            const disk = createFakeDisk();
            let count = 0;
            disk.onCall = () => {
              const now = count++;
              return now >= index && now < index + times ? fault : undefined;
            };
            const what = `seed ${seed}, call ${index} ${call.name} × ${times}, ${JSON.stringify(fault)}`;
            const model = suffering(disk, seed, STEPS);
            if (model === undefined) continue;
            disk.onCall = undefined;
            disk.powerCut({ bytes: (_, n) => n, names: () => true });
            const opened = openStore({
              path: PATH,
              fs: disk.process(),
              schedule: () => {},
              nowMs: () => 0,
              pid: 2,
            });
            if (!opened.ok) throw new Error(`${what}: ${opened.message}`);
            expect(canon(opened.store.table), what).toBe(model);
          }
        }
      },
      TEST_MS_MAX,
    );
  }
});

/** As `live`, with commits that may be refused. @returns the table of the acknowledged ones */
function suffering(disk: FakeDisk, seed: number, steps: number): string | undefined {
  const pick = random(seed);
  const tasks: (() => void)[] = [];
  const process = disk.process();
  const opened = openStore({
    path: PATH,
    fs: process,
    schedule: (task) => tasks.push(task),
    nowMs: () => 0,
    pid: 1,
    compactFloorBytes: 600,
  });
  if (!opened.ok) return undefined;
  const { store } = opened;
  const model = emptyTable();
  const commit = (changes: Change[]) => {
    const answer = store.commit(changes);
    if (answer.ok) applyChanges(model, changes);
    return answer;
  };
  for (let n = 1; n <= steps; n++) {
    const action = pick(10);
    if (action < 5) commit(changesOf(pick, n));
    else if (action < 7) for (let k = pick(6); k >= 0; k--) tasks.shift()?.();
    else if (action < 9) for (let k = pick(3); k >= 0; k--) process.completeSync();
    else if (pick(3) > 0) store.flush();
    else store.compact();
  }
  disk.onCall = undefined;
  expect(commit([{ kind: "row", key: "ns/last", value: row(3) }])).toEqual({ ok: true });
  return canon(model);
}

test("a journal cut at any byte is the commits before the cut", () => {
  const pick = random(99);
  const model = emptyTable();
  const commits = Array.from({ length: 12 }, (_, n) => changesOf(pick, n + 1));
  const header = encodeHeader({ generation: 1, follows: { generation: 0, offset: 0 } });
  const states = [canon(model)];
  const ends = [header.length];
  const lines = commits.map((changes) => {
    applyChanges(model, changes);
    states.push(canon(model));
    const line = encodeCommit(changes);
    ends.push((ends.at(-1) ?? 0) + line.length);
    return line;
  });
  const journal = Buffer.concat([header, ...lines]);
  for (let cut = header.length; cut <= journal.length; cut++) {
    const disk = createFakeDisk();
    disk.plantDirectory("/s", 0o700);
    disk.plant("/s/c", '{"claims":{},"journal":{"version":1,"generation":0,"offset":0,"closed":false}}');
    disk.plant("/s/c.journal", journal.subarray(0, cut));
    const opened = openStore({ path: "/s/c", fs: disk.process(), schedule: () => {}, nowMs: () => 0 });
    if (!opened.ok) throw new Error(opened.message);
    const whole = ends.filter((end) => end <= cut).length - 1;
    expect(canon(opened.store.table)).toBe(states[whole] ?? "");
    expect(opened.store.warnings.length).toBe(ends.includes(cut) ? 0 : 1);
  }
});

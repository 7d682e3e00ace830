import { expect, test } from "bun:test";
import { fakeClock } from "../kube/fake-clock.ts";
import type { WatchEvent } from "../kube/index.ts";
import { applyChanges, emptyTable } from "../provider/table.ts";
import type { ClaimResult, Effect, Event, Listed, Note, Row, Table } from "../provider/types.ts";
import { createPods } from "./pods.ts";

const dayMs = 86_400_000;

/** An engine whose effects the test answers, on a wall clock that it may step. */
function engine(table: Table = emptyTable()) {
  const mono = fakeClock(5_000);
  let wallMs = 1_800_000_000_000;
  const ran: Effect[] = [];
  const notes: Note[] = [];
  const answers = new Map<number, (event: Event) => void>();
  const pods = createPods({
    provider: { nodeName: "n", orphanScanMs: 0 },
    table,
    commit: (changes) => {
      applyChanges(table, changes);
      return true;
    },
    runEffect: (effect) => {
      ran.push(effect);
      return new Promise((resolve) => answers.set(effect.seq, resolve));
    },
    onNote: (note) => notes.push(note),
    onFault: (error) => {
      throw error;
    },
    clock: { now: () => wallMs + mono.now(), after: mono.after },
    ticks: mono.now,
    random: () => 0.5,
  });
  const last = (kind: Effect["kind"]) => ran.filter((effect) => effect.kind === kind).at(-1);
  return {
    pods,
    table,
    notes,
    now: () => wallMs + mono.now(),
    advance: mono.advance,
    step(ms: number) {
      wallMs += ms;
    },
    count: (kind: Effect["kind"]) => ran.filter((effect) => effect.kind === kind).length,
    last,
    /** Answers the newest effect of a kind, and returns when that was taken in. */
    async answer(kind: Effect["kind"], of: (effect: Effect) => Event) {
      const effect = last(kind);
      if (effect === undefined) throw new Error(`no ${kind} was asked for`);
      answers.get(effect.seq)?.(of(effect));
      await Bun.sleep(0);
    },
  };
}

function pod(uid: string, version: string, status: Record<string, unknown> = {}): WatchEvent {
  return {
    type: "object",
    initial: false,
    change: "MODIFIED",
    object: {
      metadata: {
        namespace: "ns",
        name: "a",
        uid,
        resourceVersion: version,
        annotations: { "sandbox.cocoonstack.io/template": "t" },
      },
      spec: { containers: [{ name: "c", image: "i" }] },
      status,
    },
  };
}

const refused: ClaimResult = {
  ok: false,
  lost: false,
  cause: { kind: "no_warm_capacity", message: "none" },
};

for (const [what, stepMs] of [
  ["forward", dayMs],
  ["back", -dayMs],
] as const)
  test(`a wall clock stepped ${what} by a day neither hurries nor holds up a retry`, async () => {
    const e = engine();
    e.pods.start();
    e.pods.onWatch(pod("u1", "2"));
    await e.answer("claim", (effect) => ({ type: "claimed", effect, result: refused }));
    await e.answer("publish", (effect) => ({
      type: "called",
      effect,
      result: { ok: true, resourceVersion: "3" },
    }));
    e.step(stepMs);
    e.advance(100);
    e.pods.onWatch(pod("u1", "4", { phase: "Pending", reason: "ProviderFailed", message: "none" }));
    expect(e.count("claim")).toBe(1);
    // The first retry comes within half a second.
    e.advance(500);
    expect(e.count("claim")).toBe(2);
  });

function heldRow(deadlineMs: number): Row {
  return {
    id: "sb_1",
    token: "t",
    address: "10.0.0.5:7777",
    podUID: "u1",
    authority: "u1",
    claimedAtMs: deadlineMs - 3_600_000,
    deadlineMs,
  };
}

function listed(row: Row): Listed {
  const { id, deadlineMs } = row;
  return { id, template: "t", net: "none", size: "small", deadlineMs, hibernated: false, claimRef: "ns/a" };
}

test("a clock stepped over a lease's deadline fails nobody whose VM sandboxd still lists", async () => {
  const table = emptyTable();
  const e = engine(table);
  const row = heldRow(e.now() + 3_600_000);
  table.rows.set("ns/a", row);
  const again = engine(table);
  again.pods.start();
  again.advance(0);
  again.pods.onWatch(pod("u1", "2"));
  const list = (rows: Listed[]) =>
    again.answer("list", (effect) => ({ type: "listed", effect, result: { ok: true, rows } }));
  await list([listed(row)]);
  await again.answer("publish", (effect) => ({
    type: "called",
    effect,
    result: { ok: true, resourceVersion: "3" },
  }));
  again.step(dayMs);
  again.advance(60_000);
  await list([listed(row)]);
  expect(again.count("read")).toBe(0);
  expect(table.rows.get("ns/a")).toBe(row);
  expect(again.notes.map((note) => note.kind)).not.toContain("lease_expired");

  // Once it is gone, the Pod says so with the lease's end, not with the hour of the stepped clock.
  again.advance(60_000);
  await list([]);
  await again.answer("read", (effect) => ({
    type: "read",
    effect,
    result: { ok: false, absent: true, why: "404" },
  }));
  const publish = again.last("publish");
  expect(publish).toMatchObject({
    status: {
      phase: "Failed",
      reason: "SandboxLeaseExpired",
      containerStatuses: [
        {
          state: {
            terminated: {
              exitCode: 1,
              finishedAt: `${new Date(row.deadlineMs).toISOString().slice(0, 19)}Z`,
            },
          },
        },
      ],
    },
  });
});

test("an event from before a Pod's end that comes after it brings nobody back", async () => {
  const e = engine();
  e.pods.start();
  e.pods.onWatch({ type: "relist" });
  e.pods.onWatch({ type: "synced" });
  const gone = pod("u1", "7");
  if (gone.type !== "object") throw new Error("not an object");
  e.pods.onWatch({ type: "gone", object: gone.object });
  e.pods.onWatch(pod("u1", "5"));
  expect(e.count("claim")).toBe(0);
  e.pods.onWatch(pod("u2", "8"));
  expect(e.count("claim")).toBe(1);
});

test("a drain waits for what is in flight, takes nothing new, and says what it left", async () => {
  const e = engine();
  e.pods.start();
  e.pods.onWatch(pod("u1", "2"));
  const drained = e.pods.drain(10_000);
  await e.answer("claim", (effect) => ({ type: "claimed", effect, result: refused }));
  // The answer leads on to one more write, which is waited for as well.
  await e.answer("publish", (effect) => ({ type: "called", effect, result: { ok: true } }));
  expect(await drained).toBe(0);

  const f = engine();
  f.pods.start();
  f.pods.onWatch(pod("u1", "2"));
  const left = f.pods.drain(10_000);
  f.advance(10_000);
  expect(await left).toBe(1);
});

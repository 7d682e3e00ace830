import { describe, expect, test } from "bun:test";
import {
  alive,
  createWorld,
  GONE,
  KEY,
  listedOf,
  OTHER_SANDBOX,
  type PodSpec,
  rowOf,
  runningWorld,
  SANDBOX,
  START_MS,
  type WorldOptions,
} from "./harness.ts";
import { emptyTable } from "./table.ts";

const RUNNING: PodSpec = { status: { phase: "Running", podIP: "10.0.0.7" } };
const RAN: PodSpec = { ...RUNNING, annotations: { "claim-id": "sb-1" } };
const restarted = (options: WorldOptions = {}) => createWorld({ rows: { [KEY]: rowOf() }, ...options });

describe("a row read from disk", () => {
  test("is quarantined: neither adopted nor Running before a listing vouches for it", () => {
    for (const uid of ["pod-1", "pod-2"]) {
      const world = restarted();
      world.list({ uid });
      expect(world.underWay()).toEqual(["list"]);
      expect(world.claims()).toMatchObject([{ state: "quarantined" }]);
      expect(world.row().podUID).toBe("pod-1");
      world.answerList(listedOf());
      expect(world.told("vouched")).toMatchObject([{ id: "sb-1" }]);
      expect(world.row().podUID).toBe(uid);
      expect(world.pending("publish")[0]?.status.phase).toBe("Running");
      expect(world.ever("claim")).toEqual([]);
    }
  });

  test("is releasable while it is quarantined", () => {
    const world = restarted();
    world.list({ ...RUNNING, deleting: true });
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
  });

  test("that was released unseen leaves no quarantine to the key's next VM", () => {
    const world = restarted();
    world.list({ ...RUNNING, deleting: true });
    world.answerAsk(GONE);
    world.call("release").ok();
    world.finalized();
    world.create({ uid: "pod-2" });
    world.grant({ id: "sb-2" });
    expect(world.pending("publish")).toMatchObject([{ claimId: "sb-2" }]);
  });

  test("is set aside only once it is vouched for when another owner's Pod has the key", () => {
    const world = restarted();
    world.list({ uid: "pod-2", owner: OTHER_SANDBOX });
    expect(world.table.displaced.size).toBe(0);
    world.answerList(listedOf());
    expect(world.table.displaced.has("sb-1")).toBe(true);
  });

  test("that a successful listing lacks is read once, then dropped, and its owner's new Pod claims fresh", () => {
    const world = restarted();
    world.list({ uid: "pod-2" });
    world.answerList();
    expect(world.row().id).toBe("sb-1");
    world.failRead(true);
    expect(world.table.rows.size).toBe(0);
    expect(world.pending("claim")).toHaveLength(1);
    expect(world.ever("release")).toEqual([]);
  });

  test("is vouched for with sandboxd's deadline", () => {
    const world = restarted();
    world.list();
    world.answerList(listedOf({ deadlineMs: START_MS + 7_200_000 }));
    expect(world.row().deadlineMs).toBe(START_MS + 7_200_000);
  });

  test("that is waited for while a listing is under way is no reason to look at the clock without end", () => {
    const other = "agents/agent-2";
    const world = createWorld({ rows: { [KEY]: rowOf(), [other]: rowOf({ id: "sb-2" }) } });
    world.list({});
    world.create({ key: other });
    world.pass(5_000);
    expect(world.ever("list")).toHaveLength(1);
    world.answerList(listedOf(), listedOf({ id: "sb-2" }, { claimRef: other }));
    expect(world.counts()).toMatchObject({ held: 2, quarantined: 0 });
  });

  test("of a Pod that says all that is so causes no push", () => {
    const world = runningWorld();
    const raw = structuredClone(world.object(KEY));
    world.crash();
    world.send({ type: "relist" });
    world.show(raw);
    world.send({ type: "synced" });
    world.answerList(listedOf());
    expect(world.ever("publish")).toEqual([]);
    expect(world.ever("claim")).toEqual([]);
    expect(world.claims()).toMatchObject([{ id: "sb-1", state: "held" }]);
  });
});

describe("a failed listing is not an empty one:", () => {
  test("it neither vouches nor drops, and comes again at least every 15 s until it is settled", () => {
    const world = restarted();
    world.list(RAN);
    for (let round = 0; round < 12; round++) {
      world.failList();
      expect(world.until("list")).toBeLessThanOrEqual(15_000);
    }
    expect(world.ever("read")).toEqual([]);
    expect(world.row().id).toBe("sb-1");
    expect(world.ever("publish")).toEqual([]);
    expect(world.claims()).toMatchObject([{ state: "quarantined" }]);
    world.answerList(listedOf());
    expect(world.claims()).toMatchObject([{ state: "held" }]);
  });

  test("nor does the answer to an older listing count for the one under way", () => {
    const world = restarted();
    world.list(RAN);
    const older = world.take("list");
    world.send({ type: "listed", effect: older, result: { ok: false, why: "no answer" } });
    world.until("list");
    world.send({ type: "listed", effect: older, result: { ok: true, rows: [] } });
    expect(world.ever("read")).toEqual([]);
    world.answerList(listedOf());
    expect(world.claims()).toMatchObject([{ state: "held" }]);
  });

  test("nor does an absence that the read does not confirm", () => {
    const world = restarted();
    world.list(RAN);
    world.answerList();
    for (let round = 0; round < 3; round++) {
      world.failRead(false);
      world.until("read");
    }
    expect(world.row().id).toBe("sb-1");
    expect(world.ever("publish")).toEqual([]);
    world.answerRead(listedOf());
    expect(world.claims()).toMatchObject([{ state: "held" }]);
  });

  test("a Pod that ran before waits for one that succeeds", () => {
    const world = createWorld();
    world.list(RUNNING);
    world.until("list");
    for (let round = 0; round < 4; round++) {
      world.failList();
      world.until("list");
    }
    expect(world.ever("claim")).toEqual([]);
    expect(world.ever("publish")).toEqual([]);
  });
});

describe("a Pod that ran here and whose VM is confirmed gone", () => {
  test("before its deadline is Failed: SandboxLost, and is given no other VM", () => {
    const world = restarted();
    world.list(RAN);
    world.answerList();
    world.failRead(true);
    expect(world.pending("publish")[0]?.status).toMatchObject({ phase: "Failed", reason: "SandboxLost" });
    world.pushed();
    world.passListing(600_000);
    expect(world.ever("claim")).toEqual([]);
  });

  test("past its deadline is Failed: SandboxLeaseExpired, finished at the deadline", () => {
    const world = restarted({ rows: { [KEY]: rowOf({ deadlineMs: START_MS - 1_000 }) } });
    world.list(RAN);
    world.answerList();
    world.failRead(true);
    expect(world.pending("publish")[0]?.status).toMatchObject({
      phase: "Failed",
      reason: "SandboxLeaseExpired",
      containerStatuses: [{ state: { terminated: { finishedAt: "2025-12-31T23:59:59Z" } } }],
    });
  });

  test("is told so even when its VM was found gone before the Pods were listed", () => {
    const world = restarted();
    world.until("list");
    world.answerList();
    world.failRead(true);
    expect(world.row().id).toBe("sb-1");
    world.list(RAN);
    expect(world.pending("publish")[0]?.status.reason).toBe("SandboxLost");
    world.pushed();
    expect(world.table.rows.size).toBe(0);
  });

  test("with no row left and only its status to say so is Failed as well", () => {
    const world = createWorld();
    world.list(RUNNING);
    world.until("list");
    expect(world.ever("claim")).toEqual([]);
    world.answerList();
    expect(world.pending("publish")[0]?.status).toMatchObject({ phase: "Failed", reason: "SandboxLost" });
    world.pushed();
    world.passListing(600_000);
    expect(world.ever("claim")).toEqual([]);
  });

  for (const [what, spec] of [
    ["its status and claim-id", RAN],
    ["its claim-id alone", { annotations: { "claim-id": "sb-1" } }],
  ] as const) {
    test(`with no row left and ${what} to say so is Failed once a read confirms it`, () => {
      const world = createWorld();
      world.list(spec);
      world.until("list");
      world.answerList();
      expect(world.ever("publish")).toEqual([]);
      expect(world.pending("read")).toMatchObject([{ id: "sb-1" }]);
      world.failRead(true);
      expect(world.pending("publish")[0]?.status).toMatchObject({ phase: "Failed", reason: "SandboxLost" });
      expect(world.ever("claim")).toEqual([]);
    });
  }

  test("and that is being deleted is let go, and nothing is released", () => {
    const world = createWorld();
    world.list({ ...RAN, deleting: true });
    world.until("list");
    expect(world.ever("finalize")).toEqual([]);
    world.answerList();
    world.failRead(true);
    world.until("finalize");
    world.finalized();
    expect(world.ever("release")).toEqual([]);
    expect(world.ever("ask")).toEqual([]);
  });
});

describe("with the state file lost", () => {
  test("a VM whose id the Pod names and whose claim_ref is the Pod's key is recovered with the root read", () => {
    const world = createWorld();
    world.list(RAN);
    world.until("list");
    world.answerList(listedOf());
    expect(world.pending("read")).toMatchObject([{ id: "sb-1" }]);
    world.answerRead(listedOf(), "secret-1");
    expect(world.row()).toEqual(rowOf());
    expect(world.told("recovered")).toMatchObject([{ id: "sb-1" }]);
    expect(world.ever("claim")).toEqual([]);
  });

  test("the annotation alone proves nothing: another's claim_ref is left alone, and so is its VM", () => {
    const world = createWorld();
    world.list(RAN);
    world.until("list");
    world.answerList(listedOf({}, { claimRef: "agents/victim" }));
    expect(world.ever("read")).toEqual([]);
    expect(world.told("unrecoverable")).toMatchObject([{ id: "sb-1" }]);
    expect(world.table.rows.size).toBe(0);
    expect(world.pending("publish")[0]?.status.reason).toBe("SandboxLost");
  });

  test("a Pod that is being deleted and names another's VM goes without it", () => {
    const world = createWorld();
    world.list({ ...RAN, deleting: true });
    world.until("list");
    world.answerList(listedOf({}, { claimRef: "agents/victim" }));
    expect(world.underWay()).toEqual(["finalize"]);
    expect(world.ever("read")).toEqual([]);
    expect(world.ever("release")).toEqual([]);
  });

  test("a Pod that never ran and names another's VM claims fresh", () => {
    const world = createWorld();
    world.list({ annotations: { "claim-id": "sb-victim" } });
    world.until("list");
    world.answerList(listedOf({ id: "sb-victim" }, { claimRef: "agents/victim" }));
    expect(world.ever("read")).toEqual([]);
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("the claim_ref alone proves nothing either: a Pod that names no VM claims fresh", () => {
    const world = createWorld();
    world.list({});
    expect(world.pending("claim")).toHaveLength(1);
    world.until("list");
    world.answerList(listedOf());
    expect(world.ever("read")).toEqual([]);
  });

  test("a VM that a row of another key holds is not recovered", () => {
    const world = createWorld({ rows: { "agents/else": rowOf() } });
    world.list(RAN);
    world.answerList(listedOf());
    expect(world.pending("read")).toEqual([]);
    expect(world.table.rows.has(KEY)).toBe(false);
  });

  test("a read that says another claim_ref than the listing recovers nothing", () => {
    const world = createWorld();
    world.list(RAN);
    world.until("list");
    world.answerList(listedOf());
    world.answerRead(listedOf({}, { claimRef: "agents/victim" }));
    expect(world.table.rows.size).toBe(0);
  });

  test("a recovery that cannot be made durable is tried again, and is no second VM", () => {
    const world = createWorld();
    world.list(RAN);
    world.until("list");
    world.answerList(listedOf());
    world.failCommits(1);
    world.answerRead(listedOf());
    expect(world.table.rows.size).toBe(0);
    world.until("read");
    world.answerRead(listedOf());
    expect(world.row().id).toBe("sb-1");
    expect(world.ever("claim")).toEqual([]);
  });

  test("a recovered bare Pod's VM is the Pod's own", () => {
    const world = createWorld();
    world.list({ ...RAN, owner: null });
    world.until("list");
    world.answerList(listedOf());
    world.answerRead(listedOf());
    expect(world.row()).toMatchObject({ authority: "pod-1", podUID: "pod-1" });
  });

  test("a Pod that is being deleted has its VM found before it goes", () => {
    const world = createWorld();
    world.list({ ...RAN, deleting: true });
    world.until("list");
    world.answerList(listedOf());
    world.answerRead(listedOf());
    expect(world.ever("finalize")).toEqual([]);
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });
});

describe("with a state file older than the cluster", () => {
  test("a Pod gets the VM that it names, not the one that the old table holds for its owner", () => {
    const world = createWorld({ rows: { [KEY]: rowOf({ id: "sb-0", podUID: "pod-0" }) } });
    world.list({ ...RAN, uid: "pod-2" });
    const ours = listedOf({ id: "sb-1" });
    world.answerList(listedOf({ id: "sb-0" }), ours);
    expect(world.table.displaced.has("sb-0")).toBe(true);
    world.until("list");
    world.answerList(listedOf({ id: "sb-0" }), ours);
    world.answerRead(ours);
    expect(world.row()).toMatchObject({ id: "sb-1", podUID: "pod-2" });
    expect(world.ever("claim")).toEqual([]);
  });
});

describe("the release queue", () => {
  function queued(key: string) {
    const table = emptyTable();
    table.releasing.set("sb-1", { key, row: rowOf(), reason: "its owner is gone" });
    return createWorld({ table });
  }

  for (const [name, key] of [
    ["is resumed at once, with the credential", KEY],
    ["of the Go reference, which names no keys, is resumed too", ""],
  ] as const) {
    test(name, () => {
      const world = queued(key);
      world.settle();
      expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
      expect(world.counts().releasing).toBe(1);
      world.call("release").ok();
      expect(world.table.releasing.size).toBe(0);
      expect(world.counts().releasing).toBe(0);
    });
  }

  test("keeps the Pod of its claim until sandboxd says that it is done", () => {
    const world = queued(KEY);
    world.list({ ...RUNNING, deleting: true });
    world.call("release").failed();
    if (world.pending("list").length > 0) world.answerList(listedOf());
    expect(world.ever("finalize")).toEqual([]);
    world.until("release");
    world.call("release").gone();
    world.passListing(2_000);
    world.until("finalize");
    expect(world.pending("finalize")).toMatchObject([{ uid: "pod-1" }]);
  });

  test("survives kill -9 between decision and release", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk(GONE);
    world.crash();
    expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
  });
});

describe("kill -9", () => {
  test("between question and answer asks again", () => {
    const world = runningWorld();
    world.remove();
    const raw = structuredClone(world.object(KEY));
    world.crash();
    world.send({ type: "relist" });
    world.show(raw);
    world.send({ type: "synced" });
    expect(world.pending("ask")).toMatchObject([{ owner: SANDBOX }]);
  });

  test("between claim and push publishes Running of the same VM", () => {
    const world = createWorld();
    world.list();
    world.create();
    world.grant();
    const raw = structuredClone(world.object(KEY));
    world.crash();
    world.send({ type: "relist" });
    world.show(raw);
    world.send({ type: "synced" });
    world.answerList(listedOf());
    expect(world.pending("publish")).toMatchObject([{ claimId: "sb-1" }]);
    expect(world.ever("claim")).toEqual([]);
  });
});

test("an owner that lives keeps its VM through any number of restarts", () => {
  const world = restarted();
  for (let round = 0; round < 3; round++) {
    world.list();
    world.answerList(listedOf());
    world.answerAsk(alive(), { kind: "not_found" });
    expect(world.row()).toEqual(rowOf());
    world.crash();
  }
  expect(world.ever("release")).toEqual([]);
});

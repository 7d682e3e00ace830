import { describe, expect, test } from "bun:test";
import {
  alive,
  createWorld,
  GONE,
  KEY,
  listedOf,
  preservedWorld,
  rowOf,
  runningWorld,
  START_MS,
  type WorldOptions,
} from "./harness.ts";

const HOUR_MS = 3_600_000;
const DEADLINE_MS = START_MS + HOUR_MS;

/** A Running Pod whose lease has just ended, and the listing that this asks for. */
function ended(options: WorldOptions = {}) {
  const world = runningWorld(options);
  world.passListing(HOUR_MS - 1, listedOf());
  expect(world.ever("publish")).toHaveLength(1);
  world.until("list");
  expect(world.now()).toBeGreaterThanOrEqual(DEADLINE_MS);
  return world;
}

describe("past its deadline a claim", () => {
  test("is listed before anything is said about it", () => {
    const world = ended();
    expect(world.underWay()).toEqual(["list"]);
    expect(world.now() - DEADLINE_MS).toBeLessThan(1_000);
  });

  test("that is still listed takes the listed deadline", () => {
    const world = ended();
    world.answerList(listedOf({ deadlineMs: DEADLINE_MS + HOUR_MS }));
    expect(world.row().deadlineMs).toBe(DEADLINE_MS + HOUR_MS);
    expect(world.told("lease_moved")).toMatchObject([{ id: "sb-1" }]);
    world.passListing(HOUR_MS / 2, listedOf({ deadlineMs: DEADLINE_MS + HOUR_MS }));
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("that is listed with a zero deadline is kept for ever", () => {
    const world = ended();
    world.answerList(listedOf({ deadlineMs: 0 }));
    expect(world.row().deadlineMs).toBe(0);
    world.passListing(100 * HOUR_MS, listedOf({ deadlineMs: 0 }));
    expect(world.ever("publish")).toHaveLength(1);
    expect(world.ever("read")).toEqual([]);
  });

  test("that is confirmed absent turns its Pod Failed: SandboxLeaseExpired, exit code 1, finished at the deadline", () => {
    const world = ended();
    world.answerList();
    expect(world.pending("read")).toMatchObject([{ id: "sb-1" }]);
    expect(world.ever("publish")).toHaveLength(1);
    world.failRead(true);
    expect(world.pending("publish")[0]?.status).toMatchObject({
      phase: "Failed",
      reason: "SandboxLeaseExpired",
      containerStatuses: [
        {
          name: "agent",
          ready: false,
          state: {
            terminated: { exitCode: 1, reason: "SandboxLeaseExpired", finishedAt: "2026-01-01T01:00:00Z" },
          },
        },
      ],
    });
    world.pushed();
    expect(world.table.rows.size).toBe(0);
    expect(world.ever("release")).toEqual([]);
  });

  test("whose listing fails is decided about later", () => {
    const world = ended();
    for (let round = 0; round < 3; round++) {
      world.failList();
      world.until("list");
    }
    expect(world.ever("publish")).toHaveLength(1);
    expect(world.row().id).toBe("sb-1");
    world.answerList();
    world.failRead(true);
    expect(world.pending("publish")[0]?.status.reason).toBe("SandboxLeaseExpired");
  });

  test("that a listing lacks and a read does not deny lives on", () => {
    const world = ended();
    world.answerList();
    world.answerRead(listedOf({ deadlineMs: DEADLINE_MS + HOUR_MS }));
    expect(world.row().deadlineMs).toBe(DEADLINE_MS + HOUR_MS);
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("that a listing lacks and that cannot be read is decided about later", () => {
    const world = ended();
    world.answerList();
    world.failRead(false);
    expect(world.ever("publish")).toHaveLength(1);
    world.until("read");
    world.failRead(true);
    expect(world.ever("publish")).toHaveLength(2);
  });

  test("that sandboxd goes on listing is asked about ever more slowly, and never declared dead", () => {
    const world = ended({ orphanScanMs: 600_000 });
    const waits: number[] = [];
    for (let round = 0; round < 6; round++) {
      world.answerList(listedOf());
      waits.push(world.until("list"));
    }
    expect(waits).toEqual([750, 1_500, 3_000, 6_000, 11_250, 11_250]);
    expect(world.ever("read")).toEqual([]);
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("whose Pod was replaced meanwhile does not turn the replacement Failed", () => {
    const world = ended();
    world.answerList();
    world.create({ uid: "pod-2" });
    world.failRead(true);
    expect(world.ever("publish").filter((push) => push.status.phase === "Failed")).toEqual([]);
    expect(world.table.rows.size).toBe(0);
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("is followed by the replacement's own VM, which is Running", () => {
    const world = ended();
    world.answerList();
    world.create({ uid: "pod-2" });
    world.failRead(true);
    world.grant({ id: "sb-2" });
    expect(world.pushed()).toMatchObject({ phase: "Running", claimId: "sb-2" });
    expect(world.row().id).toBe("sb-2");
  });

  test("whose end could not be pushed keeps its row until it is", () => {
    const world = ended();
    world.answerList();
    world.failRead(true);
    world.call("publish").failed();
    expect(world.row().id).toBe("sb-1");
    world.until("publish");
    world.pushed();
    expect(world.table.rows.size).toBe(0);
  });

  test("whose end could not be made durable is forgotten later", () => {
    const world = ended();
    world.answerList();
    world.failRead(true);
    world.failCommits(1);
    world.pushed();
    expect(world.row().id).toBe("sb-1");
    world.passToDue();
    expect(world.table.rows.size).toBe(0);
    expect(world.ever("publish")).toHaveLength(2);
  });

  test("whose Pod is deleted after all that has nothing to be judged", () => {
    const world = ended();
    world.answerList();
    world.failRead(true);
    world.pushed();
    world.remove();
    expect(world.underWay()).toEqual(["finalize"]);
    expect(world.ever("ask")).toEqual([]);
  });
});

describe("a deadline that sandboxd moved", () => {
  test("before its end is taken from any listing, durably", () => {
    const world = runningWorld();
    world.until("list");
    world.answerList(listedOf({ deadlineMs: DEADLINE_MS + 5 * HOUR_MS }));
    expect(world.commits.at(-1)).toEqual([
      { kind: "row", key: KEY, value: expect.objectContaining({ deadlineMs: DEADLINE_MS + 5 * HOUR_MS }) },
    ]);
    world.passListing(2 * HOUR_MS, listedOf({ deadlineMs: DEADLINE_MS + 5 * HOUR_MS }));
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("that could not be made durable is told only once it is", () => {
    const world = runningWorld();
    const moved = listedOf({ deadlineMs: DEADLINE_MS + HOUR_MS });
    world.until("list");
    world.failCommits(1);
    world.answerList(moved);
    expect(world.row().deadlineMs).toBe(DEADLINE_MS);
    expect(world.told("lease_moved")).toEqual([]);
    world.until("list");
    world.answerList(moved);
    expect(world.row().deadlineMs).toBe(DEADLINE_MS + HOUR_MS);
  });

  test("to an earlier time is taken as well", () => {
    const world = runningWorld();
    world.until("list");
    world.answerList(listedOf({ deadlineMs: START_MS + 120_000 }));
    expect(world.row().deadlineMs).toBe(START_MS + 120_000);
  });
});

describe("a VM that sandboxd no longer lists before its deadline", () => {
  test("is confirmed absent by one read, and turns its Pod Failed: SandboxLost", () => {
    const world = runningWorld();
    world.until("list");
    world.answerList();
    expect(world.told("stale")).toMatchObject([{ id: "sb-1" }]);
    expect(world.ever("publish")).toHaveLength(1);
    world.failRead(true);
    expect(world.told("lost")).toMatchObject([{ id: "sb-1" }]);
    expect(world.pending("publish")[0]?.status).toMatchObject({
      phase: "Failed",
      reason: "SandboxLost",
      containerStatuses: [{ state: { terminated: { exitCode: 1, finishedAt: "2026-01-01T00:01:00Z" } } }],
    });
    world.pushed();
    expect(world.table.rows.size).toBe(0);
  });

  test("is not given another VM: the Pod stays Failed", () => {
    const world = runningWorld();
    world.until("list");
    world.answerList();
    world.failRead(true);
    world.pushed();
    world.passListing(600_000);
    expect(world.ever("claim")).toHaveLength(1);
    expect(world.ever("publish")).toHaveLength(2);
  });

  test("and that is kept for its owner is forgotten, and the owner's next Pod claims fresh", () => {
    const world = preservedWorld();
    world.until("list");
    world.answerList();
    if (world.pending("ask").length > 0) world.answerAsk(alive(), { kind: "not_found" });
    world.failRead(true);
    expect(world.table.rows.size).toBe(0);
    expect(world.ever("release")).toEqual([]);
    world.create({ uid: "pod-2" });
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("is not denied by a listing that was asked for before it was claimed", () => {
    const world = createWorld();
    world.list();
    world.until("list");
    world.create();
    world.grant();
    world.pushed();
    world.answerList();
    expect(world.told("stale")).toEqual([]);
    expect(world.ever("read")).toEqual([]);
  });

  test("is not denied by a listing asked for while it was being claimed, once it is read", () => {
    const world = createWorld();
    world.list();
    world.create();
    world.until("list");
    world.grant();
    world.pushed();
    world.answerList();
    world.answerRead(listedOf());
    expect(world.row().id).toBe("sb-1");
    expect(world.ever("publish")).toHaveLength(1);
  });
});

describe("renewal", () => {
  test("is off by default", () => {
    const world = runningWorld();
    world.passListing(HOUR_MS - 1, listedOf());
    expect(world.ever("renew")).toEqual([]);
  });

  for (const [name, options, annotations] of [
    ["turned on for all", { renewLeases: true }, {}],
    ["turned on by the Pod's annotation", {}, { renew: "true" }],
  ] as const) {
    test(`${name} comes at half-life, with the credential`, () => {
      const world = runningWorld(options, { annotations });
      world.passListing(HOUR_MS / 2 - 1, listedOf());
      expect(world.ever("renew")).toEqual([]);
      world.passListing(1, listedOf());
      expect(world.pending("renew")).toMatchObject([{ id: "sb-1", token: "secret-1", ttlSeconds: 86_400 }]);
    });
  }

  test("asks for the Pod's own ttl-seconds", () => {
    const world = runningWorld({ renewLeases: true }, { annotations: { "ttl-seconds": "3600" } });
    world.until("renew");
    expect(world.take("renew").ttlSeconds).toBe(3_600);
  });

  test("moves the deadline durably, and comes again at the next half-life", () => {
    const world = runningWorld({ renewLeases: true });
    world.passListing(HOUR_MS / 2, listedOf());
    const deadlineMs = world.now() + HOUR_MS;
    world.call("renew").ok({ deadlineMs });
    expect(world.row().deadlineMs).toBe(deadlineMs);
    expect(world.told("renewed")).toHaveLength(1);
    world.passListing(HOUR_MS / 2 - 1, listedOf({ deadlineMs }));
    expect(world.ever("renew")).toHaveLength(1);
    world.passListing(1, listedOf({ deadlineMs }));
    expect(world.ever("renew")).toHaveLength(2);
  });

  test("that sandboxd refuses is told and not asked for again", () => {
    const world = runningWorld({ renewLeases: true });
    world.passListing(HOUR_MS / 2, listedOf());
    world.call("renew").refused("409 archived");
    world.passListing(HOUR_MS / 2 - 1, listedOf());
    expect(world.ever("renew")).toHaveLength(1);
    expect(world.told("renew_refused")).toMatchObject([{ reason: "409 archived" }]);
  });

  test("that fails is tried again before the deadline", () => {
    const world = runningWorld({ renewLeases: true });
    world.passListing(HOUR_MS / 2, listedOf());
    world.call("renew").failed();
    expect(world.until("renew")).toBeLessThan(1_000);
    world.call("renew").ok({ deadlineMs: DEADLINE_MS + HOUR_MS });
    expect(world.row().deadlineMs).toBe(DEADLINE_MS + HOUR_MS);
  });

  test("answered that the VM is gone is confirmed by a read before the Pod hears of it", () => {
    const world = runningWorld({ renewLeases: true });
    world.passListing(HOUR_MS / 2, listedOf());
    world.call("renew").gone();
    expect(world.ever("publish")).toHaveLength(1);
    world.failRead(true);
    expect(world.pending("publish")[0]?.status.reason).toBe("SandboxLost");
  });

  test("is for Pods that run: a preserved VM's lease is left to end", () => {
    const world = preservedWorld({ renewLeases: true });
    world.pass(HOUR_MS - 1);
    expect(world.ever("renew")).toEqual([]);
  });

  test("of a VM that is kept for ever never comes", () => {
    const world = runningWorld({ renewLeases: true }, {}, { deadlineMs: 0 });
    world.passListing(100 * HOUR_MS, listedOf({ deadlineMs: 0 }));
    expect(world.ever("renew")).toEqual([]);
  });
});

describe("renewal of the key's next VM", () => {
  test("is asked for though sandboxd refused the old one's", () => {
    const world = runningWorld({ renewLeases: true });
    world.passListing(HOUR_MS / 2, listedOf());
    world.call("renew").refused();
    world.remove();
    world.answerAsk(GONE);
    world.call("release").ok();
    world.finalized();
    world.create({ uid: "pod-2" });
    world.grant({ id: "sb-2" });
    world.pushed();
    world.passListing(HOUR_MS / 2, listedOf({ id: "sb-2", deadlineMs: world.row().deadlineMs }));
    expect(world.pending("renew")).toMatchObject([{ id: "sb-2" }]);
  });

  test("after a restart comes at half of what is left", () => {
    const world = createWorld({ renewLeases: true, rows: { [KEY]: rowOf() } });
    world.list({});
    world.answerList(listedOf());
    world.pushed();
    world.passListing(HOUR_MS / 2 - 1, listedOf());
    expect(world.ever("renew")).toEqual([]);
    world.passListing(1, listedOf());
    expect(world.pending("renew")).toHaveLength(1);
  });
});

describe("a preserved claim past its deadline", () => {
  test("that is still listed goes on being its owner's", () => {
    const world = createWorld({ rows: { [KEY]: rowOf({ deadlineMs: START_MS + 1_000 }) } });
    world.list();
    world.answerList(listedOf({ deadlineMs: START_MS + 1_000 }));
    world.answerAsk(alive(), { kind: "not_found" });
    world.until("list");
    world.answerList(listedOf({ deadlineMs: 0 }));
    expect(world.row().deadlineMs).toBe(0);
  });

  test("is adopted by its owner's next Pod only once sandboxd has said that it lives", () => {
    const world = createWorld({ rows: { [KEY]: rowOf({ deadlineMs: START_MS + 1_000 }) } });
    world.list();
    world.answerList(listedOf({ deadlineMs: START_MS + 1_000 }));
    world.answerAsk(alive(), { kind: "not_found" });
    world.pass(2_000);
    world.create({ uid: "pod-2" });
    expect(world.row().podUID).toBe("pod-1");
    world.until("list");
    world.answerList(listedOf({ deadlineMs: START_MS + HOUR_MS }));
    expect(world.row().podUID).toBe("pod-2");
  });

  test("is released when its owner's end is found before the VM's", () => {
    const world = createWorld({ rows: { [KEY]: rowOf({ deadlineMs: START_MS + 1_000 }) } });
    world.list();
    world.answerList(listedOf({ deadlineMs: START_MS + 1_000 }));
    world.answerAsk(GONE, { kind: "not_found" });
    expect(world.pending("release")).toHaveLength(1);
  });
});

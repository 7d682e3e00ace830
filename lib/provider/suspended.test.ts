import { describe, expect, test } from "bun:test";
import { alive, GONE, KEY, listedOf, preservedWorld, runningWorld } from "./harness.ts";

/** The Sandbox was suspended, its Pod is deleted and gone, and the VM is to be put to sleep. */
function suspending() {
  const world = runningWorld({}, {}, { deadlineMs: 0 });
  world.remove();
  world.answerAsk(alive({ suspended: true }));
  world.finalized();
  return world;
}

function asleep() {
  const world = suspending();
  world.call("hibernate").ok();
  return world;
}

describe("a Sandbox that is suspended", () => {
  test("has its VM hibernated once its Pod is let go, not before", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk(alive({ suspended: true }));
    expect(world.underWay()).toEqual(["finalize"]);
    world.finalized();
    expect(world.pending("hibernate")).toMatchObject([{ kind: "hibernate", id: "sb-1", token: "secret-1" }]);
    world.call("hibernate").ok();
    expect(world.told("hibernated")).toMatchObject([{ key: KEY, id: "sb-1" }]);
    expect(world.row().id).toBe("sb-1");
  });

  test("after its Pod went has its VM hibernated at the next re-check", () => {
    const world = preservedWorld();
    world.until("ask");
    expect(world.ever("hibernate")).toEqual([]);
    world.answerAsk(alive({ suspended: true }), { kind: "not_found" });
    expect(world.pending("hibernate")).toHaveLength(1);
  });

  test("has its VM hibernated once, however often its owner is asked about", () => {
    const world = asleep();
    for (let round = 0; round < 4; round++) {
      world.until("ask");
      world.answerAsk(alive({ suspended: true }), { kind: "not_found" });
    }
    expect(world.ever("hibernate")).toHaveLength(1);
  });

  test("and that is deleted has its sleeping VM released", () => {
    const world = asleep();
    world.until("ask");
    world.answerAsk(GONE, { kind: "not_found" });
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });

  test("whose VM cannot sleep leaves it running and says so, once", () => {
    const world = suspending();
    world.call("hibernate").refused("409 egress lane");
    for (let round = 0; round < 3; round++) {
      world.until("ask");
      world.answerAsk(alive({ suspended: true }), { kind: "not_found" });
    }
    expect(world.ever("hibernate")).toHaveLength(1);
    expect(world.told("hibernate_refused")).toHaveLength(1);
    expect(world.told("hibernate_refused")[0]?.reason).toContain("409 egress lane");
    world.create({ uid: "pod-2" });
    expect(world.ever("wake")).toEqual([]);
    expect(world.pending("publish")).toMatchObject([{ claimId: "sb-1" }]);
  });

  test("is tried again at the next re-check when hibernating failed", () => {
    const world = suspending();
    world.call("hibernate").failed();
    expect(world.told("hibernated")).toEqual([]);
    world.until("ask");
    world.answerAsk(alive({ suspended: true }), { kind: "not_found" });
    expect(world.pending("hibernate")).toHaveLength(1);
  });

  test("whose VM is gone when it is to sleep has that confirmed, and the row dropped", () => {
    const world = suspending();
    world.call("hibernate").gone();
    world.failRead(true);
    expect(world.table.rows.size).toBe(0);
  });
});

test("a Sandbox that lives and is not suspended keeps its VM awake", () => {
  const world = preservedWorld();
  for (let round = 0; round < 3; round++) {
    world.until("ask");
    world.answerAsk(alive(), { kind: "not_found" });
  }
  expect(world.ever("hibernate")).toEqual([]);
});

describe("a resumed Sandbox's Pod", () => {
  test("has its VM woken before it adopts and is Running", () => {
    const world = asleep();
    world.create({ uid: "pod-2" });
    expect(world.underWay()).toEqual(["wake"]);
    expect(world.pending("wake")).toMatchObject([{ kind: "wake", id: "sb-1", token: "secret-1" }]);
    expect(world.row().podUID).toBe("pod-1");
    world.call("wake").ok();
    expect(world.told("woken")).toMatchObject([{ id: "sb-1" }]);
    expect(world.row().podUID).toBe("pod-2");
    expect(world.pushed()).toMatchObject({ phase: "Running", claimId: "sb-1" });
    expect(world.ever("claim")).toHaveLength(1);
  });

  test("waits and says why while its VM cannot be woken", () => {
    const world = asleep();
    world.create({ uid: "pod-2" });
    world.call("wake").failed("500 no memory");
    const status = world.pending("publish")[0]?.status;
    expect(status).toMatchObject({ phase: "Pending", reason: "ProviderFailed" });
    expect(status?.message).toContain("500 no memory");
    world.pushed();
    world.until("wake");
    world.call("wake").ok();
    expect(world.pushed()).toMatchObject({ phase: "Running", claimId: "sb-1" });
    expect(world.ever("claim")).toHaveLength(1);
  });

  test("does not ask for it at every event while it cannot be woken", () => {
    const world = asleep();
    world.create({ uid: "pod-2" });
    world.call("wake").failed();
    world.pushed();
    world.edit(() => {});
    expect(world.ever("wake")).toHaveLength(1);
  });

  test("with restartPolicy Never is not Failed for a VM that is kept and sleeps", () => {
    const world = asleep();
    world.create({ uid: "pod-2", restartPolicy: "Never" });
    world.call("wake").failed();
    expect(world.pending("publish")[0]?.status.phase).toBe("Pending");
  });

  test("wakes a VM whose hibernation was not answered: the call may have come through", () => {
    const world = suspending();
    world.call("hibernate").failed("timeout");
    world.create({ uid: "pod-2" });
    expect(world.underWay()).toEqual(["wake"]);
  });

  test("that comes while the VM is being put to sleep waits for that, and wakes it", () => {
    const world = suspending();
    world.create({ uid: "pod-2" });
    expect(world.underWay()).toEqual(["hibernate"]);
    world.call("hibernate").ok();
    expect(world.underWay()).toEqual(["wake"]);
  });

  test("whose VM is gone when it is to wake has that confirmed, and claims fresh", () => {
    const world = asleep();
    world.create({ uid: "pod-2" });
    world.call("wake").gone();
    world.failRead(true);
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("wakes a VM that sandboxd lists as hibernated after a restart of ours", () => {
    const world = asleep();
    world.crash();
    world.list({ uid: "pod-2" });
    world.answerList(listedOf({ deadlineMs: 0 }, { hibernated: true }));
    expect(world.underWay()).toEqual(["wake"]);
  });
});

test("a VM that somebody put to sleep under a Running Pod is theirs to wake", () => {
  const world = runningWorld();
  world.until("list");
  world.answerList(listedOf({}, { hibernated: true }));
  world.edit(() => {});
  expect(world.ever("wake")).toEqual([]);
  expect(world.ever("publish")).toHaveLength(1);
});

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
  SANDBOX,
} from "./harness.ts";

describe("a request that carries a previous generation's UID", () => {
  test("is ignored: the end of the old Pod does not touch the new one's VM", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2" });
    world.pushed();
    world.gone(KEY, "pod-1");
    expect(world.underWay()).toEqual([]);
    expect(world.pods().map((pod) => pod.uid)).toEqual(["pod-2"]);
    expect(world.row().podUID).toBe("pod-2");
  });

  test("of a bare Pod releases nothing of its successor", () => {
    const world = runningWorld({}, { owner: null });
    world.remove();
    world.call("release").ok();
    world.finalized();
    world.create({ uid: "pod-2", owner: null });
    world.grant({ id: "sb-2" });
    world.pushed();
    world.gone(KEY, "pod-1");
    expect(world.row().id).toBe("sb-2");
    expect(world.pending("release")).toEqual([]);
  });
});

describe("preserve", () => {
  test("lets the Pod go at once and keeps the claim with its owner", () => {
    const world = runningWorld();
    world.remove();
    expect(world.pending("finalize")).toEqual([]);
    world.answerAsk(alive());
    expect(world.underWay()).toEqual(["finalize"]);
    world.finalized();
    expect(world.pods()).toEqual([]);
    expect(world.row()).toMatchObject({ id: "sb-1", authority: SANDBOX.uid });
    expect(world.claims()).toMatchObject([{ id: "sb-1", state: "preserved" }]);
    expect(world.ever("release")).toEqual([]);
  });
});

describe("release", () => {
  test("withdraws the claim from its key and queues it in one commit, before sandboxd is asked", () => {
    const world = runningWorld();
    world.remove();
    world.failCommits(1);
    world.answerAsk(GONE);
    expect(world.pending("release")).toEqual([]);
    expect(world.row().id).toBe("sb-1");
    world.passToDue();
    world.answerAsk(GONE);
    expect(world.commits.at(-1)).toEqual([
      { kind: "row", key: KEY, value: null },
      { kind: "releasing", id: "sb-1", value: expect.objectContaining({ key: KEY }) },
    ]);
    expect(world.pending("release")).toHaveLength(1);
  });

  for (const answer of ["ok", "gone"] as const) {
    test(`answered ${answer === "ok" ? "204" : "404"} is done, and the Pod goes`, () => {
      const world = runningWorld();
      world.remove();
      world.answerAsk(GONE);
      expect(world.pending("finalize")).toEqual([]);
      world.call("release")[answer]();
      expect(world.table.releasing.size).toBe(0);
      expect(world.told("released")).toMatchObject([{ id: "sb-1" }]);
      expect(world.underWay()).toEqual(["finalize"]);
    });
  }

  for (const answer of ["failed", "refused"] as const) {
    test(`that ${answer === "failed" ? "fails" : "is refused"} keeps claim and Pod, and is retried with the credential`, () => {
      const world = runningWorld();
      world.remove();
      world.answerAsk(GONE);
      for (let round = 0; round < 3; round++) {
        world.call("release")[answer]();
        expect(world.table.releasing.get("sb-1")?.row.token).toBe("secret-1");
        expect(world.ever("finalize")).toEqual([]);
        expect(world.pods()).toHaveLength(1);
        world.until("release");
        expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
      }
      expect(world.told("release_failed")).toHaveLength(1);
      world.call("release").ok();
      expect(world.underWay()).toEqual(["finalize"]);
    });
  }

  test("that could not be made durable as done is asked for again, and keeps the Pod", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk(GONE);
    world.failCommits(1);
    world.call("release").ok();
    expect(world.table.releasing.has("sb-1")).toBe(true);
    expect(world.pending("finalize")).toEqual([]);
    world.until("release");
    world.call("release").gone();
    expect(world.table.releasing.size).toBe(0);
    expect(world.underWay()).toEqual(["finalize"]);
  });

  test("under way does not hold up the next Pod of the key: it claims fresh", () => {
    const world = preservedWorld();
    world.passToDue();
    world.answerAsk(GONE, { kind: "not_found" });
    world.call("release").failed();
    world.create({ uid: "pod-2" });
    expect(world.pending("claim")).toHaveLength(1);
    world.grant({ id: "sb-2", token: "secret-2" });
    expect(world.row().id).toBe("sb-2");
    world.until("release");
    expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
  });
});

describe("the Pod object", () => {
  test("is finalized at once, with its containers ended and its phase as it is", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk(alive());
    const finalize = world.take("finalize");
    expect(finalize).toMatchObject({ key: KEY, uid: "pod-1" });
    expect(finalize.status).toMatchObject({
      containerStatuses: [
        { name: "agent", ready: false, state: { terminated: { exitCode: 0, reason: "Completed" } } },
      ],
    });
    expect(finalize.status).not.toHaveProperty("phase");
  });

  test("that never ran is let go without a status", () => {
    const world = createWorld();
    world.list();
    world.create();
    world.refuse("no_warm_capacity");
    world.pushed();
    world.remove();
    expect(world.pending("finalize")).toMatchObject([{ uid: "pod-1" }]);
    expect(world.pending("finalize")[0]?.status).toBeUndefined();
  });

  test("that cannot be deleted yet is tried again, and told once", () => {
    const world = preservedPodGoing();
    for (let round = 0; round < 3; round++) {
      world.call("finalize").failed("403 Forbidden");
      world.until("finalize");
    }
    expect(world.told("publish_failed")).toHaveLength(1);
    expect(world.told("publish_failed")[0]?.reason).toContain("403 Forbidden");
    world.finalized();
    expect(world.pods()).toEqual([]);
  });

  test("is deleted once, however often the watch shows it on its way", () => {
    const world = preservedPodGoing();
    world.edit(() => {});
    world.call("finalize").ok();
    world.edit(() => {});
    world.edit(() => {});
    expect(world.ever("finalize")).toHaveLength(1);
    expect(world.ever("ask")).toHaveLength(1);
  });

  test("that is gone already is as good as deleted", () => {
    const world = preservedPodGoing();
    world.call("finalize").gone();
    expect(world.told("finalized")).toHaveLength(1);
    world.edit(() => {});
    expect(world.underWay()).toEqual([]);
  });

  function preservedPodGoing() {
    const world = runningWorld();
    world.remove();
    world.answerAsk(alive());
    return world;
  }
});

describe("the owner re-check", () => {
  test("comes first after 10 s, and doubles to 10 min", () => {
    const world = preservedWorld({ orphanScanMs: 0 }, { deadlineMs: 0 });
    const waits: number[] = [];
    for (let round = 0; round < 9; round++) {
      waits.push(world.until("ask"));
      if (world.pending("list").length > 0) world.answerList(listedOf({ deadlineMs: 0 }));
      world.answerAsk(alive(), { kind: "not_found" });
    }
    expect(waits.map((ms) => ms / 1_000)).toEqual([10, 20, 40, 80, 160, 320, 600, 600, 600]);
  });

  test("is told when its reason changes, not each time", () => {
    const world = preservedWorld();
    for (const state of [alive(), alive(), { kind: "failed" as const, why: "503" }, alive()]) {
      world.until("ask");
      world.answerAsk(state, { kind: "not_found" });
    }
    const reasons = world.told("preserved").map((note) => note.reason);
    expect(reasons).toEqual([
      "Sandbox agent-1 lives",
      "Sandbox agent-1 could not be read: 503",
      "Sandbox agent-1 lives",
    ]);
  });

  test("releases through the queue when the owner has come to its end", () => {
    const world = preservedWorld();
    world.until("ask");
    world.answerAsk(alive({ expired: true }), { kind: "not_found" });
    expect(world.table.rows.size).toBe(0);
    expect(world.table.releasing.get("sb-1")?.reason).toContain("expired");
    world.call("release").ok();
    expect(world.counts()).toMatchObject({ held: 0, preserved: 0, releasing: 0 });
  });

  test("goes on while the Pod object cannot be deleted", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk(alive());
    const fromMs = world.now();
    while (world.pending("ask").length === 0) {
      if (world.pending("finalize").length > 0) world.call("finalize").failed("403 Forbidden");
      else world.passToDue();
    }
    expect(world.now() - fromMs).toBe(10_000);
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });

  test("answered after a replacement Pod came decides nothing any more", () => {
    const world = preservedWorld();
    world.until("ask");
    world.create({ uid: "pod-2" });
    world.answerAsk(GONE, { kind: "not_found" });
    expect(world.ever("release")).toEqual([]);
    expect(world.row()).toMatchObject({ id: "sb-1", podUID: "pod-2" });
  });
});

describe("a terminal Pod over another generation's claim", () => {
  test("does not hide it from its owner's end", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2", status: { phase: "Failed" } });
    world.until("ask");
    world.answerAsk(GONE, { kind: "not_found" });
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });

  test("does not keep it awake when its owner is suspended", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2", status: { phase: "Failed" } });
    world.until("ask");
    world.answerAsk(alive({ suspended: true }));
    expect(world.pending("hibernate")).toMatchObject([{ id: "sb-1" }]);
  });
});

describe("a bare Pod", () => {
  test("that is deleted releases its VM, and nobody is asked", () => {
    const world = runningWorld({}, { owner: null });
    world.remove();
    expect(world.ever("ask")).toEqual([]);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
    world.call("release").ok();
    world.finalized();
    expect(world.counts()).toMatchObject({ pods: 0, held: 0, preserved: 0, releasing: 0 });
  });

  test("whose DELETED event came releases its VM", () => {
    const world = runningWorld({}, { owner: null });
    world.gone();
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });

  test("that a list lacks is asked about itself before its VM is released", () => {
    const world = runningWorld({}, { owner: null });
    world.list();
    expect(world.ever("release")).toEqual([]);
    const [ask] = world.pending("ask");
    expect(ask).toMatchObject({ key: KEY, id: "sb-1" });
    expect(ask?.owner).toBeUndefined();
    world.answerAsk({ kind: "failed", why: "503" });
    expect(world.ever("release")).toEqual([]);
    world.until("ask");
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });

  test("that a list lacks and that lives keeps its VM", () => {
    const world = runningWorld({}, { owner: null });
    world.list();
    world.answerAsk(alive({ uid: "pod-1" }));
    expect(world.ever("release")).toEqual([]);
    expect(world.row().id).toBe("sb-1");
  });
});

describe("a Pod that went while we were down", () => {
  test("has its claim judged once the Pods have been listed, not before", () => {
    const world = createWorld({ rows: { [KEY]: rowOf() } });
    world.send({ type: "relist" });
    world.answerList(listedOf());
    expect(world.ever("ask")).toEqual([]);
    world.send({ type: "synced" });
    expect(world.pending("ask")).toMatchObject([{ owner: SANDBOX, withPod: true }]);
    world.answerAsk(GONE, { kind: "not_found" });
    expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
  });

  test("keeps its claim while its owner lives", () => {
    const world = createWorld({ rows: { [KEY]: rowOf() } });
    world.list();
    world.answerList(listedOf());
    world.answerAsk(alive(), { kind: "not_found" });
    expect(world.ever("release")).toEqual([]);
    expect(world.counts()).toMatchObject({ preserved: 1 });
  });

  test("is gone for a relist too: what it lacks is judged, what it has is not", () => {
    const world = createWorld();
    world.list();
    for (const name of ["a", "b"]) {
      const key = `agents/${name}`;
      world.create({ key, uid: name, owner: { ...SANDBOX, name, uid: `sandbox-${name}` } });
      world.grant({ id: `sb-${name}` });
      world.pushed();
    }
    world.send({ type: "relist" });
    world.edit(() => {}, "agents/a");
    world.send({ type: "synced" });
    expect(world.pending("ask")).toMatchObject([{ key: "agents/b", id: "sb-b" }]);
    expect(world.pods().map((pod) => pod.key)).toEqual(["agents/a"]);
  });
});

describe("a namespace that is deleted", () => {
  test("takes the Pod before its Sandbox: preserved first, released when the owner is found gone", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk(alive());
    world.finalized();
    expect(world.ever("release")).toEqual([]);
    world.passToDue();
    world.answerAsk(GONE, { kind: "not_found" });
    world.call("release").ok();
    expect(world.counts()).toMatchObject({ pods: 0, preserved: 0, releasing: 0 });
  });

  test("takes the Sandbox before its Pod: released at the Pod's deletion", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk(GONE);
    world.call("release").ok();
    world.finalized();
    expect(world.counts()).toMatchObject({ pods: 0, preserved: 0, releasing: 0 });
  });
});

test("nothing of a Pod and its VM is left in memory after both have gone", () => {
  const world = runningWorld({ orphanScanMs: 0 });
  world.remove();
  world.answerAsk(GONE);
  world.call("release").ok();
  world.finalized();
  world.until("list");
  world.answerList();
  expect(world.nextDueMs()).toBe(Number.POSITIVE_INFINITY);
  expect(world.claims()).toEqual([]);
});

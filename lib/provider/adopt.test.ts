import { describe, expect, test } from "bun:test";
import {
  alive,
  createWorld,
  GONE,
  KEY,
  listedOf,
  OTHER_SANDBOX,
  preservedWorld,
  rowOf,
  runningWorld,
  SANDBOX,
} from "./harness.ts";

describe("a replacement Pod", () => {
  test("of the same owner adopts the VM in place: same id, no second claim", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2" });
    expect(world.row()).toMatchObject({ id: "sb-1", podUID: "pod-2", authority: SANDBOX.uid });
    expect(world.ever("claim")).toHaveLength(1);
    expect(world.told("adopted")).toMatchObject([{ id: "sb-1", podUID: "pod-2" }]);
    expect(world.pushed()).toMatchObject({ phase: "Running", claimId: "sb-1" });
  });

  test("adopts durably before it is Running", () => {
    const world = preservedWorld();
    world.failCommits(1);
    world.create({ uid: "pod-2" });
    expect(world.pending("publish")).toEqual([]);
    expect(world.row().podUID).toBe("pod-1");
    expect(world.told("uncommitted")).toHaveLength(1);
    world.passToDue();
    expect(world.row().podUID).toBe("pod-2");
    expect(world.pending("publish")).toHaveLength(1);
  });

  test("that comes before the old Pod was seen to go adopts as well", () => {
    const world = runningWorld();
    world.create({ uid: "pod-2" });
    expect(world.row()).toMatchObject({ id: "sb-1", podUID: "pod-2" });
    expect(world.ever("claim")).toHaveLength(1);
  });

  test("that was adopted for is not asked about any more", () => {
    const world = preservedWorld({ orphanScanMs: 0 });
    world.create({ uid: "pod-2" });
    world.pushed();
    world.pass(1_800_000);
    expect(world.ever("ask")).toHaveLength(1);
  });

  test("is judged anew when it goes as its predecessor did", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2" });
    world.pushed();
    world.remove();
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });
});

describe("a commit that fails is not tried again at every event:", () => {
  for (const [what, owner] of [
    ["adoption", SANDBOX],
    ["displacement", OTHER_SANDBOX],
  ] as const) {
    test(what, () => {
      const world = preservedWorld();
      world.failCommits(10);
      world.create({ uid: "pod-2", owner });
      world.edit(() => {});
      world.edit(() => {});
      expect(world.commitsToFail()).toBe(9);
    });
  }
});

test("a VM set aside at one key is not taken to another key of the same owner", () => {
  const world = preservedWorld();
  world.create({ uid: "pod-2", owner: OTHER_SANDBOX });
  expect(world.table.displaced.has("sb-1")).toBe(true);
  world.create({ key: "agents/agent-2", uid: "pod-3" });
  expect(world.pending("claim").map((claim) => claim.key)).toEqual([KEY, "agents/agent-2"]);
  expect(world.table.displaced.has("sb-1")).toBe(true);
});

describe("a same-name Pod of another owner", () => {
  test("never adopts: it claims fresh, and the old claim is set aside in the same commit", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2", owner: OTHER_SANDBOX });
    const step = world.commits.find((changes) => changes.some((change) => change.kind === "displaced"));
    expect(step?.map((change) => change.kind)).toEqual(["row", "displaced"]);
    expect(world.told("adopted")).toEqual([]);
    expect(world.told("displaced")).toMatchObject([{ id: "sb-1" }]);
    expect(world.pending("claim")).toHaveLength(1);
    world.grant({ id: "sb-2", token: "secret-2" });
    expect(world.row()).toMatchObject({ id: "sb-2", authority: OTHER_SANDBOX.uid });
    expect(world.pushed().claimId).toBe("sb-2");
  });

  test("does not take the old claim off its key before that is durable", () => {
    const world = preservedWorld();
    world.failCommits(1);
    world.create({ uid: "pod-2", owner: OTHER_SANDBOX });
    expect(world.row().id).toBe("sb-1");
    expect(world.pending("claim")).toEqual([]);
    world.passToDue();
    expect(world.table.displaced.has("sb-1")).toBe(true);
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("and a bare Pod of the name claim fresh as well", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2", owner: null });
    expect(world.pending("claim")).toHaveLength(1);
    expect(world.table.displaced.has("sb-1")).toBe(true);
  });

  test("an owned Pod does not adopt a bare Pod's VM", () => {
    const world = runningWorld({}, { owner: null });
    world.create({ uid: "pod-2" });
    expect(world.table.displaced.get("sb-1")?.row.authority).toBe("pod-1");
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("a next bare Pod of the name does not adopt a bare Pod's VM", () => {
    const world = runningWorld({}, { owner: null });
    world.create({ uid: "pod-2", owner: null });
    expect(world.table.displaced.has("sb-1")).toBe(true);
    expect(world.pending("claim")).toHaveLength(1);
  });
});

describe("a displaced claim", () => {
  function displacedWorld() {
    const world = preservedWorld();
    world.create({ uid: "pod-2", owner: OTHER_SANDBOX });
    world.grant({ id: "sb-2", token: "secret-2" });
    world.pushed();
    return world;
  }

  test("has its own verdict, from its own owner", () => {
    const world = displacedWorld();
    expect(world.pending("ask")).toMatchObject([{ id: "sb-1", owner: SANDBOX }]);
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
    expect(world.table.releasing.has("sb-1")).toBe(true);
    expect(world.table.displaced.size).toBe(0);
    world.call("release").ok();
    expect(world.table.releasing.size).toBe(0);
    expect(world.row().id).toBe("sb-2");
  });

  test("of a Sandbox that was made anew is released, and the new one's VM is untouched", () => {
    const world = displacedWorld();
    world.answerAsk(alive({ uid: OTHER_SANDBOX.uid }));
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
    expect(world.row().id).toBe("sb-2");
  });

  test("is kept while its owner cannot be read, and asked about again ever more rarely", () => {
    const world = displacedWorld();
    const waits: number[] = [];
    for (let round = 0; round < 3; round++) {
      world.answerAsk({ kind: "failed", why: "503" });
      waits.push(world.until("ask"));
    }
    expect(waits).toEqual([10_000, 20_000, 40_000]);
    expect(world.told("preserved").map((note) => note.reason)).toEqual([
      "Sandbox agent-1 lives",
      "Sandbox agent-1 could not be read: 503",
    ]);
    expect(world.ever("release")).toEqual([]);
  });

  test("is not released before that is durable", () => {
    const world = displacedWorld();
    world.failCommits(1);
    world.answerAsk(GONE);
    expect(world.pending("release")).toEqual([]);
    expect(world.table.displaced.has("sb-1")).toBe(true);
    world.pass(10_000);
    world.answerAsk(GONE);
    expect(world.pending("release")).toHaveLength(1);
  });

  test("is taken back by its owner's next Pod", () => {
    const world = displacedWorld();
    world.answerAsk(alive());
    world.remove();
    world.answerAsk({ kind: "not_found", named: true });
    world.call("release").ok();
    world.finalized();
    world.create({ uid: "pod-3" });
    world.pass(1_000);
    world.answerList(listedOf());
    expect(world.row()).toMatchObject({ id: "sb-1", podUID: "pod-3" });
    expect(world.ever("claim")).toHaveLength(2);
    expect(world.table.displaced.size).toBe(0);
  });

  test("survives a crash, and is asked about again", () => {
    const world = displacedWorld();
    world.crash();
    expect(world.pending("ask")).toMatchObject([{ id: "sb-1", owner: SANDBOX }]);
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });

  test("whose VM is confirmed gone is dropped", () => {
    const world = displacedWorld();
    world.answerAsk(alive());
    world.until("list");
    world.answerList(listedOf({ id: "sb-2" }));
    expect(world.table.displaced.has("sb-1")).toBe(true);
    world.answerAsk(alive());
    expect(world.pending("read")).toMatchObject([{ id: "sb-1" }]);
    world.failRead(true);
    expect(world.table.displaced.size).toBe(0);
    expect(world.told("dropped")).toMatchObject([{ id: "sb-1" }]);
    expect(world.ever("release")).toEqual([]);
  });
});

describe("a displaced claim that a listing lacks", () => {
  test("is kept when the read that is to confirm it fails", () => {
    const world = preservedWorld();
    world.create({ uid: "pod-2", owner: OTHER_SANDBOX });
    world.answerAsk(alive());
    world.until("list");
    world.answerAsk(alive());
    world.answerList();
    world.failRead(false);
    expect(world.table.displaced.has("sb-1")).toBe(true);
    expect(world.told("dropped")).toEqual([]);
  });
});

describe("a bare Pod's displaced claim", () => {
  test("is asked about by the Pod's name, and released when another Pod lives there", () => {
    const world = runningWorld({}, { owner: null });
    world.create({ uid: "pod-2", owner: null });
    const [ask] = world.pending("ask");
    expect(ask).toMatchObject({ key: KEY, id: "sb-1" });
    expect(ask?.owner).toBeUndefined();
    world.answerAsk(alive({ uid: "pod-2" }));
    expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
  });

  test("is kept while its Pod lives or cannot be read", () => {
    for (const answer of [alive({ uid: "pod-1" }), { kind: "failed" as const, why: "503" }]) {
      const world = runningWorld({}, { owner: null });
      world.create({ uid: "pod-2", owner: null });
      world.answerAsk(answer);
      expect(world.ever("release")).toEqual([]);
      expect(world.table.displaced.has("sb-1")).toBe(true);
    }
  });
});

describe("the VM that follows a displaced one at the key", () => {
  test("is awake, whatever the old one was", () => {
    const world = runningWorld({}, {}, { deadlineMs: 0 });
    world.remove();
    world.answerAsk(alive({ suspended: true }));
    world.finalized();
    world.call("hibernate").ok();
    world.create({ uid: "pod-2", owner: OTHER_SANDBOX });
    world.grant({ id: "sb-2" });
    expect(world.ever("wake")).toEqual([]);
    expect(world.pending("publish")).toMatchObject([{ claimId: "sb-2" }]);
  });
});

describe("a row without authority, from an old table,", () => {
  const old = { [KEY]: rowOf({ authority: "", owner: undefined, podUID: "pod-0" }) };

  test("is adopted by the key's Pod, which becomes its authority", () => {
    const world = createWorld({ rows: old });
    world.list({ uid: "pod-2" });
    world.answerList(listedOf());
    expect(world.row()).toMatchObject({
      id: "sb-1",
      podUID: "pod-2",
      authority: SANDBOX.uid,
      owner: SANDBOX,
    });
    expect(world.ever("claim")).toEqual([]);
  });

  test("is not released when nothing says whose it is", () => {
    const world = createWorld({ rows: old });
    world.list();
    world.answerList(listedOf());
    world.pass(3_000_000);
    expect(world.ever("release")).toEqual([]);
    expect(world.row().id).toBe("sb-1");
  });
});

describe("a Pod that another controller takes over", () => {
  test("hands its VM to it once the API server confirms that controller", () => {
    const world = runningWorld({}, { owner: null });
    world.edit((raw) => {
      raw.metadata.ownerReferences = [{ ...SANDBOX, controller: true }];
    });
    expect(world.row().authority).toBe("pod-1");
    expect(world.pending("ask")).toMatchObject([{ owner: SANDBOX }]);
    world.answerAsk(alive());
    expect(world.row()).toMatchObject({ authority: SANDBOX.uid, owner: SANDBOX });
  });

  test("keeps its authority when the API server knows no such controller", () => {
    for (const answer of [GONE, alive({ uid: "another" })]) {
      const world = runningWorld({}, { owner: null });
      world.edit((raw) => {
        raw.metadata.ownerReferences = [{ ...SANDBOX, controller: true }];
      });
      world.answerAsk(answer);
      expect(world.row().authority).toBe("pod-1");
      expect(world.ever("release")).toEqual([]);
    }
  });

  test("and that a list lacks by the time of the answer is not judged by that controller's end", () => {
    const world = runningWorld({}, { owner: null });
    world.edit((raw) => {
      raw.metadata.ownerReferences = [{ ...SANDBOX, controller: true }];
    });
    world.list();
    world.answerAsk(GONE);
    expect(world.ever("release")).toEqual([]);
    const [ask] = world.pending("ask");
    expect(ask?.id).toBe("sb-1");
    expect(ask?.owner).toBeUndefined();
  });

  test("and that cannot be asked about yet is asked about again", () => {
    const world = runningWorld({}, { owner: null });
    world.edit((raw) => {
      raw.metadata.ownerReferences = [{ ...SANDBOX, controller: true }];
    });
    world.answerAsk({ kind: "failed", why: "timeout" });
    expect(world.row().authority).toBe("pod-1");
    world.passToDue();
    world.answerAsk(alive());
    expect(world.row().authority).toBe(SANDBOX.uid);
  });
});

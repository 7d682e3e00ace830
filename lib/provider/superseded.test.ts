import { describe, expect, test } from "bun:test";
import { alive, GONE, KEY, listedOf, NODE, preservedWorld, SANDBOX, type World } from "./harness.ts";
import type { CurrentPod } from "./types.ts";

const DAY_MS = 86_400_000;

/** The owner's current Pod, Running on another node with a VM there. */
const elsewhere = (changes: Partial<CurrentPod & { kind: "found" }> = {}): CurrentPod => ({
  kind: "found",
  uid: "pod-9",
  ownerUid: SANDBOX.uid,
  nodeName: "node-b",
  running: true,
  claimId: "sb-9",
  ...changes,
});

/** The next re-check finds the owner alive, and this Pod under the key. */
function recheck(world: World, current: CurrentPod): void {
  untilAsk(world);
  world.answerAsk(alive(), current);
}

function untilAsk(world: World): void {
  while (world.pending("ask").length === 0) {
    if (world.pending("list").length > 0) world.answerList(listedOf({ deadlineMs: 0 }));
    else world.passToDue();
  }
}

const kept = (options = {}) => preservedWorld(options, { deadlineMs: 0 });

describe("a preserved VM whose owner's Pod runs on another node", () => {
  test("is superseded: told once, with both claim ids, and written down", () => {
    const world = kept();
    recheck(world, elsewhere());
    expect(world.told("superseded")).toMatchObject([{ key: KEY, id: "sb-1" }]);
    expect(world.told("superseded")[0]?.reason).toContain("sb-9");
    expect(world.told("superseded")[0]?.reason).toContain("node-b");
    expect(world.row().supersededAtMs).toBe(world.now());
    recheck(world, elsewhere());
    expect(world.told("superseded")).toHaveLength(1);
  });

  test("is never released unless that was asked for", () => {
    const world = kept();
    const untilMs = world.now() + 3 * DAY_MS;
    while (world.now() < untilMs) recheck(world, elsewhere());
    expect(world.ever("release")).toEqual([]);
    expect(world.row().id).toBe("sb-1");
  });

  test("is released after --release-superseded-after, and not before", () => {
    const world = kept({ releaseSupersededAfterMs: DAY_MS });
    recheck(world, elsewhere());
    const sinceMs = world.now();
    while (world.ever("release").length === 0) {
      expect(world.now() - sinceMs).toBeLessThan(DAY_MS + 600_000);
      recheck(world, elsewhere());
    }
    expect(world.now() - sinceMs).toBeGreaterThanOrEqual(DAY_MS);
    expect(world.table.releasing.get("sb-1")?.reason).toContain("superseded");
  });

  test("counts from when it was first seen, across a crash", () => {
    const world = kept({ releaseSupersededAfterMs: 60_000 });
    recheck(world, elsewhere());
    const sinceMs = world.row().supersededAtMs;
    world.crash();
    world.list();
    world.answerList(listedOf({ deadlineMs: 0 }));
    recheck(world, elsewhere());
    expect(world.row().supersededAtMs).toBe(sinceMs);
    while (world.ever("release").length === 0) recheck(world, elsewhere());
    expect(world.told("superseded")).toHaveLength(1);
  });

  test("is released at once when its owner has come to its end", () => {
    const world = kept();
    recheck(world, elsewhere());
    untilAsk(world);
    world.answerAsk(GONE, elsewhere());
    expect(world.pending("release")).toHaveLength(1);
  });
});

describe("a preserved VM is not superseded by", () => {
  const CASES: [string, CurrentPod][] = [
    ["a Pod on another node that does not run yet", elsewhere({ running: false })],
    ["a Pod that is not scheduled yet", elsewhere({ nodeName: "" })],
    ["a Pod on this node", elsewhere({ nodeName: NODE })],
    ["another owner's Pod of the same name", elsewhere({ ownerUid: "sandbox-uid-2" })],
    ["a bare Pod of the same name", elsewhere({ ownerUid: "" })],
    ["no Pod", { kind: "not_found" }],
    ["a Pod that could not be read", { kind: "failed", why: "503" }],
  ];
  for (const [name, current] of CASES) {
    test(name, () => {
      const world = kept({ releaseSupersededAfterMs: 1 });
      recheck(world, current);
      recheck(world, current);
      expect(world.told("superseded")).toEqual([]);
      expect(world.row().supersededAtMs).toBeUndefined();
      expect(world.ever("release")).toEqual([]);
    });
  }
});

describe("a superseded VM", () => {
  test("is not superseded any more when the owner's Pod stops there", () => {
    const world = kept({ releaseSupersededAfterMs: 60_000 });
    recheck(world, elsewhere());
    recheck(world, { kind: "not_found" });
    expect(world.row().supersededAtMs).toBeUndefined();
    recheck(world, elsewhere());
    expect(world.row().supersededAtMs).toBe(world.now());
    expect(world.told("superseded")).toHaveLength(2);
  });

  test("is left as it is while the current Pod cannot be read", () => {
    const world = kept({ releaseSupersededAfterMs: 1 });
    recheck(world, elsewhere());
    const sinceMs = world.row().supersededAtMs;
    recheck(world, { kind: "failed", why: "503" });
    expect(world.row().supersededAtMs).toBe(sinceMs);
    expect(world.ever("release")).toEqual([]);
  });

  test("is not released on a Pod whose owner is not known", () => {
    const world = kept({ releaseSupersededAfterMs: 1 });
    recheck(world, elsewhere({ ownerUid: undefined }));
    recheck(world, elsewhere({ ownerUid: undefined }));
    recheck(world, elsewhere({ ownerUid: undefined }));
    expect(world.ever("release")).toEqual([]);
  });

  test("that the owner's Pod comes back to is adopted, and superseded no more", () => {
    const world = kept();
    recheck(world, elsewhere());
    world.create({ uid: "pod-10" });
    expect(world.row()).toMatchObject({ id: "sb-1", podUID: "pod-10" });
    expect(world.row().supersededAtMs).toBeUndefined();
  });
});

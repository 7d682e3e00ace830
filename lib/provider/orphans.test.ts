import { afterEach, describe, expect, test } from "bun:test";
import {
  createWorld,
  KEY,
  listedOf,
  preservedWorld,
  runningWorld,
  type World,
  type WorldOptions,
} from "./harness.ts";

let scanned: World | undefined;
const watch = (world: World) => {
  scanned = world;
  return world;
};

/** Whatever the scan sees, it only tells. */
afterEach(() => {
  expect(scanned?.ever("release") ?? []).toEqual([]);
  scanned = undefined;
});

function idle(options: WorldOptions = {}) {
  const world = watch(createWorld(options));
  world.list();
  return world;
}

const stray = listedOf({ id: "sb-stray" }, { claimRef: "" });
const external = listedOf({ id: "sb-external" }, { claimRef: "someone/else" });

describe("the orphan scan", () => {
  test("tells a listed sandbox without claim_ref that is not ours as a possible orphan, once", () => {
    const world = idle();
    for (let round = 0; round < 3; round++) {
      world.until("list");
      world.answerList(stray);
    }
    expect(world.told("orphan")).toMatchObject([{ id: "sb-stray", key: "" }]);
    expect(world.counts()).toMatchObject({ orphans: 1, external: 0 });
  });

  test("tells one with a claim_ref that is not ours as external, once", () => {
    const world = idle();
    for (let round = 0; round < 3; round++) {
      world.until("list");
      world.answerList(external);
    }
    expect(world.told("external")).toMatchObject([{ id: "sb-external", key: "someone/else" }]);
    expect(world.told("orphan")).toEqual([]);
    expect(world.counts()).toMatchObject({ orphans: 0, external: 1 });
  });

  test("tells one of ours that sandboxd does not list as stale, once for each time it went missing", () => {
    const world = watch(runningWorld());
    for (let round = 1; round <= 2; round++) {
      world.until("list");
      world.answerList();
      expect(world.told("stale")).toHaveLength(round);
      world.answerRead(listedOf());
      world.until("list");
      world.answerList(listedOf());
      expect(world.told("stale")).toHaveLength(round);
    }
    expect(world.told("stale")[0]).toMatchObject({ key: KEY, id: "sb-1" });
  });

  test("tells an orphan again when it was gone and comes back", () => {
    const world = idle();
    for (const rows of [[stray], [], [stray]]) {
      world.until("list");
      world.answerList(...rows);
    }
    expect(world.told("orphan")).toHaveLength(2);
    expect(world.counts().orphans).toBe(1);
  });

  test("tells a sandbox that changes from orphan to external as that", () => {
    const world = idle();
    world.until("list");
    world.answerList(stray);
    world.until("list");
    world.answerList({ ...stray, claimRef: "someone/else" });
    expect(world.told("external")).toHaveLength(1);
    expect(world.counts()).toMatchObject({ orphans: 0, external: 1 });
  });

  test("takes a failed listing for none at all: nothing is forgotten or told again", () => {
    const world = idle();
    world.until("list");
    world.answerList(stray);
    world.until("list");
    world.failList();
    expect(world.counts().orphans).toBe(1);
    world.until("list");
    world.answerList(stray);
    expect(world.told("orphan")).toHaveLength(1);
  });

  test("says nothing of what we hold for a Pod or for an owner", () => {
    for (const world of [runningWorld(), preservedWorld()]) {
      watch(world);
      world.until("list");
      world.answerList(listedOf());
      expect([...world.told("orphan"), ...world.told("external"), ...world.told("stale")]).toEqual([]);
    }
  });

  test("says nothing of what may be the answer to a claim of ours under way", () => {
    const world = idle();
    world.create();
    world.until("list");
    world.answerList(listedOf({ id: "sb-ours" }));
    expect(world.told("external")).toEqual([]);
    world.grant({ id: "sb-ours" });
    world.until("list");
    world.answerList(listedOf({ id: "sb-ours" }));
    expect(world.told("external")).toEqual([]);
  });

  test("comes every --orphan-scan-interval", () => {
    const world = idle({ orphanScanMs: 45_000 });
    expect(world.until("list")).toBe(45_000);
    world.answerList();
    expect(world.until("list")).toBe(45_000);
  });

  test("is off at 0: nothing is listed for it, and nothing told", () => {
    const world = idle({ orphanScanMs: 0 });
    expect(world.nextDueMs()).toBe(Number.POSITIVE_INFINITY);
    const held = watch(runningWorld({ orphanScanMs: 0 }));
    held.until("list");
    held.answerList(listedOf(), stray, external);
    expect([...held.told("orphan"), ...held.told("external")]).toEqual([]);
  });
});

test("what is on its way back to sandboxd is no orphan, and the scan does not hurry it", () => {
  const world = runningWorld();
  world.remove();
  world.answerAsk({ kind: "not_found", named: true });
  world.until("list");
  world.answerList(listedOf());
  expect([...world.told("orphan"), ...world.told("external"), ...world.told("stale")]).toEqual([]);
  expect(world.ever("release")).toHaveLength(1);
});

import { describe, expect, test } from "bun:test";
import { createWorld, KEY, type PodSpec, preservedWorld, type World, type WorldOptions } from "./harness.ts";
import type { CauseKind } from "./types.ts";

const AFTER_MS = 120_000;

function waiting(options: WorldOptions = {}, spec: PodSpec = {}) {
  const world = createWorld({ orphanScanMs: 0, rescheduleAfterMs: AFTER_MS, ...options });
  world.list();
  world.create(spec);
  return world;
}

/** sandboxd refuses every claim of this time, for this cause. */
function refuseFor(world: World, ms: number, kind: CauseKind): void {
  const untilMs = world.now() + ms;
  for (;;) {
    if (world.pending("claim").length > 0) world.refuse(kind);
    if (world.pending("publish").length > 0) world.pushed();
    if (world.pending("evict").length > 0 || world.nextDueMs() > untilMs) break;
    world.passToDue();
  }
  world.pass(Math.max(0, untilMs - world.now()));
}

describe("an owned Pod that never got a claim here", () => {
  for (const kind of ["no_warm_capacity", "max_claims", "draining"] as const) {
    test(`and is refused with ${kind} for --reschedule-after is deleted, by its UID`, () => {
      const world = waiting();
      refuseFor(world, AFTER_MS - 1, kind);
      expect(world.ever("evict")).toEqual([]);
      refuseFor(world, 60_000, kind);
      expect(world.pending("evict")).toMatchObject([{ key: KEY, uid: "pod-1" }]);
    });
  }

  test("is left waiting without --reschedule-after", () => {
    const world = waiting({ rescheduleAfterMs: 0 });
    refuseFor(world, 20 * AFTER_MS, "no_warm_capacity");
    expect(world.ever("evict")).toEqual([]);
  });

  for (const kind of ["unreachable", "bad_token", "provisioning_failed", "egress_unavailable"] as const) {
    test(`and is refused with ${kind} is not deleted: another node may be no better`, () => {
      const world = waiting();
      refuseFor(world, 20 * AFTER_MS, kind);
      expect(world.ever("evict")).toEqual([]);
    });
  }

  test("has the time counted anew when another cause came between", () => {
    const world = waiting();
    refuseFor(world, AFTER_MS - 40_000, "no_warm_capacity");
    refuseFor(world, 60_000, "provisioning_failed");
    refuseFor(world, AFTER_MS - 40_000, "no_warm_capacity");
    expect(world.ever("evict")).toEqual([]);
  });

  test("has the time counted on while one capacity cause follows another", () => {
    const world = waiting();
    refuseFor(world, AFTER_MS / 2, "no_warm_capacity");
    refuseFor(world, AFTER_MS / 2 + 60_000, "draining");
    expect(world.pending("evict")).toHaveLength(1);
  });

  test("is not claimed for once it is deleted, and its end is told", () => {
    const world = waiting();
    refuseFor(world, AFTER_MS + 60_000, "max_claims");
    const claims = world.ever("claim").length;
    world.call("evict").ok();
    expect(world.told("rescheduled")).toMatchObject([{ key: KEY, podUID: "pod-1" }]);
    world.edit(() => {});
    world.pass(10 * AFTER_MS);
    expect(world.ever("claim")).toHaveLength(claims);
    world.gone();
    world.create({ uid: "pod-2" });
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("and that could not be deleted waits as long again", () => {
    const world = waiting();
    refuseFor(world, AFTER_MS + 60_000, "max_claims");
    world.call("evict").failed("403");
    refuseFor(world, AFTER_MS - 1, "max_claims");
    expect(world.ever("evict")).toHaveLength(1);
    refuseFor(world, 60_000, "max_claims");
    expect(world.ever("evict")).toHaveLength(2);
    expect(world.told("rescheduled")).toEqual([]);
  });
});

describe("never deleted for want of capacity is", () => {
  test("a bare Pod: nobody would make another", () => {
    const world = waiting({}, { owner: null });
    refuseFor(world, 20 * AFTER_MS, "no_warm_capacity");
    expect(world.ever("evict")).toEqual([]);
  });

  test("a Pod that got its claim in time", () => {
    const world = waiting();
    refuseFor(world, AFTER_MS / 2, "no_warm_capacity");
    world.until("claim");
    world.grant();
    world.pushed();
    world.pass(50_000);
    expect(world.ever("evict")).toEqual([]);
    expect(world.row().id).toBe("sb-1");
  });

  test("a Pod whose VM is kept here for its owner", () => {
    const world = preservedWorld({ rescheduleAfterMs: 1 });
    world.create({ uid: "pod-2" });
    world.pushed();
    world.pass(50_000);
    expect(world.ever("evict")).toEqual([]);
  });

  test("a Pod that another generation waited before: its own time counts", () => {
    const world = waiting();
    refuseFor(world, AFTER_MS - 1_000, "max_claims");
    world.gone();
    world.create({ uid: "pod-2" });
    refuseFor(world, AFTER_MS - 1, "max_claims");
    expect(world.ever("evict")).toEqual([]);
  });
});

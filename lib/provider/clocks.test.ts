import { describe, expect, test } from "bun:test";
import { createWorld, KEY, listedOf, preservedWorld, runningWorld, START_MS } from "./harness.ts";

const HOUR_MS = 3_600_000;

describe("a stepped wall clock neither hurries nor holds up", () => {
  for (const [how, stepMs] of [
    ["forward", 24 * HOUR_MS],
    ["back", -24 * HOUR_MS],
  ] as const) {
    test(`the next try of a claim, stepped ${how}`, () => {
      const world = createWorld({ orphanScanMs: 0 });
      world.list();
      world.create();
      world.refuse("unreachable");
      world.pushed();
      world.stepClock(stepMs);
      world.edit(() => {});
      expect(world.ever("claim")).toHaveLength(1);
      expect(world.until("claim")).toBe(375);
    });

    test(`the owner re-check, stepped ${how}`, () => {
      const world = preservedWorld({}, { deadlineMs: 0 });
      world.stepClock(stepMs);
      world.send({ type: "tick" });
      expect(world.pending("ask")).toEqual([]);
      expect(world.until("ask")).toBe(10_000);
    });
  }
});

describe("the wall clock decides about", () => {
  test("a lease: one that the stepped clock is past is listed, and Failed when it is confirmed absent", () => {
    const world = runningWorld();
    world.stepClock(2 * HOUR_MS);
    world.edit(() => {});
    world.until("list");
    world.answerList();
    world.failRead(true);
    expect(world.pending("publish")[0]?.status.reason).toBe("SandboxLeaseExpired");
  });

  test("a lease: one that was nearly over when the clock was stepped back runs on", () => {
    const world = runningWorld();
    world.stepClock(-HOUR_MS);
    world.passListing(1.5 * HOUR_MS, listedOf());
    expect(world.ever("read")).toEqual([]);
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("what is written down", () => {
    const world = createWorld();
    world.list();
    world.stepClock(HOUR_MS);
    world.create();
    expect(world.table.intents.get(KEY)?.atMs).toBe(START_MS + HOUR_MS);
    world.grant();
    expect(world.row().claimedAtMs).toBe(START_MS + HOUR_MS);
  });
});

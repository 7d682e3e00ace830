import { describe, expect, test } from "bun:test";
import { alive, createWorld, GONE, KEY, runningWorld, SANDBOX, viewOf } from "./harness.ts";
import type { OwnerState } from "./types.ts";
import { verdict } from "./verdict.ts";

/** The table of the contract (Delete), as far as one read of the owner decides. */
const ROWS: [string, OwnerState, "release" | "preserve"][] = [
  ["a structured NotFound that names the owner releases", GONE, "release"],
  ["an owner with a deletionTimestamp releases", alive({ deleting: true }), "release"],
  ["an owner of another UID than the ownerReference's releases", alive({ uid: "another" }), "release"],
  ["an owner whose Ready condition says SandboxExpired releases", alive({ expired: true }), "release"],
  ["an owner that lives preserves", alive(), "preserve"],
  ["an owner that lives and is suspended preserves", alive({ suspended: true }), "preserve"],
  [
    "a 404 that does not name the owner preserves: the address may be wrong",
    { kind: "not_found", named: false },
    "preserve",
  ],
  ["an owner that cannot be read preserves", { kind: "failed", why: "403 Forbidden" }, "preserve"],
];

describe("the verdict", () => {
  for (const [name, state, wanted] of ROWS) {
    test(name, () => {
      expect(verdict(SANDBOX.uid, "Sandbox agent-1", state).release).toBe(wanted === "release");
    });
  }

  test("an owner of another UID releases even where it is suspended", () => {
    expect(verdict(SANDBOX.uid, "s", alive({ uid: "another", suspended: true }))).toMatchObject({
      release: true,
      suspended: false,
    });
  });

  test("a claim without authority is preserved while anything lives under the owner's name", () => {
    expect(verdict("", "s", alive()).release).toBe(false);
    expect(verdict("", "s", alive({ deleting: true })).release).toBe(false);
  });

  test("the reason names what was read and why it could not be", () => {
    const { reason } = verdict(SANDBOX.uid, "Sandbox agent-1", { kind: "failed", why: "403 Forbidden" });
    expect(reason).toContain("Sandbox agent-1");
    expect(reason).toContain("403 Forbidden");
  });
});

describe("a deleted Pod's owner is read once, and", () => {
  for (const [name, state, wanted] of ROWS) {
    test(name, () => {
      const world = runningWorld();
      world.remove();
      expect(world.pending("ask")).toMatchObject([{ key: KEY, id: "sb-1", owner: SANDBOX }]);
      world.answerAsk(state);
      expect(world.pending("ask")).toEqual([]);
      if (wanted === "release") {
        expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
        expect(world.table.rows.has(KEY)).toBe(false);
        expect(world.table.releasing.get("sb-1")?.key).toBe(KEY);
      } else {
        expect(world.ever("release")).toEqual([]);
        expect(world.row().id).toBe("sb-1");
        expect(world.told("preserved")).toMatchObject([{ id: "sb-1" }]);
      }
    });
  }
});

describe("the owner re-check of a preserved claim reads the same table, and", () => {
  for (const [name, state, wanted] of ROWS) {
    test(name, () => {
      const world = runningWorld();
      world.remove();
      world.answerAsk(alive());
      world.finalized();
      world.passToDue();
      world.answerAsk(state, { kind: "not_found" });
      expect(world.pending("release").length).toBe(wanted === "release" ? 1 : 0);
      expect(world.table.rows.has(KEY)).toBe(wanted !== "release");
    });
  }
});

describe("the owner of a Pod", () => {
  test("is its controller, not the first of its owners", () => {
    const world = createWorld();
    world.list();
    world.create({ owner: null });
    const raw = structuredClone(world.object(KEY));
    raw.metadata.ownerReferences = [
      { apiVersion: "v1", kind: "ConfigMap", name: "first", uid: "first" },
      { ...SANDBOX, controller: true },
    ];
    expect(viewOf(raw).owner).toEqual(SANDBOX);
    raw.metadata.ownerReferences = [{ ...SANDBOX, controller: false }];
    expect(viewOf(raw).owner).toBeUndefined();
  });
});

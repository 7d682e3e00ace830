/** What comes from outside and is wrong: sandboxd's answers, and annotations that a namespace's users write. */
import { expect, test } from "bun:test";
import { createWorld, KEY, listedOf, runningWorld, setReadyFalse, type WorldOptions } from "./harness.ts";

function idle(options: WorldOptions = {}) {
  const world = createWorld(options);
  world.list();
  return world;
}

const OTHER = "agents/agent-2";

test("a sandbox that another Pod holds is not taken when sandboxd grants it again, and never released for it", () => {
  const world = idle();
  world.create();
  world.grant({ id: "sb-1" });
  world.pushed();
  world.create({ key: OTHER, uid: "pod-2", owner: null });
  world.grant({ id: "sb-1" });
  expect([...world.table.rows.keys()]).toEqual([KEY]);
  expect(world.pending("publish").filter((effect) => effect.status.phase === "Running")).toEqual([]);
  expect(world.told("refused").at(-1)).toMatchObject({ key: OTHER, cause: "bad_reply" });
  world.remove(OTHER);
  expect(world.ever("release")).toEqual([]);
});

test("a sandbox on its way back to sandboxd is not taken either", () => {
  const world = idle();
  world.create({ owner: null });
  world.grant({ id: "sb-1" });
  world.pushed();
  world.remove();
  expect(world.table.releasing.has("sb-1")).toBe(true);
  world.create({ key: OTHER, uid: "pod-2", owner: null });
  world.grant({ id: "sb-1" });
  expect(world.table.rows.size).toBe(0);
});

for (const id of ["../../v1", "sb 1", "sb/1", "é", "x".repeat(129)]) {
  test(`a claim-id annotation that is no id (${id.slice(0, 8)}) is not asked about, and its Pod is claimed for`, () => {
    const world = idle();
    world.create({ annotations: { "claim-id": id } });
    expect(world.ever("read")).toEqual([]);
    expect(world.pending("claim")).toHaveLength(1);
    world.grant({ id: "sb-1" });
    expect(world.pushed().claimId).toBe("sb-1");
    expect(world.pending("publish")).toEqual([]);
  });
}

test("a podIP that someone changed is put right, once", () => {
  const world = idle({ ipOf: (address) => address.replace(/:\d+$/, "") });
  world.create();
  world.grant({ address: "10.0.0.7:7777" });
  world.pushed();
  expect(world.pending("publish")).toEqual([]);
  world.edit((raw) => {
    raw.status.podIP = "9.9.9.9";
  });
  world.until("publish");
  expect(world.pushed().podIP).toBe("10.0.0.7");
  expect(world.pending("publish")).toEqual([]);
});

test("an owner_addr with a host name is pushed once, whatever IP it turned into", () => {
  const world = idle();
  world.create();
  world.grant({ address: "vm.example:7777" });
  world.pushed();
  expect(world.pending("publish")).toEqual([]);
});

test("a template of a quarter of a megabyte is refused before it reaches the journal", () => {
  const world = idle();
  world.create({ annotations: { template: "t".repeat(250_000) } });
  expect(world.commits).toEqual([]);
  expect(world.told("refused")).toMatchObject([{ cause: "bad_annotation" }]);
});

test("a listing of thousands of foreign sandboxes is counted in full and told of in part", () => {
  const world = idle({ orphanScanMs: 60_000 });
  world.until("list");
  const foreign = Array.from({ length: 3000 }, (_, at) => listedOf({ id: `sb-x${at}` }, { claimRef: "" }));
  world.answerList(...foreign);
  expect(world.told("orphan").length).toBe(200);
  expect(world.counts().orphans).toBe(3000);
});

test("someone who keeps overwriting a status is answered at once at first, and then ever more slowly", () => {
  const world = runningWorld({ orphanScanMs: 0 });
  const waits: number[] = [];
  for (let round = 0; round < 12; round++) {
    world.edit(setReadyFalse);
    waits.push(world.until("publish"));
    world.pushed();
  }
  expect(waits.slice(0, 3)).toEqual([0, 0, 0]);
  expect(waits.at(-1)).toBeGreaterThanOrEqual(10_000);
  world.pass(3_600_000);
  world.edit(setReadyFalse);
  expect(world.until("publish")).toBe(0);
});

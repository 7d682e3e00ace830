import { describe, expect, test } from "bun:test";
import {
  alive,
  createWorld,
  GONE,
  KEY,
  listedOf,
  OTHER_SANDBOX,
  rowOf,
  SANDBOX,
  START_MS,
  type WorldOptions,
} from "./harness.ts";
import { emptyTable } from "./table.ts";
import type { Intent, Listed } from "./types.ts";

/** A sandbox that sandboxd made for the claim of this test's start. */
const ours = (changes: Partial<Listed> = {}) =>
  listedOf({ id: "sb-lost" }, { claimedAtMs: START_MS + 1_000, ...changes });

function claiming(options: WorldOptions = {}) {
  const world = createWorld({ orphanScanMs: 0, ...options });
  world.list();
  world.create();
  return world;
}

/** The claim's reply was lost, sandboxd answers again, and what it had to finish is finished. */
function searching(options: WorldOptions = {}) {
  const world = claiming(options);
  world.lose();
  if (world.pending("publish").length > 0) world.pushed();
  world.until("find");
  world.answerFind();
  world.until("find");
  return world;
}

describe("the intent", () => {
  test("is durable before the claim is asked for, with all that traces a lost reply", () => {
    const world = claiming();
    expect(world.commits).toEqual([
      [
        {
          kind: "intent",
          key: KEY,
          value: {
            podUID: "pod-1",
            authority: SANDBOX.uid,
            owner: SANDBOX,
            atMs: START_MS,
            template: "py312",
            net: "",
            size: "",
          },
        },
      ],
    ]);
    expect(world.pending("claim")).toHaveLength(1);
  });

  test("that cannot be made durable keeps sandboxd from being asked, and the Pod says so", () => {
    const world = createWorld();
    world.list();
    world.failCommits(1);
    world.create();
    expect(world.ever("claim")).toEqual([]);
    expect(world.told("refused")).toMatchObject([{ cause: "state_unwritable" }]);
    world.pushed();
    world.until("claim");
    world.grant();
    expect(world.row().id).toBe("sb-1");
  });

  test("and the row change places in one commit", () => {
    const world = claiming();
    world.grant();
    expect(world.commits.at(-1)).toEqual([
      { kind: "row", key: KEY, value: expect.objectContaining({ id: "sb-1" }) },
      { kind: "intent", key: KEY, value: null },
    ]);
  });

  test("is closed when sandboxd refused in so many words", () => {
    const world = claiming();
    world.refuse("no_warm_capacity");
    expect(world.table.intents.size).toBe(0);
    expect(world.ever("find")).toEqual([]);
  });
});

describe("a claim whose reply was lost", () => {
  test("is not asked for again before sandboxd was asked what it holds", () => {
    const world = claiming();
    world.lose();
    expect(world.table.intents.has(KEY)).toBe(true);
    world.pushed();
    world.pass(60_000);
    expect(world.pending("find")).toMatchObject([{ key: KEY }]);
    expect(world.ever("claim")).toHaveLength(1);
  });

  test("shows on the Pod while it is searched for: Pending, with the cause", () => {
    const world = claiming();
    world.lose("unreachable");
    expect(world.pending("publish")[0]?.status).toMatchObject({
      phase: "Pending",
      message: "unreachable in words",
    });
    expect(world.told("refused")).toMatchObject([{ cause: "unreachable" }]);
  });

  test("does not turn a Pod with restartPolicy Never Failed, which may have a VM", () => {
    const world = createWorld();
    world.list();
    world.create({ restartPolicy: "Never" });
    world.lose();
    expect(world.pending("publish")[0]?.status.phase).toBe("Pending");
  });

  test("is found by its claim_ref, read for its credential, and committed under the same rules", () => {
    const world = searching();
    world.answerFind(ours());
    expect(world.pending("read")).toMatchObject([{ id: "sb-lost" }]);
    world.answerRead(ours(), "secret-lost", "10.0.0.9:7777");
    expect(world.row()).toMatchObject({
      id: "sb-lost",
      token: "secret-lost",
      address: "10.0.0.9:7777",
      podUID: "pod-1",
      authority: SANDBOX.uid,
      owner: SANDBOX,
    });
    expect(world.table.intents.size).toBe(0);
    expect(world.told("recovered")).toMatchObject([{ id: "sb-lost" }]);
    expect(world.pushed()).toMatchObject({ phase: "Running", claimId: "sb-lost" });
    expect(world.ever("claim")).toHaveLength(1);
  });

  test("once it is found is not denied by a listing that was asked for before", () => {
    const world = searching({ orphanScanMs: 60_000 });
    world.answerFind(ours());
    world.until("list");
    world.answerRead(ours());
    world.pushed();
    world.answerList();
    expect(world.told("stale")).toEqual([]);
    expect(world.pending("read")).toEqual([]);
  });

  test("is not decided about while sandboxd may still be making the VM", () => {
    const world = claiming({ claimSettleMs: 10_000 });
    world.lose();
    world.pushed();
    world.until("find");
    world.answerFind();
    expect(world.ever("claim")).toHaveLength(1);
    expect(world.until("find")).toBe(10_000);
    world.answerFind(ours());
    expect(world.pending("read")).toMatchObject([{ id: "sb-lost" }]);
  });

  test("that sandboxd does not hold is asked for again", () => {
    const world = searching();
    world.answerFind();
    expect(world.table.intents.size).toBe(1);
    world.until("claim");
    expect(world.ever("claim")).toHaveLength(2);
  });

  test("is searched for until sandboxd answers: a failed answer is not none", () => {
    const world = claiming();
    world.lose();
    world.pushed();
    for (let round = 0; round < 4; round++) {
      world.until("find");
      world.failFind();
    }
    expect(world.ever("claim")).toHaveLength(1);
    expect(world.table.intents.size).toBe(1);
  });

  test("whose credential cannot be read is read again, and told once", () => {
    const world = searching();
    world.answerFind(ours());
    for (let round = 0; round < 3; round++) {
      world.failRead(false);
      world.until("read");
    }
    expect(world.told("unrecoverable")).toHaveLength(1);
    expect(world.ever("claim")).toHaveLength(1);
    world.answerRead(ours());
    expect(world.row().id).toBe("sb-lost");
  });

  test("whose VM is gone by the time it is read is asked for again", () => {
    const world = searching();
    world.answerFind(ours());
    world.failRead(true);
    world.until("claim");
    expect(world.ever("claim")).toHaveLength(2);
  });

  test("that is found and cannot be committed is neither Running nor forgotten", () => {
    const world = searching();
    world.answerFind(ours());
    world.failCommits(1);
    world.answerRead(ours());
    expect(world.table.rows.size).toBe(0);
    expect(world.ever("publish").filter((push) => push.status.phase === "Running")).toEqual([]);
    world.until("read");
    world.answerRead(ours());
    expect(world.row().id).toBe("sb-lost");
  });

  test("of a Pod that went meanwhile is found, judged and released", () => {
    const world = claiming();
    world.lose();
    world.pushed();
    world.remove();
    world.until("find");
    world.answerFind();
    world.until("find");
    world.answerFind(ours());
    world.answerRead(ours());
    world.answerAsk(GONE);
    expect(world.pending("release")).toMatchObject([{ id: "sb-lost", token: "secret-read" }]);
    expect(world.ever("finalize")).toEqual([]);
    world.call("release").ok();
    expect(world.underWay()).toEqual(["finalize"]);
  });

  test("of a Pod that another owner's replaced goes to its own owner, not to the replacement", () => {
    const world = claiming();
    world.lose();
    world.pushed();
    world.create({ uid: "pod-2", owner: OTHER_SANDBOX });
    world.until("find");
    world.answerFind();
    world.until("find");
    world.answerFind(ours());
    world.answerRead(ours());
    expect(world.table.displaced.get("sb-lost")?.row.authority).toBe(SANDBOX.uid);
    expect(world.pending("claim")).toHaveLength(1);
    world.answerAsk(alive({ uid: OTHER_SANDBOX.uid }));
    expect(world.pending("release")).toMatchObject([{ id: "sb-lost" }]);
  });
});

describe("a sandbox that could belong to anyone else is left alone:", () => {
  const CASES: [string, Listed[]][] = [
    ["more than one candidate", [ours(), ours({ id: "sb-other" })]],
    ["one older than the intent", [ours({ claimedAtMs: START_MS - 5_000 })]],
    ["one older than the intent by less than a second", [ours({ claimedAtMs: START_MS - 1 })]],
    ["one that does not say when it was claimed", [ours({ claimedAtMs: undefined })]],
    ["one of another template", [ours({ template: "node22" })]],
  ];
  for (const [name, rows] of CASES) {
    test(`${name}`, () => {
      const world = searching();
      world.answerFind(...rows);
      expect(world.ever("read")).toEqual([]);
      expect(world.told("unrecoverable").map((note) => note.id)).toEqual(rows.map((row) => row.id));
      world.until("claim");
      world.grant({ id: "sb-fresh" });
      expect(world.row().id).toBe("sb-fresh");
      expect(world.ever("release")).toEqual([]);
    });
  }

  test("one of another claim_ref, even if sandboxd lists it", () => {
    const world = searching();
    world.answerFind(ours({ claimRef: "agents/other" }));
    expect(world.ever("read")).toEqual([]);
    world.until("claim");
    expect(world.ever("release")).toEqual([]);
  });

  test("one of another net or size than was asked for", () => {
    for (const axis of [{ net: "egress" }, { size: "large" }]) {
      const world = createWorld({ orphanScanMs: 0 });
      world.list();
      world.create({ annotations: { net: "none", size: "small" } });
      world.lose();
      world.pushed();
      world.until("find");
      world.answerFind();
      world.until("find");
      world.answerFind(ours(axis));
      expect(world.ever("read")).toEqual([]);
      expect(world.told("unrecoverable")).toHaveLength(1);
    }
  });

  test("one that a row of ours holds", () => {
    const world = searching({ rows: { "agents/else": rowOf({ id: "sb-lost" }) } });
    world.answerFind(ours());
    expect(world.ever("read")).toEqual([]);
    world.until("claim");
    expect(world.told("recovered")).toEqual([]);
  });

  test("one whose read says another claim_ref", () => {
    const world = searching();
    world.answerFind(ours());
    world.answerRead(ours({ claimRef: "agents/other" }));
    expect(world.table.rows.size).toBe(0);
    expect(world.told("recovered")).toEqual([]);
  });

  test("and the one that is the Pod's own is told from an older one beside it", () => {
    const world = searching();
    world.answerFind(ours({ id: "sb-old", claimedAtMs: START_MS - 60_000 }), ours());
    expect(world.pending("read")).toMatchObject([{ id: "sb-lost" }]);
  });
});

describe("kill -9 between the intent and the row", () => {
  function crashed() {
    const world = claiming();
    world.crash();
    return world;
  }

  test("leaves an intent, from which the VM is found again", () => {
    const world = crashed();
    world.list({});
    world.until("find");
    world.answerFind();
    world.until("find");
    world.answerFind(ours());
    world.answerRead(ours());
    expect(world.row().id).toBe("sb-lost");
    expect(world.ever("claim")).toEqual([]);
  });

  test("and the Pod's end while we were down leak no VM: it is found, judged and released", () => {
    const world = crashed();
    world.list();
    world.until("find");
    world.answerFind();
    world.until("find");
    world.answerFind(ours());
    world.answerRead(ours());
    world.answerAsk(GONE, { kind: "not_found" });
    expect(world.pending("release")).toMatchObject([{ id: "sb-lost" }]);
  });

  test("with nothing at sandboxd closes the intent, and no Pod means no claim", () => {
    const world = crashed();
    world.list();
    world.until("find");
    world.answerFind();
    world.until("find");
    world.answerFind();
    expect(world.table.intents.size).toBe(0);
    expect(world.ever("claim")).toEqual([]);
  });

  test("is found again by the intent of a table, whoever wrote it", () => {
    const table = emptyTable();
    const intent: Intent = {
      podUID: "pod-1",
      authority: "pod-1",
      atMs: START_MS,
      template: "py312",
      net: "",
      size: "",
    };
    table.intents.set(KEY, intent);
    const world = createWorld({ table, orphanScanMs: 0 });
    world.list({ owner: null });
    expect(world.pending("find")).toMatchObject([{ key: KEY }]);
    expect(world.ever("claim")).toEqual([]);
  });
});

describe("a claim that cannot be made durable", () => {
  function tentative() {
    const world = claiming();
    world.failCommits(1);
    world.grant();
    return world;
  }

  test("goes back to sandboxd, and the Pod is never Running", () => {
    const world = tentative();
    expect(world.underWay()).toEqual(["release"]);
    expect(world.pending("release")).toMatchObject([{ id: "sb-1", token: "secret-1" }]);
    expect(world.told("uncommitted")).toMatchObject([{ id: "sb-1" }]);
    expect(world.ever("publish")).toEqual([]);
  });

  test("that cannot go back either is kept in memory and settled before the key is used again", () => {
    const world = tentative();
    for (let round = 0; round < 3; round++) {
      world.call("release").failed();
      expect(world.underWay()).toEqual([]);
      world.until("release");
    }
    expect(world.ever("claim")).toHaveLength(1);
    world.call("release").ok();
    expect(world.told("settled")).toMatchObject([{ id: "sb-1" }]);
    expect(world.ever("claim")).toHaveLength(1);
    world.until("publish");
    world.pushed();
    world.until("claim");
    world.grant({ id: "sb-2" });
    expect(world.row().id).toBe("sb-2");
  });

  test("says on the Pod why there is none", () => {
    const world = tentative();
    world.call("release").ok();
    world.until("publish");
    expect(world.pending("publish")[0]?.status).toMatchObject({
      phase: "Pending",
      reason: "ProviderFailed",
    });
  });

  test("outlives its Pod until it is settled", () => {
    const world = tentative();
    world.remove();
    world.call("release").failed();
    expect(world.ever("finalize")).toEqual([]);
    world.until("release");
    world.call("release").gone();
    world.until("finalize");
    expect(world.told("settled")).toHaveLength(1);
  });
});

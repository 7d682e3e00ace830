import { describe, expect, test } from "bun:test";
import { createWorld, KEY, runningWorld, SANDBOX, START_MS, type WorldOptions } from "./harness.ts";
import type { CauseKind } from "./types.ts";

function idle(options: WorldOptions = {}) {
  const world = createWorld(options);
  world.list();
  return world;
}

describe("annotations", () => {
  for (const runtime of ["", "sandboxd"]) {
    test(`a Pod with runtime ${runtime === "" ? "absent" : runtime} is claimed for`, () => {
      const world = idle();
      world.create({ annotations: { runtime } });
      expect(world.pending("claim")).toHaveLength(1);
    });
  }

  test("any other runtime fails the create, and sandboxd is not asked", () => {
    const world = idle();
    world.create({ annotations: { runtime: "docker" } });
    expect(world.ever("claim")).toEqual([]);
    expect(world.pending("publish")[0]?.status).toMatchObject({ phase: "Pending", reason: "ProviderFailed" });
  });

  test("a Pod without template fails the create, and sandboxd is not asked", () => {
    const world = idle();
    world.create({ annotations: { template: "" } });
    expect(world.ever("claim")).toEqual([]);
    expect(world.told("refused")).toMatchObject([{ cause: "bad_annotation" }]);
  });

  test("net and size are passed on as they are, and left out they are sandboxd's to choose", () => {
    const world = idle();
    world.create();
    expect(world.take("claim")).toMatchObject({ key: KEY, template: "py312", net: "", size: "" });
    const other = idle();
    other.create({ annotations: { net: "egress", size: "large" } });
    expect(other.take("claim")).toMatchObject({ net: "egress", size: "large" });
  });

  for (const [name, value] of [
    ["net", "host"],
    ["size", "huge"],
    ["ttl-seconds", "-1"],
    ["ttl-seconds", "1.5"],
    ["ttl-seconds", "1h"],
    ["ttl-seconds", " 60"],
  ] as const) {
    test(`${name} "${value}" fails the create, and sandboxd is not asked`, () => {
      const world = idle();
      world.create({ annotations: { [name]: value } });
      expect(world.ever("claim")).toEqual([]);
      expect(world.told("refused")).toMatchObject([{ cause: "bad_annotation" }]);
      expect(world.told("refused")[0]?.reason).toContain(name);
    });
  }

  for (const [ttl, seconds] of [
    ["", 86_400],
    ["0", 0],
    ["90", 90],
  ] as const) {
    test(`ttl-seconds ${ttl === "" ? "absent" : ttl} asks for ${seconds} s`, () => {
      const world = idle();
      world.create({ annotations: { "ttl-seconds": ttl } });
      expect(world.take("claim").ttlSeconds).toBe(seconds);
    });
  }
});

describe("which Pods are claimed for", () => {
  for (const phase of ["Failed", "Succeeded"]) {
    test(`a ${phase} Pod is left alone`, () => {
      const world = idle();
      world.create({ status: { phase } });
      expect(world.started).toEqual([]);
    });
  }

  test("a Pod that is being deleted is not claimed for, and its object is let go", () => {
    const world = idle();
    world.create({ deleting: true });
    expect(world.ever("claim")).toEqual([]);
    expect(world.underWay()).toEqual(["finalize"]);
  });

  test("Pods wait for nobody else: two of them are claimed for at once", () => {
    const world = idle();
    world.create({ key: "agents/a", uid: "a" });
    world.create({ key: "agents/b", uid: "b" });
    expect(world.pending("claim").map((claim) => claim.key)).toEqual(["agents/a", "agents/b"]);
  });

  test("a Pod is claimed for once, however often the watch shows it", () => {
    const world = idle();
    world.create();
    world.edit(() => {});
    world.edit(() => {});
    world.grant();
    expect(world.ever("claim")).toHaveLength(1);
  });
});

describe("the claim", () => {
  test("of an owned Pod is held for its owner, and durable before the Pod is Running", () => {
    const world = idle();
    world.create();
    expect(world.ever("publish")).toEqual([]);
    world.grant({ id: "sb-7", token: "t7", address: "10.0.0.9:7777" });
    expect(world.row()).toEqual({
      id: "sb-7",
      token: "t7",
      address: "10.0.0.9:7777",
      podUID: "pod-1",
      authority: SANDBOX.uid,
      owner: SANDBOX,
      claimedAtMs: START_MS,
      deadlineMs: START_MS + 3_600_000,
    });
    expect(world.pending("publish")[0]?.status.phase).toBe("Running");
  });

  test("of a bare Pod is held for the Pod itself", () => {
    const world = idle();
    world.create({ owner: null });
    world.grant();
    expect(world.row()).toMatchObject({ authority: "pod-1", podUID: "pod-1" });
    expect(world.row().owner).toBeUndefined();
  });

  test("whose Pod was deleted meanwhile is kept until its owner was asked", () => {
    const world = idle();
    world.create();
    world.remove();
    expect(world.underWay()).toEqual(["claim"]);
    world.grant();
    expect(world.ever("publish")).toEqual([]);
    expect(world.underWay()).toEqual(["ask"]);
  });

  test("whose Pod was replaced meanwhile is its owner's, and the replacement adopts it", () => {
    const world = idle();
    world.create();
    world.gone();
    world.create({ uid: "pod-2" });
    world.grant();
    expect(world.row()).toMatchObject({ id: "sb-1", podUID: "pod-2" });
    expect(world.ever("claim")).toHaveLength(1);
  });
});

describe("a refused claim", () => {
  const RETRIED: CauseKind[] = [
    "no_warm_capacity",
    "max_claims",
    "draining",
    "bad_token",
    "egress_unavailable",
    "provisioning_failed",
    "unreachable",
  ];
  for (const kind of RETRIED) {
    test(`for ${kind} leaves the Pod Pending with the cause in words, tells it, and is asked for again`, () => {
      const world = idle();
      world.create();
      world.refuse(kind, `words of ${kind}`);
      expect(world.pending("publish")[0]?.status).toEqual({
        phase: "Pending",
        reason: "ProviderFailed",
        message: `words of ${kind}`,
      });
      expect(world.told("refused")).toMatchObject([{ key: KEY, podUID: "pod-1", cause: kind }]);
      world.pushed();
      expect(world.pending("claim")).toEqual([]);
      world.passToDue();
      expect(world.pending("claim")).toHaveLength(1);
    });
  }

  test("is retried ever more slowly, up to the longest delay, and for ever", () => {
    const world = idle({ retryMinMs: 1_000, retryMaxMs: 8_000, orphanScanMs: 0 });
    world.create();
    const waits: number[] = [];
    for (let round = 0; round < 8; round++) {
      world.refuse("unreachable");
      if (world.pending("publish").length > 0) world.pushed();
      waits.push(world.passToDue());
    }
    // Three quarters of each: half is fixed, and the jitter here is the middle of the other half.
    expect(waits).toEqual([750, 1_500, 3_000, 6_000, 6_000, 6_000, 6_000, 6_000]);
  });

  test("is told once while the cause stays the same, and again when it changes", () => {
    const world = idle();
    world.create();
    for (const kind of ["unreachable", "unreachable", "draining"] as const) {
      world.refuse(kind);
      if (world.pending("publish").length > 0) world.pushed();
      world.passToDue();
    }
    expect(world.told("refused").map((note) => note.cause)).toEqual(["unreachable", "draining"]);
  });

  test("turns a Pod with restartPolicy Never Failed, and is not retried", () => {
    const world = idle({ orphanScanMs: 0 });
    world.create({ restartPolicy: "Never" });
    world.refuse("no_warm_capacity");
    expect(world.pending("publish")[0]?.status).toMatchObject({ phase: "Failed", reason: "ProviderFailed" });
    world.pushed();
    world.pass(86_400_000);
    expect(world.ever("claim")).toHaveLength(1);
  });

  test("is granted at last, and the Pod is Running without the old reason", () => {
    const world = idle();
    world.create();
    world.refuse("no_warm_capacity");
    world.pushed();
    world.passToDue();
    world.grant();
    const view = world.pushed();
    expect(view.phase).toBe("Running");
    expect(world.object(KEY).status).not.toHaveProperty("reason");
    expect(world.object(KEY).status).not.toHaveProperty("message");
  });

  test("for an unknown template does not hammer sandboxd, and a changed Pod is claimed for at once", () => {
    const world = idle({ poolFaultRetryMs: 300_000, orphanScanMs: 0 });
    world.create();
    world.refuse("unknown_template");
    world.pushed();
    world.pass(120_000);
    expect(world.pending("claim")).toEqual([]);
    world.annotate("template", "py313");
    expect(world.pending("claim")).toMatchObject([{ template: "py313" }]);
  });
});

test("a Pod that is gone at the push of its cause is not claimed for before the watch has spoken", () => {
  const world = idle({ orphanScanMs: 0 });
  world.create();
  world.refuse("unreachable");
  world.call("publish").gone();
  world.pass(600_000);
  expect(world.ever("claim")).toHaveLength(1);
  world.edit(() => {});
  expect(world.underWay()).toEqual(["publish"]);
});

describe("a fault in the annotations", () => {
  test("waits for the Pod to change", () => {
    const world = idle({ orphanScanMs: 0 });
    world.create({ annotations: { size: "huge" } });
    world.pushed();
    world.pass(86_400_000);
    world.edit((raw) => {
      raw.metadata.labels = { touched: "yes" };
    });
    expect(world.ever("claim")).toEqual([]);
    world.annotate("size", "small");
    expect(world.pending("claim")).toMatchObject([{ size: "small" }]);
  });

  test("turns a Pod with restartPolicy Never Failed", () => {
    const world = idle();
    world.create({ restartPolicy: "Never", annotations: { template: "" } });
    expect(world.pending("publish")[0]?.status.phase).toBe("Failed");
  });
});

describe("what the outside sees", () => {
  test("of claims is everything but the credential", () => {
    const world = runningWorld();
    expect(world.claims()).toEqual([
      {
        key: KEY,
        id: "sb-1",
        podUID: "pod-1",
        authority: SANDBOX.uid,
        address: "10.0.0.7:7777",
        claimedAtMs: START_MS,
        deadlineMs: START_MS + 3_600_000,
        state: "held",
      },
    ]);
    expect(world.counts()).toMatchObject({ pods: 1, held: 1, preserved: 0, quarantined: 0, intents: 0 });
    expect(world.pods().map((pod) => pod.uid)).toEqual(["pod-1"]);
  });

  test("is never a token in a note or a pushed status", () => {
    const world = runningWorld();
    world.remove();
    world.answerAsk({ kind: "not_found", named: true });
    world.call("release").ok();
    expect(JSON.stringify(world.notes)).not.toContain("secret");
    for (const effect of [...world.ever("publish"), ...world.ever("finalize")])
      expect(JSON.stringify(effect)).not.toContain("secret");
  });
});

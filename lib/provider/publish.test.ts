import { describe, expect, test } from "bun:test";
import { createWorld, KEY, rawPod, runningWorld, setReadyFalse, viewOf } from "./harness.ts";
import { podView } from "./pod.ts";

function claimed(containers?: string[]) {
  const world = createWorld();
  world.list();
  world.create({ containers });
  return world;
}

describe("Running", () => {
  test("is published only when the claim is durable", () => {
    const world = claimed();
    world.failCommits(1);
    world.grant();
    expect(world.ever("publish")).toEqual([]);
    expect(world.table.rows.size).toBe(0);
  });

  test("is one write: status, claim-id and address together", () => {
    const world = claimed();
    world.grant({ id: "sb-7", address: "10.0.0.9:7777" });
    expect(world.underWay()).toEqual(["publish"]);
    expect(world.pending("publish")).toMatchObject([
      { key: KEY, uid: "pod-1", claimId: "sb-7", address: "10.0.0.9:7777" },
    ]);
    world.pushed();
    expect(world.underWay()).toEqual([]);
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("says Running, started when claimed, with the four conditions True", () => {
    const world = claimed();
    world.grant();
    const { status } = world.take("publish");
    expect(status).toMatchObject({ phase: "Running", startTime: "2026-01-01T00:00:00Z" });
    expect(status.conditions).toEqual(
      ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map((type) => ({
        type,
        status: "True",
        lastTransitionTime: "2026-01-01T00:00:00Z",
        reason: null,
        message: null,
      })),
    );
  });

  test("has one ready running status per container, whose image is the claim", () => {
    const world = claimed(["agent", "sidecar"]);
    world.grant({ id: "sb-7" });
    const statuses = world.take("publish").status.containerStatuses;
    expect(statuses).toMatchObject([{ name: "agent" }, { name: "sidecar" }]);
    for (const status of statuses as unknown[])
      expect(status).toMatchObject({
        imageID: "sandboxd://sb-7",
        ready: true,
        started: true,
        restartCount: 0,
        state: { running: { startedAt: "2026-01-01T00:00:00Z" } },
      });
  });
});

describe("a Pod whose status says otherwise", () => {
  test("after kube-controller-manager set Ready=False is published again", () => {
    const world = runningWorld();
    world.edit(setReadyFalse);
    expect(world.underWay()).toEqual(["publish"]);
    expect(world.pushed().digest.conditions).toBe("TTTT");
    expect(world.underWay()).toEqual([]);
  });

  test("is pushed with the transition times of the first push", () => {
    const world = runningWorld();
    const [first] = world.ever("publish");
    world.pass(7_000);
    world.edit(setReadyFalse);
    expect(world.take("publish").status).toEqual(first?.status ?? {});
  });

  test("that was set back to Pending is published again", () => {
    const world = runningWorld();
    world.edit((raw) => {
      raw.status = { phase: "Pending" };
    });
    expect(world.pending("publish")[0]?.status.phase).toBe("Running");
  });

  test("whose claim-id was changed by somebody is given the true one again", () => {
    const world = runningWorld();
    world.annotate("claim-id", "sb-forged");
    expect(world.pending("publish")).toMatchObject([{ claimId: "sb-1" }]);
    expect(world.pushed().claimId).toBe("sb-1");
  });

  test("that lost its container statuses or its IP is published again", () => {
    for (const field of ["containerStatuses", "podIP"]) {
      const world = runningWorld();
      world.edit((raw) => {
        delete raw.status[field];
      });
      expect(world.underWay()).toEqual(["publish"]);
    }
  });

  test("that is overwritten before each push is answered is pushed ever more slowly, and not given up", () => {
    const world = runningWorld({ orphanScanMs: 0 });
    const waits: number[] = [];
    world.edit(setReadyFalse);
    for (let round = 0; round < 9; round++) {
      waits.push(world.until("publish"));
      const effect = world.take("publish");
      world.edit((raw) => {
        raw.metadata.labels = { round };
      });
      world.send({ type: "called", effect, result: { ok: true, resourceVersion: "1" } });
    }
    expect(waits.slice(0, 3)).toEqual([0, 0, 0]);
    expect(waits.at(-1)).toBeGreaterThanOrEqual(3_000);
    expect(waits.toSorted((a, b) => a - b)).toEqual(waits);
  });
});

describe("a Pod whose status says all there is to say", () => {
  test("is not pushed", () => {
    const world = runningWorld();
    world.edit((raw) => {
      raw.metadata.labels = { touched: "yes" };
    });
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("is not pushed for a condition of somebody else's", () => {
    const world = runningWorld();
    world.edit((raw) => {
      raw.status.conditions = [
        ...(raw.status.conditions as unknown[]),
        { type: "example.com/Gate", status: "False" },
      ];
    });
    expect(world.ever("publish")).toHaveLength(1);
  });
});

describe("a stale event of the watch", () => {
  test("from before our push does not cause another", () => {
    const world = claimed();
    const before = structuredClone(world.object(KEY));
    world.grant();
    world.call("publish").ok({ resourceVersion: "500" });
    world.show({ ...before, metadata: { ...before.metadata, resourceVersion: "300" } });
    expect(world.ever("publish")).toHaveLength(1);
  });

  test("from after our push does, when it says otherwise", () => {
    const world = claimed();
    const before = structuredClone(world.object(KEY));
    world.grant();
    world.call("publish").ok({ resourceVersion: "500" });
    world.show({ ...before, metadata: { ...before.metadata, resourceVersion: "501" } });
    expect(world.ever("publish")).toHaveLength(2);
  });

  test("counts with its spec side: a deletion in it is seen", () => {
    const world = claimed();
    world.grant();
    world.call("publish").ok({ resourceVersion: "500" });
    world.show(rawPod({ deleting: true }, "300"));
    expect(world.underWay()).toEqual(["ask"]);
  });

  test("that comes out of its order is no news", () => {
    const world = runningWorld();
    world.show(rawPod({ deleting: true }, "2"));
    expect(world.underWay()).toEqual([]);
  });

  test("of a version with one more digit is newer", () => {
    const world = claimed();
    const raw = structuredClone(world.object(KEY));
    world.grant();
    world.call("publish").ok({ resourceVersion: "999" });
    world.show({ ...raw, metadata: { ...raw.metadata, resourceVersion: "1000" } });
    expect(world.ever("publish")).toHaveLength(2);
  });
});

describe("a failed push", () => {
  test("is tried again, with the same status, and told once", () => {
    const world = claimed();
    world.grant();
    for (let round = 0; round < 3; round++) {
      world.call("publish").failed("etcd leader changed");
      expect(world.pending("publish")).toEqual([]);
      world.until("publish");
    }
    world.pushed();
    const [first, ...rest] = world.ever("publish");
    expect(rest).toHaveLength(3);
    for (const push of rest) expect(push.status).toEqual(first?.status ?? {});
    expect(world.told("publish_failed")).toMatchObject([{ reason: "etcd leader changed" }]);
    expect(world.ever("claim")).toHaveLength(1);
  });

  test("because the Pod is gone waits for the watch to say what became of it", () => {
    const world = claimed();
    world.grant();
    world.call("publish").gone();
    world.pass(50_000);
    expect(world.ever("publish")).toHaveLength(1);
    world.edit(() => {});
    expect(world.ever("publish")).toHaveLength(2);
  });

  test("whose answer comes when the next push is under way counts for itself only", () => {
    const world = runningWorld();
    const [first] = world.ever("publish");
    if (first === undefined) throw new Error("no push");
    world.edit(setReadyFalse);
    world.send({ type: "called", effect: first, result: { ok: true, resourceVersion: "1" } });
    world.edit(() => {});
    expect(world.ever("publish")).toHaveLength(2);
    world.pushed();
    expect(world.ever("publish")).toHaveLength(2);
  });

  test("does not hold up the Pod's deletion", () => {
    const world = claimed();
    world.grant();
    world.call("publish").failed();
    world.remove();
    expect(world.underWay()).toEqual(["ask"]);
  });
});

describe("a terminal Pod", () => {
  for (const phase of ["Failed", "Succeeded"]) {
    test(`that turned ${phase} by somebody's hand is left alone, and its VM is kept`, () => {
      const world = runningWorld({ orphanScanMs: 0 });
      world.edit((raw) => {
        raw.status.phase = phase;
      });
      world.pass(600_000);
      expect(world.ever("publish")).toHaveLength(1);
      expect(world.ever("release")).toEqual([]);
      expect(world.row().id).toBe("sb-1");
    });

    test(`that is ${phase} and then deleted is judged as any other`, () => {
      const world = runningWorld();
      world.edit((raw) => {
        raw.status.phase = phase;
      });
      world.remove();
      world.answerAsk({ kind: "not_found", named: true });
      expect(world.pending("release")).toMatchObject([{ id: "sb-1" }]);
    });
  }
});

describe("a Pod's view", () => {
  test("is undefined of what is no Pod", () => {
    for (const raw of [null, 1, "x", [], {}, { metadata: [] }, { metadata: { namespace: "n", name: "x" } }])
      expect(podView(raw)).toBeUndefined();
  });

  test("is empty where fields have another type than the API's", () => {
    const view = viewOf({
      metadata: { namespace: "n", name: "x", uid: "u", annotations: 3, ownerReferences: { a: 1 } },
      spec: { containers: "none", restartPolicy: 1 },
      status: { conditions: {}, containerStatuses: 7, phase: 4 },
    });
    expect(view).toMatchObject({ phase: "", containers: [], template: "", restartNever: false });
    expect(view.owner).toBeUndefined();
  });
});

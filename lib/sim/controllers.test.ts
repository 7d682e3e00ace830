import { afterEach, describe, expect, test } from "bun:test";
import { type ApiServer, type ApiServerOptions, startApiServer } from "./apiserver.ts";
import { type ControllerOptions, startControllers } from "./controllers.ts";
import type { KubeObject } from "./kubestore.ts";
import type { JsonObject } from "./patch.ts";

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

const sandboxes = "sandboxes.agents.x-k8s.io";

async function start(options: ControllerOptions & ApiServerOptions = {}): Promise<ApiServer> {
  const server = await startApiServer(options);
  cleanups.push(() => server.stop());
  cleanups.push(
    startControllers(server.objects, {
      retryMs: 1,
      onError: (controller, key, error) => console.error(controller, key, error),
      ...options,
    }),
  );
  return server;
}

/** Waits until the condition holds; the test's own timeout is its end. */
async function until<T>(condition: () => T | undefined | false): Promise<T> {
  for (;;) {
    const value = condition();
    if (value) return value;
    await Bun.sleep(1);
  }
}

const selector = { "sandbox.cocoonstack.io/runtime": "sandboxd" };
const tolerations = [{ key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" }];

function sandbox(name: string, spec: JsonObject = {}, pod: JsonObject = {}): JsonObject {
  return {
    metadata: { name },
    spec: {
      podTemplate: {
        metadata: { annotations: { "sandbox.cocoonstack.io/template": "rt" } },
        spec: { containers: [{ name: "c", image: "i" }], nodeSelector: selector, tolerations, ...pod },
      },
      ...spec,
    },
  };
}

function node(name: string, more: { taints?: JsonObject[]; pods?: string } = {}): JsonObject {
  return {
    metadata: { name, labels: selector },
    spec: {
      taints: [
        { key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" },
        ...(more.taints ?? []),
      ],
    },
    status: { capacity: { pods: more.pods ?? "100" }, conditions: [{ type: "Ready", status: "True" }] },
  };
}

const condition = (object: KubeObject | undefined, type: string) =>
  (object?.status?.conditions as { type: string; status: string; reason: string }[] | undefined)?.find(
    (each) => each.type === type,
  );

describe("a Sandbox", () => {
  test("gets a Pod that it controls, from its template, bound to a node that fits", async () => {
    const { objects } = await start();
    objects.create("nodes", node("n1"));
    const { metadata } = objects.create(sandboxes, sandbox("s"));
    const pod = await until(() => {
      const made = objects.get("pods", "default/s");
      return made?.spec?.nodeName ? made : undefined;
    });
    expect(pod.metadata.annotations).toEqual({ "sandbox.cocoonstack.io/template": "rt" });
    expect(pod.metadata.ownerReferences).toEqual([
      {
        apiVersion: "agents.x-k8s.io/v1beta1",
        kind: "Sandbox",
        name: "s",
        uid: metadata.uid,
        controller: true,
        blockOwnerDeletion: true,
      },
    ]);
    expect(pod.spec?.nodeName).toBe("n1");
    objects.patch("pods/status", "default/s", {
      status: { conditions: [{ type: "Ready", status: "True" }] },
    });
    await until(
      () => condition(objects.get(sandboxes, "default/s"), "Ready")?.reason === "DependenciesReady",
    );
  });

  test("gets another Pod when its Pod is gone while it lives", async () => {
    const { objects } = await start();
    objects.create(sandboxes, sandbox("s"));
    const first = await until(() => objects.get("pods", "default/s"));
    objects.remove("pods", "default/s");
    const second = await until(() => objects.get("pods", "default/s"));
    expect(second.metadata.uid).not.toBe(first.metadata.uid);
  });

  test("loses its Pod when it is suspended and gets one when it is resumed", async () => {
    const { objects } = await start();
    objects.create(sandboxes, sandbox("s"));
    await until(() => objects.get("pods", "default/s"));
    objects.patch(sandboxes, "default/s", { spec: { operatingMode: "Suspended" } });
    await until(() => !objects.get("pods", "default/s"));
    await until(() => condition(objects.get(sandboxes, "default/s"), "Ready")?.reason === "SandboxSuspended");
    objects.patch(sandboxes, "default/s", { spec: { operatingMode: "Running" } });
    await until(() => objects.get("pods", "default/s"));
  });

  test("whose Pod failed is finished: it gets no other Pod", async () => {
    const { objects } = await start();
    objects.create(sandboxes, sandbox("s"));
    await until(() => objects.get("pods", "default/s"));
    objects.patch("pods/status", "default/s", { status: { phase: "Failed" } });
    await until(() => condition(objects.get(sandboxes, "default/s"), "Finished")?.reason === "PodFailed");
    objects.remove("pods", "default/s");
    objects.create(sandboxes, sandbox("next"));
    await until(() => objects.get("pods", "default/next"));
    expect(objects.get("pods", "default/s")).toBeUndefined();
  });

  test.each([
    ["Retain", (it: KubeObject | undefined) => condition(it, "Ready")?.reason === "SandboxExpired"],
    ["Delete", (it: KubeObject | undefined) => it === undefined],
  ])("that reaches its shutdownTime loses its Pod; policy %s", async (shutdownPolicy, holds) => {
    let nowMs = Date.now();
    const { objects } = await start({ now: () => nowMs });
    const shutdownTime = new Date(nowMs + 3_600_000).toISOString();
    objects.create(sandboxes, sandbox("s", { shutdownTime, shutdownPolicy }));
    await until(() => objects.get("pods", "default/s"));
    nowMs += 3_600_001;
    objects.patch(sandboxes, "default/s", { metadata: { labels: { look: "again" } } });
    await until(() => !objects.get("pods", "default/s"));
    await until(() => holds(objects.get(sandboxes, "default/s")));
  });
});

describe("the scheduler", () => {
  test("leaves a Pod without a node that fits Unschedulable, and binds it once there is one", async () => {
    const { objects } = await start();
    objects.create("nodes", { ...node("plain"), metadata: { name: "plain" } });
    objects.create("nodes", {
      ...node("down"),
      status: { conditions: [{ type: "Ready", status: "False" }] },
    });
    objects.create("nodes", node("tainted", { taints: [{ key: "x", effect: "NoExecute" }] }));
    objects.create("nodes", node("full", { pods: "0" }));
    objects.create(sandboxes, sandbox("s"));
    await until(
      () => condition(objects.get("pods", "default/s"), "PodScheduled")?.reason === "Unschedulable",
    );
    objects.create("nodes", node("fits"));
    await until(() => objects.get("pods", "default/s")?.spec?.nodeName === "fits");
    expect(condition(objects.get("pods", "default/s"), "PodScheduled")?.status).toBe("True");
  });

  test("prefers nodes without a PreferNoSchedule taint, then those with the fewest Pods", async () => {
    const { objects } = await start();
    objects.create("nodes", node("exhausted", { taints: [{ key: "capacity", effect: "PreferNoSchedule" }] }));
    objects.create("nodes", node("a", { pods: "2" }));
    objects.create("nodes", node("b", { pods: "2" }));
    for (const name of ["s1", "s2", "s3", "s4", "s5"]) objects.create(sandboxes, sandbox(name));
    await until(() => objects.list("pods").filter((pod) => pod.spec?.nodeName).length === 5);
    const names = objects.list("pods").map((pod) => pod.spec?.nodeName);
    expect(names.filter((name) => name === "exhausted")).toHaveLength(1);
    expect(names.filter((name) => name === "a")).toHaveLength(2);
  });
});

describe("what is left behind", () => {
  test("goes when its owner goes; a bound Pod waits for its node", async () => {
    const { objects } = await start();
    objects.create("nodes", node("n1"));
    objects.create(sandboxes, sandbox("s"));
    await until(() => objects.get("pods", "default/s")?.spec?.nodeName);
    expect(objects.remove(sandboxes, "default/s")).toBeUndefined();
    await until(() => objects.get("pods", "default/s")?.metadata.deletionTimestamp);
    objects.remove("pods", "default/s", { gracePeriodSeconds: 0 });
    expect(objects.get("pods", "default/s")).toBeUndefined();
  });

  test("goes when its owner was made anew under the same name", async () => {
    const { objects } = await start();
    objects.create("nodes", node("n1"));
    objects.create(sandboxes, sandbox("s"));
    const old = await until(() => objects.get("pods", "default/s"));
    await until(() => objects.get("pods", "default/s")?.spec?.nodeName);
    objects.remove(sandboxes, "default/s");
    objects.create(sandboxes, sandbox("s"));
    await until(() => objects.get("pods", "default/s")?.metadata.deletionTimestamp);
    objects.remove("pods", "default/s", { gracePeriodSeconds: 0, preconditions: { uid: old.metadata.uid } });
    const next = await until(() => objects.get("pods", "default/s"));
    expect(next.metadata.ownerReferences?.[0]?.uid).toBe(
      objects.get(sandboxes, "default/s")?.metadata.uid ?? "",
    );
  });

  test("under Foreground holds its owner until it is gone, under Orphan is let go", async () => {
    const { objects } = await start();
    objects.create("nodes", node("n1"));
    for (const name of ["fg", "left"]) objects.create(sandboxes, sandbox(name));
    await until(() => objects.list("pods").filter((pod) => pod.spec?.nodeName).length === 2);
    objects.remove(sandboxes, "default/fg", { propagationPolicy: "Foreground" });
    await until(() => objects.get("pods", "default/fg")?.metadata.deletionTimestamp);
    expect(objects.get(sandboxes, "default/fg")).toBeDefined();
    objects.remove("pods", "default/fg", { gracePeriodSeconds: 0 });
    await until(() => !objects.get(sandboxes, "default/fg"));

    objects.remove(sandboxes, "default/left", { propagationPolicy: "Orphan" });
    await until(() => !objects.get(sandboxes, "default/left"));
    const orphan = objects.get("pods", "default/left");
    expect(orphan?.metadata.ownerReferences).toBeUndefined();
    expect(orphan?.metadata.deletionTimestamp).toBeUndefined();
  });

  test("in a namespace goes with it", async () => {
    const { objects } = await start();
    objects.create("nodes", node("n1"));
    objects.create("namespaces", { metadata: { name: "team" } });
    objects.create(sandboxes, { ...sandbox("s"), metadata: { name: "s", namespace: "team" } });
    await until(() => objects.get("pods", "team/s")?.spec?.nodeName);
    objects.remove("namespaces", "team");
    await until(() => objects.get("pods", "team/s")?.metadata.deletionTimestamp);
    expect(objects.get("namespaces", "team")?.status?.phase).toBe("Terminating");
    objects.remove("pods", "team/s", { gracePeriodSeconds: 0 });
    await until(() => !objects.get("namespaces", "team"));
    expect(objects.get(sandboxes, "team/s")).toBeUndefined();
  });
});

test("a Ready node loses its not-ready taint and keeps the others", async () => {
  const { objects } = await start();
  const created = objects.create("nodes", node("n1"));
  expect(created.spec?.taints).toHaveLength(2);
  await until(
    () => objects.get("nodes", "n1")?.metadata.resourceVersion !== created.metadata.resourceVersion,
  );
  expect(objects.get("nodes", "n1")?.spec?.taints).toEqual([
    { key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" },
  ]);
});

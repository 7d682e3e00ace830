import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createKubeClient, fixedCredential, type KubeClient } from "../kube/index.ts";
import { type ApiServer, startApiServer } from "../sim/apiserver.ts";
import { check } from "./check.ts";
import { freshInventories, readCluster } from "./cluster.ts";

let server: ApiServer;
let client: KubeClient;
beforeAll(async () => {
  server = await startApiServer();
  client = createKubeClient({ server: server.url, credentials: fixedCredential({}) });
});
afterAll(async () => {
  client.close();
  await server.stop();
});

const podTemplate = (template: string) => ({
  metadata: { annotations: { "sandbox.cocoonstack.io/template": template } },
  spec: {
    nodeSelector: { "sandbox.cocoonstack.io/runtime": "sandboxd" },
    tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists" }],
    containers: [{ name: "agent", image: template }],
  },
});

describe("a cluster's objects", () => {
  beforeAll(() => {
    const { objects } = server;
    for (const namespace of ["a", "b"]) {
      objects.create("namespaces", { metadata: { name: namespace } });
      objects.create("sandboxes.agents.x-k8s.io", {
        metadata: { name: "one", namespace },
        spec: { podTemplate: podTemplate("rt") },
      });
    }
    objects.create("sandboxwarmpools.extensions.agents.x-k8s.io", {
      metadata: { name: "pool", namespace: "b" },
      spec: { replicas: 1, sandboxTemplateRef: { name: "gone" } },
    });
    objects.create("nodes", {
      metadata: { name: "vk", labels: { "sandbox.cocoonstack.io/runtime": "sandboxd" } },
      spec: { taints: [{ key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" }] },
    });
    // Admission taints a new Node until it is Ready.
    objects.patch("nodes", "vk", {
      spec: {
        taints: [{ key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" }],
      },
    });
    objects.create("nodeinventories.sandbox.cocoonstack.io", {
      metadata: { name: "vk" },
      node: "vk",
      publishedAt: "2026-05-01T12:00:00Z",
      pools: [{ template: "rt", net: "none", size: "small", warm: 0, target: 2 }],
    });
  });

  test("are read from every namespace, or from those that are named", async () => {
    const all = await readCluster(client, []);
    expect(all.unreadable).toEqual([]);
    const names = (read: typeof all) =>
      read.objects.map(({ value }) => `${value.kind} ${(value.metadata as { namespace: string }).namespace}`);
    expect(names(all).sort()).toEqual(["Sandbox a", "Sandbox b", "SandboxWarmPool b"]);
    expect(names(await readCluster(client, ["a"]))).toEqual(["Sandbox a"]);
  });
  test("are judged with Nodes and pools as they are", async () => {
    const { objects, facts, pools } = await readCluster(client, []);
    const { findings } = check({ objects, cluster: facts, pools, complete: true, nowMs: 0 });
    expect(findings.map(({ rule, severity, object, region }) => [rule, severity, object, region])).toEqual([
      ["sandboxd/pool-cold", "warning", "Sandbox a/one", undefined],
      ["sandboxd/pool-cold", "warning", "Sandbox b/one", undefined],
      ["pool/template-missing", "error", "SandboxWarmPool b/pool", undefined],
    ]);
  });
  test("what this identity may not list is named, and is not the same as none", async () => {
    server.control.fault({ match: "/sandboxes", effect: "status", status: 403 } as never);
    const { unreadable, objects } = await readCluster(client, ["a"]);
    server.control.clearFaults();
    expect(
      unreadable.map(({ file, reason }) => [file, reason.includes("cannot list sandboxes in namespace a")]),
    ).toEqual([["cluster", true]]);
    expect(objects).toEqual([]);
  });
  test("a kind whose CRD is not installed is skipped", async () => {
    server.control.unserve("sandboxclaims.extensions.agents.x-k8s.io");
    const { skipped, unreadable } = await readCluster(client, []);
    expect(unreadable).toEqual([]);
    expect(skipped.map(({ what }) => what)).toEqual([
      "sandboxclaims.extensions.agents.x-k8s.io is not served; its CRD is not installed",
    ]);
  });
  test("the older inventory group is read where the newer one is not served", async () => {
    server.control.unserve("nodeinventories.sandbox.cocoonstack.io");
    const { pools } = await readCluster(client, []);
    // Nothing is published there: nothing is known, which is not "no pool".
    expect(pools).toBeUndefined();
  });
});

test("an inventory that is more than 90 s behind the newest does not count", () => {
  const one = (node: string, publishedAt: string | undefined) => ({
    node,
    publishedAt,
    pools: [{ template: node, warm: 1, target: 1 }],
  });
  const { nodes, pools } = freshInventories([
    one("old", "2026-05-01T11:58:29Z"),
    one("late", "2026-05-01T11:58:30Z"),
    one("new", "2026-05-01T12:00:00Z"),
    one("undated", undefined),
    { pools: "garbage" },
  ]);
  expect(nodes).toBe(3);
  expect(pools.map(({ where, net }) => [where, net])).toEqual([
    ["late", ""],
    ["new", ""],
    ["undated", ""],
  ]);
});

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createKubeClient, fixedCredential, type KubeClient } from "../kube/index.ts";
import { openLedger } from "../ledger/index.ts";
import { type ApiServer, startApiServer } from "../sim/apiserver.ts";
import { explain } from "./explain.ts";
import { gather } from "./gather.ts";

let server: ApiServer;
let client: KubeClient;
let dir = "";
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vk-explain-"));
  server = await startApiServer();
  client = createKubeClient({ server: server.url, credentials: fixedCredential({}) });
  const { objects } = server;
  objects.create("namespaces", { metadata: { name: "a" } });
  const sandbox = objects.create("sandboxes.agents.x-k8s.io", {
    metadata: { name: "one", namespace: "a", annotations: { "agents.x-k8s.io/pod-name": "one-pod" } },
    spec: { podTemplate: { spec: { containers: [{ name: "agent", image: "rt" }] } } },
  });
  const pod = objects.create("pods", {
    metadata: {
      name: "one-pod",
      namespace: "a",
      annotations: { "sandbox.cocoonstack.io/template": "rt" },
      ownerReferences: [
        {
          apiVersion: "agents.x-k8s.io/v1beta1",
          kind: "Sandbox",
          name: "one",
          uid: String(sandbox.metadata.uid),
          controller: true,
        },
      ],
    },
    spec: { nodeName: "vk-1", containers: [{ name: "agent", image: "rt" }] },
  });
  objects.patch("pods/status", "a/one-pod", {
    status: {
      phase: "Pending",
      reason: "ProviderFailed",
      message: "no warm sandbox of template rt on this node: empty",
    },
  });
  objects.create("nodes", {
    metadata: { name: "vk-1" },
    spec: { taints: [{ key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" }] },
    status: { conditions: [{ type: "Ready", status: "True" }] },
  });
  objects.create("leases.coordination.k8s.io", {
    metadata: { name: "vk-1", namespace: "kube-node-lease" },
    spec: { renewTime: "2026-05-01T11:59:58.000000Z" },
  });
  objects.create("nodeinventories.sandbox.cocoonstack.io", {
    metadata: { name: "vk-1" },
    node: "vk-1",
    publishedAt: "2026-05-01T12:00:00Z",
    pools: [{ template: "rt", net: "none", size: "small", warm: 0, target: 2 }],
    entries: [
      {
        name: "a/one-pod",
        id: "sb_old",
        phase: "Hibernated",
        claimRef: "a/one-pod",
        deadline: "2026-05-02T12:00:00Z",
      },
      { name: "sb_2", id: "sb_2", phase: "Running" },
    ],
  });
  const about = (uid: string) => ({ kind: "Pod", namespace: "a", name: "one-pod", uid });
  for (const [name, uid] of [
    ["one-pod.1", String(pod.metadata.uid)],
    ["one-pod.2", "an-earlier-pod"],
  ])
    objects.create("events", {
      metadata: { name, namespace: "a" },
      involvedObject: about(uid ?? ""),
      type: "Warning",
      reason: "ProviderCreateFailed",
      message: "refused",
      count: 3,
      lastTimestamp: "2026-05-01T11:59:50Z",
    });
});
afterAll(async () => {
  client.close();
  await server.stop();
  rmSync(dir, { recursive: true, force: true });
});

const nowMs = Date.parse("2026-05-01T12:00:00Z");
const of = async (name: string, sandbox: boolean, statePath?: string) => {
  const gathered = await gather({ client, subject: { namespace: "a", name, sandbox }, nowMs, statePath });
  if (!gathered.ok) throw new Error(gathered.why);
  return gathered.evidence;
};

describe("what is read of a cluster", () => {
  test("the Pod with its Sandbox, Node, lease, pools and its own Events only", async () => {
    const evidence = await of("one-pod", false);
    expect(evidence.unseen).toEqual([]);
    expect(evidence.sandbox?.metadata.name).toBe("one");
    expect(evidence.events.map(({ count }) => count)).toEqual([3]);
    expect(evidence.nodes?.map(({ name }) => name)).toEqual(["vk-1"]);
    expect(evidence.heartbeatMs).toBe(nowMs - 2_000);
    expect(evidence.pools?.map(({ where, warm }) => [where, warm])).toEqual([["vk-1", 0]]);
    expect(evidence.entries.map(({ id, node }) => [id, node])).toEqual([["sb_old", "vk-1"]]);
    expect(explain(evidence).reason).toBe("refused");
  });
  test("a Sandbox's Pod is found by the name that the controller wrote", async () => {
    const evidence = await of("one", true);
    expect([evidence.key, evidence.pod?.metadata.name]).toEqual(["a/one-pod", "one-pod"]);
  });
  test("what is not there is no failure", async () => {
    expect((await of("gone", false)).pod).toBeUndefined();
    expect((await of("gone", true)).sandbox).toBeUndefined();
  });
  test("what may not be seen is named; the reason is found without it", async () => {
    server.control.fault({
      match: "GET /api/v1/nodes",
      effect: "status",
      status: 403,
      body: { kind: "Status", code: 403, reason: "Forbidden", message: "nodes is forbidden" },
    });
    server.control.fault({
      match: "nodeinventories",
      effect: "status",
      status: 403,
      body: { kind: "Status", code: 403, reason: "Forbidden", message: "no" },
    });
    const evidence = await of("one-pod", false);
    server.control.clearFaults();
    expect(evidence.unseen).toEqual([
      "Nodes: 403 Forbidden: nodes is forbidden",
      "NodeInventories: 403 Forbidden: no",
    ]);
    expect(evidence.nodes).toBeUndefined();
    expect(explain(evidence).reason).toBe("refused");
  });
  test("a Pod that may not be seen is a failure, not an absent Pod", async () => {
    server.control.fault({
      match: "GET /api/v1/namespaces/a/pods/",
      effect: "status",
      status: 403,
      body: { kind: "Status", code: 403, reason: "Forbidden", message: "no" },
    });
    const gathered = await gather({
      client,
      subject: { namespace: "a", name: "one-pod", sandbox: false },
      nowMs,
    });
    server.control.clearFaults();
    expect(gathered).toEqual({ ok: false, why: "Pod a/one-pod: 403 Forbidden: no" });
  });
});

describe("what is read of the provider's own host", () => {
  test("decisions and the claim, without its token", async () => {
    const statePath = join(dir, "claims.json");
    const row = {
      id: "sb_1",
      token: "secret-of-tests",
      address: "10.0.0.7:1",
      podUID: "u",
      authority: "s",
      claimedAt: "2026-05-01T11:00:00Z",
      deadline: "2026-05-02T11:00:00Z",
    };
    writeFileSync(statePath, JSON.stringify({ claims: { "a/one-pod": row } }), { mode: 0o600 });
    const { host } = await of("one-pod", false, statePath);
    expect(host?.claim).toEqual({
      id: "sb_1",
      state: "held",
      deadlineMs: Date.parse(row.deadline),
      podUID: "u",
    });
    expect(JSON.stringify(host)).not.toContain("secret-of-tests");
  });
  test("nothing when the provider does not run here", async () => {
    const evidence = await of("one-pod", false, join(dir, "elsewhere", "claims.json"));
    expect([evidence.host, evidence.unseen]).toEqual([undefined, []]);
  });
  test("the ledger's decisions about the Pod, and what it says itself is not there", async () => {
    const ledger = openLedger({ path: join(dir, "audit.db"), nowMs: () => nowMs });
    for (const key of ["a/one-pod", "b/one-pod"])
      ledger.record(
        { kind: "refused", key, id: "", podUID: "u", reason: "no warm", cause: "no_warm_capacity" },
        nowMs - 5_000,
      );
    await ledger.flush();
    await ledger.close();
    const { host } = await of("one-pod", false, join(dir, "claims.json"));
    expect(host?.decisions).toEqual([
      { atMs: nowMs - 5_000, kind: "refused", id: "", reason: "no warm", cause: "no_warm_capacity" },
    ]);
  });
});

/**
 * The provider as `system:node:NAME` in `system:nodes`, under the Node authorizer and NodeRestriction: what works with
 * manifests/node-identity.yaml, what is refused and said once, and how far a stolen identity reaches.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseAllDocuments } from "yaml";
import { Api, ApiError, type KubeObject } from "../controlplane/api.ts";
import { conditionOf, controlPlane, World } from "./world.ts";

const manifest = join(import.meta.dir, "../../manifests/node-identity.yaml");

/** A client certificate for `system:node:NAME`, and its kubeconfig. */
const identity = (name: string) =>
  controlPlane().identity(name, { user: `system:node:${name}`, groups: ["system:nodes"] });

/** Applies the manifest for one node and returns how to take it away again. */
async function bind(name: string): Promise<() => Promise<void>> {
  const { api } = controlPlane();
  const text = readFileSync(manifest, "utf8").replaceAll("vk-sandboxd-node1", name);
  const paths: string[] = [];
  for (const document of parseAllDocuments(text)) {
    const object = document.toJS() as KubeObject;
    const path = await api.pathOf(object);
    await api.apply(path, object);
    // The role that all nodes share stays for the others.
    if (object.metadata.name.includes(name)) paths.push(path);
  }
  return async () => {
    for (const path of paths) await api.delete(path);
  };
}

/** What the API server answered a request of ours: the code, 0 for success. */
async function refusal(asked: Promise<unknown>): Promise<number> {
  try {
    await asked;
    return 0;
  } catch (error) {
    if (error instanceof ApiError) return error.code;
    throw error;
  }
}

const said = (world: World, words: RegExp) => world.daemon.log.filter((line) => words.test(line));

describe("with manifests/node-identity.yaml", () => {
  let world: World;
  let unbind = async () => {};

  beforeAll(async () => {
    world = await World.create({
      identity,
      flags: ["--publish-inventory", "--publish-interval=1s"],
      idle: true,
    });
    unbind = await bind(world.name);
    await world.startDaemon();
  });

  afterAll(async () => {
    await world[Symbol.asyncDispose]();
    await unbind();
  });

  test("the Node is registered, Ready and tainted; of its labels kubernetes.io/role alone is left out, and said once", async () => {
    const node = await world.nodeReady();
    expect(conditionOf(node, "Ready")?.status).toBe("True");
    expect(node.spec.taints?.map((taint) => taint.key)).toContain("virtual-kubelet.io/provider");
    expect(node.metadata.labels).toMatchObject({
      type: "virtual-kubelet",
      "kubernetes.io/hostname": world.name,
      "sandbox.cocoonstack.io/runtime": "sandboxd",
      "node.kubernetes.io/exclude-from-external-load-balancers": "true",
    });
    expect(node.metadata.labels).not.toHaveProperty("kubernetes.io/role");
    const lines = said(world, /may not set some labels/);
    expect(lines.length).toBe(1);
    expect(lines[0]).toContain('"labels":"kubernetes.io/role"');
  });

  test("a Pod runs, its replacement has the same VM, and the end of its Sandbox releases it", async () => {
    await world.createSandbox("a");
    const before = await world.running("a");
    await world.api.delete(world.podPath("a"));
    await world.running("a", before);
    expect(world.fates("a")).toEqual(["lives"]);
    await world.api.delete(world.sandboxPath("a"));
    await world.released(world.granted("a")[0]?.id ?? "");
    await world.gone(world.podPath("a"));
  });

  test("events reach the Pod, and a status that someone overwrote is put back", async () => {
    await world.createPod("b");
    const pod = await world.running("b");
    await world.eventually(
      "the claim is an Event of the Pod",
      () => world.events("b"),
      (events) => events.some((event) => event.reason === "ProviderCreateSuccess"),
    );
    await world.api.request(
      "PATCH",
      `${world.podPath("b")}/status`,
      { status: { conditions: [{ type: "Ready", status: "False" }] } },
      "application/strategic-merge-patch+json",
    );
    await world.eventually(
      "Pod b is Ready again",
      () => world.pod("b"),
      (now) =>
        now?.metadata.resourceVersion !== pod.metadata.resourceVersion &&
        conditionOf(now, "Ready")?.status === "True",
    );
  });

  test("the VM of a bare Pod that ended while the provider was down is released", async () => {
    await world.createPod("c");
    await world.running("c");
    await world.daemon.kill();
    await world.api.delete(world.podPath("c"), { gracePeriodSeconds: 0 });
    await world.startDaemon();
    await world.released(world.granted("c")[0]?.id ?? "");
  });

  test("the inventory is published, under this node's name only", async () => {
    const inventories = "/apis/sandbox.cocoonstack.io/v1beta1/nodeinventories";
    await world.eventually("the inventory is there", () => world.api.find(`${inventories}/${world.name}`));
    const api = new Api(controlPlane().credentials(world.name));
    const forged = {
      apiVersion: "sandbox.cocoonstack.io/v1beta1",
      kind: "NodeInventory",
      metadata: { name: "another" },
      node: "another",
    };
    expect(await refusal(api.apply(`${inventories}/another`, forged))).toBe(403);
    await world.api.delete(`${inventories}/${world.name}`);
    world.forgetRequests();
  });

  test("a Node that someone deletes is registered again, with its taint", async () => {
    const uid = (await world.node())?.metadata.uid;
    await world.api.delete(world.nodePath);
    await world.eventually(
      "the Node is there again, as a new object",
      () => world.node(),
      (node) => node !== undefined && node.metadata.uid !== uid,
    );
    const node = await world.nodeReady();
    expect(node.spec.taints?.map((taint) => taint.key)).toContain("virtual-kubelet.io/provider");
    // Known by now, so not tried and not said again; this process is the second one.
    expect(said(world, /may not set some labels/).length).toBeLessThanOrEqual(2);
  });

  test("the capacity taint is refused by NodeRestriction; that is said once, and the node goes on serving", async () => {
    world.sandboxd.control.set({ draining: true });
    await world.eventually(
      "the refusal is said",
      () => said(world, /may not change its Node's taints/).length > 0,
    );
    world.sandboxd.control.set({ draining: false });
    await world.createPod("d");
    await world.running("d");
    expect(said(world, /may not change its Node's taints/).length).toBe(1);
    expect((await world.node())?.spec.taints?.map((taint) => taint.key)).not.toContain(
      "sandbox.cocoonstack.io/capacity",
    );
  });

  test("whoever has this identity reaches no other node, its Pods or lease, and no secret", async () => {
    const other = `${world.name}-other`;
    await world.api.create("/api/v1/nodes", { metadata: { name: other } });
    const lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    await world.api.create(lease, { metadata: { name: other } });
    const pod = await world.createPod("elsewhere", { spec: { nodeName: other, nodeSelector: {} } });
    await world.api.create(`${world.path}/secrets`, { metadata: { name: "s" }, stringData: { a: "b" } });
    const api = new Api(controlPlane().credentials(world.name));
    const label = { metadata: { labels: { x: "y" } } };
    try {
      const refusals = {
        "the other Node": refusal(api.patch(`/api/v1/nodes/${other}`, label)),
        "its status": refusal(api.patch(`/api/v1/nodes/${other}/status`, { status: {} })),
        "its lease": refusal(api.patch(`${lease}/${other}`, label)),
        "a lease of the control plane": refusal(
          api.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", {
            metadata: { name: "l" },
          }),
        ),
        "its Pod's status": refusal(
          api.patch(`${world.podPath("elsewhere")}/status`, {
            metadata: { uid: pod.metadata.uid },
            status: { phase: "Failed" },
          }),
        ),
        "its Pod": refusal(api.request("DELETE", world.podPath("elsewhere"))),
        "all Pods": refusal(api.list("/api/v1/pods")),
        "a secret": refusal(api.get(`${world.path}/secrets/s`)),
        "all Sandboxes": refusal(api.list(world.sandboxPath())),
        "an end of a Sandbox": refusal(api.request("DELETE", world.sandboxPath("x"))),
        "a Pod of its own making": refusal(
          api.create(`${world.path}/pods`, { ...world.podTemplate(), metadata: { name: "made" } }),
        ),
      };
      for (const [what, code] of Object.entries(refusals)) expect([what, await code]).toEqual([what, 403]);
      // What the manifest grants beyond the Node authorizer: to read single Pods and Sandboxes, anywhere.
      expect(await refusal(api.get(world.podPath("elsewhere")))).toBe(0);
    } finally {
      await world.api.delete(`/api/v1/nodes/${other}`);
      await world.api.delete(`${lease}/${other}`);
      world.forgetRequests();
    }
  });
});

test("without the manifest Pods are served, and a VM whose owner cannot be read is preserved", async () => {
  await using world = await World.create({ identity });
  await world.createSandbox("a");
  await world.running("a");
  await world.api.delete(world.sandboxPath("a"));
  await world.gone(world.podPath("a"));
  await world.eventually("the reason is said", () => said(world, /preserved.*403 Forbidden/).length > 0);
  expect(world.fates("a")).toEqual(["lives"]);
  world.forgetRequests();
});

test("an identity of another node's name is turned away, and never registers a Node", async () => {
  await using world = await World.create({ identity, idle: true });
  const name = `${world.name}-other`;
  const other = world.daemonOf({ nodeName: name });
  await other.start();
  await world.eventually("the refusal is said", () => other.log.some((line) => /403|Forbidden/.test(line)));
  expect(await world.api.find(`/api/v1/nodes/${name}`)).toBeUndefined();
  world.forgetRequests();
});

/** Who decides about a VM: owners of every kind, suspended ones, ones whose Pod went elsewhere, and a namespace's end. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { KubeObject } from "../controlplane/api.ts";
import { startApiProxy } from "./apiproxy.ts";
import { annotation, controlPlane, type Pod, World } from "./world.ts";

const claimIdOf = (pod: Pod | undefined) => pod?.metadata.annotations?.[annotation("claim-id")];
const idOf = (world: World, name: string) => world.granted(name)[0]?.id ?? "";
const vmOf = (world: World, name: string) => world.granted(name)[0];

/** Kinds whose plurals need each of the rules, and one whose plural no rule gives. */
const kinds = [
  { kind: "SandboxPolicy", plural: "sandboxpolicies" },
  { kind: "SandboxClass", plural: "sandboxclasses" },
  { kind: "Gateway", plural: "gateways" },
  { kind: "Sheep", plural: "flock" },
  { kind: "Cluster", plural: "clusters", cluster: true },
];
const group = `owners-${Math.random().toString(36).slice(2, 8)}.example`;
const vanishing = `vanishing-${Math.random().toString(36).slice(2, 8)}.example`;
const vanishingKind = { kind: "Sandbox", plural: "sandboxes" };
const role = `vk-sandbox-test-${group.slice(0, group.indexOf("."))}`;

const definitionVersions = [
  {
    name: "v1",
    served: true,
    storage: true,
    schema: { openAPIV3Schema: { type: "object", "x-kubernetes-preserve-unknown-fields": true } },
  },
];

function definition(
  ofGroup: string,
  { kind, plural, cluster }: { kind: string; plural: string; cluster?: boolean },
): KubeObject {
  return {
    apiVersion: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    metadata: { name: `${plural}.${ofGroup}` },
    spec: {
      group: ofGroup,
      names: { kind, plural, singular: kind.toLowerCase() },
      scope: cluster ? "Cluster" : "Namespaced",
      versions: definitionVersions,
    },
  };
}

const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const rbac = "/apis/rbac.authorization.k8s.io/v1";

async function define(crd: KubeObject): Promise<void> {
  const { api } = controlPlane();
  await api.create(crds, crd);
  const { group: g, names } = crd.spec as { group: string; names: { plural: string } };
  for (let tries = 0; tries < 600; tries++) {
    const list = await api.find<{ resources: { name: string }[] }>(`/apis/${g}/v1`);
    if (list?.resources.some((r) => r.name === names.plural)) return;
    await Bun.sleep(50);
  }
  throw new Error(`${crd.metadata.name} is not served`);
}

beforeAll(async () => {
  const { api } = controlPlane();
  // Another kind that owns sandbox Pods needs its own get rule, as manifests/rbac.yaml says.
  await api.create(`${rbac}/clusterroles`, {
    metadata: { name: role },
    rules: [{ apiGroups: [group, vanishing], resources: ["*"], verbs: ["get"] }],
  });
  await api.create(`${rbac}/clusterrolebindings`, {
    metadata: { name: role },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: role },
    subjects: [{ kind: "ServiceAccount", name: "vk-sandbox", namespace: "vk-sandbox" }],
  });
  for (const kind of kinds) await define(definition(group, kind));
  await define(definition(vanishing, vanishingKind));
}, 120_000);

afterAll(async () => {
  const { api } = controlPlane();
  for (const { plural } of kinds) await api.delete(`${crds}/${plural}.${group}`);
  await api.delete(`${crds}/sandboxes.${vanishing}`);
  await api.delete(`${rbac}/clusterrolebindings/${role}`);
  await api.delete(`${rbac}/clusterroles/${role}`);
});

describe("an owner of any kind is asked by the name that the API serves it under", () => {
  for (const { kind, plural, cluster } of kinds)
    test.concurrent(`${kind}, served as ${plural}: alive it keeps the VM, gone it releases it`, async () => {
      await using world = await World.create();
      const name = `${world.name}-a`;
      const collection = cluster
        ? `/apis/${group}/v1/${plural}`
        : `/apis/${group}/v1/namespaces/${world.name}/${plural}`;
      const owner = await world.api.create(collection, {
        apiVersion: `${group}/v1`,
        kind,
        metadata: { name },
      });
      const first = await world.createPod("a", { owner });
      await world.running("a");
      await world.api.delete(world.podPath("a"));
      await world.gone(world.podPath("a"), first.metadata.uid);
      await world.eventually("it was kept, on the owner's own word", () =>
        world.daemon.log.some(
          (line) => line.includes('"preserved"') && line.includes(`${kind} ${name} lives`),
        ),
      );
      await world.createPod("a", { owner });
      expect(claimIdOf(await world.running("a"))).toBe(idOf(world, "a"));

      await world.api.delete(`${collection}/${name}`);
      await world.gone(world.podPath("a"));
      await world.released(idOf(world, "a"));
      expect(world.granted("a")).toHaveLength(1);
    }, 120_000);
});

test.concurrent("without discovery the rules of English find the owner; where they do not, the VM is kept until it answers", async () => {
  await using proxy = await startApiProxy();
  await using world = await World.create({ identity: () => proxy.kubeconfig });
  const ruled = kinds[0];
  const unruly = kinds[3];
  if (ruled === undefined || unruly === undefined) throw new Error("no kinds");
  const id = proxy.faults.add({
    match: `^GET /apis/${group}/v1$`,
    effect: "status",
    status: 500,
    body: "",
    count: 0,
  });
  for (const [name, { kind, plural }] of [
    ["ruled", ruled],
    ["unruly", unruly],
  ] as const) {
    const owner = await world.api.create(`/apis/${group}/v1/namespaces/${world.name}/${plural}`, {
      apiVersion: `${group}/v1`,
      kind,
      metadata: { name },
    });
    await world.createPod(name, { owner });
    await world.running(name);
    await world.api.delete(`/apis/${group}/v1/namespaces/${world.name}/${plural}/${name}`);
    await world.api.delete(world.podPath(name));
    await world.gone(world.podPath(name));
  }
  await world.released(idOf(world, "ruled"));
  expect(world.fates("unruly")).toEqual(["lives"]);
  expect(proxy.faults.list()[0]?.hits).toBeGreaterThan(0);
  proxy.faults.clear(id);
  await world.released(idOf(world, "unruly"));
}, 120_000);

test.concurrent("an owner whose kind is not served any more keeps its VM: nobody said that it is gone", async () => {
  await using world = await World.create({ noController: true });
  const collection = `/apis/${vanishing}/v1/namespaces/${world.name}/sandboxes`;
  const owner = await world.api.create(collection, {
    apiVersion: `${vanishing}/v1`,
    kind: "Sandbox",
    metadata: { name: "a" },
  });
  await world.createPod("a", { owner });
  await world.running("a");
  const served = async (isServed: boolean) => {
    // Deleting the definition would delete the owner, too, and rightly release its VM.
    const versions = definitionVersions.map((version) => ({ ...version, served: isServed }));
    await world.api.patch(`${crds}/sandboxes.${vanishing}`, { spec: { versions } });
    await world.eventually(
      `the group is ${isServed ? "" : "not "}served`,
      () => world.api.find(`/apis/${vanishing}/v1`),
      (list) => (list !== undefined) === isServed,
    );
  };
  await served(false);
  await world.api.delete(world.podPath("a"));
  await world.gone(world.podPath("a"));
  const answers = () =>
    world.requests().filter((r) => r.requestURI.includes(`/apis/${vanishing}/v1/namespaces/`));
  await world.eventually("it was asked about twice", () => answers().length >= 2);
  expect(answers().map((r) => r.responseStatus?.code)).toEqual(answers().map(() => 404));
  expect(world.fates("a")).toEqual(["lives"]);

  await served(true);
  expect(await world.api.find(`${collection}/a`)).toBeDefined();
  await world.api.delete(`${collection}/a`);
  await world.released(idOf(world, "a"));
}, 180_000);

test.concurrent("a suspended Sandbox hibernates its VM; the Pod it resumes with wakes that VM and runs in it", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  const before = await world.running("a");
  const mode = (operatingMode: string) =>
    world.api.patch(world.sandboxPath("a"), { spec: { operatingMode } });
  await mode("Suspended");
  await world.gone(world.podPath("a"));
  await world.eventually("the VM sleeps", () => vmOf(world, "a")?.hibernated === true);

  // A restart forgets neither the VM nor that it sleeps.
  await world.daemon.kill();
  await world.startDaemon();
  await mode("Running");
  const after = await world.running("a", before);
  expect(claimIdOf(after)).toBe(claimIdOf(before) ?? "");
  expect(vmOf(world, "a")).toMatchObject({ hibernated: false, wakes: 1 });
  expect(world.fates("a")).toEqual(["lives"]);

  // Its end is its end, asleep or not.
  await mode("Suspended");
  await world.gone(world.podPath("a"));
  await world.eventually("the VM sleeps again", () => vmOf(world, "a")?.hibernated === true);
  await world.api.delete(world.sandboxPath("a"));
  await world.released(idOf(world, "a"));
}, 180_000);

test.concurrent("a VM that cannot hibernate keeps running while its Sandbox is suspended, and that is said once", async () => {
  await using world = await World.create();
  world.sandboxd.control.setPool({ template: "egress/rt:1", net: "egress", warm: 5 });
  const annotations = { [annotation("template")]: "egress/rt:1", [annotation("net")]: "egress" };
  await world.createSandbox("a", { annotations });
  const before = await world.running("a");
  await world.api.patch(world.sandboxPath("a"), { spec: { operatingMode: "Suspended" } });
  await world.gone(world.podPath("a"));
  const said = () => world.daemon.log.filter((line) => line.includes('"hibernate_refused"'));
  await world.eventually("it is said", () => said().length > 0);
  expect(said()[0]).toContain(idOf(world, "a"));
  expect(vmOf(world, "a")?.hibernated).toBe(false);
  const reads = () =>
    world.requests().filter((r) => r.verb === "get" && r.requestURI.includes("/sandboxes/a")).length;
  const asked = reads();
  await world.eventually("the owner was asked again", () => reads() > asked);
  expect(world.sandboxd.control.counts()["POST /v1/sandboxes/{id}/hibernate"]).toBe(1);
  expect(said()).toHaveLength(1);
  await world.api.patch(world.sandboxPath("a"), { spec: { operatingMode: "Running" } });
  expect(claimIdOf(await world.running("a", before))).toBe(idOf(world, "a"));
  expect(world.fates("a")).toEqual(["lives"]);
}, 120_000);

/** A Sandbox whose Pod runs on the second Node while its first VM lives on the first; which of them is which is returned. */
async function superseded(flags: string[]) {
  const world = await World.create({ flags: [...flags, "--orphan-scan-interval=1s"] });
  const nodeSelector = { [annotation("runtime")]: "sandboxd", "e2e.example/world": world.name };
  const label = (node: string) =>
    world.api.patch(`/api/v1/nodes/${node}`, { metadata: { labels: { "e2e.example/world": world.name } } });
  await label(world.name);
  await world.createSandbox("a", { spec: { nodeSelector } });
  const before = await world.running("a");
  const other = await world.addNode();
  await label(other.name);
  await world.api.patch(world.nodePath, { spec: { unschedulable: true } });
  await world.api.delete(world.podPath("a"));
  const after = await world.running("a", before);
  expect(after.spec.nodeName).toBe(other.name);
  const [second] = other.sandboxd.control.history();
  expect(claimIdOf(after)).toBe(second?.id ?? "");
  return { world, other, first: idOf(world, "a"), second: second?.id ?? "" };
}

const supersededLines = (world: World) =>
  world.daemon.log.filter((line) => line.includes('"kind":"superseded"'));

test.concurrent("a VM whose Sandbox runs on another Node now is reported with both claim ids, and kept", async () => {
  const { world, other, first, second } = await superseded([]);
  await using _ = world;
  await world.eventually("it is reported", () => supersededLines(world).length > 0);
  expect(supersededLines(world)[0]).toContain(first);
  expect(supersededLines(world)[0]).toContain(second);
  expect(supersededLines(world)[0]).toContain(other.name);
  const reads = () =>
    world.requests().filter((r) => r.verb === "get" && r.requestURI.includes("/pods/a")).length;
  const asked = reads();
  await world.eventually("it was looked at again", () => reads() > asked);
  expect(supersededLines(world)).toHaveLength(1);
  expect(world.fates("a")).toEqual(["lives"]);

  // A Pod that comes back to the first Node has its first VM again.
  await world.api.patch(world.nodePath, { spec: { unschedulable: null } });
  await world.api.patch(`/api/v1/nodes/${other.name}`, { spec: { unschedulable: true } });
  await world.api.delete(world.podPath("a"));
  const back = await world.eventually(
    "the Pod is back",
    () => world.pod("a"),
    (pod) => pod?.spec.nodeName === world.name && pod.status.phase === "Running",
  );
  expect(claimIdOf(back)).toBe(first);
  // At its end both are released, each by its own daemon.
  await world.api.delete(world.sandboxPath("a"));
  await world.released(first);
  await world.eventually("the other one, too", () => other.sandboxd.control.index().length === 0);
}, 180_000);

test.concurrent("a superseded VM is released where that was asked for, and the one that serves is not", async () => {
  const { world, other, first } = await superseded(["--release-superseded-after=1s"]);
  await using _ = world;
  await world.released(first);
  expect(supersededLines(world)).toHaveLength(1);
  expect(other.sandboxd.control.index()).toHaveLength(1);
  expect((await world.pod("a"))?.status.phase).toBe("Running");
}, 180_000);

test.concurrent("a namespace that is deleted while the provider is down has every VM released at its start, and goes away", async () => {
  await using world = await World.create();
  for (const name of ["a", "b"]) await world.createSandbox(name);
  // Held by a finalizer: its Pod goes first, and the owner is there, being deleted.
  await world.api.patch(world.sandboxPath("b"), { metadata: { finalizers: ["test.example/hold"] } });
  await world.createPod("bare");
  await world.createPod("forced");
  for (const name of ["a", "b", "bare", "forced"]) await world.running(name);
  await world.daemon.kill();
  await world.api.delete(world.path);
  await world.eventually("the Pods are being deleted", async () => {
    const pods = await world.pods();
    return pods.every((pod) => pod.metadata.deletionTimestamp !== undefined);
  });
  await world.api.delete(world.podPath("forced"), { gracePeriodSeconds: 0 });
  expect(world.living()).toHaveLength(4);
  await world.daemon.start();
  await world.eventually("no VM lives", () => world.living().length === 0);
  await world.eventually("no Pod is there", async () => (await world.pods()).length === 0);
  await world.api.patch(world.sandboxPath("b"), { metadata: { finalizers: null } });
  await world.eventually(
    "the namespace is gone",
    () => world.api.find(world.path),
    (ns) => ns === undefined,
  );
}, 180_000);

test.concurrent("a namespace that is gone to the last object by the time the provider starts has every VM released", async () => {
  await using world = await World.create();
  await world.createSandbox("owned");
  await world.createPod("bare");
  for (const name of ["owned", "bare"]) await world.running(name);
  await world.daemon.kill();
  await world.stopController();
  await world.api.delete(world.path);
  await world.eventually("the namespace is gone", async () => {
    for (const { metadata } of await world.pods())
      await world.api.delete(world.podPath(metadata.name), { gracePeriodSeconds: 0 });
    return (await world.api.find(world.path)) === undefined;
  });
  expect(world.living()).toHaveLength(2);
  await world.daemon.start();
  await world.eventually("no VM lives", () => world.living().length === 0);
}, 180_000);

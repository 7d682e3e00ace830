/** Capacity that the scheduler can see: two virtual Nodes on the real scheduler, and one of them is full. */
import { expect, test } from "bun:test";
import { annotation, type Node, type SecondNode, World } from "./world.ts";

const label = "e2e.example/world";
const pods = 40;

const capacityTaint = (node: Node | undefined) =>
  node?.spec.taints?.find((taint) => taint.key === "sandbox.cocoonstack.io/capacity");

/** Two Nodes that look alike to the scheduler; what it is given can go to either. */
async function twoNodes(
  flags: string[] = [],
): Promise<{ world: World; other: SecondNode; spec: Record<string, unknown> }> {
  const world = await World.create({ flags, warm: 200 });
  const other = await world.addNode({ warm: 200 });
  for (const node of [world.name, other.name])
    await world.api.patch(`/api/v1/nodes/${node}`, { metadata: { labels: { [label]: world.name } } });
  const nodeSelector = { [annotation("runtime")]: "sandboxd", [label]: world.name };
  return { world, other, spec: { nodeSelector } };
}

test.concurrent(`of ${pods} Pods all run on the other Node while sandboxd is full here, and a replacement still returns to its VM`, async () => {
  const { world, other, spec } = await twoNodes();
  await using _ = world;
  // One Sandbox here, whose VM fills it.
  await world.createSandbox("home", { spec: { nodeSelector: { "kubernetes.io/hostname": world.name } } });
  const home = await world.running("home");
  const { control } = world.sandboxd;
  control.set({ maxClaims: control.index().length });
  // sandboxd tells of its limit only by refusing.
  await world.createPod("refused");
  await world.eventually(
    "the Node says that it is full",
    async () => capacityTaint(await world.node()) !== undefined,
  );
  const names = Array.from({ length: pods }, (_, i) => `s${i}`);
  await Promise.all(names.map((name) => world.createSandbox(name, { spec })));
  await world.eventually(
    "every Pod runs on the other Node",
    () => world.pods(),
    (list) => {
      const rest = list.filter((pod) => names.includes(pod.metadata.name));
      return (
        rest.length === pods &&
        rest.every((pod) => pod.status.phase === "Running" && pod.spec.nodeName === other.name)
      );
    },
    { timeoutMs: 120_000 },
  );
  expect(other.sandboxd.control.index()).toHaveLength(pods);
  expect(world.sandboxd.control.history()).toHaveLength(1);
  expect(capacityTaint(await world.node())).toMatchObject({ value: "exhausted", effect: "PreferNoSchedule" });
  expect(capacityTaint(await world.node(other.name))).toBeUndefined();

  // Soft: the one whose VM is here comes back to it, although there is room elsewhere.
  await world.api.delete(world.podPath("home"));
  const back = await world.running("home", home);
  expect(back.metadata.annotations?.[annotation("claim-id")]).toBe(
    home.metadata.annotations?.[annotation("claim-id")],
  );
  expect(world.fates("home")).toEqual(["lives"]);
}, 240_000);

test.concurrent("a Node that drains is avoided from the next probe on, without any Pod having to be refused", async () => {
  const { world, other, spec } = await twoNodes();
  await using _ = world;
  world.sandboxd.control.set({ draining: true });
  await world.eventually(
    "the Node says that it drains",
    () => world.node(),
    (node) => capacityTaint(node)?.value === "draining",
  );
  const names = Array.from({ length: 10 }, (_, i) => `s${i}`);
  await Promise.all(names.map((name) => world.createSandbox(name, { spec })));
  for (const name of names) expect((await world.running(name)).spec.nodeName).toBe(other.name);
  expect(world.sandboxd.control.counts()["POST /v1/claim"]).toBeUndefined();
  world.sandboxd.control.set({ draining: false });
  await world.eventually(
    "the taint is lifted when there has been room for a while",
    () => world.node(),
    (node) => capacityTaint(node) === undefined,
    { timeoutMs: 120_000 },
  );
}, 240_000);

test.concurrent("the taint stays as long as a Pod is refused, and goes some time after there is room", async () => {
  await using world = await World.create({ warm: 0 });
  await world.createSandbox("a");
  await world.eventually("the Node is full", async () => capacityTaint(await world.node()) !== undefined);
  // More than twice what it takes to be lifted.
  const untilMs = Date.now() + 75_000;
  await world.eventually(
    "the time has passed",
    () => world.node(),
    (node) => {
      if (capacityTaint(node) === undefined) throw new Error("it was lifted while every claim was refused");
      return Date.now() > untilMs;
    },
    { timeoutMs: 90_000 },
  );
  expect(world.daemon.log.filter((line) => line.includes("the Node's capacity changed")).length).toBeLessThan(
    3,
  );
  const [pool] = world.sandboxd.control.pools();
  if (pool === undefined) throw new Error("no pool");
  world.sandboxd.control.setPool({ ...pool.key, warm: 5 });
  await world.running("a");
  await world.eventually("the taint is lifted", async () => capacityTaint(await world.node()) === undefined);
}, 240_000);

test.concurrent("--reschedule-after deletes an owned Pod refused for capacity, and neither a bare one nor one refused for another reason", async () => {
  const { world, other, spec } = await twoNodes(["--reschedule-after=2s"]);
  await using _ = world;
  world.sandboxd.control.set({ maxClaims: 1 });
  await world.createPod("filler");
  await world.running("filler");
  // Bound here before anything is known of the Node being full, and the other Node closed for the moment.
  await world.api.patch(`/api/v1/nodes/${other.name}`, { spec: { unschedulable: true } });
  await world.createSandbox("owned", { spec });
  await world.createPod("bare", { spec });
  await world.createSandbox("faulty", { spec, annotations: { [annotation("template")]: "nobody/has:this" } });
  for (const name of ["owned", "bare", "faulty"])
    await world.eventually(
      `Pod ${name} is refused here`,
      () => world.pod(name),
      (pod) => pod?.status.reason === "ProviderFailed" && pod.spec.nodeName === world.name,
    );
  const uids = new Map<string, string | undefined>();
  for (const name of ["bare", "faulty"]) uids.set(name, (await world.pod(name))?.metadata.uid);
  await world.api.patch(`/api/v1/nodes/${other.name}`, { spec: { unschedulable: null } });
  const owned = await world.eventually(
    "the owned Pod was made elsewhere",
    () => world.pod("owned"),
    (pod) => pod?.status.phase === "Running",
  );
  expect(owned?.spec.nodeName).toBe(other.name);
  expect(world.granted("owned")).toEqual([]);
  for (const [name, uid] of uids) {
    const pod = await world.pod(name);
    expect(pod?.metadata.uid).toBe(uid);
    expect(pod?.spec.nodeName).toBe(world.name);
  }
}, 240_000);

/** The NodeInventory on the real API server, under both of its CRDs. */
import { expect, test } from "bun:test";
import type { KubeObject } from "../controlplane/api.ts";
import { customResourceDefinitions } from "../controlplane/controlplane.ts";
import { controlPlane, template, World } from "./world.ts";

interface Inventory extends KubeObject {
  node: string;
  address: string;
  publishedAt?: string;
  pools: { template: string; warm: number; target: number }[];
  entries: Record<string, string | undefined>[];
}

const newer = "sandbox.cocoonstack.io";
const older = "extensions.agents.x-k8s.io";
const flags = ["--publish-inventory", "--publish-interval=1s"];
const pathOf = (group: string, name: string) => `/apis/${group}/v1beta1/nodeinventories/${name}`;

function inventoryOf(
  world: World,
  group: string,
  what: string,
  fits: (found: Inventory) => boolean,
): Promise<Inventory> {
  const probe = async () => {
    const found = await world.api.find(pathOf(group, world.name));
    if (found === undefined) throw new Error("there is none");
    return found as Inventory;
  };
  return world.eventually(what, probe, fits);
}

test("one NodeInventory says what the node holds, and the Node owns it", async () => {
  await using world = await World.create({ flags });
  await world.createSandbox("a");
  const pod = await world.running("a");
  const inventory = await inventoryOf(
    world,
    newer,
    "the inventory lists the sandbox",
    (i) => i.entries?.length === 1,
  );
  expect(inventory.node).toBe(world.name);
  expect(inventory.address).toBe(new URL(world.sandboxd.url).host);
  expect(inventory.publishedAt).toMatch(/^\d{4}-.*Z$/);
  expect(inventory.pools).toMatchObject([{ template }]);
  const [entry] = inventory.entries;
  expect(entry).toMatchObject({
    name: `${world.name}/a`,
    claimRef: `${world.name}/a`,
    id: pod.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"],
    phase: "Running",
    template,
  });
  expect(entry?.addr).toStartWith(`${pod.status.podIP}:`);
  const node = await world.nodeReady();
  expect(inventory.metadata.ownerReferences).toMatchObject([
    { kind: "Node", name: world.name, uid: node.metadata.uid },
  ]);
});

test("a deleted Node takes its inventory along, and the Node registered again owns the next one", async () => {
  await using world = await World.create({ flags });
  const first = await inventoryOf(world, newer, "the inventory is there", () => true);
  await world.api.delete(`/api/v1/nodes/${world.name}`);
  const second = await inventoryOf(
    world,
    newer,
    "another inventory is there",
    (found) =>
      found.metadata.uid !== first.metadata.uid &&
      found.metadata.ownerReferences?.[0]?.uid !== first.metadata.ownerReferences?.[0]?.uid,
  );
  const node = await world.nodeReady();
  expect(second.metadata.ownerReferences).toMatchObject([{ kind: "Node", uid: node.metadata.uid }]);
});

test("where only the older CRD is served, it is used, without the fields it lacks", async () => {
  const { api } = controlPlane();
  const crd = `/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeinventories.${newer}`;
  await api.delete(crd);
  try {
    await using world = await World.create({ flags });
    await world.createSandbox("a");
    await world.running("a");
    const inventory = await inventoryOf(
      world,
      older,
      "the older inventory lists it",
      (i) => i.entries?.length === 1,
    );
    expect(inventory.node).toBe(world.name);
    expect(inventory).not.toHaveProperty("publishedAt");
    expect(inventory.entries[0]).toMatchObject({ name: `${world.name}/a`, phase: "Running" });
    expect(inventory.entries[0]).not.toHaveProperty("claimedAt");
  } finally {
    for (const file of customResourceDefinitions()) await api.applyFile(file);
  }
});

import { afterEach, expect, test } from "bun:test";
import { fixedCredential } from "../kube/credentials.ts";
import { createKubeClient, systemClock } from "../kube/index.ts";
import type { Listed } from "../provider/types.ts";
import { type ApiServer, startApiServer } from "../sim/apiserver.ts";
import { olderInventoryResource } from "../sim/resources.ts";
import { createInventory, type InventoryOptions, type InventoryPool, UNCHANGED_MS_MAX } from "./inventory.ts";

let server: ApiServer | undefined;
afterEach(async () => {
  await server?.stop();
});

const row = (id: string, claimRef: string, extra: Partial<Listed> = {}): Listed => ({
  id,
  template: "rt",
  net: "none",
  size: "small",
  deadlineMs: 1_800_000_000_000,
  claimedAtMs: 1_700_000_000_000,
  hibernated: false,
  claimRef,
  ...extra,
});
const entriesOf = (object: Record<string, unknown> | undefined) =>
  (object === undefined ? [] : object.entries) as Record<string, unknown>[];
const pool: InventoryPool = { template: "rt", net: "none", size: "small", warm: 3, target: 4 };

async function world(
  resources: Parameters<typeof startApiServer>[0] = {},
  change: Partial<InventoryOptions> = {},
) {
  server = await startApiServer(resources);
  const state = {
    nowMs: 1_750_000_000_000,
    rows: [row("sb_b", "ns/b"), row("sb_a", "")] as Listed[] | undefined,
    pools: [pool] as InventoryPool[] | undefined,
    nodeUid: "uid-1" as string | undefined,
  };
  const api = server;
  const inventory = createInventory({
    kube: createKubeClient({ server: api.url, credentials: fixedCredential() }),
    nodeName: "n1",
    advertiseAddr: "10.0.0.5:7777",
    intervalMs: 30_000,
    list: async () => state.rows,
    pools: async () => state.pools,
    addresses: () => new Map([["sb_b", "10.88.0.2:80"]]),
    nodeUid: () => state.nodeUid,
    clock: { ...systemClock, now: () => state.nowMs },
    ...change,
  });
  const published = (group = "sandbox.cocoonstack.io") =>
    api.objects.get(`nodeinventories.${group}`, "n1") as unknown as Record<string, unknown> | undefined;
  const applies = () => {
    const counts = api.control.counts();
    return Object.entries(counts).reduce(
      (sum, [what, n]) => sum + (what.includes("nodeinventories") ? n : 0),
      0,
    );
  };
  return { state, inventory, published, applies, api };
}

test("one object named after the node says what it holds, owned by the Node", async () => {
  const { inventory, published } = await world();
  expect(await inventory.publish()).toBeUndefined();
  expect(published()).toMatchObject({
    node: "n1",
    address: "10.0.0.5:7777",
    publishedAt: "2025-06-15T15:06:40Z",
    metadata: { ownerReferences: [{ kind: "Node", name: "n1", uid: "uid-1" }] },
    pools: [pool],
    entries: [
      { name: "sb_a", id: "sb_a", phase: "Running", template: "rt" },
      { name: "ns/b", id: "sb_b", claimRef: "ns/b", addr: "10.88.0.2:80", deadline: "2027-01-15T08:00:00Z" },
    ],
  });
});

test("a hibernated sandbox says so, and one kept for ever has no deadline", async () => {
  const { inventory, published, state } = await world();
  state.rows = [row("sb_a", "ns/a", { hibernated: true, deadlineMs: 0 })];
  await inventory.publish();
  const [entry] = entriesOf(published());
  expect(entry).toMatchObject({ phase: "Hibernated" });
  expect(entry).not.toHaveProperty("deadline");
});

for (const what of ["rows", "pools"] as const) {
  test(`a tick whose ${what} cannot be read publishes nothing`, async () => {
    const { inventory, published, state } = await world();
    state[what] = undefined;
    expect(await inventory.publish()).toContain("could not be read");
    expect(published()).toBeUndefined();
  });
}

test("the older group is used where only it is served, without the fields it lacks", async () => {
  const { inventory, published, api } = await world();
  api.control.unserve("nodeinventories.sandbox.cocoonstack.io");
  api.control.serve(olderInventoryResource);
  // As kube-apiserver 1.36 answers an apply with a field that the schema lacks.
  const why = "failed to create typed patch object: .publishedAt: field not declared in schema";
  const body = JSON.stringify({
    kind: "Status",
    apiVersion: "v1",
    status: "Failure",
    code: 500,
    message: why,
  });
  api.control.fault({
    match: "^PATCH /apis/extensions.*nodeinventories",
    effect: "status",
    status: 500,
    body,
  });
  expect(await inventory.publish()).toBeUndefined();
  const object = published("extensions.agents.x-k8s.io");
  expect(object).toMatchObject({ node: "n1", entries: [{ name: "sb_a" }, { name: "ns/b" }] });
  expect(object).not.toHaveProperty("publishedAt");
  expect(entriesOf(object)[0]).not.toHaveProperty("template");
});

test("a CRD that moved to another group is followed after a 404", async () => {
  const { inventory, published, api, state } = await world();
  await inventory.publish();
  api.control.unserve("nodeinventories.sandbox.cocoonstack.io");
  api.control.serve(olderInventoryResource);
  state.rows = [];
  expect(await inventory.publish()).toContain("404");
  expect(await inventory.publish()).toBeUndefined();
  expect(published("extensions.agents.x-k8s.io")).toMatchObject({ node: "n1" });
});

test("without any CRD the tick says which one to install", async () => {
  const { inventory, api } = await world();
  api.control.unserve("nodeinventories.sandbox.cocoonstack.io");
  expect(await inventory.publish()).toContain("install its CRD");
});

test("unchanged content is sent again only before readers would drop the node", async () => {
  const { inventory, state, applies } = await world();
  await inventory.publish();
  const first = applies();
  state.nowMs += 30_000;
  await inventory.publish();
  expect(applies()).toBe(first);
  state.nowMs += 30_000;
  expect(state.nowMs - 1_750_000_000_000).toBeLessThan(90_000);
  await inventory.publish();
  expect(applies()).toBe(first + 1);
  state.pools = [{ ...pool, warm: 2 }];
  state.nowMs += 1_000;
  await inventory.publish();
  expect(applies()).toBe(first + 2);
  expect(UNCHANGED_MS_MAX).toBeLessThan(90_000);
});

test("once the Node was seen and is gone nothing is published, and a new Node owns the next object", async () => {
  const { inventory, state, published } = await world();
  await inventory.publish();
  state.nodeUid = undefined;
  expect(await inventory.publish()).toContain("Node is gone");
  state.nodeUid = "uid-2";
  expect(await inventory.publish()).toBeUndefined();
  expect(published()).toMatchObject({ metadata: { ownerReferences: [{ uid: "uid-2" }] } });
});

test("the first publish may come before the Node, without an owner", async () => {
  const { inventory, state, published } = await world();
  state.nodeUid = undefined;
  expect(await inventory.publish()).toBeUndefined();
  expect(published()?.metadata).not.toHaveProperty("ownerReferences");
});

test("2,000 entries fit into one object of less than a third of etcd's bound", async () => {
  let bytes = 0;
  const { inventory, state } = await world({}, { onPublished: (n) => (bytes = n) });
  state.rows = Array.from({ length: 2000 }, (_, at) =>
    row(`sb_${String(at).padStart(16, "0")}`, `namespace/agent-${at}`),
  );
  expect(await inventory.publish()).toBeUndefined();
  expect(bytes).toBeGreaterThan(0);
  expect(bytes).toBeLessThan(512 * 1024);
});

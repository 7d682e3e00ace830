/** Live objects, and what else of a cluster the check can use. Only reads. */
import * as v from "valibot";
import { apiPath, describeFailure, type KubeClient, type KubeFailure } from "../kube/index.ts";
import { coreGroup, extensionsGroup, servedVersions } from "./contract.ts";
import { isMap, listOf, mapOf, textOf } from "./shape.ts";
import type { ClusterFacts, NodeFact, PoolFact, Pools, Skipped, SourceObject, Unreadable } from "./types.ts";

/** Objects of one page of a list. */
const pageSize = 500;
/** Objects of one kind that are read. */
export const objectsMax = 100_000;
/** A node whose inventory is this much older than the newest is taken for gone, as all readers do. */
export const inventoryAgeMsMax = 90_000;

export interface ClusterRead {
  objects: SourceObject[];
  facts: ClusterFacts;
  pools?: Pools;
  skipped: Skipped[];
  unreadable: Unreadable[];
}

interface Kind {
  kind: string;
  group: string;
  plural: string;
}

const kinds: readonly Kind[] = [
  { kind: "SandboxTemplate", group: extensionsGroup, plural: "sandboxtemplates" },
  { kind: "SandboxWarmPool", group: extensionsGroup, plural: "sandboxwarmpools" },
  { kind: "SandboxClaim", group: extensionsGroup, plural: "sandboxclaims" },
  { kind: "Sandbox", group: coreGroup, plural: "sandboxes" },
  { kind: "Pod", group: "", plural: "pods" },
];

/**
 * Reads the objects that the check judges, and Nodes, inventories and webhooks as far as the identity may.
 *
 * @param namespaces none: all of them
 */
export async function readCluster(client: KubeClient, namespaces: readonly string[]): Promise<ClusterRead> {
  const read: ClusterRead = { objects: [], facts: {}, skipped: [], unreadable: [] };
  for (const kind of kinds)
    for (const namespace of namespaces.length === 0 ? [""] : namespaces)
      await addObjects(client, read, kind, namespace);
  read.facts.nodes = await readNodes(client, read);
  read.pools = await readInventories(client, read);
  read.facts.cocoonWebhook = await findWebhook(client);
  return read;
}

async function addObjects(
  client: KubeClient,
  read: ClusterRead,
  kind: Kind,
  namespace: string,
): Promise<void> {
  const where = namespace === "" ? "" : ` in namespace ${namespace}`;
  const versions = kind.group === "" ? ["v1"] : servedVersions;
  for (const version of versions) {
    const prefix = kind.group === "" ? "/api/v1" : `/apis/${kind.group}/${version}`;
    const path =
      namespace === "" ? `${prefix}/${kind.plural}` : apiPath(prefix, "namespaces", namespace, kind.plural);
    if (path === undefined) {
      read.unreadable.push({ file: "cluster", reason: `${JSON.stringify(namespace)} is no namespace` });
      return;
    }
    const listed = await listAll(client, path);
    if (listed.ok) {
      const apiVersion = kind.group === "" ? "v1" : `${kind.group}/${version}`;
      for (const item of listed.items)
        if (isMap(item))
          read.objects.push({ file: "cluster", value: { apiVersion, kind: kind.kind, ...item }, base: [] });
      return;
    }
    if (!isNotServed(listed.failure)) {
      const reason = `cannot list ${kind.plural}${where}: ${describeFailure(listed.failure)}`;
      read.unreadable.push({ file: "cluster", reason });
      return;
    }
  }
  read.skipped.push({
    file: "cluster",
    what: `${kind.plural}.${kind.group} is not served; its CRD is not installed`,
  });
}

function isNotServed(failure: KubeFailure): boolean {
  return (failure.kind === "status" || failure.kind === "http") && failure.code === 404;
}

type Listed = { ok: true; items: unknown[] } | { ok: false; failure: KubeFailure };

async function listAll(client: KubeClient, path: string): Promise<Listed> {
  const items: unknown[] = [];
  let token = "";
  do {
    const query: Record<string, string> = { limit: String(pageSize) };
    if (token !== "") query.continue = token;
    const reply = await client.request("GET", path, { query, timeoutMs: 30_000 });
    if (!reply.ok) return { ok: false, failure: reply };
    // A reply without a list is a failure, never an empty one.
    if (!isMap(reply.body) || !Array.isArray(reply.body.items))
      return {
        ok: false,
        failure: { ok: false, kind: "garbage", message: `${path} did not answer with a list` },
      };
    for (const item of reply.body.items) items.push(item);
    token = textOf(mapOf(reply.body.metadata).continue);
    if (items.length > objectsMax)
      return {
        ok: false,
        failure: { ok: false, kind: "garbage", message: `more than ${objectsMax} objects; name namespaces` },
      };
  } while (token !== "");
  return { ok: true, items };
}

const textMap = v.record(v.string(), v.string());
const nodeSchema = v.object({
  metadata: v.object({ name: v.string(), labels: v.nullish(textMap) }),
  spec: v.nullish(
    v.object({
      taints: v.nullish(
        v.array(v.object({ key: v.string(), value: v.nullish(v.string()), effect: v.string() })),
      ),
    }),
  ),
  status: v.nullish(
    v.object({ conditions: v.nullish(v.array(v.object({ type: v.string(), status: v.string() }))) }),
  ),
});

/** A Node of the API as far as scheduling goes; undefined for anything else. */
export function nodeFact(body: unknown): NodeFact | undefined {
  const parsed = v.safeParse(nodeSchema, body);
  if (!parsed.success) return undefined;
  const { metadata, spec, status } = parsed.output;
  return {
    name: metadata.name,
    labels: metadata.labels ?? {},
    taints: (spec?.taints ?? []).map(({ key, value, effect }) => ({ key, value: value ?? "", effect })),
    ready: (status?.conditions ?? []).some(({ type, status: state }) => type === "Ready" && state === "True"),
  };
}

async function readNodes(client: KubeClient, read: ClusterRead): Promise<NodeFact[] | undefined> {
  const listed = await listAll(client, "/api/v1/nodes");
  if (listed.ok) return listed.items.flatMap((item) => nodeFact(item) ?? []);
  const what = `Nodes: ${describeFailure(listed.failure)}; selectors are judged by the contract alone`;
  read.skipped.push({ file: "cluster", what });
  return undefined;
}

const inventorySchema = v.object({
  node: v.string(),
  publishedAt: v.nullish(v.string()),
  pools: v.nullish(
    v.array(
      v.object({
        template: v.string(),
        net: v.nullish(v.string()),
        size: v.nullish(v.string()),
        warm: v.number(),
        target: v.number(),
      }),
    ),
  ),
});

/** Groups that serve NodeInventories, the newer one first. */
export const inventoryPaths: readonly string[] = [
  "/apis/sandbox.cocoonstack.io/v1beta1/nodeinventories",
  `/apis/${extensionsGroup}/v1beta1/nodeinventories`,
];

async function readInventories(client: KubeClient, read: ClusterRead): Promise<Pools | undefined> {
  for (const path of inventoryPaths) {
    const listed = await listAll(client, path);
    if (listed.ok) {
      const inventories = freshInventories(listed.items);
      // No inventory is published: nothing is known of pools, which is not the same as no pools.
      if (inventories.nodes === 0) return undefined;
      return { source: `The inventory of ${inventories.nodes} node(s)`, pools: inventories.pools };
    }
    if (isNotServed(listed.failure)) continue;
    const what = `NodeInventories: ${describeFailure(listed.failure)}; pools are not judged`;
    read.skipped.push({ file: "cluster", what });
    return undefined;
  }
  return undefined;
}

/** Pools of the inventories that are not behind the newest by more than readers take. */
export function freshInventories(items: readonly unknown[]): { nodes: number; pools: PoolFact[] } {
  const inventories = items.flatMap((item) => {
    const parsed = v.safeParse(inventorySchema, item);
    return parsed.success ? [{ ...parsed.output, atMs: Date.parse(parsed.output.publishedAt ?? "") }] : [];
  });
  const newestMs = Math.max(...inventories.map(({ atMs }) => (Number.isNaN(atMs) ? 0 : atMs)));
  // The older CRD has no publishedAt; what cannot be dated is taken as it is.
  const fresh = inventories.filter(({ atMs }) => Number.isNaN(atMs) || atMs >= newestMs - inventoryAgeMsMax);
  return {
    nodes: fresh.length,
    pools: fresh.flatMap(({ node, pools }) =>
      (pools ?? []).map(({ template, net, size, warm, target }) => ({
        template,
        net: net ?? "",
        size: size ?? "",
        warm,
        target,
        where: node,
      })),
    ),
  };
}

/** The name of cocoon-webhook's configuration for Pods, where it can be seen. */
async function findWebhook(client: KubeClient): Promise<string | undefined> {
  const path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
  const listed = await listAll(client, path);
  if (!listed.ok) return undefined;
  for (const item of listed.items) {
    const name = textOf(mapOf(mapOf(item).metadata).name);
    const webhooks = listOf(mapOf(item).webhooks).map(mapOf);
    const service = (hook: Record<string, unknown>) => textOf(mapOf(mapOf(hook.clientConfig).service).name);
    const judgesPods = (hook: Record<string, unknown>) =>
      listOf(hook.rules).some((rule) => listOf(mapOf(rule).resources).some((r) => r === "pods" || r === "*"));
    const found = webhooks.find(
      (hook) => /cocoon-webhook/.test(`${name} ${textOf(hook.name)} ${service(hook)}`) && judgesPods(hook),
    );
    if (found !== undefined) return `ValidatingWebhookConfiguration ${name}`;
  }
  return undefined;
}

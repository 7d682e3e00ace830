/** The cluster: whether the API server knows us, lets us do what we must, and serves the kinds we work with. */

import { INVENTORY_GROUPS } from "../inventory/inventory.ts";
import { describeFailure, type KubeFailure } from "../kube/index.ts";
import { listed, span } from "../words.ts";
import { admissionChecks } from "./admission.ts";
import { type Check, type Context, hasCode } from "./context.ts";
import { fail, type Outcome, pass, skipped, warn } from "./finding.ts";
import { inventoryNeed, type Need, needs, reviewOf, rightsOf } from "./rights.ts";

/** SelfSubjectReview is served from here on; streaming lists come with 1.32, list and watch do before. */
const minorWanted = 28;
const leaseMs = 40_000;
const nodeUser = "system:node:";

export const clusterChecks: Check[] = [
  {
    id: "cluster.credentials",
    group: "cluster",
    why: "Without a kubeconfig or a service account there is no way to the API server.",
    run: async (context) => {
      const cluster = await context.cluster();
      return cluster.ok
        ? pass(`${cluster.value.server}, from ${cluster.value.from}`)
        : fail(
            cluster.why,
            "Set KUBECONFIG or --kubeconfig to a kubeconfig with manifests/rbac.yaml's identity.",
          );
    },
  },
  {
    id: "cluster.reachable",
    group: "cluster",
    why: "The provider learns of its Pods from the API server.",
    run: reachable,
  },
  {
    id: "cluster.version",
    group: "cluster",
    why: "Older API servers lack what the provider relies on.",
    run: version,
  },
  {
    id: "cluster.identity",
    group: "cluster",
    why: "Everything the provider does is done in this name.",
    run: identity,
  },
  ...needs.map(rightsCheck),
  {
    id: "cluster.rbac.nodeinventories",
    group: "cluster",
    why: inventoryNeed("").without,
    run: async (context) => {
      if (!context.config.inventory.publish) return skipped("--publish-inventory is off");
      const group = await inventoryGroup(context);
      return group.kind === "served"
        ? rights(context, inventoryNeed(group.apiVersion.split("/")[0] ?? ""))
        : skipped("NodeInventory is not served; see cluster.inventory");
    },
  },
  {
    id: "cluster.sandboxes",
    group: "cluster",
    why: "Sandboxes own the Pods that get a VM; without their kind only bare Pods can be served.",
    run: sandboxes,
  },
  {
    id: "cluster.inventory",
    group: "cluster",
    why: "The inventory is an object of that kind; readers pick a node's sandboxes and pools from it.",
    run: inventory,
  },
  {
    id: "cluster.node",
    group: "cluster",
    why: "Two providers under one node name overwrite each other's status and take each other's Pods.",
    run: node,
  },
  {
    id: "cluster.node-authorizer",
    group: "cluster",
    why: "A node's own identity is held to its own name, and may not set every label.",
    run: nodeAuthorizer,
  },
  ...admissionChecks,
  {
    id: "cluster.kubelet-port",
    group: "cluster",
    why: "The API server calls that port for stats and metrics; monitoring sees no VM when it cannot.",
    run: kubeletPort,
  },
];

const seeCredentials = "there is no way to the API server; see cluster.credentials";
const seeReachable = "the API server does not answer; see cluster.reachable";

/** A failed read as a finding: without an answer, or without the right, nothing was learned. */
function unknown(reply: KubeFailure, what: string): Outcome {
  if (hasCode(reply, 401)) return skipped("the credential is refused; see cluster.identity");
  if (hasCode(reply, 403)) return skipped(`this identity may not read ${what}`);
  if (reply.kind === "credentials") return skipped(seeCredentials);
  return skipped(
    reply.kind === "status" || reply.kind === "http" ? `${what}: ${describeFailure(reply)}` : seeReachable,
  );
}

async function reachable(context: Context): Promise<Outcome> {
  const cluster = await context.cluster();
  if (!cluster.ok) return skipped(seeCredentials);
  const reply = await context.get("/version");
  const { server } = cluster.value;
  // A refused credential is an answer too.
  if (reply.ok || hasCode(reply, 401) || hasCode(reply, 403)) return pass(`${server} answers`);
  const found = `${server}: ${describeFailure(reply)}`;
  if (reply.kind === "network" || reply.kind === "timeout") {
    return fail(
      found,
      `Try it from this host: curl -vk ${server}/version. Check address, firewall, proxy variables and the CA of the kubeconfig.`,
    );
  }
  if (reply.kind === "credentials") return fail(found, "Renew the credential that the message names.");
  return fail(
    found,
    "Make sure that the kubeconfig's server is a Kubernetes API server, and not something in front of it.",
  );
}

async function version(context: Context): Promise<Outcome> {
  const reply = await context.get("/version");
  if (!reply.ok) return unknown(reply, "/version");
  const { gitVersion, major, minor } = reply.body as Record<string, unknown>;
  if (typeof gitVersion !== "string")
    return warn("its /version is not understood", "Make sure that it is a Kubernetes API server.");
  const release = Number.parseInt(String(minor), 10);
  if (major === "1" && release < minorWanted) {
    return warn(
      gitVersion,
      `Update the cluster to 1.${minorWanted} or later; the provider is tested with 1.36.`,
    );
  }
  return pass(gitVersion);
}

async function identity(context: Context): Promise<Outcome> {
  const cluster = await context.cluster();
  if (!cluster.ok) return skipped(seeCredentials);
  const who = await context.identity();
  if (!who.ok) {
    if (who.why.startsWith("401")) {
      return fail(
        "the API server refuses the credential (401)",
        `Renew the token or certificate of ${cluster.value.from}.`,
        "No request of the provider will be served.",
      );
    }
    return skipped(
      who.why.startsWith("404") ? "the API server has no SelfSubjectReview (before 1.28)" : seeReachable,
    );
  }
  const { username, groups } = who.value;
  if (username === "system:anonymous") {
    return fail(
      "system:anonymous: no credential reaches the API server",
      `Give ${cluster.value.from} a user with a token or client certificate.`,
    );
  }
  if (groups.includes("system:masters")) {
    return warn(
      `${username}, in system:masters`,
      "Give the provider the identity of manifests/rbac.yaml.",
      "It may do everything in the cluster: whoever reads this kubeconfig owns it. Checks of rights pass for it whatever they are.",
    );
  }
  return pass(username);
}

function rightsCheck(need: Need): Check {
  return {
    id: `cluster.rbac.${need.resource}`,
    group: "cluster",
    why: need.without,
    run: (context) => rights(context, need),
  };
}

type Answer = { verb: string; allowed: boolean } | { failed: KubeFailure };

async function rights(context: Context, need: Need): Promise<Outcome> {
  const cluster = await context.cluster();
  if (!cluster.ok) return skipped(seeCredentials);
  const who = await context.identity();
  const asNode = who.ok && who.value.username.startsWith(nodeUser);
  // The Node authorizer decides about one Pod at a time, by name; there is none to ask about here.
  const asked = rightsOf(need).filter(
    (right) => !(asNode && right.resource === "pods" && right.verb === "get"),
  );
  const answers = await Promise.all(
    asked.map(async (right): Promise<Answer> => {
      const reply = await cluster.value.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
          body: reviewOf(right, context.config.node.name),
        },
      );
      if (!reply.ok) return { failed: reply };
      const { status } = reply.body as { status?: { allowed?: unknown } };
      return { verb: right.verb, allowed: status?.allowed === true };
    }),
  );
  const verbs = asked.map((right) => right.verb);
  const denied: string[] = [];
  for (const answer of answers) {
    if ("failed" in answer) return unknown(answer.failed, "its own rights");
    if (!answer.allowed) denied.push(answer.verb);
  }
  const where = need.namespace === undefined ? "" : ` in ${need.namespace}`;
  if (denied.length === 0) return pass(`${listed(verbs)}${where}`);
  return (need.essential ? fail : warn)(
    `this identity may not ${listed(denied)} ${need.resource}${where}`,
    asNode ? grantToNode(context.config.node.name) : grant(need, who.ok ? who.value.username : ""),
  );
}

/** The commands that give an identity what manifests/rbac.yaml gives its own. */
function grant({ role, namespace }: Need, username: string): string {
  const apply = "kubectl apply -f manifests/rbac.yaml";
  const account = /^system:serviceaccount:([^:]+:[^:]+)$/.exec(username)?.[1];
  const prefix = namespace === undefined ? "Cluster" : "";
  if (account === "vk-sandbox:vk-sandbox" || username === "") {
    return `${apply} (${prefix}Role and ${prefix}RoleBinding ${role} in it)`;
  }
  const subject = account === undefined ? `--user=${username}` : `--serviceaccount=${account}`;
  const bind =
    namespace === undefined
      ? `clusterrolebinding ${role}-bound --clusterrole=${role}`
      : `rolebinding ${role}-bound --namespace=${namespace} --role=${role}`;
  return `${apply}, then bind it to this identity: kubectl create ${bind} ${subject}`;
}

/** The Node authorizer grants the rest by itself: what it does not is in a manifest, bound to this one node. */
function grantToNode(nodeName: string): string {
  return `sed 's/vk-sandboxd-node1/${nodeName}/g' manifests/node-identity.yaml | kubectl apply -f -`;
}

type Served =
  | { kind: "served"; versions: string[] }
  | { kind: "absent" }
  | { kind: "unknown"; outcome: Outcome };

async function versionsOf(context: Context, group: string): Promise<Served> {
  const reply = await context.get(`/apis/${group}`);
  if (!reply.ok) {
    return hasCode(reply, 404)
      ? { kind: "absent" }
      : { kind: "unknown", outcome: unknown(reply, `/apis/${group}`) };
  }
  const { versions } = reply.body as { versions?: unknown };
  const names = Array.isArray(versions)
    ? versions.flatMap((entry) => (typeof entry?.version === "string" ? [entry.version as string] : []))
    : [];
  return { kind: "served", versions: names };
}

/** Names of the resources under a group-version, subresources left out. */
async function resourcesOf(context: Context, apiVersion: string): Promise<string[]> {
  const reply = await context.get(`/apis/${apiVersion}`);
  const { resources } = (reply.ok ? reply.body : {}) as { resources?: unknown };
  if (!Array.isArray(resources)) return [];
  return resources.flatMap((entry) =>
    typeof entry?.name === "string" && !entry.name.includes("/") ? [entry.name as string] : [],
  );
}

const sandboxGroup = "agents.x-k8s.io";
const extensionsGroup = "extensions.agents.x-k8s.io";
const sandboxVersion = "v1beta1";
const installController =
  "Install the agent-sandbox controller with its CRDs (a release of kubernetes-sigs/agent-sandbox).";

async function sandboxes(context: Context): Promise<Outcome> {
  const [core, extensions] = await Promise.all([
    versionsOf(context, sandboxGroup),
    versionsOf(context, extensionsGroup),
  ]);
  if (core.kind === "unknown") return core.outcome;
  if (core.kind === "absent") return warn(`${sandboxGroup} is not served`, installController);
  const kinds = await Promise.all(
    core.versions.map(async (v) =>
      (await resourcesOf(context, `${sandboxGroup}/${v}`)).includes("sandboxes") ? [v] : [],
    ),
  );
  const versions = kinds.flat();
  const beside =
    extensions.kind === "served"
      ? `; ${extensionsGroup} ${listed(extensions.versions)}: ${listed(await resourcesOf(context, `${extensionsGroup}/${extensions.versions[0] ?? ""}`))}`
      : `; ${extensionsGroup} is not served (templates, claims and warm pools)`;
  if (versions.length === 0) {
    return warn(`${sandboxGroup} is served without sandboxes${beside}`, installController);
  }
  const found = `sandboxes.${sandboxGroup} ${listed(versions)}${beside}`;
  return versions.includes(sandboxVersion)
    ? pass(found)
    : warn(
        found,
        `Update the agent-sandbox controller to one that serves ${sandboxVersion}.`,
        `The provider is tested with ${sandboxVersion}; owners of other versions are read as what discovery calls them.`,
      );
}

type InventoryGroup =
  | { kind: "served"; apiVersion: string; also: string[] }
  | { kind: "absent" }
  | { kind: "unknown"; outcome: Outcome };

async function inventoryGroup(context: Context): Promise<InventoryGroup> {
  const serving: string[] = [];
  for (const apiVersion of INVENTORY_GROUPS) {
    const reply = await context.get(`/apis/${apiVersion}`);
    if (!reply.ok && !hasCode(reply, 404))
      return { kind: "unknown", outcome: unknown(reply, `/apis/${apiVersion}`) };
    if ((await resourcesOf(context, apiVersion)).includes("nodeinventories")) serving.push(apiVersion);
  }
  const [apiVersion, ...also] = serving;
  return apiVersion === undefined ? { kind: "absent" } : { kind: "served", apiVersion, also };
}

/** Fields that the older CRD lacks, and that readers miss. */
const newerFields = ["publishedAt"];

async function inventory(context: Context): Promise<Outcome> {
  const group = await inventoryGroup(context);
  const { publish } = context.config.inventory;
  if (group.kind === "unknown") return group.outcome;
  if (group.kind === "absent") {
    return publish
      ? fail(
          `NodeInventory is served in neither ${INVENTORY_GROUPS.join(" nor ")}`,
          "Install its CRD (it comes with sandbox-operator), or run without --publish-inventory.",
        )
      : skipped("NodeInventory is not served, and --publish-inventory is off");
  }
  const found = `nodeinventories of ${group.apiVersion}`;
  if (!publish) return pass(`${found}; --publish-inventory is off`);
  const schema = await context.get(`/openapi/v3/apis/${group.apiVersion}`);
  const known = schema.ok ? propertiesOf(schema.body, "NodeInventory") : undefined;
  const missing = known === undefined ? [] : newerFields.filter((field) => !known.includes(field));
  if (missing.length > 0) {
    return warn(
      `${found}, an older CRD without ${listed(missing)}`,
      "Update the CRD (it comes with sandbox-operator).",
      "The API server drops the fields it does not know: readers cannot tell how old this node's inventory is.",
    );
  }
  return pass(found);
}

/** Top-level properties of a kind in an OpenAPI v3 document; undefined when it is not in there. */
function propertiesOf(document: unknown, kind: string): string[] | undefined {
  const { components } = document as { components?: { schemas?: Record<string, unknown> } };
  for (const [name, schema] of Object.entries(components?.schemas ?? {})) {
    if (!name.endsWith(`.${kind}`)) continue;
    const { properties } = schema as { properties?: unknown };
    if (typeof properties === "object" && properties !== null) return Object.keys(properties);
  }
  return undefined;
}

interface SeenNode {
  metadata?: { labels?: Record<string, unknown>; deletionTimestamp?: unknown };
  spec?: { taints?: { key?: unknown; value?: unknown }[] };
  status?: { nodeInfo?: { kubeletVersion?: unknown } };
}

const nodePath = ({ config }: Context) => `/api/v1/nodes/${encodeURIComponent(config.node.name)}`;

async function node(context: Context): Promise<Outcome> {
  const { name } = context.config.node;
  const reply = await context.get(nodePath(context));
  if (!reply.ok) return hasCode(reply, 404) ? pass(`${name} is free`) : unknown(reply, `Node ${name}`);
  const { metadata, spec, status } = reply.body as SeenNode;
  const another = `Start this provider under another --node-name, or delete that Node if its machine is gone: kubectl delete node ${name}.`;
  const provider = spec?.taints?.find((taint) => taint.key === "virtual-kubelet.io/provider")?.value;
  if (provider !== undefined && provider !== "sandboxd") {
    return fail(`${name} is a Node of provider ${String(provider)}`, another);
  }
  if (provider === undefined && metadata?.labels?.type !== "virtual-kubelet") {
    const kubelet = status?.nodeInfo?.kubeletVersion;
    return fail(
      `${name} is no virtual Node${typeof kubelet === "string" ? ` (kubelet ${kubelet})` : ""}`,
      another,
    );
  }
  if (metadata?.deletionTimestamp !== undefined && metadata.deletionTimestamp !== null) {
    return warn(
      `${name} is being deleted`,
      `See what keeps it: kubectl get node ${name} -o jsonpath='{.metadata.finalizers}'. The provider registers it anew afterwards.`,
    );
  }
  return holder(context, name);
}

/** Whose lease it is: the Node is there, and is one of a vk-sandbox. */
async function holder(context: Context, name: string): Promise<Outcome> {
  const path = `/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/${encodeURIComponent(name)}`;
  const reply = await context.get(path);
  if (!reply.ok) {
    return hasCode(reply, 404)
      ? pass(`${name} exists, and nobody holds its lease`)
      : unknown(reply, `the lease of ${name}`);
  }
  const { spec } = reply.body as { spec?: { holderIdentity?: unknown; renewTime?: unknown } };
  const who = typeof spec?.holderIdentity === "string" ? spec.holderIdentity : "";
  const renewedMs = typeof spec?.renewTime === "string" ? Date.parse(spec.renewTime) : Number.NaN;
  const ageMs = context.probes.now() - renewedMs;
  const age = Number.isNaN(ageMs) ? "never renewed" : `renewed ${span(Math.max(0, ageMs))} ago`;
  if (who === "") return pass(`${name} exists, and nobody holds its lease`);
  const daemon = context.lock();
  if (context.probes.isOurs(who)) {
    return pass(
      daemon.kind === "ours"
        ? `${name} is served by the running provider (lease ${age})`
        : `${name} is ours from an earlier run (lease ${age})`,
    );
  }
  // A clock that is off makes a living holder look dead; the provider itself waits and watches before it takes over.
  if (Number.isNaN(ageMs) || ageMs > leaseMs) {
    return pass(
      `${name} was served by another provider (${who}, ${age}), which has stopped; it will be taken over`,
    );
  }
  return fail(
    `${name} is served by another provider: its lease is held by ${who}, ${age}`,
    `Stop that one, or start this one under another --node-name. If it was just stopped, wait ${Math.ceil((leaseMs - ageMs) / 1000)} s and run this again.`,
  );
}

async function nodeAuthorizer(context: Context): Promise<Outcome> {
  const who = await context.identity();
  if (!who.ok) return skipped("who we are is not known; see cluster.identity");
  const { username, groups } = who.value;
  if (!username.startsWith(nodeUser)) return pass(`not in force: ${username} is no node's identity`);
  const own = username.slice(nodeUser.length);
  const { name } = context.config.node;
  if (own !== name) {
    return fail(
      `${username} may serve the Node ${own} only, not ${name}`,
      `Use --node-name ${own}, or the credential of system:node:${name}.`,
    );
  }
  if (!groups.includes("system:nodes")) {
    return fail(
      `${username} is not in group system:nodes`,
      "Issue its certificate with organisation system:nodes, so that the Node authorizer knows it.",
    );
  }
  return pass(`${username}: kubernetes.io/role stays unset, taints are set at creation only; the rest works`);
}

async function kubeletPort(context: Context): Promise<Outcome> {
  const { name } = context.config.node;
  const admin = await context.admin();
  const cluster = admin ?? (await context.cluster());
  if (!cluster.ok)
    return skipped(admin === undefined ? seeCredentials : `--admin-kubeconfig: ${cluster.why}`);
  const found = await context.get(nodePath(context));
  if (!found.ok) {
    return hasCode(found, 404)
      ? skipped(`the Node ${name} does not exist yet; run this again when the provider runs`)
      : unknown(found, `Node ${name}`);
  }
  const running = context.lock();
  if (running.kind === "free") return skipped("the provider is not running; run this again when it is");
  const reply = await cluster.value.request("GET", `${nodePath(context)}/proxy/healthz`, { as: "text" });
  if (reply.ok) return pass(`the API server reaches the kubelet API of ${name}`);
  if (hasCode(reply, 403) && reply.kind === "status" && reply.message.includes("forbidden")) {
    return skipped(
      "this identity may not use nodes/proxy, and need not",
      "To have it checked, run this with --admin-kubeconfig and a kubeconfig of your own.",
    );
  }
  if (reply.kind !== "status" && reply.kind !== "http") return skipped(seeReachable);
  const listen = context.config.kubelet.listen.port;
  return warn(
    `the API server does not reach the kubelet API of ${name}: ${describeFailure(reply)}`,
    /address not allowed/.test(reply.message)
      ? "Give --node-ip an address that is not loopback or link-local."
      : `Open TCP port ${listen} from the control plane to this host, and check --node-ip: kubectl get node ${name} -o wide.`,
  );
}

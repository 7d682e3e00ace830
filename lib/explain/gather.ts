/** Reads what is to be known of one Pod. Only reads; what the identity may not see is named, and left out. */
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { freshInventories, inventoryPaths, nodeFact } from "../check/index.ts";
import { apiPath, describeFailure, type KubeClient, type KubeReply } from "../kube/index.ts";
import { queryLedger } from "../ledger/index.ts";
import { readTableReadOnly } from "../state/index.ts";
import {
  type EntryFact,
  type Evidence,
  eventFact,
  type HostFacts,
  nodeState,
  podFact,
  sandboxFact,
  timeOf,
} from "./evidence.ts";

export interface Subject {
  namespace: string;
  name: string;
  /** The name is a Sandbox's, and its Pod is meant. */
  sandbox: boolean;
}

export interface GatherOptions {
  client: KubeClient;
  subject: Subject;
  /** The claims table of the provider on this host; its ledger lies beside it. Absent: not looked at. */
  statePath?: string;
  nowMs: number;
}

/** Events are read up to this many. */
const eventsMax = 500;
/** Decisions of the ledger. */
const decisionsMax = 200;
const sandboxVersions = ["v1beta1", "v1alpha1"];
/** Where the agent-sandbox controller writes the name of a Sandbox's Pod when it is another than its own. */
const podNameAnnotation = "agents.x-k8s.io/pod-name";

export type Gathered = { ok: true; evidence: Evidence } | { ok: false; why: string };

/**
 * Reads the Pod, its Sandbox, Events, Nodes, inventories, and the provider's own records where they lie here.
 *
 * @returns `ok: false` only when the API server could not tell whether there is such an object
 */
export async function gather(options: GatherOptions): Promise<Gathered> {
  const { client, subject, nowMs } = options;
  const { namespace, name } = subject;
  const evidence: Evidence = {
    key: `${namespace}/${name}`,
    nowMs,
    askedForSandbox: subject.sandbox,
    events: [],
    entries: [],
    unseen: [],
  };
  const unseen = (what: string, reply: KubeReply) => {
    if (!reply.ok) evidence.unseen.push(`${what}: ${describeFailure(reply)}`);
  };
  const get = async (prefix: string, ...path: string[]): Promise<KubeReply | undefined> => {
    const full = apiPath(prefix, ...path);
    return full === undefined ? undefined : await client.request("GET", full);
  };
  const readSandbox = async (of: string) => {
    let last: KubeReply | undefined;
    for (const version of sandboxVersions) {
      const reply = await get(`/apis/agents.x-k8s.io/${version}`, "namespaces", namespace, "sandboxes", of);
      if (reply?.ok) return sandboxFact(reply.body);
      last = reply;
      if (!isNotFound(reply)) break;
    }
    if (last !== undefined && !isNotFound(last)) unseen(`Sandbox ${of}`, last);
    return undefined;
  };

  let podName = name;
  if (subject.sandbox) {
    evidence.sandbox = await readSandbox(name);
    if (evidence.sandbox === undefined && evidence.unseen.length > 0)
      return { ok: false, why: evidence.unseen[0] ?? "" };
    podName = evidence.sandbox?.metadata.annotations?.[podNameAnnotation] || name;
    evidence.key = `${namespace}/${podName}`;
  }
  const reply = await get("/api/v1", "namespaces", namespace, "pods", podName);
  if (reply === undefined) return { ok: false, why: `${JSON.stringify(podName)} is no name of a Pod` };
  if (!reply.ok && !isNotFound(reply))
    return { ok: false, why: `Pod ${evidence.key}: ${describeFailure(reply)}` };
  if (reply.ok) {
    evidence.pod = podFact(reply.body);
    if (evidence.pod === undefined) return { ok: false, why: `Pod ${evidence.key}: the reply is no Pod` };
  }
  const owner = evidence.pod?.metadata.ownerReferences?.find((ref) => ref.controller === true);
  if (evidence.sandbox === undefined && owner?.kind === "Sandbox")
    evidence.sandbox = await readSandbox(owner.name);

  await readEvents(client, namespace, podName, evidence, unseen);
  await readNodes(client, evidence, unseen);
  const nodeName = evidence.pod?.spec.nodeName;
  if (typeof nodeName === "string" && nodeName !== "") {
    const lease = await get(
      "/apis/coordination.k8s.io/v1",
      "namespaces",
      "kube-node-lease",
      "leases",
      nodeName,
    );
    if (lease?.ok) {
      const { spec } = lease.body as { spec?: { renewTime?: unknown } };
      const renewedMs = timeOf(typeof spec?.renewTime === "string" ? spec.renewTime : "");
      if (renewedMs > 0) evidence.heartbeatMs = renewedMs;
    }
  }
  await readInventories(client, evidence, unseen);
  if (options.statePath !== undefined) evidence.host = await readHost(options.statePath, evidence);
  return { ok: true, evidence };
}

function isNotFound(reply: KubeReply | undefined): boolean {
  return (
    reply !== undefined &&
    !reply.ok &&
    (reply.kind === "status" || reply.kind === "http") &&
    reply.code === 404
  );
}

type Unseen = (what: string, reply: KubeReply) => void;

function itemsOf(reply: KubeReply): unknown[] | undefined {
  if (!reply.ok) return undefined;
  const { items } = (reply.body ?? {}) as { items?: unknown };
  return Array.isArray(items) ? items : undefined;
}

async function readEvents(
  client: KubeClient,
  namespace: string,
  podName: string,
  evidence: Evidence,
  unseen: Unseen,
): Promise<void> {
  const path = apiPath("/api/v1", "namespaces", namespace, "events") ?? "";
  const names = new Set([podName, evidence.sandbox?.metadata.name ?? podName]);
  for (const name of names) {
    const query = { fieldSelector: `involvedObject.name=${name}`, limit: String(eventsMax) };
    const reply = await client.request("GET", path, { query });
    const items = itemsOf(reply);
    if (items === undefined) {
      unseen("Events", reply);
      return;
    }
    evidence.events.push(...items.flatMap((item) => eventFact(item) ?? []));
  }
  const uids = new Set([evidence.pod?.metadata.uid, evidence.sandbox?.metadata.uid]);
  // Events of an earlier Pod of the name explain nothing about this one.
  evidence.events = evidence.events
    .filter(({ about, uid }) =>
      about === "Pod" ? evidence.pod === undefined || uids.has(uid) : about === "Sandbox",
    )
    .sort((a, b) => b.lastMs - a.lastMs);
}

async function readNodes(client: KubeClient, evidence: Evidence, unseen: Unseen): Promise<void> {
  const reply = await client.request("GET", "/api/v1/nodes", { timeoutMs: 30_000 });
  const items = itemsOf(reply);
  if (items === undefined) {
    unseen("Nodes", reply);
    return;
  }
  evidence.nodes = items.flatMap((item) => {
    const fact = nodeFact(item);
    return fact === undefined ? [] : [nodeState(fact, item)];
  });
}

async function readInventories(client: KubeClient, evidence: Evidence, unseen: Unseen): Promise<void> {
  for (const path of inventoryPaths) {
    const reply = await client.request("GET", path, { timeoutMs: 30_000 });
    const items = itemsOf(reply);
    if (items === undefined) {
      if (isNotFound(reply)) continue;
      unseen("NodeInventories", reply);
      return;
    }
    const { nodes, pools } = freshInventories(items);
    if (nodes > 0) evidence.pools = pools;
    evidence.entries = items.flatMap((item) => entriesOf(item, evidence.key));
    return;
  }
}

function entriesOf(inventory: unknown, key: string): EntryFact[] {
  const { node, entries } = (inventory ?? {}) as { node?: unknown; entries?: unknown };
  if (!Array.isArray(entries)) return [];
  return entries.flatMap((entry): EntryFact[] => {
    const { name, id, phase, claimRef, deadline } = (entry ?? {}) as Record<string, unknown>;
    const ref = typeof claimRef === "string" && claimRef !== "" ? claimRef : String(name ?? "");
    if (ref !== key) return [];
    return [
      {
        node: String(node ?? ""),
        id: String(id ?? ""),
        phase: String(phase ?? ""),
        claimRef: ref,
        deadlineMs: timeOf(String(deadline ?? "")),
      },
    ];
  });
}

/** The provider's ledger and table about the key, when this is its host. */
async function readHost(statePath: string, evidence: Evidence): Promise<HostFacts | undefined> {
  const ledgerPath = join(dirname(statePath), "audit.db");
  if (!existsSync(statePath) && !existsSync(ledgerPath)) return undefined;
  const facts: HostFacts = { decisions: [] };
  const answer = await queryLedger(ledgerPath, { pod: evidence.key, limit: decisionsMax });
  if (answer.ok)
    facts.decisions = answer.rows.map(({ atMs, kind, id, reason, cause }) => ({
      atMs,
      kind,
      id,
      reason,
      cause,
    }));
  else if (answer.kind === "unreadable") evidence.unseen.push(answer.message);
  const table = readTableReadOnly(statePath);
  if (!table.ok) {
    evidence.unseen.push(table.message);
    return facts;
  }
  const held = table.rows.get(evidence.key);
  const intent = table.intents.get(evidence.key);
  const leaving = table.releasing.find(({ key }) => key === evidence.key);
  if (held !== undefined)
    facts.claim = { id: held.id, state: "held", deadlineMs: held.deadlineMs, podUID: held.podUID };
  else if (intent !== undefined)
    facts.claim = { id: "", state: "asked for", deadlineMs: 0, podUID: intent.podUID };
  else if (leaving !== undefined)
    facts.claim = {
      id: leaving.row.id,
      state: "on its way back",
      deadlineMs: leaving.row.deadlineMs,
      podUID: leaving.row.podUID,
    };
  return facts;
}

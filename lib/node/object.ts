/** The Node object: what we want it to say, what we read of it, and how the two differ. */
import * as v from "valibot";
import { ownLabels, type Quantity } from "../config/index.ts";
import type { NodeInfo } from "./machine.ts";

export const providerTaintKey = "virtual-kubelet.io/provider";
export const capacityTaintKey = "sandbox.cocoonstack.io/capacity";

/** Whether sandboxd has room; the scheduler sees all but `available` as a soft taint (contract: Node). */
export type Capacity = "available" | "exhausted" | "draining";

export interface Taint {
  key: string;
  value?: string;
  effect: string;
  timeAdded?: string;
}

/** What the Node is to say, fixed for the life of the process. */
export interface NodeSpec {
  name: string;
  /** Published as InternalIP when set. */
  ip?: string;
  /** Port of the kubelet API. */
  kubeletPort: number;
  cpu: Quantity;
  memory: Quantity;
  pods: Quantity;
  /** Beside the labels every virtual Node has. */
  labels: Record<string, string>;
  info: NodeInfo;
}

/** Node conditions, in the order they are published. */
export interface Condition {
  type: string;
  status: "True" | "False" | "Unknown";
  reason: string;
  message: string;
  lastHeartbeatTime: string;
  lastTransitionTime: string;
}

/** The part of a Node we decide on. */
export interface SeenNode {
  uid: string;
  resourceVersion: string;
  deleting: boolean;
  labels: Record<string, string>;
  taints: Taint[];
  /** By type: status and lastTransitionTime. */
  conditions: Map<string, { status: string; lastTransitionTime: string }>;
}

const textMap = v.record(v.string(), v.string());
const nodeSchema = v.object({
  metadata: v.object({
    name: v.string(),
    uid: v.pipe(v.string(), v.minLength(1)),
    resourceVersion: v.pipe(v.string(), v.minLength(1)),
    deletionTimestamp: v.nullish(v.string()),
    labels: v.nullish(textMap),
  }),
  spec: v.nullish(
    v.object({
      taints: v.nullish(
        v.array(
          v.object({
            key: v.string(),
            value: v.optional(v.string()),
            effect: v.string(),
            timeAdded: v.optional(v.string()),
          }),
        ),
      ),
    }),
  ),
  status: v.nullish(
    v.object({
      conditions: v.nullish(
        v.array(
          v.object({ type: v.string(), status: v.string(), lastTransitionTime: v.nullish(v.string()) }),
        ),
      ),
    }),
  ),
});

/** Reads a v1 Node named `name` from a reply. Undefined for anything else: a reply that is no Node decides nothing. */
export function readNode(body: unknown, name: string): SeenNode | undefined {
  const parsed = v.safeParse(nodeSchema, body);
  if (!parsed.success || parsed.output.metadata.name !== name) return undefined;
  const { metadata, spec, status } = parsed.output;
  const conditions: SeenNode["conditions"] = new Map();
  for (const { type, status: state, lastTransitionTime } of status?.conditions ?? [])
    conditions.set(type, { status: state, lastTransitionTime: lastTransitionTime ?? "" });
  return {
    uid: metadata.uid,
    resourceVersion: metadata.resourceVersion,
    deleting: typeof metadata.deletionTimestamp === "string",
    labels: metadata.labels ?? {},
    taints: spec?.taints ?? [],
    conditions,
  };
}

/** Every label the Node carries. */
export function wantedLabels(spec: NodeSpec): Record<string, string> {
  return { ...spec.labels, ...ownLabels(spec.name) };
}

/**
 * Labels the NodeRestriction admission lets a `system:node:` identity set (its kubelet list: no kubernetes.io
 * or k8s.io label but these). A label outside those two domains is always allowed.
 */
export function allowedForNodes(key: string): boolean {
  const slash = key.indexOf("/");
  if (slash < 0) return true;
  const domain = key.slice(0, slash);
  const within = (suffix: string) => domain === suffix || domain.endsWith(`.${suffix}`);
  if (within("node-restriction.kubernetes.io")) return false;
  if (!within("kubernetes.io") && !within("k8s.io")) return true;
  if (within("kubelet.kubernetes.io") || within("node.kubernetes.io")) return true;
  return ["kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os"].includes(key);
}

/** Labels that differ from what is wanted; foreign ones are nobody's business. Undefined when none does. */
export function labelCorrection(
  wanted: Record<string, string>,
  seen: SeenNode,
): Record<string, string> | undefined {
  const wrong = Object.entries(wanted).filter(([key, value]) => seen.labels[key] !== value);
  return wrong.length === 0 ? undefined : Object.fromEntries(wrong);
}

function wantedTaints(capacity: Capacity): Taint[] {
  const taints: Taint[] = [{ key: providerTaintKey, value: "sandboxd", effect: "NoSchedule" }];
  if (capacity !== "available")
    taints.push({ key: capacityTaintKey, value: capacity, effect: "PreferNoSchedule" });
  return taints;
}

/**
 * The whole list of taints the Node should have: foreign ones as they are, ours as wanted. The API replaces
 * the list as one, so it must be written against the resourceVersion it was read at. Undefined when right.
 *
 * @param capacity undefined: not known yet, so a capacity taint from before stays
 */
export function taintCorrection(capacity: Capacity | undefined, seen: SeenNode): Taint[] | undefined {
  const ours = (taint: Taint) =>
    taint.key === providerTaintKey || (taint.key === capacityTaintKey && capacity !== undefined);
  const wanted = wantedTaints(capacity ?? "available");
  const present = seen.taints.filter(ours);
  const same = (a: Taint, b: Taint) =>
    a.key === b.key && (a.value ?? "") === (b.value ?? "") && a.effect === b.effect;
  if (
    present.length === wanted.length &&
    wanted.every((taint) => present.some((other) => same(taint, other)))
  )
    return undefined;
  return [...seen.taints.filter((taint) => !ours(taint)), ...wanted];
}

/** Capacity, which is allocatable too. */
export function wantedCapacity(spec: NodeSpec): Record<string, string> {
  return { cpu: spec.cpu.text, memory: spec.memory.text, pods: spec.pods.text };
}

/** status of the Node, whole. */
export function statusOf(spec: NodeSpec, conditions: Condition[]): Record<string, unknown> {
  const capacity = wantedCapacity(spec);
  const addresses: Record<string, string>[] = [];
  if (spec.ip !== undefined) addresses.push({ type: "InternalIP", address: spec.ip });
  addresses.push({ type: "Hostname", address: spec.name });
  return {
    capacity,
    allocatable: capacity,
    conditions,
    addresses,
    daemonEndpoints: { kubeletEndpoint: { Port: spec.kubeletPort } },
    nodeInfo: spec.info,
  };
}

/** The Node as it is created. The API takes status at creation, so a new Node is Ready with its first request. */
export function nodeToCreate(
  spec: NodeSpec,
  labels: Record<string, string>,
  capacity: Capacity | undefined,
  conditions: Condition[],
): Record<string, unknown> {
  return {
    apiVersion: "v1",
    kind: "Node",
    metadata: { name: spec.name, labels },
    spec: { taints: wantedTaints(capacity ?? "available") },
    status: statusOf(spec, conditions),
  };
}

/**
 * The body of a strategic-merge PATCH of nodes/status. Conditions merge by type, so another's survive;
 * addresses would too, so a stale one is removed by replacing the list, as kubelets do.
 */
export function statusPatch(spec: NodeSpec, conditions: Condition[]): Record<string, unknown> {
  const status = statusOf(spec, conditions);
  return { status: { ...status, addresses: [...(status.addresses as object[]), { $patch: "replace" }] } };
}

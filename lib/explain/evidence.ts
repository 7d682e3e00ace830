/** What there is to know of a Pod that does not run, as data: read once, judged without I/O. */
import * as v from "valibot";
import type { NodeFact, PoolFact } from "../check/index.ts";

const text = v.nullish(v.string(), "");
const texts = v.nullish(v.record(v.string(), v.nullish(v.string(), "")), {});

const conditionSchema = v.object({
  type: v.string(),
  status: v.string(),
  reason: text,
  message: text,
  lastTransitionTime: text,
});

const ownerSchema = v.object({
  apiVersion: text,
  kind: text,
  name: text,
  uid: text,
  controller: v.nullish(v.boolean(), false),
});

const containerStatusSchema = v.object({
  name: text,
  state: v.nullish(
    v.object({
      waiting: v.nullish(v.object({ reason: text, message: text })),
      terminated: v.nullish(v.object({ reason: text, message: text, finishedAt: text })),
    }),
  ),
});

const podSchema = v.object({
  metadata: v.object({
    name: v.string(),
    namespace: v.string(),
    uid: v.string(),
    annotations: texts,
    creationTimestamp: text,
    deletionTimestamp: text,
    finalizers: v.nullish(v.array(v.string()), []),
    ownerReferences: v.nullish(v.array(ownerSchema), []),
  }),
  // Judged by the check, which reads it with its own care.
  spec: v.record(v.string(), v.unknown()),
  status: v.nullish(
    v.object({
      phase: text,
      reason: text,
      message: text,
      podIP: text,
      conditions: v.nullish(v.array(conditionSchema), []),
      containerStatuses: v.nullish(v.array(containerStatusSchema), []),
    }),
    {},
  ),
});

export type Condition = v.InferOutput<typeof conditionSchema>;

/** A Pod as far as its trouble goes. */
export interface PodFact extends v.InferOutput<typeof podSchema> {
  /** The object as the API gave it, for the check. */
  raw: Record<string, unknown>;
}

/** A Pod of the API; undefined for anything else. */
export function podFact(body: unknown): PodFact | undefined {
  const parsed = v.safeParse(podSchema, body);
  return parsed.success ? { ...parsed.output, raw: body as Record<string, unknown> } : undefined;
}

const sandboxSchema = v.object({
  metadata: v.object({
    name: v.string(),
    namespace: v.string(),
    uid: v.string(),
    annotations: texts,
    creationTimestamp: text,
    deletionTimestamp: text,
  }),
  spec: v.object({
    operatingMode: text,
    replicas: v.nullish(v.number()),
    podTemplate: v.nullish(v.object({ metadata: v.nullish(v.object({ annotations: texts }), {}) }), {}),
  }),
  status: v.nullish(v.object({ conditions: v.nullish(v.array(conditionSchema), []) }), {}),
});

/** A Sandbox as far as its Pod's trouble goes. */
export type SandboxFact = v.InferOutput<typeof sandboxSchema>;

/** A Sandbox of the API; undefined for anything else. */
export function sandboxFact(body: unknown): SandboxFact | undefined {
  const parsed = v.safeParse(sandboxSchema, body);
  return parsed.success ? parsed.output : undefined;
}

const eventSchema = v.object({
  type: text,
  reason: text,
  message: text,
  count: v.nullish(v.number(), 1),
  series: v.nullish(v.object({ count: v.number(), lastObservedTime: text })),
  eventTime: text,
  firstTimestamp: text,
  lastTimestamp: text,
  source: v.nullish(v.object({ component: text }), {}),
  reportingComponent: text,
  involvedObject: v.nullish(v.object({ kind: text, uid: text }), {}),
});

/** An Event about the Pod or its Sandbox. */
export interface EventFact {
  type: string;
  reason: string;
  message: string;
  count: number;
  lastMs: number;
  from: string;
  /** Kind of the object that it is about. */
  about: string;
  uid: string;
}

/** An Event of the API; undefined for anything else. */
export function eventFact(body: unknown): EventFact | undefined {
  const parsed = v.safeParse(eventSchema, body);
  if (!parsed.success) return undefined;
  const e = parsed.output;
  const last = e.series?.lastObservedTime || e.lastTimestamp || e.eventTime || e.firstTimestamp;
  return {
    type: e.type,
    reason: e.reason,
    message: e.message,
    count: e.series?.count ?? e.count ?? 1,
    lastMs: timeOf(last),
    from: e.reportingComponent || e.source?.component || "",
    about: e.involvedObject?.kind ?? "",
    uid: e.involvedObject?.uid ?? "",
  };
}

const nodeStatusSchema = v.object({
  metadata: v.object({ name: v.string() }),
  spec: v.nullish(v.object({ unschedulable: v.nullish(v.boolean(), false) }), {}),
  status: v.nullish(
    v.object({
      conditions: v.nullish(v.array(conditionSchema), []),
      allocatable: texts,
      nodeInfo: v.nullish(v.object({ kubeletVersion: text }), {}),
    }),
    {},
  ),
});

/** A Node: how it is scheduled to, and how it is. */
export interface NodeState extends NodeFact {
  unschedulable: boolean;
  conditions: Condition[];
  allocatable: Record<string, string>;
}

/** The state of a Node beside what the check knows of it. */
export function nodeState(fact: NodeFact, body: unknown): NodeState {
  const parsed = v.safeParse(nodeStatusSchema, body);
  const { spec, status } = parsed.success ? parsed.output : { spec: {}, status: {} };
  return {
    ...fact,
    unschedulable: spec.unschedulable === true,
    conditions: status.conditions ?? [],
    allocatable: mapped(status.allocatable),
  };
}

function mapped(value: Record<string, string | null | undefined> | null | undefined): Record<string, string> {
  return Object.fromEntries(Object.entries(value ?? {}).map(([key, entry]) => [key, entry ?? ""]));
}

/** A sandbox as a node's inventory tells of it. */
export interface EntryFact {
  node: string;
  id: string;
  phase: string;
  claimRef: string;
  deadlineMs: number;
}

/** What the provider's own host knows. */
export interface HostFacts {
  /** Decisions about the Pod key, oldest first. */
  decisions: { atMs: number; kind: string; id: string; reason: string; cause?: string }[];
  /** The row that the claims table holds for the key. */
  claim?: { id: string; state: "held" | "asked for" | "on its way back"; deadlineMs: number; podUID: string };
}

/** Everything that was found. What could not be looked at is absent, and named in `unseen`. */
export interface Evidence {
  /** `namespace/name` */
  key: string;
  nowMs: number;
  pod?: PodFact;
  /** The Pod's Sandbox, or the one that was asked about. */
  sandbox?: SandboxFact;
  /** A Sandbox was asked about by name. */
  askedForSandbox: boolean;
  /** Newest first. */
  events: EventFact[];
  nodes?: NodeState[];
  /** When the Pod's node last renewed its lease. */
  heartbeatMs?: number;
  pools?: PoolFact[];
  entries: EntryFact[];
  host?: HostFacts;
  /** What could not be looked at, and why. */
  unseen: string[];
}

/** RFC 3339 as milliseconds; 0 for what is none. */
export function timeOf(text: string): number {
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? 0 : ms;
}

export function conditionOf(
  conditions: readonly Condition[] | null | undefined,
  type: string,
): Condition | undefined {
  return conditions?.find((condition) => condition.type === type);
}

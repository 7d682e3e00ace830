import { CLAIM_ID_ANNOTATION } from "../../provider/pod.ts";
import type { CallResult, CurrentPod, OwnerState, PodStatus } from "../../provider/types.ts";

/** Name of the simulated Node. */
export const NODE = "node-a";
const OTHER_NODE = "node-b";

/** A Pod as the API server holds it. Objects are replaced, never changed, so that the watch log keeps history. */
export interface RawPod {
  metadata: {
    namespace: string;
    name: string;
    uid: string;
    resourceVersion: string;
    annotations: Record<string, string>;
    ownerReferences: OwnerReference[];
    deletionTimestamp?: string;
  };
  spec: { nodeName: string; restartPolicy: string; containers: { name: string; image: string }[] };
  status: Record<string, unknown>;
}

interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller: boolean;
}

/** A Sandbox. One name has several lives; each life has a UID. */
export interface OwnerLife {
  name: string;
  uid: string;
  deleting: boolean;
  gone: boolean;
  expired: boolean;
  suspended: boolean;
  /** It was suspended once. */
  slept: boolean;
}

/** What is true of one Pod generation, whatever the provider knows of it. */
export interface Generation {
  key: string;
  uid: string;
  /** Every UID that could decide about its claim, the present one last. */
  authorities: string[];
  here: boolean;
  deleting: boolean;
  gone: boolean;
  /** A status Running was accepted for it. */
  ran: boolean;
  /** Someone else wrote its claim-id. */
  tampered: boolean;
  /** Its owner reference names an object that never was. */
  forged: boolean;
  /** Someone else has written its end. */
  ended: boolean;
  /** It ran on another node: its owner's VM here may be superseded. */
  ranElsewhere: boolean;
}

export interface Logged {
  type: "object" | "gone";
  pod: RawPod;
}

/** What a new Pod looks like. */
export interface PodShape {
  owner?: OwnerLife;
  annotations: Record<string, string>;
  restartNever: boolean;
  elsewhere: boolean;
  containers: number;
  /** The owner reference has the owner's UID and this name. */
  forgedName?: string;
}

/** UID of an owner that never was. */
export const NOBODY = "nobody";

const API_VERSION = "agents.x-k8s.io/v1beta1";
const DELETED_AT = "2024-01-01T00:00:00Z";

/** Whether a life of an owner has ended for whoever decides by it (contract: the verdict table). */
export function hasEnded(life: OwnerLife): boolean {
  return life.gone || life.deleting || life.expired;
}

/**
 * A model of the API server: Pods, their owners, and the log of what a watch of our Node would deliver.
 * It is the truth that the provider's view is compared with.
 */
export function createCluster() {
  const pods = new Map<string, RawPod>();
  const generations = new Map<string, Generation>();
  /** The present life of each owner name. */
  const owners = new Map<string, OwnerLife>();
  /** All lives, by UID. */
  const lives = new Map<string, OwnerLife>();
  const log: Logged[] = [];
  // Begins below a power of ten, so that versions of different length are compared.
  let version = 90;
  let uids = 0;

  function store(pod: RawPod): RawPod {
    const stored = { ...pod, metadata: { ...pod.metadata, resourceVersion: String(++version) } };
    pods.set(keyOf(pod), stored);
    if (pod.spec.nodeName === NODE) log.push({ type: "object", pod: stored });
    return stored;
  }

  function remove(key: string): void {
    const pod = pods.get(key);
    if (pod === undefined) return;
    pods.delete(key);
    const last = { ...pod, metadata: { ...pod.metadata, resourceVersion: String(++version) } };
    const generation = generations.get(pod.metadata.uid);
    if (generation !== undefined) generation.gone = generation.deleting = true;
    if (pod.spec.nodeName === NODE) log.push({ type: "gone", pod: last });
  }

  function createOwner(name: string): OwnerLife {
    const life: OwnerLife = {
      name,
      uid: `owner-${++uids}`,
      deleting: false,
      gone: false,
      expired: false,
      suspended: false,
      slept: false,
    };
    owners.set(name, life);
    lives.set(life.uid, life);
    return life;
  }

  function endOwner(life: OwnerLife): void {
    life.gone = life.deleting = true;
    if (owners.get(life.name) === life) owners.delete(life.name);
  }

  function createPod(namespace: string, name: string, shape: PodShape): RawPod {
    const uid = `pod-${++uids}`;
    const key = `${namespace}/${name}`;
    const { owner } = shape;
    generations.set(uid, {
      key,
      uid,
      authorities: [owner?.uid ?? uid],
      here: !shape.elsewhere,
      deleting: false,
      gone: false,
      ran: false,
      tampered: false,
      ended: false,
      forged: shape.forgedName !== undefined,
      ranElsewhere: false,
    });
    return store({
      metadata: {
        namespace,
        name,
        uid,
        resourceVersion: "",
        annotations: shape.annotations,
        ownerReferences:
          owner === undefined ? [] : [{ ...reference(owner), name: shape.forgedName ?? owner.name }],
      },
      spec: {
        nodeName: shape.elsewhere ? OTHER_NODE : NODE,
        restartPolicy: shape.restartNever ? "Never" : "Always",
        containers: Array.from({ length: shape.containers }, (_, at) => ({ name: `c${at}`, image: "image" })),
      },
      status: { phase: "Pending" },
    });
  }

  function reference(owner: OwnerLife): OwnerReference {
    return { apiVersion: API_VERSION, kind: "Sandbox", name: owner.name, uid: owner.uid, controller: true };
  }

  function markDeleting(key: string): boolean {
    const pod = pods.get(key);
    if (pod === undefined || pod.metadata.deletionTimestamp !== undefined) return false;
    const generation = generations.get(pod.metadata.uid);
    if (generation !== undefined) generation.deleting = true;
    store({ ...pod, metadata: { ...pod.metadata, deletionTimestamp: DELETED_AT } });
    return true;
  }

  /** Someone makes a Pod point at an owner that does not exist. */
  function forgeOwner(pod: RawPod): void {
    const ownerReferences = [
      { apiVersion: API_VERSION, kind: "Sandbox", name: "nobody", uid: NOBODY, controller: true },
    ];
    const generation = generations.get(pod.metadata.uid);
    generation?.authorities.push(NOBODY);
    store({ ...pod, metadata: { ...pod.metadata, ownerReferences } });
  }

  function setOwner(pod: RawPod, owner: OwnerLife | undefined): void {
    const generation = generations.get(pod.metadata.uid);
    generation?.authorities.push(owner?.uid ?? pod.metadata.uid);
    if (generation !== undefined) generation.forged = false;
    const ownerReferences = owner === undefined ? [] : [reference(owner)];
    store({ ...pod, metadata: { ...pod.metadata, ownerReferences } });
  }

  function annotate(pod: RawPod, annotations: Record<string, string>): void {
    store({
      ...pod,
      metadata: { ...pod.metadata, annotations: { ...pod.metadata.annotations, ...annotations } },
    });
  }

  function setStatus(pod: RawPod, status: PodStatus): RawPod {
    const generation = generations.get(pod.metadata.uid);
    if (generation !== undefined && status.phase === "Running") {
      if (generation.here) generation.ran = true;
      else generation.ranElsewhere = true;
    }
    return store({ ...pod, status: mergeStatus(pod.status, status) });
  }

  /** `PATCH pods/status` with the UID in it. */
  function patch(key: string, uid: string, status: PodStatus, claimId: string, address: string): CallResult {
    const pod = pods.get(key);
    if (pod === undefined || pod.metadata.uid !== uid) return { ok: false, kind: "gone", why: "no such Pod" };
    const annotations =
      claimId === ""
        ? pod.metadata.annotations
        : { ...pod.metadata.annotations, [CLAIM_ID_ANNOTATION]: claimId };
    const addressed = address === "" ? status : { ...status, podIP: address.split(":")[0] };
    const stored = setStatus({ ...pod, metadata: { ...pod.metadata, annotations } }, addressed);
    return { ok: true, resourceVersion: stored.metadata.resourceVersion };
  }

  /** `DELETE` with grace 0 and a UID precondition. */
  function deleteNow(key: string, uid: string): CallResult {
    const pod = pods.get(key);
    if (pod === undefined || pod.metadata.uid !== uid) return { ok: false, kind: "gone", why: "no such Pod" };
    remove(key);
    return { ok: true };
  }

  function readOwner(name: string): OwnerState {
    const life = owners.get(name);
    if (life === undefined) return { kind: "not_found", named: true };
    const { uid, deleting, expired, suspended } = life;
    return { kind: "found", uid, deleting, expired, suspended };
  }

  function readBarePod(key: string): OwnerState {
    const pod = pods.get(key);
    if (pod === undefined) return { kind: "not_found", named: true };
    const deleting = pod.metadata.deletionTimestamp !== undefined;
    return { kind: "found", uid: pod.metadata.uid, deleting, expired: false, suspended: false };
  }

  function readPod(key: string): CurrentPod {
    const pod = pods.get(key);
    if (pod === undefined) return { kind: "not_found" };
    return {
      kind: "found",
      uid: pod.metadata.uid,
      ownerUid: pod.metadata.ownerReferences.find((ref) => ref.controller)?.uid ?? "",
      nodeName: pod.spec.nodeName,
      running: pod.status.phase === "Running",
      claimId: pod.metadata.annotations[CLAIM_ID_ANNOTATION] ?? "",
    };
  }

  /** Whether a UID that decides about a claim has ended, in truth, or never was. */
  function authorityEnded(uid: string): boolean {
    const life = lives.get(uid);
    if (life !== undefined) return hasEnded(life);
    const generation = generations.get(uid);
    return generation?.deleting ?? true;
  }

  return {
    pods,
    generations,
    owners,
    lives,
    log,
    createOwner,
    endOwner,
    createPod,
    markDeleting,
    setOwner,
    forgeOwner,
    annotate,
    setStatus,
    remove,
    patch,
    deleteNow,
    readOwner,
    readBarePod,
    readPod,
    authorityEnded,
  };
}

export type Cluster = ReturnType<typeof createCluster>;

export function keyOf(pod: RawPod): string {
  return `${pod.metadata.namespace}/${pod.metadata.name}`;
}

/** Lists of a status that merge by a key under strategic merge, and that key. */
const MERGED_LISTS: Record<string, string> = { conditions: "type", containerStatuses: "name" };

/** A status after a strategic merge patch: lists merge by their key, null removes. */
function mergeStatus(held: Record<string, unknown>, patch: PodStatus): Record<string, unknown> {
  const merged: Record<string, unknown> = { ...held };
  for (const field in patch) {
    const value = patch[field];
    const by = MERGED_LISTS[field];
    if (value === null) delete merged[field];
    else if (by === undefined) merged[field] = value;
    else merged[field] = mergeList(merged[field], value, by);
  }
  return merged;
}

function mergeList(held: unknown, patch: unknown, by: string): unknown[] {
  const merged = [...((held ?? []) as Record<string, unknown>[])];
  for (const entry of patch as Record<string, unknown>[]) {
    const at = merged.findIndex((other) => other[by] === entry[by]);
    if (at < 0) merged.push(entry);
    else merged[at] = { ...merged[at], ...entry };
  }
  return merged;
}

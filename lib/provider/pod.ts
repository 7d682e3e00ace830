import type { Cause, ContainerView, OwnerRef, PodView, StatusDigest } from "./types.ts";

/** Prefix of the Pod annotations that make the contract between template author and provider. */
const PREFIX = "sandbox.cocoonstack.io/";

/** The annotation the provider writes back: the claim id behind the Pod. */
export const CLAIM_ID_ANNOTATION = `${PREFIX}claim-id`;

/** ttl-seconds when a Pod names none: sandboxd's maximum for an ordinary claim (contract: Create 2). */
export const TTL_DEFAULT_SECONDS = 86_400;

/** Pods with more containers than this are reported with the first ones only. */
const CONTAINERS_MAX = 64;

/** How much of an annotation's value a message repeats. */
const VALUE_CHARS_MAX = 64;

/** A claim id: it goes into a URL path of sandboxd's. */
const CLAIM_ID = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;

/** Longest template name that is asked for; image references are shorter. */
const TEMPLATE_CHARS_MAX = 1_024;

/** The fields of a claim that the Pod's annotations choose. */
export interface ClaimAxes {
  template: string;
  net: string;
  size: string;
  ttlSeconds: number;
}

const NETS = new Set(["", "none", "egress"]);
const SIZES = new Set(["", "small", "medium", "large"]);

/**
 * Reads the claim's axes from a Pod's annotations.
 *
 * @returns the axes, or the fault as a Cause that waits for the Pod to change (contract: Create 1, 2)
 */
export function claimAxes(pod: PodView): { ok: true; axes: ClaimAxes } | { ok: false; cause: Cause } {
  const fault = (message: string) => ({
    ok: false as const,
    cause: { kind: "bad_annotation" as const, message },
  });
  if (pod.runtime !== "" && pod.runtime !== "sandboxd") {
    return fault(
      `annotation ${PREFIX}runtime is ${shown(pod.runtime)}, and this node serves only "sandboxd": set it to sandboxd or schedule the Pod elsewhere`,
    );
  }
  if (pod.template === "") {
    return fault(
      `annotation ${PREFIX}template is missing: set it in the Pod template to the sandboxd pool template to claim from`,
    );
  }
  if (pod.template.length > TEMPLATE_CHARS_MAX) {
    return fault(
      `annotation ${PREFIX}template is longer than ${TEMPLATE_CHARS_MAX} characters: set it to the name of a sandboxd pool template`,
    );
  }
  if (!NETS.has(pod.net)) {
    return fault(`annotation ${PREFIX}net is ${shown(pod.net)}: use none or egress, or leave it out`);
  }
  if (!SIZES.has(pod.size)) {
    return fault(
      `annotation ${PREFIX}size is ${shown(pod.size)}: use small, medium or large, or leave it out`,
    );
  }
  let ttlSeconds = TTL_DEFAULT_SECONDS;
  if (pod.ttl !== "") {
    ttlSeconds = /^\d{1,10}$/.test(pod.ttl) ? Number(pod.ttl) : -1;
    if (ttlSeconds < 0) {
      return fault(
        `annotation ${PREFIX}ttl-seconds is ${shown(pod.ttl)}: use a whole number of seconds, 0 for sandboxd's five minutes, or leave it out for 24 hours`,
      );
    }
  }
  return { ok: true, axes: { template: pod.template, net: pod.net, size: pod.size, ttlSeconds } };
}

/**
 * A value of somebody's annotation, fit for a status, an event and a terminal: an annotation may have 256 KiB and
 * control characters in it.
 */
function shown(value: string): string {
  const line = value.slice(0, VALUE_CHARS_MAX).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "?");
  return value.length > VALUE_CHARS_MAX ? `"${line}…" (${value.length} characters)` : `"${line}"`;
}

/** UID that decides about this Pod's claim: its controller owner's, or its own when it is bare. */
export function authorityOf(pod: PodView): string {
  return pod.owner?.uid ?? pod.uid;
}

/** Whether the Pod's phase is final, so that it is left alone. */
export function isTerminal(pod: PodView): boolean {
  return pod.phase === "Failed" || pod.phase === "Succeeded";
}

/** Whether the Pod is to be served: neither at its end nor on its way there. */
export function isLive(pod: PodView): boolean {
  return !pod.deleting && !isTerminal(pod);
}

/** Splits `<namespace>/<name>`. */
export function splitKey(key: string): { namespace: string; name: string } {
  const slash = key.indexOf("/");
  return { namespace: key.slice(0, slash), name: key.slice(slash + 1) };
}

/**
 * Whether resourceVersion `a` is newer than `b`. The API server promises that they order as numbers
 * (KEP-5504); compared without BigInt.
 */
export function isNewer(a: string, b: string): boolean {
  return a.length === b.length ? a > b : a.length > b.length;
}

type Json = Record<string, unknown>;

const str = (value: unknown): string => (typeof value === "string" ? value : "");
const obj = (value: unknown): Json =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);

/**
 * Trims a Pod of the API to what decisions need, so that thousands of them are cheap to keep. By hand, as
 * it is on the handover path; every field is checked for its type.
 *
 * @param raw a Pod object as the watch delivers it
 * @returns the view, or undefined when it is no Pod with namespace, name and UID
 */
export function podView(raw: unknown): PodView | undefined {
  const pod = obj(raw);
  const meta = obj(pod.metadata);
  const namespace = str(meta.namespace);
  const name = str(meta.name);
  const uid = str(meta.uid);
  if (namespace === "" || name === "" || uid === "") return undefined;
  const annotations = obj(meta.annotations);
  const spec = obj(pod.spec);
  const status = obj(pod.status);
  let owner: OwnerRef | undefined;
  for (const entry of list(meta.ownerReferences)) {
    const ref = obj(entry);
    if (ref.controller !== true) continue;
    owner = {
      apiVersion: str(ref.apiVersion),
      kind: str(ref.kind),
      name: str(ref.name),
      uid: str(ref.uid),
    };
    break;
  }
  const containers: ContainerView[] = [];
  for (const entry of list(spec.containers)) {
    if (containers.length === CONTAINERS_MAX) break;
    const container = obj(entry);
    containers.push({ name: str(container.name), image: str(container.image) });
  }
  const claimText = str(annotations[CLAIM_ID_ANNOTATION]);
  // Its namespace's users can write anything there; what is no id of sandboxd's was not written by us.
  const claimId = CLAIM_ID.test(claimText) ? claimText : "";
  return {
    key: `${namespace}/${name}`,
    uid,
    resourceVersion: str(meta.resourceVersion),
    owner,
    phase: str(status.phase),
    deleting: str(meta.deletionTimestamp) !== "",
    restartNever: spec.restartPolicy === "Never",
    runtime: str(annotations[`${PREFIX}runtime`]),
    template: str(annotations[`${PREFIX}template`]),
    net: str(annotations[`${PREFIX}net`]),
    size: str(annotations[`${PREFIX}size`]),
    ttl: str(annotations[`${PREFIX}ttl-seconds`]),
    renew: annotations[`${PREFIX}renew`] === "true",
    claimId,
    podIP: str(status.podIP),
    containers,
    digest: statusDigest(status, claimId),
  };
}

const DIGEST_CONDITIONS = ["Initialized", "Ready", "ContainersReady", "PodScheduled"];

/**
 * What of a Pod's status we answer for, in comparable form. The IP is left out: an owner_addr with a host name
 * is resolved only when it is pushed.
 *
 * @param status a Pod's status, the API's or ours
 * @param claimId the claim-id annotation beside it
 */
export function statusDigest(status: Record<string, unknown>, claimId: string): StatusDigest {
  const reason = str(status.reason);
  const head = `${str(status.phase)};${reason};${reason === "" ? "" : str(status.message)};${claimId}`;
  const given = list(status.conditions);
  let conditions = "";
  if (given.length > 0) {
    for (const type of DIGEST_CONDITIONS) {
      const found = given.find((condition) => obj(condition).type === type);
      conditions += found === undefined ? "-" : str(obj(found).status).charAt(0) || "-";
    }
  }
  let containers = "";
  for (const entry of list(status.containerStatuses)) {
    const container = obj(entry);
    const state = obj(container.state);
    containers += `${str(container.name)}=`;
    if (state.terminated != null) containers += `t${str(obj(state.terminated).reason)};`;
    else if (state.running != null)
      containers += `r${container.ready === true ? "+" : "-"}${str(container.imageID)};`;
    else containers += "w;";
  }
  return { head, conditions, containers };
}

/** Whether a status as the API holds it already says all that `wanted` says. */
export function digestCovers(held: StatusDigest, wanted: StatusDigest): boolean {
  if (held.head !== wanted.head) return false;
  if (wanted.containers !== "" && held.containers !== wanted.containers) return false;
  if (wanted.conditions === "" || held.conditions === wanted.conditions) return true;
  for (let at = 0; at < wanted.conditions.length; at++) {
    const state = wanted.conditions[at];
    if (state !== "-" && state !== held.conditions[at]) return false;
  }
  return true;
}

/** The digest of a held status after `pushed` was merged into it. */
export function mergeDigest(held: StatusDigest, pushed: StatusDigest): StatusDigest {
  let conditions = "";
  if (pushed.conditions !== "") {
    for (let at = 0; at < pushed.conditions.length; at++) {
      const state = pushed.conditions[at];
      conditions += state === "-" ? (held.conditions[at] ?? "-") : state;
    }
  }
  return {
    head: pushed.head,
    conditions: conditions === "" ? held.conditions : conditions,
    containers: pushed.containers === "" ? held.containers : pushed.containers,
  };
}

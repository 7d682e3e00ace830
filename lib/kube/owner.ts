import * as v from "valibot";
import type { CurrentPod, OwnerRef, OwnerState } from "../provider/types.ts";
import { apiPath, describeFailure, type KubeClient, type KubeFailure } from "./client.ts";
import { type Discovery, groupVersionPath } from "./discovery.ts";

/** Written by us on a Pod that has a claim (contract: Create 4). */
const claimIdAnnotation = "sandbox.cocoonstack.io/claim-id";

const text = v.pipe(v.string(), v.nonEmpty());

const metadataEntries = {
  name: text,
  namespace: v.nullish(v.string()),
  uid: text,
  deletionTimestamp: v.nullish(text),
};

const ownerSchema = v.object({
  apiVersion: text,
  kind: text,
  metadata: v.object(metadataEntries),
  spec: v.nullish(v.object({ operatingMode: v.nullish(v.unknown()) })),
  status: v.nullish(
    v.object({
      conditions: v.nullish(
        v.array(v.object({ type: v.string(), status: v.nullish(v.string()), reason: v.nullish(v.string()) })),
      ),
    }),
  ),
});

const podSchema = v.object({
  apiVersion: v.literal("v1"),
  kind: v.literal("Pod"),
  metadata: v.object({
    ...metadataEntries,
    annotations: v.nullish(v.record(v.string(), v.string())),
    ownerReferences: v.nullish(v.array(v.object({ uid: text, controller: v.nullish(v.boolean()) }))),
  }),
  spec: v.nullish(v.object({ nodeName: v.nullish(v.string()) })),
  status: v.nullish(v.object({ phase: v.nullish(v.string()) })),
});

type Pod = v.InferOutput<typeof podSchema>;

/**
 * Asks for a Pod's controller owner with one quorum GET: without a resourceVersion the API server answers
 * from etcd, never from a cache (contract: Delete, the verdict table).
 *
 * `not_found` is `named` only when the answer is a Status with reason NotFound whose details name this very
 * owner. `failed` is everything that proves nothing: no answer, an error, an answer about another object.
 */
export async function readOwner(
  client: KubeClient,
  discovery: Discovery,
  namespace: string,
  owner: OwnerRef,
): Promise<OwnerState> {
  const who = `${owner.kind} ${namespace}/${owner.name}`;
  const prefix = groupVersionPath(owner.apiVersion);
  if (prefix === undefined || !/^[A-Za-z][A-Za-z0-9]*$/.test(owner.kind)) {
    return {
      kind: "failed",
      why: `owner ${who}: ${owner.apiVersion} ${owner.kind} is not a kind the API could serve`,
    };
  }
  const { plural, namespaced, from, why } = await discovery.pluralOf(owner.apiVersion, owner.kind);
  const path = namespaced
    ? apiPath(prefix, "namespaces", namespace, plural, owner.name)
    : apiPath(prefix, plural, owner.name);
  if (path === undefined) return { kind: "failed", why: `owner ${who}: not a name the API could serve` };
  const reply = await client.request("GET", path, { verb: "get" });
  if (!reply.ok) {
    if (isNotFound(reply)) {
      const named = isNamed(reply, owner.name, plural);
      // Perhaps the kind is served under another name by now.
      if (from === "discovery" && !named) discovery.forget(owner.apiVersion);
      return { kind: "not_found", named };
    }
    const guessed = from === "rules" ? ` (plural by rules: ${why})` : "";
    return { kind: "failed", why: `owner ${who}: ${describeFailure(reply)}${guessed}` };
  }
  const parsed = v.safeParse(ownerSchema, reply.body);
  if (!parsed.success) {
    return { kind: "failed", why: `owner ${who}: the answer is no object: ${issue(parsed.issues)}` };
  }
  const { apiVersion, kind, metadata, spec, status } = parsed.output;
  if (
    apiVersion !== owner.apiVersion ||
    kind !== owner.kind ||
    metadata.name !== owner.name ||
    (namespaced && metadata.namespace !== namespace)
  ) {
    return {
      kind: "failed",
      why: `owner ${who}: the answer is about ${apiVersion} ${kind} ${metadata.namespace ?? ""}/${metadata.name}`,
    };
  }
  const ready = status?.conditions?.find((condition) => condition.type === "Ready");
  return {
    kind: "found",
    uid: metadata.uid,
    deleting: metadata.deletionTimestamp != null,
    expired: ready?.reason === "SandboxExpired",
    suspended: spec?.operatingMode === "Suspended",
  };
}

/** Asks for the Pod that lives under a name now, on whatever node (contract: Superseded). A quorum GET. */
export async function readPod(client: KubeClient, namespace: string, name: string): Promise<CurrentPod> {
  const read = await getPod(client, namespace, name);
  if (read.kind === "failed") return read;
  if (read.kind === "not_found") {
    return read.named
      ? { kind: "not_found" }
      : { kind: "failed", why: `Pod ${namespace}/${name}: ${read.why}` };
  }
  const { metadata, spec, status } = read.pod;
  return {
    kind: "found",
    uid: metadata.uid,
    ownerUid: metadata.ownerReferences?.find((reference) => reference.controller === true)?.uid ?? "",
    nodeName: spec?.nodeName ?? "",
    running: status?.phase === "Running",
    claimId: metadata.annotations?.[claimIdAnnotation] ?? "",
  };
}

/** Asks for a Pod without a controller owner, which is its own authority. The same rules of evidence as `readOwner`. */
export async function readBarePod(client: KubeClient, namespace: string, name: string): Promise<OwnerState> {
  const read = await getPod(client, namespace, name);
  if (read.kind === "failed") return read;
  if (read.kind === "not_found") return { kind: "not_found", named: read.named };
  return {
    kind: "found",
    uid: read.pod.metadata.uid,
    deleting: read.pod.metadata.deletionTimestamp != null,
    expired: false,
    suspended: false,
  };
}

type PodRead =
  | { kind: "found"; pod: Pod }
  | { kind: "not_found"; named: boolean; why: string }
  | { kind: "failed"; why: string };

async function getPod(client: KubeClient, namespace: string, name: string): Promise<PodRead> {
  const who = `Pod ${namespace}/${name}`;
  const path = apiPath("/api/v1", "namespaces", namespace, "pods", name);
  if (path === undefined) return { kind: "failed", why: `${who}: not a name the API could serve` };
  const reply = await client.request("GET", path, { verb: "get" });
  if (!reply.ok) {
    const why = describeFailure(reply);
    if (isNotFound(reply)) return { kind: "not_found", named: isNamed(reply, name, "pods"), why };
    return { kind: "failed", why: `${who}: ${why}` };
  }
  const parsed = v.safeParse(podSchema, reply.body);
  if (!parsed.success) {
    return { kind: "failed", why: `${who}: the answer is no Pod: ${issue(parsed.issues)}` };
  }
  const { metadata } = parsed.output;
  if (metadata.name !== name || metadata.namespace !== namespace) {
    return {
      kind: "failed",
      why: `${who}: the answer is about ${metadata.namespace ?? ""}/${metadata.name}`,
    };
  }
  return { kind: "found", pod: parsed.output };
}

type NotFound = Extract<KubeFailure, { kind: "status" | "http" }>;

function isNotFound(reply: KubeFailure): reply is NotFound {
  return (reply.kind === "status" || reply.kind === "http") && reply.code === 404;
}

/** Whether a 404 is evidence: a Status, NotFound, about this very object. A proxy's 404 is not. */
function isNamed(reply: NotFound, name: string, plural: string): boolean {
  return (
    reply.kind === "status" &&
    reply.reason === "NotFound" &&
    reply.detailsName === name &&
    (reply.detailsKind === "" || reply.detailsKind === plural)
  );
}

function issue(issues: readonly v.BaseIssue<unknown>[]): string {
  const first = issues[0];
  return first === undefined ? "" : `${v.getDotPath(first) ?? ""}: ${first.message}`;
}

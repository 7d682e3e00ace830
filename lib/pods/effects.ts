import { ipVersion } from "../config/index.ts";
import { apiPath, type KubeClient, type KubeReply, strategicMergePatch } from "../kube/index.ts";
import { CLAIM_ID_ANNOTATION, splitKey } from "../provider/pod.ts";
import type {
  CallResult,
  ClaimResult,
  CurrentPod,
  Effect,
  Event,
  Listed,
  OwnerRef,
  OwnerState,
  ReadResult,
} from "../provider/types.ts";

/** What the effects need of sandboxd (facts: sandboxd's HTTP API). */
export interface SandboxdCalls {
  claim(spec: {
    template: string;
    net: string;
    size: string;
    ttlSeconds: number;
    claimRef: string;
  }): Promise<ClaimResult>;
  list(claimRef?: string): Promise<{ ok: true; rows: Listed[] } | { ok: false; why: string }>;
  read(id: string): Promise<ReadResult>;
  release(id: string, token: string): Promise<CallResult>;
  renew(id: string, token: string, ttlSeconds: number): Promise<CallResult>;
  hibernate(id: string, token: string): Promise<CallResult>;
  wake(id: string, token: string): Promise<CallResult>;
  /** Host of an owner_addr. */
  hostOf(address: string): string;
}

/** Quorum reads of whoever decides about a claim. */
export interface AuthorityReads {
  owner(namespace: string, owner: OwnerRef): Promise<OwnerState>;
  barePod(namespace: string, name: string): Promise<OwnerState>;
  pod(namespace: string, name: string): Promise<CurrentPod>;
}

export interface EffectsOptions {
  kube: KubeClient;
  sandboxd: SandboxdCalls;
  reads: AuthorityReads;
  /** The Node's own address: the IP of a Pod whose owner_addr is not known. Empty: none. */
  fallbackAddress?: string;
  /** Turns a host name of owner_addr into an IP. */
  resolve?: (host: string) => Promise<string>;
}

const FIELD_MANAGER = "vk-sandbox";

/**
 * Carries out what the core asks for and turns the answer into the event it waits for. Every call has a
 * deadline of its client, so every effect is answered.
 *
 * @returns a function that starts the effect; its promise never rejects
 */
export function createEffects(options: EffectsOptions): (effect: Effect) => Promise<Event> {
  const { kube, sandboxd, reads, fallbackAddress = "", resolve = resolveHost } = options;

  /** podIP, podIPs and hostIP from owner_addr (contract: Create 4). */
  async function addresses(address: string): Promise<Record<string, unknown>> {
    let host = sandboxd.hostOf(address || fallbackAddress);
    if (host !== "" && ipVersion(host) === 0) host = await resolve(host);
    if (host === "") return {};
    const replace = { $patch: "replace" };
    return { podIP: host, podIPs: [replace, { ip: host }], hostIP: host, hostIPs: [replace, { ip: host }] };
  }

  async function patchStatus(
    effect: { key: string; uid: string },
    status: Record<string, unknown>,
    claimId: string,
  ): Promise<CallResult> {
    const metadata: Record<string, unknown> = { uid: effect.uid };
    if (claimId !== "") metadata.annotations = { [CLAIM_ID_ANNOTATION]: claimId };
    const reply = await kube.request("PATCH", `${podPath(effect.key)}/status`, {
      body: { metadata, status },
      contentType: strategicMergePatch,
      query: { fieldManager: FIELD_MANAGER },
      metadataOnly: true,
      // The same status twice is the same status.
      repeatable: true,
    });
    return callResult(reply);
  }

  async function deletePod(effect: { key: string; uid: string }): Promise<CallResult> {
    const reply = await kube.request("DELETE", podPath(effect.key), {
      body: {
        apiVersion: "v1",
        kind: "DeleteOptions",
        gracePeriodSeconds: 0,
        preconditions: { uid: effect.uid },
      },
      metadataOnly: true,
    });
    return callResult(reply);
  }

  async function run(effect: Effect): Promise<Event> {
    switch (effect.kind) {
      case "claim": {
        const { template, net, size, ttlSeconds, key } = effect;
        const result = await sandboxd.claim({ template, net, size, ttlSeconds, claimRef: key });
        return { type: "claimed", effect, result };
      }
      case "find":
        return { type: "found", effect, result: await sandboxd.list(effect.key) };
      case "list":
        return { type: "listed", effect, result: await sandboxd.list() };
      case "read":
        return { type: "read", effect, result: await sandboxd.read(effect.id) };
      case "ask": {
        const { namespace, name } = splitKey(effect.key);
        if (effect.owner === undefined) {
          return { type: "asked", effect, owner: await reads.barePod(namespace, name) };
        }
        const [owner, pod] = await Promise.all([
          reads.owner(namespace, effect.owner),
          effect.withPod ? reads.pod(namespace, name) : undefined,
        ]);
        return { type: "asked", effect, owner, pod };
      }
      case "release":
        return { type: "called", effect, result: await sandboxd.release(effect.id, effect.token) };
      case "hibernate":
        return { type: "called", effect, result: await sandboxd.hibernate(effect.id, effect.token) };
      case "wake":
        return { type: "called", effect, result: await sandboxd.wake(effect.id, effect.token) };
      case "renew": {
        const result = await sandboxd.renew(effect.id, effect.token, effect.ttlSeconds);
        return { type: "called", effect, result };
      }
      case "publish": {
        // A Running Pod carries its VM's address; any other status leaves the addresses alone.
        const status =
          effect.status.phase === "Running"
            ? { ...effect.status, ...(await addresses(effect.address)) }
            : effect.status;
        return { type: "called", effect, result: await patchStatus(effect, status, effect.claimId) };
      }
      case "finalize": {
        if (effect.status !== undefined) await patchStatus(effect, effect.status, "");
        return { type: "called", effect, result: await deletePod(effect) };
      }
      case "evict":
        return { type: "called", effect, result: await deletePod(effect) };
    }
  }

  return async (effect) => {
    try {
      return await run(effect);
    } catch (error) {
      return failed(effect, error instanceof Error ? error.message : String(error));
    }
  };
}

/** The answer of an effect whose own code failed: never success, never absence. */
function failed(effect: Effect, why: string): Event {
  switch (effect.kind) {
    case "claim":
      return {
        type: "claimed",
        effect,
        result: { ok: false, lost: true, cause: { kind: "bad_reply", message: why } },
      };
    case "find":
      return { type: "found", effect, result: { ok: false, why } };
    case "list":
      return { type: "listed", effect, result: { ok: false, why } };
    case "read":
      return { type: "read", effect, result: { ok: false, absent: false, why } };
    case "ask":
      return { type: "asked", effect, owner: { kind: "failed", why } };
    default:
      return { type: "called", effect, result: { ok: false, kind: "failed", why } };
  }
}

function podPath(key: string): string {
  const { namespace, name } = splitKey(key);
  const path = apiPath("/api/v1", "namespaces", namespace, "pods", name);
  if (path === undefined) throw new Error(`Pod key ${key} cannot be an API path`);
  return path;
}

/** What a write to the API came to. Another generation under the same name means that ours is gone. */
function callResult(reply: KubeReply): CallResult {
  if (reply.ok) {
    const metadata = (reply.body as { metadata?: { resourceVersion?: unknown } } | null)?.metadata;
    const resourceVersion = metadata?.resourceVersion;
    return { ok: true, resourceVersion: typeof resourceVersion === "string" ? resourceVersion : undefined };
  }
  const why = reply.message;
  if (reply.kind === "status") {
    if (reply.code === 404) return { ok: false, kind: "gone", why };
    // A UID that differs: 422 Invalid on metadata.uid for a patch, 409 Conflict for a delete's precondition.
    if ((reply.code === 422 || reply.code === 409) && /\buid\b/i.test(why))
      return { ok: false, kind: "gone", why };
    if (reply.code === 422) return { ok: false, kind: "refused", why };
  }
  return { ok: false, kind: "failed", why };
}

/** Bun's own resolver and `ipVersion`: node:dns and node:net would cost more memory than all of lib/provider. */
async function resolveHost(host: string): Promise<string> {
  try {
    return (await Bun.dns.lookup(host, { backend: "system" }))[0]?.address ?? "";
  } catch {
    return "";
  }
}

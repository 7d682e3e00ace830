import * as v from "valibot";
import { describeFailure, type KubeClient } from "./client.ts";
import { type Clock, isRecent, systemClock } from "./clock.ts";

/** What the API server says about a kind. */
export type Lookup =
  | { kind: "served"; plural: string; namespaced: boolean }
  /** The server answered: it does not serve this group-version, or no such kind in it. */
  | { kind: "absent"; why: string }
  /** No answer that could be understood. */
  | { kind: "unknown"; why: string };

export interface Plural {
  plural: string;
  namespaced: boolean;
  /** rules: discovery could not be asked, or does not know the kind; `why` says which. */
  from: "discovery" | "rules";
  why: string;
}

export interface Discovery {
  /** What is served under `apiVersion` (`v1`, `agents.x-k8s.io/v1beta1`) as `kind`. Cached. Never throws. */
  lookup(apiVersion: string, kind: string): Promise<Lookup>;
  /** The resource name of a kind: what discovery says, else what the rules make of it (then taken for namespaced). */
  pluralOf(apiVersion: string, kind: string): Promise<Plural>;
  /** Forgets a group-version: it answered 404 although it was served. */
  forget(apiVersion: string): void;
}

export interface DiscoveryOptions {
  clock?: Clock;
  /** How long an answer holds. Default 600,000. */
  ttlMs?: number;
  /** How long "not served" holds: a CRD may be installed any moment. Default 30,000. */
  absentTtlMs?: number;
  /** How long a failure to ask holds, so that a server in trouble is not asked for each Pod. Default 5,000. */
  unknownTtlMs?: number;
}

/** Group-versions remembered; tenants choose what their Pods' owners are called. */
export const groupVersionsMax = 64;

const resourceListSchema = v.object({
  kind: v.literal("APIResourceList"),
  groupVersion: v.pipe(v.string(), v.nonEmpty()),
  resources: v.array(
    v.object({ name: v.pipe(v.string(), v.nonEmpty()), kind: v.string(), namespaced: v.boolean() }),
  ),
});

type Answer =
  | { kind: "list"; kinds: Map<string, { plural: string; namespaced: boolean }> }
  | { kind: "absent" | "unknown"; why: string };

interface Entry {
  answer: Promise<Answer>;
  /** When it was asked, and then when it was answered. */
  fromMs: number;
  /** Infinity while it is being asked. */
  holdMs: number;
}

/** Asks the API's own discovery (GET /api/v1, /apis/GROUP/VERSION) for resource names. */
export function createDiscovery(client: KubeClient, options: DiscoveryOptions = {}): Discovery {
  const { clock = systemClock, ttlMs = 600_000, absentTtlMs = 30_000, unknownTtlMs = 5_000 } = options;
  const entries = new Map<string, Entry>();

  function ask(apiVersion: string): Promise<Answer> {
    const known = entries.get(apiVersion);
    if (known !== undefined && isRecent(clock.now(), known.fromMs, known.holdMs)) return known.answer;
    entries.delete(apiVersion);
    if (entries.size >= groupVersionsMax) {
      for (const oldest of entries.keys()) {
        entries.delete(oldest);
        break;
      }
    }
    const entry: Entry = {
      answer: fetchList(client, apiVersion),
      fromMs: clock.now(),
      holdMs: Number.POSITIVE_INFINITY,
    };
    entries.set(apiVersion, entry);
    void entry.answer.then((answer) => {
      entry.fromMs = clock.now();
      entry.holdMs = answer.kind === "list" ? ttlMs : answer.kind === "absent" ? absentTtlMs : unknownTtlMs;
    });
    return entry.answer;
  }

  async function lookup(apiVersion: string, kind: string): Promise<Lookup> {
    if (groupVersionPath(apiVersion) === undefined) {
      return {
        kind: "unknown",
        why: `apiVersion ${JSON.stringify(apiVersion)} is not a group and a version`,
      };
    }
    const answer = await ask(apiVersion);
    if (answer.kind !== "list") return answer;
    const found = answer.kinds.get(kind);
    if (found === undefined) return { kind: "absent", why: `${apiVersion} is served, but no ${kind} in it` };
    return { kind: "served", ...found };
  }

  return {
    lookup,
    async pluralOf(apiVersion, kind) {
      const found = await lookup(apiVersion, kind);
      if (found.kind === "served") {
        return { plural: found.plural, namespaced: found.namespaced, from: "discovery", why: "" };
      }
      return { plural: pluralByRules(kind), namespaced: true, from: "rules", why: found.why };
    },
    forget(apiVersion) {
      entries.delete(apiVersion);
    },
  };
}

async function fetchList(client: KubeClient, apiVersion: string): Promise<Answer> {
  const path = groupVersionPath(apiVersion);
  if (path === undefined) return { kind: "unknown", why: `${apiVersion} is no apiVersion` };
  const reply = await client.request("GET", path);
  if (!reply.ok) {
    const why = `discovery of ${apiVersion}: ${describeFailure(reply)}`;
    // kube-apiserver answers a group it does not serve in plain text, without a Status.
    const absent = (reply.kind === "http" || reply.kind === "status") && reply.code === 404;
    return { kind: absent ? "absent" : "unknown", why };
  }
  const parsed = v.safeParse(resourceListSchema, reply.body);
  if (!parsed.success || parsed.output.groupVersion !== apiVersion) {
    return { kind: "unknown", why: `discovery of ${apiVersion}: the answer is not its APIResourceList` };
  }
  const kinds = new Map<string, { plural: string; namespaced: boolean }>();
  for (const resource of parsed.output.resources) {
    // Subresources (pods/status) repeat the kind of their parent.
    if (resource.name.includes("/") || kinds.has(resource.kind)) continue;
    kinds.set(resource.kind, { plural: resource.name, namespaced: resource.namespaced });
  }
  return { kind: "list", kinds };
}

/**
 * The API's path of a group-version: `/api/v1`, or `/apis/GROUP/VERSION`.
 *
 * @returns undefined when it is no apiVersion: it comes from an ownerReference, which tenants write
 */
export function groupVersionPath(apiVersion: string): string | undefined {
  if (apiVersion === "v1") return "/api/v1";
  return /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?\/[a-z][a-z0-9]*$/.test(apiVersion) && !apiVersion.includes("..")
    ? `/apis/${apiVersion}`
    : undefined;
}

/**
 * The plural that English makes of a kind, in lower case: Sandbox → sandboxes, Policy → policies, Class →
 * classes, Gateway → gateways. Only for when discovery cannot be asked (contract: Delete).
 */
export function pluralByRules(kind: string): string {
  const singular = kind.toLowerCase();
  if (singular === "endpoints") return singular;
  if (/(s|x|z|ch|sh)$/.test(singular)) return `${singular}es`;
  if (/[^aeiou]y$/.test(singular)) return `${singular.slice(0, -1)}ies`;
  return `${singular}s`;
}

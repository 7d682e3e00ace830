import {
  apiPath,
  applyPatch,
  type Clock,
  describeFailure,
  type KubeClient,
  type KubeReply,
} from "../kube/index.ts";
import type { Listed } from "../provider/types.ts";

/** Groups that serve NodeInventory, the newer first (contract: Inventory). */
export const INVENTORY_GROUPS = [
  "sandbox.cocoonstack.io/v1beta1",
  "extensions.agents.x-k8s.io/v1beta1",
] as const;

/** Readers drop a node that trails by 90 s, so unchanged content is sent again after this long. */
export const UNCHANGED_MS_MAX = 55_000;

/** Entries of one object: etcd takes 1.5 MiB, and an entry is about 250 bytes. */
export const ENTRIES_MAX = 4_000;

const FIELD_MANAGER = "vk-sandbox";

/** One pool as `GET /v1/info` tells it. */
export interface InventoryPool {
  template: string;
  net: string;
  size: string;
  warm: number;
  target: number;
}

export interface InventoryOptions {
  kube: KubeClient;
  nodeName: string;
  /** host:port at which others reach sandboxd. */
  advertiseAddr: string;
  intervalMs: number;
  /** Rows of sandboxd's index; undefined when it could not be read. */
  list: () => Promise<readonly Listed[] | undefined>;
  /** Pools of sandboxd; undefined when they could not be read. */
  pools: () => Promise<readonly InventoryPool[] | undefined>;
  /** Addresses of our claims by claim id; a sandbox that is not ours has none. Asked once for each round. */
  addresses: () => ReadonlyMap<string, string>;
  /** UID of our Node object; undefined while it is not registered. */
  nodeUid: () => string | undefined;
  clock: Clock;
  onPublished?: (bytes: number) => void;
  /** A tick that did not publish: why. */
  onSkipped?: (why: string) => void;
}

export interface Inventory {
  start(): void;
  stop(): void;
  /** One round now. Returns why nothing was published, or undefined. For tests and for the timer. */
  publish(): Promise<string | undefined>;
}

/**
 * Publishes what this node holds as one cluster-scoped NodeInventory, by server-side apply with force.
 *
 * A tick whose listing or pools cannot be read is skipped: an empty inventory would tell readers that every
 * sandbox is gone. The object is owned by the Node, so deleting the Node collects it; a tick that finds the
 * Node gone publishes nothing, since an object without an owner would stay for ever
 * (docs/decisions/inventory-owner.md).
 */
export function createInventory(options: InventoryOptions): Inventory {
  const { kube, nodeName, clock, intervalMs } = options;
  let group: string | undefined;
  /** Digest of what was sent last: the text itself is half a megabyte with 2,000 sandboxes. */
  let lastContent: bigint | number = 0n;
  let lastSentMs = Number.NEGATIVE_INFINITY;
  let nodeSeen = false;
  /** The served CRD is the older one, which lacks publishedAt, template and claimedAt. */
  let older = false;
  let cancel: (() => void) | undefined;
  let stopped = false;

  async function servedGroup(): Promise<string | undefined> {
    for (const candidate of INVENTORY_GROUPS) {
      const reply = await kube.request("GET", `/apis/${candidate}`);
      if (!reply.ok) continue;
      const resources = (reply.body as { resources?: unknown } | null)?.resources;
      if (!Array.isArray(resources)) continue;
      if (resources.some((resource) => resource?.name === "nodeinventories")) return candidate;
    }
    return undefined;
  }

  async function publish(): Promise<string | undefined> {
    const nodeUid = options.nodeUid();
    if (nodeUid === undefined && nodeSeen) return "the Node is gone, and the inventory goes with it";
    nodeSeen ||= nodeUid !== undefined;
    const [rows, pools] = await Promise.all([options.list(), options.pools()]);
    if (rows === undefined) return "sandboxd's index could not be read";
    if (pools === undefined) return "sandboxd's pools could not be read";
    group ??= await servedGroup();
    if (group === undefined) {
      return `the API server serves NodeInventory in neither ${INVENTORY_GROUPS.join(" nor ")}: install its CRD`;
    }
    const content = contentOf(rows, pools, nodeUid);
    const digest = Bun.hash(JSON.stringify(content));
    const nowMs = clock.now();
    if (digest === lastContent && nowMs - lastSentMs < UNCHANGED_MS_MAX - intervalMs / 2) return undefined;
    let sent = await apply(
      group,
      older ? withoutNewer(content) : { ...content, publishedAt: rfc3339(nowMs) },
    );
    if (!sent.reply.ok && !older && /not declared in schema/.test(sent.reply.message)) {
      // Server-side apply answers 500 to a field that the CRD lacks, whatever fieldValidation says (seen on 1.36).
      older = true;
      sent = await apply(group, withoutNewer(content));
    }
    if (!sent.reply.ok) {
      // Another version of the CRD may have been installed meanwhile: look again at the next tick.
      if ((sent.reply.kind === "status" || sent.reply.kind === "http") && sent.reply.code === 404) {
        group = undefined;
        older = false;
      }
      return describeFailure(sent.reply);
    }
    lastContent = digest;
    lastSentMs = nowMs;
    options.onPublished?.(sent.bytes);
    return undefined;
  }

  async function apply(served: string, content: object): Promise<{ reply: KubeReply; bytes: number }> {
    const body = JSON.stringify({ apiVersion: served, kind: "NodeInventory", ...content });
    // A node name has been validated as a DNS name, so it is always a path segment.
    const path = apiPath(`/apis/${served}`, "nodeinventories", nodeName) ?? "";
    const reply = await kube.request("PATCH", path, {
      body,
      contentType: applyPatch,
      query: { fieldManager: FIELD_MANAGER, force: "true", fieldValidation: "Ignore" },
      metadataOnly: true,
      verb: "apply",
    });
    return { reply, bytes: body.length };
  }

  function contentOf(rows: readonly Listed[], pools: readonly InventoryPool[], nodeUid: string | undefined) {
    const metadata: Record<string, unknown> = { name: nodeName };
    if (nodeUid !== undefined) {
      metadata.ownerReferences = [{ apiVersion: "v1", kind: "Node", name: nodeName, uid: nodeUid }];
    }
    const addresses = options.addresses();
    const entries = rows.slice(0, ENTRIES_MAX).map((row) => ({
      name: row.claimRef !== "" ? row.claimRef : row.id,
      id: row.id,
      phase: row.hibernated ? "Hibernated" : "Running",
      template: row.template,
      claimRef: row.claimRef === "" ? undefined : row.claimRef,
      addr: addresses.get(row.id),
      deadline: row.deadlineMs === 0 ? undefined : rfc3339(row.deadlineMs),
      claimedAt: row.claimedAtMs === undefined ? undefined : rfc3339(row.claimedAtMs),
    }));
    // sandboxd's order may vary between calls; a stable one lets unchanged content be recognised.
    entries.sort((a, b) => (a.id < b.id ? -1 : 1));
    return { metadata, node: nodeName, address: options.advertiseAddr, pools, entries };
  }

  function arm(delayMs: number): void {
    cancel = clock.after(delayMs, async () => {
      const why = await publish();
      if (why !== undefined) options.onSkipped?.(why);
      if (!stopped) arm(intervalMs);
    });
  }

  return {
    publish,
    start: () => arm(0),
    stop() {
      stopped = true;
      cancel?.();
    },
  };
}

/** The content as the older CRD knows it. */
function withoutNewer<T extends { entries: { template?: unknown; claimedAt?: unknown }[] }>(
  content: T,
): object {
  const entries = content.entries.map(({ template: _template, claimedAt: _claimedAt, ...entry }) => entry);
  return { ...content, entries };
}

function rfc3339(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 19)}Z`;
}

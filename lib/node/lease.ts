/** The heartbeat in kube-node-lease, and with it the question who serves this Node. */
import * as v from "valibot";
import {
  apiPath,
  type Clock,
  describeFailure,
  type KubeClient,
  type KubeFailure,
  mergePatch,
} from "../kube/index.ts";
import type { Log } from "../log/index.ts";

/** What kubelets use (contract: Node). */
export const leaseDurationSeconds = 40;
export const renewIntervalMs = 10_000;
/** Every kubelet and every virtual kubelet renews each 10 s: one that stays silent for longer than two renewals is gone. */
export const observeMs = 25_000;
const observeStepMs = 5000;
/**
 * A lease of another that is older than this is not even observed. Far above the lease's own 40 s, so that a
 * clock that is minutes off does not make a living holder look dead.
 */
const certainlyDeadMs = 600_000;
/** Well below the 40 s after which a Node counts as silent. */
const gapMsMax = 30_000;
const retryMsMin = 500;
const retryMsMax = 7000;
const requestTimeoutMs = 8000;

/** This provider as a lease holder: the same host with the same state is the same provider, whatever its process. */
export interface Identity {
  nodeName: string;
  /** Machine id and absolute state path, or other texts that tell this provider from one elsewhere. */
  parts: string[];
  pid: number;
}

/** What tells this provider from one elsewhere: its host and the absolute path of its state. */
export function identityParts(info: { machineID: string; bootID: string }, statePath: string): string[] {
  // A container has no machine id of its own; the boot id is the host's there too.
  return [info.machineID === "" ? info.bootID : info.machineID, statePath];
}

/**
 * `<node>_<16 hex of a digest>_<pid>`. The digest is what counts: after kill -9 the next process on the same
 * state recognises its own lease and starts at once (the state file's kernel lock keeps two from running),
 * while a provider on another host, or with another state, is a second one.
 */
export function holderIdentity({ nodeName, parts, pid }: Identity): string {
  const digest = new Bun.CryptoHasher("sha256").update(parts.join("\0")).digest("hex").slice(0, 16);
  return `${nodeName}_${digest}_${pid}`;
}

/** Whether two holder identities are incarnations of one provider. */
export function sameProvider(a: string, b: string): boolean {
  const trunk = (identity: string) => identity.slice(0, Math.max(0, identity.lastIndexOf("_")));
  return trunk(a) !== "" && trunk(a) === trunk(b);
}

export interface LeaseOptions {
  kube: Pick<KubeClient, "request">;
  nodeName: string;
  holder: string;
  clock: Clock;
  log: Log;
  /** In [0, 1); spreads retries. */
  random: () => number;
  /** The Node's uid once registered: a Lease owned by its Node is collected with it. */
  nodeUID: () => string | undefined;
  /** The Lease is gone, which happens when its Node was deleted. Called before it is made again. */
  onMissing: () => Promise<void>;
  /** A renewal came so late that the Node may have been marked Unknown meanwhile. */
  onGap: () => void;
  /** Another provider holds the lease now: this one must stop. */
  onLost: (holder: string) => void;
}

/** Whether this Node is ours to serve. */
export type Acquired =
  | { ok: true }
  | { ok: false; holder: string; message: string }
  | { ok: false; stopped: true };

export interface LeaseController {
  /**
   * Finds out whether another provider serves this Node, and takes the lease when none does. Waits for the API
   * server for as long as it takes. A foreign lease that may be alive is watched for up to 25 s: renewed in
   * that time, it is refused; silent, it is taken over (a migration from another provider takes this path).
   */
  acquire(): Promise<Acquired>;
  /** Renews each 10 s from now on. */
  start(): void;
  stop(): void;
  /** When the last renewal was accepted; 0 before the first. */
  renewedAtMs(): number;
}

const leaseSchema = v.object({
  metadata: v.object({
    resourceVersion: v.pipe(v.string(), v.minLength(1)),
    ownerReferences: v.nullish(v.array(v.object({ kind: v.string(), uid: v.string() }))),
  }),
  spec: v.nullish(v.object({ holderIdentity: v.nullish(v.string()), renewTime: v.nullish(v.string()) })),
});

interface SeenLease {
  resourceVersion: string;
  holder: string;
  renewTime: string;
  ownerUID: string | undefined;
}

function readLease(body: unknown): SeenLease | undefined {
  const parsed = v.safeParse(leaseSchema, body);
  if (!parsed.success) return undefined;
  const { metadata, spec } = parsed.output;
  return {
    resourceVersion: metadata.resourceVersion,
    holder: spec?.holderIdentity ?? "",
    renewTime: spec?.renewTime ?? "",
    ownerUID: metadata.ownerReferences?.find((owner) => owner.kind === "Node")?.uid,
  };
}

type Got = { kind: "lease"; lease: SeenLease } | { kind: "missing" } | { kind: "failed"; why: string };

const isCode = (failure: KubeFailure, code: number) => failure.kind === "status" && failure.code === code;

export function leaseController(options: LeaseOptions): LeaseController {
  const { kube, nodeName, holder, clock, log, random, nodeUID, onMissing, onGap, onLost } = options;
  const collection = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
  // A node name has been validated as a DNS name, so it is always a path segment.
  const path = apiPath(collection, nodeName) ?? collection;
  let held: SeenLease | undefined;
  let renewedAtMs = 0;
  let stopped = false;
  let renewing = false;
  let failures = 0;
  let cancel = () => {};
  let wake = () => {};

  const wait = (delayMs: number) =>
    new Promise<void>((resolve) => {
      wake = resolve;
      cancel = clock.after(delayMs, resolve);
    });

  const retryDelay = () => {
    const boundMs = Math.min(retryMsMax, retryMsMin * 2 ** Math.min(failures, 10));
    return boundMs / 2 + (random() * boundMs) / 2;
  };

  const failed = (what: string, why: string) => {
    failures++;
    // The first and then every eighth: an API server that is away for an hour must not fill the log.
    if (failures === 1 || failures % 8 === 0)
      log.warn(`${what}; tried again until it works`, { lease: nodeName, why, failures });
  };

  const get = async (): Promise<Got> => {
    const reply = await kube.request("GET", path, { exempt: true, timeoutMs: requestTimeoutMs });
    if (!reply.ok)
      return isCode(reply, 404) ? { kind: "missing" } : { kind: "failed", why: describeFailure(reply) };
    const lease = readLease(reply.body);
    return lease === undefined
      ? { kind: "failed", why: "the reply is not a Lease" }
      : { kind: "lease", lease };
  };

  const microTime = () => new Date(clock.now()).toISOString().replace("Z", "000Z");

  const spec = () => ({ holderIdentity: holder, leaseDurationSeconds, renewTime: microTime() });

  const owners = () => {
    const uid = nodeUID();
    return uid === undefined ? undefined : [{ apiVersion: "v1", kind: "Node", name: nodeName, uid }];
  };

  type Written =
    | { kind: "done" }
    | { kind: "missing" }
    | { kind: "conflict" }
    | { kind: "failed"; why: string };

  const accept = (body: unknown): Written => {
    const lease = readLease(body);
    if (lease === undefined) return { kind: "failed", why: "the reply is not a Lease" };
    const gapMs = renewedAtMs === 0 ? 0 : clock.now() - renewedAtMs;
    held = lease;
    renewedAtMs = clock.now();
    if (failures > 0) log.info("the lease is renewed again", { lease: nodeName, failures });
    failures = 0;
    if (gapMs > gapMsMax) onGap();
    return { kind: "done" };
  };

  const create = async (): Promise<Written> => {
    const metadata = { name: nodeName, namespace: "kube-node-lease", ownerReferences: owners() };
    const body = { apiVersion: "coordination.k8s.io/v1", kind: "Lease", metadata, spec: spec() };
    const reply = await kube.request("POST", collection, { body, exempt: true, timeoutMs: requestTimeoutMs });
    if (reply.ok) return accept(reply.body);
    return isCode(reply, 409) ? { kind: "conflict" } : { kind: "failed", why: describeFailure(reply) };
  };

  // A patch and not an update: an update would create a Lease that is gone, and hide that the Node is too.
  const patch = async (lease: SeenLease): Promise<Written> => {
    const ownerReferences = lease.ownerUID === nodeUID() ? undefined : owners();
    const body = { metadata: { resourceVersion: lease.resourceVersion, ownerReferences }, spec: spec() };
    const contentType = mergePatch;
    const reply = await kube.request("PATCH", path, {
      body,
      contentType,
      exempt: true,
      timeoutMs: requestTimeoutMs,
    });
    if (reply.ok) return accept(reply.body);
    if (isCode(reply, 404)) return { kind: "missing" };
    return isCode(reply, 409) ? { kind: "conflict" } : { kind: "failed", why: describeFailure(reply) };
  };

  const acquire = async (): Promise<Acquired> => {
    // The foreign lease under observation, and how long it has not moved.
    let observed: SeenLease | undefined;
    let silentMs = 0;
    while (!stopped) {
      const got = await get();
      if (got.kind === "failed") {
        failed("the lease of this Node cannot be read", got.why);
        await wait(retryDelay());
        continue;
      }
      const lease = got.kind === "lease" ? got.lease : undefined;
      if (lease !== undefined && lease.holder !== "" && !sameProvider(lease.holder, holder)) {
        const ageMs = clock.now() - Date.parse(lease.renewTime);
        if (
          observed !== undefined &&
          (observed.renewTime !== lease.renewTime || observed.holder !== lease.holder)
        )
          return { ok: false, holder: lease.holder, message: secondProvider(nodeName, lease) };
        if (!(ageMs > certainlyDeadMs) && silentMs < observeMs) {
          if (observed === undefined)
            log.info(
              "another provider held the lease of this Node; waiting to see whether it still renews it",
              {
                lease: nodeName,
                holder: lease.holder,
                renewTime: lease.renewTime,
                waitMs: observeMs,
              },
            );
          observed = lease;
          await wait(observeStepMs);
          silentMs += observeStepMs;
          continue;
        }
        log.warn("taking over the lease of another provider that no longer renews it", {
          lease: nodeName,
          holder: lease.holder,
          renewTime: lease.renewTime,
        });
      }
      const written = lease === undefined ? await create() : await patch(lease);
      if (written.kind === "done") return { ok: true };
      if (written.kind === "failed") failed("the lease of this Node cannot be written", written.why);
      await wait(written.kind === "failed" ? retryDelay() : retryMsMin);
    }
    return { ok: false, stopped: true };
  };

  /** One renewal, with what it takes to get there. Returns whether the lease is ours and fresh. */
  const renew = async (): Promise<boolean> => {
    let written: Written = held === undefined ? { kind: "conflict" } : await patch(held);
    if (written.kind === "conflict") {
      // Someone else wrote it, or our own write was applied and its reply lost: the holder tells.
      const got = await get();
      if (got.kind === "failed") written = got;
      else if (got.kind === "missing") written = { kind: "missing" };
      else if (got.lease.holder !== "" && !sameProvider(got.lease.holder, holder)) {
        stopped = true;
        log.error("another provider took the lease of this Node", {
          lease: nodeName,
          holder: got.lease.holder,
        });
        onLost(got.lease.holder);
        return false;
      } else written = await patch(got.lease);
    }
    if (written.kind === "missing") {
      await onMissing();
      written = await create();
    }
    if (written.kind === "conflict") {
      held = undefined;
      written = { kind: "failed", why: "the lease was written by someone else at the same time" };
    }
    if (written.kind === "failed") failed("the lease of this Node cannot be renewed", written.why);
    return written.kind === "done";
  };

  const loop = async () => {
    while (!stopped) {
      const startedMs = clock.now();
      const done = await renew();
      if (stopped) return;
      const tookMs = Math.min(Math.max(0, clock.now() - startedMs), renewIntervalMs);
      await wait(done ? renewIntervalMs - tookMs : retryDelay());
    }
  };

  return {
    acquire,
    start() {
      if (renewing || stopped) return;
      renewing = true;
      // What acquire wrote just now is good for one interval.
      void wait(held === undefined ? 0 : renewIntervalMs).then(loop);
    },
    stop() {
      stopped = true;
      cancel();
      wake();
    },
    renewedAtMs: () => renewedAtMs,
  };
}

function secondProvider(nodeName: string, lease: SeenLease): string {
  return `the Node ${nodeName} is served by another provider: its lease is held by "${lease.holder}", renewed at ${lease.renewTime}; stop that one, or start this one under another --node-name`;
}

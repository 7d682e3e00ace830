/** The Node's duties: registered, leased, reported, and true about sandboxd. One controller for each, one door for all. */
import type { Clock, KubeClient } from "../kube/index.ts";
import { type Log, silent } from "../log/index.ts";
import { type Acquired, leaseController } from "./lease.ts";
import type { Capacity, NodeSpec } from "./object.ts";
import { type ProbeResult, type Readiness, readiness } from "./readiness.ts";
import { statusController } from "./status.ts";

export { type Acquired, holderIdentity, identityParts } from "./lease.ts";
export { type NodeInfo, readNodeInfo } from "./machine.ts";
export { type Capacity, capacityTaintKey, type NodeSpec, providerTaintKey } from "./object.ts";
export type { ProbeResult, Readiness } from "./readiness.ts";

export interface NodeOptions {
  kube: Pick<KubeClient, "request">;
  spec: NodeSpec;
  /** From `holderIdentity`. */
  holder: string;
  /** Asks sandboxd whether it is there, within `timeoutMs`. */
  probe: (timeoutMs: number) => Promise<ProbeResult>;
  /** How long sandboxd must be unreachable before Ready turns False. */
  notReadyAfterMs: number;
  clock: Clock;
  /** In [0, 1). */
  random: () => number;
  log?: Log;
  /** Another provider took the lease while we ran: stop. */
  onLost: (holder: string) => void;
  /** The Node was registered, or registered again: its uid, for what it owns. */
  onRegistered?: (uid: string) => void;
  /** Ready changed in the object. */
  onReadiness?: (now: Readiness) => void;
}

export interface NodeController {
  /**
   * Refuses when another provider serves this Node; otherwise the Node is ours. Waits for an API server that is
   * away. To be awaited before a Pod is touched.
   */
  acquire(): Promise<Acquired>;
  /** Registers, and keeps Node, status and lease right from now on. Does not wait for any of it. */
  start(): void;
  /** Stops all of it. Node and lease stay as they are. */
  stop(): void;
  /** Resolves when the Node has been registered for the first time. */
  registered(): Promise<void>;
  /** The Node's uid; undefined before it is registered. */
  uid(): string | undefined;
  /**
   * Whether sandboxd has room, as often as it is learned. The taint is set at once and lifted after 30 s of
   * room without a refusal.
   */
  setCapacity(capacity: Capacity): void;
  readiness(): Readiness;
  /** When the lease was last renewed; 0 before. */
  renewedAtMs(): number;
}

/** Makes the Node's controllers. @example node.acquire().then((a) => a.ok && node.start()) */
export function createNode(options: NodeOptions): NodeController {
  const { kube, spec, holder, probe, notReadyAfterMs, clock, random, onLost } = options;
  const log = options.log ?? silent;
  const status = statusController({ kube, spec, clock, random, log, onRegistered: options.onRegistered });
  const lease = leaseController({
    kube,
    nodeName: spec.name,
    holder,
    clock,
    log,
    random,
    nodeUID: status.uid,
    onMissing: status.verify,
    // Nobody but us turns a Node that was marked Unknown Ready again, and the next regular status is minutes away.
    onGap: () => void status.verify(),
    onLost,
  });
  const ready = readiness({
    probe,
    notReadyAfterMs,
    clock,
    onChange: (now) => {
      if (now.state === "unreachable")
        log.warn("sandboxd cannot be reached; the Node is NotReady", { node: spec.name, why: now.why });
      else log.info("sandboxd answers; the Node is Ready", { node: spec.name });
      status.setReadiness(now);
      options.onReadiness?.(now);
    },
  });
  return {
    acquire: lease.acquire,
    start() {
      ready.start();
      status.start();
      lease.start();
    },
    stop() {
      ready.stop();
      status.stop();
      lease.stop();
    },
    registered: status.registered,
    uid: status.uid,
    setCapacity: status.setCapacity,
    readiness: ready.current,
    renewedAtMs: lease.renewedAtMs,
  };
}

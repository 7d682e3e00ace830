/** Posts the Node's status: at once when it changes, and often enough that nobody forgets the Node. */
import { apiPath, type Clock, describeFailure, type KubeClient, strategicMergePatch } from "../kube/index.ts";
import type { Log } from "../log/index.ts";
import {
  type Capacity,
  type Condition,
  type NodeSpec,
  readNode,
  type SeenNode,
  statusPatch,
} from "./object.ts";
import type { Readiness } from "./readiness.ts";
import { registration } from "./registration.ts";

/** At least this often (contract: Node); a little less, so that jitter keeps within it. */
export const reportIntervalMs = 290_000;
/** A capacity taint is lifted, or softened, after this long without a report that would set it. */
export const capacityLiftMs = 30_000;
/** How long the first status waits for the first probe, so that a new Node is Ready with its first request. */
const firstProbeMs = 1000;
const retryMsMin = 500;
const retryMsMax = 30_000;
const requestTimeoutMs = 8000;
const severity: Record<Capacity, number> = { available: 0, exhausted: 1, draining: 2 };

export interface StatusOptions {
  kube: Pick<KubeClient, "request">;
  spec: NodeSpec;
  clock: Clock;
  /** In [0, 1). */
  random: () => number;
  log: Log;
  onRegistered?: ((uid: string) => void) | undefined;
}

export interface StatusController {
  start(): void;
  stop(): void;
  /** Resolves when the Node has been registered for the first time. */
  registered(): Promise<void>;
  uid(): string | undefined;
  /** Looks at the Node now and registers it again if it is gone. Resolves when that was tried once. */
  verify: () => Promise<void>;
  setReadiness(now: Readiness): void;
  setCapacity(capacity: Capacity): void;
}

export function statusController(options: StatusOptions): StatusController {
  const { kube, spec, clock, random, log, onRegistered } = options;
  const path = apiPath("/api/v1/nodes", spec.name, "status") ?? "";
  const register = registration({ kube, spec, log });

  let node: SeenNode | undefined;
  let ready: Readiness = { state: "unknown", why: "" };
  let capacity: Capacity | undefined;
  let reported: Capacity = "available";
  /** By condition type: the status last published and since when. */
  const since = new Map<string, { status: string; lastTransitionTime: string }>();
  let started = false;
  let running = false;
  /** Something is to be posted that the API does not have. */
  let dirty = false;
  let round: Promise<void> | undefined;
  let failures = 0;
  let cancel = () => {};
  let cancelLift: (() => void) | undefined;
  let resolveRegistered = () => {};
  const registered = new Promise<void>((resolve) => {
    resolveRegistered = resolve;
  });

  const iso = () => `${new Date(clock.now()).toISOString().slice(0, 19)}Z`;

  const condition = (
    type: string,
    status: Condition["status"],
    reason: string,
    message: string,
  ): Condition => {
    const now = iso();
    const before = since.get(type);
    const lastTransitionTime =
      before?.status === status && before.lastTransitionTime !== "" ? before.lastTransitionTime : now;
    since.set(type, { status, lastTransitionTime });
    return { type, status, reason, message, lastHeartbeatTime: now, lastTransitionTime };
  };

  const readyCondition = (): Condition => {
    switch (ready.state) {
      case "reachable":
        return condition("Ready", "True", "SandboxdReady", "sandboxd answers");
      case "unreachable":
        return condition("Ready", "False", "SandboxdUnreachable", `sandboxd cannot be reached: ${ready.why}`);
      case "unknown":
        // After a restart nothing bad is known yet: what was Ready stays so until enough probes have failed.
        if (since.get("Ready")?.status === "True")
          return condition(
            "Ready",
            "True",
            "SandboxdReady",
            "sandboxd has not been reached since the provider started",
          );
        return condition("Ready", "False", "SandboxdNotYetReached", "sandboxd has not answered yet");
    }
  };

  const conditions = (): Condition[] => [
    readyCondition(),
    condition(
      "MemoryPressure",
      "False",
      "SandboxdAdmitsByMemory",
      "sandboxd admits microVMs by its own memory budget",
    ),
    condition(
      "DiskPressure",
      "False",
      "SandboxdAdmitsByDisk",
      "sandboxd admits microVMs by its own disk budget",
    ),
    condition(
      "PIDPressure",
      "False",
      "NoContainerProcesses",
      "workloads run in microVMs, not as processes of this host",
    ),
    condition("NetworkUnavailable", "False", "SandboxdRoutes", "sandboxd gives every microVM its address"),
  ];

  const remember = (seen: SeenNode) => {
    const again = node !== undefined && node.uid !== seen.uid;
    const first = node === undefined;
    node = seen;
    if (!first && !again) return;
    resolveRegistered();
    onRegistered?.(seen.uid);
  };

  let exists = false;
  let taintDirty = false;
  /** The last round found the Node gone: the next one makes it again at once. */
  let wasLost = false;

  const lost = (why: string): string => {
    // The uid stays until a new one is known: what the old Node owned is on its way out with it.
    log.warn("the Node is gone from the API; registering it again, its VMs are untouched", {
      node: spec.name,
      why,
    });
    exists = false;
    wasLost = true;
    return why;
  };

  /** Everything that has to be true of the Node, in as few requests as it takes. Returns why it is not, or undefined. */
  const work = async (): Promise<string | undefined> => {
    let fresh: SeenNode | undefined;
    // What changes from here on is posted by the next round.
    dirty = false;
    if (!exists) {
      const made = await register.ensure(capacity, conditions);
      if (!made.ok) return made.why;
      exists = true;
      if (made.created) {
        log.info("registered the Node", { node: spec.name, uid: made.node.uid });
        fresh = made.node;
      } else {
        log.info("adopted the Node that was there", { node: spec.name, uid: made.node.uid });
        for (const [type, seen] of made.node.conditions) since.set(type, seen);
      }
      remember(made.node);
    }
    if (fresh === undefined) {
      const reply = await kube.request("PATCH", path, {
        body: statusPatch(spec, conditions()),
        contentType: strategicMergePatch,
        exempt: true,
        timeoutMs: requestTimeoutMs,
      });
      if (!reply.ok) {
        const why = describeFailure(reply);
        return reply.kind === "status" && reply.code === 404 ? lost(why) : why;
      }
      fresh = readNode(reply.body, spec.name);
      if (fresh === undefined) return "the reply to the status is not this Node";
      remember(fresh);
    }
    const corrected = await register.correct(fresh, capacity);
    if (!corrected.ok) return corrected.gone ? lost(corrected.why) : corrected.why;
    remember(corrected.node);
    return undefined;
  };

  /** Labels and taints alone: what a change of capacity needs. */
  const correctOnly = async (): Promise<string | undefined> => {
    if (node === undefined || !exists) return work();
    const corrected = await register.correct(node, capacity);
    if (!corrected.ok) return corrected.gone ? lost(corrected.why) : corrected.why;
    remember(corrected.node);
    return undefined;
  };

  const schedule = (delayMs: number) => {
    cancel();
    if (running) cancel = clock.after(delayMs, () => void run(work));
  };

  const run = (what: () => Promise<string | undefined>): Promise<void> => {
    if (round !== undefined) return round;
    cancel();
    round = what()
      .then((why) => {
        if (!wasLost) return why;
        wasLost = false;
        return work();
      })
      .catch((error: unknown) => (error instanceof Error ? error.message : String(error)))
      .then((why) => {
        round = undefined;
        if (why !== undefined) {
          failures++;
          // The first and then every eighth: an API server that is away for an hour must not fill the log.
          if (failures === 1 || failures % 8 === 0)
            log.warn("the Node's status cannot be posted; tried again until it works", {
              node: spec.name,
              why,
              failures,
            });
          const boundMs = Math.min(retryMsMax, retryMsMin * 2 ** Math.min(failures - 1, 10));
          return schedule(boundMs / 2 + (random() * boundMs) / 2);
        }
        if (failures > 0) log.info("the Node's status is posted again", { node: spec.name, failures });
        failures = 0;
        if (dirty && running) return void run(work);
        const taintsChanged = taintDirty;
        taintDirty = false;
        if (taintsChanged && running) return void run(correctOnly);
        // A fleet that started together spreads over half a minute.
        schedule(reportIntervalMs - Math.floor(random() * 30_000));
      });
    return round;
  };

  const go = () => {
    if (started || !running) return;
    started = true;
    void run(work);
  };

  const applyCapacity = (now: Capacity) => {
    if (capacity === now) return;
    const before = capacity;
    capacity = now;
    log.info("the Node's capacity changed", { node: spec.name, capacity: now, before: before ?? "unknown" });
    if (!started || !running) return;
    if (round !== undefined) taintDirty = true;
    else void run(correctOnly);
  };

  return {
    start() {
      if (running) return;
      running = true;
      cancel = clock.after(firstProbeMs, go);
      if (ready.state !== "unknown") {
        cancel();
        go();
      }
    },
    stop() {
      running = false;
      cancel();
      cancelLift?.();
    },
    registered: () => registered,
    uid: () => node?.uid,
    async verify() {
      // A round that is under way may have seen the Node before it was deleted.
      if (round !== undefined) await round;
      await run(work);
    },
    setReadiness(now) {
      ready = now;
      if (!running) return;
      dirty = true;
      if (!started) {
        cancel();
        go();
      } else if (round === undefined) void run(work);
    },
    setCapacity(now) {
      reported = now;
      if (capacity === undefined || severity[now] >= severity[capacity]) {
        cancelLift?.();
        cancelLift = undefined;
        applyCapacity(now);
        return;
      }
      // Down only after a while without a report that would have kept it up.
      cancelLift ??= clock.after(capacityLiftMs, () => {
        cancelLift = undefined;
        applyCapacity(reported);
      });
    },
  };
}

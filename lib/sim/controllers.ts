/**
 * The cluster's controllers, as small as the demo and the tests can do with: what makes Pods of Sandboxes, binds them,
 * and clears up after their owners. They work on the stand-in's objects directly, or on any client of that shape.
 */
import type { ChangeType, KubeObject, OwnerReference } from "./kubestore.ts";
import { notReadyTaint } from "./objects.ts";
import { isObject, type JsonObject } from "./patch.ts";

type Eventually<T> = T | Promise<T>;

/** What a controller needs of a cluster; `Objects` of the API-server stand-in is one. */
export interface Cluster {
  get(resource: string, key: string): Eventually<KubeObject | undefined>;
  list(resource: string): Eventually<KubeObject[]>;
  create(resource: string, object: JsonObject): Eventually<KubeObject>;
  patch(resource: string, key: string, patch: JsonObject): Eventually<KubeObject>;
  /** An object that is not there is no error. */
  remove(
    resource: string,
    key: string,
    options?: { gracePeriodSeconds?: number; preconditions?: { uid?: string } },
  ): Eventually<KubeObject | undefined>;
  bind(key: string, nodeName: string): Eventually<void>;
  finalizeNamespace(name: string): Eventually<void>;
  watch(resource: string, each: (type: ChangeType, object: KubeObject) => void): () => void;
}

export interface ControllerOptions {
  now?: () => number;
  /** A failed attempt is repeated after so long. Default 100. */
  retryMs?: number;
  /** Told of each failed attempt. Default: nobody. */
  onError?: (controller: string, key: string, error: unknown) => void;
}

/** A running controller; call it to stop. */
export type Stop = () => void;

const sandboxes = "sandboxes.agents.x-k8s.io";

/** Starts all of them. */
export function startControllers(cluster: Cluster, options: ControllerOptions = {}): Stop {
  const stops = [
    startSandboxController(cluster, options),
    startScheduler(cluster, options),
    startGarbageCollector(cluster, options),
    startNodeLifecycle(cluster, options),
    startNamespaceController(cluster, options),
  ];
  return () => {
    for (const stop of stops) stop();
  };
}

/**
 * A Sandbox has a Pod of its name from spec.podTemplate, which is made again when it goes missing; none while it is
 * Suspended or after it expired, and no new one once its Pod has ended. Conditions Ready and Finished follow.
 */
export function startSandboxController(cluster: Cluster, options: ControllerOptions = {}): Stop {
  const now = options.now ?? Date.now;
  const timers = new Map<string, ReturnType<typeof setTimeout>>();
  const queue = createQueue("sandbox", options, async (key) => {
    const sandbox = await cluster.get(sandboxes, key);
    if (!sandbox || sandbox.metadata.deletionTimestamp) return;
    const pod = await cluster.get("pods", key);
    const own = pod && controllerOf(pod)?.uid === sandbox.metadata.uid ? pod : undefined;
    const { spec = {} } = sandbox;

    const expiresAtMs = typeof spec.shutdownTime === "string" ? Date.parse(spec.shutdownTime) : Number.NaN;
    if (expiresAtMs <= now()) {
      await removePod(own);
      if (spec.shutdownPolicy === "Delete") await cluster.remove(sandboxes, key);
      else await setReady(key, sandbox, "False", "SandboxExpired");
      return;
    }
    if (expiresAtMs > now()) wakeAt(key, expiresAtMs);
    if (spec.operatingMode === "Suspended") {
      await removePod(own);
      return setReady(key, sandbox, "False", "SandboxSuspended");
    }
    const { phase } = own?.status ?? {};
    if (phase === "Failed" || phase === "Succeeded") return finish(key, sandbox, `Pod${phase}`);
    const finished = conditions(sandbox).some(({ type, status }) => type === "Finished" && status === "True");
    if (!pod && !finished) await cluster.create("pods", podOf(sandbox));
    const ready = own && conditions(own).some(({ type, status }) => type === "Ready" && status === "True");
    if (!finished)
      await setReady(
        key,
        sandbox,
        ready ? "True" : "False",
        ready ? "DependenciesReady" : "DependenciesNotReady",
      );
  });

  async function removePod(pod: KubeObject | undefined): Promise<void> {
    if (pod && !pod.metadata.deletionTimestamp)
      await cluster.remove("pods", keyOf(pod), { preconditions: { uid: pod.metadata.uid } });
  }

  async function finish(key: string, sandbox: KubeObject, reason: string): Promise<void> {
    await setConditions(key, sandbox, [
      { type: "Ready", status: "False", reason },
      { type: "Finished", status: "True", reason },
    ]);
  }

  const setReady = (key: string, sandbox: KubeObject, status: string, reason: string) =>
    setConditions(key, sandbox, [{ type: "Ready", status, reason }]);

  async function setConditions(key: string, sandbox: KubeObject, wanted: Condition[]): Promise<void> {
    const old = conditions(sandbox);
    const same = wanted.every((each) =>
      old.some(
        ({ type, status, reason }) => type === each.type && status === each.status && reason === each.reason,
      ),
    );
    if (same) return;
    const kept = old.filter(({ type }) => !wanted.some((each) => each.type === type));
    const lastTransitionTime = new Date(now()).toISOString();
    const observedGeneration = sandbox.metadata.generation;
    const added = wanted.map((each) => ({ message: "", ...each, lastTransitionTime, observedGeneration }));
    await cluster.patch(`${sandboxes}/status`, key, { status: { conditions: [...kept, ...added] } });
  }

  function wakeAt(key: string, atMs: number): void {
    clearTimeout(timers.get(key));
    // Longer than a timer can be (24.8 days) is looked at again then.
    const timer = setTimeout(() => queue.add(key), Math.min(atMs - now(), 2 ** 31 - 1));
    timer.unref();
    timers.set(key, timer);
  }

  const stops = [
    cluster.watch(sandboxes, (type, sandbox) => {
      const key = keyOf(sandbox);
      if (type === "DELETED") clearTimeout(timers.get(key));
      else queue.add(key);
    }),
    cluster.watch("pods", (_, pod) => {
      const owner = controllerOf(pod);
      if (owner?.kind === "Sandbox") queue.add(`${pod.metadata.namespace}/${owner.name}`);
    }),
  ];
  return () => {
    for (const stop of [...stops, queue.stop]) stop();
    for (const timer of timers.values()) clearTimeout(timer);
  };
}

function podOf(sandbox: KubeObject): JsonObject {
  const { metadata, spec = {} } = sandbox;
  const template = isObject(spec.podTemplate) ? spec.podTemplate : {};
  const { labels, annotations } = isObject(template.metadata) ? template.metadata : {};
  const { name, namespace, uid } = metadata;
  const { apiVersion, kind } = sandbox;
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      name,
      namespace,
      labels,
      annotations,
      ownerReferences: [{ apiVersion, kind, name, uid, controller: true, blockOwnerDeletion: true }],
    },
    spec: template.spec,
  };
}

/**
 * Binds Pods without a node to a Ready Node that their nodeSelector and tolerations fit and that has room by count:
 * one without PreferNoSchedule taints they do not tolerate first, then the one with the fewest Pods.
 */
export function startScheduler(cluster: Cluster, options: ControllerOptions = {}): Stop {
  const bound = new Map<string, string>();
  const waiting = new Set<string>();
  const queue = createQueue("scheduler", options, async (key) => {
    const pod = await cluster.get("pods", key);
    if (!pod || pod.spec?.nodeName || pod.metadata.deletionTimestamp) return void waiting.delete(key);
    const load = new Map<string, number>();
    for (const node of bound.values()) load.set(node, (load.get(node) ?? 0) + 1);
    const pods = (node: KubeObject) => load.get(node.metadata.name) ?? 0;
    const fitting = (await cluster.list("nodes")).filter((node) => fits(pod, node, pods(node)));
    const [best] = fitting.sort((a, b) => avoided(pod, a) - avoided(pod, b) || pods(a) - pods(b));
    if (best) {
      waiting.delete(key);
      bound.set(key, best.metadata.name);
      return cluster.bind(key, best.metadata.name);
    }
    waiting.add(key);
    const told = conditions(pod).some(
      ({ type, reason }) => type === "PodScheduled" && reason === "Unschedulable",
    );
    if (told) return;
    const condition = {
      type: "PodScheduled",
      status: "False",
      reason: "Unschedulable",
      message: "no node fits",
    };
    await cluster.patch("pods/status", key, { status: { conditions: [condition] } });
  });
  const retry = () => {
    for (const key of waiting) queue.add(key);
  };
  const stops = [
    cluster.watch("pods", (type, pod) => {
      const key = keyOf(pod);
      const nodeName = pod.spec?.nodeName;
      if (type === "DELETED") {
        bound.delete(key);
        waiting.delete(key);
        retry();
      } else if (typeof nodeName === "string" && nodeName !== "") bound.set(key, nodeName);
      else queue.add(key);
    }),
    cluster.watch("nodes", retry),
  ];
  return () => {
    for (const stop of [...stops, queue.stop]) stop();
  };
}

function fits(pod: KubeObject, node: KubeObject, pods: number): boolean {
  const ready = conditions(node).some(({ type, status }) => type === "Ready" && status === "True");
  if (!ready || node.spec?.unschedulable === true) return false;
  const allocatable = isObject(node.status?.allocatable) ? node.status.allocatable : {};
  if (allocatable.pods !== undefined && pods >= Number(allocatable.pods)) return false;
  const selector = isObject(pod.spec?.nodeSelector) ? pod.spec.nodeSelector : {};
  const { labels = {} } = node.metadata;
  if (Object.entries(selector).some(([name, value]) => labels[name] !== value)) return false;
  return untolerated(pod, node).every(({ effect }) => effect === "PreferNoSchedule");
}

const avoided = (pod: KubeObject, node: KubeObject): number => untolerated(pod, node).length;

function untolerated(pod: KubeObject, node: KubeObject): JsonObject[] {
  const taints = Array.isArray(node.spec?.taints) ? node.spec.taints.filter(isObject) : [];
  const tolerations = Array.isArray(pod.spec?.tolerations) ? pod.spec.tolerations.filter(isObject) : [];
  return taints.filter(
    (taint) =>
      !tolerations.some(({ key, operator, value, effect }) => {
        if (effect && effect !== taint.effect) return false;
        if (key && key !== taint.key) return false;
        if (!key) return operator === "Exists";
        return operator === "Exists" || (value ?? "") === (taint.value ?? "");
      }),
  );
}

/** What the garbage collector looks after, beside Pods. */
const owned = ["pods", "leases.coordination.k8s.io", "nodeinventories.sandbox.cocoonstack.io"];
const owners: Record<string, string> = { Sandbox: sandboxes, Node: "nodes", Pod: "pods" };

/**
 * Deletes what all owners of are gone, judged by UID; lets owners under foregroundDeletion go after what they own, and
 * cuts the ties of those under orphan.
 */
export function startGarbageCollector(cluster: Cluster, options: ControllerOptions = {}): Stop {
  const dependents = createQueue("gc", options, async (entry) => {
    const [resource = "", key = ""] = entry.split("|");
    const object = await cluster.get(resource, key);
    const { ownerReferences = [], deletionTimestamp, uid = "" } = object?.metadata ?? {};
    if (!object || ownerReferences.length === 0) return;
    for (const reference of ownerReferences) {
      const of = owners[reference.kind];
      if (of === undefined) return;
      const owner = await cluster.get(of, ownerKey(object, of, reference));
      if (owner?.metadata.uid !== reference.uid) continue;
      const { finalizers = [] } = owner.metadata;
      if (!owner.metadata.deletionTimestamp || !finalizers.includes("foregroundDeletion")) return;
    }
    if (!deletionTimestamp) await cluster.remove(resource, key, { preconditions: { uid } });
  });

  const finalizing = createQueue("gc", options, async (entry) => {
    const [of = "", key = ""] = entry.split("|");
    const owner = await cluster.get(of, key);
    const { finalizers = [], deletionTimestamp, uid } = owner?.metadata ?? {};
    if (!owner || !deletionTimestamp) return;
    const mine: [resource: string, object: KubeObject][] = [];
    for (const resource of await served())
      for (const object of await cluster.list(resource))
        if (object.metadata.ownerReferences?.some((reference) => reference.uid === uid))
          mine.push([resource, object]);
    if (finalizers.includes("orphan")) {
      for (const [resource, object] of mine) {
        const left = object.metadata.ownerReferences?.filter((reference) => reference.uid !== uid) ?? [];
        // Strategic merge merges references by uid, so it has to be told to remove one.
        const ownerReferences = resource === "pods" ? [{ $patch: "delete", uid: uid ?? "" }] : left;
        await cluster.patch(resource, keyOf(object), { metadata: { ownerReferences } });
      }
    } else if (finalizers.includes("foregroundDeletion")) {
      for (const [resource, object] of mine) dependents.add(`${resource}|${keyOf(object)}`);
      if (mine.length > 0) return;
    } else return;
    const rest = finalizers.filter((each) => each !== "orphan" && each !== "foregroundDeletion");
    // Strategic merge, of built-in kinds, only ever adds finalizers unless told to remove some.
    const metadata =
      of === sandboxes
        ? { finalizers: rest }
        : { "$deleteFromPrimitiveList/finalizers": ["orphan", "foregroundDeletion"] };
    await cluster.patch(of, key, { metadata });
  });

  /** A resource that the cluster does not serve has nothing to collect. */
  async function served(): Promise<string[]> {
    const result: string[] = [];
    for (const resource of owned) {
      try {
        await cluster.list(resource);
        result.push(resource);
      } catch {}
    }
    return result;
  }

  const stops: Stop[] = [];
  for (const resource of owned) {
    try {
      stops.push(
        cluster.watch(resource, (type, object) => {
          if (type !== "DELETED") return dependents.add(`${resource}|${keyOf(object)}`);
          for (const reference of object.metadata.ownerReferences ?? []) {
            const of = owners[reference.kind];
            if (of) finalizing.add(`${of}|${ownerKey(object, of, reference)}`);
          }
        }),
      );
    } catch {}
  }
  for (const of of Object.values(owners))
    stops.push(
      cluster.watch(of, async (type, owner) => {
        if (type === "ADDED") return;
        if (owner.metadata.deletionTimestamp) finalizing.add(`${of}|${keyOf(owner)}`);
        if (type !== "DELETED") return;
        for (const resource of await served())
          for (const object of await cluster.list(resource))
            if (object.metadata.ownerReferences?.some(({ uid }) => uid === owner.metadata.uid))
              dependents.add(`${resource}|${keyOf(object)}`);
      }),
    );
  return () => {
    for (const stop of [...stops, dependents.stop, finalizing.stop]) stop();
  };
}

function ownerKey(object: KubeObject, of: string, { name }: OwnerReference): string {
  return of === "nodes" ? name : `${object.metadata.namespace}/${name}`;
}

/** Takes the not-ready taint off a Node that is Ready. */
export function startNodeLifecycle(cluster: Cluster, options: ControllerOptions = {}): Stop {
  const queue = createQueue("node", options, async (key) => {
    const node = await cluster.get("nodes", key);
    const taints = Array.isArray(node?.spec?.taints) ? node.spec.taints : [];
    const left = taints.filter((taint) => !(isObject(taint) && taint.key === notReadyTaint));
    const ready = node && conditions(node).some(({ type, status }) => type === "Ready" && status === "True");
    if (ready && left.length < taints.length) await cluster.patch("nodes", key, { spec: { taints: left } });
  });
  const stop = cluster.watch("nodes", (_, node) => queue.add(node.metadata.name));
  return () => {
    stop();
    queue.stop();
  };
}

/** Ends a namespace that is being deleted, once what is in it is gone. */
export function startNamespaceController(cluster: Cluster, options: ControllerOptions = {}): Stop {
  const contents = ["pods", sandboxes, "events", "leases.coordination.k8s.io"];
  const queue = createQueue("namespace", options, async (name) => {
    const namespace = await cluster.get("namespaces", name);
    if (!namespace?.metadata.deletionTimestamp) return;
    let left = 0;
    for (const resource of contents)
      for (const object of await cluster.list(resource)) {
        if (object.metadata.namespace !== name) continue;
        if (object.metadata.deletionTimestamp || (await cluster.remove(resource, keyOf(object)))) left++;
      }
    if (left === 0) await cluster.finalizeNamespace(name);
  });
  const going = new Set<string>();
  const stops = [
    cluster.watch("namespaces", (type, { metadata }) => {
      if (type === "DELETED") going.delete(metadata.name);
      else if (metadata.deletionTimestamp) {
        going.add(metadata.name);
        queue.add(metadata.name);
      }
    }),
    ...contents.map((resource) =>
      cluster.watch(resource, (type, { metadata: { namespace = "" } }) => {
        if (type === "DELETED" && going.has(namespace)) queue.add(namespace);
      }),
    ),
  ];
  return () => {
    for (const stop of [...stops, queue.stop]) stop();
  };
}

type Condition = { type: string; status: string; reason?: string };

function conditions(object: KubeObject): Condition[] {
  const list = object.status?.conditions;
  return Array.isArray(list) ? (list.filter(isObject) as Condition[]) : [];
}

function controllerOf(object: KubeObject): OwnerReference | undefined {
  return object.metadata.ownerReferences?.find(({ controller }) => controller === true);
}

function keyOf({ metadata: { namespace, name } }: KubeObject): string {
  return namespace ? `${namespace}/${name}` : name;
}

interface Queue {
  add(key: string): void;
  stop(): void;
}

/** Keys to look at, each once however often it was added meanwhile, one after the other. */
function createQueue(
  controller: string,
  options: ControllerOptions,
  reconcile: (key: string) => Promise<void>,
): Queue {
  const keys = new Set<string>();
  let running = false;
  let stopped = false;

  async function run(): Promise<void> {
    running = true;
    for (let [key] = keys; key !== undefined && !stopped; [key] = keys) {
      keys.delete(key);
      try {
        await reconcile(key);
      } catch (error) {
        options.onError?.(controller, key, error);
        const again = key;
        setTimeout(() => add(again), options.retryMs ?? 100).unref();
      }
    }
    running = false;
  }
  function add(key: string): void {
    if (stopped) return;
    keys.add(key);
    if (!running) void run();
  }
  return {
    add,
    stop() {
      stopped = true;
    },
  };
}

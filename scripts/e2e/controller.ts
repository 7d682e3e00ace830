/**
 * A sandbox controller as far as Pods are concerned, for one namespace: upstream's agent-sandbox controller
 * needs more of a cluster than the tests have. A Sandbox becomes a Pod of its name from spec.podTemplate, with
 * a controller ownerReference; a missing Pod is made again while the Sandbox lives; Suspended deletes it; an
 * expired Sandbox gets no Pod. Deleting the Pods of deleted Sandboxes is the garbage collector's work.
 */
import { type Api, ApiError, type KubeObject, type List, type WatchEvent } from "../controlplane/api.ts";

interface Sandbox extends KubeObject {
  spec: {
    operatingMode?: string;
    podTemplate: {
      metadata?: { labels?: Record<string, string>; annotations?: Record<string, string> };
      spec: Record<string, unknown>;
    };
  };
}

export const sandboxApi = "agents.x-k8s.io/v1beta1";

const retryAfterMs = 200;

export interface SandboxController {
  /** Stops reconciling; the objects stay as they are. */
  stop(): Promise<void>;
  /** What went wrong since the start, for a failure's message: refused creates, broken watches. */
  readonly troubles: string[];
}

/** Starts reconciling the Sandboxes of a namespace. */
export function startSandboxController(api: Api, namespace: string): SandboxController {
  const abort = new AbortController();
  const sandboxes = new Map<string, Sandbox>();
  const pods = new Map<string, KubeObject>();
  const troubles: string[] = [];
  const busy = new Set<string>();
  const again = new Set<string>();

  async function reconcile(name: string): Promise<void> {
    const sandbox = sandboxes.get(name);
    if (sandbox === undefined || sandbox.metadata.deletionTimestamp !== undefined) return;
    const pod = pods.get(name);
    const ours = pod?.metadata.ownerReferences?.some((o) => o.uid === sandbox.metadata.uid);
    const wanted = sandbox.spec.operatingMode !== "Suspended" && !expired(sandbox);
    if (pod === undefined && wanted) await api.create(`/api/v1/namespaces/${namespace}/pods`, podOf(sandbox));
    else if (pod !== undefined && ours && !wanted && pod.metadata.deletionTimestamp === undefined)
      await api.delete(`/api/v1/namespaces/${namespace}/pods/${name}`);
  }

  /** One reconcile per name at a time; a change meanwhile means once more. */
  async function enqueue(name: string): Promise<void> {
    if (busy.has(name)) {
      again.add(name);
      return;
    }
    busy.add(name);
    try {
      do {
        again.delete(name);
        await reconcile(name).catch(async (error: unknown) => {
          // A Pod that is there already is the watch lagging behind: its event follows.
          if (error instanceof ApiError && error.code === 409) return;
          trouble(error);
          again.add(name);
          await Bun.sleep(retryAfterMs);
        });
      } while (again.has(name) && !abort.signal.aborted);
    } finally {
      busy.delete(name);
    }
  }

  function trouble(error: unknown): void {
    if (!abort.signal.aborted) troubles.push(error instanceof Error ? error.message : String(error));
  }

  async function follow<T extends KubeObject>(collection: string, cache: Map<string, T>): Promise<void> {
    while (!abort.signal.aborted) {
      try {
        const list: List<T> = await api.list<T>(collection);
        const names = new Set([...cache.keys(), ...list.items.map((item) => item.metadata.name)]);
        cache.clear();
        for (const item of list.items) cache.set(item.metadata.name, item);
        for (const name of names) void enqueue(name);
        const events: AsyncIterable<WatchEvent<T>> = api.watch<T>(
          collection,
          list.metadata.resourceVersion,
          abort.signal,
        );
        for await (const { type, object } of events) {
          if (type === "ERROR") break;
          if (type === "BOOKMARK") continue;
          const { name } = object.metadata;
          if (type === "DELETED") cache.delete(name);
          else cache.set(name, object);
          void enqueue(name);
        }
      } catch (error) {
        trouble(error);
        await Bun.sleep(retryAfterMs);
      }
    }
  }

  const running = Promise.all([
    follow(`/apis/${sandboxApi}/namespaces/${namespace}/sandboxes`, sandboxes),
    follow(`/api/v1/namespaces/${namespace}/pods`, pods),
  ]);
  return {
    troubles,
    async stop() {
      abort.abort();
      await running;
    },
  };
}

function expired(sandbox: KubeObject): boolean {
  const conditions = (sandbox.status?.conditions ?? []) as { type: string; reason?: string }[];
  return conditions.some((c) => c.type === "Ready" && c.reason === "SandboxExpired");
}

function podOf(sandbox: Sandbox): KubeObject {
  const { metadata, spec } = sandbox.spec.podTemplate;
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      name: sandbox.metadata.name,
      labels: metadata?.labels,
      annotations: metadata?.annotations,
      ownerReferences: [
        {
          apiVersion: sandboxApi,
          kind: "Sandbox",
          name: sandbox.metadata.name,
          uid: sandbox.metadata.uid ?? "",
          controller: true,
          blockOwnerDeletion: true,
        },
      ],
    },
    spec,
  };
}

/** Pods as a load: made by many writers, followed by one watch, deleted again. */
import type { Api, KubeObject, WatchEvent } from "../controlplane/api.ts";
import { type Subject, template } from "./world.ts";

const prefix = "sandbox.cocoonstack.io/";
export const writers = 32;
const roundTimeoutMs = 600_000;

/** A sandbox Pod as a controller makes it: annotations, labels, one container with resources, tolerations. */
export function podFor(subject: Subject, name: string, pinned: boolean): Record<string, unknown> {
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      name,
      labels: { app: "bench", "sandbox.cocoonstack.io/pool": "rt" },
      annotations: {
        [`${prefix}runtime`]: "sandboxd",
        [`${prefix}template`]: template,
        [`${prefix}net`]: "none",
        [`${prefix}size`]: "small",
      },
    },
    spec: {
      ...(pinned ? { nodeName: subject.name } : { nodeSelector: { "kubernetes.io/hostname": subject.name } }),
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      containers: [
        {
          name: "agent",
          image: template,
          resources: { requests: { cpu: "100m", memory: "128Mi" }, limits: { cpu: "1", memory: "512Mi" } },
        },
      ],
      tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" }],
    },
  };
}

/** What was seen of one Pod, in ms of performance.now(). */
export interface Seen {
  postedAt: number;
  boundAt?: number;
  runningAt?: number;
  deletedAt?: number;
  goneAt?: number;
}

interface PodObject extends KubeObject {
  status?: { phase?: string; podIP?: string };
}

/** Follows the Pods of one subject's namespace by a watch of its own. */
export class Follower {
  readonly pods = new Map<string, Seen>();
  private readonly stopping = new AbortController();
  private wake: () => void = () => {};
  /** Names that are Running, and names that are gone. */
  running = 0;
  gone = 0;

  constructor(
    private readonly api: Api,
    private readonly subject: Subject,
  ) {}

  async start(): Promise<void> {
    const { metadata } = await this.api.list(this.subject.podsPath);
    const { signal } = this.stopping;
    const follow = async () => {
      let version = metadata.resourceVersion;
      while (!signal.aborted) {
        try {
          for await (const event of this.api.watch<PodObject>(this.subject.podsPath, version, signal)) {
            version = event.object.metadata.resourceVersion ?? version;
            this.take(event);
          }
        } catch (error) {
          if (!signal.aborted) throw error;
        }
      }
    };
    void follow();
  }

  private take({ type, object }: WatchEvent<PodObject>): void {
    const at = performance.now();
    const seen = this.pods.get(object.metadata.name);
    if (seen === undefined) return;
    if (type === "DELETED") {
      if (seen.goneAt === undefined) this.gone++;
      seen.goneAt ??= at;
    } else {
      if (object.spec?.nodeName !== undefined) seen.boundAt ??= at;
      if (object.status?.phase === "Running" && object.status.podIP !== undefined) {
        if (seen.runningAt === undefined) this.running++;
        seen.runningAt ??= at;
      }
    }
    this.wake();
  }

  /** Waits until `done` holds, looking at each event. */
  async until(what: string, done: () => boolean): Promise<void> {
    const giveUpAt = Date.now() + roundTimeoutMs;
    while (!done()) {
      if (Date.now() > giveUpAt)
        throw new Error(`${this.subject.name}: not ${what} in ${roundTimeoutMs / 1000} s`);
      this.subject.alive();
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, 1000);
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** Forgets the Pods that are gone. */
  forgetGone(): void {
    for (const [name, seen] of this.pods) if (seen.goneAt !== undefined) this.pods.delete(name);
    this.gone = 0;
    this.running = 0;
    for (const seen of this.pods.values()) if (seen.runningAt !== undefined) this.running++;
  }

  stop(): void {
    this.stopping.abort();
  }
}

/** Does `work` for each item, `width` at a time. */
export async function inParallel<T>(
  items: readonly T[],
  width: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  let at = 0;
  const one = async () => {
    for (let item = items[at++]; item !== undefined; item = items[at++]) await work(item);
  };
  await Promise.all(Array.from({ length: Math.min(width, items.length) }, one));
}

/** Makes Pods and waits until each is Running. Returns what was seen of each. */
export async function makePods(
  api: Api,
  subject: Subject,
  follower: Follower,
  names: readonly string[],
  pinned = true,
): Promise<Seen[]> {
  const before = follower.running;
  const seen: Seen[] = [];
  await inParallel(names, writers, async (name) => {
    const one: Seen = { postedAt: performance.now() };
    seen.push(one);
    follower.pods.set(name, one);
    await api.create(subject.podsPath, podFor(subject, name, pinned));
  });
  await follower.until(`${names.length} Pods Running`, () => follower.running >= before + names.length);
  return seen;
}

/** Deletes Pods with the grace a user's delete has and waits until each object is gone. */
export async function deletePods(
  api: Api,
  subject: Subject,
  follower: Follower,
  names: readonly string[],
): Promise<void> {
  const before = follower.gone;
  await inParallel(names, writers, async (name) => {
    const seen = follower.pods.get(name);
    if (seen !== undefined) seen.deletedAt = performance.now();
    await api.delete(`${subject.podsPath}/${name}`);
  });
  await follower.until(`${names.length} Pods gone`, () => follower.gone >= before + names.length);
}

let batches = 0;

/** Names nobody has used. */
export function names(count: number): string[] {
  const batch = ++batches;
  return Array.from({ length: count }, (_, at) => `p${batch}-${at}`);
}

import { apiPath, describeFailure, type KubeClient, strategicMergePatch } from "./client.ts";
import { type Clock, fullJitter, pause, systemClock } from "./clock.ts";

/** What an event is about. `namespace` is empty for a Node. */
export interface ObjectReference {
  apiVersion: string;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
}

export interface EventRecorderOptions {
  client: KubeClient;
  /** Source and reporting component, for example `<node>/pod-controller`. */
  component: string;
  /** Drop Normal events (--disable-pod-events). */
  disableNormal?: boolean;
  clock?: Clock;
  /** A number in [0, 1). Default Math.random. */
  random?: () => number;
  /** An event was given up. */
  onProblem?: (why: string) => void;
}

export interface EventStats {
  /** Requests that were answered well. */
  sent: number;
  /** Occurrences folded into a count that is sent later or with the next one. */
  folded: number;
  /** Dropped by the spam filter. */
  spam: number;
  /** Dropped because the queue was full. */
  overflow: number;
  /** Given up after an error. */
  failed: number;
}

export interface EventRecorder {
  /** Notes that something happened to an object. Returns at once; never throws, never waits for the API server. */
  record(object: ObjectReference, type: "Normal" | "Warning", reason: string, message: string): void;
  /** Resolves when nothing is queued or on its way, or after `stop()`. */
  idle(): Promise<void>;
  /** Gives up what is queued. */
  stop(): void;
  readonly stats: Readonly<EventStats>;
}

/**
 * Entries of each cache. client-go has 4,096; a Node has 2,000 Pods by default, and what is remembered here is the
 * larger part of what a daemon grows by with its first thousands of Pods (docs/performance.md).
 */
export const cacheEntriesMax = 2048;
/** Limits of client-go's correlator (tools/record/events_cache.go). */
export const spamBurst = 25;
export const spamRefillMs = 300_000;
export const similarEventsMax = 10;
export const similarWindowMs = 600_000;
/** Events that wait to be sent; one more is dropped. */
export const queueMax = 1024;
/** Requests at once. */
export const workersMax = 2;
/** Attempts for one event while the API server cannot be reached. */
export const attemptsMax = 12;
const backoffMinMs = 1_000;
const backoffMaxMs = 10_000;
const messageCharactersMax = 1024;

/** An Event object as it stands, or will stand, in the API. */
interface Entry {
  object: ObjectReference;
  type: string;
  reason: string;
  message: string;
  name: string;
  firstMs: number;
  lastMs: number;
  count: number;
  /** What the API server has of `count`; 0: the object does not exist yet. */
  sentCount: number;
  state: "idle" | "queued" | "sending";
}

/**
 * Records Kubernetes Events as client-go does: the same event again counts up the first one, many similar
 * ones become one, and an object that never stops is cut off by a token bucket. What happens again while it
 * waits to be sent costs no request.
 */
export function createEventRecorder(options: EventRecorderOptions): EventRecorder {
  const {
    client,
    component,
    disableNormal = false,
    clock = systemClock,
    random = Math.random,
    onProblem = () => {},
  } = options;
  const stopping = new AbortController();
  const stats: EventStats = { sent: 0, folded: 0, spam: 0, overflow: 0, failed: 0 };
  const entries = new Map<string, Entry>();
  /** Messages of one object and reason, as hashes, within the window. */
  const similar = new Map<string, { messages: Set<bigint | number>; lastMs: number }>();
  const buckets = new Map<string, { tokens: number; atMs: number }>();
  const queue: Entry[] = [];
  let workers = 0;
  let sequence = 0;
  let idleWaiters: (() => void)[] = [];

  function admit(objectKey: string, nowMs: number): boolean {
    const bucket = touch(buckets, objectKey) ?? { tokens: spamBurst, atMs: nowMs };
    bucket.tokens = Math.min(spamBurst, bucket.tokens + Math.max(0, nowMs - bucket.atMs) / spamRefillMs);
    bucket.atMs = nowMs;
    keep(buckets, objectKey, bucket);
    if (bucket.tokens < 1) return false;
    bucket.tokens -= 1;
    return true;
  }

  /** Whether this message is one too many for its object and reason: then it stands for all of them. */
  function isOneOfMany(similarKey: string, hash: bigint | number, nowMs: number): boolean {
    let seen = touch(similar, similarKey);
    if (seen === undefined || nowMs - seen.lastMs > similarWindowMs) {
      seen = { messages: new Set(), lastMs: nowMs };
    }
    seen.lastMs = nowMs;
    keep(similar, similarKey, seen);
    seen.messages.add(hash);
    if (seen.messages.size < similarEventsMax) return false;
    // Room for the next: the set stays one below the limit, and messages known in it keep events of their own.
    for (const oldest of seen.messages) {
      seen.messages.delete(oldest);
      break;
    }
    return true;
  }

  function nameFor(object: ObjectReference, nowMs: number): string {
    sequence = (sequence + 1) % 1_000_000;
    const suffix = (BigInt(Math.floor(nowMs)) * 1_000_000n + BigInt(sequence)).toString(16);
    return `${object.name.slice(0, 230).replace(/[^a-z0-9]+$/, "")}.${suffix}`;
  }

  function record(
    object: ObjectReference,
    type: "Normal" | "Warning",
    reason: string,
    fullMessage: string,
  ): void {
    if ((disableNormal && type === "Normal") || stopping.signal.aborted) return;
    const nowMs = clock.now();
    const objectKey = `${object.kind}/${object.namespace}/${object.name}/${object.uid}`;
    const similarKey = `${objectKey}/${type}/${reason}`;
    let message = fullMessage.slice(0, messageCharactersMax);
    const hash = Bun.hash(message);
    let key = `${similarKey}/${hash}`;
    if (isOneOfMany(similarKey, hash, nowMs)) {
      message = `(combined from similar events): ${message}`.slice(0, messageCharactersMax);
      key = similarKey;
    }
    let entry = touch(entries, key);
    if (entry === undefined) {
      entry = {
        object,
        type,
        reason,
        message,
        name: nameFor(object, nowMs),
        firstMs: nowMs,
        lastMs: nowMs,
        count: 0,
        sentCount: 0,
        state: "idle",
      };
    }
    keep(entries, key, entry);
    entry.count += 1;
    entry.lastMs = nowMs;
    entry.message = message;
    if (!admit(objectKey, nowMs)) {
      stats.spam += 1;
    } else if (entry.state !== "idle") {
      stats.folded += 1;
    } else {
      enqueue(entry);
    }
  }

  function enqueue(entry: Entry): void {
    if (queue.length >= queueMax) {
      stats.overflow += 1;
      entry.state = "idle";
      return;
    }
    entry.state = "queued";
    queue.push(entry);
    if (workers < workersMax) {
      workers += 1;
      void work();
    }
  }

  async function work(): Promise<void> {
    for (let entry = queue.shift(); entry !== undefined; entry = queue.shift()) {
      entry.state = "sending";
      await send(entry);
      entry.state = "idle";
      // It happened again while it was on its way.
      if (entry.sentCount > 0 && entry.sentCount < entry.count) enqueue(entry);
      if (stopping.signal.aborted) queue.length = 0;
    }
    workers -= 1;
    if (workers === 0) {
      for (const resolve of idleWaiters) resolve();
      idleWaiters = [];
    }
  }

  async function send(entry: Entry): Promise<void> {
    const namespace = entry.object.namespace || "default";
    const collection = apiPath("/api/v1", "namespaces", namespace, "events");
    for (let attempt = 1; !stopping.signal.aborted; attempt += 1) {
      const { count } = entry;
      const path =
        collection !== undefined && entry.sentCount > 0 ? apiPath(collection, entry.name) : collection;
      if (path === undefined) return;
      const reply =
        entry.sentCount > 0
          ? await client.request("PATCH", path, {
              body: { count, lastTimestamp: timestamp(entry.lastMs), message: entry.message },
              contentType: strategicMergePatch,
              signal: stopping.signal,
              verb: "patch",
              metadataOnly: true,
            })
          : await client.request("POST", path, {
              body: eventOf(entry, namespace, component),
              signal: stopping.signal,
              verb: "create",
              metadataOnly: true,
            });
      if (reply.ok) {
        entry.sentCount = count;
        stats.sent += 1;
        return;
      }
      if (reply.kind === "aborted") return;
      if (reply.kind === "status" && reply.code === 404 && entry.sentCount > 0) {
        // The event has expired (one hour by default): begin another.
        entry.sentCount = 0;
        entry.name = nameFor(entry.object, clock.now());
        continue;
      }
      // Our own POST whose answer was lost, sent again.
      if (reply.kind === "status" && reply.reason === "AlreadyExists" && attempt > 1) {
        entry.sentCount = count;
        return;
      }
      const final =
        (reply.kind === "status" || reply.kind === "http") && reply.code < 500 && reply.code !== 429;
      if (final || attempt >= attemptsMax) {
        // Count from here anew, or the next occurrence would be a PATCH of nothing.
        entry.count = entry.sentCount;
        stats.failed += 1;
        onProblem(
          `event ${entry.reason} of ${entry.object.kind} ${namespace}/${entry.object.name} was not recorded: ${describeFailure(reply)}`,
        );
        return;
      }
      await pause(clock, fullJitter(attempt, backoffMinMs, backoffMaxMs, random), stopping.signal);
    }
  }

  return {
    record,
    idle() {
      if (workers === 0) return Promise.resolve();
      return new Promise((resolve) => idleWaiters.push(resolve));
    },
    stop: () => stopping.abort(),
    stats,
  };
}

/** Reads an entry of an LRU and makes it the newest when it is kept again. */
function touch<V>(cache: Map<string, V>, key: string): V | undefined {
  const value = cache.get(key);
  if (value !== undefined) cache.delete(key);
  return value;
}

function keep<V>(cache: Map<string, V>, key: string, value: V): void {
  cache.set(key, value);
  if (cache.size <= cacheEntriesMax) return;
  for (const oldest of cache.keys()) {
    cache.delete(oldest);
    return;
  }
}

/** metav1.Time has seconds. */
function timestamp(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 19)}Z`;
}

function eventOf(entry: Entry, namespace: string, component: string): Record<string, unknown> {
  return {
    apiVersion: "v1",
    kind: "Event",
    metadata: { name: entry.name, namespace },
    involvedObject: entry.object.namespace === "" ? { ...entry.object, namespace: undefined } : entry.object,
    reason: entry.reason,
    message: entry.message,
    type: entry.type,
    source: { component },
    reportingComponent: component,
    reportingInstance: "",
    firstTimestamp: timestamp(entry.firstMs),
    lastTimestamp: timestamp(entry.lastMs),
    count: entry.count,
  };
}

import { apiPath, describeFailure, type KubeClient, strategicMergePatch } from "./client.ts";
import { type Clock, fullJitter, pause, systemClock } from "./clock.ts";
import { createRecentRows } from "./recent.ts";

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

/** What is remembered at most, of events, of similar ones and of objects: as much as in client-go, and half of it at least. */
export const cacheEntriesMax = 4096;
/** Limits of client-go's correlator (tools/record/events_cache.go). */
export const spamBurst = 25;
export const spamRefillMs = 300_000;
export const similarEventsMax = 10;
export const similarWindowMs = 600_000;
/** Messages to remember: one more that is not among them is one too many. */
const similarKept = similarEventsMax - 1;
/** Events that wait to be sent; one more is dropped. */
export const queueMax = 1024;
/** Requests at once. */
export const workersMax = 2;
/** Attempts for one event while the API server cannot be reached. */
export const attemptsMax = 12;
const backoffMinMs = 1_000;
const backoffMaxMs = 10_000;
const messageCharactersMax = 1024;

/** An Event that waits to be sent or is on its way. */
interface Pending {
  key: number;
  object: ObjectReference;
  type: string;
  reason: string;
  message: string;
  /** Makes the name from the object's. */
  suffix: number;
  firstMs: number;
  lastMs: number;
  count: number;
  /** What the API server has of `count`; 0: there is no such object yet. */
  sentCount: number;
  /** It happened again, and within the object's budget, since `count` was last sent. */
  again: boolean;
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
  const pending = new Map<number, Pending>();
  /** By object, type, reason and message: suffix, firstMs, count and sentCount when it was last settled. */
  const known = createRecentRows(cacheEntriesMax, 4);
  /** By object, type and reason: when the last message came, and the newest messages, as hashes. */
  const similar = createRecentRows(cacheEntriesMax, 1 + similarKept);
  /** By object: tokens, and as of when. Long ago is a full bucket. */
  const buckets = createRecentRows(cacheEntriesMax, 2);
  const queue: Pending[] = [];
  let workers = 0;
  let lastSuffix = 0;
  let idleWaiters: (() => void)[] = [];

  function admit(objectKey: number, nowMs: number): boolean {
    const bucket = buckets(objectKey);
    const [tokens = 0, atMs = 0] = bucket;
    const filled = Math.min(spamBurst, tokens + Math.max(0, nowMs - atMs) / spamRefillMs);
    const admitted = filled >= 1;
    bucket.set([admitted ? filled - 1 : filled, nowMs]);
    return admitted;
  }

  /** Whether this message is one too many for its object and reason: then it stands for all of them. */
  function isOneOfMany(similarKey: number, message: number, nowMs: number): boolean {
    const seen = similar(similarKey);
    const messages = seen.subarray(1);
    if (nowMs - (seen[0] ?? 0) > similarWindowMs) messages.fill(0);
    seen[0] = nowMs;
    if (messages.includes(message)) return false;
    // The oldest makes room for the next: what is among the newest keeps an event of its own.
    const full = messages[0] !== 0;
    messages.copyWithin(0, 1);
    messages[messages.length - 1] = message;
    return full;
  }

  /** Of no other event of this recorder, and of none before it. */
  function newSuffix(nowMs: number): number {
    lastSuffix = Math.max(lastSuffix + 1, Math.floor(nowMs) * 1_000);
    return lastSuffix;
  }

  function record(
    object: ObjectReference,
    type: "Normal" | "Warning",
    reason: string,
    fullMessage: string,
  ): void {
    if ((disableNormal && type === "Normal") || stopping.signal.aborted) return;
    const nowMs = clock.now();
    const objectText = `${object.kind}/${object.namespace}/${object.name}/${object.uid}`;
    const similarText = `${objectText}/${type}/${reason}`;
    let message = fullMessage.slice(0, messageCharactersMax);
    let key = hashOf(`${similarText}\0${message}`);
    const similarKey = hashOf(similarText);
    if (isOneOfMany(similarKey, key, nowMs)) {
      message = `(combined from similar events): ${message}`.slice(0, messageCharactersMax);
      key = similarKey;
    }
    let event = pending.get(key);
    const waits = event !== undefined;
    event ??= { key, object, type, reason, message, lastMs: nowMs, again: false, ...recall(key, nowMs) };
    event.count += 1;
    event.lastMs = nowMs;
    event.message = message;
    if (!admit(hashOf(objectText), nowMs)) {
      stats.spam += 1;
      if (!waits) remember(event);
    } else if (waits) {
      stats.folded += 1;
      event.again = true;
    } else {
      enqueue(event);
    }
  }

  function recall(key: number, nowMs: number) {
    const [suffix = 0, firstMs = 0, count = 0, sentCount = 0] = known(key);
    // Never seen, forgotten, or given up.
    if (count === 0) return { suffix: newSuffix(nowMs), firstMs: nowMs, count, sentCount };
    return { suffix, firstMs, count, sentCount };
  }

  function remember({ key, suffix, firstMs, count, sentCount }: Pending): void {
    known(key).set([suffix, firstMs, count, sentCount]);
  }

  /** It is not on its way any more. */
  function settle(event: Pending): void {
    pending.delete(event.key);
    remember(event);
  }

  function enqueue(event: Pending): void {
    if (queue.length >= queueMax) {
      stats.overflow += 1;
      settle(event);
      return;
    }
    pending.set(event.key, event);
    queue.push(event);
    if (workers < workersMax) {
      workers += 1;
      void work();
    }
  }

  async function work(): Promise<void> {
    for (let event = queue.shift(); event !== undefined; event = queue.shift()) {
      await send(event);
      if (stopping.signal.aborted) break;
      if (event.again) enqueue(event);
      else settle(event);
    }
    workers -= 1;
    if (workers === 0) {
      for (const resolve of idleWaiters) resolve();
      idleWaiters = [];
    }
  }

  async function send(event: Pending): Promise<void> {
    const { object, reason } = event;
    const namespace = object.namespace || "default";
    const collection = apiPath("/api/v1", "namespaces", namespace, "events");
    /** The count in the first POST under this name: it may have arrived though its answer did not. */
    let posted = 0;
    for (let attempt = 1; !stopping.signal.aborted; attempt += 1) {
      const { count } = event;
      event.again = false;
      const name = nameOf(object, event.suffix);
      const path = collection !== undefined && event.sentCount > 0 ? apiPath(collection, name) : collection;
      if (path === undefined) return;
      const reply =
        event.sentCount > 0
          ? await client.request("PATCH", path, {
              body: { count, lastTimestamp: timestamp(event.lastMs), message: event.message },
              contentType: strategicMergePatch,
              signal: stopping.signal,
              verb: "patch",
              metadataOnly: true,
            })
          : await client.request("POST", path, {
              body: eventOf(event, name, namespace, component),
              signal: stopping.signal,
              verb: "create",
              metadataOnly: true,
            });
      if (reply.ok) {
        event.sentCount = count;
        stats.sent += 1;
        return;
      }
      if (reply.kind === "aborted") return;
      if (reply.kind === "status" && reply.code === 404 && event.sentCount > 0) {
        // The event has expired (one hour by default): begin another.
        event.sentCount = 0;
        event.suffix = newSuffix(clock.now());
        continue;
      }
      // Our own POST whose answer was lost, sent again.
      if (reply.kind === "status" && reply.reason === "AlreadyExists" && posted > 0) {
        event.sentCount = posted;
        event.again ||= posted < count;
        return;
      }
      if (event.sentCount === 0) posted ||= count;
      const final =
        (reply.kind === "status" || reply.kind === "http") && reply.code < 500 && reply.code !== 429;
      if (final || attempt >= attemptsMax) {
        // Count from here anew, or the next occurrence would be a PATCH of nothing; and under another name, since
        // an answer may have been lost.
        event.count = event.sentCount;
        event.again = false;
        if (event.sentCount === 0) event.suffix = newSuffix(clock.now());
        stats.failed += 1;
        onProblem(
          `event ${reason} of ${object.kind} ${namespace}/${object.name} was not recorded: ${describeFailure(reply)}`,
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

/** 53 bits, which a number holds: two of 4,096 keys are the same once in a billion. */
function hashOf(text: string): number {
  return Number(BigInt.asUintN(53, BigInt(Bun.hash(text))));
}

function nameOf(object: ObjectReference, suffix: number): string {
  return `${object.name.slice(0, 230).replace(/[^a-z0-9]+$/, "")}.${suffix.toString(16)}`;
}

/** metav1.Time has seconds. */
function timestamp(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 19)}Z`;
}

function eventOf(
  event: Pending,
  name: string,
  namespace: string,
  component: string,
): Record<string, unknown> {
  const { object, reason, message, type } = event;
  return {
    apiVersion: "v1",
    kind: "Event",
    metadata: { name, namespace },
    involvedObject: object.namespace === "" ? { ...object, namespace: undefined } : object,
    reason,
    message,
    type,
    source: { component },
    reportingComponent: component,
    reportingInstance: "",
    firstTimestamp: timestamp(event.firstMs),
    lastTimestamp: timestamp(event.lastMs),
    count: event.count,
  };
}

import { connectionError, describeFailure, type KubeClient, type KubeFailure } from "./client.ts";
import { type Clock, fullJitter, pause, systemClock } from "./clock.ts";
import { createLineSplitter, LineError } from "./lines.ts";
import { parseStatus } from "./status.ts";

/** An object of the API as it came, apart from what the watch itself relies on. The caller trims it. */
export interface WatchedObject {
  metadata: { name: string; uid: string; resourceVersion: string; [field: string]: unknown };
  [field: string]: unknown;
}

export type WatchEvent =
  /** A complete list begins: whatever is not seen again until `synced` is gone. */
  | { type: "relist" }
  /** `initial`: part of the complete list that has not ended yet. */
  | { type: "object"; object: WatchedObject; initial: boolean; change: "ADDED" | "MODIFIED" }
  /** Deleted, or no longer selected. */
  | { type: "gone"; object: WatchedObject }
  /** The complete list has ended. */
  | { type: "synced" };

/** A connection that failed, for the log. The watch itself goes on. */
export interface WatchProblem {
  /** In words: what happened to which watch. */
  message: string;
  /** Failures in a row, this one included. */
  attempt: number;
  /** Until the next attempt. */
  retryInMs: number;
  failure?: KubeFailure;
}

export interface WatchOptions {
  client: KubeClient;
  /** Collection, for example /api/v1/pods. */
  path: string;
  /** fieldSelector, labelSelector. */
  query?: Readonly<Record<string, string>>;
  /**
   * Called synchronously for each event, in order, never after `stop()` returned. It must not throw: what it
   * throws ends the watch and rejects `done`.
   */
  onEvent: (event: WatchEvent) => void;
  onProblem?: (problem: WatchProblem) => void;
  clock?: Clock;
  /** A number in [0, 1). Default Math.random. */
  random?: () => number;
  /** Without a byte for this long, a connection is given up. Bookmarks come about once a minute. Default 180,000. */
  silenceMs?: number;
  /** Longest line of the stream. Default 16 MiB: an object in etcd is 1.5 MiB at most, and is bigger as JSON. */
  lineBytesMax?: number;
  /** A streaming list that has not ended by then is given up for list and watch. Default 120,000. */
  initialMsMax?: number;
  /** Backoff between failed attempts. Default 500 and 30,000. */
  backoffMinMs?: number;
  backoffMaxMs?: number;
}

export interface WatchStats {
  /** Connections opened. */
  connects: number;
  /** Complete lists begun. */
  relists: number;
  /** Objects handed on, `gone` included. */
  events: number;
  bookmarks: number;
  /** Lines or pages that could not be understood. */
  garbage: number;
  /** ERROR events. */
  errors: number;
  /** Connections given up for silence. */
  silences: number;
  failures: number;
  /** A stream is open now. */
  connected: boolean;
  /** The last complete list has ended. */
  synced: boolean;
  /** The server has no streaming lists. */
  paged: boolean;
  /** When the last byte came. */
  lastByteMs: number;
}

export interface Watch {
  /** Ends the watch at once: no event follows. */
  stop(): void;
  /** Ends the wait before the next attempt, if there is one: someone (a heartbeat) has just reached the server. */
  retryNow(): void;
  readonly stats: Readonly<WatchStats>;
  /** Resolves after `stop()`; rejects with what `onEvent` threw. */
  readonly done: Promise<void>;
}

/** Objects on a page of the list that replaces a streaming list. */
export const pageLimit = 500;
/** The server ends a watch after a random time between these, so that a fleet's watches do not end together. */
export const timeoutSecondsMin = 300;
export const timeoutSecondsMax = 600;
/** Resumed connections in a row that ended in silence, garbage or an ERROR event before a complete list is begun. */
export const fruitlessMax = 3;
/** A connection that lived this long was good: the next one is made at once and the backoff begins anew. */
const goodMs = 5_000;
const initialEventsEnd = "k8s.io/initial-events-end";

/**
 * Watches a collection for ever: a streaming list (KEP-3157) where the server has one, else a paged list and
 * a watch. After a dropped connection it goes on from the last resourceVersion; after 410 Gone it begins a
 * complete list again. An incomplete list never ends in `synced`, and an ERROR event is never an object.
 *
 * @example
 * const pods = watch({
 *   client,
 *   path: "/api/v1/pods",
 *   query: { fieldSelector: `spec.nodeName=${node}` },
 *   onEvent: (event) => feed(event),
 * });
 */
export function watch(options: WatchOptions): Watch {
  const {
    client,
    path,
    query = {},
    onEvent,
    onProblem = () => {},
    clock = systemClock,
    random = Math.random,
    silenceMs = 180_000,
    lineBytesMax = 16 * 1024 * 1024,
    initialMsMax = 120_000,
    backoffMinMs = 500,
    backoffMaxMs = 30_000,
  } = options;

  const stopping = new AbortController();
  const stats: WatchStats = {
    connects: 0,
    relists: 0,
    events: 0,
    bookmarks: 0,
    garbage: 0,
    errors: 0,
    silences: 0,
    failures: 0,
    connected: false,
    synced: false,
    paged: false,
    lastByteMs: 0,
  };
  /** Where to go on; empty: begin a complete list. */
  let resumeFrom = "";
  let attempt = 0;
  /** Resumed connections in a row that came to nothing. */
  let fruitless = 0;

  function emit(event: WatchEvent): void {
    if (!stopping.signal.aborted) onEvent(event);
  }

  function beginList(): void {
    stats.relists += 1;
    stats.synced = false;
    emit({ type: "relist" });
  }

  function endList(resourceVersion: string): void {
    resumeFrom = resourceVersion;
    stats.synced = true;
    emit({ type: "synced" });
  }

  /** Reads one connection to its end. Throws only what `onEvent` threw. */
  async function connect(streamingList: boolean): Promise<Outcome> {
    const settings: Record<string, string> = {
      ...query,
      watch: "true",
      allowWatchBookmarks: "true",
      timeoutSeconds: String(
        timeoutSecondsMin + Math.floor(random() * (timeoutSecondsMax - timeoutSecondsMin + 1)),
      ),
    };
    if (streamingList) {
      settings.sendInitialEvents = "true";
      settings.resourceVersionMatch = "NotOlderThan";
    } else {
      settings.resourceVersion = resumeFrom;
    }
    const connection = new AbortController();
    const onStop = () => connection.abort();
    stopping.signal.addEventListener("abort", onStop, { once: true });
    let cancelTimer = () => {};
    try {
      stats.connects += 1;
      const reply = await client.stream(path, { query: settings, signal: connection.signal });
      if (!reply.ok) return { kind: "failed", failure: reply };
      if (stopping.signal.aborted) return { kind: "stopped" };
      const openedMs = clock.now();
      stats.connected = true;
      stats.lastByteMs = openedMs;
      if (streamingList) beginList();

      let initial = streamingList;
      let fruit = false;
      let outcome: Outcome | undefined;
      /** Reads one line. Returns false when the connection is of no more use. */
      const onLine = (line: string): boolean => {
        if (stopping.signal.aborted) return false;
        const parsed = parseLine(line);
        if (parsed === undefined) {
          outcome = { kind: "garbage", why: `a line of ${line.length} characters is not a watch event` };
          return false;
        }
        if (parsed.type === "ERROR") {
          stats.errors += 1;
          outcome = errorOutcome(parsed.object);
          return false;
        }
        fruit = true;
        const resourceVersion = parsed.object.metadata.resourceVersion;
        if (parsed.type === "BOOKMARK") {
          stats.bookmarks += 1;
          if (!initial) {
            resumeFrom = resourceVersion;
          } else if (isInitialEnd(parsed.object)) {
            initial = false;
            endList(resourceVersion);
          }
          return true;
        }
        stats.events += 1;
        if (!initial) resumeFrom = resourceVersion;
        const object = parsed.object;
        if (parsed.type === "DELETED") emit({ type: "gone", object });
        else emit({ type: "object", object, initial, change: parsed.type });
        return true;
      };
      const lines = createLineSplitter(lineBytesMax, onLine);

      const watchSilence = (waitMs: number): void => {
        cancelTimer = clock.after(waitMs, () => {
          const nowMs = clock.now();
          // A wall clock set back must not hide the silence that follows.
          if (nowMs < stats.lastByteMs) stats.lastByteMs = nowMs;
          const silentMs = nowMs - stats.lastByteMs;
          if (initial && nowMs - openedMs >= initialMsMax) {
            outcome = { kind: "unfinished", why: `the streaming list did not end in ${initialMsMax} ms` };
          } else if (silentMs >= silenceMs) {
            stats.silences += 1;
            outcome = { kind: "silent", why: `no byte for ${silentMs} ms` };
          } else {
            watchSilence(untilCheck(nowMs));
            return;
          }
          connection.abort();
        });
      };
      const untilCheck = (nowMs: number): number => {
        const silence = stats.lastByteMs + silenceMs - nowMs;
        return Math.max(1, initial ? Math.min(silence, openedMs + initialMsMax - nowMs) : silence);
      };
      watchSilence(untilCheck(openedMs));

      const reader = reply.body.getReader();
      let broken = "";
      while (outcome === undefined && !stopping.signal.aborted) {
        let chunk: Uint8Array | undefined;
        try {
          const read = await reader.read();
          if (read.done) break;
          chunk = read.value;
        } catch (error) {
          broken = connectionError(error);
          break;
        }
        if (stopping.signal.aborted) break;
        stats.lastByteMs = clock.now();
        try {
          lines.push(chunk);
        } catch (error) {
          if (!(error instanceof LineError)) throw error;
          outcome = { kind: "garbage", why: error.message };
        }
      }
      if (fruit && (outcome === undefined || outcome.kind === "silent")) fruitless = 0;
      if (stopping.signal.aborted) return { kind: "stopped" };
      if (outcome !== undefined) return outcome;
      const livedMs = clock.now() - openedMs;
      if (initial) {
        // A server that answers a plain watch instead ends without the bookmark: list from now on.
        return broken === ""
          ? { kind: "unfinished", why: "the stream ended before its initial list did" }
          : { kind: "dropped", why: `the connection broke inside the initial list: ${broken}`, livedMs: 0 };
      }
      if (broken !== "") return { kind: "dropped", why: `the connection broke: ${broken}`, livedMs };
      return { kind: "ended", livedMs };
    } finally {
      stats.connected = false;
      cancelTimer();
      stopping.signal.removeEventListener("abort", onStop);
      connection.abort();
    }
  }

  /** Lists page by page. The list counts only when every page of it came. */
  async function listPages(): Promise<Outcome> {
    let next = "";
    let begun = false;
    for (;;) {
      const settings: Record<string, string> = { ...query, limit: String(pageLimit) };
      if (next !== "") settings.continue = next;
      const reply = await client.request("GET", path, {
        query: settings,
        signal: stopping.signal,
        timeoutMs: 60_000,
        verb: "list",
      });
      if (stopping.signal.aborted) return { kind: "stopped" };
      if (!reply.ok) return { kind: "failed", failure: reply };
      const page = parsePage(reply.body);
      if (page === undefined) return { kind: "garbage", why: "a page is not a list of objects" };
      if (!begun) beginList();
      begun = true;
      for (const object of page.items) {
        stats.events += 1;
        emit({ type: "object", object, initial: true, change: "ADDED" });
      }
      next = page.next;
      if (next === "") {
        endList(page.resourceVersion);
        return { kind: "ended", livedMs: goodMs };
      }
    }
  }

  /** One step: a list, or a connection. Returns how long to wait before the next, and says what went wrong. */
  async function step(): Promise<number> {
    const resumed = resumeFrom !== "";
    const paging = !resumed && stats.paged;
    const outcome = paging ? await listPages() : await connect(!resumed);
    if (outcome.kind === "stopped") return 0;
    if (outcome.kind === "ended" && outcome.livedMs >= goodMs) {
      attempt = 0;
      return 0;
    }
    if (outcome.kind === "dropped" && outcome.livedMs >= goodMs) attempt = 0;
    if (outcome.kind === "ended") {
      // Ended early, but cleanly: wait a little, so that a server that hangs up at once is not hammered.
      attempt += 1;
      return fullJitter(attempt, backoffMinMs, backoffMaxMs, random);
    }

    stats.failures += 1;
    if (!resumed && !paging && lacksStreamingLists(outcome)) {
      stats.paged = true;
      return 0;
    }
    attempt += 1;
    let why: string;
    let failure: KubeFailure | undefined;
    let askedMs = 0;
    if (outcome.kind === "failed") {
      failure = outcome.failure;
      why = describeFailure(failure);
      if (failure.kind === "status" || failure.kind === "http") {
        askedMs = failure.retryAfterMs;
        if (failure.code === 410) resumeFrom = "";
        // The server does not know this resourceVersion (restored from a backup, perhaps): a list will tell.
        else if (resumed && (failure.code === 400 || failure.code === 422)) resumeFrom = "";
        else if (resumed && /Too large resource version/.test(failure.message)) resumeFrom = "";
      }
    } else if (outcome.kind === "expired") {
      resumeFrom = "";
      why = outcome.why;
    } else {
      if (outcome.kind === "garbage") stats.garbage += 1;
      why = outcome.why;
      // Going on from the same place brings the same again, and a server that lost its past stays silent.
      if (resumed && outcome.kind !== "dropped") {
        fruitless += 1;
        if (fruitless >= fruitlessMax) {
          fruitless = 0;
          resumeFrom = "";
        }
      }
    }
    const jitterMs = fullJitter(attempt, backoffMinMs, backoffMaxMs, random);
    const retryInMs = Math.max(jitterMs, Math.min(askedMs, backoffMaxMs));
    onProblem({ message: `watch of ${path}: ${why}`, attempt, retryInMs, failure });
    return retryInMs;
  }

  /** Ends the wait there is. */
  let wake = () => {};

  async function run(): Promise<void> {
    while (!stopping.signal.aborted) {
      const waitMs = await step();
      if (waitMs <= 0 || stopping.signal.aborted) continue;
      const wait = new AbortController();
      wake = () => wait.abort();
      await pause(clock, waitMs, wait.signal);
      wake = () => {};
    }
  }

  return {
    stop() {
      stopping.abort();
      wake();
    },
    retryNow: () => wake(),
    stats,
    done: run(),
  };
}

type Outcome =
  | { kind: "stopped" }
  /** The server closed the stream in good order. */
  | { kind: "ended"; livedMs: number }
  | { kind: "dropped"; why: string; livedMs: number }
  | { kind: "silent"; why: string }
  | { kind: "garbage"; why: string }
  /** The streaming list ended, or went on, without its end. */
  | { kind: "unfinished"; why: string }
  /** The resourceVersion is too old. */
  | { kind: "expired"; why: string }
  /** Another ERROR event. */
  | { kind: "error"; why: string }
  | { kind: "failed"; failure: KubeFailure };

/** Whether this answer to a streaming list means that the server has none (feature off, or before 1.27). */
function lacksStreamingLists(outcome: Outcome): boolean {
  if (outcome.kind === "unfinished") return true;
  if (outcome.kind !== "failed" || outcome.failure.kind !== "status") return false;
  const { code, message } = outcome.failure;
  if (code !== 400 && code !== 403 && code !== 422) return false;
  return /sendInitialEvents|resourceVersionMatch|WatchList/.test(message);
}

function errorOutcome(object: unknown): Outcome {
  const status = parseStatus(object);
  if (status === undefined) return { kind: "error", why: "an ERROR event without a Status" };
  const why = `ERROR event ${status.code} ${status.reason}: ${status.message}`;
  if (status.code === 410 || status.reason === "Expired" || status.reason === "Gone") {
    return { kind: "expired", why };
  }
  return { kind: "error", why };
}

type Line =
  | { type: "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK"; object: WatchedObject }
  | { type: "ERROR"; object: unknown };

/** Checked by hand: this runs for each event of the handover path. */
function parseLine(line: string): Line | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined;
  }
  if (typeof value !== "object" || value === null || !("type" in value) || !("object" in value)) {
    return undefined;
  }
  const { type, object } = value;
  switch (type) {
    case "ADDED":
    case "MODIFIED":
    case "DELETED":
      return isObject(object) ? { type, object } : undefined;
    case "BOOKMARK":
      return isBookmark(object) ? { type, object } : undefined;
    case "ERROR":
      return { type, object };
    default:
      return undefined;
  }
}

function isObject(value: unknown): value is WatchedObject {
  return isBookmark(value) && value.metadata.name !== "" && value.metadata.uid !== "" && hasNames(value);
}

function hasNames(value: WatchedObject): boolean {
  return typeof value.metadata.name === "string" && typeof value.metadata.uid === "string";
}

/** A bookmark carries a resourceVersion and nothing else. */
function isBookmark(value: unknown): value is WatchedObject {
  if (typeof value !== "object" || value === null || !("metadata" in value)) return false;
  const metadata = value.metadata;
  return (
    typeof metadata === "object" &&
    metadata !== null &&
    "resourceVersion" in metadata &&
    typeof metadata.resourceVersion === "string" &&
    metadata.resourceVersion !== ""
  );
}

function isInitialEnd(bookmark: WatchedObject): boolean {
  const annotations = bookmark.metadata.annotations;
  return (
    typeof annotations === "object" &&
    annotations !== null &&
    initialEventsEnd in annotations &&
    annotations[initialEventsEnd] === "true"
  );
}

/** A page of a list: every item an object, or it is no page. */
function parsePage(
  body: unknown,
): { items: WatchedObject[]; next: string; resourceVersion: string } | undefined {
  if (typeof body !== "object" || body === null) return undefined;
  if (!("kind" in body) || typeof body.kind !== "string" || !body.kind.endsWith("List")) return undefined;
  if (!("items" in body) || !Array.isArray(body.items) || !isBookmark(body)) return undefined;
  const items: unknown[] = body.items;
  if (!items.every(isObject)) return undefined;
  const next = body.metadata.continue;
  return {
    items,
    next: typeof next === "string" ? next : "",
    resourceVersion: body.metadata.resourceVersion,
  };
}

/**
 * Watches of the API-server stand-in: initial events, resume from a resourceVersion, streaming lists, bookmarks, and
 * what goes wrong with watches in the field. Framing and wording checked against kube-apiserver 1.36.
 */
import type { Stream } from "./http.ts";
import {
  type Change,
  type ChangeType,
  type Collection,
  type Entry,
  render,
  type Store,
} from "./kubestore.ts";
import { qualified, type Resource } from "./resources.ts";
import type { Selector } from "./selector.ts";
import { type ApiError, badOptions, expired, tooLargeVersion } from "./status.ts";

/** A slow watcher is cut off when so much waits for it, as the API server does. */
const bufferBytesMax = 64 << 20;
/** How long a streaming list waits for a resourceVersion that has not come yet. */
const tooLargeWaitMs = 3000;

/** What the server does with `sendInitialEvents`: serve it, refuse it (WatchList off), or not know it (before 1.27). */
export type StreamingLists = "served" | "forbidden" | "ignored";

export interface WatchRequest {
  resource: Resource;
  collection: Collection;
  namespace: string;
  selector: Selector;
  /** Start of each object's JSON. */
  head: string;
  query: URLSearchParams;
}

/** Which watches a command is for: those of one resource (`pods`, `sandboxes.agents.x-k8s.io`), or all. */
export interface Which {
  resource?: string;
}

export interface Watches {
  /** Checks the parameters (throws ApiError) and answers how to serve the stream. */
  open(request: WatchRequest): (out: Stream) => void;
  /** Open watches now. */
  count(which?: Which): number;
  /** Sends a bookmark to every watch that takes them. */
  bookmark(which?: Which): void;
  /** Ends watches; `how: "reset"` breaks the connection instead. */
  drop(which?: Which & { how?: "end" | "reset" }): number;
  /** Silence: nothing more is sent on the watches open now, until it is lifted. */
  stall(which?: Which & { stalled?: boolean }): number;
  /** Sends a line as it is: garbage, or an event of the test's own. */
  send(what: Which & { line: string }): number;
  /** Sends an ERROR event and ends the watches. */
  fail(which: Which, error: ApiError): number;
}

export interface WatchesOptions {
  store: Store;
  streamingLists: () => StreamingLists;
  bookmarkIntervalMs: number;
  /** How long a watch lasts that asks for no timeoutSeconds. */
  timeoutMs: number;
}

interface Watcher {
  resource: string;
  bookmarks: boolean;
  out: Stream;
  write(line: string): void;
  bookmark(initialEnd?: boolean): void;
  stall(stalled: boolean): void;
}

export function createWatches(options: WatchesOptions): Watches & { stop(): void } {
  const { store } = options;
  const watchers = new Set<Watcher>();
  const of = (which: Which = {}) =>
    [...watchers].filter(({ resource }) => which.resource === undefined || which.resource === resource);

  function bookmark(which?: Which): void {
    for (const watcher of of(which)) if (watcher.bookmarks) watcher.bookmark();
  }

  function open(request: WatchRequest): (out: Stream) => void {
    const { query, collection } = request;
    const bookmarks = isTrue(query.get("allowWatchBookmarks"));
    const asked = query.get("resourceVersion") ?? "";
    const from = Number(asked);
    if (asked !== "" && !/^\d+$/.test(asked))
      throw badOptions("ListOptions", "resourceVersion", `Invalid value: ${JSON.stringify(asked)}`);
    const streaming = checkStreaming(query, options.streamingLists());
    const seconds = Number(query.get("timeoutSeconds") ?? 0);
    const timeoutMs = seconds > 0 ? seconds * 1000 : options.timeoutMs;

    return (out) => {
      const changes = streaming || from === 0 ? [] : collection.since(from);
      if (!changes) return failOn(out, expired(`too old resource version: ${from} (${store.version()})`));
      if (streaming && from > store.version()) {
        const late = setTimeout(() => failOn(out, tooLargeVersion(from, store.version())), tooLargeWaitMs);
        out.onClose(() => clearTimeout(late));
        return;
      }
      const watcher = attach(request, out, bookmarks);
      if (streaming || (from === 0 && query.get("sendInitialEvents") !== "false")) {
        for (const entry of collection.all())
          if (selects(request, entry)) watcher.write(line("ADDED", render(entry, request.head)));
        if (streaming && bookmarks) watcher.bookmark(true);
      } else for (const change of changes) deliver(request, watcher, change);
      const unsubscribe = collection.subscribe((change) => deliver(request, watcher, change));
      const timeout = setTimeout(() => {
        if (bookmarks) watcher.bookmark();
        out.end();
      }, timeoutMs);
      out.onClose(() => {
        clearTimeout(timeout);
        unsubscribe();
        watchers.delete(watcher);
      });
    };
  }

  function attach(request: WatchRequest, out: Stream, bookmarks: boolean): Watcher {
    let held: string[] | undefined;
    const { resource, head } = request;
    const watcher: Watcher = {
      resource: qualified(resource),
      bookmarks,
      out,
      write(text) {
        if (held) {
          held.push(text);
          return;
        }
        out.write(text);
        if (out.buffered() > bufferBytesMax) out.reset();
      },
      bookmark(initialEnd) {
        const metadata = {
          resourceVersion: String(store.version()),
          annotations: initialEnd ? { "k8s.io/initial-events-end": "true" } : undefined,
        };
        const rest = JSON.stringify({ metadata, ...(resource.custom ? {} : emptyOf[resource.kind]) });
        watcher.write(line("BOOKMARK", head + rest.slice(1)));
      },
      stall(stalled) {
        const waiting = held;
        held = stalled ? (held ?? []) : undefined;
        if (!stalled && waiting) for (const text of waiting) watcher.write(text);
      },
    };
    watchers.add(watcher);
    return watcher;
  }

  const timer = setInterval(bookmark, options.bookmarkIntervalMs);
  timer.unref();

  return {
    open,
    count: (which) => of(which).length,
    bookmark,
    drop(which) {
      const dropped = of(which);
      for (const { out } of dropped) which?.how === "reset" ? out.reset() : out.end();
      return dropped.length;
    },
    stall(which) {
      const stalled = of(which);
      for (const watcher of stalled) watcher.stall(which?.stalled ?? true);
      return stalled.length;
    },
    send(what) {
      const sent = of(what);
      for (const watcher of sent) watcher.write(`${what.line}\n`);
      return sent.length;
    },
    fail(which, error) {
      const failed = of(which);
      for (const { out } of failed) failOn(out, error);
      return failed.length;
    },
    stop: () => clearInterval(timer),
  };
}

/** Whether this is a streaming list; throws where the server refuses it. */
function checkStreaming(query: URLSearchParams, lists: StreamingLists): boolean {
  const initial = query.get("sendInitialEvents");
  if (initial === null || lists === "ignored") return false;
  if (lists === "forbidden")
    throw badOptions(
      "ListOptions",
      "sendInitialEvents",
      "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
    );
  if (query.get("resourceVersionMatch") !== "NotOlderThan")
    throw badOptions(
      "ListOptions",
      "resourceVersionMatch",
      "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    );
  return isTrue(initial);
}

function selects({ namespace, selector }: WatchRequest, entry: Entry): boolean {
  return (namespace === "" || entry.namespace === namespace) && selector(entry.object);
}

/** Sends a change as this watcher sees it: entering its selection is ADDED, leaving it DELETED. */
function deliver(request: WatchRequest, watcher: Watcher, change: Change): void {
  const { entry, before } = change;
  const was = before !== undefined && selects(request, before);
  const is = change.type !== "DELETED" && selects(request, entry);
  if (!was && !is) return;
  const type: ChangeType = was && is ? "MODIFIED" : is ? "ADDED" : "DELETED";
  const left = type === "DELETED" && change.type !== "DELETED";
  const key = `${type} ${left} ${request.head}`;
  let sent = change.lines.get(key);
  if (sent === undefined) {
    // Who leaves a selection is shown as it was inside, with the version at which it left.
    const shown =
      left && before
        ? {
            ...before,
            json: before.json.replace(
              `"resourceVersion":"${before.version}"`,
              `"resourceVersion":"${change.version}"`,
            ),
          }
        : entry;
    sent = line(type, render(shown, request.head));
    change.lines.set(key, sent);
  }
  watcher.write(sent);
}

function line(type: string, object: string): string {
  return `{"type":"${type}","object":${object}}\n`;
}

function failOn(out: Stream, error: ApiError): void {
  out.write(line("ERROR", JSON.stringify(error.body)));
  out.end();
}

function isTrue(value: string | null): boolean {
  return value === "true" || value === "1";
}

/** What a bookmark of a built-in kind carries beside its metadata. */
const emptyOf: Record<string, object> = {
  Pod: { spec: { containers: null }, status: {} },
  Node: {
    spec: {},
    status: {
      daemonEndpoints: { kubeletEndpoint: { Port: 0 } },
      nodeInfo: {
        machineID: "",
        systemUUID: "",
        bootID: "",
        kernelVersion: "",
        osImage: "",
        containerRuntimeVersion: "",
        kubeletVersion: "",
        kubeProxyVersion: "",
        operatingSystem: "",
        architecture: "",
      },
    },
  },
  Namespace: { spec: {}, status: {} },
  Lease: { spec: {} },
};

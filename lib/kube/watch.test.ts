import { afterEach, expect, test } from "bun:test";
import { createKubeClient, type KubeClient } from "./client.ts";
import { fixedCredential } from "./credentials.ts";
import { fakeClock } from "./fake-clock.ts";
import { type Watch, type WatchEvent, type WatchOptions, type WatchProblem, watch } from "./watch.ts";

/** One connection to the stand-in, as the test answers it. */
interface Connection {
  query: URLSearchParams;
  /** Answers 200 and leaves the stream open. */
  open(): void;
  send(...lines: unknown[]): void;
  /** Bytes as they are. */
  sendRaw(bytes: string | Uint8Array): void;
  end(): void;
  /** Breaks the connection. */
  break(): void;
  reply(code: number, body: unknown): void;
}

interface StandIn {
  client: KubeClient;
  /** The next connection, in order. */
  next(): Promise<Connection>;
}

const cleanups: (() => void)[] = [];
afterEach(() => {
  for (const cleanup of cleanups.splice(0)) cleanup();
});

function standIn(): StandIn {
  const arrived: Connection[] = [];
  const wanted: ((connection: Connection) => void)[] = [];
  const server = Bun.serve({
    port: 0,
    idleTimeout: 0,
    fetch(request) {
      const answer = Promise.withResolvers<Response>();
      let controller: ReadableStreamDefaultController<Uint8Array> | undefined;
      const encoder = new TextEncoder();
      const connection: Connection = {
        query: new URL(request.url).searchParams,
        open() {
          if (controller !== undefined) return;
          const body = new ReadableStream<Uint8Array>({
            start(own) {
              controller = own;
              // Headers leave with the first byte; an empty line is no event.
              own.enqueue(encoder.encode("\n"));
            },
          });
          answer.resolve(new Response(body));
        },
        send(...lines) {
          connection.open();
          for (const line of lines) controller?.enqueue(encoder.encode(`${JSON.stringify(line)}\n`));
        },
        sendRaw(bytes) {
          connection.open();
          controller?.enqueue(typeof bytes === "string" ? encoder.encode(bytes) : bytes);
        },
        end() {
          connection.open();
          controller?.close();
        },
        break() {
          connection.open();
          controller?.error();
        },
        reply(code, body) {
          answer.resolve(Response.json(body, { status: code }));
        },
      };
      const waiter = wanted.shift();
      if (waiter === undefined) arrived.push(connection);
      else waiter(connection);
      return answer.promise;
    },
  });
  const client = createKubeClient({
    server: `http://127.0.0.1:${server.port}`,
    credentials: fixedCredential(),
  });
  cleanups.push(() => {
    client.close();
    void server.stop(true);
  });
  return {
    client,
    next() {
      const connection = arrived.shift();
      if (connection !== undefined) return Promise.resolve(connection);
      return new Promise((resolve) => wanted.push(resolve));
    },
  };
}

interface Recorder {
  onEvent: (event: WatchEvent) => void;
  events: WatchEvent[];
  /** In short: relist, +name (initial), ~name, -name, synced. */
  short(): string[];
  /** Waits until so many events came. */
  count(n: number): Promise<void>;
}

function recorder(): Recorder {
  const events: WatchEvent[] = [];
  let waiting: { n: number; resolve: () => void } | undefined;
  return {
    events,
    onEvent(event) {
      events.push(event);
      if (waiting !== undefined && events.length >= waiting.n) waiting.resolve();
    },
    short() {
      return events.map((event) => {
        if (event.type === "relist" || event.type === "synced") return event.type;
        const { name, resourceVersion } = event.object.metadata;
        const sign = event.type === "gone" ? "-" : event.initial ? "+" : event.change === "ADDED" ? "a" : "~";
        return `${sign}${name}@${resourceVersion}`;
      });
    },
    count(n) {
      if (events.length >= n) return Promise.resolve();
      return new Promise((resolve) => {
        waiting = { n, resolve };
      });
    },
  };
}

function begin(server: StandIn, options: Partial<WatchOptions> = {}): { seen: Recorder; watched: Watch } {
  const seen = recorder();
  const watched = watch({
    client: server.client,
    path: "/api/v1/pods",
    query: { fieldSelector: "spec.nodeName=n1" },
    onEvent: seen.onEvent,
    random: () => 0,
    ...options,
  });
  cleanups.push(() => watched.stop());
  return { seen, watched };
}

function pod(name: string, resourceVersion: string) {
  return { kind: "Pod", metadata: { name, namespace: "ns", uid: `uid-${name}`, resourceVersion } };
}
function bookmark(resourceVersion: string, end = false) {
  return {
    type: "BOOKMARK",
    object: {
      kind: "Pod",
      metadata: { resourceVersion, ...(end ? { annotations: { "k8s.io/initial-events-end": "true" } } : {}) },
    },
  };
}
function status(code: number, reason: string, message = reason) {
  return { kind: "Status", status: "Failure", code, reason, message };
}
const added = (name: string, rv: string) => ({ type: "ADDED", object: pod(name, rv) });
const modified = (name: string, rv: string) => ({ type: "MODIFIED", object: pod(name, rv) });
const deleted = (name: string, rv: string) => ({ type: "DELETED", object: pod(name, rv) });
const expired = { type: "ERROR", object: status(410, "Expired", "too old resource version") };

test("a streaming list is a relist, its objects, synced, and then changes as they come", async () => {
  const server = standIn();
  const { seen, watched } = begin(server);
  const connection = await server.next();
  expect(Object.fromEntries(connection.query)).toEqual({
    fieldSelector: "spec.nodeName=n1",
    watch: "true",
    allowWatchBookmarks: "true",
    sendInitialEvents: "true",
    resourceVersionMatch: "NotOlderThan",
    timeoutSeconds: "300",
  });
  connection.send(added("a", "5"), added("b", "3"), bookmark("9", true));
  connection.send(modified("a", "10"), added("c", "11"), deleted("b", "12"));
  await seen.count(7);
  expect(seen.short()).toEqual(["relist", "+a@5", "+b@3", "synced", "~a@10", "ac@11", "-b@12"]);
  expect(watched.stats).toMatchObject({
    synced: true,
    connected: true,
    relists: 1,
    connects: 1,
    failures: 0,
  });
});

test("lines cut anywhere, characters too, are the same events", async () => {
  const server = standIn();
  const { seen } = begin(server);
  const connection = await server.next();
  const lines = [added("ä🚀", "5"), bookmark("9", true), modified("漢", "10")];
  const bytes = new TextEncoder().encode(lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  for (let at = 0; at < bytes.length; at += 7) connection.sendRaw(bytes.slice(at, at + 7));
  await seen.count(4);
  expect(seen.short()).toEqual(["relist", "+ä🚀@5", "synced", "~漢@10"]);
});

test("a dropped connection goes on from the last resourceVersion, bookmarks included, without a relist", async () => {
  const server = standIn();
  const { seen, watched } = begin(server);
  const first = await server.next();
  first.send(bookmark("9", true), modified("a", "10"), bookmark("57"));
  await seen.count(3);
  first.break();
  const second = await server.next();
  expect(second.query.get("resourceVersion")).toBe("57");
  expect(second.query.has("sendInitialEvents")).toBe(false);
  second.send(modified("a", "60"));
  await seen.count(4);
  second.end();
  const third = await server.next();
  expect(third.query.get("resourceVersion")).toBe("60");
  expect(seen.short()).toEqual(["relist", "synced", "~a@10", "~a@60"]);
  expect(watched.stats.relists).toBe(1);
});

test("an initial list cut short never says synced, and begins again from nothing", async () => {
  const server = standIn();
  const { seen, watched } = begin(server);
  const first = await server.next();
  first.send(added("a", "5"));
  await seen.count(2);
  first.break();
  const second = await server.next();
  expect(second.query.get("sendInitialEvents")).toBe("true");
  second.send(added("a", "5"), bookmark("9", true));
  await seen.count(5);
  expect(seen.short()).toEqual(["relist", "+a@5", "relist", "+a@5", "synced"]);
  expect(watched.stats.paged).toBe(false);
});

test("a bookmark without the annotation does not end the initial list, nor is it where to go on", async () => {
  const server = standIn();
  const { seen } = begin(server);
  const first = await server.next();
  first.send(added("a", "5"), bookmark("7"));
  await seen.count(2);
  first.break();
  const second = await server.next();
  expect(second.query.get("resourceVersion")).toBeNull();
  expect(seen.short()).not.toContain("synced");
});

test("an ERROR event 410 begins a complete list, and is never an object", async () => {
  const server = standIn();
  const problems: WatchProblem[] = [];
  const { seen } = begin(server, { onProblem: (problem) => problems.push(problem) });
  const first = await server.next();
  first.send(bookmark("9", true), expired, modified("after", "99"));
  const second = await server.next();
  expect(second.query.get("sendInitialEvents")).toBe("true");
  second.send(added("a", "200"), bookmark("201", true));
  await seen.count(5);
  expect(seen.short()).toEqual(["relist", "synced", "relist", "+a@200", "synced"]);
  expect(problems[0]?.message).toContain("too old resource version");
});

test("an HTTP 410 on resume begins a complete list", async () => {
  const server = standIn();
  const { seen } = begin(server);
  const first = await server.next();
  first.send(bookmark("9", true));
  await seen.count(2);
  first.end();
  (await server.next()).reply(410, status(410, "Expired"));
  const third = await server.next();
  expect(third.query.get("sendInitialEvents")).toBe("true");
});

test("another ERROR event resumes, and only a run of them begins a complete list", async () => {
  const server = standIn();
  const { seen } = begin(server);
  const first = await server.next();
  first.send(bookmark("9", true));
  await seen.count(2);
  first.send({ type: "ERROR", object: status(500, "InternalError") });
  for (let n = 0; n < 3; n += 1) {
    const next = await server.next();
    expect(next.query.get("resourceVersion")).toBe("9");
    next.send({ type: "ERROR", object: status(500, "InternalError") });
  }
  expect((await server.next()).query.get("sendInitialEvents")).toBe("true");
  expect(seen.short()).toEqual(["relist", "synced"]);
});

for (const [what, line] of [
  ["text that is not JSON", "<html>gateway</html>\n"],
  ["JSON that is no event", '{"kind":"Pod"}\n'],
  ["an unknown type", '{"type":"REMOVED","object":{"metadata":{"resourceVersion":"77"}}}\n'],
  ["an object without a name", '{"type":"ADDED","object":{"metadata":{"resourceVersion":"77","uid":"u"}}}\n'],
  ["an object without a resourceVersion", '{"type":"ADDED","object":{"metadata":{"name":"n","uid":"u"}}}\n'],
  ["bytes that are not UTF-8", Uint8Array.of(0x7b, 0xff, 10)],
  ["a line without end", "x".repeat(5_000)],
] as const) {
  test(`${what} drops the connection, is counted, and the watch goes on from the last good place`, async () => {
    const server = standIn();
    const { seen, watched } = begin(server, { lineBytesMax: 4_096 });
    const first = await server.next();
    first.send(bookmark("9", true), modified("a", "10"));
    first.sendRaw(line);
    const second = await server.next();
    expect(second.query.get("resourceVersion")).toBe("10");
    expect(watched.stats.garbage).toBe(1);
    second.send(modified("a", "11"));
    await seen.count(4);
    expect(seen.short()).toEqual(["relist", "synced", "~a@10", "~a@11"]);
  });
}

test("half a line at the end of a stream is not an event", async () => {
  const server = standIn();
  const { seen } = begin(server);
  const first = await server.next();
  first.send(bookmark("9", true));
  first.sendRaw(JSON.stringify(modified("a", "10")));
  first.end();
  const second = await server.next();
  expect(second.query.get("resourceVersion")).toBe("9");
  expect(seen.short()).toEqual(["relist", "synced"]);
});

for (const [code, message] of [
  [
    422,
    "ListOptions is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
  ],
  [400, "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch"],
  [403, "sendInitialEvents is forbidden"],
] as const) {
  test(`a server that answers ${code} to a streaming list is listed page by page and watched from there`, async () => {
    const server = standIn();
    const { seen, watched } = begin(server);
    (await server.next()).reply(code, status(code, "Invalid", message));
    const page1 = await server.next();
    expect(Object.fromEntries(page1.query)).toEqual({ fieldSelector: "spec.nodeName=n1", limit: "500" });
    page1.reply(200, {
      kind: "PodList",
      metadata: { resourceVersion: "40", continue: "c1" },
      items: [pod("a", "5")],
    });
    const page2 = await server.next();
    expect(page2.query.get("continue")).toBe("c1");
    page2.reply(200, { kind: "PodList", metadata: { resourceVersion: "40" }, items: [pod("b", "6")] });
    const stream = await server.next();
    expect(stream.query.get("resourceVersion")).toBe("40");
    stream.send(modified("a", "41"));
    await seen.count(5);
    expect(seen.short()).toEqual(["relist", "+a@5", "+b@6", "synced", "~a@41"]);
    expect(watched.stats.paged).toBe(true);
  });
}

test("a 403 that is about permission is no reason to list instead", async () => {
  const server = standIn();
  const problems: WatchProblem[] = [];
  const { watched } = begin(server, { onProblem: (problem) => problems.push(problem) });
  (await server.next()).reply(403, status(403, "Forbidden", 'pods is forbidden: User "x" cannot watch'));
  expect((await server.next()).query.get("sendInitialEvents")).toBe("true");
  expect(watched.stats.paged).toBe(false);
  expect(problems[0]?.message).toContain("cannot watch");
});

test("a list that fails between its pages never says synced", async () => {
  const server = standIn();
  const { seen } = begin(server);
  (await server.next()).reply(422, status(422, "Invalid", "sendInitialEvents"));
  const page = {
    kind: "PodList",
    metadata: { resourceVersion: "40", continue: "c1" },
    items: [pod("a", "5")],
  };
  (await server.next()).reply(200, page);
  (await server.next()).reply(410, status(410, "Expired"));
  const again = await server.next();
  expect(again.query.has("continue")).toBe(false);
  again.reply(200, { ...page, metadata: { resourceVersion: "50" } });
  await seen.count(5);
  expect(seen.short()).toEqual(["relist", "+a@5", "relist", "+a@5", "synced"]);
});

for (const [what, body] of [
  ["null items", { kind: "PodList", metadata: { resourceVersion: "40" }, items: null }],
  ["no resourceVersion", { kind: "PodList", metadata: {}, items: [] }],
  ["no kind", { metadata: { resourceVersion: "40" }, items: [] }],
  ["an item that is no object", { kind: "PodList", metadata: { resourceVersion: "40" }, items: [{}] }],
] as const) {
  test(`a page with ${what} is a failure, never an empty list`, async () => {
    const server = standIn();
    const { seen } = begin(server);
    (await server.next()).reply(422, status(422, "Invalid", "sendInitialEvents"));
    (await server.next()).reply(200, body);
    expect((await server.next()).query.get("limit")).toBe("500");
    expect(seen.short()).toEqual([]);
  });
}

test("a stream that ends in good order before its initial list did is a server without streaming lists", async () => {
  const server = standIn();
  const { seen } = begin(server);
  const first = await server.next();
  first.send(added("a", "5"));
  first.end();
  expect((await server.next()).query.get("limit")).toBe("500");
  expect(seen.short()).toEqual(["relist", "+a@5"]);
});

test("silence ends a connection and the watch resumes", async () => {
  const clock = fakeClock();
  const server = standIn();
  const { seen, watched } = begin(server, { clock, silenceMs: 1_000 });
  const first = await server.next();
  first.send(bookmark("9", true));
  await seen.count(2);
  clock.advance(999);
  first.send(modified("a", "10"));
  await seen.count(3);
  clock.advance(999);
  expect(watched.stats.silences).toBe(0);
  clock.advance(1);
  const second = await server.next();
  expect(second.query.get("resourceVersion")).toBe("10");
  expect(watched.stats.silences).toBe(1);
});

test("a server that stays silent again and again (restored from a backup) is listed anew", async () => {
  const clock = fakeClock();
  const server = standIn();
  const { seen, watched } = begin(server, { clock, silenceMs: 1_000 });
  (await server.next()).send(bookmark("9", true));
  await seen.count(2);
  clock.advance(1_000);
  for (let n = 1; n <= 3; n += 1) {
    const next = await server.next();
    expect(next.query.get("resourceVersion")).toBe("9");
    next.open();
    await until(() => watched.stats.connected);
    clock.advance(1_000);
  }
  expect((await server.next()).query.get("sendInitialEvents")).toBe("true");
});

test("a server that says something before each silence is not listed anew", async () => {
  const clock = fakeClock();
  const server = standIn();
  const { seen, watched } = begin(server, { clock, silenceMs: 1_000 });
  (await server.next()).send(bookmark("9", true));
  await seen.count(2);
  clock.advance(1_000);
  for (let n = 1; n <= 5; n += 1) {
    const next = await server.next();
    expect(next.query.get("resourceVersion")).not.toBeNull();
    next.send(bookmark(String(9 + n)));
    await until(() => watched.stats.bookmarks === 1 + n);
    clock.advance(1_000);
  }
  expect(watched.stats).toMatchObject({ silences: 6, relists: 1 });
});

test("silence is seen although the wall clock was set back", async () => {
  const { now, ...fake } = fakeClock();
  let backMs = 0;
  const clock = { ...fake, now: () => now() - backMs };
  const server = standIn();
  const { seen, watched } = begin(server, { clock, silenceMs: 1_000 });
  (await server.next()).send(bookmark("9", true));
  await seen.count(2);
  backMs = 3_600_000;
  clock.advance(1_000);
  clock.advance(1_000);
  expect((await server.next()).query.get("resourceVersion")).toBe("9");
  expect(watched.stats.silences).toBe(1);
});

for (const [code, reason, message] of [
  [400, "BadRequest", "Invalid value: resourceVersion"],
  [504, "Timeout", "Too large resource version: 9, current: 3"],
] as const) {
  test(`a server that does not know our resourceVersion (${message}) is listed anew`, async () => {
    const server = standIn();
    const { seen } = begin(server);
    const first = await server.next();
    first.send(bookmark("9", true));
    await seen.count(2);
    first.end();
    (await server.next()).reply(code, status(code, reason, message));
    expect((await server.next()).query.get("sendInitialEvents")).toBe("true");
  });
}

test("a streaming list without end is given up for list and watch", async () => {
  const clock = fakeClock();
  const server = standIn();
  const { seen } = begin(server, { clock, silenceMs: 1_000, initialMsMax: 5_000 });
  const first = await server.next();
  first.send(added("a", "5"));
  await seen.count(2);
  for (let n = 0; n < 5; n += 1) {
    clock.advance(900);
    first.send(added("a", String(6 + n)));
    await seen.count(3 + n);
  }
  clock.advance(900);
  expect((await server.next()).query.get("limit")).toBe("500");
  expect(seen.short()).not.toContain("synced");
});

test("failures in a row wait longer and longer, up to the bound, and a good connection begins anew", async () => {
  const clock = fakeClock();
  const server = standIn();
  const waits: number[] = [];
  const { seen } = begin(server, {
    clock,
    random: () => 0.999_999,
    backoffMinMs: 100,
    backoffMaxMs: 1_000,
    onProblem(problem) {
      waits.push(problem.retryInMs);
      // The watch begins its wait after this returns.
      queueMicrotask(() => queueMicrotask(() => clock.advance(problem.retryInMs)));
    },
  });
  for (let n = 0; n < 6; n += 1) (await server.next()).reply(500, status(500, "InternalError"));
  expect(waits).toEqual([99, 199, 399, 799, 999, 999].slice(0, waits.length));
  const good = await server.next();
  good.send(bookmark("9", true));
  await seen.count(2);
  clock.advance(10_000);
  good.break();
  await server.next();
  expect(waits).toEqual([99, 199, 399, 799, 999, 999, 99]);
});

test("stop ends the watch at once, in the middle of a chunk too", async () => {
  const server = standIn();
  const names: string[] = [];
  const watched = watch({
    client: server.client,
    path: "/api/v1/pods",
    onEvent(event) {
      names.push(event.type);
      if (event.type === "object") watched.stop();
    },
    random: () => 0,
  });
  const connection = await server.next();
  connection.sendRaw(`${JSON.stringify(added("a", "5"))}\n${JSON.stringify(added("b", "6"))}\n`);
  await watched.done;
  expect(names).toEqual(["relist", "object"]);
});

test("stop while waiting for a retry ends the watch", async () => {
  const clock = fakeClock();
  const server = standIn();
  const failed = Promise.withResolvers<void>();
  const { watched } = begin(server, { clock, random: () => 0.5, onProblem: () => failed.resolve() });
  (await server.next()).reply(500, status(500, "InternalError"));
  await failed.promise;
  watched.stop();
  await watched.done;
});

test("a heartbeat that reaches the server again ends the wait for the next attempt", async () => {
  const clock = fakeClock();
  const server = standIn();
  const { seen, watched } = begin(server, { clock, random: () => 0.5 });
  watched.retryNow();
  (await server.next()).reply(500, status(500, "InternalError"));
  await until(() => watched.stats.failures === 1 && clock.timers === 1);
  watched.retryNow();
  (await server.next()).send(bookmark("9", true));
  await seen.count(2);
  expect(seen.short()).toEqual(["relist", "synced"]);
});

test("what onEvent throws is not taken for garbage: it ends the watch", async () => {
  const server = standIn();
  const { watched } = begin(server, {
    onEvent(event) {
      if (event.type === "object") throw new Error("a fault of ours");
    },
  });
  (await server.next()).send(added("a", "5"));
  const thrown = await watched.done.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(thrown).toEqual(new Error("a fault of ours"));
});

/** Polls a condition that a socket will bring about. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
}

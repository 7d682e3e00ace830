import { afterEach, expect, test } from "bun:test";
import { createServer, type Server, type Socket } from "node:net";
import {
  apiPath,
  applyPatch,
  createKubeClient,
  describeFailure,
  type KubeClientOptions,
  retriesMax,
  strategicMergePatch,
} from "./client.ts";
import { type Credential, type CredentialSource, fixedCredential } from "./credentials.ts";
import { fakeClock } from "./fake-clock.ts";
import { type Answer, statusResponse, type TestServer, testServer } from "./test-server.ts";

const cleanups: (() => void)[] = [];
afterEach(() => {
  for (const cleanup of cleanups.splice(0)) cleanup();
});

function serve(answer: Answer, options: Partial<KubeClientOptions> = {}): TestServer {
  const server = testServer(answer, options);
  cleanups.push(() => server.stop());
  return server;
}

/** A server that answers each request with these bytes: "" says nothing, null drops the connection. */
async function rawServer(
  reply: (request: string, connection: number, nth: number) => string | null | Promise<string | null>,
) {
  let connections = 0;
  const sockets = new Set<Socket>();
  const server: Server = createServer((socket) => {
    connections += 1;
    const own = connections;
    let nth = 0;
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("data", async (data) => {
      nth += 1;
      const bytes = await reply(data.toString(), own, nth);
      if (bytes === "") return;
      if (bytes === null) socket.destroy();
      else
        socket.write(
          bytes,
          () => !bytes.startsWith("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n") && socket.end(),
        );
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { url: `http://127.0.0.1:${port}`, connections: () => connections };
}
const okReply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

function clientOf(url: string, options: Partial<KubeClientOptions> = {}) {
  const client = createKubeClient({ server: url, credentials: fixedCredential(), ...options });
  cleanups.push(() => client.close());
  return client;
}

test("a request carries JSON, the patch type, the query and the credential", async () => {
  const { client, seen } = serve(() => Response.json({ metadata: { resourceVersion: "2" } }), {
    credentials: fixedCredential({ authorization: "Bearer t" }),
    userAgent: "vk-sandbox/1.2.3",
  });
  const reply = await client.request("PATCH", "/api/v1/namespaces/ns/pods/p/status", {
    body: { metadata: { uid: "u" } },
    contentType: strategicMergePatch,
    query: { fieldManager: "a b&c", force: "true" },
  });
  expect(reply).toEqual({ ok: true, status: 200, body: { metadata: { resourceVersion: "2" } } });
  expect(seen).toHaveLength(1);
  const [request] = seen;
  expect(request?.method).toBe("PATCH");
  expect(request?.query).toEqual({ fieldManager: "a b&c", force: "true" });
  expect(request?.body).toBe('{"metadata":{"uid":"u"}}');
  expect(request?.headers.get("content-type")).toBe("application/strategic-merge-patch+json");
  expect(request?.headers.get("authorization")).toBe("Bearer t");
  expect(request?.headers.get("accept")).toBe("application/json");
  expect(request?.headers.get("user-agent")).toBe("vk-sandbox/1.2.3");
});

test("an apply patch may be JSON, and a body that is text goes as it is", async () => {
  const { client, seen } = serve(() => Response.json({}));
  await client.request("PATCH", "/x", { body: { a: 1 }, contentType: applyPatch });
  await client.request("POST", "/x", { body: '{"b":2}' });
  await client.request("GET", "/x", { metadataOnly: true });
  expect(seen.map((one) => [one.headers.get("content-type"), one.body])).toEqual([
    ["application/apply-patch+yaml", '{"a":1}'],
    ["application/json", '{"b":2}'],
    [null, ""],
  ]);
  expect(seen[2]?.headers.get("accept")).toContain("as=PartialObjectMetadata");
});

test("a path prefix of the server is kept", async () => {
  const server = serve(() => Response.json({}));
  await clientOf(`${server.url}/k8s/clusters/c-1/`).request("GET", "/api/v1/nodes");
  expect(server.asked()).toEqual(["GET /k8s/clusters/c-1/api/v1/nodes"]);
});

test("connections are kept alive", async () => {
  const server = await rawServer(() => okReply);
  const client = clientOf(server.url);
  for (let n = 0; n < 5; n += 1) expect((await client.request("GET", "/x")).ok).toBe(true);
  expect(server.connections()).toBe(1);
});

test("an error with a Status is that Status, with details.name", async () => {
  const { client } = serve(() => statusResponse(404, "NotFound", { name: "p", kind: "pods" }));
  const reply = await client.request("GET", "/api/v1/namespaces/ns/pods/p");
  expect(reply).toMatchObject({
    ok: false,
    kind: "status",
    code: 404,
    reason: "NotFound",
    detailsName: "p",
    detailsKind: "pods",
    retryAfterMs: 0,
  });
  expect(!reply.ok && describeFailure(reply)).toBe('404 NotFound: pods "p": NotFound');
});

for (const [what, answer, code] of [
  ["a page of a proxy", () => new Response("<html>\n  Bad Gateway</html>", { status: 502 }), 502],
  ["plain text", () => new Response("404 page not found\n", { status: 404 }), 404],
  [
    "JSON of someone else",
    () => Response.json({ kind: "Problem", reason: "NotFound" }, { status: 404 }),
    404,
  ],
  [
    "a redirect",
    () => new Response(null, { status: 302, headers: { Location: "http://127.0.0.1:1/" } }),
    302,
  ],
] as const) {
  test(`an error that is ${what} is http, not a Status`, async () => {
    const { client, seen } = serve(answer);
    expect(await client.request("GET", "/x")).toMatchObject({ ok: false, kind: "http", code });
    expect(seen).toHaveLength(1);
  });
}

for (const [what, answer] of [
  ["empty", () => new Response("")],
  ["a page", () => new Response("<html></html>")],
  ["cut short", () => new Response('{"items":[')],
  ["null", () => new Response("null")],
  ["a list", () => new Response("[]")],
] as const) {
  test(`a 200 whose body is ${what} is garbage, never an empty answer`, async () => {
    const { client } = serve(answer);
    expect(await client.request("GET", "/x")).toMatchObject({ ok: false, kind: "garbage" });
  });
}

test("a body larger than its bound is garbage, announced or not", async () => {
  const { client } = serve(
    (seen) =>
      seen.path === "/chunked"
        ? new Response(
            new ReadableStream({
              pull(controller) {
                controller.enqueue(new Uint8Array(100));
              },
            }),
          )
        : Response.json({ a: "x".repeat(2_000) }),
    { bodyBytesMax: 1_000 },
  );
  for (const path of ["/length", "/chunked"]) {
    const reply = await client.request("GET", path);
    expect(reply).toMatchObject({ ok: false, kind: "garbage" });
    expect(!reply.ok && describeFailure(reply)).toContain("bytesMax 1000");
  }
});

test("a body that came in several chunks is whole, characters cut between them too", async () => {
  const bytes = new TextEncoder().encode('{"name":"ä🚀"}');
  const { client } = serve(
    () =>
      new Response(
        (async function* () {
          for (const byte of bytes) {
            yield Uint8Array.of(byte);
            await new Promise((resolve) => setImmediate(resolve));
          }
        })(),
      ),
  );
  expect(await client.request("GET", "/x")).toMatchObject({ ok: true, body: { name: "ä🚀" } });
});

for (const [what, bytes] of [
  ["Content-Length", "HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n{}"],
  ["chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"],
] as const) {
  test(`a connection that ends before the body does (${what}) is a failure`, async () => {
    const server = await rawServer(() => bytes);
    const reply = await clientOf(server.url).request("PATCH", "/x", { body: {} });
    expect(reply).toMatchObject({ ok: false, kind: "network" });
  });
}

test("no server is a network failure that says what to look at", async () => {
  const reply = await clientOf("http://127.0.0.1:1").request("GET", "/api/v1/nodes");
  expect(reply).toMatchObject({ ok: false, kind: "network" });
  expect(!reply.ok && describeFailure(reply)).toBe(
    "network: GET http://127.0.0.1:1/api/v1/nodes: connection refused: is the API server up, and is this its address?",
  );
});

test("no whole answer in time is a timeout, before the headers and after", async () => {
  const { client, seen } = serve((one) =>
    one.path === "/never"
      ? new Promise<Response>(() => {})
      : new Response(
          new ReadableStream({
            start(controller) {
              controller.enqueue(new TextEncoder().encode('{"a":'));
            },
          }),
        ),
  );
  for (const path of ["/never", "/half"]) {
    const reply = await client.request("GET", path, { timeoutMs: 50 });
    expect(reply).toEqual({ ok: false, kind: "timeout", message: "no whole answer within 50 ms" });
  }
  expect(seen).toHaveLength(2);
});

test("after a timeout no idle connection is trusted: the next request opens its own", async () => {
  // Two connections whose other end went away without a word after the first answer.
  const both = Promise.withResolvers<void>();
  const server = await rawServer(async (_request, connection, nth) => {
    if (connection === 2) both.resolve();
    // The first waits for the second, or one connection would serve both.
    await both.promise;
    return connection <= 2 && nth > 1 ? "" : okReply;
  });
  const client = clientOf(server.url);
  const first = await Promise.all([client.request("GET", "/1"), client.request("GET", "/2")]);
  expect(first.map((reply) => reply.ok)).toEqual([true, true]);
  expect(server.connections()).toBe(2);
  expect(await client.request("PUT", "/lease", { body: {}, timeoutMs: 50 })).toMatchObject({
    kind: "timeout",
  });
  expect((await client.request("PUT", "/lease", { body: {} })).ok).toBe(true);
  expect(server.connections()).toBe(3);
});

test("a caller's signal ends the request", async () => {
  const controller = new AbortController();
  const { client } = serve(() => {
    controller.abort();
    return new Promise<Response>(() => {});
  });
  const reply = await client.request("GET", "/x", { signal: controller.signal });
  expect(reply).toMatchObject({ ok: false, kind: "aborted" });
  expect(await client.request("GET", "/x", { signal: controller.signal })).toMatchObject({ kind: "aborted" });
});

test("a PATCH on a connection that the server closed meanwhile is sent again only when it may be", async () => {
  // Each connection answers once and drops the second request.
  const server = await rawServer((_request, _connection, nth) => (nth === 1 ? okReply : null));
  const client = clientOf(server.url);
  expect((await client.request("PATCH", "/x", { body: {} })).ok).toBe(true);
  expect(await client.request("PATCH", "/x", { body: {} })).toMatchObject({ ok: false, kind: "network" });
  expect((await client.request("PATCH", "/x", { body: {} })).ok).toBe(true);
  expect((await client.request("PATCH", "/x", { body: {}, repeatable: true })).ok).toBe(true);
});

test("a connection refused again and again is reported after one repetition", async () => {
  let requests = 0;
  const server = await rawServer(() => {
    requests += 1;
    return null;
  });
  expect(await clientOf(server.url).request("GET", "/x")).toMatchObject({ ok: false, kind: "network" });
  expect(requests).toBe(2);
});

test("Retry-After on 429 holds everything back but heartbeats, and the request is sent again", async () => {
  const clock = fakeClock();
  const server = serve(() => statusResponse(429, "TooManyRequests", {}, { "Retry-After": "2" }), { clock });
  const limited = server.client.request("POST", "/limited", { body: {} });
  await until(() => server.seen.length === 1);
  server.answer = () => Response.json({});
  await until(() => server.client.waiting === 1);
  const other = server.client.request("GET", "/other");
  expect(server.client.waiting).toBe(2);
  expect((await server.client.request("PUT", "/lease", { body: {}, exempt: true })).ok).toBe(true);
  clock.advance(1_999);
  expect(server.asked()).toEqual(["POST /limited", "PUT /lease"]);
  clock.advance(20);
  expect((await limited).ok).toBe(true);
  expect((await other).ok).toBe(true);
  expect(server.asked().slice(2)).toEqual(["POST /limited", "GET /other"]);
});

test("a server that only ever says 429 gets a bounded number of attempts", async () => {
  const clock = fakeClock();
  const server = serve(() => statusResponse(429, "TooManyRequests", { retryAfterSeconds: 1 }), { clock });
  const reply = server.client.request("POST", "/x", { body: {} });
  for (let n = 1; n <= retriesMax; n += 1) {
    await until(() => server.seen.length === n && server.client.waiting === 1);
    clock.advance(1_100);
  }
  expect(await reply).toMatchObject({ ok: false, kind: "status", code: 429, retryAfterMs: 1_000 });
  expect(server.seen).toHaveLength(1 + retriesMax);
});

test("a 429 without Retry-After, and a 503 to what may not be repeated, are answers", async () => {
  const server = serve(() => statusResponse(429, "TooManyRequests"));
  expect(await server.client.request("GET", "/x")).toMatchObject({ ok: false, code: 429 });
  server.answer = () => statusResponse(503, "ServiceUnavailable", {}, { "Retry-After": "1" });
  expect(await server.client.request("POST", "/x", { body: {} })).toMatchObject({ ok: false, code: 503 });
  expect(server.seen).toHaveLength(2);
});

test("more requests than may wait fail as overloaded at once", async () => {
  const clock = fakeClock();
  const server = serve(() => Response.json({}), { qps: 1, burst: 1, waitingMax: 1, clock });
  expect((await server.client.request("GET", "/1")).ok).toBe(true);
  const second = server.client.request("GET", "/2");
  expect(await server.client.request("GET", "/3")).toMatchObject({ ok: false, kind: "overloaded" });
  expect((await server.client.request("GET", "/4", { exempt: true })).ok).toBe(true);
  clock.advance(1_000);
  expect((await second).ok).toBe(true);
});

test("heartbeats do not wait for requests that are stuck", async () => {
  const server = serve(
    (seen) => (seen.path === "/slow" ? new Promise<Response>(() => {}) : Response.json({})),
    { inFlightMax: 2 },
  );
  const controller = new AbortController();
  const stuck = Array.from({ length: 5 }, () =>
    server.client.request("GET", "/slow", { signal: controller.signal }),
  );
  expect((await server.client.request("PUT", "/lease", { body: {}, exempt: true })).ok).toBe(true);
  expect(server.client.waiting).toBe(3);
  controller.abort();
  expect((await Promise.all(stuck)).every((reply) => !reply.ok && reply.kind === "aborted")).toBe(true);
  expect(server.client.waiting).toBe(0);
});

test("each attempt is told to the metrics, with 0 for no answer", async () => {
  const told: string[] = [];
  const onRequest = (verb: string, code: number, ms: number) => told.push(`${verb} ${code} ${ms >= 0}`);
  const server = serve(() => Response.json({}), { onRequest });
  await server.client.request("GET", "/x", { verb: "list" });
  server.answer = () => statusResponse(409, "Conflict");
  await server.client.request("PUT", "/x", { body: {} });
  await clientOf("http://127.0.0.1:1", { onRequest }).request("PATCH", "/x", { body: {} });
  expect(told).toEqual(["list 200 true", "put 409 true", "patch 0 true"]);
});

/** A source whose credential changes when it is rejected. */
function rotating(...authorizations: string[]): CredentialSource & { rejections: number } {
  const all: Credential[] = authorizations.map((authorization) => ({ authorization, tls: {} }));
  let at = 0;
  const source = {
    rejections: 0,
    current: () => all[at] ?? { why: "no credential is left" },
    rejected() {
      source.rejections += 1;
      at = Math.min(at + 1, all.length - 1);
    },
  };
  return source;
}

test("a 401 makes the client look for a newer credential and send the request again, once", async () => {
  const credentials = rotating("Bearer old", "Bearer new");
  const server = serve(
    (seen) =>
      seen.headers.get("authorization") === "Bearer new"
        ? Response.json({})
        : statusResponse(401, "Unauthorized"),
    { credentials },
  );
  expect((await server.client.request("POST", "/x", { body: {} })).ok).toBe(true);
  expect(server.seen).toHaveLength(2);
  server.answer = () => statusResponse(401, "Unauthorized");
  expect(await server.client.request("POST", "/x", { body: {} })).toMatchObject({ ok: false, code: 401 });
  expect(server.seen).toHaveLength(3);
  expect(credentials.rejections).toBe(2);
});

test("a source that has a new credential after each 401 does not make the client try for ever", async () => {
  let version = 0;
  const credentials: CredentialSource = {
    current: () => ({ authorization: `Bearer ${version}`, tls: {} }),
    rejected() {
      version += 1;
    },
  };
  const server = serve(() => statusResponse(401, "Unauthorized"), { credentials });
  expect(await server.client.request("GET", "/x")).toMatchObject({ ok: false, code: 401 });
  expect(server.seen).toHaveLength(2);
});

test("no credential is a failure that says why, and nothing is sent", async () => {
  const server = serve(() => Response.json({}), {
    credentials: { current: async () => ({ why: "exec plugin x failed" }), rejected() {} },
  });
  expect(await server.client.request("GET", "/x")).toEqual({
    ok: false,
    kind: "credentials",
    message: "exec plugin x failed",
  });
  expect(await server.client.stream("/x")).toMatchObject({ ok: false, kind: "credentials" });
  expect(server.seen).toHaveLength(0);
});

test("the token is in no message, whatever goes wrong", async () => {
  const token = "s3cret-t0ken";
  const credentials = fixedCredential({ authorization: `Bearer ${token}` });
  const refused = await clientOf("http://127.0.0.1:1", { credentials }).request("GET", "/x");
  const reset = await clientOf((await rawServer(() => null)).url, { credentials }).request("GET", "/x");
  const evil = fixedCredential({ authorization: `Bearer ${token}\r\nX: y` });
  const badHeader = await clientOf("http://127.0.0.1:1", { credentials: evil }).request("GET", "/x");
  for (const reply of [refused, reset, badHeader]) {
    expect(reply.ok).toBe(false);
    expect(JSON.stringify(reply)).not.toContain(token);
  }
});

test("a stream gives its bytes as they come, and its caller's signal ends it", async () => {
  const server = serve(
    () =>
      new Response(
        new ReadableStream({
          start(controller) {
            controller.enqueue(new TextEncoder().encode("one\n"));
          },
        }),
      ),
  );
  const controller = new AbortController();
  const reply = await server.client.stream("/x", { query: { watch: "true" }, signal: controller.signal });
  if (!reply.ok) throw new Error(describeFailure(reply));
  const reader = reply.body.getReader();
  expect(new TextDecoder().decode((await reader.read()).value)).toBe("one\n");
  controller.abort();
  const ended = await reader.read().then(
    (read) => (read.done ? "done" : "more"),
    () => "aborted",
  );
  expect(ended).toBe("aborted");
});

test("a stream that is refused is a failure like any other", async () => {
  const server = serve(() => statusResponse(410, "Expired"));
  expect(await server.client.stream("/x")).toMatchObject({ ok: false, kind: "status", code: 410 });
  server.answer = () => new Promise<Response>(() => {});
  expect(await server.client.stream("/x", { headersTimeoutMs: 20 })).toMatchObject({ kind: "timeout" });
});

test("a request goes through the proxy when there is one", async () => {
  const seen: string[] = [];
  const proxy = await rawServer((request) => {
    seen.push(request.split("\r\n")[0] ?? "");
    return okReply;
  });
  const client = clientOf("http://kube.example:8080", { proxy: proxy.url });
  expect((await client.request("GET", "/api")).ok).toBe(true);
  expect(seen).toEqual(["GET http://kube.example:8080/api HTTP/1.1"]);
});

test("a name is one segment of a path, whatever it is", () => {
  expect(apiPath("/api/v1", "namespaces", "a/../b", "pods", "c?d#e%2f")).toBe(
    "/api/v1/namespaces/a%2F..%2Fb/pods/c%3Fd%23e%252f",
  );
  for (const bad of ["", ".", ".."]) expect(apiPath("/api/v1", "nodes", bad)).toBeUndefined();
});

/** Polls a condition that a socket will bring about. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
}

test("a credential that the server repeats in an error goes no further, and its user is told of it once", async () => {
  const secret = "a-bearer-token-of-some-length";
  const secrets: string[] = [];
  const credentials = fixedCredential({ authorization: `Bearer ${secret}` });
  const told = {
    kind: "Status",
    status: "Failure",
    code: 403,
    reason: "Forbidden",
    message: `${secret} may not`,
  };
  const server = serve(() => Response.json(told, { status: 403 }), {
    credentials,
    onSecret: (one) => secrets.push(one),
  });
  for (const reply of [await server.client.request("GET", "/x"), await server.client.stream("/x")])
    expect(reply).toMatchObject({ ok: false, message: "[credential] may not" });
  server.answer = () => new Response(`<html>${secret}</html>`, { status: 502 });
  expect(JSON.stringify(await server.client.request("GET", "/x"))).not.toContain(secret);
  expect(secrets).toEqual([secret]);
});

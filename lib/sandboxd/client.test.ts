import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ClaimResult } from "../provider/types.ts";
import type { ClaimSpec } from "./claim.ts";
import { createSandboxd, type SandboxdOptions } from "./client.ts";
import { CALLS_IN_FLIGHT_MAX, REPLY_BYTES_MAX } from "./limits.ts";

const ROOT = "root-token-1234";
const TOKEN = "sandbox-token-5678";
const spec: ClaimSpec = { template: "rt:24.04", net: "none", size: "", ttlSeconds: 60, claimRef: "ns/a" };
const grant = { id: "sb_1", token: TOKEN, deadline: "2026-01-01T00:00:00.5Z", owner_addr: "10.0.0.1:7777" };

interface Seen {
  method: string;
  path: string;
  authorization: string | null;
  body: string;
}

/** What the stand-in answers next, and what it was asked. */
let answer: (request: Seen) => Response | Promise<Response> = () => new Response("", { status: 500 });
let seen: Seen[] = [];
const server = Bun.serve({
  hostname: "127.0.0.1",
  port: 0,
  async fetch(request) {
    const url = new URL(request.url);
    const one = {
      method: request.method,
      path: url.pathname + url.search,
      authorization: request.headers.get("authorization"),
      body: await request.text(),
    };
    seen.push(one);
    return answer(one);
  },
});
const url = `http://127.0.0.1:${server.port}`;

/** A server that speaks in raw bytes: it sends `raw` after a request and then ends as it is told. */
let raw: { send: string; ending: "end" | "reset" | "hang" } = { send: "", ending: "end" };
let rawRequests = 0;
const rawServer = Bun.listen({
  hostname: "127.0.0.1",
  port: 0,
  socket: {
    data(socket) {
      rawRequests++;
      if (raw.send !== "") socket.write(raw.send);
      if (raw.ending === "end") socket.end();
      if (raw.ending === "reset") socket.terminate();
    },
  },
});
const rawUrl = `http://127.0.0.1:${rawServer.port}`;

const proxyVariables = ["HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"];
const environment = new Map(proxyVariables.map((name) => [name, process.env[name]]));
beforeAll(() => {
  for (const name of proxyVariables) delete process.env[name];
});
afterEach(() => {
  seen = [];
  rawRequests = 0;
});
afterAll(() => {
  server.stop(true);
  rawServer.stop(true);
  for (const [name, value] of environment) if (value !== undefined) process.env[name] = value;
});

function client(options: Partial<SandboxdOptions> = {}) {
  return createSandboxd({ url, token: () => ROOT, ...options });
}

/** A client of the raw server; short timeouts are waited out by the hanging cases only. */
function rawClient(timeoutMs = 5_000) {
  return client({ url: rawUrl, timeouts: { claimMs: timeoutMs, callMs: timeoutMs } });
}

function json(value: unknown, status = 200): () => Response {
  return () => Response.json(value, { status });
}

function refusal(result: ClaimResult): { kind: string; lost: boolean; message: string } {
  if (result.ok) throw new Error("the claim was granted");
  expect(JSON.stringify(result)).not.toContain(ROOT);
  expect(JSON.stringify(result)).not.toContain(TOKEN);
  return { kind: result.cause.kind, lost: result.lost, message: result.cause.message };
}

describe("claim", () => {
  test("a grant comes back with its deadline in milliseconds, and the request says what was asked for", async () => {
    answer = json(grant);
    expect(await client().claim(spec)).toEqual({
      ok: true,
      grant: {
        id: "sb_1",
        token: TOKEN,
        address: "10.0.0.1:7777",
        deadlineMs: Date.UTC(2026, 0, 1, 0, 0, 0, 500),
      },
    });
    expect(seen[0]).toMatchObject({ method: "POST", path: "/v1/claim", authorization: `Bearer ${ROOT}` });
    expect(JSON.parse(seen[0]?.body ?? "")).toEqual({
      template: "rt:24.04",
      net: "none",
      ttl_seconds: 60,
      claim_ref: "ns/a",
    });
  });

  test("a zero deadline or none means kept for ever", async () => {
    for (const deadline of ["0001-01-01T00:00:00Z", undefined]) {
      answer = json({ ...grant, deadline });
      expect(await client().claim(spec)).toMatchObject({ ok: true, grant: { deadlineMs: 0 } });
    }
  });

  test("a redirect is no warm capacity and names the peers", async () => {
    answer = json({ redirect: ["10.0.0.2:7777", "10.0.0.3:7777"] });
    const { kind, lost, message } = refusal(await client().claim(spec));
    expect({ kind, lost }).toEqual({ kind: "no_warm_capacity", lost: false });
    expect(message).toContain("10.0.0.2:7777, 10.0.0.3:7777");
    expect(seen.length).toBe(1);
  });

  const refusals: [number, string, string][] = [
    [400, "unknown template rt:9", "unknown_template"],
    [401, "bad token", "bad_token"],
    [403, "tenant may not", "bad_token"],
    [409, "no egress attachment", "egress_unavailable"],
    [429, "node is draining", "draining"],
    [429, "at max_claims (40)", "max_claims"],
    [429, "quota exceeded: 40 live claims, cap 40", "max_claims"],
    [429, "quota exceeded: node draining", "draining"],
    [429, "no warm sandbox", "no_warm_capacity"],
    [500, "provisioning failed: out of memory", "provisioning_failed"],
    [503, "starting", "provisioning_failed"],
    [404, "no such endpoint", "bad_reply"],
  ];
  test.each(refusals)("HTTP %d with %p is %p, and nothing was granted", async (status, error, kind) => {
    answer = json({ error }, status);
    const result = refusal(await client().claim(spec));
    expect({ kind: result.kind, lost: result.lost }).toEqual({ kind, lost: false });
    expect(result.message).toContain(error);
  });

  test("an error status in somebody else's words may hide a grant", async () => {
    for (const status of [400, 404, 429, 500, 502, 504]) {
      answer = () => new Response("<html>Bad gateway</html>", { status });
      expect(refusal(await client().claim(spec)), String(status)).toMatchObject({ lost: true });
    }
  });

  test("an HTTP redirect is not followed with the credential", async () => {
    answer = () => new Response(null, { status: 307, headers: { location: `${url}/elsewhere` } });
    expect(refusal(await client().claim(spec))).toMatchObject({ kind: "bad_reply", lost: true });
    expect(seen.length).toBe(1);
  });

  const unusable: [string, unknown][] = [
    ["no object", [1]],
    ["nothing in it", {}],
    ["an id that would leave the path", { ...grant, id: "../../v1/claim" }],
    ["an id that is no text", { ...grant, id: 7 }],
    ["no token", { ...grant, token: undefined }],
    ["a token that would break the header", { ...grant, token: "a\r\nb" }],
    ["no address", { ...grant, owner_addr: "" }],
    ["a deadline that is no time", { ...grant, deadline: "tomorrow" }],
  ];
  test.each(unusable)("a 200 with %s is a bad reply behind which a VM may live", async (_, body) => {
    answer = json(body);
    expect(refusal(await client().claim(spec))).toMatchObject({ kind: "bad_reply", lost: true });
  });

  test("an empty, cut off or overlong 200 is a bad or lost reply", async () => {
    for (const body of ["", '{"id":"sb_1"', `"${"x".repeat(REPLY_BYTES_MAX)}"`]) {
      answer = () => new Response(body);
      expect(refusal(await client().claim(spec))).toMatchObject({ lost: true });
    }
  });

  test("an overlong body without a length is not read to its end", async () => {
    const chunk = new Uint8Array(REPLY_BYTES_MAX / 4);
    let sent = 0;
    answer = () =>
      new Response(
        new ReadableStream({
          pull(controller) {
            sent++;
            controller.enqueue(chunk);
          },
        }),
      );
    expect(refusal(await client().claim(spec))).toMatchObject({ lost: true });
    expect(sent).toBeLessThan(1_000);
  });

  test("a refused connection, an unknown host and a missing socket granted nothing", async () => {
    const free = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
    const closedPort = free.port;
    free.stop(true);
    for (const nowhere of [
      `http://127.0.0.1:${closedPort}`,
      "http://sandboxd.invalid:1",
      "unix:///nowhere/sandboxd.sock",
    ]) {
      const result = refusal(await client({ url: nowhere }).claim(spec));
      expect(result, nowhere).toMatchObject({ kind: "unreachable", lost: false });
      expect(result.message).toContain(nowhere);
    }
  });

  const endings: [string, typeof raw][] = [
    ["closed without a byte", { send: "", ending: "end" }],
    ["reset after granting", { send: "", ending: "reset" }],
    ["closed within the headers", { send: "HTTP/1.1 200 OK\r\nconte", ending: "end" }],
    [
      "closed within the body",
      { send: 'HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{"id":', ending: "end" },
    ],
    [
      "closed within a chunk",
      { send: "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n50\r\n{", ending: "end" },
    ],
    ["answered with no HTTP", { send: "SSH-2.0-OpenSSH_9.6\r\n", ending: "end" }],
  ];
  test.each(endings)("a connection %s may have granted, and is not tried again by itself", async (_, how) => {
    raw = how;
    expect(refusal(await rawClient().claim(spec))).toMatchObject({ kind: "unreachable", lost: true });
    expect(rawRequests).toBe(1);
  });

  test("a kept connection that dies under the second claim is not sent twice", async () => {
    const body = JSON.stringify(grant);
    raw = { send: `HTTP/1.1 200 OK\r\ncontent-length: ${body.length}\r\n\r\n${body}`, ending: "hang" };
    const sandboxd = rawClient();
    expect(await sandboxd.claim(spec)).toMatchObject({ ok: true });
    raw = { send: "", ending: "end" };
    expect(refusal(await sandboxd.claim(spec))).toMatchObject({ kind: "unreachable", lost: true });
    expect(rawRequests).toBe(2);
  });

  test("a server that never answers, or never ends its answer, is a timeout that may have granted", async () => {
    for (const send of ["", "HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{"]) {
      raw = { send, ending: "hang" };
      expect(refusal(await rawClient(50).claim(spec))).toMatchObject({ kind: "timeout", lost: true });
    }
  });

  test("a token that no header can carry is not sent", async () => {
    const result = refusal(await client({ token: () => "two\nlines" }).claim(spec));
    expect(result).toMatchObject({ kind: "bad_token", lost: false });
    expect(seen.length).toBe(0);
  });

  test("the token of the moment is used, and none where there is none", async () => {
    let token: string | undefined = "first";
    const sandboxd = client({ token: () => token });
    answer = json(grant);
    await sandboxd.claim(spec);
    token = "second";
    await sandboxd.claim(spec);
    token = undefined;
    await sandboxd.claim(spec);
    expect(seen.map((one) => one.authorization)).toEqual(["Bearer first", "Bearer second", null]);
  });

  test("an error that echoes a credential is passed on without it", async () => {
    answer = json({ error: `bad header Authorization: Bearer ${ROOT}\nand Bearer someone-elses` }, 401);
    const { message } = refusal(await client().claim(spec));
    expect(message).toContain("Bearer [credential]");
    expect(message).not.toContain("someone-elses");
    expect(message).not.toContain("\n");
  });

  test("a proxy of the environment sees neither the claim nor the credential", async () => {
    process.env.http_proxy = rawUrl;
    try {
      answer = json(grant);
      expect(await client().claim(spec)).toMatchObject({ ok: true });
      expect(rawRequests).toBe(0);
    } finally {
      delete process.env.http_proxy;
    }
  });
});

describe("list", () => {
  const row = {
    id: "sb_1",
    key: { template: "rt", net: "none", size: "small" },
    deadline: "2026-01-01T00:00:00Z",
    claimed_at: "2025-12-31T00:00:00.000000001Z",
    hibernated: true,
    claim_ref: "ns/a",
    archived: false,
  };

  test("rows are read, and a filter that sandboxd ignores is applied here", async () => {
    answer = json({ sandboxes: [row, { id: "sb_2", key: { template: "rt" }, hibernated: false }] });
    const all = await client().list();
    expect(all).toEqual({
      ok: true,
      rows: [
        {
          id: "sb_1",
          template: "rt",
          net: "none",
          size: "small",
          deadlineMs: Date.UTC(2026, 0, 1),
          claimedAtMs: Date.UTC(2025, 11, 31),
          hibernated: true,
          claimRef: "ns/a",
        },
        { id: "sb_2", template: "rt", net: "", size: "", deadlineMs: 0, hibernated: false, claimRef: "" },
      ],
    });
    const mine = await client().list("ns/a");
    expect(mine.ok && mine.rows.map((one) => one.id)).toEqual(["sb_1"]);
    expect(seen.map((one) => one.path)).toEqual(["/v1/sandboxes", "/v1/sandboxes?claim_ref=ns%2Fa"]);
  });

  test("an empty index is an empty list, also as Go writes a nil slice", async () => {
    for (const sandboxes of [[], null]) {
      answer = json({ sandboxes });
      expect(await client().list()).toEqual({ ok: true, rows: [] });
    }
  });

  const failures: [string, () => Response][] = [
    ["an empty body", () => new Response("")],
    ["an object without the list", json({})],
    ["a list of something else", json({ sandboxes: [{ name: "x" }] })],
    ["a row whose id would leave the path", json({ sandboxes: [{ ...row, id: "a/../b" }] })],
    ["a row whose deadline is no time", json({ sandboxes: [{ ...row, deadline: "later" }] })],
    ["a bare list", json([row])],
    ["a cut off body", () => new Response(`{"sandboxes":[${JSON.stringify(row)}`)],
    ["a 204", () => new Response(null, { status: 204 })],
    ["a 500", json({ error: "boom" }, 500)],
    ["a 404 of another server", () => new Response("404 page not found", { status: 404 })],
    ["an HTML page", () => new Response("<html></html>")],
  ];
  test.each(failures)("%s is a failure, never an empty list", async (_, how) => {
    answer = how;
    const result = await client().list();
    expect(result.ok).toBe(false);
    expect(!result.ok && result.why).toContain(url);
  });

  test("an index far larger than a claim's reply is read", async () => {
    answer = json({ sandboxes: Array.from({ length: 8_000 }, (_, n) => ({ ...row, id: `sb_${n}` })) });
    const result = await client().list();
    expect(result.ok && result.rows.length).toBe(8_000);
  });
});

describe("read", () => {
  const row = { id: "sb_1", key: { template: "rt" }, hibernated: false, claim_ref: "ns/a", token: TOKEN };

  test("the root read gives the credential", async () => {
    answer = json({ ...row, owner_addr: "10.0.0.1:7777" });
    expect(await client().read("sb_1")).toMatchObject({ ok: true, token: TOKEN, address: "10.0.0.1:7777" });
    answer = json(row);
    expect(await client().read("sb_1")).toMatchObject({ ok: true, address: "" });
  });

  test("only sandboxd's own 404 is absence", async () => {
    answer = json({ error: "unknown sandbox" }, 404);
    expect(await client().read("sb_1")).toMatchObject({ ok: false, absent: true });
    for (const body of ["404 page not found\n", "<html>not found</html>", "", '{"message":"no"}']) {
      answer = () => new Response(body, { status: 404 });
      expect(await client().read("sb_1"), body).toMatchObject({ ok: false, absent: false });
    }
    answer = json({ error: "gone" }, 410);
    expect(await client().read("sb_1")).toMatchObject({ ok: false, absent: false });
  });

  test("a row of another id, or without its token, is not taken", async () => {
    answer = json({ ...row, id: "sb_2" });
    expect(await client().read("sb_1")).toMatchObject({ ok: false, absent: false });
    answer = json({ ...row, token: undefined });
    const without = await client().read("sb_1");
    expect(!without.ok && without.why).toContain("root api_token");
  });

  test("an id that would leave the path is not sent", async () => {
    expect(await client().read("../claim")).toMatchObject({ ok: false, absent: false });
    expect(await client().release("a/b", TOKEN)).toMatchObject({ ok: false, kind: "refused" });
    expect(seen.length).toBe(0);
  });
});

describe("calls to one sandbox", () => {
  test("a release is done at 204 and at sandboxd's own 404, with the sandbox's credential", async () => {
    answer = () => new Response(null, { status: 204 });
    expect(await client().release("sb_1", TOKEN)).toEqual({ ok: true });
    expect(seen[0]).toMatchObject({ path: "/v1/sandboxes/sb_1/release", authorization: `Bearer ${TOKEN}` });
    answer = json({ error: "unknown" }, 404);
    expect(await client().release("sb_1", TOKEN)).toEqual({ ok: true, alreadyGone: true });
  });

  test("a release that another server answered, or nobody, has failed", async () => {
    for (const how of [
      () => new Response("404 page not found", { status: 404 }),
      json({ error: "boom" }, 500),
      () => new Response("<html>log in</html>", { status: 200 }),
      json({}, 200),
      () => new Response("", { status: 202 }),
    ]) {
      answer = how;
      expect(await client().release("sb_1", TOKEN)).toMatchObject({ ok: false, kind: "failed" });
    }
    raw = { send: "", ending: "reset" };
    expect(await rawClient().release("sb_1", TOKEN)).toMatchObject({ ok: false, kind: "failed" });
  });

  test("a credential that sandboxd no longer knows gives way to the root one", async () => {
    answer = ({ authorization }) =>
      authorization === `Bearer ${ROOT}`
        ? new Response(null, { status: 204 })
        : json({ error: "bad token" }, 401)();
    expect(await client().release("sb_1", TOKEN)).toEqual({ ok: true });
    expect(await client().release("sb_1", "")).toEqual({ ok: true });
    expect(seen.map((one) => one.authorization)).toEqual([
      `Bearer ${TOKEN}`,
      `Bearer ${ROOT}`,
      `Bearer ${ROOT}`,
    ]);
  });

  test("a renewal gives the deadline that was granted", async () => {
    answer = json({ deadline: "2026-01-01T00:00:00Z" });
    expect(await client().renew("sb_1", TOKEN, 600)).toEqual({ ok: true, deadlineMs: Date.UTC(2026, 0, 1) });
    expect(JSON.parse(seen[0]?.body ?? "")).toEqual({ ttl_seconds: 600 });
    answer = () => new Response("");
    expect(await client().renew("sb_1", TOKEN, 600)).toMatchObject({ ok: false, kind: "failed" });
  });

  test("409 refuses, 404 says gone, the rest is to be tried again", async () => {
    const sandboxd = client();
    for (const call of [
      () => sandboxd.hibernate("sb_1", TOKEN),
      () => sandboxd.wake("sb_1", TOKEN),
      () => sandboxd.renew("sb_1", TOKEN, 1),
    ]) {
      answer = json({ error: "has volumes" }, 409);
      expect(await call()).toMatchObject({
        ok: false,
        kind: "refused",
        why: expect.stringContaining("has volumes"),
      });
      answer = json({ error: "unknown" }, 404);
      expect(await call()).toMatchObject({ ok: false, kind: "gone" });
      answer = () => new Response("<html>", { status: 409 });
      expect(await call()).toMatchObject({ ok: false, kind: "failed" });
      answer = json({ error: "busy" }, 503);
      expect(await call()).toMatchObject({ ok: false, kind: "failed" });
      answer = () => new Response("<html>log in</html>", { status: 200 });
      expect(await call()).toMatchObject({ ok: false, kind: "failed" });
    }
  });

  test("an error that echoes the sandbox's credential is passed on without it", async () => {
    answer = json({ error: `no ${TOKEN} here` }, 409);
    const result = await client().wake("sb_1", TOKEN);
    expect(!result.ok && result.why).toContain("no [credential] here");
  });
});

describe("what else sandboxd says", () => {
  test("info, with and without its optional fields", async () => {
    answer = json({
      pools: [
        {
          key: { template: "rt", net: "none", size: "small" },
          warm: 3,
          refilling: 1,
          target: 4,
          golden: "g",
        },
      ],
      claimed: 2,
      hibernated: 1,
      archived: 0,
      at_capacity: true,
      at_capacity_reason: "memory",
      peers: [],
    });
    expect(await client().info()).toEqual({
      ok: true,
      info: {
        pools: [{ template: "rt", net: "none", size: "small", warm: 3, target: 4 }],
        claimed: 2,
        hibernated: 1,
        archived: 0,
        draining: false,
        atCapacity: true,
        atCapacityReason: "memory",
      },
    });
    answer = json({ pools: null, claimed: 0 });
    expect(await client().info()).toMatchObject({ ok: true, info: { pools: [] } });
    answer = json({});
    expect(await client().info()).toMatchObject({ ok: false });
    answer = json({ error: "tenant" }, 403);
    expect(await client().info()).toMatchObject({ ok: false, status: 403 });
  });

  test("stats of a sandbox, and of one that is gone", async () => {
    answer = json({
      id: "sb_1",
      cpu_count: 2,
      mem_total_bytes: 1024,
      mem_used_bytes: 512,
      mem_used_measured: true,
    });
    expect(await client().stats("sb_1")).toMatchObject({
      ok: true,
      stats: { memUsedBytes: 512, memUsedMeasured: true },
    });
    answer = json({ error: "unknown" }, 404);
    expect(await client().stats("sb_1")).toMatchObject({ ok: false, absent: true });
  });

  test("health is asked without a credential, metrics with it", async () => {
    answer = () => new Response("ok");
    expect(await client().healthz()).toEqual({ ok: true });
    expect(await client().metricsText()).toEqual({ ok: true, text: "ok" });
    expect(seen.map((one) => one.authorization)).toEqual([null, `Bearer ${ROOT}`]);
    answer = () => new Response("down", { status: 503 });
    expect(await client().healthz()).toMatchObject({ ok: false, status: 503 });
  });

  test("sandboxd behind a unix socket is spoken to as well", async () => {
    const directory = mkdtempSync(join(tmpdir(), "sandboxd-"));
    const socket = join(directory, "s.sock");
    const listener = Bun.serve({ unix: socket, fetch: () => Response.json(grant) });
    try {
      expect(await client({ url: `unix://${socket}` }).claim(spec)).toMatchObject({ ok: true });
    } finally {
      listener.stop(true);
      rmSync(directory, { recursive: true });
    }
  });
});

describe("a credential that sandboxd repeats", () => {
  const client = () => createSandboxd({ url, token: () => ROOT });

  test("goes no further, in whatever field of whatever answer it stands", async () => {
    const answers: [status: number, body: unknown][] = [
      [500, { error: `boot failed for ${ROOT}` }],
      [401, { error: `Bearer ${ROOT}` }],
      [502, `<html>${ROOT}</html>`],
      [200, { sandboxes: [{ id: "sb_1", key: { template: ROOT }, claim_ref: ROOT }] }],
      [
        200,
        { pools: [{ key: { template: ROOT }, warm: 1, target: 1 }], claimed: 1, at_capacity_reason: ROOT },
      ],
      [200, { redirect: [ROOT, `${ROOT}:80`] }],
      [200, `{"id":"sb_1","token":"${ROOT}`],
    ];
    for (const [status, body] of answers) {
      answer = () => new Response(typeof body === "string" ? body : JSON.stringify(body), { status });
      const sandboxd = client();
      const all = await Promise.all([
        sandboxd.claim(spec),
        sandboxd.list(),
        sandboxd.info(),
        sandboxd.read("sb_1"),
        sandboxd.stats("sb_1"),
        sandboxd.healthz(),
        sandboxd.release("sb_1", ROOT),
      ]);
      expect(JSON.stringify(all)).not.toContain(ROOT);
    }
  });

  test("stays out of a release's words too, when it is the sandbox's own", async () => {
    answer = () => new Response(JSON.stringify({ error: `not ${TOKEN}` }), { status: 500 });
    expect(JSON.stringify(await client().release("sb_1", TOKEN))).not.toContain(TOKEN);
  });

  test("does not come with an address: what follows host and port is left out", async () => {
    answer = () => Response.json({ ...grant, owner_addr: `https://node-1:8443/x?token=${TOKEN}#${TOKEN}` });
    const result = await client().claim(spec);
    expect(result).toMatchObject({ ok: true, grant: { address: "https://node-1:8443" } });
  });
});

test("a health probe and the info do not wait behind calls that sandboxd does not answer", async () => {
  const silent: PromiseWithResolvers<Response>[] = [];
  answer = ({ path }) => {
    if (path === "/healthz") return new Response("ok");
    if (path === "/v1/info") return Response.json({ pools: [], claimed: 0 });
    const held = Promise.withResolvers<Response>();
    silent.push(held);
    return held.promise;
  };
  const sandboxd = createSandboxd({ url, token: () => ROOT });
  const calls = Array.from({ length: 2 * CALLS_IN_FLIGHT_MAX }, (_, i) => sandboxd.release(`sb_${i}`, TOKEN));
  expect(await sandboxd.healthz()).toEqual({ ok: true });
  expect((await sandboxd.info()).ok).toBe(true);
  answer = () => new Response(null, { status: 204 });
  for (const held of silent) held.resolve(new Response(null, { status: 204 }));
  await Promise.all(calls);
});

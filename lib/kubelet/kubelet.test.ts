import { afterEach, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type FakeClock, fakeClock } from "../kube/fake-clock.ts";
import type { KubeReply } from "../kube/index.ts";
import { issue, type Pem, type Signer } from "./certificate.ts";
import { createKubelet, type KubeletApi, type KubeletOptions, reloadMs } from "./index.ts";
import { connectionsMax, headTimeoutMs, idleTimeoutMs, lingerTimeoutMs } from "./server.ts";

const dayMs = 86_400_000;
const now = Date.now();
const common = {
  organizations: [] as string[],
  names: [] as string[],
  fromMs: now - dayMs,
  untilMs: now + dayMs,
};

let ca: Pem & Signer;
let client: Pem;
let stranger: Pem;
beforeAll(async () => {
  ca = await issue({ ...common, commonName: "client-ca", usage: "ca" });
  client = await issue(
    { ...common, commonName: "apiserver", organizations: ["system:masters"], usage: "client" },
    ca,
  );
  stranger = await issue({
    ...common,
    commonName: "apiserver",
    organizations: ["system:masters"],
    usage: "client",
  });
});

let dir: string;
let clock: FakeClock;
let reviewed: string[];
let kubelet: KubeletApi | undefined;
let faults: string[];
let port = 0;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vk-kubelet-"));
  clock = fakeClock(now);
  reviewed = [];
  faults = [];
});
afterEach(() => {
  kubelet?.stop();
  rmSync(dir, { recursive: true, force: true });
});

const file = (name: string, text: string) => {
  const path = join(dir, name);
  writeFileSync(path, text);
  return path;
};

/** Reviews: the token "good" is user good, who may see metrics; system:masters may everything. */
const kube: KubeletOptions["kube"] = {
  request(_method, path, options): Promise<KubeReply> {
    // biome-ignore lint/suspicious/noExplicitAny: the body of a test
    const { spec } = (options?.body ?? {}) as any;
    const ok = (body: unknown): KubeReply => ({ ok: true, status: 201, body });
    if (path.endsWith("tokenreviews")) {
      const authenticated = spec.token === "good";
      return Promise.resolve(
        ok({ kind: "TokenReview", status: { authenticated, user: { username: "good", groups: [] } } }),
      );
    }
    reviewed.push(`${spec.user} ${spec.groups} ${spec.resourceAttributes.subresource}`);
    const allowed =
      spec.groups.includes("system:masters") || spec.resourceAttributes.subresource === "metrics";
    return Promise.resolve(ok({ kind: "SubjectAccessReview", status: { allowed } }));
  },
};

const content: KubeletOptions["content"] = {
  pods: () => ({ kind: "PodList", items: ["a"] }),
  runningPods: () => ({ kind: "PodList", items: [] }),
  stats: () => Promise.resolve({ node: {} }),
  metrics: () => "up 1\n",
  resourceMetrics: () => Promise.reject(new Error("boom")),
};

async function serve(options: Partial<KubeletOptions> = {}): Promise<KubeletApi> {
  const made = createKubelet({
    listen: { host: "127.0.0.1", port: 0 },
    nodeName: "vk-1",
    kube,
    content,
    clock,
    log: {
      debug() {},
      info() {},
      warn: (message, fields) => void faults.push(`${message} ${fields?.why}`),
      error: (message, fields) => void faults.push(`${message} ${fields?.path}`),
      with: () => {
        throw new Error("not used");
      },
      redact() {},
      enabled: () => true,
      flush: () => Promise.resolve(true),
      flushSync() {},
    },
    ...options,
  });
  kubelet = made;
  const listening = await made.start();
  if (!listening.ok) throw new Error(listening.message);
  port = listening.port;
  return made;
}

const withClientCa = () => ({ clientCaFile: file("ca.crt", ca.cert) });

async function get(path: string, init: { cert?: Pem; token?: string; method?: string; body?: string } = {}) {
  const { cert, token, method, body } = init;
  const response = await fetch(`https://127.0.0.1:${port}${path}`, {
    method,
    body,
    keepalive: false,
    headers: token === undefined ? {} : { Authorization: `Bearer ${token}` },
    tls: { rejectUnauthorized: false, ...(cert === undefined ? {} : { cert: cert.cert, key: cert.key }) },
  });
  return { status: response.status, text: await response.text(), headers: response.headers };
}

describe("who is let in", () => {
  test("healthz is open to everyone", async () => {
    await serve();
    expect(await get("/healthz")).toMatchObject({ status: 200, text: "ok" });
    expect(reviewed).toEqual([]);
  });

  test("everything else is 401 without credentials, with a challenge and the next step", async () => {
    await serve();
    for (const path of [
      "/pods",
      "/pods/",
      "/runningpods/",
      "/stats/summary",
      "/metrics",
      "/metrics/resource",
    ]) {
      const answer = await get(path);
      expect([path, answer.status]).toEqual([path, 401]);
      expect(answer.text).toMatch(/--client-ca-file or a bearer token/);
      expect(answer.headers.get("www-authenticate")).toMatch(/Bearer/);
    }
  });

  test("a token sees what its user may see", async () => {
    await serve();
    expect(await get("/metrics", { token: "good" })).toMatchObject({ status: 200, text: "up 1\n" });
    expect((await get("/metrics", { token: "good" })).headers.get("content-type")).toContain("version=0.0.4");
    expect(await get("/pods", { token: "good" })).toMatchObject({
      status: 403,
      text: expect.stringContaining("nodes/proxy"),
    });
    expect(await get("/metrics", { token: "bad" })).toMatchObject({ status: 401 });
  });

  test("a client certificate of the CA is its user, reviewed like any other", async () => {
    await serve(withClientCa());
    const pods = await get("/pods", { cert: client });
    expect(JSON.parse(pods.text)).toEqual({ kind: "PodList", items: ["a"] });
    expect(pods.headers.get("content-type")).toBe("application/json");
    expect(reviewed).toEqual(["apiserver system:masters,system:authenticated proxy"]);
    expect(await get("/stats/summary", { cert: client })).toMatchObject({ status: 200, text: '{"node":{}}' });
  });

  test("with a client CA, callers without a certificate still come in by token", async () => {
    await serve(withClientCa());
    expect((await get("/metrics", { token: "good" })).status).toBe(200);
    expect((await get("/healthz")).status).toBe(200);
  });

  test("a certificate of a stranger, out of date, or for servers is nobody's", async () => {
    await serve(withClientCa());
    const old = await issue(
      {
        ...common,
        commonName: "apiserver",
        organizations: ["system:masters"],
        usage: "client",
        fromMs: now - 2 * dayMs,
        untilMs: now - dayMs,
      },
      ca,
    );
    const forServers = await issue(
      { ...common, commonName: "apiserver", organizations: ["system:masters"], usage: "server" },
      ca,
    );
    const ofLeaf = await issue(
      { ...common, commonName: "apiserver", organizations: ["system:masters"], usage: "client" },
      client as Pem & Signer,
    );
    for (const cert of [stranger, old, forServers, ofLeaf])
      expect((await get("/pods", { cert })).status).toBe(401);
    expect(reviewed).toEqual([]);
  });

  test("without a client CA a certificate means nothing", async () => {
    await serve();
    expect((await get("/pods", { cert: client })).status).toBe(401);
  });

  test("a line break in a common name makes no group", async () => {
    await serve(withClientCa());
    const forged = await issue({ ...common, commonName: "x\nO=system:masters", usage: "client" }, ca);
    expect((await get("/pods", { cert: forged })).status).not.toBe(200);
  });
});

describe("what is answered", () => {
  test("interactive access is 501 with one sentence that says where to go, for everyone", async () => {
    await serve();
    const paths = [
      "/exec/ns/pod/c",
      "/attach/ns/pod/c",
      "/run/ns/pod/c",
      "/containerLogs/ns/pod/c",
      "/portForward/ns/pod",
      "/logs/",
    ];
    for (const path of paths)
      for (const method of ["GET", "POST"]) {
        const answer = await get(`${path}?command=ls`, { method });
        expect([path, method, answer.status]).toEqual([path, method, 501]);
        expect(answer.text).toMatch(/sandbox SDK.*preview URL/);
        expect(answer.text.trim().split("\n").length).toBe(1);
      }
  });

  test("unknown pages, other methods, and a page that fails", async () => {
    await serve();
    expect((await get("/configz")).status).toBe(404);
    expect((await get("/")).status).toBe(404);
    expect((await get("/constructor")).status).toBe(404);
    expect((await get("/healthz", { method: "POST", body: "x" })).status).toBe(405);
    expect((await get("/metrics", { method: "DELETE", token: "good" })).status).toBe(405);
    expect(await get("/metrics/resource", { token: "good" })).toMatchObject({
      status: 500,
      text: expect.not.stringContaining("boom"),
    });
    expect(faults).toEqual(["the kubelet API failed to answer /metrics/resource"]);
  });

  test("HEAD has the length of what GET would give", async () => {
    await serve();
    const answer = await get("/healthz", { method: "HEAD" });
    expect(answer).toMatchObject({ status: 200, text: "" });
  });

  test("an unhealthy provider says why", async () => {
    await serve({ content: { ...content, fault: () => "the table cannot be written" } });
    expect(await get("/healthz")).toMatchObject({ status: 503, text: "the table cannot be written\n" });
  });

  test("a large answer arrives whole", async () => {
    const items = Array.from({ length: 60_000 }, (_, i) => `pod-${i}-${"x".repeat(100)}`);
    await serve({ ...withClientCa(), content: { ...content, pods: () => ({ items }) } });
    const answer = await get("/pods", { cert: client });
    expect(JSON.parse(answer.text).items.length).toBe(60_000);
  });
});

/** A connection that says what the test wants said. */
async function connect() {
  let received = "";
  const closed = Promise.withResolvers<void>();
  const shaken = Promise.withResolvers<void>();
  let arrived = Promise.withResolvers<void>();
  let over = false;
  const socket = await Bun.connect({
    hostname: "127.0.0.1",
    port,
    tls: { rejectUnauthorized: false },
    socket: {
      handshake: () => shaken.resolve(),
      data(_socket, data) {
        received += data.toString("latin1");
        arrived.resolve();
      },
      close() {
        over = true;
        closed.resolve();
        shaken.resolve();
        arrived.resolve();
      },
      error() {
        closed.resolve();
      },
    },
  });
  await shaken.promise;
  return {
    socket,
    closed: closed.promise,
    received: () => received,
    async until(pattern: RegExp) {
      while (!pattern.test(received)) {
        if (over) throw new Error(`closed after: ${received}`);
        arrived = Promise.withResolvers();
        await arrived.promise;
      }
    },
  };
}

describe("limits", () => {
  const request = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";

  test("a connection is kept, and requests sent together are answered in order", async () => {
    await serve();
    const connection = await connect();
    connection.socket.write(request + request);
    await connection.until(/ok[\s\S]*ok$/);
    connection.socket.write(request.slice(0, 10));
    connection.socket.write(request.slice(10));
    await connection.until(/ok[\s\S]*ok[\s\S]*ok$/);
    connection.socket.end();
  });

  test("a malformed request is answered and the connection closed", async () => {
    await serve();
    const connection = await connect();
    connection.socket.write("NONSENSE\r\n\r\n");
    await connection.closed;
    expect(connection.received()).toStartWith("HTTP/1.1 400 Bad Request\r\n");
  });

  test("a head without end is refused before it fills memory", async () => {
    await serve();
    const connection = await connect();
    connection.socket.write(`GET / HTTP/1.1\r\nX: ${"y".repeat(40_000)}`);
    await connection.closed;
    expect(connection.received()).toContain(" 431 ");
  });

  test("a body is not read: the answer ends the connection", async () => {
    await serve();
    const connection = await connect();
    connection.socket.write("POST /exec/a/b/c HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nxxxx");
    await connection.closed;
    expect(connection.received()).toContain(" 501 ");
    expect(connection.received()).toContain("Connection: close");
  });

  test("a caller that sends its head slowly, or nothing, is let go", async () => {
    await serve();
    const slow = await connect();
    const mute = await connect();
    slow.socket.write("GET /healthz HT");
    clock.advance(headTimeoutMs + 1000);
    await Promise.all([slow.closed, mute.closed]);
    expect(kubelet?.connections).toBe(0);
    // With nobody there is no timer left.
    clock.advance(1000);
    expect(clock.timers).toBe(0);
  });

  test("a caller that does not close what we have ended is counted, and let go", async () => {
    await serve();
    // Half-open: the end of our side is seen, and not answered by the end of his.
    const received: string[] = [];
    const { connect: tls } = await import("node:tls");
    const callers = await Promise.all(
      Array.from(
        { length: 3 },
        () =>
          new Promise<ReturnType<typeof tls>>((resolve) => {
            const socket = tls(
              { host: "127.0.0.1", port, rejectUnauthorized: false, allowHalfOpen: true },
              () => socket.write("GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            );
            socket.on("error", () => {});
            socket.on("data", (data: Buffer) => {
              received.push(data.toString());
              resolve(socket);
            });
          }),
      ),
    );
    expect(received.join("")).toContain("200 OK");
    expect(kubelet?.connections).toBe(3);
    const descriptors = () => readdirSync("/proc/self/fd").length;
    const before = descriptors();
    clock.advance(lingerTimeoutMs + 1000);
    expect(kubelet?.connections).toBe(0);
    for (let turn = 0; turn < 100 && descriptors() > before - 3; turn++)
      await new Promise<void>((resolve) => setImmediate(resolve));
    expect(descriptors()).toBeLessThanOrEqual(before - 3);
    for (const socket of callers) socket.destroy();
  });

  test("a kept connection that is not used is let go", async () => {
    await serve();
    const connection = await connect();
    connection.socket.write(request);
    await connection.until(/ok$/);
    clock.advance(idleTimeoutMs - 1000);
    expect(kubelet?.connections).toBe(1);
    clock.advance(2000);
    await connection.closed;
  });

  test("one connection more than the bound pushes out the oldest that waits", async () => {
    await serve();
    const first = await connect();
    const others = [];
    for (let i = 0; i < connectionsMax - 1; i++) others.push(await connect());
    expect(kubelet?.connections).toBe(connectionsMax);
    const one = await connect();
    await first.closed;
    one.socket.write(request);
    await one.until(/ok$/);
    expect(kubelet?.connections).toBe(connectionsMax);
    for (const { socket } of [...others, one]) socket.terminate();
  });

  test("TLS below 1.2 and plain HTTP find no ear", async () => {
    await serve();
    // A TLS 1.1 ClientHello: record version 3.1, legacy_version 3.2, one old cipher.
    const body = Buffer.concat([
      Buffer.from([3, 2]),
      Buffer.alloc(32, 7),
      Buffer.from([0, 0, 2, 0xc0, 0x09, 1, 0]),
    ]);
    const hello = Buffer.concat([Buffer.from([0x16, 3, 1, 0, body.length + 4, 1, 0, 0, body.length]), body]);
    for (const bytes of [hello, Buffer.from(request)]) {
      const received: Buffer[] = [];
      const closed = Promise.withResolvers<void>();
      const socket = await Bun.connect({
        hostname: "127.0.0.1",
        port,
        socket: {
          data: (_s, data) => void received.push(Buffer.from(data)),
          close: () => closed.resolve(),
          error: () => closed.resolve(),
        },
      });
      socket.write(bytes);
      await closed.promise;
      const all = Buffer.concat(received);
      // Nothing, or a TLS alert (21); for the hello it says which: protocol_version (70).
      if (all.length > 0) expect(all[0]).toBe(21);
      if (bytes === hello) expect(all.at(-1)).toBe(70);
    }
  });
});

describe("certificates", () => {
  test("without files it is self-signed for node name, node IP and loopback", async () => {
    await serve({ nodeIP: "10.0.0.5" });
    const { X509Certificate } = await import("node:crypto");
    const { connect: tls } = await import("node:tls");
    const peer = await new Promise<Buffer>((resolve) => {
      const socket = tls({ host: "127.0.0.1", port, rejectUnauthorized: false }, () => {
        resolve(socket.getPeerCertificate(true).raw);
        socket.destroy();
      });
    });
    const read = new X509Certificate(peer);
    expect(read.checkHost("vk-1")).toBe("vk-1");
    expect(read.checkIP("10.0.0.5")).toBe("10.0.0.5");
    expect(read.checkIP("127.0.0.1")).toBe("127.0.0.1");
  });

  const pair = async (cn: string) =>
    issue({ ...common, commonName: cn, names: ["127.0.0.1"], usage: "server" });
  const trusts = (cert: string) =>
    fetch(`https://127.0.0.1:${port}/healthz`, { keepalive: false, tls: { ca: cert } }).then(
      (response) => response.status,
      () => 0,
    );
  /** Lets the reload's own promises run. */
  const reload = async () => {
    clock.advance(reloadMs);
    for (let i = 0; i < 20; i++) await new Promise<void>((resolve) => setImmediate(resolve));
  };

  test("files that change are used without a restart, and open connections live on", async () => {
    const one = await pair("one");
    const two = await pair("two");
    const files = { certFile: file("tls.crt", one.cert), keyFile: file("tls.key", one.key) };
    await serve(files);
    expect(await trusts(one.cert)).toBe(200);
    const connection = await connect();
    connection.socket.write("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    await connection.until(/ok$/);
    file("tls.crt", two.cert);
    file("tls.key", two.key);
    await reload();
    expect([await trusts(one.cert), await trusts(two.cert)]).toEqual([0, 200]);
    connection.socket.write("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    await connection.until(/ok[\s\S]*ok$/);
    connection.socket.end();
  });

  test("half a rotation keeps the old pair in use until it is whole", async () => {
    const one = await pair("one");
    const two = await pair("two");
    await serve({ certFile: file("tls.crt", one.cert), keyFile: file("tls.key", one.key) });
    file("tls.crt", two.cert);
    await reload();
    expect(await trusts(one.cert)).toBe(200);
    expect(faults.at(-1)).toMatch(/key does not belong/);
    file("tls.key", two.key);
    await reload();
    expect(await trusts(two.cert)).toBe(200);
  });

  test("a client CA that changes changes who is let in", async () => {
    await serve(withClientCa());
    expect((await get("/pods", { cert: client })).status).toBe(200);
    file("ca.crt", stranger.cert);
    await reload();
    expect((await get("/pods", { cert: client })).status).toBe(401);
  });

  test("a client CA that is cut off while it is written keeps the whole one in use", async () => {
    await serve(withClientCa());
    for (const text of ["", ca.cert.slice(0, 200), ca.cert + stranger.cert.slice(0, 200)]) {
      file("ca.crt", text);
      await reload();
      expect((await get("/pods", { cert: client })).status).toBe(200);
      expect(faults.at(-1)).toMatch(/--client-ca-file .* is not PEM, or cut off/);
    }
    file("ca.crt", stranger.cert);
    await reload();
    expect((await get("/pods", { cert: client })).status).toBe(401);
  });

  const failure = async (options: Partial<KubeletOptions>) => {
    const made = createKubelet({
      listen: { host: "127.0.0.1", port: 0 },
      nodeName: "vk-1",
      kube,
      content,
      clock,
      ...options,
    });
    kubelet = made;
    const result = await made.start();
    return result.ok ? "" : result.message;
  };

  test("each fault at start is one sentence with the next step", async () => {
    const one = await pair("one");
    const two = await pair("two");
    const certFile = file("a.crt", one.cert);
    expect(await failure({ certFile, keyFile: file("b.key", two.key) })).toMatch(/key does not belong/);
    expect(await failure({ certFile, keyFile: join(dir, "absent") })).toMatch(
      /--tls-key .*absent cannot be read \(ENOENT\)/,
    );
    expect(await failure({ certFile: file("n.crt", "no"), keyFile: file("n.key", "no") })).toMatch(
      /--tls-cert .* is not PEM/,
    );
    expect(await failure({ clientCaFile: file("e.crt", "") })).toMatch(/--client-ca-file .* is not PEM/);
    const broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    expect(await failure({ clientCaFile: file("x.crt", broken) })).toMatch(/--client-ca-file/);
    expect(await failure({ listen: { host: "198.51.100.1", port: 0 } })).toMatch(
      /not one of this host; correct --listen-addr/,
    );
  });

  test("a port that is taken names address and next step", async () => {
    await serve();
    const taken = await failure({ listen: { host: "127.0.0.1", port } });
    expect(taken).toMatch(new RegExp(`127.0.0.1:${port}: another process has that port.*--listen-addr`));
    expect(await failure({ listen: { host: "", port } })).toMatch(/another process has that port/);
  });
});

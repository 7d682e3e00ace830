import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:https";
import { connect, createServer as createTcpServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createKubeClient, describeFailure, type KubeClient } from "./client.ts";
import { fileCheckMs } from "./credential-source.ts";
import { type ClientTls, fixedCredential } from "./credentials.ts";
import { fakeClock } from "./fake-clock.ts";
import { loadCluster } from "./kubeconfig.ts";
import * as pki from "./test-pki.ts";

let dir: string;
const cleanups: (() => void)[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tls-"));
});
afterEach(() => {
  for (const cleanup of cleanups.splice(0)) cleanup();
  rmSync(dir, { recursive: true, force: true });
});

/** An HTTPS server that says whether the client's certificate was good. */
async function serve(cert = pki.serverCert, key = pki.serverKey) {
  let connections = 0;
  const server: Server = createServer(
    { cert, key, ca: pki.ca, requestCert: true, rejectUnauthorized: false },
    (request, response) => {
      const authorized = "authorized" in request.socket && request.socket.authorized === true;
      response.end(JSON.stringify({ authorized, authorization: request.headers.authorization ?? "" }));
    },
  );
  server.on("secureConnection", () => {
    connections += 1;
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  cleanups.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `https://127.0.0.1:${port}`, port, connections: () => connections };
}

function clientWith(url: string, tls: ClientTls, proxy: string | false = false): KubeClient {
  const client = createKubeClient({ server: url, credentials: fixedCredential({ tls }), proxy });
  cleanups.push(() => client.close());
  return client;
}

test("a private CA and a client certificate, over one connection", async () => {
  const server = await serve();
  const client = clientWith(server.url, { ca: pki.ca, cert: pki.clientCert, key: pki.clientKey });
  for (let n = 0; n < 3; n += 1) {
    expect(await client.request("GET", "/api")).toMatchObject({ ok: true, body: { authorized: true } });
  }
  expect(server.connections()).toBe(1);
});

test("without a certificate the server sees none", async () => {
  const server = await serve();
  const reply = await clientWith(server.url, { ca: pki.ca }).request("GET", "/api");
  expect(reply).toMatchObject({ ok: true, body: { authorized: false } });
});

for (const [what, tls] of [
  ["no CA", {}],
  ["another CA", { ca: pki.otherCa }],
] as const) {
  test(`a server that ${what} vouches for is not talked to`, async () => {
    const server = await serve();
    const reply = await clientWith(server.url, tls).request("GET", "/api");
    expect(reply).toMatchObject({ ok: false, kind: "network" });
    expect(!reply.ok && describeFailure(reply)).toContain("not signed by the configured CA");
  });
}

test("a certificate for another name is refused, unless tls-server-name says that it is the right one", async () => {
  const server = await serve(pki.namedCert, pki.namedKey);
  const refused = await clientWith(server.url, { ca: pki.ca }).request("GET", "/api");
  expect(!refused.ok && describeFailure(refused)).toContain("tls-server-name");
  const named = await clientWith(server.url, { ca: pki.ca, serverName: "kube.internal" }).request(
    "GET",
    "/api",
  );
  expect(named.ok).toBe(true);
  const wrong = await clientWith(server.url, { ca: pki.ca, serverName: "other.internal" }).request(
    "GET",
    "/api",
  );
  expect(wrong.ok).toBe(false);
});

test("insecure-skip-tls-verify takes any certificate", async () => {
  const server = await serve(pki.namedCert, pki.namedKey);
  expect((await clientWith(server.url, { rejectUnauthorized: false }).request("GET", "/api")).ok).toBe(true);
});

test("key and certificate that do not belong together are named as a possible reason", async () => {
  const server = await serve();
  const client = clientWith(server.url, { ca: pki.ca, cert: pki.clientCert, key: pki.renewedKey });
  const reply = await client.request("GET", "/api");
  expect(!reply.ok && describeFailure(reply)).toContain("belongs together");
});

test("a kubeconfig with files works end to end, and a renewed client certificate is used without a restart", async () => {
  const server = await serve();
  const clock = fakeClock();
  writeFileSync(join(dir, "ca.crt"), pki.ca);
  writeFileSync(join(dir, "client.crt"), pki.clientCert);
  writeFileSync(join(dir, "client.key"), pki.clientKey);
  const kubeconfig = join(dir, "kubeconfig");
  writeFileSync(
    kubeconfig,
    `current-context: here
clusters:
- name: c
  cluster: { server: "${server.url}", certificate-authority: ca.crt }
users:
- name: u
  user: { client-certificate: client.crt, client-key: client.key }
contexts:
- name: here
  context: { cluster: c, user: u }
`,
  );
  const found = await loadCluster({ env: { KUBECONFIG: kubeconfig }, clock });
  if (!found.ok) throw new Error(found.message);
  const client = createKubeClient({ ...found.cluster, clock });
  cleanups.push(() => client.close());
  expect(await client.request("GET", "/api")).toMatchObject({ ok: true, body: { authorized: true } });
  writeFileSync(join(dir, "client.crt"), `${pki.renewedCert}\n`);
  writeFileSync(join(dir, "client.key"), `${pki.renewedKey}\n`);
  clock.advance(fileCheckMs);
  expect(await client.request("GET", "/api")).toMatchObject({ ok: true, body: { authorized: true } });
  expect(server.connections()).toBe(2);
});

test("a proxy carries the TLS connection and sees no credential", async () => {
  const server = await serve();
  const heard: string[] = [];
  const sockets = new Set<Socket>();
  const proxy = createTcpServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("data", (data) => {
      heard.push(data.toString());
      const upstream = connect(server.port, "127.0.0.1", () => {
        socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
        socket.pipe(upstream).pipe(socket);
      });
      sockets.add(upstream);
      upstream.on("error", () => socket.destroy());
    });
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy();
    proxy.close();
  });
  const address = proxy.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  const client = createKubeClient({
    // A name that only the proxy could reach.
    server: "https://kube.internal:6443",
    credentials: fixedCredential({ authorization: "Bearer s3cret", tls: { ca: pki.ca } }),
    proxy: `http://127.0.0.1:${port}`,
  });
  cleanups.push(() => client.close());
  expect(await client.request("GET", "/api")).toMatchObject({
    ok: true,
    body: { authorization: "Bearer s3cret" },
  });
  expect(heard).toHaveLength(1);
  expect(heard[0]).toStartWith("CONNECT kube.internal:6443 HTTP/1.1\r\n");
  expect(heard[0]).not.toContain("s3cret");
});

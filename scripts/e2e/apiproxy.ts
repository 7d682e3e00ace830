/**
 * A proxy between the daemon and the real API server that spoils answers on command: 429, 500, garbage, resets, an
 * API server that accepts and never answers. What it does not spoil passes through as it is, watches included.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { serverCert, serverKey, ca as testCa } from "../../lib/kube/test-pki.ts";
import type { Faults } from "../../lib/sim/faults.ts";
import { type Handler, type SimReply, type SimRequest, startSimServer } from "../../lib/sim/http.ts";
import { controlPlane } from "./world.ts";

export interface ApiProxy extends AsyncDisposable {
  /** `match` is matched against `METHOD /path?query`, as with the stand-ins. */
  readonly faults: Faults<Handler>;
  /** Path of a kubeconfig that speaks for the provider's service account through this proxy. */
  readonly kubeconfig: string;
  /** Refuses connections and kills those it has. */
  down(): Promise<void>;
  up(): Promise<void>;
}

interface Kubeconfig {
  clusters: { cluster: { server: string; "certificate-authority-data": string } }[];
}

const bodyBytesMax = 4 << 20;
/** Headers that belong to one connection, or that a body passed on anew gets anew. */
const hopByHop = new Set([
  "connection",
  "content-length",
  "transfer-encoding",
  "host",
  "keep-alive",
  "upgrade",
  "content-encoding",
]);

/** Starts a proxy in front of this run's API server. */
export async function startApiProxy(): Promise<ApiProxy> {
  const base = JSON.parse(readFileSync(controlPlane().kubeconfig("vk-sandbox"), "utf8")) as Kubeconfig;
  const cluster = base.clusters[0]?.cluster;
  if (cluster === undefined) throw new Error("the service account's kubeconfig names no cluster");
  const upstream = cluster.server;
  const ca = Buffer.from(cluster["certificate-authority-data"], "base64").toString();

  async function handle(request: SimRequest): Promise<SimReply> {
    const headers = new Headers();
    for (const [name, value] of Object.entries(request.headers))
      if (typeof value === "string" && !hopByHop.has(name)) headers.set(name, value);
    const query = request.query.toString();
    const abort = new AbortController();
    const isWatch = request.query.get("watch") === "true";
    const init: BunFetchRequestInit & { timeout?: boolean } = {
      method: request.method,
      headers,
      tls: { ca },
      signal: abort.signal,
      timeout: false,
      ...(request.body === "" ? {} : { body: request.body }),
    };
    const response = await fetch(`${upstream}${request.path}${query === "" ? "" : `?${query}`}`, init).catch(
      () => undefined,
    );
    // The API server is down: the daemon meets what it would meet without the proxy, a broken connection.
    if (response === undefined) return { status: 502, stream: (out) => out.reset() };
    const replyHeaders: Record<string, string> = {};
    for (const [name, value] of response.headers) if (!hopByHop.has(name)) replyHeaders[name] = value;
    const { status, body } = response;
    if (!isWatch || body === null) return { status, headers: replyHeaders, body: await response.text() };
    return {
      status,
      headers: replyHeaders,
      stream: (out) => {
        out.onClose(() => abort.abort());
        void pipe(body, out.write).then(
          () => out.end(),
          () => out.reset(),
        );
      },
    };
  }

  const server = await startSimServer({
    hostname: "127.0.0.1",
    tls: { cert: serverCert, key: serverKey },
    bodyBytesMax,
    tooLarge: { status: 413 },
    handle,
  });
  cluster.server = server.url;
  cluster["certificate-authority-data"] = Buffer.from(testCa).toString("base64");
  const dir = mkdtempSync(join(tmpdir(), "e2e-proxy-"));
  const kubeconfig = join(dir, "kubeconfig");
  writeFileSync(kubeconfig, JSON.stringify(base), { mode: 0o600 });
  return {
    faults: server.faults,
    kubeconfig,
    down: server.down,
    up: server.up,
    async [Symbol.asyncDispose]() {
      await server.stop();
      rmSync(dir, { recursive: true });
    },
  };
}

async function pipe(body: ReadableStream<Uint8Array>, write: (text: string) => void): Promise<void> {
  for await (const text of body.pipeThrough(new TextDecoderStream())) write(text);
}

import { createKubeClient, type KubeClient, type KubeClientOptions } from "./client.ts";
import { fixedCredential } from "./credentials.ts";

/** A request as the stand-in saw it. */
export interface Seen {
  method: string;
  /** Path, escaped as it came. */
  path: string;
  query: Record<string, string>;
  headers: Headers;
  body: string;
}

export type Answer = (seen: Seen) => Response | Promise<Response>;

/** An API-server stand-in for tests: a client, what it was asked, and answers that can be exchanged. */
export interface TestServer {
  url: string;
  client: KubeClient;
  seen: Seen[];
  answer: Answer;
  /** "METHOD path" of each request so far. */
  asked(): string[];
  stop(): void;
}

/** Starts the stand-in on a free port of the loopback. */
export function testServer(answer: Answer, options: Partial<KubeClientOptions> = {}): TestServer {
  const seen: Seen[] = [];
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    idleTimeout: 0,
    async fetch(request) {
      const url = new URL(request.url);
      const entry: Seen = {
        method: request.method,
        path: url.pathname,
        query: Object.fromEntries(url.searchParams),
        headers: request.headers,
        body: await request.text(),
      };
      seen.push(entry);
      return self.answer(entry);
    },
  });
  const url = `http://127.0.0.1:${server.port}`;
  const client = createKubeClient({ server: url, credentials: fixedCredential(), ...options });
  const self: TestServer = {
    url,
    client,
    seen,
    answer,
    asked: () => seen.map((entry) => `${entry.method} ${entry.path}`),
    stop() {
      client.close();
      void server.stop(true);
    },
  };
  return self;
}

/** An error as kube-apiserver sends it. */
export function statusResponse(
  code: number,
  reason: string,
  details: { name?: string; kind?: string; retryAfterSeconds?: number } = {},
  headers: Record<string, string> = {},
): Response {
  const message = `${details.kind ?? "things"} "${details.name ?? ""}": ${reason}`;
  const body = {
    kind: "Status",
    apiVersion: "v1",
    metadata: {},
    status: "Failure",
    message,
    reason,
    details,
    code,
  };
  return Response.json(body, { status: code, headers });
}

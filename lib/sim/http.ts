/**
 * The HTTP(S) server under both stand-ins: ordinary answers, streams, and spoiled answers. node:http instead of
 * Bun.serve because a fault must reach the socket: reset it, or close it in the middle of a body.
 */
import http from "node:http";
import https from "node:https";
import type { AddressInfo, Socket } from "node:net";
import { type ActiveFault, createFaults, type Faults } from "./faults.ts";

export interface SimRequest {
  method: string;
  /** Without the query, percent-encoding kept. */
  path: string;
  query: URLSearchParams;
  headers: http.IncomingHttpHeaders;
  body: string;
  /** The client showed a certificate that the client CA vouches for. */
  certVerified: boolean;
  /** False once the server was taken down or restarted since: a request in flight dies with its process. */
  alive(): boolean;
}

/** An answer without an end of its own, such as a watch. */
export interface Stream {
  write(text: string): void;
  /** Ends the answer cleanly. */
  end(): void;
  /** Breaks the connection. */
  reset(): void;
  /** Bytes the client has not taken yet. */
  buffered(): number;
  onClose(listener: () => void): void;
}

export interface SimReply {
  status: number;
  headers?: Record<string, string>;
  body?: string;
  /** Instead of `body`: called once the head is written. */
  stream?: (out: Stream) => void;
  /** Called once the answer is with the kernel: for what would kill the connection it goes out on. */
  sent?: () => void;
}

export type Handler = (request: SimRequest) => SimReply | Promise<SimReply>;

export interface SimTls {
  /** PEM */
  cert: string;
  /** PEM */
  key: string;
  /** PEM: client certificates this CA vouches for count as authenticated. */
  ca?: string;
}

export interface SimServerOptions {
  /** 0 = any free port. */
  port?: number;
  hostname?: string;
  tls?: SimTls;
  /** A longer request body is answered with `tooLarge`. */
  bodyBytesMax: number;
  tooLarge: SimReply;
  handle: Handler;
  /** Faults do not touch requests whose path begins so. */
  exemptPrefix?: string;
  /** A handler over a frozen copy of the state, for the `stale` fault. */
  freeze?: () => Handler;
}

export interface SimServer {
  /** `http(s)://host:port` */
  url: string;
  port: number;
  faults: Faults<Handler>;
  /** Refuses connections and kills those it has. */
  down(): Promise<void>;
  /** Listens on the same port again. */
  up(): Promise<void>;
  /** Ends for good. */
  stop(): Promise<void>;
}

/** How often a server that goes down closes what has connected meanwhile. */
const closeAgainMs = 20;

/** Starts it; rejects when the port is taken. */
export async function startSimServer(options: SimServerOptions): Promise<SimServer> {
  const hostname = options.hostname ?? "127.0.0.1";
  const faults = createFaults<Handler>(options.freeze);
  let port = options.port ?? 0;
  let generation = 0;
  let server: http.Server | undefined;

  const answerOf = (born: number) => (incoming: http.IncomingMessage, response: http.ServerResponse) => {
    // A connection that was being made when its server went down.
    if (born !== generation) return breakSocket(incoming.socket);
    respond(incoming, response, () => born === generation).catch((error: Error) => {
      if (response.headersSent) breakSocket(incoming.socket);
      else send(response, { status: 500, body: `the stand-in failed: ${error.stack}\n` });
    });
  };

  async function respond(
    incoming: http.IncomingMessage,
    response: http.ServerResponse,
    alive: () => boolean,
  ): Promise<void> {
    const method = incoming.method ?? "GET";
    const target = incoming.url ?? "/";
    const cut = target.indexOf("?");
    const path = cut < 0 ? target : target.slice(0, cut);
    const body = method === "GET" || method === "HEAD" ? "" : await readBody(incoming, options.bodyBytesMax);
    if (body === undefined) return send(response, options.tooLarge);
    const request: SimRequest = {
      method,
      path,
      query: new URLSearchParams(cut < 0 ? "" : target.slice(cut + 1)),
      headers: incoming.headers,
      body,
      certVerified: (incoming.socket as Socket & { authorized?: boolean }).authorized === true,
      alive,
    };
    const exempt = options.exemptPrefix !== undefined && path.startsWith(options.exemptPrefix);
    const fault = exempt ? undefined : faults.take(`${method} ${target}`);
    if (!fault) {
      // Without an await for the common case: a reply that is at hand is sent in the same turn.
      const reply = options.handle(request);
      return send(response, reply instanceof Promise ? await reply : reply);
    }
    if (fault.delayMs) {
      await new Promise((resolve) => setTimeout(resolve, fault.delayMs));
      if (!alive()) return;
    }
    await spoil(request, response, fault);
  }

  async function spoil(
    request: SimRequest,
    response: http.ServerResponse,
    fault: ActiveFault<Handler>,
  ): Promise<void> {
    if (fault.effect === "delay") return send(response, await options.handle(request));
    if (fault.effect === "stale" && fault.frozen) return send(response, await fault.frozen(request));
    const needsReply = fault.effect === "truncate" || fault.effect === "cut";
    const reply = fault.after || needsReply ? await options.handle(request) : undefined;
    const whole = reply?.body ?? "";
    const part = whole.slice(0, fault.bytes ?? Math.floor(whole.length / 2));
    const text = typeof fault.body === "object" ? JSON.stringify(fault.body) : fault.body;
    switch (fault.effect) {
      case "hang":
        return;
      case "reset":
        return breakSocket(response.socket);
      case "status":
        return send(response, { status: fault.status ?? 500, headers: fault.headers, body: text ?? "" });
      case "garbage":
        return send(response, { status: 200, body: text ?? "<html><body>502 Bad Gateway</body></html>" });
      case "empty":
        return send(response, { status: reply?.status ?? 200, body: "" });
      case "cut":
        return send(response, { status: reply?.status ?? 200, headers: reply?.headers, body: part });
      case "truncate": {
        response.writeHead(reply?.status ?? 200, {
          "content-type": "application/json",
          "content-length": String(Buffer.byteLength(whole)),
        });
        response.write(part, () => response.socket?.destroy());
        return;
      }
    }
  }

  async function up(): Promise<void> {
    if (server) return;
    const { tls } = options;
    const answer = answerOf(generation);
    const next = tls
      ? https.createServer(
          {
            cert: tls.cert,
            key: tls.key,
            ca: tls.ca,
            requestCert: tls.ca !== undefined,
            rejectUnauthorized: false,
          },
          answer,
        )
      : http.createServer(answer);
    // A watch lasts for hours and a claim may hang on command: the client's patience is what is tested.
    next.requestTimeout = 0;
    next.keepAliveTimeout = 0;
    next.timeout = 0;
    await new Promise<void>((resolve, reject) => {
      next.once("error", reject);
      next.listen(port, hostname, resolve);
    });
    next.on("error", () => {});
    port = (next.address() as AddressInfo).port;
    server = next;
  }

  async function down(): Promise<void> {
    const old = server;
    server = undefined;
    generation++;
    if (!old) return;
    const closed = new Promise<void>((resolve) => old.close(() => resolve()));
    // A connection whose handshake is under way is none yet: it would live on, and be answered, for as long as its client likes.
    const closing = setInterval(() => old.closeAllConnections(), closeAgainMs);
    old.closeAllConnections();
    await closed;
    clearInterval(closing);
  }

  await up();
  const host = hostname.includes(":") ? `[${hostname}]` : hostname;
  return {
    url: `${options.tls ? "https" : "http"}://${host}:${port}`,
    get port() {
      return port;
    },
    faults,
    down,
    up,
    stop: down,
  };
}

/** The request's body, or undefined when it is longer than allowed. */
function readBody(incoming: http.IncomingMessage, bytesMax: number): Promise<string | undefined> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    incoming.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > bytesMax) resolve(undefined);
      else chunks.push(chunk);
    });
    incoming.on("end", () => {
      const [only] = chunks;
      resolve(only && chunks.length === 1 ? only.toString() : Buffer.concat(chunks).toString());
    });
    // A client that leaves in the middle of its own request asked for nothing.
    incoming.on("error", () => resolve(undefined));
  });
}

function send(response: http.ServerResponse, reply: SimReply): void {
  if (response.destroyed || response.headersSent) return;
  const headers = reply.headers ?? { "content-type": "application/json" };
  if (!reply.stream) {
    response.writeHead(reply.status, headers);
    response.end(reply.body ?? "", reply.sent);
    return;
  }
  response.writeHead(reply.status, headers);
  // The head must reach a watcher before the first event exists.
  response.flushHeaders();
  reply.stream({
    write: (text) => void response.write(text),
    end: () => void response.end(),
    reset: () => breakSocket(response.socket),
    buffered: () => response.writableLength,
    onClose: (listener) => void response.on("close", listener),
  });
}

/** Resets the connection. A TLS one is closed without a goodbye instead: Bun cannot reset it. */
function breakSocket(socket: Socket | null): void {
  if (!socket) return;
  try {
    socket.resetAndDestroy();
  } catch {
    socket.destroy();
  }
}

/** The reply of a call: JSON. */
export function json(status: number, value: unknown, headers?: Record<string, string>): SimReply {
  return {
    status,
    headers: headers ? { "content-type": "application/json", ...headers } : undefined,
    body: `${JSON.stringify(value)}\n`,
  };
}

/** The reply of a call: plain text. */
export function text(status: number, body: string): SimReply {
  return { status, headers: { "content-type": "text/plain; charset=utf-8" }, body };
}

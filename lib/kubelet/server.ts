/** TLS connections with a client certificate or without, each speaking HTTP under limits, on Bun's own sockets. */
import type { Clock } from "../kube/index.ts";
import { certificateUser, type User } from "./auth.ts";
import type { Pem } from "./certificate.ts";
import { formatResponse, headBytesMax, parseHead, type RequestHead, type Response } from "./http.ts";

/** Connections at once. One more pushes out the one that has been waiting for a request the longest. */
export const connectionsMax = 256;
/** From the first byte of TCP to the end of the request's head: what a slow caller may take. */
export const headTimeoutMs = 5000;
/** Between two requests of a kept connection. */
export const idleTimeoutMs = 60_000;
/** To take a response. */
export const writeTimeoutMs = 30_000;
/** To close a connection that we have ended. One who never does would otherwise hold it, uncounted, for ever. */
export const lingerTimeoutMs = 5000;
const sweepMs = 1000;

export interface TlsFiles extends Pem {
  /** CA certificates that vouch for clients, PEM. */
  clientCa?: string;
}

export interface ServerOptions {
  clock: Clock;
  /** Answers a request; must not throw. */
  answer: (head: RequestHead, certificate: User | undefined) => Promise<Response>;
}

export type Listening = { ok: true; port: number } | { ok: false; message: string };

export interface Server {
  /** Listens; port 0 lets the kernel choose. Called again with other files it changes the certificate: connections that are open keep theirs. */
  listen(host: string, port: number, tls: TlsFiles): Listening;
  /** Stops listening and ends every connection. */
  stop(): void;
  readonly connections: number;
}

interface Connection {
  /** What has arrived and is not a request yet. */
  input: Buffer;
  user: User | undefined;
  answering: boolean;
  output: Uint8Array | undefined;
  /** The connection ends once `output` is out. */
  last: boolean;
  deadlineMs: number;
}

type Socket = Bun.Socket<Connection>;

const empty = Buffer.alloc(0);

export function server({ clock, answer }: ServerOptions): Server {
  const open = new Set<Socket>();
  let listener: Bun.TCPSocketListener<Connection> | undefined;
  let cancelSweep: (() => void) | undefined;

  const end = (socket: Socket) => {
    open.delete(socket);
    socket.terminate();
  };

  const sweep = () => {
    cancelSweep = undefined;
    const now = clock.now();
    for (const socket of open) if (socket.data.deadlineMs <= now) end(socket);
    // Nobody there, nothing to do: an idle node has no timer here.
    if (open.size > 0) cancelSweep = clock.after(sweepMs, sweep);
  };

  /** The connection that has waited for a request the longest; they are kept in the order of their coming. */
  const makeRoom = () => {
    for (const socket of open)
      if (!socket.data.answering && socket.data.output === undefined) return end(socket);
    for (const socket of open) return end(socket);
  };

  const flush = (socket: Socket) => {
    const { data } = socket;
    if (data.output === undefined) return;
    const written = socket.write(data.output);
    if (written < 0) return end(socket);
    if (written < data.output.byteLength) {
      data.output = data.output.subarray(written);
      return;
    }
    data.output = undefined;
    if (data.last) {
      data.deadlineMs = clock.now() + lingerTimeoutMs;
      // Our side only. After end() nothing closes the descriptor but the caller's own end, terminate() neither.
      socket.shutdown();
      return;
    }
    data.deadlineMs = clock.now() + idleTimeoutMs;
    next(socket);
  };

  const send = (socket: Socket, response: Response, keepAlive: boolean, headOnly: boolean) => {
    const { data } = socket;
    data.answering = false;
    data.last = !keepAlive;
    data.deadlineMs = clock.now() + writeTimeoutMs;
    data.output = formatResponse(response, keepAlive, headOnly);
    flush(socket);
  };

  /** Takes the next request from what has arrived, one at a time. */
  const next = (socket: Socket) => {
    const { data } = socket;
    if (data.answering || data.output !== undefined || data.last || data.input.length === 0) return;
    const parsed = parseHead(data.input);
    if (parsed.kind === "need") return;
    if (parsed.kind === "bad") {
      data.input = empty;
      return send(socket, { status: parsed.status, body: `${parsed.why}\n` }, false, false);
    }
    const { head } = parsed;
    // A copy, so that a few bytes of a next request do not hold a large buffer.
    data.input = Buffer.from(data.input.subarray(parsed.bytes));
    data.answering = true;
    // Whatever answering takes, at the latest then the connection is let go.
    data.deadlineMs = clock.now() + writeTimeoutMs;
    void answer(head, data.user).then((response) => {
      if (open.has(socket)) send(socket, response, head.keepAlive && !head.hasBody, head.method === "HEAD");
    });
  };

  const handlers: Bun.SocketHandler<Connection> = {
    binaryType: "buffer",
    open(socket) {
      if (open.size >= connectionsMax) makeRoom();
      const deadlineMs = clock.now() + headTimeoutMs;
      socket.data = {
        input: empty,
        user: undefined,
        answering: false,
        output: undefined,
        last: false,
        deadlineMs,
      };
      open.add(socket);
      cancelSweep ??= clock.after(sweepMs, sweep);
    },
    handshake(socket, success) {
      if (!success) return end(socket);
      // `authorized` is the verdict of the TLS library on chain, dates and purpose; only then the name counts.
      const subject = socket.authorized ? socket.getPeerX509Certificate()?.subject : undefined;
      socket.data.user = subject === undefined ? undefined : certificateUser(subject);
    },
    data(socket, chunk) {
      const { data } = socket;
      // A caller that sends on while it is not answered, or a body nobody reads: enough is enough.
      if (data.last) return;
      if (data.input.length + chunk.length > headBytesMax + 4096) {
        if (data.answering || data.output !== undefined) return end(socket);
        data.input = empty;
        return send(socket, { status: 431, body: "the request's head is too large\n" }, false, false);
      }
      // The first bytes of a request on a kept connection start its clock.
      if (data.input.length === 0 && !data.answering && data.output === undefined)
        data.deadlineMs = Math.min(data.deadlineMs, clock.now() + headTimeoutMs);
      data.input = data.input.length === 0 ? Buffer.from(chunk) : Buffer.concat([data.input, chunk]);
      next(socket);
    },
    drain: flush,
    close(socket) {
      open.delete(socket);
    },
    error(socket) {
      end(socket);
    },
  };

  const bind = (hostname: string, port: number, tls: TlsFiles): Bun.TCPSocketListener<Connection> => {
    const clients =
      tls.clientCa === undefined ? {} : { ca: tls.clientCa, requestCert: true, rejectUnauthorized: false };
    return Bun.listen<Connection>({
      hostname,
      port,
      tls: { key: tls.key, cert: tls.cert, ...clients },
      socket: handlers,
    });
  };

  return {
    listen(host, port, tls) {
      const wanted = listener?.port ?? port;
      try {
        // A certificate that does not work must not cost the one that does: it is tried on a port of its own.
        bind("127.0.0.1", 0, tls).stop(true);
      } catch (error) {
        return { ok: false, message: `the serving certificate cannot be used: ${tlsFault(error)}` };
      }
      listener?.stop(false);
      listener = undefined;
      // Go's empty host is every address of both families; a host without IPv6 has only the one.
      const hosts = host === "" ? ["::", "0.0.0.0"] : [host];
      let fault: unknown;
      for (const candidate of hosts) {
        try {
          listener = bind(candidate, wanted, tls);
          return { ok: true, port: listener.port };
        } catch (error) {
          fault = error;
          if (codeOf(error) === "EADDRINUSE") break;
        }
      }
      return { ok: false, message: listenFault(host, wanted, fault) };
    },
    stop() {
      listener?.stop(false);
      listener = undefined;
      for (const socket of open) end(socket);
      cancelSweep?.();
      cancelSweep = undefined;
    },
    get connections() {
      return open.size;
    },
  };
}

function codeOf(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "";
}

function tlsFault(error: unknown): string {
  const code = codeOf(error);
  if (code.includes("KEY_VALUES_MISMATCH"))
    return "the key does not belong to the certificate; give the pair that was issued together";
  if (code.includes("PEM")) return "certificate or key is not PEM; give files that begin with -----BEGIN";
  const message = error instanceof Error ? error.message : String(error);
  if (message.includes("CA"))
    return "--client-ca-file holds no CA certificate; give the PEM file of the API server's kubelet-client CA";
  return `${message}; check certificate, key and client CA`;
}

function listenFault(host: string, port: number, error: unknown): string {
  const address = `${host.includes(":") ? `[${host}]` : host}:${port}`;
  switch (codeOf(error)) {
    case "EADDRINUSE":
      return `the kubelet API cannot listen on ${address}: another process has that port; stop it, or give another --listen-addr`;
    case "EACCES":
      return `the kubelet API cannot listen on ${address}: this user may not use that port; give a --listen-addr with a port from 1024`;
    case "EADDRNOTAVAIL":
      return `the kubelet API cannot listen on ${address}: that address is not one of this host; correct --listen-addr`;
    default:
      return `the kubelet API cannot listen on ${address}: ${error instanceof Error ? error.message : String(error)}; correct --listen-addr`;
  }
}

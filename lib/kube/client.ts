import { scrub } from "../scrub.ts";
import { createBudget, holdMsMax } from "./budget.ts";
import { type Clock, pause, systemClock } from "./clock.ts";
import { type ClientTls, type Credential, type CredentialSource, isCredential } from "./credentials.ts";
import { parseStatus } from "./status.ts";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** Patch types of the API (a JSON body is YAML too, so apply takes it as it is). */
export const strategicMergePatch = "application/strategic-merge-patch+json";
export const mergePatch = "application/merge-patch+json";
export const applyPatch = "application/apply-patch+yaml";

/** What a request came to. A value, because callers decide about VMs on it: only a reply is evidence. */
export type KubeReply = { ok: true; status: number; body: unknown } | KubeFailure;

export type KubeFailure =
  /** The API server answered with a metav1.Status. */
  | {
      ok: false;
      kind: "status";
      code: number;
      reason: string;
      message: string;
      detailsName: string;
      /** The resource the Status speaks of, for example "sandboxes"; empty when it does not say. */
      detailsKind: string;
      retryAfterMs: number;
      body: unknown;
    }
  /** An error without a Status: a proxy, a load balancer, something that is not an API server. */
  | { ok: false; kind: "http"; code: number; message: string; retryAfterMs: number }
  /**
   * network: no connection, reset, or a certificate not trusted. timeout: no whole answer in time.
   * garbage: an answer that is unparsable, cut short or too big. credentials: none to be had.
   * overloaded: too many requests wait already. aborted: the caller's signal.
   */
  | {
      ok: false;
      kind: "network" | "timeout" | "garbage" | "credentials" | "overloaded" | "aborted";
      message: string;
    };

export interface RequestOptions {
  /** Sent as JSON; a string goes as it is. */
  body?: unknown;
  /** Default application/json. */
  contentType?: string;
  query?: Readonly<Record<string, string>>;
  /** Heartbeats: skip the budget, wait for no Pod. */
  exempt?: boolean;
  /** For one attempt, from sending to the last byte; the wait for the budget is apart. Default 10,000. */
  timeoutMs?: number;
  signal?: AbortSignal;
  /** Label for metrics. Default: the method in lower case. */
  verb?: string;
  /** May be sent twice without harm, so a reset connection is tried once more. Default: GET. */
  repeatable?: boolean;
  /** Ask for the reply as PartialObjectMetadata: no spec, no status, less to send and parse. */
  metadataOnly?: boolean;
  /** text: the body as a string (`/readyz`, `/version` of something unknown). Default json. */
  as?: "json" | "text";
}

export interface StreamOptions {
  query?: Readonly<Record<string, string>>;
  signal?: AbortSignal;
  /** Default watch. */
  verb?: string;
  /** Until the response headers. Default 30,000. */
  headersTimeoutMs?: number;
}

export type StreamReply = { ok: true; status: number; body: ReadableStream<Uint8Array> } | KubeFailure;

export interface KubeClient {
  /**
   * One request of the API. Never throws.
   *
   * @param path absolute, already escaped (see `apiPath`), without query
   */
  request(method: Method, path: string, options?: RequestOptions): Promise<KubeReply>;
  /** A GET whose body is read as it comes (watches). Outside the budget; no idle timeout: the reader watches for silence. */
  stream(path: string, options?: StreamOptions): Promise<StreamReply>;
  /** Closes idle connections. */
  close(): void;
  /** Requests waiting for the budget now. */
  readonly waiting: number;
}

export interface KubeClientOptions {
  /** https://host:port, with a path prefix if there is one. */
  server: string;
  credentials: CredentialSource;
  /** URL of an HTTP(S) proxy, or false for none (see `proxyFor`). Default false. */
  proxy?: string | false;
  /** Default 200. */
  qps?: number;
  /** Default 400. */
  burst?: number;
  /** Requests in flight at once, heartbeats apart. Default 64. */
  inFlightMax?: number;
  /** Requests waiting for the budget; one more fails as overloaded. Default 8,192. */
  waitingMax?: number;
  /** Biggest reply read. Default 64 MiB: a page of 500 Pods of 100 KB fits. */
  bodyBytesMax?: number;
  userAgent?: string;
  clock?: Clock;
  /** For metrics: once for each attempt. `code` 0: no reply. */
  onRequest?: (verb: string, code: number, ms: number) => void;
  /** A token or password is used from now on: for whoever has to keep it out of what he writes. */
  onSecret?: (secret: string) => void;
}

/** Attempts after the first when the server asks for patience (429, or 5xx with Retry-After). */
export const retriesMax = 3;
/** Below kube-apiserver's 90 s, so that we rarely send on a connection the server is closing. */
const idleSeconds = 80;

const jsonAccept = "application/json";
const metadataAccept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/**
 * A Kubernetes client on fetch: one TLS configuration, kept-alive connections, a client-side budget, and
 * replies as values.
 *
 * @example
 * const client = createKubeClient({ server: "https://127.0.0.1:6443", credentials });
 * const reply = await client.request("PATCH", apiPath("/api/v1", "namespaces", ns, "pods", name, "status"), {
 *   body: { metadata: { uid }, status },
 *   contentType: strategicMergePatch,
 * });
 */
export function createKubeClient(options: KubeClientOptions): KubeClient {
  const {
    credentials,
    proxy = false,
    bodyBytesMax = 64 * 1024 * 1024,
    userAgent = "vk-sandbox",
    clock = systemClock,
    onRequest = () => {},
    onSecret = () => {},
  } = options;
  const base = options.server.replace(/\/+$/, "");
  const budget = createBudget({
    qps: options.qps ?? 200,
    burst: options.burst ?? 400,
    inFlightMax: options.inFlightMax ?? 64,
    waitingMax: options.waitingMax ?? 8192,
    clock,
  });

  let known: Credential | undefined;
  let knownTls: ClientTls | undefined;
  let session: Bun.FetchSession | undefined;
  let headers = new Map<string, Headers>();

  /** The session for this credential: a new one, with new connections, only when the TLS material changed. */
  function sessionFor(credential: Credential): Bun.FetchSession {
    if (credential !== known) {
      known = credential;
      headers = new Map();
      const secret = secretOf(credential);
      if (secret !== "") onSecret(secret);
    }
    if (session === undefined || knownTls !== credential.tls) {
      session?.close();
      knownTls = credential.tls;
      session = new Bun.FetchSession({
        tls: { ...credential.tls },
        // The proxy was chosen by proxyFor, whose NO_PROXY knows CIDRs; fetch must not choose again.
        proxy: proxy === false ? false : { url: proxy, respectNoProxy: false },
        keepAlive: { idleTimeout: idleSeconds },
      });
    }
    return session;
  }

  function headersFor(credential: Credential, contentType: string, metadataOnly: boolean): Headers {
    const key = metadataOnly ? `m${contentType}` : contentType;
    let found = headers.get(key);
    if (found === undefined) {
      found = new Headers({
        Accept: metadataOnly ? metadataAccept : jsonAccept,
        // Replies are small and near; what is not compressed cannot unpack to more than its bound.
        "Accept-Encoding": "identity",
        "User-Agent": userAgent,
      });
      if (contentType !== "") found.set("Content-Type", contentType);
      if (credential.authorization !== "") found.set("Authorization", credential.authorization);
      headers.set(key, found);
    }
    return found;
  }

  async function attempt(
    method: Method,
    url: string,
    body: string | undefined,
    credential: Credential,
    settings: RequestOptions,
  ): Promise<KubeReply> {
    const verb = settings.verb ?? method.toLowerCase();
    const contentType = body === undefined ? "" : (settings.contentType ?? "application/json");
    const timeoutMs = settings.timeoutMs ?? 10_000;
    const startedMs = clock.now();
    const deadline = withDeadline(clock, timeoutMs, settings.signal);
    let code = 0;
    try {
      const response = await sessionFor(credential).fetch(url, {
        method,
        headers: headersFor(credential, contentType, settings.metadataOnly === true),
        body,
        signal: deadline.signal,
        // A redirect would carry the credential elsewhere; the API has none on these paths.
        redirect: "manual",
        timeout: false,
      });
      code = response.status;
      const text = await readBounded(response, bodyBytesMax);
      if (text === undefined) {
        return garbage(`the body is larger than bytesMax ${bodyBytesMax}`, method, url);
      }
      if (code < 200 || code > 299)
        return failureOf(code, scrub(text, secretOf(credential)), response.headers);
      if (settings.as === "text") return { ok: true, status: code, body: text };
      return parseBody(code, text, method, url);
    } catch (error) {
      const failure = deadline.failure() ?? networkFailure(error, method, url);
      // A silent server may have gone without a word; its other idle connections would cost a timeout each,
      // and a lease cannot wait for many.
      if (failure.kind === "timeout") session?.close();
      return failure;
    } finally {
      deadline.end();
      onRequest(verb, code, clock.now() - startedMs);
    }
  }

  async function request(method: Method, path: string, settings: RequestOptions = {}): Promise<KubeReply> {
    const url = settings.query === undefined ? base + path : `${base}${path}?${queryString(settings.query)}`;
    const body =
      settings.body === undefined
        ? undefined
        : typeof settings.body === "string"
          ? settings.body
          : JSON.stringify(settings.body);
    const repeatable = settings.repeatable ?? method === "GET";
    const exempt = settings.exempt === true;
    let patience = retriesMax;
    let mayReconnect = repeatable;
    let mayRenew = true;
    for (;;) {
      if (settings.signal?.aborted) return abortedFailure;
      if (!exempt) {
        const waiting = budget.take(settings.signal);
        if (waiting !== undefined) {
          const admission = await waiting;
          if (admission === "aborted") return abortedFailure;
          if (admission === "full") {
            return {
              ok: false,
              kind: "overloaded",
              message: `${method} ${path}: ${budget.waiting} requests wait for the API budget already; raise --kube-api-qps, or find out why the API server is slow`,
            };
          }
        }
      }
      let reply: KubeReply;
      let credential: Credential | undefined;
      try {
        const found = credentials.current();
        const usable = found instanceof Promise ? await found : found;
        if (!isCredential(usable)) return { ok: false, kind: "credentials", message: usable.why };
        credential = usable;
        reply = await attempt(method, url, body, usable, settings);
      } finally {
        if (!exempt) budget.done();
      }
      if (reply.ok) return reply;
      if (reply.kind === "network" && mayReconnect) {
        mayReconnect = false;
        continue;
      }
      if (reply.kind !== "status" && reply.kind !== "http") return reply;
      if (reply.code === 401) {
        credentials.rejected(credential);
        // A 401 was not carried out, so any method may be sent again with a newer credential.
        if (!mayRenew) return reply;
        mayRenew = false;
        const next = credentials.current();
        const renewed = next instanceof Promise ? await next : next;
        if (!isCredential(renewed) || renewed === credential) return reply;
        continue;
      }
      // A 429 was turned away before it was carried out; a 5xx perhaps was not.
      const again = reply.code === 429 || (reply.code >= 500 && repeatable);
      if (!again || reply.retryAfterMs === 0 || patience === 0) return reply;
      patience -= 1;
      const waitMs = Math.min(reply.retryAfterMs, holdMsMax);
      if (!exempt && reply.code === 429) {
        budget.hold(clock.now() + waitMs);
      } else if (!(await pause(clock, waitMs, settings.signal))) {
        return abortedFailure;
      }
    }
  }

  async function stream(path: string, settings: StreamOptions = {}): Promise<StreamReply> {
    const url = settings.query === undefined ? base + path : `${base}${path}?${queryString(settings.query)}`;
    const verb = settings.verb ?? "watch";
    const found = credentials.current();
    const credential = found instanceof Promise ? await found : found;
    if (!isCredential(credential)) return { ok: false, kind: "credentials", message: credential.why };
    const startedMs = clock.now();
    const deadline = withDeadline(clock, settings.headersTimeoutMs ?? 30_000, settings.signal);
    let code = 0;
    let open = false;
    try {
      const response = await sessionFor(credential).fetch(url, {
        headers: headersFor(credential, "", false),
        signal: deadline.signal,
        redirect: "manual",
        // Otherwise fetch gives up on a watch that has nothing to say.
        timeout: false,
      });
      code = response.status;
      if (code === 401) credentials.rejected(credential);
      if (code < 200 || code > 299) {
        const text = (await readBounded(response, bodyBytesMax)) ?? "";
        return failureOf(code, scrub(text, secretOf(credential)), response.headers);
      }
      if (response.body === null) return garbage("the reply has no body", "GET", url);
      open = true;
      return { ok: true, status: code, body: response.body };
    } catch (error) {
      return deadline.failure() ?? networkFailure(error, "GET", url);
    } finally {
      if (open) deadline.disarm();
      else deadline.end();
      onRequest(verb, code, clock.now() - startedMs);
    }
  }

  return {
    request,
    stream,
    close() {
      session?.close();
    },
    get waiting() {
      return budget.waiting;
    },
  };
}

/**
 * Joins a path of the API from a prefix and segments, each escaped. Names reach us from objects that tenants
 * write (an ownerReference's name is not validated), so a name must stay one segment.
 *
 * @returns undefined when a segment is empty, "." or "..", which no URL can carry as a name
 */
export function apiPath(prefix: string, ...segments: string[]): string | undefined {
  let path = prefix;
  for (const segment of segments) {
    if (segment === "" || segment === "." || segment === "..") return undefined;
    path += `/${encodeURIComponent(segment)}`;
  }
  return path;
}

/** One line about a failure for logs and messages: what the server said, or why there was no answer. */
export function describeFailure(failure: KubeFailure): string {
  if (failure.kind === "status") {
    return `${failure.code} ${failure.reason || "without a reason"}: ${failure.message}`;
  }
  if (failure.kind === "http") return `${failure.code} without a Status: ${failure.message}`;
  return `${failure.kind}: ${failure.message}`;
}

const abortedFailure: KubeFailure = { ok: false, kind: "aborted", message: "the caller stopped waiting" };

function garbage(what: string, method: string, url: string): KubeFailure {
  return { ok: false, kind: "garbage", message: `${method} ${url}: ${what}` };
}

function queryString(query: Readonly<Record<string, string>>): string {
  let text = "";
  for (const name in query) {
    text += `${text === "" ? "" : "&"}${name}=${encodeURIComponent(query[name] ?? "")}`;
  }
  return text;
}

function parseBody(code: number, text: string, method: string, url: string): KubeReply {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return garbage(`${code} with ${text.length} characters that are not JSON`, method, url);
  }
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    return garbage(`${code} with JSON that is not an object`, method, url);
  }
  return { ok: true, status: code, body };
}

/** What of a credential must not be repeated: the Authorization header without its scheme. */
function secretOf({ authorization }: Credential): string {
  return authorization.slice(authorization.indexOf(" ") + 1);
}

/** How much of an answer that is not ours to understand is repeated in an error. */
const quotedCharactersMax = 200;

function failureOf(code: number, text: string, headers: Headers): KubeFailure {
  const headerMs = retryAfterHeader(headers.get("retry-after"));
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const status = parseStatus(body);
  if (status === undefined) {
    const quoted = text.slice(0, quotedCharactersMax).replace(/\s+/g, " ").trim();
    return {
      ok: false,
      kind: "http",
      code,
      message: quoted || "empty body; is the server an API server?",
      retryAfterMs: headerMs,
    };
  }
  return {
    ok: false,
    kind: "status",
    code,
    reason: status.reason,
    message: status.message,
    detailsName: status.detailsName,
    detailsKind: status.detailsKind,
    retryAfterMs: headerMs || status.retryAfterMs,
    body,
  };
}

/** Seconds as kube-apiserver sends them; a date, which it never sends, counts as absent. */
function retryAfterHeader(value: string | null): number {
  if (value === null || !/^\d{1,6}$/.test(value.trim())) return 0;
  return Number(value) * 1000;
}

function networkFailure(error: unknown, method: string, url: string): KubeFailure {
  return { ok: false, kind: "network", message: `${method} ${url}: ${connectionError(error)}` };
}

/** Why a connection failed, in words of ours where Bun's help nobody (or advise printing headers, token included). */
export function connectionError(error: unknown): string {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  const known = connectionErrors[code];
  if (known !== undefined) return known;
  const message = error instanceof Error ? error.message : String(error);
  const said = message.replace(/ ?For more information, pass `verbose: true`.*$/s, "").trim();
  return code === "" || said.startsWith(code) ? said : `${code} ${said}`;
}

const untrusted =
  "the server's certificate is not signed by the configured CA: check certificate-authority in the kubeconfig";
const connectionErrors: Record<string, string> = {
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: untrusted,
  SELF_SIGNED_CERT_IN_CHAIN: untrusted,
  DEPTH_ZERO_SELF_SIGNED_CERT: untrusted,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: untrusted,
  UNABLE_TO_GET_ISSUER_CERT: untrusted,
  CERT_HAS_EXPIRED: "the server's certificate, or one above it, has expired",
  ERR_TLS_CERT_ALTNAME_INVALID:
    "the server's certificate names another host: set tls-server-name in the kubeconfig, or use a name it carries",
  ECONNREFUSED: "connection refused: is the API server up, and is this its address?",
  ECONNRESET: "the connection was closed before the whole answer came",
  FailedToOpenSocket:
    "no connection: the host name does not resolve, or CA, client certificate and key are not sound PEM that belongs together",
};

interface Deadline {
  signal: AbortSignal;
  /** The failure this deadline, or the caller's signal, brought about; undefined when neither did. */
  failure(): KubeFailure | undefined;
  /** Stops the timer and lets go of the caller's signal. */
  end(): void;
  /** Stops the timer; the caller's signal still aborts (a stream lives on). */
  disarm(): void;
}

/** A deadline on the injected clock, joined with the caller's signal. */
function withDeadline(clock: Clock, timeoutMs: number, outer: AbortSignal | undefined): Deadline {
  const controller = new AbortController();
  let late = false;
  const cancel = clock.after(timeoutMs, () => {
    late = true;
    controller.abort();
  });
  const onAbort = () => controller.abort();
  if (outer?.aborted) controller.abort();
  else outer?.addEventListener("abort", onAbort, { once: true });
  return {
    signal: controller.signal,
    failure() {
      if (late) return { ok: false, kind: "timeout", message: `no whole answer within ${timeoutMs} ms` };
      return outer?.aborted ? abortedFailure : undefined;
    },
    end() {
      cancel();
      outer?.removeEventListener("abort", onAbort);
    },
    disarm: cancel,
  };
}

/** The body as text, or undefined when it is larger than `bytesMax`. A body cut short throws, as fetch does. */
async function readBounded(response: Response, bytesMax: number): Promise<string | undefined> {
  const length = Number(response.headers.get("content-length") ?? "NaN");
  if (length > bytesMax) {
    await response.body?.cancel();
    return undefined;
  }
  if (length >= 0 && !response.headers.has("content-encoding")) return response.text();
  if (response.body === null) return "";
  const reader = response.body.getReader();
  const chunks: Uint8Array[] = [];
  let total = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    total += value.byteLength;
    if (total > bytesMax) {
      await reader.cancel();
      return undefined;
    }
    chunks.push(value);
  }
  const first = chunks[0];
  if (first === undefined) return "";
  return new TextDecoder().decode(chunks.length === 1 ? first : Buffer.concat(chunks, total));
}

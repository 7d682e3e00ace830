/** One HTTP exchange with sandboxd as a value: what it answered, or how far the request got. */
import { scrub } from "../scrub.ts";
import { ERROR_CHARS_MAX } from "./limits.ts";

/** The part of fetch that is used; Bun's own options are `unix`, `proxy` and `timeout`. */
export type Fetch = (url: string, init: BunFetchRequestInit) => Promise<Response>;

export interface Call {
  method: "GET" | "POST";
  /** Path below the URL, query included. */
  path: string;
  token?: string | undefined;
  body?: unknown;
  timeoutMs: number;
  bytesMax: number;
}

export type Reply =
  | { kind: "answer"; status: number; text: string }
  /** The request did not reach sandboxd. */
  | { kind: "unsent"; why: string }
  /** The request may have been carried out; its answer is not known. */
  | { kind: "lost"; why: string; timedOut: boolean };

/** Failures of resolving, connecting and the TLS handshake, all of them before a request is written. */
const unsentCodes: Record<string, string> = {
  ECONNREFUSED: "connection refused",
  ENOTFOUND: "its host name does not resolve",
  EAI_AGAIN: "its host name does not resolve at the moment",
  EHOSTUNREACH: "no route to its host",
  ENETUNREACH: "its network is unreachable",
  ENOENT: "its socket does not exist",
  EACCES: "permission denied on its socket",
};
const certificateCode = /CERT|SELF_SIGNED|UNABLE_TO_/;

/** Where sandboxd is: `http(s)://…`, or `unix:///path/of/socket`. */
export function createTransport(url: string, fetch: Fetch): (call: Call) => Promise<Reply> {
  const unix = /^unix:(?:\/\/)?(\/.*)$/.exec(url)?.[1];
  const base = unix === undefined ? url.replace(/\/+$/, "") : "http://localhost";

  return async (call) => {
    const headers: Record<string, string> = { accept: "application/json", "accept-encoding": "identity" };
    if (call.token !== undefined) headers.authorization = `Bearer ${call.token}`;
    const init: BunFetchRequestInit = {
      method: call.method,
      headers,
      // Following a redirect would send the credential to whoever is named in it.
      redirect: "manual",
      signal: AbortSignal.timeout(call.timeoutMs),
      // sandboxd is the node's own: a proxy of the environment must see neither the call nor the credential.
      // Bun takes `false` for that, which its types do not know; transport.test.ts holds it to that.
      proxy: false as unknown as string,
    };
    if (unix !== undefined) init.unix = unix;
    if (call.body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(call.body);
    }
    try {
      const response = await fetch(base + call.path, init);
      const body = await readBody(response, call.bytesMax);
      if (body === undefined) {
        return { kind: "lost", why: `its reply is longer than ${call.bytesMax} bytes`, timedOut: false };
      }
      // A reply has no reason to repeat the credential it was asked with, in whatever field: it ends here.
      return { kind: "answer", status: response.status, text: scrub(body, call.token ?? "") };
    } catch (error) {
      return failureOf(error, call.timeoutMs);
    }
  };
}

function failureOf(error: unknown, timeoutMs: number): Reply {
  const { name, code } = error as { name?: string; code?: unknown };
  if (name === "TimeoutError" || name === "AbortError") {
    return { kind: "lost", why: `no answer within ${timeoutMs / 1000} s`, timedOut: true };
  }
  const named = typeof code === "string" ? code : "";
  const unsent = unsentCodes[named];
  if (unsent !== undefined) return { kind: "unsent", why: `${unsent} (${named})` };
  if (certificateCode.test(named))
    return { kind: "unsent", why: `its certificate is not trusted (${named})` };
  return {
    kind: "lost",
    why: `the connection ended before the answer did${named && ` (${named})`}`,
    timedOut: false,
  };
}

/** The body as text; undefined when it is longer than allowed, of which no more than that is read. */
async function readBody(response: Response, bytesMax: number): Promise<string | undefined> {
  const { headers, body } = response;
  const length = headers.get("content-length");
  // A stated length bounds the body, unless it is that of a compressed one.
  if (length !== null && Number(length) <= bytesMax && !headers.has("content-encoding"))
    return response.text();
  if (body === null) return "";
  const reader = body.getReader();
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes += value.length;
    if (bytes > bytesMax) {
      // Not awaited: the other side may never end it.
      reader.cancel().catch(() => {});
      return undefined;
    }
    parts.push(value);
  }
  return Buffer.concat(parts).toString("utf8");
}

/** JSON of a reply, or undefined; `undefined` is not JSON, so it can stand for "none". */
export function parseBody(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** sandboxd's own words for a refusal, `{"error": "text"}`; undefined when somebody else answered. */
export function errorText(text: string): string | undefined {
  const value = parseBody(text);
  if (typeof value !== "object" || value === null) return undefined;
  const { error } = value as { error?: unknown };
  return typeof error === "string" ? error : undefined;
}

/** A text from outside made fit for a message: one line, bounded, and without any of the secrets. */
export function clean(text: string, secrets: (string | undefined)[]): string {
  let safe = text;
  for (const secret of secrets) if (secret) safe = safe.replaceAll(secret, "[credential]");
  // Somebody else's credential may be echoed too.
  safe = safe.replace(/\b(Bearer|Basic)\s+[^\s"',;]+/gi, "$1 [credential]");
  safe = safe.replace(/[\p{Cc}\p{Cf}\s]+/gu, " ").trim();
  return safe.length > ERROR_CHARS_MAX ? `${safe.slice(0, ERROR_CHARS_MAX)}…` : safe;
}

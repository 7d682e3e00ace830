import type { CallResult, ClaimResult, Listed, ReadResult } from "../provider/types.ts";
import { badToken, type ClaimSpec, judgeClaim } from "./claim.ts";
import { createGate } from "./gate.ts";
import {
  CALLS_IN_FLIGHT_MAX,
  CLAIMS_IN_FLIGHT_MAX,
  timeouts as defaultTimeouts,
  isId,
  isToken,
  LISTING_BYTES_MAX,
  METRICS_BYTES_MAX,
  REPLY_BYTES_MAX,
} from "./limits.ts";
import {
  type Info,
  type SandboxStats,
  type Shaped,
  shapeInfo,
  shapeListing,
  shapeRenewal,
  shapeRow,
  shapeStats,
} from "./replies.ts";
import {
  type Call,
  clean,
  createTransport,
  errorText,
  type Fetch,
  parseBody,
  type Reply,
} from "./transport.ts";

const CLAIM_PATH = "/v1/claim";
const HEALTH_PATH = "/healthz";
const INFO_PATH = "/v1/info";
const PROBE_PATHS: ReadonlySet<string> = new Set([HEALTH_PATH, INFO_PATH]);

export interface SandboxdOptions {
  /** `http://host:port`, `https://…` or `unix:///path/of/socket`. */
  url: string;
  /** The root token of now (it is re-read when its file changes); undefined when sandboxd asks for none. */
  token?: () => string | undefined;
  timeouts?: Partial<typeof defaultTimeouts>;
  fetch?: Fetch;
}

/** A read that failed, with the HTTP status where there was an answer. */
export interface Failed {
  ok: false;
  why: string;
  status?: number;
}

export interface Sandboxd {
  /** `POST /v1/claim`. Redirects are not followed: a provider fronts one node. */
  claim(spec: ClaimSpec): Promise<ClaimResult>;
  /** `GET /v1/sandboxes`; with a claim_ref only the rows that carry it. An unreadable answer is a failure, never an empty list. */
  list(claimRef?: string): Promise<{ ok: true; rows: Listed[] } | Failed>;
  /** `GET /v1/sandboxes/{id}` with the root token, which alone is told the sandbox's. `address` is "" where sandboxd does not say. */
  read(id: string): Promise<ReadResult>;
  /** `POST …/release`. 204, or sandboxd's own 404 (`alreadyGone`), is done. */
  release(id: string, token: string): Promise<CallResult & { alreadyGone?: boolean }>;
  /** `POST …/renew`; the granted deadline may be earlier than what was asked for. */
  renew(id: string, token: string, ttlSeconds: number): Promise<CallResult>;
  /** `POST …/hibernate`; refused where the sandbox has an egress lane or volumes. */
  hibernate(id: string, token: string): Promise<CallResult>;
  /** `POST …/wake`. */
  wake(id: string, token: string): Promise<CallResult>;
  /** `GET /v1/info`. */
  info(): Promise<{ ok: true; info: Info } | Failed>;
  /** `GET /v1/sandboxes/{id}/stats`. */
  stats(id: string): Promise<{ ok: true; stats: SandboxStats } | (Failed & { absent: boolean })>;
  /** `GET /healthz`, without a credential. */
  healthz(): Promise<{ ok: true } | Failed>;
  /** `GET /metrics`, Prometheus text. */
  metricsText(): Promise<{ ok: true; text: string } | Failed>;
}

/**
 * A client of one sandboxd (facts: sandboxd's HTTP API). Every call ends within its timeout, nothing
 * rejects, and no answer carries a credential in its words.
 *
 * @example
 * const sandboxd = createSandboxd({ url: "http://127.0.0.1:7777", token: () => "root" });
 * const listing = await sandboxd.list("default/agent-1");
 */
export function createSandboxd(options: SandboxdOptions): Sandboxd {
  const { url, token: rootToken = () => undefined, fetch = globalThis.fetch } = options;
  const { claimMs, callMs } = { ...defaultTimeouts, ...options.timeouts };
  const send = createTransport(url, fetch);
  const claims = createGate(CLAIMS_IN_FLIGHT_MAX);
  const calls = createGate(CALLS_IN_FLIGHT_MAX);

  /** Sends with a credential, unless it is none that could be sent. */
  async function call(
    method: Call["method"],
    path: string,
    token: string | undefined,
    extra: { body?: unknown; timeoutMs?: number; bytesMax?: number } = {},
  ): Promise<Reply> {
    if (token !== undefined && !isToken(token)) {
      return { kind: "unsent", why: "the credential is empty or has characters that no header can carry" };
    }
    const { body, timeoutMs = callMs, bytesMax = REPLY_BYTES_MAX } = extra;
    const exchange = () => send({ method, path, token, body, timeoutMs, bytesMax });
    // What tells whether sandboxd is there must not wait behind the calls that it does not answer: with thousands
    // of them in line the Node would stay Ready for an hour. One at a time is all its callers ever make.
    if (PROBE_PATHS.has(path)) return exchange();
    // The time limit counts from the sending, not from the coming.
    const gate = path === CLAIM_PATH ? claims : calls;
    return gate.through(exchange);
  }

  /** Why an exchange did not bring what it should, in words. */
  function failure(what: string, reply: Reply, secrets: (string | undefined)[]): Failed {
    if (reply.kind !== "answer") return { ok: false, why: `${what} at ${url}: ${reply.why}` };
    const { status, text } = reply;
    const said = errorText(text);
    const words =
      said === undefined
        ? "not in sandboxd's form; is something else at --sandboxd-url?"
        : clean(said, secrets);
    return { ok: false, why: `${what} at ${url}: HTTP ${status}: ${words}`, status };
  }

  /** sandboxd's own 404; a proxy's or another server's says nothing about a sandbox. */
  function isAbsence(reply: Reply): boolean {
    return reply.kind === "answer" && reply.status === 404 && errorText(reply.text) !== undefined;
  }

  async function get<T>(
    what: string,
    path: string,
    shape: (value: unknown) => Shaped<T>,
    bytesMax = REPLY_BYTES_MAX,
  ): Promise<{ ok: true; value: T } | (Failed & { absent: boolean })> {
    const token = rootToken();
    const reply = await call("GET", path, token, { bytesMax });
    if (reply.kind !== "answer" || reply.status !== 200) {
      return { ...failure(what, reply, [token]), absent: isAbsence(reply) };
    }
    const shaped = shape(parseBody(reply.text));
    return shaped.ok
      ? shaped
      : { ok: false, why: `${what} at ${url}: ${clean(shaped.why, [token])}`, status: 200, absent: false };
  }

  /** A POST to one sandbox with its own credential, the root one where it has none. */
  async function act(
    id: string,
    token: string,
    verb: string,
    body?: unknown,
  ): Promise<{ reply: Reply; fault?: CallResult }> {
    if (!isId(id)) {
      const why = `${verb}: ${JSON.stringify(clean(String(id), [token]))} is not a sandbox id; it was not sent`;
      return { reply: { kind: "unsent", why }, fault: { ok: false, kind: "refused", why } };
    }
    const path = `/v1/sandboxes/${id}/${verb}`;
    const root = rootToken();
    const reply = await call("POST", path, token === "" ? root : token, { body });
    const denied = reply.kind === "answer" && (reply.status === 401 || reply.status === 403);
    // A credential that a restart of sandboxd outdated must not keep a VM for ever: root may do the same.
    if (denied && token !== "" && root !== undefined && root !== token) {
      return { reply: await call("POST", path, root, { body }) };
    }
    return { reply };
  }

  /** `doneStatus`: the one status that says it was done. A proxy's login page is a 200 too, and frees no VM. */
  function judge(id: string, token: string, verb: string, reply: Reply, doneStatus: number): CallResult {
    if (reply.kind === "answer" && reply.status === doneStatus) return { ok: true };
    const { why } = failure(`${verb} of ${id}`, reply, [token, rootToken()]);
    if (isAbsence(reply)) return { ok: false, kind: "gone", why };
    const refused = reply.kind === "answer" && (reply.status === 400 || reply.status === 409);
    return { ok: false, kind: refused && errorText(reply.text) !== undefined ? "refused" : "failed", why };
  }

  async function simple(id: string, token: string, verb: string): Promise<CallResult> {
    const { reply, fault } = await act(id, token, verb);
    return fault ?? judge(id, token, verb, reply, 204);
  }

  return {
    async claim(spec) {
      const token = rootToken();
      if (token !== undefined && !isToken(token)) return badToken();
      const body = {
        template: spec.template,
        net: spec.net || undefined,
        size: spec.size || undefined,
        ttl_seconds: spec.ttlSeconds,
        claim_ref: spec.claimRef,
      };
      const reply = await call("POST", CLAIM_PATH, token, { body, timeoutMs: claimMs });
      return judgeClaim(reply, spec, url, token);
    },

    async list(claimRef) {
      const query = claimRef === undefined ? "" : `?claim_ref=${encodeURIComponent(claimRef)}`;
      const answer = await get("the listing", `/v1/sandboxes${query}`, shapeListing, LISTING_BYTES_MAX);
      if (!answer.ok) return { ok: false, why: answer.why, status: answer.status };
      // A filter that an older sandboxd ignores would hand us everybody's rows.
      const rows =
        claimRef === undefined ? answer.value : answer.value.filter((row) => row.claimRef === claimRef);
      return { ok: true, rows };
    },

    async read(id) {
      if (!isId(id)) return { ok: false, absent: false, why: "the read: not a sandbox id; it was not sent" };
      const answer = await get(`the read of ${id}`, `/v1/sandboxes/${id}`, shapeRow);
      if (!answer.ok) return { ok: false, absent: answer.absent, why: answer.why };
      const { listed, token, address } = answer.value;
      if (listed.id !== id)
        return { ok: false, absent: false, why: `the read of ${id} at ${url} answered with another id` };
      if (!isToken(token)) {
        return {
          ok: false,
          absent: false,
          why: `the read of ${id} at ${url} gave no token: --sandboxd-token-file must hold sandboxd's root api_token`,
        };
      }
      return { ok: true, listed, token, address };
    },

    async release(id, token) {
      const result = await simple(id, token, "release");
      return !result.ok && result.kind === "gone" ? { ok: true, alreadyGone: true } : result;
    },

    async renew(id, token, ttlSeconds) {
      const { reply, fault } = await act(id, token, "renew", { ttl_seconds: ttlSeconds });
      const result = fault ?? judge(id, token, "renew", reply, 200);
      if (!result.ok || reply.kind !== "answer") return result;
      const shaped = shapeRenewal(parseBody(reply.text));
      if (!shaped.ok) return { ok: false, kind: "failed", why: `renew of ${id} at ${url}: ${shaped.why}` };
      return { ok: true, deadlineMs: shaped.value };
    },

    hibernate: (id, token) => simple(id, token, "hibernate"),
    wake: (id, token) => simple(id, token, "wake"),

    async info() {
      const answer = await get("the info", INFO_PATH, shapeInfo);
      return answer.ok
        ? { ok: true, info: answer.value }
        : { ok: false, why: answer.why, status: answer.status };
    },

    async stats(id) {
      if (!isId(id)) return { ok: false, absent: false, why: "the stats: not a sandbox id; it was not sent" };
      const answer = await get(`the stats of ${id}`, `/v1/sandboxes/${id}/stats`, shapeStats);
      return answer.ok ? { ok: true, stats: answer.value } : answer;
    },

    async healthz() {
      const reply = await call("GET", HEALTH_PATH, undefined);
      return reply.kind === "answer" && reply.status === 200
        ? { ok: true }
        : failure("healthz", reply, [rootToken()]);
    },

    async metricsText() {
      const token = rootToken();
      const reply = await call("GET", "/metrics", token, { bytesMax: METRICS_BYTES_MAX });
      if (reply.kind === "answer" && reply.status === 200) return { ok: true, text: reply.text };
      return failure("the metrics", reply, [token]);
    },
  };
}

/**
 * What sandboxd's answer to a claim means (contract: Create 5). Checked by hand, not by schema, because it is
 * on the handover path: 0.8 µs a grant against valibot's 1.2, and 0.8 ms against 1.4 for the first.
 */
import type { Cause, CauseKind, ClaimResult } from "../provider/types.ts";
import { hostOf, originOf } from "./address.ts";
import { isId, isToken, PEERS_NAMED_MAX } from "./limits.ts";
import { parseTime } from "./time.ts";
import { clean, errorText, parseBody, type Reply } from "./transport.ts";

/** A claim as the core asks for it. */
export interface ClaimSpec {
  template: string;
  /** `none`, `egress`, or "" for sandboxd's default. */
  net: string;
  /** `small`, `medium`, `large`, or "" for sandboxd's default. */
  size: string;
  /** 0: sandboxd's five-minute default. */
  ttlSeconds: number;
  /** The Pod key. */
  claimRef: string;
}

/** Words of a 429 that tell its three reasons apart. */
const drainingWords = /drain/i;
const maxClaimsWords =
  /max[_ -]?claims|claim limit|too many claims|live claims|quota exceeded|at[_ -]?capacity/i;

/** Turns the exchange into a grant or a typed cause. `where` is sandboxd's URL, for the message. */
export function judgeClaim(
  reply: Reply,
  spec: ClaimSpec,
  where: string,
  rootToken: string | undefined,
): ClaimResult {
  if (reply.kind === "unsent") {
    return refused(
      "unreachable",
      `sandboxd at ${where} cannot be reached: ${reply.why}. Check that it runs and that --sandboxd-url is right; the claim is tried again`,
      false,
    );
  }
  if (reply.kind === "lost") {
    return refused(
      reply.timedOut ? "timeout" : "unreachable",
      `sandboxd at ${where} did not answer the claim: ${reply.why}. It may have granted one; that is looked for before the claim is tried again`,
      true,
    );
  }
  if (reply.status === 200) return judgeGrant(reply.text, spec, where);
  return judgeRefusal(reply.status, reply.text, spec, where, rootToken);
}

/** The claim that is not even sent, because no header can carry the token. */
export function badToken(): ClaimResult {
  return refused(
    "bad_token",
    "the provider's token is empty or has characters that no header can carry. Put sandboxd's api_token into --sandboxd-token-file; it is read again when it changes",
    false,
  );
}

function judgeGrant(text: string, spec: ClaimSpec, where: string): ClaimResult {
  const value = parseBody(text);
  if (typeof value !== "object" || value === null) return unreadable(where, "the reply is not a JSON object");
  const { id, token, deadline, owner_addr, redirect } = value as Record<string, unknown>;
  if (id === undefined && Array.isArray(redirect)) {
    const peers = redirect.filter((peer): peer is string => typeof peer === "string" && hostOf(peer) !== "");
    const more = peers.length > PEERS_NAMED_MAX ? ` and ${peers.length - PEERS_NAMED_MAX} more` : "";
    const named = peers.slice(0, PEERS_NAMED_MAX).map((peer) => clean(peer, []));
    const elsewhere = named.length > 0 ? `; peers with warm capacity: ${named.join(", ")}${more}` : "";
    return refused(
      "no_warm_capacity",
      `no warm sandbox of ${axes(spec)} on this node${elsewhere}. Raise the pool's target, or let the Pod be scheduled to another node; the claim is tried again`,
      false,
    );
  }
  if (!isId(id)) return unreadable(where, "it names no usable id");
  if (!isToken(token)) return unreadable(where, `it gives no usable token for ${id}`);
  if (typeof owner_addr !== "string" || hostOf(owner_addr) === "") {
    return unreadable(where, `it gives no usable owner_addr for ${id}`);
  }
  const deadlineMs = parseTime(deadline);
  if (deadlineMs === undefined) return unreadable(where, `the deadline of ${id} is not an RFC 3339 time`);
  return { ok: true, grant: { id, token, address: originOf(owner_addr), deadlineMs } };
}

function unreadable(where: string, what: string): ClaimResult {
  return refused(
    "bad_reply",
    `sandboxd at ${where} answered the claim with 200, but ${what}. A sandbox may have been granted; it is looked for before the claim is tried again`,
    true,
  );
}

function judgeRefusal(
  status: number,
  text: string,
  spec: ClaimSpec,
  where: string,
  rootToken: string | undefined,
): ClaimResult {
  const said = errorText(text);
  // Without sandboxd's own error body something in between answered, and what it did with the claim is not known.
  if (said === undefined) {
    return refused(
      status === 408 || status === 504 ? "timeout" : "bad_reply",
      `${where} answered the claim with HTTP ${status}, but not in sandboxd's form: is there a proxy in between, or another program at --sandboxd-url? A sandbox may have been granted; it is looked for before the claim is tried again`,
      true,
    );
  }
  const words = clean(said, [rootToken]) || "no reason given";
  const cause = causeOf(status, words, spec);
  return { ok: false, cause, lost: false };
}

function causeOf(status: number, words: string, spec: ClaimSpec): Cause {
  switch (status) {
    case 400:
      return {
        kind: "unknown_template",
        message: `sandboxd refuses ${axes(spec)}: ${words}. Correct the Pod's template, net, size or ttl-seconds annotation, or add the pool to sandboxd`,
      };
    case 401:
    case 403:
      return {
        kind: "bad_token",
        message: `sandboxd refuses the provider's token (HTTP ${status}): ${words}. Put sandboxd's api_token into --sandboxd-token-file; it is read again when it changes`,
      };
    case 409:
      return {
        kind: "egress_unavailable",
        message: `sandboxd has no egress attachment for ${axes(spec)}: ${words}. Configure the egress lane on this host, or use net: none`,
      };
    case 429:
      if (drainingWords.test(words)) {
        return {
          kind: "draining",
          message: `sandboxd is draining: ${words}. The claim is tried again until the drain ends or the Pod moves to another node`,
        };
      }
      if (maxClaimsWords.test(words)) {
        return {
          kind: "max_claims",
          message: `sandboxd is at its limit of claims: ${words}. The claim is tried again as claims end; raise max_claims or add nodes`,
        };
      }
      return {
        kind: "no_warm_capacity",
        message: `no warm sandbox of ${axes(spec)} on this node: ${words}. Raise the pool's target or add nodes; the claim is tried again`,
      };
    default:
      if (status >= 500) {
        return {
          kind: "provisioning_failed",
          message: `sandboxd could not provision ${axes(spec)} (HTTP ${status}): ${words}. Its log says more; the claim is tried again`,
        };
      }
      return {
        kind: "bad_reply",
        message: `sandboxd answered the claim with HTTP ${status}: ${words}. Check that --sandboxd-url names sandboxd and that its version is supported`,
      };
  }
}

function refused(kind: CauseKind, message: string, lost: boolean): ClaimResult {
  return { ok: false, cause: { kind, message }, lost };
}

function axes(spec: ClaimSpec): string {
  const net = spec.net === "" ? "" : `, net ${spec.net}`;
  const size = spec.size === "" ? "" : `, size ${spec.size}`;
  return clean(`template ${spec.template}${net}${size}`, []);
}

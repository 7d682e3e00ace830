/** How long a call may take, in milliseconds. */
export const timeouts = {
  /** A cold claim boots a VM. */
  claimMs: 30_000,
  callMs: 5_000,
};

/** Largest reply to anything but the listings below (facts: JSON bodies, at most 1 MiB). */
export const REPLY_BYTES_MAX = 1 << 20;
/** Largest index: some 50,000 sandboxes of 300 bytes each. */
export const LISTING_BYTES_MAX = 16 << 20;
/** Largest metrics page. */
export const METRICS_BYTES_MAX = 4 << 20;
/** How much of a text of sandboxd's is passed on in an error. */
export const ERROR_CHARS_MAX = 300;
/** Peers named in a refusal. */
export const PEERS_NAMED_MAX = 8;

const ID_CHARS_MAX = 128;
const TOKEN_CHARS_MAX = 4096;

/** A claim id that may go into a URL path: no separator, no dot segment, nothing that needs escaping. */
export function isId(value: unknown): value is string {
  return (
    typeof value === "string" && value.length <= ID_CHARS_MAX && /^[A-Za-z0-9_][A-Za-z0-9._-]*$/.test(value)
  );
}

/** A credential that may go into a header: visible ASCII. */
export function isToken(value: unknown): value is string {
  return typeof value === "string" && value.length <= TOKEN_CHARS_MAX && /^[!-~]+$/.test(value);
}

/**
 * Requests in flight at once. Bun's fetch carries at most 256 of the whole process, whatever the host: without a
 * bound of their own, slow claims would keep heartbeats from being sent. Claims have a bound apart, so that none of
 * them holds up a release or a health probe.
 */
export const CLAIMS_IN_FLIGHT_MAX = 96;
export const CALLS_IN_FLIGHT_MAX = 32;

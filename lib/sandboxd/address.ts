import { isIP } from "node:net";

/**
 * Host of an owner_addr, which sandboxd gives as `host:port`, `[v6]:port`, a bare host, or a full http(s)
 * origin where client_advertise is set. IPv6 comes back without brackets. An IP comes back as a Pod's status may
 * hold it: without a zone, and an IPv4 one in IPv6 clothes as IPv4. The API server refuses anything else, and the
 * Pod would stay Pending without a reason.
 * @returns the host, or "" when there is none
 */
export function hostOf(address: string): string {
  const rest = address
    .trim()
    .replace(/^https?:\/\//i, "")
    .replace(/[/?#].*$/, "");
  const bracketed = /^\[([0-9a-fA-F:.]+)(?:%[\w.-]+)?\](?::\d+)?$/.exec(rest);
  if (bracketed) return ipv6Of(bracketed[1] ?? "");
  // More than one colon without brackets can only be a bare IPv6 address.
  if (rest.split(":").length > 2) return ipv6Of(rest.replace(/%[\w.-]+$/, ""));
  const named = /^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(?::\d+)?$/.exec(rest)?.[1] ?? "";
  // What ends in a number can only be an IPv4 address (WHATWG URL, 4.2); a resolver takes 010.0.0.1 for 8.0.0.1.
  return /(?:^|\.)(?:\d+|0[xX][0-9a-fA-F]*)$/.test(named) && isIP(named) !== 4 ? "" : named;
}

/** The address as written in RFC 5952, as IPv4 when it is a mapped one; "" when it is none. */
function ipv6Of(text: string): string {
  if (isIP(text) !== 6) return "";
  // The runtime's URL parser refuses some addresses that end in dotted decimals (1:2:3::4:1.2.3.4), so none is given to it.
  const groups = text.replace(/(\d+)\.(\d+)\.(\d+)\.(\d+)$/, (_, ...bytes: string[]) => {
    const [a = 0, b = 0, c = 0, d = 0] = bytes.slice(0, 4).map(Number);
    return `${((a << 8) | b).toString(16)}:${((c << 8) | d).toString(16)}`;
  });
  const canonical = new URL(`http://[${groups}]`).hostname.slice(1, -1);
  const mapped = /^::ffff:([0-9a-f]+):([0-9a-f]+)$/.exec(canonical);
  if (mapped === null) return canonical;
  const [high, low] = [Number.parseInt(mapped[1] ?? "", 16), Number.parseInt(mapped[2] ?? "", 16)];
  return `${high >> 8}.${high & 255}.${low >> 8}.${low & 255}`;
}

/**
 * An owner_addr as it may be kept and shown: scheme, host and port. Paths and queries are nobody's address, and may
 * carry what is not to be published.
 */
export function originOf(address: string): string {
  return /^(?:https?:\/\/)?[^/?#]*/i.exec(address.trim())?.[0] ?? "";
}

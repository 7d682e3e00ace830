/**
 * Host of an owner_addr, which sandboxd gives as `host:port`, `[v6]:port`, a bare host, or a full http(s)
 * origin where client_advertise is set. IPv6 comes back without brackets.
 * @returns the host, or "" when there is none
 */
export function hostOf(address: string): string {
  const rest = address
    .trim()
    .replace(/^https?:\/\//i, "")
    .replace(/[/?#].*$/, "");
  const bracketed = /^\[([0-9a-fA-F:.]+(?:%[\w.-]+)?)\](?::\d+)?$/.exec(rest);
  if (bracketed) return bracketed[1] ?? "";
  // More than one colon without brackets can only be a bare IPv6 address.
  if (rest.split(":").length > 2) return /^[0-9a-fA-F:.]+$/.test(rest) ? rest : "";
  const named = /^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(?::\d+)?$/.exec(rest);
  return named?.[1] ?? "";
}

/**
 * An owner_addr as it may be kept and shown: scheme, host and port. Paths and queries are nobody's address, and may
 * carry what is not to be published.
 */
export function originOf(address: string): string {
  return /^(?:https?:\/\/)?[^/?#]*/i.exec(address.trim())?.[0] ?? "";
}

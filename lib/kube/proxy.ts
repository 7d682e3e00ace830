/**
 * The proxy for a server as the usual variables choose it, with the meaning Go programs give them
 * (golang.org/x/net/http/httpproxy), since a cluster's NO_PROXY is written for kubelet and kubectl: CIDRs,
 * `.suffix`, `host:port`, `*`, and never a proxy for the loopback. Bun's own choice knows no CIDRs.
 *
 * @param server https://host:port
 * @returns the proxy's URL, or false for none
 */
export function proxyFor(server: string, env: Readonly<Record<string, string | undefined>>): string | false {
  const url = new URL(server);
  const variable = url.protocol === "https:" ? "HTTPS_PROXY" : "HTTP_PROXY";
  const chosen = env[variable] || env[variable.toLowerCase()] || "";
  if (chosen === "") return false;
  const host = url.hostname.replace(/^\[|\]$/g, "").toLowerCase();
  const port = url.port || (url.protocol === "https:" ? "443" : "80");
  if (host === "localhost" || host === "::1" || /^127\./.test(host)) return false;
  for (const entry of (env.NO_PROXY || env.no_proxy || "").split(",")) {
    if (excludes(entry.trim().toLowerCase(), host, port)) return false;
  }
  return chosen.includes("://") ? chosen : `http://${chosen}`;
}

function excludes(entry: string, host: string, port: string): boolean {
  if (entry === "") return false;
  if (entry === "*") return true;
  const slash = entry.indexOf("/");
  if (slash > 0) return inCidr(entry.slice(0, slash), Number(entry.slice(slash + 1)), host);
  let name = entry;
  // host:port, but not a bare IPv6 address
  const colon = /^(\[[^\]]+\]|[^:]+):(\d+)$/.exec(entry);
  if (colon !== null) {
    if (colon[2] !== port) return false;
    name = colon[1] ?? "";
  }
  name = name.replace(/^\[|\]$/g, "");
  if (name.startsWith("*.")) name = name.slice(1);
  if (name.startsWith(".")) return host.endsWith(name);
  return host === name || (addressBytes(host) === undefined && host.endsWith(`.${name}`));
}

function inCidr(network: string, bits: number, host: string): boolean {
  const a = addressBytes(network);
  const b = addressBytes(host);
  if (a === undefined || b === undefined || a.length !== b.length || !(bits >= 0 && bits <= a.length * 8)) {
    return false;
  }
  for (let n = 0; n < bits; n += 1) {
    const mask = 0x80 >> (n % 8);
    if (((a[n >> 3] ?? 0) & mask) !== ((b[n >> 3] ?? 0) & mask)) return false;
  }
  return true;
}

/** The bytes of an IPv4 or IPv6 address, or undefined for a name. */
function addressBytes(address: string): number[] | undefined {
  if (/^\d{1,3}(\.\d{1,3}){3}$/.test(address)) {
    const bytes = address.split(".").map(Number);
    return bytes.every((byte) => byte <= 255) ? bytes : undefined;
  }
  if (!address.includes(":")) return undefined;
  const halves = address.split("::");
  if (halves.length > 2) return undefined;
  const words = (half: string) =>
    half === "" ? [] : half.split(":").map((word) => Number.parseInt(word, 16));
  const head = words(halves[0] ?? "");
  const tail = words(halves[1] ?? "");
  const missing = 8 - head.length - tail.length;
  if (halves.length === 1 ? missing !== 0 : missing < 1) return undefined;
  const all = [...head, ...Array<number>(missing).fill(0), ...tail];
  if (!all.every((word) => word >= 0 && word <= 0xffff)) return undefined;
  return all.flatMap((word) => [word >> 8, word & 0xff]);
}

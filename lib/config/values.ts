/**
 * The forms a flag's value may take, as the tools around us write them: Go durations, Kubernetes quantities,
 * labels and names, listen addresses, origins. Each parser takes the text and returns the value or a reason
 * that ends in what to write instead; none throws, none looks at the machine.
 */

/** A parsed value, or why the text is not one. The reason is half a sentence: `is not …; write …`. */
export type Parsed<T> = { ok: true; value: T } | { ok: false; reason: string };

const good = <T>(value: T): Parsed<T> => ({ ok: true, value });
const bad = (reason: string): { ok: false; reason: string } => ({ ok: false, reason });

const UNIT_MS: Record<string, number> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  μs: 1e-3,
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
};
/** What Go's int64 of nanoseconds can hold. */
const durationMsMax = 9_223_372_036_854;

/**
 * A duration as Go's time.ParseDuration reads it: `1m30s`, `1.5h`, `100ms`, `0`.
 * Returns whole milliseconds, rounded up so that a positive duration never becomes 0. Negative is refused.
 */
export function parseDuration(text: string): Parsed<number> {
  const hint = "write it as in 30s, 1m30s, 1.5h, 100ms or 0";
  if (text.startsWith("-")) return bad(`is negative, and a time span cannot be; ${hint}`);
  const body = text.startsWith("+") ? text.slice(1) : text;
  if (body === "0") return good(0);
  if (/^[0-9]+(\.[0-9]*)?$/.test(body)) return bad(`has no unit; ${hint}`);
  if (!/^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$/.test(body))
    return bad(`is not a duration; ${hint}`);
  let ms = 0;
  for (const [, amount = "0", unit = ""] of body.matchAll(/([0-9.]+)(ns|us|µs|μs|ms|s|m|h)/g))
    ms += Number(amount) * (UNIT_MS[unit] ?? 0);
  if (ms > durationMsMax) return bad(`is longer than Go's durations reach (about 292 years); ${hint}`);
  // 1.1s is 1100.0000000000002 in floating point: round at the nanosecond first.
  return good(Math.ceil(Math.round(ms * 1e6) / 1e6));
}

const SUFFIX: Record<string, number> = {
  n: 1e-9,
  u: 1e-6,
  m: 1e-3,
  "": 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  T: 1e12,
  P: 1e15,
  E: 1e18,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
  Pi: 2 ** 50,
  Ei: 2 ** 60,
};

/** A Kubernetes quantity: the text as written, and its value in the base unit for comparisons. */
export interface Quantity {
  text: string;
  value: number;
}

/** A quantity as Kubernetes' resource.ParseQuantity reads it: `8Ti`, `4000`, `500m`, `1e3`. Negative is refused. */
export function parseQuantity(text: string): Parsed<Quantity> {
  const hint = "write it as Kubernetes does: 8Ti, 4000, 500m, 1e3";
  const match = /^([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]+)|([a-zA-Z]*))$/.exec(text);
  if (match === null) return bad(`is not a quantity; ${hint}`);
  const [, sign, digits = "", exponent = "", suffix = ""] = match;
  const scale = Object.hasOwn(SUFFIX, suffix) ? SUFFIX[suffix] : undefined;
  if (scale === undefined) return bad(`has the unknown suffix "${suffix}"; ${hint}`);
  if (sign === "-") return bad(`is negative, and a capacity cannot be; ${hint}`);
  const value = Number(digits + exponent) * scale;
  // The API server caps what is larger at the largest int64, silently: better to say so.
  if (value >= 2 ** 63) return bad(`is more than Kubernetes can count (8Ei); ${hint}`);
  return good({ text, value });
}

/** A quantity that counts things, such as Pods: a whole number. */
export function parseCount(text: string): Parsed<Quantity> {
  const parsed = parseQuantity(text);
  if (parsed.ok && !Number.isInteger(parsed.value.value))
    return bad("is not a whole number; write 2000 or 2k");
  return parsed;
}

/** A positive decimal number no larger than `max`. */
export function numberUpTo(max: number, whole: boolean): (text: string) => Parsed<number> {
  const what = whole ? "a whole number" : "a number";
  return (text) => {
    const value = Number(text);
    if (text.trim() === "" || !Number.isFinite(value) || (whole && !Number.isInteger(value)))
      return bad(`is not ${what}; write ${what} from 1 to ${max}`);
    if (value <= 0 || value > max) return bad(`is out of range; write ${what} from 1 to ${max}`);
    return good(value);
  };
}

/** A boolean as Go's strconv.ParseBool reads it. */
export function parseBool(text: string): Parsed<boolean> {
  if (["1", "t", "T", "true", "TRUE", "True"].includes(text)) return good(true);
  if (["0", "f", "F", "false", "FALSE", "False"].includes(text)) return good(false);
  return bad("is not a boolean; write true or false");
}

const labelName = /^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/;
const dnsLabel = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;

/** Whether the text is a DNS-1123 subdomain of at most 253 characters (Kubernetes: apimachinery validation). */
export function isSubdomain(text: string): boolean {
  return text.length <= 253 && text !== "" && text.split(".").every((part) => dnsLabel.test(part));
}

/** Why a label key is not one, or undefined when it is (Kubernetes: IsQualifiedName). */
function labelKeyFault(key: string): string | undefined {
  const slash = key.indexOf("/");
  const prefix = slash < 0 ? undefined : key.slice(0, slash);
  if (prefix !== undefined && !isSubdomain(prefix))
    return `the prefix "${prefix}" of the key "${key}" is not a DNS name in lower case`;
  if (!labelName.test(key.slice(slash + 1)))
    return `the key "${key}" is not a label key (up to 63 of A-Z a-z 0-9 - _ . between letters or digits, after an optional prefix/)`;
  return undefined;
}

/** Labels as `key=value,key2=value2`, held to Kubernetes' rules. Empty text means no labels. */
export function parseLabels(text: string): Parsed<Record<string, string>> {
  const hint = "write key=value,key2=value2";
  const labels: Record<string, string> = {};
  if (text.trim() === "") return good(labels);
  for (const pair of text.split(",")) {
    const equals = pair.indexOf("=");
    if (equals < 0) return bad(`has "${pair.trim()}", which is not key=value; ${hint}`);
    const key = pair.slice(0, equals).trim();
    const value = pair.slice(equals + 1).trim();
    const fault = labelKeyFault(key);
    if (fault !== undefined) return bad(`does not hold labels: ${fault}; ${hint}`);
    if (value !== "" && !labelName.test(value))
      return bad(
        `does not hold labels: the value "${value}" of "${key}" is not a label value (up to 63 of A-Z a-z 0-9 - _ . between letters or digits); ${hint}`,
      );
    if (Object.hasOwn(labels, key)) return bad(`names the label "${key}" twice; ${hint}`);
    labels[key] = value;
  }
  return good(labels);
}

/** A Node's name: a DNS-1123 subdomain that is also a label value, since kubernetes.io/hostname carries it. */
export function parseNodeName(text: string): Parsed<string> {
  if (text === "") return bad("is empty; give the Node a name, such as vk-sandboxd-node1");
  if (text.length > 63)
    return bad(
      "is longer than 63 characters, and the label kubernetes.io/hostname must hold it; choose a shorter name",
    );
  if (!isSubdomain(text))
    return bad(
      "is not a DNS-1123 subdomain (a-z, 0-9, - and ., beginning and ending with a letter or digit); write it as in vk-sandboxd-node1",
    );
  return good(text);
}

/** Whether the text is an IPv4 address of four decimal bytes. */
function isIPv4(text: string): boolean {
  const parts = text.split(".");
  return (
    parts.length === 4 && parts.every((part) => /^(0|[1-9][0-9]{0,2})$/.test(part) && Number(part) <= 255)
  );
}

/** Whether the text is an IPv6 address without brackets or zone. */
function isIPv6(text: string): boolean {
  if (!/^[0-9a-fA-F:.]+$/.test(text) || !text.includes(":")) return false;
  // The URL parser knows every form RFC 4291 allows.
  return URL.canParse(`http://[${text}]/`);
}

/** 4 or 6 for an IP address, 0 for anything else. By hand, because node:net costs the daemon memory. */
export function ipVersion(text: string): 0 | 4 | 6 {
  return isIPv4(text) ? 4 : isIPv6(text) ? 6 : 0;
}

/** An IP address, v4 or v6. Unspecified addresses (0.0.0.0, ::) are refused: nobody can be reached there. */
export function parseIP(text: string): Parsed<string> {
  if (ipVersion(text) === 0) return bad("is not an IP address; write it as in 10.0.0.5 or fd00::5");
  if (text === "0.0.0.0" || /^[0:]+$/.test(text))
    return bad("is the unspecified address, at which nobody can be reached; write the host's own address");
  return good(text);
}

/** A host and a port. The host of `:10260` is empty: all addresses. IPv6 hosts are held without brackets. */
export interface HostPort {
  host: string;
  port: number;
}

function parseHostPort(text: string, hint: string): Parsed<HostPort> {
  const match = /^(?:\[([^\]]*)\]|([^:[\]]*)):([^:]*)$/.exec(text);
  if (match === null) return bad(`is not host:port; ${hint}`);
  const [, six, plain = "", portText = ""] = match;
  if (!/^[0-9]{1,5}$/.test(portText) || Number(portText) > 65_535)
    return bad(`has the port "${portText}", which is not a number from 0 to 65535; ${hint}`);
  const host = six ?? plain;
  if (six !== undefined ? ipVersion(six) !== 6 : plain !== "" && !isHost(plain))
    return bad(`has the host "${host}", which is neither an IP address nor a host name; ${hint}`);
  return good({ host, port: Number(portText) });
}

function isHost(text: string): boolean {
  // What looks like an IPv4 address must be one: 10.0.0.300 is a typing mistake, not a host name.
  return /^[0-9.]+$/.test(text) ? ipVersion(text) === 4 : isSubdomain(text.toLowerCase());
}

/** An address to listen on: `:10260`, `127.0.0.1:10260`, `[::1]:10260`. Port 0 lets the kernel choose. */
export function parseListen(text: string): Parsed<HostPort> {
  return parseHostPort(text, "write :10260, 127.0.0.1:10260 or [::1]:10260");
}

/** An address at which others reach us: host and port, both given. Returned as written. */
export function parseAdvertise(text: string): Parsed<string> {
  const hint = "write it as in 10.0.0.5:7777 or [fd00::5]:7777";
  const parsed = parseHostPort(text, hint);
  if (!parsed.ok) return parsed;
  if (parsed.value.host === "" || parsed.value.port === 0)
    return bad(`lacks the ${parsed.value.host === "" ? "host" : "port"}; ${hint}`);
  return good(text);
}

/** An http(s) URL with nothing but origin and path. Returned without a trailing slash. */
export function parseOrigin(text: string): Parsed<string> {
  const hint = "write it as in http://127.0.0.1:7777";
  if (!/^https?:\/\//i.test(text)) return bad(`does not begin with http:// or https://; ${hint}`);
  if (!URL.canParse(text)) return bad(`is not a URL; ${hint}`);
  const url = new URL(text);
  if (url.username !== "" || url.password !== "")
    return bad(
      `carries credentials, which do not belong on a command line; use --sandboxd-token-file, and ${hint}`,
    );
  if (url.search !== "" || url.hash !== "") return bad(`has a query or fragment; ${hint}`);
  return good((url.origin + url.pathname).replace(/\/+$/, ""));
}

/** A file path; only empty ones and ones with a NUL are refused here. */
export function parsePath(text: string): Parsed<string> {
  if (text === "") return bad("is empty; give a file path");
  return text.includes("\0") ? bad("contains a NUL byte; give a file path") : good(text);
}

/** Any text, for names that only another system can judge. */
export function parseText(text: string): Parsed<string> {
  return good(text);
}

/** One of the given words. */
export function oneOf<const W extends string>(...words: W[]): (text: string) => Parsed<W> {
  return (text) => {
    const word = words.find((candidate) => candidate === text);
    return word === undefined ? bad(`is not one of ${words.join(", ")}; write one of them`) : good(word);
  };
}

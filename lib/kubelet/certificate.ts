/**
 * A self-signed serving certificate, X.509 v3 in DER by hand. The libraries that do this cost 22 to 23 MB of
 * RSS for one certificate per start, WebCrypto and this page 5 MB (docs/decisions/x509.md).
 */
import { ipVersion } from "../config/index.ts";

export interface Pem {
  /** Certificate chain, PEM. */
  cert: string;
  /** Private key, PKCS #8 in PEM. */
  key: string;
}

const validityMs = 10 * 365 * 86_400_000;
/** A client whose clock is a little behind ours must not find a certificate of the future. */
const backdateMs = 3_600_000;

/** DER: tag, length, contents. */
function der(tag: number, ...contents: Uint8Array[]): Uint8Array {
  const body = Buffer.concat(contents);
  if (body.length < 128) return Buffer.concat([Uint8Array.of(tag, body.length), body]);
  const length: number[] = [];
  for (let rest = body.length; rest > 0; rest >>>= 8) length.unshift(rest & 255);
  return Buffer.concat([Uint8Array.of(tag, 128 | length.length, ...length), body]);
}

const sequence = (...items: Uint8Array[]) => der(0x30, ...items);
const octets = (...items: Uint8Array[]) => der(0x04, ...items);
const bits = (unused: number, content: Uint8Array) => der(0x03, Uint8Array.of(unused), content);
const oid = (...bytes: number[]) => der(0x06, Uint8Array.from(bytes));
const utf8 = (text: string) => der(0x0c, Buffer.from(text));
const explicit = (n: number, ...items: Uint8Array[]) => der(0xa0 | n, ...items);

/** A positive INTEGER: no leading zeros but the one that keeps the sign bit clear. */
function integer(bytes: Uint8Array): Uint8Array {
  let start = 0;
  while (start < bytes.length - 1 && bytes[start] === 0) start++;
  const rest = bytes.subarray(start);
  return (rest[0] ?? 0) & 128 ? der(0x02, Uint8Array.of(0), rest) : der(0x02, rest);
}

/** RFC 5280 4.1.2.5: UTCTime up to 2049, GeneralizedTime after it. */
function time(ms: number): Uint8Array {
  const date = new Date(ms);
  const digits = `${date.toISOString().replace(/[-:T]/g, "").slice(0, 14)}Z`;
  return date.getUTCFullYear() < 2050
    ? der(0x17, Buffer.from(digits.slice(2)))
    : der(0x18, Buffer.from(digits));
}

/** IPv4 as 4 bytes, IPv6 as 16. */
function ipBytes(ip: string): Uint8Array {
  if (ipVersion(ip) === 4) return Uint8Array.from(ip.split("."), Number);
  // The URL parser writes every IPv6 address as hexadecimal groups with at most one "::".
  const text = new URL(`http://[${ip}]/`).hostname.slice(1, -1);
  const [head = "", tail] = text.split("::");
  const groups = (part: string) => (part === "" ? [] : part.split(":"));
  const left = groups(head);
  const right = tail === undefined ? [] : groups(tail);
  const all =
    tail === undefined ? left : [...left, ...Array(8 - left.length - right.length).fill("0"), ...right];
  return Uint8Array.from(
    all.flatMap((group) => [Number.parseInt(group, 16) >> 8, Number.parseInt(group, 16) & 255]),
  );
}

const ecdsaWithSha256 = oid(0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02);
const commonName = oid(0x55, 0x04, 0x03);
const organization = oid(0x55, 0x04, 0x0a);
const basicConstraints = oid(0x55, 0x1d, 0x13);
const keyUsage = oid(0x55, 0x1d, 0x0f);
const extKeyUsage = oid(0x55, 0x1d, 0x25);
const serverAuth = oid(0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01);
const clientAuth = oid(0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02);
const subjectAltName = oid(0x55, 0x1d, 0x11);
const critical = der(0x01, Uint8Array.of(0xff));

const extension = (id: Uint8Array, value: Uint8Array, isCritical = false) =>
  isCritical ? sequence(id, critical, octets(value)) : sequence(id, octets(value));

/** WebCrypto signs as r and s side by side; X.509 wants them as a SEQUENCE of INTEGERs. */
function ecdsaSignature(raw: Uint8Array): Uint8Array {
  return sequence(integer(raw.subarray(0, 32)), integer(raw.subarray(32)));
}

function pem(label: string, bytes: Uint8Array): string {
  const lines =
    Buffer.from(bytes)
      .toString("base64")
      .match(/.{1,64}/g) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join("\n")}\n-----END ${label}-----\n`;
}

/** What a certificate says. */
export interface CertificateRequest {
  commonName: string;
  organizations: string[];
  /** DNS names and IP addresses of a server. */
  names: string[];
  usage: "server" | "client" | "ca";
  fromMs: number;
  untilMs: number;
}

/** Who signs: a certificate's own key and name. */
export interface Signer {
  subject: Uint8Array;
  privateKey: CryptoKey;
}

function extensionsOf({ usage, names }: CertificateRequest): Uint8Array[] {
  if (usage === "ca")
    return [
      extension(basicConstraints, sequence(der(0x01, Uint8Array.of(0xff))), true),
      // keyCertSign and cRLSign.
      extension(keyUsage, bits(1, Uint8Array.of(0x06)), true),
    ];
  const alternatives = names.map((name) =>
    ipVersion(name) === 0 ? der(0x82, Buffer.from(name)) : der(0x87, ipBytes(name)),
  );
  return [
    extension(basicConstraints, sequence(), true),
    // digitalSignature alone.
    extension(keyUsage, bits(7, Uint8Array.of(0x80)), true),
    extension(extKeyUsage, sequence(usage === "server" ? serverAuth : clientAuth)),
    ...(alternatives.length === 0 ? [] : [extension(subjectAltName, sequence(...alternatives))]),
  ];
}

/** Makes a P-256 key and a certificate for it, signed by `by` or by itself. */
export async function issue(request: CertificateRequest, by?: Signer): Promise<Pem & Signer> {
  const algorithm = { name: "ECDSA", namedCurve: "P-256" };
  const { publicKey, privateKey } = await crypto.subtle.generateKey(algorithm, true, ["sign", "verify"]);
  const spki = new Uint8Array(await crypto.subtle.exportKey("spki", publicKey));
  const pkcs8 = new Uint8Array(await crypto.subtle.exportKey("pkcs8", privateKey));
  const set = (id: Uint8Array, text: string) => der(0x31, sequence(id, utf8(text)));
  const subject = sequence(
    ...request.organizations.map((name) => set(organization, name)),
    // A common name has a bound of 64 characters (X.520); the alternative names are what counts anyway.
    set(commonName, request.commonName.slice(0, 64)),
  );
  const certificate = sequence(
    explicit(0, integer(Uint8Array.of(2))),
    integer(crypto.getRandomValues(new Uint8Array(16))),
    sequence(ecdsaWithSha256),
    by?.subject ?? subject,
    sequence(time(request.fromMs), time(request.untilMs)),
    subject,
    spki,
    explicit(3, sequence(...extensionsOf(request))),
  );
  const signing = { name: "ECDSA", hash: "SHA-256" };
  const signature = await crypto.subtle.sign(signing, by?.privateKey ?? privateKey, Buffer.from(certificate));
  const signed = sequence(
    certificate,
    sequence(ecdsaWithSha256),
    bits(0, ecdsaSignature(new Uint8Array(signature))),
  );
  return { cert: pem("CERTIFICATE", signed), key: pem("PRIVATE KEY", pkcs8), subject, privateKey };
}

/**
 * A serving certificate that nobody but itself vouches for, valid for ten years: it lives as long as the
 * process.
 *
 * @param names DNS names and IP addresses it is for; the first is also its common name
 * @param nowMs milliseconds since the epoch
 */
export async function selfSigned(names: readonly string[], nowMs: number): Promise<Pem> {
  const { cert, key } = await issue({
    commonName: names[0] ?? "vk-sandbox",
    organizations: ["vk-sandbox"],
    names: [...names],
    usage: "server",
    fromMs: nowMs - backdateMs,
    untilMs: nowMs + validityMs,
  });
  return { cert, key };
}

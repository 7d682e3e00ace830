/**
 * HTTP/1.1 as far as a kubelet's callers speak it: request heads in, whole responses out. By hand, because a
 * server that shows who presented which client certificate costs 8 to 13 MB more in this runtime
 * (docs/decisions/kubelet-server.md); no request body is ever read, which leaves a page of grammar (RFC 9112).
 */

export interface RequestHead {
  method: string;
  /** Path without query, as sent. */
  path: string;
  /** Lower-case names; a repeated header's values joined by a comma. */
  headers: Map<string, string>;
  /** The caller wants the connection kept. */
  keepAlive: boolean;
  /** A body follows, which is not read: the connection ends with the answer. */
  hasBody: boolean;
}

export interface Response {
  status: number;
  contentType?: string;
  body: string | Uint8Array;
  headers?: Record<string, string>;
}

/** `need`: the head is not complete yet. `bytes`: how much of the input the head took. */
export type ParsedHead =
  | { kind: "need" }
  | { kind: "bad"; status: 400 | 431 | 505; why: string }
  | { kind: "head"; head: RequestHead; bytes: number };

export const headBytesMax = 16 * 1024;
export const headersMax = 100;
const tokenPattern = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
// Visible ASCII, blanks, and bytes above ASCII; control characters are how requests are smuggled.
const valuePattern = /^[\t\x20-\x7e\x80-\xff]*$/;
const targetPattern = /^\/[\x21-\x7e]*$/;

const bad = (status: 400 | 431 | 505, why: string): ParsedHead => ({ kind: "bad", status, why });

/** Reads one request head from the start of `input`. Never throws; what is ambiguous is refused. */
export function parseHead(input: Buffer): ParsedHead {
  const end = input.indexOf("\r\n\r\n");
  if (end < 0) {
    if (input.length > headBytesMax) return bad(431, "the request's head is too large");
    return { kind: "need" };
  }
  if (end > headBytesMax) return bad(431, "the request's head is too large");
  const lines = input.toString("latin1", 0, end).split("\r\n");
  const [method = "", target = "", protocol = "", ...more] = (lines[0] ?? "").split(" ");
  if (more.length > 0 || !tokenPattern.test(method)) return bad(400, "the request line is malformed");
  if (!/^HTTP\/[0-9]\.[0-9]$/.test(protocol)) return bad(400, "the request line is malformed");
  if (protocol !== "HTTP/1.1" && protocol !== "HTTP/1.0") return bad(505, "only HTTP/1.1 is spoken here");
  if (!targetPattern.test(target)) return bad(400, "the request target is not a path");
  if (lines.length - 1 > headersMax) return bad(431, "the request has too many headers");
  const headers = new Map<string, string>();
  for (let i = 1; i < lines.length; i++) {
    const line = lines[i] ?? "";
    const colon = line.indexOf(":");
    const name = line.slice(0, colon).toLowerCase();
    const value = line.slice(colon + 1).replace(/^[ \t]+|[ \t]+$/g, "");
    if (colon < 1 || !tokenPattern.test(name) || !valuePattern.test(value))
      return bad(400, "a header is malformed");
    const before = headers.get(name);
    // Two lengths or two credentials: which one counts is a matter of opinion, and opinions are exploited.
    if (before !== undefined && (name === "content-length" || name === "authorization" || name === "host"))
      return bad(400, `the header ${name} is there twice`);
    headers.set(name, before === undefined ? value : `${before}, ${value}`);
  }
  const length = headers.get("content-length");
  if (length !== undefined && !/^[0-9]{1,15}$/.test(length))
    return bad(400, "content-length is not a number");
  if (protocol === "HTTP/1.1" && !headers.has("host")) return bad(400, "the header host is missing");
  const hasBody = headers.has("transfer-encoding") || (length !== undefined && Number(length) > 0);
  const connection = (headers.get("connection") ?? "").toLowerCase().split(/[ \t]*,[ \t]*/);
  const keepAlive =
    protocol === "HTTP/1.1" && !hasBody && !connection.includes("close") && !connection.includes("upgrade");
  const path = target.split("?", 1)[0] ?? target;
  return { kind: "head", head: { method, path, headers, keepAlive, hasBody }, bytes: end + 4 };
}

const reasons: Record<number, string> = {
  200: "OK",
  400: "Bad Request",
  401: "Unauthorized",
  403: "Forbidden",
  404: "Not Found",
  405: "Method Not Allowed",
  429: "Too Many Requests",
  431: "Request Header Fields Too Large",
  500: "Internal Server Error",
  501: "Not Implemented",
  503: "Service Unavailable",
  505: "HTTP Version Not Supported",
};

/** The response as bytes. A HEAD request's gets no body, but its length. */
export function formatResponse(response: Response, keepAlive: boolean, headOnly: boolean): Uint8Array {
  const body = typeof response.body === "string" ? Buffer.from(response.body) : response.body;
  let head = `HTTP/1.1 ${response.status} ${reasons[response.status] ?? ""}\r\n`;
  head += `Content-Type: ${response.contentType ?? "text/plain; charset=utf-8"}\r\nContent-Length: ${body.byteLength}\r\n`;
  head += "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n";
  for (const [name, value] of Object.entries(response.headers ?? {})) head += `${name}: ${value}\r\n`;
  head += keepAlive ? "\r\n" : "Connection: close\r\n\r\n";
  return headOnly ? Buffer.from(head) : Buffer.concat([Buffer.from(head), body]);
}

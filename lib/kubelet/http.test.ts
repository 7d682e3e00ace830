import { describe, expect, test } from "bun:test";
import { formatResponse, headBytesMax, headersMax, parseHead } from "./http.ts";

const parse = (text: string) => parseHead(Buffer.from(text, "latin1"));
const head = (text: string) => {
  const parsed = parse(text);
  if (parsed.kind !== "head") throw new Error(JSON.stringify(parsed));
  return parsed;
};

test("a request is method, path without query, and headers in lower case", () => {
  const parsed = head(
    "GET /pods?x=1 HTTP/1.1\r\nHost: a\r\nAUTHORIZATION:  Bearer t \r\nX: 1\r\nx: 2\r\n\r\nrest",
  );
  expect(parsed.head).toMatchObject({ method: "GET", path: "/pods", keepAlive: true, hasBody: false });
  expect(parsed.head.headers.get("authorization")).toBe("Bearer t");
  expect(parsed.head.headers.get("x")).toBe("1, 2");
  expect(parsed.bytes).toBe(
    "GET /pods?x=1 HTTP/1.1\r\nHost: a\r\nAUTHORIZATION:  Bearer t \r\nX: 1\r\nx: 2\r\n\r\n".length,
  );
});

test("a head that is not all there yet is waited for", () => {
  const whole = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  for (let cut = 0; cut < whole.length; cut++) expect(parse(whole.slice(0, cut)).kind).toBe("need");
});

test("what ends a connection", () => {
  const keep = (lines: string) => head(`GET / HTTP/1.1\r\nHost: a\r\n${lines}\r\n`).head;
  expect(keep("Connection: close\r\n").keepAlive).toBe(false);
  expect(keep("Connection: keep-alive, Upgrade\r\n").keepAlive).toBe(false);
  expect(keep("Content-Length: 5\r\n")).toMatchObject({ keepAlive: false, hasBody: true });
  expect(keep("Transfer-Encoding: chunked\r\n")).toMatchObject({ keepAlive: false, hasBody: true });
  expect(keep("Content-Length: 0\r\n")).toMatchObject({ keepAlive: true, hasBody: false });
  expect(head("GET / HTTP/1.0\r\n\r\n").head.keepAlive).toBe(false);
});

describe("what is malformed or ambiguous is refused", () => {
  const cases: [string, string, number][] = [
    ["no request line", "\r\n\r\n", 400],
    ["a line of two words", "GET /\r\n\r\n", 400],
    ["a line of four words", "GET / HTTP/1.1 x\r\n\r\n", 400],
    ["a method that is no token", "G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400],
    ["a target that is no path", "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400],
    ["another protocol", "GET / HTTP/2.0\r\n\r\n", 505],
    ["no protocol", "GET / SSH-2.0\r\n\r\n", 400],
    ["no host", "GET / HTTP/1.1\r\n\r\n", 400],
    ["a header without a colon", "GET / HTTP/1.1\r\nHost\r\n\r\n", 400],
    ["a blank before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400],
    ["a folded header", "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400],
    ["a bare line feed", "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400],
    ["a bare carriage return", "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400],
    ["a NUL", "GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", 400],
    ["a length that is no number", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", 400],
    ["two lengths", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 400],
    ["two credentials", "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", 400],
    ["too many headers", `GET / HTTP/1.1\r\n${"X: y\r\n".repeat(headersMax + 1)}\r\n`, 431],
    ["too large a head", `GET / HTTP/1.1\r\nX: ${"y".repeat(headBytesMax)}\r\n\r\n`, 431],
    ["too large a head that never ends", "x".repeat(headBytesMax + 1), 431],
  ];
  for (const [name, text, status] of cases)
    test(name, () => expect(parse(text)).toMatchObject({ kind: "bad", status }));
});

test("arbitrary bytes end in a verdict, never in an exception", () => {
  let state = 7;
  const random = (n: number) => {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    return Math.floor((state / 2 ** 31) * n);
  };
  const pieces = [
    "GET ",
    "/pods",
    " HTTP/1.1",
    "\r\n",
    "\r\n\r\n",
    ":",
    "Host: a",
    "\0",
    "\xff",
    "Content-Length: ",
    "9",
    " ",
    "\t",
  ];
  for (let round = 0; round < 20_000; round++) {
    const text = Array.from({ length: random(12) }, () => pieces[random(pieces.length)]).join("");
    const parsed = parse(text);
    if (parsed.kind === "head") expect(parsed.bytes).toBeLessThanOrEqual(text.length);
  }
});

test("a response is whole, and HEAD gets its length without its body", () => {
  const text = Buffer.from(
    formatResponse({ status: 200, body: "ä", headers: { X: "y" } }, true, false),
  ).toString();
  expect(text).toStartWith("HTTP/1.1 200 OK\r\n");
  expect(text).toContain("Content-Length: 2\r\n");
  expect(text).toContain("X: y\r\n");
  expect(text).not.toContain("Connection: close");
  expect(text).toEndWith("\r\n\r\nä");
  const none = Buffer.from(formatResponse({ status: 404, body: "abc" }, false, true)).toString();
  expect(none).toContain("Content-Length: 3\r\n");
  expect(none).toEndWith("Connection: close\r\n\r\n");
});

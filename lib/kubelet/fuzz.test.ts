import { afterAll, beforeAll, expect } from "bun:test";
import * as fc from "fast-check";
import { damaged, fuzz } from "../fuzzing.ts";
import { systemClock } from "../kube/index.ts";
import { certificateUser } from "./auth.ts";
import { formatResponse, headBytesMax, parseHead } from "./http.ts";
import { createKubelet, type KubeletApi } from "./index.ts";

const token = fc.stringMatching(/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}$/);
const value = fc.stringMatching(/^[!-~]([ -~]{0,20}[!-~])?$/);
const target = fc.oneof(
  fc.constantFrom("/healthz", "/metrics", "/pods", "/exec/a/b/c", "/", "/pods/?x=1"),
  fc.stringMatching(/^\/[!-~]{0,20}$/),
);
/** Names that RFC 9112 cares for, spelled as attackers do. */
const length = fc.constantFrom(
  "Content-Length: 0",
  "Content-Length: 5",
  "content-length: 5, 5",
  "Content-Length: +5",
  "Content-Length: 0x5",
  "Content-Length : 5",
  "Content-Length:\t5",
  "Content-Length: 99999999999999999999",
);
const coding = fc.constantFrom(
  "Transfer-Encoding: chunked",
  "transfer-encoding: CHUNKED",
  "Transfer-Encoding : chunked",
  "Transfer-Encoding:chunked, identity",
  "Transfer-Encoding: x",
  "Transfer-Encoding:\x0bchunked",
  "X: y\r\n Transfer-Encoding: chunked",
  "X: y\nTransfer-Encoding: chunked",
  "X: y\rTransfer-Encoding: chunked",
);
const header = fc.oneof(
  fc.tuple(token, value).map(([name, text]) => `${name}: ${text}`),
  length,
  coding,
  fc.constantFrom(
    "Host: a",
    "Host: b",
    "Connection: close",
    "Connection: keep-alive, Upgrade",
    "Authorization: Bearer x",
  ),
);
const method = fc.constantFrom("GET", "POST", "HEAD", "DELETE", "get", "PRI", "CONNECT");
const protocol = fc.constantFrom("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1");
const request = fc
  .tuple(
    method,
    target,
    protocol,
    fc.array(header, { maxLength: 6 }),
    fc.constantFrom("", "hello", "0\r\n\r\n", "GET /pods HTTP/1.1\r\nHost: b\r\n\r\n"),
  )
  .map(
    ([verb, path, version, headers, body]) =>
      `${verb} ${path} ${version}\r\n${["Host: a", ...headers].join("\r\n")}\r\n\r\n${body}`,
  );
const bytes = fc.oneof(request, damaged(request), fc.string({ unit: "binary-ascii", maxLength: 400 }));

fuzz("any bytes are a head, a refusal, or not enough yet", bytes, (characters) => {
  const input = Buffer.from(characters, "latin1");
  // Characters above a byte have lost what is above it.
  const text = input.toString("latin1");
  const parsed = parseHead(input);
  if (parsed.kind === "need") return expect(text).not.toContain("\r\n\r\n");
  if (parsed.kind === "bad") return expect([400, 431, 505]).toContain(parsed.status);
  const { head } = parsed;
  expect(parsed.bytes).toBe(text.indexOf("\r\n\r\n") + 4);
  expect(head.path).toMatch(/^\/[\x21-\x7e]*$/);
  for (const [name, content] of head.headers) {
    expect(name).toMatch(/^[!#$%&'*+.^_`|~0-9a-z-]+$/);
    expect(content).toMatch(/^[\t\x20-\x7e\x80-\xff]*$/);
  }
  // What follows changes nothing about it.
  expect(parseHead(Buffer.concat([input, Buffer.from("x\r\n\r\n")]))).toEqual(parsed);
});

fuzz(
  "no request with a body, however that is spelled, is followed by another on its connection",
  fc.tuple(request, fc.oneof(length, coding)),
  ([text, framing]) => {
    const input = Buffer.from(text.replace("\r\n", `\r\n${framing}\r\n`), "latin1");
    const parsed = parseHead(input);
    if (parsed.kind !== "head" || framing === "Content-Length: 0") return;
    expect([framing, parsed.head.hasBody, parsed.head.keepAlive]).toEqual([framing, true, false]);
  },
);

const headerName = token.filter(
  (name) =>
    !["host", "content-length", "transfer-encoding", "connection", "authorization"].includes(
      name.toLowerCase(),
    ),
);
fuzz(
  "a proper request comes through as it was sent",
  fc.tuple(
    fc.constantFrom("GET", "HEAD"),
    target,
    fc.dictionary(headerName, value, { maxKeys: 5, noNullPrototype: true }),
  ),
  ([verb, path, headers]) => {
    const lines = Object.entries(headers).map(([name, text]) => `${name}: ${text}\r\n`);
    const parsed = parseHead(Buffer.from(`${verb} ${path} HTTP/1.1\r\nHost: a\r\n${lines.join("")}\r\n`));
    if (parsed.kind !== "head") throw new Error(parsed.kind);
    expect([parsed.head.method, parsed.head.path, parsed.head.keepAlive]).toEqual([
      verb,
      path.split("?")[0] ?? "",
      true,
    ]);
    const names = new Set(Object.keys(headers).map((name) => name.toLowerCase()));
    expect(parsed.head.headers.size).toBe(names.size + 1);
  },
);

fuzz("the end of a head that never ends comes", fc.nat({ max: 2 * headBytesMax }), (size) => {
  expect(parseHead(Buffer.alloc(size, "x")).kind).toBe(size > headBytesMax ? "bad" : "need");
});

fuzz(
  "any body is framed by its length",
  fc.tuple(fc.string({ unit: "binary" }), fc.boolean(), fc.boolean()),
  ([body, keepAlive, headOnly]) => {
    const answer = Buffer.from(formatResponse({ status: 200, body }, keepAlive, headOnly)).toString("latin1");
    const [head = "", ...rest] = answer.split("\r\n\r\n");
    const stated = Number(/Content-Length: (\d+)/.exec(head)?.[1]);
    expect(stated).toBe(Buffer.byteLength(body));
    expect(rest.join("\r\n\r\n").length).toBe(headOnly ? 0 : stated);
  },
);

fuzz(
  "a certificate's subject of any text is a user with groups or nobody",
  fc.oneof(fc.string({ unit: "binary" }), damaged(fc.constant("O=system:nodes\nCN=system:node:a"))),
  (subject) => {
    const user = certificateUser(subject);
    if (user === undefined) return;
    expect(user.username).not.toMatch(/^$|\n/);
    expect(user.groups).toContain("system:authenticated");
  },
);

// ---- on the wire ----------------------------------------------------------------------------------

let kubelet: KubeletApi;
let port = 0;
beforeAll(async () => {
  kubelet = createKubelet({
    listen: { host: "127.0.0.1", port: 0 },
    nodeName: "n",
    kube: { request: async () => ({ ok: false, kind: "network", message: "none" }) },
    content: {
      pods: () => ({}),
      runningPods: () => ({}),
      stats: () => ({}),
      metrics: () => "",
      resourceMetrics: () => "",
    },
    clock: systemClock,
  });
  const listening = await kubelet.start();
  if (!listening.ok) throw new Error(listening.message);
  port = listening.port;
});
afterAll(() => kubelet.stop());

/** Sends the pieces and returns all that came back until the server ended it, or `enough` of it came. */
async function converse(
  pieces: Uint8Array[],
  tls: boolean,
  enough: (received: string) => boolean,
): Promise<string> {
  let received = "";
  const over = Promise.withResolvers<void>();
  const ready = Promise.withResolvers<void>();
  const socket = await Bun.connect({
    hostname: "127.0.0.1",
    port,
    ...(tls ? { tls: { rejectUnauthorized: false } } : {}),
    socket: {
      open: () => void (tls || ready.resolve()),
      handshake: () => ready.resolve(),
      data(_socket, data) {
        received += data.toString("latin1");
        if (enough(received)) over.resolve();
      },
      close: () => over.resolve(),
      error: () => over.resolve(),
    },
  });
  await Promise.race([ready.promise, over.promise]);
  for (const piece of pieces) socket.write(piece);
  // A request that is whole, and says that it is the last: what is left unfinished before it is refused by it.
  socket.write(Buffer.from("GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
  await over.promise;
  socket.terminate();
  return received;
}

/** The status of each answer in what came back; the framing must be right to the last byte. */
function answersIn(received: string): number[] {
  const statuses: number[] = [];
  let rest = received;
  while (rest !== "") {
    const head = /^HTTP\/1\.1 (\d{3}) [A-Za-z ]*\r\n((?:[!-9;-~]+: [^\r\n]*\r\n)+)\r\n/.exec(rest);
    if (head === null) throw new Error(`not an answer: ${JSON.stringify(rest.slice(0, 200))}`);
    statuses.push(Number(head[1]));
    const bodyLength = Number(/Content-Length: (\d+)/.exec(head[2] ?? "")?.[1]);
    rest = rest.slice(head[0].length);
    // HEAD has no body; another answer, or nothing, follows at once.
    rest = rest.startsWith("HTTP/1.1 ") || rest === "" ? rest : rest.slice(bodyLength);
  }
  return statuses;
}

fuzz(
  "a TLS connection that says anything gets answers that are framed and ends, and none of them is a 200 for what is guarded",
  fc.array(bytes, { minLength: 1, maxLength: 4 }),
  async (texts) => {
    const pieces = texts.map((text) => Buffer.from(text, "latin1"));
    const received = await converse(pieces, true, () => false);
    for (const status of answersIn(received))
      expect([200, 400, 401, 404, 405, 429, 431, 501, 503, 505]).toContain(status);
    expect(received).not.toContain("PodList");
    expect(kubelet.connections).toBeLessThanOrEqual(1);
  },
);

fuzz(
  "bytes that are no TLS are let go, and the next caller is served",
  fc.oneof(
    fc.uint8Array({ maxLength: 600 }),
    fc.uint8Array({ maxLength: 600 }).map((garbage) => Uint8Array.from([0x16, 3, 1, 2, 0, ...garbage])),
  ),
  async (garbage) => {
    const socket = await Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: { data() {}, error() {} },
    });
    socket.write(garbage);
    socket.end();
    const response = await fetch(`https://127.0.0.1:${port}/healthz`, { tls: { rejectUnauthorized: false } });
    expect(await response.text()).toBe("ok");
  },
);

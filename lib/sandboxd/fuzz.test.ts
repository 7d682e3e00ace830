import { expect } from "bun:test";
import { isIP } from "node:net";
import * as fc from "fast-check";
import { anyJson, damaged, fuzz, jsonTexts, SECRET, withoutSecret } from "../fuzzing.ts";
import { scrub } from "../scrub.ts";
import { hostOf, originOf } from "./address.ts";
import { judgeClaim } from "./claim.ts";
import { isId, isToken } from "./limits.ts";
import { shapeInfo, shapeListing, shapeRenewal, shapeRow, shapeStats } from "./replies.ts";
import { parseTime } from "./time.ts";
import { clean, createTransport, errorText, type Fetch, parseBody } from "./transport.ts";

const id = fc.stringMatching(/^sb_[a-z0-9]{4,16}$/);
const token = fc.oneof(fc.constant(SECRET), fc.stringMatching(/^[!-~]{8,64}$/));
const millis = fc.integer({ min: 1, max: Date.UTC(2100, 0) });
const time = fc.oneof(
  millis.map((ms) => new Date(ms).toISOString()),
  fc.constantFrom(null, "", "0001-01-01T00:00:00Z"),
);
const host = fc.oneof(
  fc.ipV4(),
  fc.ipV6().map((ip) => `[${ip}]`),
  fc.domain(),
);
const address = fc
  .tuple(fc.constantFrom("", "http://", "https://"), host, fc.integer({ min: 1, max: 65_535 }))
  .map(([scheme, name, port]) => `${scheme}${name}:${port}`);
const grant = fc.record({ id, token, deadline: time, owner_addr: address });
const key = fc.record({
  template: fc.string(),
  net: fc.constantFrom("", "none"),
  size: fc.constantFrom("", "small"),
});
const row = fc.record({
  id,
  key,
  deadline: time,
  claimed_at: time,
  hibernated: fc.boolean(),
  claim_ref: fc.string(),
});
const listing = fc.record({ sandboxes: fc.oneof(fc.constant(null), fc.array(row, { maxLength: 5 })) });
const oneRow = fc
  .tuple(row, token, address)
  .map(([one, secret, addr]) => ({ ...one, token: secret, owner_addr: addr }));
const count = fc.nat();
const info = fc.record({
  pools: fc.array(fc.record({ key, warm: count, target: count }), { maxLength: 3 }),
  claimed: count,
  draining: fc.boolean(),
  at_capacity: fc.boolean(),
  at_capacity_reason: fc.string(),
});
const stats = fc.record({
  id,
  cpu_count: count,
  mem_total_bytes: count,
  mem_used_bytes: count,
  measured_at: time,
});
const refusal = fc.record({
  error: fc.oneof(fc.string(), fc.constant(`no: Bearer ${SECRET}`), fc.constant(SECRET)),
});
const redirect = fc.record({ redirect: fc.array(fc.oneof(address, anyJson), { maxLength: 12 }) });

const spec = { template: "rt:24.04", net: "none", size: "small", ttlSeconds: 60, claimRef: "ns/a" };
const where = "http://127.0.0.1:7777";

fuzz(
  "any answer to a claim is a grant that can be used or a typed cause, and no cause repeats the token it was asked with",
  fc.tuple(
    fc.oneof(fc.constant(200), fc.integer({ min: 100, max: 599 })),
    jsonTexts(fc.oneof<fc.Arbitrary<unknown>[]>(grant, refusal, redirect)),
  ),
  ([status, text]) => {
    // As it comes from the transport.
    const judged = judgeClaim({ kind: "answer", status, text: scrub(text, SECRET) }, spec, where, SECRET);
    if (!judged.ok) {
      expect(judged.cause.message.length).toBeLessThan(4_000);
      expect(judged.cause.message).not.toMatch(/[\p{Cc}\p{Cf}]/u);
      withoutSecret(judged.cause.message);
      return;
    }
    expect(status).toBe(200);
    expect(isId(judged.grant.id) && isToken(judged.grant.token)).toBe(true);
    expect(hostOf(judged.grant.address)).not.toBe("");
    expect(Number.isFinite(judged.grant.deadlineMs)).toBe(true);
  },
);

fuzz("a proper grant comes through as it was given", grant, (given) => {
  const judged = judgeClaim(
    { kind: "answer", status: 200, text: JSON.stringify(given) },
    spec,
    where,
    undefined,
  );
  expect(judged).toEqual({
    ok: true,
    grant: {
      id: given.id,
      token: given.token,
      address: given.owner_addr,
      deadlineMs: parseTime(given.deadline) ?? Number.NaN,
    },
  });
});

for (const [name, shape, proper] of [
  ["listing", shapeListing, listing],
  ["row", shapeRow, oneRow],
  ["renewal", shapeRenewal, fc.record({ deadline: time })],
  ["info", shapeInfo, info],
  ["stats", shapeStats, stats],
] as const) {
  const values: fc.Arbitrary<unknown> = proper;
  const shaped: (value: unknown) => { ok: true; value: unknown } | { ok: false; why: string } = shape;
  fuzz(
    `any ${name} is one, or the first place where it is not, quoting nothing`,
    jsonTexts(values),
    (text) => {
      const answer = shaped(parseBody(text));
      if (answer.ok) return;
      expect(answer.why).not.toBe("");
      withoutSecret(answer.why);
    },
  );
  fuzz(`a proper ${name} is one`, values, (value) => {
    expect(shaped(JSON.parse(JSON.stringify(value))).ok).toBe(true);
  });
}

fuzz("a listing that is not wholly understood is a failure, never fewer rows", jsonTexts(listing), (text) => {
  const answer = shapeListing(parseBody(text));
  if (!answer.ok) return;
  const given = (JSON.parse(text) as { sandboxes: unknown[] | null }).sandboxes;
  expect(answer.value.length).toBe(given?.length ?? 0);
});

const anyText = fc.oneof(
  fc.string(),
  fc.string({ unit: "binary", maxLength: 400 }),
  address,
  damaged(address),
  damaged(millis.map((ms) => new Date(ms).toISOString())),
);

fuzz("host, origin and time of any text are something or nothing", anyText, (text) => {
  const found = hostOf(text);
  expect(found).toMatch(/^[A-Za-z0-9._:-]*$/);
  expect(originOf(text)).not.toMatch(/[?#]/);
  if (found !== "") expect(hostOf(originOf(text))).toBe(found);
  const ms = parseTime(text);
  if (ms !== undefined) expect(ms >= 0 && Number.isFinite(ms)).toBe(true);
});

fuzz(
  "the host of a proper address is its host, an IP in one spelling that is the same address",
  fc.tuple(host, fc.integer({ min: 1, max: 65_535 })),
  ([name, port]) => {
    const found = hostOf(`${name}:${port}`);
    if (!name.startsWith("[")) return expect(found).toBe(name);
    expect(isIP(found)).toBeGreaterThan(0);
    expect(hostOf(isIP(found) === 6 ? `[${found}]:${port}` : found)).toBe(found);
  },
);

fuzz(
  "a text made fit for a message is one short line without the secret",
  fc.tuple(anyText, anyText),
  ([a, b]) => {
    const line = clean(`${a}${SECRET}${b} Bearer ${SECRET}`, [SECRET]);
    expect(line).not.toMatch(/[\n\r\t\p{Cc}]/u);
    expect(line.length).toBeLessThanOrEqual(301);
    withoutSecret(line);
  },
);

fuzz(
  "an answer of any bytes, in chunks of any size, is an answer or lost, and never larger than its bound",
  fc.tuple(
    fc.integer({ min: 200, max: 599 }),
    fc.array(fc.uint8Array({ maxLength: 200 }), { maxLength: 20 }),
    fc.option(fc.oneof(fc.nat({ max: 5_000 }).map(String), fc.string({ unit: "grapheme-ascii" }))),
  ),
  async ([status, chunks, length]) => {
    const fetch: Fetch = async () => {
      const body = new ReadableStream<Uint8Array>({
        start(controller) {
          for (const chunk of chunks) controller.enqueue(chunk);
          controller.close();
        },
      });
      const headers = new Headers();
      try {
        if (length !== null) headers.set("content-length", length);
      } catch {
        // No header can carry it, so no server sends it.
      }
      return new Response([204, 205, 304].includes(status) ? null : body, { status, headers });
    };
    const send = createTransport(where, fetch);
    const reply = await send({ method: "GET", path: "/", token: SECRET, timeoutMs: 1_000, bytesMax: 1_000 });
    if (reply.kind !== "answer") return;
    expect(reply.status).toBe(status);
    withoutSecret(errorText(reply.text) ?? "");
    const bytes = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
    const stated = length !== null && /^[0-9]+$/.test(length.trim()) && Number(length) <= 1_000;
    if (!stated) expect(bytes).toBeLessThanOrEqual(1_000);
  },
);

import { expect, test } from "bun:test";
import { createLog, fieldsMax, type LogOptions, lineCharsMax, type Sink } from "./index.ts";

function capture(options: LogOptions = {}) {
  const lines: string[] = [];
  const sink: Sink = {
    write: (text) => lines.push(text),
    flush: () => Promise.resolve(true),
    flushSync() {},
  };
  const log = createLog({ now: () => 0, sink, ...options });
  return {
    log,
    lines,
    last: () => lines.at(-1) ?? "",
    json: () => JSON.parse(lines.at(-1) ?? "") as Record<string, unknown>,
  };
}

test("elsewhere than on a terminal a line is one JSON object", () => {
  const { log, lines, json } = capture();
  log.info("claimed", {
    pod: "ns/a",
    rows: 3,
    warm: true,
    nothing: undefined,
    none: null,
    why: new Error("x\ny"),
  });
  expect(json()).toEqual({
    time: "1970-01-01T00:00:00.000Z",
    level: "info",
    msg: "claimed",
    pod: "ns/a",
    rows: 3,
    warm: true,
    none: null,
    why: "x\ny",
  });
  expect(lines[0]?.indexOf("\n")).toBe((lines[0]?.length ?? 0) - 1);
});

test("on a terminal a line is text", () => {
  const { log, last } = capture({ terminal: true });
  log.warn("sandboxd is away", { url: "http://x", why: "timed out" });
  expect(Bun.stripANSI(last())).toBe(
    '1970-01-01T00:00:00.000Z WRN sandboxd is away url=http://x why="timed out"\n',
  );
});

test("the format that was asked for wins over the terminal", () => {
  const forced = capture({ terminal: true, format: "json" });
  forced.log.info("x");
  expect(forced.json().msg).toBe("x");
  const text = capture({ format: "text" });
  text.log.info("x");
  expect(text.last()).toBe("1970-01-01T00:00:00.000Z INF x\n");
});

test("lines below the level are not written", () => {
  const { log, lines } = capture({ level: "warn" });
  log.debug("a");
  log.info("b");
  log.warn("c");
  expect(lines.length).toBe(1);
  expect(log.enabled("info")).toBe(false);
  expect(log.enabled("error")).toBe(true);
});

test("with() adds fields that every line carries, and a line's own win", () => {
  const { log, json } = capture();
  const inner = log.with({ pod: "ns/a", try: 1 }).with({ claim: "sb_1" });
  inner.info("x", { try: 2 });
  expect(json()).toMatchObject({ pod: "ns/a", claim: "sb_1", try: 2 });
});

test("a field never takes the place of time, level or msg", () => {
  const { log, json } = capture();
  log.info("real", { msg: "fake", level: "fake", time: "fake" });
  expect(json()).toMatchObject({ msg: "real", level: "info", _msg: "fake" });
});

test("fields that are named like credentials are never printed, at any depth", () => {
  const { log, last } = capture();
  log.info("x", {
    token: "hunter2",
    releaseToken: "hunter2",
    Authorization: "hunter2",
    api_token: "hunter2",
    row: { id: "sb_1", token: "hunter2", headers: [{ authorization: "hunter2" }] },
  });
  expect(last()).not.toContain("hunter2");
  expect(last()).toContain("sb_1");
  log.info("x", { tokenFile: "/etc/token" });
  expect(last()).toContain("/etc/token");
});

test("a registered secret is replaced wherever it stands, in both formats", () => {
  for (const format of ["json", "text"] as const) {
    const { log, last } = capture({ format });
    log.redact("root-token-1");
    log
      .with({ pod: "root-token-1" })
      .error("GET with root-token-1 failed", { why: new Error("bad root-token-1") });
    expect(last()).not.toContain("root-token-1");
    expect(last()).toContain("[redacted]");
  }
});

test("a bearer header in a text is replaced without being registered", () => {
  const { log, last } = capture();
  log.error("curl -H 'Authorization: Bearer abcdefghijkl'");
  expect(last()).not.toContain("abcdefghijkl");
});

test("secrets are kept to a bound, and short ones are not taken", () => {
  const { log, last } = capture();
  log.redact("ns");
  log.info("ns/a");
  expect(last()).toContain("ns/a");
  for (let i = 0; i < 65; i++) log.redact(`secret-${i}-end`);
  log.info("secret-0-end secret-64-end");
  expect(last()).toContain("secret-0-end");
  expect(last()).not.toContain("secret-64-end");
});

test("a line has a bound, and a JSON line stays JSON", () => {
  const { log, last, json } = capture();
  const many = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`f${i}`, "x".repeat(10_000)]));
  log.info("y".repeat(100_000), many);
  expect(last().length).toBeLessThanOrEqual(lineCharsMax);
  expect(json().cut).toBe(true);
  log.info("z", Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`f${i}`, i])));
  expect(json().fieldsLeftOut).toBe(100 - fieldsMax);
  const text = capture({ format: "text" });
  text.log.info("y", many);
  expect(text.last().length).toBeLessThanOrEqual(lineCharsMax + 2);
});

test("text from outside cannot drive the terminal or fake a line", () => {
  const { log, last } = capture({ format: "text" });
  log.error("bad\x1b[2J\nfake line", { why: "a\nb\x1b[0m" });
  expect(last().slice(0, -1)).not.toMatch(/\p{Cc}/u);
});

test("what cannot be turned into JSON is no reason to fail", () => {
  const cycle: Record<string, unknown> = {};
  cycle.self = cycle;
  const { log, json } = capture();
  log.info("x", { cycle, big: { n: 1n }, fn: () => 1, sym: Symbol("s") });
  expect(json().cycle).toBe("[unprintable]");
});

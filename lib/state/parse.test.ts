import { describe, expect, test } from "bun:test";
import { createFakeDisk } from "./fakefs.ts";
import { flock } from "./flock.ts";
import { parseJson, placeOf } from "./json.ts";
import { openStore } from "./store.ts";
import { formatRfc3339, parseRfc3339 } from "./time.ts";

describe("JSON that says where", () => {
  const faults: [string, number][] = [
    ["", 0],
    ["{", 1],
    ['{"a"}', 4],
    ['{"a":}', 5],
    ['{"a":1 "b":2}', 7],
    ["[1,]", 3],
    ["[1 2]", 3],
    ["{,}", 1],
    ["nul", 0],
    ["01", 1],
    ["[1]]", 3],
    ['{"a":"\\x"}', 5],
    ['["a\nb"]', 1],
    ["\u00a0{}", 0],
  ];
  test.each(faults)("%p is at fault at %p", (text, offset) => {
    expect(parseJson(text)).toMatchObject({ ok: false, offset });
  });

  test("the scanner finds a fault in everything that JSON.parse refuses", () => {
    const good = JSON.stringify({ a: [1, -2.5e3, 'x\u00e9"\\', null, true], b: { c: {}, d: [] } });
    for (let at = 0; at < good.length; at++) {
      for (const piece of ["", "}", ",", '"', "\\", "x", "\u0000"]) {
        const text = good.slice(0, at) + piece + good.slice(at + 1);
        const parsed = parseJson(text);
        if (!parsed.ok) expect(parsed.reason, text).not.toBe("not valid JSON");
      }
    }
  });

  test("deep nesting is a fault or a value, not a crash", () => {
    expect(parseJson("[".repeat(200_000)).ok).toBe(false);
  });

  test("a place is a line and a column", () => {
    expect(placeOf("ab\ncd", 4)).toEqual({ line: 2, column: 2 });
    expect(placeOf("ab", 0)).toEqual({ line: 1, column: 1 });
  });
});

test("times go to disk and back, zero as null", () => {
  for (const ms of [1, 1_000, Date.UTC(2026, 1, 3, 4, 5, 6, 7)])
    expect(parseRfc3339(formatRfc3339(ms) ?? "")).toBe(ms);
  expect(formatRfc3339(0)).toBeNull();
  expect(formatRfc3339(Number.NaN)).toBeNull();
  expect(parseRfc3339("0001-01-01T00:00:00Z")).toBe(0);
  expect(parseRfc3339("yesterday")).toBeUndefined();
});

test("a descriptor that cannot be locked is never taken", () => {
  expect(flock(-1)).toBe("held");
});

test("no damage to a table makes the opening throw or changes a file it refuses", () => {
  const origin = createFakeDisk();
  const opened = openStore({ path: "/s/c", fs: origin.process(), schedule: () => {}, nowMs: () => 0 });
  if (!opened.ok) throw new Error(opened.message);
  const value = {
    id: "sb_1",
    token: "t",
    address: "a",
    podUID: "u",
    authority: "o",
    claimedAtMs: 1e12,
    deadlineMs: 0,
  };
  opened.store.commit([{ kind: "row", key: "ns/a", value }]);
  opened.store.compact();
  opened.store.commit([{ kind: "row", key: "ns/b", value }]);
  opened.store.commit([{ kind: "releasing", id: "sb_1", value: { key: "ns/b", row: value, reason: "r" } }]);
  const files = ["/s/c", "/s/c.journal"].map(
    (path) => [path, origin.read(path) ?? new Uint8Array()] as const,
  );
  let state = 7;
  const below = (n: number) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  let refused = 0;
  for (let round = 0; round < 3_000; round++) {
    const disk = createFakeDisk();
    disk.plantDirectory("/s", 0o700);
    const victim = below(2);
    for (const [index, [path, content]] of files.entries()) {
      const bytes = content.slice();
      if (index === victim) {
        for (let k = below(3); k >= 0; k--)
          bytes[below(bytes.length)] = below(4) === 0 ? below(256) : 32 + below(95);
      }
      disk.plant(path, index === victim && below(4) === 0 ? bytes.subarray(0, below(bytes.length)) : bytes);
    }
    const before = files.map(([path]) => disk.read(path));
    const again = openStore({ path: "/s/c", fs: disk.process(), schedule: () => {}, nowMs: () => 0 });
    if (again.ok) continue;
    refused++;
    expect(["malformed", "not_ours"]).toContain(again.kind);
    expect(files.map(([path]) => disk.read(path))).toEqual(before);
  }
  expect(refused).toBeGreaterThan(500);
});

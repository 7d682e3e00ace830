import { expect, test } from "bun:test";
import { bytes, count, listed, span } from "./words.ts";

test("numbers and lists read as people say them", () => {
  expect(count(1, "Pod")).toBe("1 Pod");
  expect(count(0, "sandbox", "sandboxes")).toBe("0 sandboxes");
  expect(listed([])).toBe("");
  expect(listed(["a", "b", "c"])).toBe("a, b and c");
  expect(bytes(0)).toBe("0 bytes");
  expect(bytes(1536)).toBe("1.5 KiB");
  expect(bytes(64 * 2 ** 20)).toBe("64 MiB");
});

test("spans of time have the units that fit their size, without their sign", () => {
  expect(span(0)).toBe("0 ms");
  expect(span(-850)).toBe("850 ms");
  expect(span(12_400)).toBe("12 s");
  expect(span(95_000)).toBe("95 s");
  expect(span(150_000)).toBe("3 min");
  expect(span(2 * 3_600_000)).toBe("2 h");
  expect(span(26 * 3_600_000 + 240_000)).toBe("26 h 4 min");
  expect(span(74 * 3_600_000)).toBe("3 d 2 h");
});

import { expect, test } from "bun:test";
import { parseTime } from "./time.ts";

test("nanoseconds and offsets are read", () => {
  expect(parseTime("2026-01-01T00:00:00.123456789Z")).toBe(Date.UTC(2026, 0, 1, 0, 0, 0, 123));
  expect(parseTime("2026-01-01T02:00:00+02:00")).toBe(Date.UTC(2026, 0, 1));
});

test("a zero time, an empty one and none at all mean kept for ever", () => {
  for (const none of ["0001-01-01T00:00:00Z", "", null, undefined]) expect(parseTime(none)).toBe(0);
});

test("what is no time is not taken for the zero one", () => {
  for (const bad of [
    "soon",
    "2026-01-01",
    "2026-13-01T00:00:00Z",
    5,
    {},
    "2026-01-01 00:00:00Z",
    "2026-01-01T00:00:00",
  ]) {
    expect(parseTime(bad)).toBeUndefined();
  }
});

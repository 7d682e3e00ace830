import { expect, test } from "bun:test";
import fc from "fast-check";
import { createRecentRows } from "./recent.ts";

test("a row keeps its numbers, wherever it is moved to", () => {
  const max = 8;
  const width = 3;
  fc.assert(
    fc.property(fc.array(fc.nat(12), { maxLength: 200 }), (keys) => {
      const rows = createRecentRows(max, width);
      const used: number[] = [];
      const written = new Map<number, number[]>();
      for (const [step, key] of keys.entries()) {
        const newest = new Set(used.slice().reverse());
        const rank = [...newest].indexOf(key);
        let at = rows.find(key);
        if (at < 0) {
          // Forgotten: never while it is among the newest half.
          expect(rank === -1 || rank >= max / 2).toBe(true);
          at = rows.add(key);
          expect([...rows.numbers.slice(at, at + width)]).toEqual([0, 0, 0]);
        } else {
          expect([...rows.numbers.slice(at, at + width)]).toEqual(written.get(key) ?? []);
        }
        const row = [key, step, key * step];
        rows.numbers.set(row, at);
        written.set(key, row);
        used.push(key);
      }
    }),
    { numRuns: 2_000 },
  );
});

test("what is not used while a whole generation is added is forgotten", () => {
  const rows = createRecentRows(8, 1);
  rows.add(1);
  for (let key = 2; key <= 9; key += 1) rows.add(key);
  expect(rows.find(1)).toBe(-1);
  expect(rows.find(9)).toBeGreaterThanOrEqual(0);
});

import { expect, test } from "bun:test";
import fc from "fast-check";
import { createRecentRows } from "./recent.ts";

test("a row keeps its numbers while it is among the newest half, and is all zero when it was forgotten", () => {
  const max = 8;
  fc.assert(
    fc.property(fc.array(fc.nat(12), { maxLength: 200 }), (keys) => {
      const rows = createRecentRows(max, 2);
      /** The newest last. */
      const written = new Map<number, number[]>();
      for (const [step, key] of keys.entries()) {
        const newer = [...written.keys()].reverse().indexOf(key);
        const row = rows(key);
        expect(row).toHaveLength(2);
        if (newer >= 0 && newer < max / 2) expect([...row]).toEqual(written.get(key) ?? []);
        else expect([[0, 0], written.get(key)]).toContainEqual([...row]);
        row.set([key + 1, step]);
        written.delete(key);
        written.set(key, [key + 1, step]);
      }
    }),
    { numRuns: 2_000 },
  );
});

test("what is not used while as many rows as there are come is forgotten", () => {
  const rows = createRecentRows(8, 1);
  rows(1).fill(7);
  for (let key = 2; key <= 9; key += 1) rows(key).fill(key);
  expect([...rows(9)]).toEqual([9]);
  expect([...rows(1)]).toEqual([0]);
});

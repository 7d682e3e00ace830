import { expect, test } from "bun:test";
import { createGate } from "./gate.ts";

test("no more than the given number are inside at once, and the others follow in order", async () => {
  const gate = createGate(2);
  const inside: number[] = [];
  const exits: (() => void)[] = [];
  const task = (n: number) =>
    gate.through(() => {
      inside.push(n);
      return new Promise<void>((resolve) => exits.push(resolve));
    });
  const all = [1, 2, 3, 4].map(task);
  expect(inside).toEqual([1, 2]);
  expect(gate.waiting).toBe(2);
  exits[1]?.();
  await all[1];
  await Promise.resolve();
  expect(inside).toEqual([1, 2, 3]);
  exits[0]?.();
  exits[2]?.();
  await Promise.all([all[0], all[2]]);
  await Promise.resolve();
  expect(inside).toEqual([1, 2, 3, 4]);
  exits[3]?.();
  await Promise.all(all);
  expect(gate.waiting).toBe(0);
});

test("a task that fails gives its place back", async () => {
  const gate = createGate(1);
  const failed = gate.through(() => Promise.reject(new Error("no")));
  const after = gate.through(async () => "yes");
  expect(await failed.catch((error: Error) => error.message)).toBe("no");
  expect(await after).toBe("yes");
});

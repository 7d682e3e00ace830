import { expect, test } from "bun:test";
import { createQuiet, quietBurst, quietPodsMax, quietWindowMs } from "./quiet.ts";

test("a Pod that is refused in a loop is told of a few times in a window, and then of what was left out", () => {
  const quiet = createQuiet();
  const refused = { kind: "refused", key: "ns/a" } as const;
  const told = Array.from({ length: 1_000 }, (_, i) => quiet.admit(refused, 1_000 + i));
  expect(told.filter((left) => left !== undefined)).toEqual(Array(quietBurst).fill(0));
  expect(quiet.admit({ ...refused, key: "ns/b" }, 2_000)).toBe(0);
  expect(quiet.admit(refused, 1_000 + quietWindowMs)).toBe(1_000 - quietBurst);
  expect(quiet.admit(refused, 1_001 + quietWindowMs)).toBe(0);
});

test("what became of a VM is told every time", () => {
  const quiet = createQuiet();
  for (const kind of ["claimed", "adopted", "preserved", "released", "release_failed", "lost"] as const)
    for (let i = 0; i < 100; i++) expect(quiet.admit({ kind, key: "ns/a" }, 0)).toBe(0);
});

test("it remembers so many Pods and no more, and forgets the quiet ones first", () => {
  const quiet = createQuiet();
  const silence = (key: string) => {
    for (let i = 0; i <= quietBurst; i++) quiet.admit({ kind: "refused", key }, 0);
  };
  silence("loud");
  for (let i = 0; i < quietPodsMax * 2; i++) {
    quiet.admit({ kind: "refused", key: `ns/${i}` }, 0);
    expect(quiet.admit({ kind: "refused", key: "loud" }, 0)).toBeUndefined();
  }
});

test("a clock that is set back by a year silences nobody", () => {
  const quiet = createQuiet();
  for (let i = 0; i <= quietBurst; i++) quiet.admit({ kind: "refused", key: "ns/a" }, 40_000_000_000);
  expect(quiet.admit({ kind: "refused", key: "ns/a" }, 0)).toBe(1);
});

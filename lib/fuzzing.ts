/**
 * Property tests over inputs that a generator invents, for everything that parses. In an ordinary test run each looks
 * for a moment, from a fixed seed; `scripts/fuzz --minutes M` looks for longer, from seeds of its own. A failure names
 * seed and path, and FUZZ_SEED with FUZZ_PATH runs it again.
 */
import { test } from "bun:test";
import * as fc from "fast-check";

/** Inputs that a property tries in an ordinary test run: the same ones on every machine, however busy. */
const briefRuns = 150;
const budgetMs = process.env.FUZZ_MS === undefined ? undefined : Number(process.env.FUZZ_MS);
const seed = process.env.FUZZ_SEED === undefined ? 20_260_101 : Number(process.env.FUZZ_SEED);
/** What one input may take: thousands of times what any does, so that only a hang is one. */
const hangMs = 5_000;
/** What a whole property may leave behind on the heap: the generator's own garbage, and nothing that grows. */
const heapGrowthMax = 96 * 1024 * 1024;

/** A credential that is put into inputs: no error may repeat it. */
export const SECRET = "fuzz-secret-0123456789abcdef";

/** Throws when a text repeats SECRET, or a good part of it. */
export function withoutSecret(text: string): void {
  if (text.includes(SECRET.slice(0, 16)) || text.includes(SECRET.slice(-16)))
    throw new Error(`a message repeats a credential: ${text.slice(0, 300)}`);
}

/** Registers a test that tries `check` on inputs of the arbitrary; it fails by throwing. */
export function fuzz<T>(
  name: string,
  inputs: fc.Arbitrary<T>,
  check: (input: T) => void | Promise<void>,
): void {
  const path = process.env.FUZZ_PATH;
  test(
    name,
    async () => {
      Bun.gc(true);
      const before = process.memoryUsage().heapUsed;
      await fc.assert(
        fc.asyncProperty(inputs, async (input) => {
          const startedAt = performance.now();
          await check(input);
          const tookMs = performance.now() - startedAt;
          if (tookMs > hangMs) throw new Error(`one input took ${Math.round(tookMs)} ms`);
        }),
        {
          seed,
          ...(path !== undefined
            ? { path, endOnFailure: true }
            : budgetMs === undefined
              ? { numRuns: briefRuns }
              : { interruptAfterTimeLimit: budgetMs, numRuns: 10_000_000, markInterruptAsFailure: false }),
        },
      );
      Bun.gc(true);
      const grownBytes = process.memoryUsage().heapUsed - before;
      if (grownBytes > heapGrowthMax)
        throw new Error(`the heap grew by ${Math.round(grownBytes / 1024 / 1024)} MB over a property`);
    },
    (budgetMs ?? 0) * 20 + 120_000,
  );
}

/** Any JSON value, with the names that JavaScript minds, SECRET, and numbers at the edges. */
export const anyJson: fc.Arbitrary<unknown> = fc.oneof(
  { weight: 4, arbitrary: fc.jsonValue({ maxDepth: 4 }) },
  {
    weight: 1,
    arbitrary: fc.constantFrom<unknown>(
      null,
      "",
      0,
      -1,
      1e308,
      2 ** 53,
      SECRET,
      [],
      {},
      [null],
      JSON.parse('{"__proto__": {"x": 1}, "constructor": 1, "toString": null}'),
    ),
  },
);

/** A value of the arbitrary in which one place is something else, is missing, or is there twice. */
export function mutated(values: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
  const where = fc.array(fc.nat({ max: 40 }), { minLength: 1, maxLength: 6 });
  const how = fc.constantFrom<"replace" | "remove" | "add">("replace", "replace", "remove", "add");
  return fc
    .tuple(values, where, how, anyJson)
    .map(([value, path, kind, other]) => mutate(structuredClone(value), path, kind, other));
}

function mutate(value: unknown, path: number[], kind: string, other: unknown): unknown {
  const [here = 0, ...rest] = path;
  if (Array.isArray(value) && value.length > 0) {
    const at = here % value.length;
    if (rest.length > 0) value[at] = mutate(value[at], rest, kind, other);
    else if (kind === "remove") value.splice(at, 1);
    else if (kind === "add") value.splice(at, 0, other);
    else value[at] = other;
    return value;
  }
  if (typeof value === "object" && value !== null && Object.keys(value).length > 0) {
    const entries = value as Record<string, unknown>;
    const names = Object.keys(entries);
    const name = names[here % names.length] ?? "";
    if (rest.length > 0) entries[name] = mutate(entries[name], rest, kind, other);
    else if (kind === "remove") delete entries[name];
    else if (kind === "add") entries[`${name}x`] = other;
    else entries[name] = other;
    return value;
  }
  return other;
}

/** A text of the arbitrary that was cut, had a piece doubled, swapped or filled with anything. */
export function damaged(texts: fc.Arbitrary<string>): fc.Arbitrary<string> {
  return fc
    .tuple(
      texts,
      fc.double({ min: 0, max: 1, noNaN: true }),
      fc.double({ min: 0, max: 1, noNaN: true }),
      fc.nat({ max: 3 }),
      fc.string({ unit: "binary", maxLength: 12 }),
    )
    .map(([text, a, b, kind, filler]) => {
      const [from, to] = [Math.floor(a * text.length), Math.floor(b * text.length)].sort((x, y) => x - y) as [
        number,
        number,
      ];
      const piece = text.slice(from, to);
      if (kind === 0) return text.slice(0, from);
      if (kind === 1) return text.slice(0, to) + piece + text.slice(to);
      if (kind === 2) return text.slice(0, from) + filler + text.slice(to);
      return text.slice(0, from) + filler + text.slice(from);
    });
}

/** Replies in JSON: right ones, wrong ones, broken ones, and no JSON at all. */
export function jsonTexts(values: fc.Arbitrary<unknown>): fc.Arbitrary<string> {
  const right = values.map((value) => JSON.stringify(value) ?? "");
  return fc.oneof(
    right,
    mutated(values).map((value) => JSON.stringify(value) ?? ""),
    damaged(right),
    anyJson.map((value) => JSON.stringify(value) ?? ""),
    fc.string({ unit: "binary" }),
  );
}

import { describe, expect, test } from "bun:test";
import { createCoverage } from "./coverage.ts";
import { planOf } from "./plan.ts";
import { failureOf, runSeeds } from "./report.ts";
import { replay, runSeed } from "./simulation.ts";

/** The whole story of what went wrong, for the test's output. */
function story(totals: ReturnType<typeof runSeeds>, realStore?: boolean): string {
  const [failed] = totals.failures;
  if (failed === undefined) return "";
  const failure = failureOf(failed.seed, runSeed(failed.seed, { realStore }), realStore);
  return [`seed ${failure.seed}: ${failure.violation}`, ...failure.trace].join("\n");
}

describe("the core keeps its invariants through", () => {
  const coverage = createCoverage();

  test("three thousand worlds full of faults", () => {
    const totals = runSeeds(1, 3_000, { coverage });
    expect(story(totals)).toBe("");
    expect(totals.seeds).toBe(3_000);
  }, 600_000);

  test("five hundred worlds on the real store", () => {
    const totals = runSeeds(1_000_000, 500, { realStore: true });
    expect(story(totals, true)).toBe("");
    expect(totals.seeds).toBe(500);
  }, 600_000);

  test("and these worlds go through what they are for", () => {
    for (const event of [
      "claim granted",
      "claim lost",
      "claim refused",
      "found rows",
      "found nothing",
      "read row",
      "read absent",
      "asked 404",
      "asked gone",
      "asked deleting",
      "asked expired",
      "asked suspended",
      "asked failed",
      "listed failed",
      "release ok",
      "release failed",
      "release gone",
      "hibernate ok",
      "hibernate refused",
      "wake ok",
      "wake failed",
      "renew ok",
      "renew refused",
      "publish ok",
      "publish gone",
      "publish failed",
      "finalize ok",
      "finalize gone",
      "evict ok",
      "podGone",
      "relist",
      "synced",
    ]) {
      expect([...coverage.events]).toContain(event);
    }
    expect(coverage.pairs.size).toBeGreaterThan(500);
  });
});

describe("a seed", () => {
  test("gives the same run twice, to the last line of its trace", () => {
    const traces = [7, 7].map((seed) => {
      const lines: string[] = [];
      runSeed(seed, { trace: (line) => lines.push(line) });
      return lines.join("\n");
    });
    expect(traces[0]).toBe(traces[1] ?? "");
    expect(traces[0]?.length).toBeGreaterThan(1_000);
  });

  test("can be replayed from the list of what happened", () => {
    const first = runSeed(11);
    const again = replay(planOf(11), first.steps);
    expect(again).toEqual(first);
  });
});

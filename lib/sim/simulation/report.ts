import type { Coverage } from "./coverage.ts";
import { planOf } from "./plan.ts";
import { shrink } from "./shrink.ts";
import { type RunResult, replay, runSeed } from "./simulation.ts";

/** A seed that violates an invariant, with the shortest trace that still does. */
export interface Failure {
  seed: number;
  violation: string;
  /** Actions of the whole run, and what is left of them. */
  actions: number;
  shrunk: number;
  /** What happens in the shrunk run, line by line. */
  trace: string[];
}

/** Lines of a trace that are kept; what follows is the same again and again. */
const TRACE_LINES_MAX = 400;

/** Shrinks a run that failed and tells its story. */
export function failureOf(seed: number, result: RunResult, realStore?: boolean): Failure {
  const plan = planOf(seed, realStore);
  const violation = result.violation ?? "";
  const steps = shrink(plan, result.steps, violation);
  const trace: string[] = [];
  const again = replay(plan, steps, {
    trace: (line) => void (trace.length < TRACE_LINES_MAX && trace.push(line)),
  });
  return {
    seed,
    violation: again.violation ?? violation,
    actions: result.steps.length,
    shrunk: steps.length,
    trace,
  };
}

/** How a range of seeds went. */
export interface Totals {
  seeds: number;
  /** Actions of the world. */
  actions: number;
  /** Events given to the core. */
  events: number;
  failures: { seed: number; violation: string }[];
}

/**
 * Runs seeds until there are enough of them, the time is up or enough have failed.
 *
 * @param until asked between seeds; true ends it
 */
export function runSeeds(
  from: number,
  count: number,
  options: { coverage?: Coverage; realStore?: boolean; until?: () => boolean; failuresMax?: number } = {},
): Totals {
  const { coverage, realStore, until = () => false, failuresMax = 1 } = options;
  const totals: Totals = { seeds: 0, actions: 0, events: 0, failures: [] };
  for (let seed = from; seed < from + count && !until(); seed++) {
    const result = runSeed(seed, { coverage, realStore });
    totals.seeds++;
    totals.actions += result.steps.length;
    totals.events += result.events;
    if (result.violation === undefined) continue;
    totals.failures.push({ seed, violation: result.violation });
    if (totals.failures.length >= failuresMax) break;
  }
  return totals;
}

/** Coverage in lines: how many pairs were met, and which events met the fewest states. */
export function coverageLines(coverage: Coverage): string[] {
  const lines: string[] = [];
  const all = coverage.events.size * coverage.states.size;
  let rare = 0;
  for (const count of coverage.pairs.values()) if (count < 10) rare++;
  lines.push(
    `${coverage.pairs.size} pairs of ${coverage.events.size} events × ${coverage.states.size} states met (${all} combinations, most of them impossible); ${rare} met fewer than 10 times`,
  );
  const decisions = [...coverage.decisions].sort((a, b) => b[1] - a[1]);
  lines.push(`decisions: ${decisions.map(([what, count]) => `${what} ${count}`).join(", ")}`);
  const perEvent = new Map<string, { states: number; count: number }>();
  for (const [pair, count] of coverage.pairs) {
    const event = pair.split(" × ")[0] ?? "";
    const entry = perEvent.get(event) ?? { states: 0, count: 0 };
    perEvent.set(event, { states: entry.states + 1, count: entry.count + count });
  }
  for (const [event, { states, count }] of [...perEvent].sort((a, b) => b[1].count - a[1].count)) {
    lines.push(
      `  ${event.padEnd(22)} ${String(count).padStart(10)} times in ${String(states).padStart(3)} states`,
    );
  }
  return lines;
}

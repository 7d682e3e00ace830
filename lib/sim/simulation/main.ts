/** The simulator from the command line; scripts/simulate runs it. */
import { parseArgs } from "node:util";
import { createCoverage } from "./coverage.ts";
import { coverageLines, failureOf, runSeeds } from "./report.ts";
import { runSeed } from "./simulation.ts";

const USAGE = `usage: scripts/simulate [--seeds N] [--minutes M] [--from SEED] [--seed SEED] [--real-store] [--pairs] [--json]

Runs the decision core and the state store through seeded worlds full of faults and checks the invariants of
docs/architecture.md after every step.

  --seeds N      stop after N seeds (default 20000, without end when --minutes is given)
  --minutes M    stop after M minutes
  --from SEED    first seed (default 1)
  --seed SEED    one seed, with its whole trace
  --real-store   every seed on the real store; otherwise one in eight
  --pairs        list every (event × state) pair with its count
  --json         one line of JSON: seeds, actions, events, and the first failure`;

const { values } = parseArgs({
  options: {
    seeds: { type: "string" },
    minutes: { type: "string" },
    from: { type: "string", default: "1" },
    seed: { type: "string" },
    "real-store": { type: "boolean" },
    pairs: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

function numberOf(name: string, text: string): number {
  const value = Number(text);
  if (Number.isFinite(value) && value >= 0) return value;
  process.stderr.write(`--${name} ${text} is not a number\n\n${USAGE}\n`);
  process.exit(2);
}

const realStore = values["real-store"];

if (values.help) process.stdout.write(`${USAGE}\n`);
else if (values.seed !== undefined) one(numberOf("seed", values.seed));
else many();

function one(seed: number): void {
  const result = runSeed(seed, { realStore, trace: (line) => process.stdout.write(`${line}\n`) });
  process.stdout.write(`${result.violation ?? "every invariant holds"}\n`);
  process.exitCode = result.violation === undefined ? 0 : 1;
}

function many(): void {
  const minutes =
    values.minutes === undefined ? Number.POSITIVE_INFINITY : numberOf("minutes", values.minutes);
  const fallback = values.minutes === undefined ? 20_000 : Number.POSITIVE_INFINITY;
  const seeds = values.seeds === undefined ? fallback : numberOf("seeds", values.seeds);
  const coverage = values.json ? undefined : createCoverage();
  const startMs = performance.now();
  const untilMs = startMs + minutes * 60_000;
  const totals = runSeeds(numberOf("from", values.from), seeds, {
    coverage,
    realStore,
    until: () => performance.now() > untilMs,
  });
  const seconds = (performance.now() - startMs) / 1000;
  const [failed] = totals.failures;
  process.exitCode = failed === undefined ? 0 : 1;
  if (values.json) {
    process.stdout.write(`${JSON.stringify({ ...totals, seconds })}\n`);
    return;
  }
  const rate = (count: number) => `${Math.round(count / seconds)}/s`;
  process.stdout.write(
    `${totals.seeds} seeds in ${seconds.toFixed(1)} s: ${totals.actions} actions (${rate(totals.actions)}), ${totals.events} events to the core (${rate(totals.events)}), ${rate(totals.actions + totals.events)} steps\n`,
  );
  if (coverage !== undefined) {
    for (const line of coverageLines(coverage)) process.stdout.write(`${line}\n`);
    if (values.pairs) {
      for (const [pair, count] of [...coverage.pairs].sort()) process.stdout.write(`  ${pair}: ${count}\n`);
    }
  }
  if (failed === undefined) {
    process.stdout.write("every invariant held\n");
    return;
  }
  const failure = failureOf(failed.seed, runSeed(failed.seed, { realStore }), realStore);
  process.stdout.write(
    `\nseed ${failure.seed} fails: ${failure.violation}\n${failure.actions} actions, of which ${failure.shrunk} are enough:\n\n${failure.trace.join("\n")}\n\nagain: scripts/simulate --seed ${failure.seed}${realStore ? " --real-store" : ""}\n`,
  );
}

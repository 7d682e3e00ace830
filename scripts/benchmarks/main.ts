/** The verbs of scripts/bench. */
import { cpus, loadavg, totalmem } from "node:os";
import { parseArgs } from "node:util";
import { fleet } from "./fleet.ts";
import { show } from "./numbers.ts";
import { full, type Result, rows, smoke } from "./rows.ts";
import { soak } from "./soak.ts";
import { World } from "./world.ts";

const usage = `usage: scripts/bench [ROW…] [flags]        measures rows, all without names:
         ${Object.keys(rows).join(" ")}
       scripts/bench fleet [flags]          many daemons on one API server
       scripts/bench soak [flags]           churn, faults and rotation for a long time
  --smoke           small numbers: shows in seconds that the bench works, measures nothing
  --cluster DIR     use the control plane that scripts/cluster up --dir DIR left; default: one of its own
  --json FILE       write what was measured
  --daemons N       fleet: default 100
  --pods N          fleet: Pods for each daemon, default 20
  --minutes N       soak: default 60
  --picture FILE    soak: an SVG of RSS, descriptors and latency
The daemon's API budget is opened (--kube-api-qps) in every row where it would be what is measured.
Exit code 1 when a row is not what it must be.`;

/** Whether the result is what it must be; undefined where nothing is demanded. */
function holds({ must, daemon, floor }: Result): boolean | undefined {
  if (must === undefined) return undefined;
  const value = must.ratio ? daemon / (floor ?? Number.NaN) : daemon;
  if (must.atMost !== undefined) return value <= must.atMost;
  if (must.atLeast !== undefined) return value >= must.atLeast;
  return undefined;
}

function demand({ must, unit }: Result): string {
  if (must === undefined) return "";
  const bound = must.atMost === undefined ? `≥ ${must.atLeast}` : `≤ ${must.atMost}`;
  return must.ratio ? `${bound} × floor` : `${bound}${unit === "" ? "" : ` ${unit}`}`;
}

/** The results as a table for people. */
export function tableOf(results: readonly Result[], judged: boolean): string {
  const lines = [["", "must", "floor", "daemon", "ratio", ""]];
  for (const result of results) {
    const { what, floor, daemon, unit, note } = result;
    const held = judged ? holds(result) : undefined;
    lines.push([
      what,
      demand(result),
      floor === undefined ? "" : `${show(floor)} ${unit}`.trim(),
      `${show(daemon)} ${unit}`.trim(),
      floor === undefined ? "" : `${show(daemon / floor)} ×`,
      [held === undefined ? "" : held ? "ok" : "MISSED", note ?? ""].filter((text) => text !== "").join("; "),
    ]);
  }
  const widths = lines[0]?.map((_, at) => Math.max(...lines.map((line) => (line[at] ?? "").length))) ?? [];
  return lines
    .map((line) =>
      line
        .map((cell, at) => cell.padEnd(widths[at] ?? 0))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      smoke: { type: "boolean" },
      cluster: { type: "string" },
      json: { type: "string" },
      daemons: { type: "string" },
      pods: { type: "string" },
      minutes: { type: "string" },
      picture: { type: "string" },
      help: { type: "boolean", short: "h" },
    },
  });
  if (values.help) {
    console.log(usage);
    return 0;
  }
  const number = (name: "daemons" | "pods" | "minutes", otherwise: number): number => {
    const text = values[name];
    if (text === undefined) return otherwise;
    const value = Number(text);
    if (!(value > 0)) throw new Error(`--${name} takes a number above 0, not ${JSON.stringify(text)}`);
    return value;
  };
  const unknown = positionals.find(
    (name) => name !== "fleet" && name !== "soak" && !Object.hasOwn(rows, name),
  );
  if (unknown !== undefined) {
    console.error(`scripts/bench: no row is called ${JSON.stringify(unknown)}\n${usage}`);
    return 2;
  }
  const isSmoke = values.smoke === true;
  const say = (line: string) => console.error(line);
  const loadBefore = loadavg();
  await using world = await World.open(values.cluster, say);
  const bench = { world, size: isSmoke ? smoke : full, say };
  const results: Result[] = [];
  const [verb] = positionals;
  if (verb === "fleet")
    results.push(
      ...(await fleet(bench, number("daemons", isSmoke ? 3 : 100), number("pods", isSmoke ? 2 : 20))),
    );
  else if (verb === "soak")
    results.push(...(await soak(bench, number("minutes", isSmoke ? 0.2 : 60), values.picture)));
  else
    for (const name of positionals.length === 0 ? Object.keys(rows) : positionals) {
      const measured = (await rows[name]?.(bench)) ?? [];
      results.push(...measured);
      say(tableOf(measured, !isSmoke));
    }
  console.log(tableOf(results, !isSmoke));
  if (values.json !== undefined) {
    const machine = { cpus: cpus().length, memoryBytes: totalmem(), loadBefore, loadAfter: loadavg() };
    const at = new Date().toISOString();
    await Bun.write(values.json, `${JSON.stringify({ at, smoke: isSmoke, machine, results }, null, 2)}\n`);
  }
  return !isSmoke && results.some((result) => holds(result) === false) ? 1 : 0;
}

if (import.meta.main) {
  try {
    process.exitCode = await main();
  } catch (error) {
    console.error(`scripts/bench: ${error instanceof Error ? (error.stack ?? error.message) : error}`);
    process.exitCode = 1;
  }
}

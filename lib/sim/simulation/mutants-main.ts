/** Puts every deliberate mistake into a copy of the sources and lets the simulator find it; scripts/mutants runs it. */
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { type Mutant, mutants } from "./mutants.ts";

const USAGE = `usage: scripts/mutants [--seconds N] [--only WORDS] [--write]

Puts one deliberate mistake after another into a copy of the sources and runs the simulator on it.

  --seconds N    time the simulator has for each (default 60)
  --only WORDS   only mistakes whose description contains the words
  --write        put the table into docs/reliability.md`;

const root = join(import.meta.dir, "../../..");
const SIMULATOR = "lib/sim/simulation/main.ts";
const DOCUMENT = join(root, "docs/reliability.md");
const BEGIN = "<!-- mutants: begin -->";
const END = "<!-- mutants: end -->";

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "60" },
    only: { type: "string", default: "" },
    write: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

interface Finding {
  mutant: Mutant;
  /** Absent: not found. */
  violation?: string;
  seeds: number;
  seconds: number;
}

if (values.help) process.stdout.write(`${USAGE}\n`);
else main(Number(values.seconds));

function main(seconds: number): void {
  const chosen = mutants.filter((mutant) => mutant.mistake.includes(values.only));
  const place = mkdtempSync(join(tmpdir(), "vk-sandbox-mutants-"));
  const findings: Finding[] = [];
  try {
    for (const mutant of chosen) {
      const finding = find(mutant, place, seconds);
      findings.push(finding);
      const outcome =
        finding.violation === undefined
          ? `NOT FOUND in ${finding.seeds} seeds`
          : `seed ${finding.seeds}, ${finding.seconds.toFixed(1)} s: ${finding.violation}`;
      process.stdout.write(`${mutant.mistake}\n    ${outcome}\n`);
    }
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
  const missed = findings.filter((finding) => finding.violation === undefined);
  process.stdout.write(`${findings.length - missed.length} of ${findings.length} mistakes found\n`);
  if (values.write) writeTable(findings);
  process.exitCode = missed.length === 0 && findings.length > 0 ? 0 : 1;
}

function find(mutant: Mutant, place: string, seconds: number): Finding {
  const copy = join(place, "copy");
  rmSync(copy, { recursive: true, force: true });
  cpSync(join(root, "lib"), join(copy, "lib"), { recursive: true });
  cpSync(join(root, "package.json"), join(copy, "package.json"));
  symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
  const path = join(copy, mutant.file);
  let source = readFileSync(path, "utf8");
  for (const { from, to } of mutant.edits) {
    const count = source.split(from).length - 1;
    if (count !== 1) {
      throw new Error(
        `"${mutant.mistake}": its source is in ${mutant.file} ${count} times, not once: the code has moved, change lib/sim/simulation/mutants.ts\n${from}`,
      );
    }
    source = source.replace(from, () => to);
  }
  writeFileSync(path, source);
  const started = performance.now();
  const args = ["--minutes", String(seconds / 60), "--json", ...(mutant.realStore ? ["--real-store"] : [])];
  const run = Bun.spawnSync([process.execPath, join(copy, SIMULATOR), ...args], { stderr: "pipe" });
  const took = (performance.now() - started) / 1000;
  const text = run.stdout.toString();
  if (text === "") return { mutant, violation: crash(run.stderr.toString()), seeds: 0, seconds: took };
  const totals = JSON.parse(text) as { seeds: number; failures: { violation: string }[] };
  const [failed] = totals.failures;
  return { mutant, violation: failed?.violation.split("\n")[0], seeds: totals.seeds, seconds: took };
}

function crash(stderr: string): string {
  const line = stderr.split("\n").find((text) => text.includes("error"));
  throw new Error(`the simulator did not run: ${line ?? stderr}`);
}

function writeTable(findings: Finding[]): void {
  const lines = ["| Mistake | Found at seed | after | as |", "|---|---|---|---|"];
  for (const { mutant, violation, seeds, seconds } of findings) {
    const cells =
      violation === undefined ? ["not found", "", ""] : [String(seeds), `${seconds.toFixed(1)} s`, violation];
    lines.push(`| ${[mutant.mistake, ...cells].map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`);
  }
  const document = readFileSync(DOCUMENT, "utf8");
  const before = document.indexOf(BEGIN);
  const after = document.indexOf(END);
  if (before < 0 || after < before) throw new Error(`${DOCUMENT} has no ${BEGIN} … ${END}`);
  writeFileSync(
    DOCUMENT,
    `${document.slice(0, before + BEGIN.length)}\n${lines.join("\n")}\n${document.slice(after)}`,
  );
}

/** Findings for people, and as one JSON object. */
import { count } from "../words.ts";
import type { CheckResult } from "./check.ts";
import { type Rule, ruleList } from "./rules.ts";
import type { Finding, Judged, Severity, Skipped, Unreadable } from "./types.ts";

export interface ReportOptions {
  /** Width of the terminal. */
  columns: number;
  color: boolean;
  /** Least severity that is shown. */
  least: Severity;
  /** Files that were read. */
  files: number;
  /** Things that could not be read. */
  unreadable: number;
}

export const severities: readonly Severity[] = ["error", "warning", "info"];

/** Objects without a finding are named one by one up to this many. */
const goodShownMax = 30;
const skippedShownMax = 10;

const colors: Readonly<Record<Severity, string>> = { error: "31", warning: "33", info: "36" };

export interface Counts {
  error: number;
  warning: number;
  info: number;
}

export function countFindings(findings: readonly Finding[]): Counts {
  const counts: Counts = { error: 0, warning: 0, info: 0 };
  for (const { severity } of findings) counts[severity]++;
  return counts;
}

/** Whether `severity` is at least as bad as `least`. */
export function isAtLeast(severity: Severity, least: Severity): boolean {
  return severities.indexOf(severity) <= severities.indexOf(least);
}

/** The whole report: objects with their findings, what was skipped, and a line that sums it up. */
export function renderFindings({ findings, judged, skipped }: CheckResult, options: ReportOptions): string {
  const paint = (code: string, text: string) => (options.color ? `\x1b[${code}m${text}\x1b[0m` : text);
  const shown = findings.filter(({ severity }) => isAtLeast(severity, options.least));
  const lines: string[] = [];
  const byObject = Map.groupBy(shown, ({ file, object, source }) => {
    const one = judgedFor(judged, file, object);
    return one ?? source.object;
  });
  for (const [about, mine] of byObject) {
    const [first] = mine;
    if (first === undefined) continue;
    const one = "backend" in about ? (about as Judged) : undefined;
    const place = one?.line === undefined ? first.file : `${first.file}:${one.line}`;
    const backend = one === undefined ? "" : ` is for ${one.backend} (by ${one.because})`;
    lines.push(`${paint("1", `${place}  ${first.object}`)}${backend}`);
    for (const finding of mine) {
      const at =
        finding.region === undefined
          ? finding.path
          : `${finding.region.start.line}:${finding.region.start.column}`;
      lines.push(
        `  ${at.padEnd(7)} ${paint(colors[finding.severity], finding.severity.padEnd(7))} ${finding.rule}`,
      );
      lines.push(...indented(finding.what, options.columns));
      const byFix = finding.fixable ? " [--fix]" : "";
      lines.push(...indented(`Fix: ${finding.fix}${byFix}`, options.columns));
    }
    lines.push("");
  }
  const troubled = new Set(shown.map(({ file, object }) => judgedFor(judged, file, object)));
  const good = judged.filter((one) => !troubled.has(one));
  for (const { file, line, object, backend } of good.slice(0, goodShownMax))
    lines.push(
      `${paint("32", "ok")}  ${line === undefined ? file : `${file}:${line}`}  ${object} is for ${backend}`,
    );
  if (good.length > goodShownMax) lines.push(`ok  and ${good.length - goodShownMax} more`);
  if (good.length > 0) lines.push("");
  for (const { file, line, what } of skipped.slice(0, skippedShownMax))
    lines.push(paint("2", `skipped  ${line === undefined ? file : `${file}:${line}`}  ${what}`));
  if (skipped.length > skippedShownMax)
    lines.push(paint("2", `skipped  and ${skipped.length - skippedShownMax} more`));
  if (skipped.length > 0) lines.push("");
  lines.push(summary({ findings, judged, skipped }, options));
  return `${lines.join("\n")}\n`;
}

/** The judged object of that name; two of one name in one file are told apart by nothing a reader could use. */
function judgedFor(judged: readonly Judged[], file: string, object: string): Judged | undefined {
  return judged.find((one) => one.file === file && one.object === object);
}

function summary({ findings, judged }: CheckResult, { files, unreadable }: ReportOptions): string {
  const counts = countFindings(findings);
  const backends = Map.groupBy(judged, ({ backend }) => backend);
  const who = [...backends].map(([backend, of]) => `${of.length} for ${backend}`).join(", ");
  const where = files === 0 ? "" : ` in ${count(files, "file")}`;
  const objects = `${count(judged.length, "object")} judged${where}${who === "" ? "" : ` (${who})`}`;
  const found = [
    counts.error > 0 ? count(counts.error, "error") : "",
    counts.warning > 0 ? count(counts.warning, "warning") : "",
    counts.info > 0 ? count(counts.info, "note") : "",
  ].filter((part) => part !== "");
  const fixable = findings.filter((finding) => finding.fixable).length;
  const help = fixable > 0 ? `; --fix can mend ${fixable}` : "";
  if (unreadable > 0) found.push(`${unreadable} could not be read`);
  return `${objects}: ${found.length === 0 ? "nothing to say against" : found.join(", ")}${help}.`;
}

const indent = 10;
const widthMin = 40;

/** A text below its heading, broken at spaces. */
function indented(text: string, columns: number): string[] {
  const width = Math.max(widthMin, columns - indent);
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && line.length + 1 + word.length > width) {
      lines.push(line);
      line = word;
    } else line = line === "" ? word : `${line} ${word}`;
  }
  return [...lines, line].map((part) => " ".repeat(indent) + part);
}

/** Unreadable input as one line each, in the form editors and terminals make a link of. */
export function renderUnreadable(unreadable: readonly Unreadable[]): string {
  return unreadable
    .map(({ file, position, reason }) => {
      const at = position === undefined ? file : `${file}:${position.line}:${position.column}`;
      return `vk-sandbox: ${at}: ${reason}\n`;
    })
    .join("");
}

/** What `--json` prints. */
export interface JsonReport {
  /** No finding is at or above the severity that fails, and everything was readable. */
  ok: boolean;
  version: string;
  summary: Counts & { objects: number; files: number };
  objects: Judged[];
  findings: Finding[];
  skipped: Skipped[];
  unreadable: Unreadable[];
}

/** One JSON object with everything that was found. */
export function jsonReport(
  { findings, judged, skipped }: CheckResult,
  about: { version: string; files: number; ok: boolean; unreadable: readonly Unreadable[] },
): JsonReport {
  return {
    ok: about.ok,
    version: about.version,
    summary: { ...countFindings(findings), objects: judged.length, files: about.files },
    objects: judged,
    findings: findings.map(({ source: _, ...finding }) => finding),
    skipped,
    unreadable: [...about.unreadable],
  };
}

/** All rules as a list for a terminal. */
export function renderRules(columns: number): string {
  return ruleList
    .map(({ id, severity, fixable, title, why }: Rule & { id: string }) =>
      [
        `${severity.padEnd(8)} ${id}${fixable === true ? " [--fix]" : ""}`,
        `          ${title}.`,
        ...indented(why, columns),
        "",
      ].join("\n"),
    )
    .join("\n");
}

/** The table of docs/check.md. */
export function rulesTable(): string {
  const cell = (text: string) => text.replaceAll("|", "\\|");
  const rows = ruleList.map(
    ({ id, severity, fixable, title, why }) =>
      `| \`${id}\` | ${severity} | ${fixable === true ? "yes" : ""} | ${cell(title)}. ${cell(why)} |`,
  );
  return [
    "| Rule | Severity | `--fix` | What is wrong, and what comes of it |",
    "|---|---|---|---|",
    ...rows,
  ].join("\n");
}

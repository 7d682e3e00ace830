/** The findings as a person reads them. */

import { count, listed } from "../words.ts";
import { type Finding, groups, type Status, tally } from "./finding.ts";

export interface ReportOptions {
  /** Width of the terminal. */
  columns: number;
  color: boolean;
  /** Lines that say what was looked at: name and value. */
  subject: [string, string][];
}

const words: Record<Status, string> = { pass: "pass", warn: "WARN", fail: "FAIL", skipped: "skip" };
const colors: Record<Status, string> = { pass: "32", warn: "33", fail: "31", skipped: "2" };
const titles = { host: "Host", state: "State", sandboxd: "sandboxd", cluster: "Cluster" };

/**
 * The whole report: what was looked at, a line for each check, why and what to do where something is wrong,
 * and at the end, where a terminal shows it, a summary in sentences.
 */
export function renderReport(findings: readonly Finding[], options: ReportOptions): string {
  const paint = (status: Status, text: string) =>
    options.color ? `\x1b[${colors[status]}m${text}\x1b[0m` : text;
  const bold = (text: string) => (options.color ? `\x1b[1m${text}\x1b[0m` : text);
  const lines: string[] = [];
  const labels = Math.max(...options.subject.map(([name]) => name.length), 0) + 2;
  for (const [name, value] of options.subject) lines.push(`${name.padEnd(labels)}${value}`);
  const column = Math.max(...findings.map((finding) => shortId(finding).length), 0) + 10;
  for (const group of groups) {
    const mine = findings.filter((finding) => finding.group === group);
    if (mine.length === 0) continue;
    lines.push("", bold(titles[group]));
    for (const finding of mine) {
      const { status, found, why, todo } = finding;
      const alike = status === "skipped" ? mine.filter((other) => sameSkip(other, finding)) : [finding];
      // What one missing thing keeps from being looked at is said once, where it first shows.
      if (alike[0] !== finding) continue;
      const head = `  ${paint(status, words[status])}  `;
      if (alike.length > 1) {
        lines.push(...hang(head, `${alike.map(shortId).join(", ")}: ${found}`, options.columns, 8));
      } else {
        lines.push(...hang(`${head}${shortId(finding).padEnd(column - 8)}`, found, options.columns, column));
      }
      if (status === "pass") continue;
      if (status !== "skipped") lines.push(...hang("        Why:  ", why, options.columns));
      if (todo !== "") lines.push(...hang("        Do:   ", todo, options.columns));
    }
  }
  lines.push("", bold("Summary"), ...summary(findings, options.columns));
  return `${lines.map((line) => line.trimEnd()).join("\n")}\n`;
}

/** What to read aloud: whether it can serve, what to do first, and what was not looked at. */
function summary(findings: readonly Finding[], columns: number): string[] {
  const counts = tally(findings);
  const failed = findings.filter(({ status }) => status === "fail");
  const warned = findings.filter(({ status }) => status === "warn");
  const numbers = [
    `${counts.pass} of ${count(findings.length, "check")} passed`,
    ...(counts.warn > 0 ? [count(counts.warn, "warning")] : []),
    ...(counts.fail > 0 ? [count(counts.fail, "failure")] : []),
    ...(counts.skipped > 0 ? [`${counts.skipped} could not be made`] : []),
  ];
  const lines = [
    ...wrap(
      failed.length > 0
        ? `Not fit to serve: ${listed(numbers)}.`
        : `Fit to serve, as far as was checked: ${listed(numbers)}.`,
      columns - 2,
    ).map((line) => `  ${line}`),
  ];
  if (failed.length > 0) {
    lines.push("  Do this, in this order:");
    // One step may mend several failures: it is said once, for all of them.
    const steps = Map.groupBy(failed, ({ todo }) => todo);
    let number = 0;
    for (const [todo, findings] of steps) {
      number++;
      const ids = listed(findings.map(({ id }) => id));
      lines.push(...hang(`  ${String(number).padStart(2)}. `, `${ids}: ${todo}`, columns));
    }
  }
  if (warned.length > 0) {
    const names = listed(warned.map(({ id }) => id));
    lines.push(
      ...hang("  ", `${failed.length > 0 ? "Then see" : "See"} what is said above about ${names}.`, columns),
    );
  }
  return lines;
}

/** The id without its group, which stands above it. */
function shortId({ id, group }: Finding): string {
  return id.startsWith(`${group}.`) ? id.slice(group.length + 1) : id;
}

function sameSkip(a: Finding, b: Finding): boolean {
  return a.status === "skipped" && b.status === "skipped" && a.found === b.found && a.todo === b.todo;
}

/** A text behind a label, its further lines under its first; `width` is the label's without its colour codes. */
function hang(label: string, text: string, columns: number, width = label.length): string[] {
  const [first = "", ...rest] = wrap(text, columns - width);
  return [label + first, ...rest.map((line) => " ".repeat(width) + line)];
}

const widthMin = 30;

/** Breaks at spaces; a word longer than a line, such as a command's path, stays whole so that it can be copied. */
function wrap(text: string, columns: number): string[] {
  const width = Math.max(widthMin, columns);
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(/\s+/)) {
    if (line !== "" && line.length + 1 + word.length > width) {
      lines.push(line);
      line = word;
    } else line = line === "" ? word : `${line} ${word}`;
  }
  return [...lines, line];
}

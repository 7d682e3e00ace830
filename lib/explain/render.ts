/** An explanation for people. */
import type { Explanation } from "./explain.ts";

export interface RenderOptions {
  columns: number;
  color: boolean;
}

/** The reason first, in one sentence; then what says so, and what to do. */
export function renderExplanation(explanation: Explanation, { columns, color }: RenderOptions): string {
  const paint = (code: string, text: string) => (color ? `\x1b[${code}m${text}\x1b[0m` : text);
  const { subject, phase, fine, because, evidence, next, unseen } = explanation;
  const is = phase === "" ? "" : ` is ${phase}`;
  const head = wrap(`${subject}${is}: ${because}.`, columns).map((line) => paint(fine ? "32" : "1", line));
  const lines = [...head];
  const section = (title: string, items: readonly string[], numbered = false) => {
    if (items.length === 0) return;
    lines.push("", paint("1", title));
    items.forEach((item, index) => {
      const lead = numbered && items.length > 1 ? `  ${index + 1}. ` : "  - ";
      const [first = "", ...rest] = wrap(item, columns - lead.length);
      lines.push(lead + first, ...rest.map((line) => " ".repeat(lead.length) + line));
    });
  };
  section("Evidence", evidence);
  section("Next", next, true);
  section("Not looked at", unseen);
  return `${lines.join("\n")}\n`;
}

const widthMin = 40;

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

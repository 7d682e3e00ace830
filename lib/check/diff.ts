/** A unified diff of two texts, for showing what a fix would do. */

const contextLines = 3;
/** Texts that differ in more lines than this are shown as one replaced block. */
const differencesMax = 2_000;

interface Step {
  kind: " " | "-" | "+";
  line: string;
}

/**
 * The difference in the form that `patch` takes.
 *
 * @returns empty when the texts are equal
 */
export function unifiedDiff(name: string, before: string, after: string): string {
  if (before === after) return "";
  const steps = difference(linesOf(before), linesOf(after));
  const out = [`--- ${name}`, `+++ ${name}`];
  let oldLine = 1;
  let newLine = 1;
  let index = 0;
  while (index < steps.length) {
    if (steps[index]?.kind === " ") {
      index++;
      oldLine++;
      newLine++;
      continue;
    }
    const start = Math.max(0, index - contextLines);
    let end = index;
    for (let quiet = 0, at = index; at < steps.length && quiet <= contextLines * 2; at++) {
      if (steps[at]?.kind === " ") quiet++;
      else {
        quiet = 0;
        end = at;
      }
    }
    end = Math.min(steps.length, end + 1 + contextLines);
    const hunk = steps.slice(start, end);
    const oldStart = oldLine - (index - start);
    const newStart = newLine - (index - start);
    const olds = hunk.filter(({ kind }) => kind !== "+").length;
    const news = hunk.filter(({ kind }) => kind !== "-").length;
    out.push(`@@ -${range(oldStart, olds)} +${range(newStart, news)} @@`);
    for (const { kind, line } of hunk) {
      out.push(kind + (line.endsWith("\n") ? line.slice(0, -1) : line));
      if (!line.endsWith("\n")) out.push("\\ No newline at end of file");
    }
    for (const { kind } of steps.slice(index, end)) {
      if (kind !== "+") oldLine++;
      if (kind !== "-") newLine++;
    }
    index = end;
  }
  return `${out.join("\n")}\n`;
}

function range(start: number, count: number): string {
  return count === 1 ? String(start) : `${count === 0 ? start - 1 : start},${count}`;
}

function linesOf(text: string): string[] {
  return text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
}

/** Myers' shortest edit script between the first and the last line that differ. */
function difference(a: readonly string[], b: readonly string[]): Step[] {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const same = (line: string): Step => ({ kind: " ", line });
  return [
    ...a.slice(0, head).map(same),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(same),
  ];
}

function middle(a: readonly string[], b: readonly string[]): Step[] {
  const max = Math.min(a.length + b.length, differencesMax);
  const trace: Map<number, number>[] = [];
  let ends = new Map<number, number>([[1, 0]]);
  for (let d = 0; d <= max; d++) {
    trace.push(new Map(ends));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (ends.get(k - 1) ?? -1) < (ends.get(k + 1) ?? -1));
      let x = down ? (ends.get(k + 1) ?? 0) : (ends.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      ends.set(k, x);
      if (x >= a.length && x - k >= b.length) return backtrack(trace, a, b, d, k);
    }
    ends = new Map(ends);
  }
  return [...a.map((line): Step => ({ kind: "-", line })), ...b.map((line): Step => ({ kind: "+", line }))];
}

function backtrack(
  trace: readonly Map<number, number>[],
  a: readonly string[],
  b: readonly string[],
  last: number,
  lastK: number,
): Step[] {
  const steps: Step[] = [];
  let x = a.length;
  let k = lastK;
  for (let d = last; d >= 0; d--) {
    const ends = trace[d];
    const down = k === -d || (k !== d && (ends?.get(k - 1) ?? -1) < (ends?.get(k + 1) ?? -1));
    const before = d === 0 ? 0 : down ? (ends?.get(k + 1) ?? 0) : (ends?.get(k - 1) ?? 0);
    const start = d === 0 ? 0 : down ? before : before + 1;
    while (x > start) steps.push({ kind: " ", line: a[--x] ?? "" });
    if (d === 0) break;
    if (down) steps.push({ kind: "+", line: b[x - k - 1] ?? "" });
    else steps.push({ kind: "-", line: a[--x] ?? "" });
    k += down ? 1 : -1;
  }
  return steps.reverse();
}

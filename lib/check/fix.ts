/**
 * Edits of paths into edits of text. Only the characters that change are touched, so comments, order, quoting
 * and line ends stay as their author left them.
 */
import {
  isAlias,
  isMap,
  isScalar,
  isSeq,
  type Node,
  type Pair,
  visit,
  type YAMLMap,
  type YAMLSeq,
} from "yaml";
import { type Located, locate } from "./locate.ts";
import { isMap as isPlainMap } from "./shape.ts";
import type { Edit, Path, SourceObject, YamlDocument } from "./types.ts";

/** Replaces the characters from `start` to before `end`. */
export interface Splice {
  start: number;
  end: number;
  text: string;
  /** How deep in the document the collection is that it adds to: at one place, the innermost comes first. */
  depth: number;
}

/** A splice before its depth is known. */
type Cut = Omit<Splice, "depth">;

interface Wanted {
  splices: Splice[];
  /** How many uses of a shared node must ask for the same before it is done; 1 when nothing is shared. */
  votes: number;
}

/**
 * The text changes that do the edits. Left out is what cannot be done mechanically: in a document with a
 * duplicate key, in a block scalar, or in a node that is written once for several places of which not all
 * ask for the same.
 *
 * @param requests edits with the object they are for; all of one file
 */
export function splicesFor(requests: readonly { object: SourceObject; edits: readonly Edit[] }[]): Splice[] {
  const asked = new Map<string, Wanted & { asked: number }>();
  for (const { object, edits } of requests) {
    const entry = object.document;
    if (entry === undefined || entry.duplicates.length > 0) continue;
    const wanted = edits.map((edit) => wantedFor(entry, object.base, edit));
    for (const want of wanted) {
      if (want === undefined) continue;
      const key = JSON.stringify(want.splices);
      const known = asked.get(key);
      if (known === undefined) asked.set(key, { ...want, asked: 1 });
      else known.asked++;
    }
  }
  const splices: Splice[] = [];
  for (const want of asked.values()) {
    if (want.asked < want.votes) continue;
    // What overlaps an earlier change is found again when the result is checked again.
    if (want.splices.some((splice) => splices.some((other) => overlap(splice, other)))) continue;
    splices.push(...want.splices);
  }
  return splices;
}

function overlap(a: Splice, b: Splice): boolean {
  if (a.start === a.end && b.start === b.end) return false;
  return a.start < b.end && b.start < a.end;
}

/** Applies splices that do not overlap; of those at one place the deepest first. */
export function applySplices(text: string, splices: readonly Splice[]): string {
  const ordered = splices.map((splice, index) => ({ splice, index }));
  ordered.sort(
    (a, b) => a.splice.start - b.splice.start || b.splice.depth - a.splice.depth || a.index - b.index,
  );
  let result = "";
  let from = 0;
  for (const { splice } of ordered) {
    result += text.slice(from, splice.start) + splice.text;
    from = splice.end;
  }
  return result + text.slice(from);
}

function wantedFor(entry: YamlDocument, base: Path, edit: Edit): Wanted | undefined {
  const located = locate(entry, [...base, ...edit.path]);
  const complete = located.depth === base.length + edit.path.length;
  const text = entry.source.text;
  const writer: Writer = { text, eol: text.includes("\r\n") ? "\r\n" : "\n", entry };
  const splices = complete
    ? existing(writer, located, edit)
    : edit.kind === "add"
      ? added(writer, located, [...base, ...edit.path], edit.value)
      : undefined;
  if (splices === undefined) return undefined;
  return {
    splices: splices.map((splice) => ({ ...splice, depth: located.depth })),
    votes: votesFor(entry, located),
  };
}

/** Uses of the nodes on the way: each place that reads a shared node must want it changed. */
function votesFor({ document }: YamlDocument, { shared }: Located): number {
  let votes = 1;
  for (const node of new Set(shared)) {
    let uses = 1;
    visit(document, {
      Alias(_, alias) {
        if (alias.source === node.anchor && alias.resolve(document) === node) uses++;
      },
    });
    votes *= uses;
  }
  return votes;
}

interface Writer {
  text: string;
  eol: string;
  entry: YamlDocument;
}

function existing({ text }: Writer, { node, pair, parent }: Located, edit: Edit): Cut[] | undefined {
  if (edit.kind === "remove")
    return pair !== undefined && isMap(parent) ? removed(text, parent, pair) : undefined;
  if (edit.kind === "rename") {
    const key = pair?.key;
    if (!isScalar(key) || key.range == null) return undefined;
    return [{ start: key.range[0], end: key.range[1], text: scalarText(edit.key, quoteOf(key.type)) }];
  }
  if (!isScalar(node) || node.range == null) return undefined;
  const [start, end] = node.range;
  const source = text.slice(start, end);
  // A literal or folded block is more than a word; whoever wrote one must say what was meant.
  if (source.startsWith("|") || source.startsWith(">") || source === "") return undefined;
  if (edit.kind === "quote") return [{ start, end, text: JSON.stringify(source) }];
  if (edit.kind === "set") return [{ start, end, text: scalarText(edit.value, quoteOf(node.type)) }];
  return undefined;
}

type Quote = "" | '"' | "'";

function quoteOf(type: unknown): Quote {
  return type === "QUOTE_DOUBLE" ? '"' : type === "QUOTE_SINGLE" ? "'" : "";
}

/** A string as a YAML scalar: plain where that is a string and was so, else quoted. */
export function scalarText(value: string, quote: Quote): string {
  if (quote === "'" && !/['\n]/.test(value)) return `'${value}'`;
  if (quote === "" && isPlain(value)) return value;
  return JSON.stringify(value);
}

function isPlain(value: string): boolean {
  if (!/^[A-Za-z][A-Za-z0-9._/@-]*(:[A-Za-z0-9._/@-]+)*$/.test(value)) return false;
  return !/^(y|yes|n|no|true|false|on|off|null)$/i.test(value);
}

function removed(text: string, map: YAMLMap, pair: Pair): Cut[] | undefined {
  const key = pair.key;
  if (!isScalar(key) || key.range == null) return undefined;
  const index = map.items.indexOf(pair);
  const value = pair.value as Node | null;
  const end = value?.range?.[1] ?? key.range[1];
  if (map.flow === true) {
    const next = map.items[index + 1]?.key;
    if (isScalar(next) && next.range != null) return [{ start: key.range[0], end: next.range[0], text: "" }];
    const before = map.items[index - 1];
    const previous = (before?.value ?? before?.key) as Node | undefined;
    return [{ start: previous?.range?.[1] ?? key.range[0], end, text: "" }];
  }
  const lineStart = text.lastIndexOf("\n", key.range[0] - 1) + 1;
  const indent = text.slice(lineStart, key.range[0]);
  // Behind a dash or another key's colon the line is not the entry's own.
  if (indent.trim() !== "") return undefined;
  const lineEnd = endOfLine(text, end);
  const comment = /#.*/.exec(text.slice(end, lineEnd))?.[0];
  return comment === undefined
    ? [{ start: lineStart, end: lineEnd, text: "" }]
    : [{ start: key.range[0], end: end + text.slice(end, lineEnd).indexOf("#"), text: "" }];
}

/** Offset behind the line break that ends the line of `offset`. */
function endOfLine(text: string, offset: number): number {
  // The value may have taken its line break along.
  if (offset > 0 && text[offset - 1] === "\n") return offset;
  const found = text.indexOf("\n", offset);
  return found < 0 ? text.length : found + 1;
}

/** Adds what is missing of `path` to the innermost collection that exists. */
function added(writer: Writer, located: Located, path: Path, value: unknown): Cut[] | undefined {
  const [step, ...rest] = path.slice(located.depth);
  if (step === undefined) return undefined;
  const data = rest.reduceRight<unknown>(
    (inner, key) => (typeof key === "number" ? [inner] : { [key]: inner }),
    value,
  );
  const { node, pair } = located;
  if (isMap(node) && typeof step === "string") return addEntry(writer, node, step, data);
  if (isSeq(node) && typeof step === "number") return addItem(writer, node, data);
  const empty = node === null || (isScalar(node) && node.value === null);
  if (!empty || pair === undefined) return undefined;
  return fillEmpty(writer, pair, typeof step === "number" ? [data] : { [step]: data });
}

function addEntry(writer: Writer, map: YAMLMap, key: string, data: unknown): Cut[] | undefined {
  const { text, eol } = writer;
  const last = map.items.at(-1);
  if (map.flow === true) {
    const json = last !== undefined && isScalar(last.key) && quoteOf(last.key.type) === '"';
    return addInFlow(writer, map, map.items, `${flowText(key, json)}: ${flowText(data, json)}`);
  }
  if (last === undefined) return undefined;
  const indent = columnOf(text, startOf(map.items[0]));
  const place = afterLast(text, last, indent);
  if (place === undefined) return undefined;
  const lines = blockLines(key, data, indent, stepOf(writer.entry), sequencesIndented(writer.entry));
  return [insertLines(text, place, lines, eol)];
}

function addItem(writer: Writer, list: YAMLSeq, data: unknown): Cut[] | undefined {
  const { text, eol } = writer;
  const last = list.items.at(-1) as Node | undefined;
  if (list.flow === true) {
    const nodes = list.items as Node[];
    const json = isJsonLike(nodes);
    return addInFlow(writer, list, nodes, flowText(data, json));
  }
  const start = last?.range?.[0];
  if (last === undefined || start === undefined) return undefined;
  const dash = text.lastIndexOf("-", start);
  const indent = columnOf(text, dash);
  const end = last.range?.[1] ?? start;
  const indented = sequencesIndented(writer.entry);
  const lines = itemLines(data, indent, stepOf(writer.entry), indented);
  // A dash in its key's own column: a comment there may speak of the key that follows.
  return [insertLines(text, afterContent(text, start, end, indented ? indent : indent + 1), lines, eol)];
}

function isJsonLike(nodes: readonly Node[]): boolean {
  return nodes.some(
    (node) => isMap(node) && isScalar(node.items[0]?.key) && node.items[0].key.type === "QUOTE_DOUBLE",
  );
}

function addInFlow(
  { text }: Writer,
  collection: YAMLMap | YAMLSeq,
  items: readonly (Pair | Node)[],
  written: string,
): Cut[] | undefined {
  if (collection.range == null) return undefined;
  const [start, end] = collection.range;
  const last = items.at(-1);
  if (last === undefined) return [{ start, end, text: `${text[start]}${written}${text[end - 1]}` }];
  const lastEnd = endOf(last);
  const firstStart = startOf(items[0]);
  if (lastEnd === undefined || firstStart === undefined) return undefined;
  const lead = text.slice(start + 1, firstStart);
  // One entry a line stays one entry a line.
  const separator = /^\s*$/.test(lead) && lead.includes("\n") ? `,${lead}` : ", ";
  return [{ start: lastEnd, end: lastEnd, text: separator + written }];
}

function fillEmpty(writer: Writer, pair: Pair, data: unknown): Cut[] | undefined {
  const { text, eol, entry } = writer;
  const key = pair.key;
  if (!isScalar(key) || key.range == null) return undefined;
  const value = pair.value;
  const valueText = isScalar(value) && value.range != null ? text.slice(value.range[0], value.range[1]) : "";
  // `annotations: ~`, `null` in JSON: written out, so written over.
  if (valueText !== "" && isScalar(value) && value.range != null)
    return [{ start: value.range[0], end: value.range[1], text: flowText(data, quoteOf(key.type) === '"') }];
  const indent = columnOf(text, key.range[0]);
  if (text.slice(text.lastIndexOf("\n", key.range[0] - 1) + 1, key.range[0]).includes("{")) return undefined;
  const step = stepOf(entry);
  const inner = Array.isArray(data)
    ? itemLines(data[0], indent + (sequencesIndented(entry) ? step : 0), step, sequencesIndented(entry))
    : Object.entries(data as Record<string, unknown>).flatMap(([name, child]) =>
        blockLines(name, child, indent + step, step, sequencesIndented(entry)),
      );
  return [insertLines(text, endOfLine(text, key.range[1]), inner, eol)];
}

function startOf(item: Pair | Node | undefined): number | undefined {
  if (item === undefined) return undefined;
  if ("key" in item) return (item.key as Node | null)?.range?.[0];
  return item.range?.[0];
}

function endOf(item: Pair | Node): number | undefined {
  if (!("key" in item)) return item.range?.[1];
  return (item.value as Node | null)?.range?.[1] ?? (item.key as Node | null)?.range?.[1];
}

/** Offset behind the last line that belongs to an entry. */
function afterLast(text: string, last: Pair, indent: number): number | undefined {
  const key = last.key;
  if (!isScalar(key) || key.range == null) return undefined;
  if (columnOf(text, key.range[0]) !== indent) return undefined;
  const value = last.value as Node | null;
  const end = value?.range?.[1] ?? key.range[1];
  return afterContent(text, key.range[0], Math.max(end, key.range[1]), indent);
}

/**
 * Offset behind the lines of a node that begins at `start`, the last of its collection. The node's own
 * range may reach over blank lines and comments that speak of what follows; those from column `own` on are its own.
 */
function afterContent(text: string, start: number, end: number, own: number): number {
  let at = end;
  for (;;) {
    const lineStart = text.lastIndexOf("\n", at - 1) + 1;
    if (lineStart <= start) break;
    const line = text.slice(lineStart, at).trim();
    if (line !== "" && !line.startsWith("#")) break;
    at = lineStart - 1;
  }
  let place = endOfLine(text, Math.max(at, start));
  for (let from = place; from < text.length; ) {
    const lineBreak = text.indexOf("\n", from);
    const to = lineBreak < 0 ? text.length : lineBreak + 1;
    const line = text.slice(from, to);
    if (line.trim() !== "") {
      if (!line.trim().startsWith("#") || line.search(/\S/) < own) break;
      place = to;
    }
    from = to;
  }
  return place;
}

function columnOf(text: string, offset: number | undefined): number {
  if (offset === undefined) return 0;
  return offset - (text.lastIndexOf("\n", offset - 1) + 1);
}

function insertLines(text: string, place: number, lines: readonly string[], eol: string): Cut {
  const block = lines.join(eol);
  // A file without a last line break gets one before, and stays without one.
  const open = place > 0 && text[place - 1] !== "\n";
  return { start: place, end: place, text: open ? eol + block : block + eol };
}

/** `key: value` as lines of block YAML at a column. */
function blockLines(key: string, data: unknown, indent: number, step: number, indented: boolean): string[] {
  const lead = " ".repeat(indent) + scalarText(key, "");
  if (Array.isArray(data))
    return [
      `${lead}:`,
      ...data.flatMap((item) => itemLines(item, indent + (indented ? step : 0), step, indented)),
    ];
  if (isPlainMap(data))
    return [
      `${lead}:`,
      ...Object.entries(data).flatMap(([name, child]) =>
        blockLines(name, child, indent + step, step, indented),
      ),
    ];
  return [`${lead}: ${scalarText(String(data), "")}`];
}

function itemLines(data: unknown, indent: number, step: number, indented: boolean): string[] {
  const lead = `${" ".repeat(indent)}- `;
  if (!isPlainMap(data)) return [lead + scalarText(String(data), "")];
  const lines = Object.entries(data).flatMap(([name, child]) =>
    blockLines(name, child, indent + 2, step, indented),
  );
  const [first = "", ...others] = lines;
  return [lead + first.slice(indent + 2), ...others];
}

function flowText(data: unknown, json: boolean): string {
  if (Array.isArray(data)) return `[${data.map((item) => flowText(item, json)).join(", ")}]`;
  if (isPlainMap(data)) {
    const entries = Object.entries(data).map(
      ([key, child]) => `${flowText(key, json)}: ${flowText(child, json)}`,
    );
    return `{${entries.join(", ")}}`;
  }
  return json ? JSON.stringify(String(data)) : scalarText(String(data), "");
}

/** How far the document indents a map below its key. */
function stepOf({ document, source }: YamlDocument): number {
  let step: number | undefined;
  visit(document, {
    Pair(_, pair) {
      if (!isMap(pair.value) || pair.value.flow === true || !isScalar(pair.key)) return;
      const [first] = pair.value.items;
      const inner = isScalar(first?.key) ? first.key.range?.[0] : undefined;
      if (inner === undefined || pair.key.range == null) return;
      const found = columnOf(source.text, inner) - columnOf(source.text, pair.key.range[0]);
      if (found <= 0) return;
      step = found;
      return visit.BREAK;
    },
  });
  return step ?? 2;
}

/** Whether the document indents the dashes of a list below its key. */
function sequencesIndented({ document, source }: YamlDocument): boolean {
  let indented: boolean | undefined;
  visit(document, {
    Pair(_, pair) {
      if (!isSeq(pair.value) || pair.value.flow === true || !isScalar(pair.key)) return;
      const range = pair.value.range;
      if (range == null || pair.key.range == null) return;
      const [first] = pair.value.items;
      if (isAlias(first)) return;
      indented = columnOf(source.text, range[0]) > columnOf(source.text, pair.key.range[0]);
      return visit.BREAK;
    },
  });
  return indented ?? true;
}

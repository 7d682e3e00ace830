/** Finds a path of an object in the text it came from. */
import { type Alias, isAlias, isMap, isScalar, isSeq, type Node, type Pair, type YAMLMap } from "yaml";
import { keyText } from "./parse.ts";
import type { Path, Region, SourceObject, YamlDocument } from "./types.ts";

/** How far a path leads into a document. */
export interface Located {
  /** How many of its steps exist. */
  depth: number;
  /** The node there; null where a key has no value. */
  node: Node | null;
  /** The entry of the last existing step, when that is a map's. */
  pair?: Pair;
  /** The collection that the last existing step was looked up in. */
  parent?: Node;
  /** Nodes on the way that are written once and used in several places. */
  shared: Node[];
}

/** Follows `path` from the document's top as far as it exists, through aliases and merged maps. */
export function locate({ document }: YamlDocument, path: Path): Located {
  let node: Node | null = document.contents;
  const located: Located = { depth: 0, node, shared: [] };
  for (const step of path) {
    node = resolve(node);
    if (node === null) break;
    let next: Node | null;
    let pair: Pair | undefined;
    if (isMap(node)) {
      pair = entryOf(node, String(step));
      if (pair === undefined) break;
      next = pair.value as Node | null;
    } else if (isSeq(node)) {
      const item = typeof step === "number" ? node.items[step] : undefined;
      if (item === undefined) break;
      next = item as Node | null;
    } else break;
    located.depth++;
    located.parent = node;
    located.pair = pair;
    located.node = next;
    node = next;
  }
  // A value that is itself an alias is found where it is written.
  if (isAlias(located.node)) located.node = resolve(located.node);
  return located;

  function resolve(found: Node | null): Node | null {
    let current = found;
    if (isAlias(current)) {
      const target: Node | undefined = (current as Alias).resolve(document);
      current = target ?? null;
    }
    if (current !== null && !isAlias(current) && current.anchor !== undefined) located.shared.push(current);
    return current;
  }

  function entryOf(map: YAMLMap, key: string): Pair | undefined {
    const own = map.items.findLast((item) => keyText(item.key) === key);
    if (own !== undefined) return own;
    for (const item of map.items) {
      if (keyText(item.key) !== "<<") continue;
      const sources = isSeq(item.value) ? item.value.items : [item.value];
      for (const source of sources) {
        const merged = resolve(source as Node | null);
        const found = isMap(merged) ? entryOf(merged, key) : undefined;
        if (found !== undefined) return found;
      }
    }
    return undefined;
  }
}

/**
 * Where a path is in the text: key and value of an entry with a scalar, else the key; of what is missing, the
 * innermost thing that would hold it.
 *
 * @returns undefined for an object of the API, which has no text
 */
export function regionOf(object: SourceObject, path: Path): Region | undefined {
  const entry = object.document;
  if (entry === undefined) return undefined;
  const { pair, node } = locate(entry, [...object.base, ...path]);
  const key = pair !== undefined && isNode(pair.key) ? pair.key : undefined;
  const first = key ?? node ?? entry.document.contents;
  if (first?.range == null) return undefined;
  const start = first.range[0];
  // An entry that came through an alias or a merge is elsewhere in the text than its value.
  const value = isScalar(node) && node.range != null && node.range[1] >= start ? node : undefined;
  const end = isCollectionNode(first) ? start + 1 : (value?.range?.[1] ?? first.range[1]);
  return { start: entry.position(start), end: entry.position(trimmedEnd(entry, start, end)) };
}

function isNode(value: unknown): value is Node {
  return isScalar(value) || isMap(value) || isSeq(value) || isAlias(value);
}

function isCollectionNode(node: Node): boolean {
  return isMap(node) || isSeq(node);
}

/** Block scalars end with their line break, which is not worth marking. */
function trimmedEnd({ source }: YamlDocument, start: number, end: number): number {
  return start + Math.max(1, source.text.slice(start, end).trimEnd().length);
}

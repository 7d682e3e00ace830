/**
 * Manifests as text into objects whose every field can be found again in the text. YAML is read as kubectl
 * reads it: version 1.1, in which `yes` and `on` are booleans and `<<` merges maps; JSON is YAML.
 */
import {
  isCollection,
  isPair,
  isMap as isYamlMap,
  LineCounter,
  parseAllDocuments,
  type Tags,
  visit,
} from "yaml";
import { isMap, listOf, shown, textOf } from "./shape.ts";
import type { Path, Skipped, SourceFile, SourceObject, Unreadable, YamlDocument } from "./types.ts";

/** Bigger files are refused: etcd takes no object of more than 1.5 MiB, so this is many objects. */
export const fileBytesMax = 16 * 1024 * 1024;
/** YAML documents in one file. */
export const documentsMax = 10_000;
/** Uses of aliases in one document, as a guard against documents that unfold without end. */
export const aliasesMax = 1_000;
/** A List in a List in a List is nobody's manifest. */
const listDepthMax = 3;

export interface Parsed {
  objects: SourceObject[];
  unreadable: Unreadable[];
  skipped: Skipped[];
}

/**
 * Parses one file.
 *
 * @returns the objects of all documents that parse, Lists unfolded; every document that does not is in `unreadable`
 */
export function parseManifests(source: SourceFile): Parsed {
  const parsed: Parsed = { objects: [], unreadable: [], skipped: [] };
  const { name, text } = source;
  const refuse = (reason: string) => parsed.unreadable.push({ file: name, reason });
  if (Buffer.byteLength(text) > fileBytesMax) {
    refuse(`is larger than ${fileBytesMax} bytes; split it`);
    return parsed;
  }
  if (text.includes("\0")) {
    refuse("is not a text file: it has NUL bytes; name YAML or JSON files");
    return parsed;
  }
  const lines = new LineCounter();
  const documents = parseAllDocuments(text, {
    version: "1.1",
    merge: true,
    // kubectl's parser keeps these as strings, unlike the letter of YAML 1.1.
    customTags: (tags) => tags.filter(isKubernetesTag),
    // Reported as a finding with its place instead.
    uniqueKeys: false,
    prettyErrors: false,
    lineCounter: lines,
    logLevel: "error",
  });
  const list = Array.isArray(documents) ? documents : [];
  if (list.length > documentsMax) {
    refuse(`has ${list.length} documents, more than ${documentsMax}; split it`);
    return parsed;
  }
  const position = (offset: number) => {
    const { line, col } = lines.linePos(offset);
    return { line: Math.max(1, line), column: Math.max(1, col) };
  };
  for (const document of list) {
    const [error] = document.errors;
    if (error !== undefined) {
      const reason = `${error.message.replace(/\.$/, "")}${hint(text, error.code)}`;
      parsed.unreadable.push({ file: name, position: position(error.pos[0]), reason });
      continue;
    }
    const { contents } = document;
    if (contents === null || (!isCollection(contents) && document.toJS() === null)) continue;
    const start = position(contents.range[0]);
    const entry: YamlDocument = { document, source, position, duplicates: [] };
    const oddKey = readKeys(entry);
    if (oddKey !== undefined) {
      const reason = "a map or a list is used as a map's key; an unrendered Helm template? Render it first";
      parsed.unreadable.push({ file: name, position: position(oddKey), reason });
      continue;
    }
    let value: unknown;
    try {
      value = document.toJS({ maxAliasCount: aliasesMax });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      parsed.unreadable.push({
        file: name,
        position: start,
        reason: `cannot be unfolded (${why}); a document may use aliases ${aliasesMax} times`,
      });
      continue;
    }
    if (!isMap(value)) {
      parsed.skipped.push({ file: name, line: start.line, what: `${shown(value)} is no object` });
      continue;
    }
    unfold({ file: name, value, base: [], document: entry }, parsed.objects, 0);
  }
  return parsed;
}

function isKubernetesTag(tag: Tags[number]): boolean {
  if (typeof tag === "string") return true;
  const kind = tag.tag.replace("tag:yaml.org,2002:", "");
  return !["timestamp", "omap", "pairs", "set"].includes(kind) && tag.format !== "TIME";
}

function hint(text: string, code: string): string {
  if (text.includes("{{"))
    return "; an unrendered Helm template? Render it first: helm template … | vk-sandbox check -";
  if (code === "TAB_AS_INDENT") return "; indent with spaces";
  return "";
}

/** Adds an object, or the items of a List. */
function unfold(object: SourceObject, into: SourceObject[], depth: number): void {
  const { value, base } = object;
  const items = value.items;
  if (!textOf(value.kind).endsWith("List") || !Array.isArray(items) || depth === listDepthMax) {
    into.push(object);
    return;
  }
  // The API leaves kind and apiVersion out of the items of a typed list.
  const kind = textOf(value.kind).slice(0, -"List".length);
  listOf(items).forEach((item, index) => {
    if (!isMap(item)) return;
    const typed = kind === "" ? item : { apiVersion: value.apiVersion, kind, ...item };
    unfold({ ...object, value: typed, base: [...base, "items", index] }, into, depth + 1);
  });
}

/** Notes every key that its map has already; returns the offset of a key that is no scalar, if there is one. */
function readKeys(entry: YamlDocument): number | undefined {
  let odd: number | undefined;
  visit(entry.document, {
    Map(_, map, ancestors) {
      const seen = new Set<string>();
      for (const pair of map.items) {
        if (isCollection(pair.key)) {
          odd = pair.key.range?.[0] ?? 0;
          return visit.BREAK;
        }
        const key = keyText(pair.key);
        if (key !== "<<" && seen.has(key)) entry.duplicates.push([...pathOf([...ancestors, map]), key]);
        seen.add(key);
      }
    },
  });
  return odd;
}

/** The text of a map's key as it is in plain data. */
export function keyText(key: unknown): string {
  const value: unknown = typeof key === "object" && key !== null && "value" in key ? key.value : key;
  // The parser's own form of a merge key.
  if (typeof value === "symbol") return value.description ?? "";
  return value === null || value === undefined ? "" : String(value);
}

/** The path of the innermost of nested nodes, outermost first. */
function pathOf(ancestors: readonly unknown[]): Path {
  const path: (string | number)[] = [];
  ancestors.forEach((node, depth) => {
    if (isPair(node)) path.push(keyText(node.key));
    else if (isCollection(node) && !isYamlMap(node)) {
      const index = node.items.indexOf(ancestors[depth + 1]);
      if (index >= 0) path.push(index);
    }
  });
  return path;
}

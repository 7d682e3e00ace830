/** The words of the template check: what is read, what a rule says, what becomes of it. */
import type { Document } from "yaml";

/** Place in an object: map keys and list indexes from its top. */
export type Path = readonly (string | number)[];

export type Severity = "error" | "warning" | "info";

/** Who serves a Pod: the three backends of the pod-template contract. */
export type Backend = "sandboxd" | "vk-cocoon" | "standard kubelet";

/** A place in a text, 1-based; columns count UTF-16 code units. */
export interface Position {
  line: number;
  column: number;
}

export interface Region {
  start: Position;
  end: Position;
}

/** One file (or standard input) as it was read. */
export interface SourceFile {
  /** As the user named it, or found below a directory they named; `-` is standard input. */
  name: string;
  /** Without a byte order mark. */
  text: string;
  /** The text began with a byte order mark, which a fix keeps. */
  bom: boolean;
}

/** One object: a YAML document, an item of a List in it, or an object of the API. */
export interface SourceObject {
  /** File name, or `cluster`. */
  file: string;
  /** The object as plain data; every field of it is unknown until looked at. */
  value: Record<string, unknown>;
  /** Where the object is in its document: empty, or `items`, n. */
  base: Path;
  /** The parsed document it is in; absent for an object of the API. */
  document?: YamlDocument;
}

/** A parsed YAML document with what it takes to find a path in its text. */
export interface YamlDocument {
  document: Document.Parsed;
  source: SourceFile;
  position(offset: number): Position;
  /** Keys that a map has twice, as paths; such a document is never fixed. */
  duplicates: Path[];
}

/** A change to a manifest that needs no judgement. Paths are from the object's top. */
export type Edit =
  /** Give a scalar another value. */
  | { kind: "set"; path: Path; value: string }
  /** Keep the scalar's text and make it a string. */
  | { kind: "quote"; path: Path }
  /** Give a map entry another key. */
  | { kind: "rename"; path: Path; key: string }
  /** Add an entry, or an item to a list, with the maps and lists on the way to it. `value`: a string, or plain data. */
  | { kind: "add"; path: Path; value: unknown }
  /** Take a map entry away. */
  | { kind: "remove"; path: Path };

/** What a rule says about one place of one object, before places become lines. */
export interface Hit {
  rule: string;
  /** When it is another than the rule's own. */
  severity?: Severity;
  path: Path;
  /** What will happen, in a sentence or two that make sense without the rule. */
  what: string;
  /** What to do. */
  fix: string;
  edits?: Edit[];
}

export interface Finding {
  rule: string;
  severity: Severity;
  /** File name, `-`, or `cluster`. */
  file: string;
  /** Absent for an object of the API. */
  region?: Region;
  /** `Sandbox team-a/example` */
  object: string;
  /** `spec.podTemplate.spec.tolerations` */
  path: string;
  what: string;
  fix: string;
  /** `--fix` can do it. */
  fixable: boolean;
}

/** An object that was judged, and for whom it is. */
export interface Judged {
  file: string;
  line?: number;
  object: string;
  backend: Backend;
  /** What says so. */
  because: string;
}

/** Something that was left out, and why. */
export interface Skipped {
  file: string;
  line?: number;
  what: string;
}

/** Input that could not be read or parsed. */
export interface Unreadable {
  file: string;
  position?: Position;
  /** What is wrong, and what to do. */
  reason: string;
}

/** One pool of one node's sandboxd. */
export interface PoolFact {
  template: string;
  net: string;
  size: string;
  warm: number;
  target: number;
  /** Node, or the URL of sandboxd. */
  where: string;
}

/** What is known of the nodes' pools; every node that could be asked is in it. */
export interface Pools {
  /** Where it comes from, in words. */
  source: string;
  pools: PoolFact[];
}

/** A Node as far as scheduling to it goes. */
export interface NodeFact {
  name: string;
  labels: Record<string, string>;
  taints: { key: string; value: string; effect: string }[];
  ready: boolean;
}

/** What is known of a live cluster beside the objects. */
export interface ClusterFacts {
  /** Absent when they could not be listed. */
  nodes?: NodeFact[];
  /** Name of the webhook configuration of cocoon-webhook, where one is found. */
  cocoonWebhook?: string;
}

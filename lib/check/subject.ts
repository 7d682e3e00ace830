/** What the check judges: objects with a Pod template, or that point at one. */
import { coreGroup, extensionsGroup, servedVersions } from "./contract.ts";
import { at, isMap, listOf, mapOf, textOf } from "./shape.ts";
import { misspeltKey } from "./spelling.ts";
import type { Path, SourceObject } from "./types.ts";

export type TemplateKind = "Sandbox" | "SandboxTemplate" | "Pod";
export type ReferringKind = "SandboxClaim" | "SandboxWarmPool";

/** An object of a kind that is judged. */
export interface Known {
  object: SourceObject;
  kind: TemplateKind | ReferringKind;
  group: string;
  version: string;
  /** Empty when the manifest leaves it to the command that applies it. */
  namespace: string;
  name: string;
  /** `Sandbox team-a/example` */
  title: string;
  /** Read from the API rather than from a file. */
  live: boolean;
}

/** An object whose Pod is judged. */
export interface Subject extends Known {
  kind: TemplateKind;
  /** Path of the Pod's metadata and of its spec. */
  metaPath: Path;
  specPath: Path;
  /** The Pod's annotations and labels; numbers and booleans as their text, since they are reported as such already. */
  annotations: Record<string, string>;
  labels: Record<string, string>;
  /** Keys that a misspelt annotation was meant to be: reported as misspelt, so not as missing too. */
  meant: ReadonlySet<string>;
  spec: Record<string, unknown>;
  containers: Record<string, unknown>[];
}

const kinds: Readonly<Record<string, string>> = {
  Sandbox: coreGroup,
  SandboxTemplate: extensionsGroup,
  SandboxClaim: extensionsGroup,
  SandboxWarmPool: extensionsGroup,
  Pod: "",
};

/**
 * Recognises an object.
 *
 * @returns what it is, or in words why it is not judged
 */
export function recognise(object: SourceObject): Known | string {
  const { value } = object;
  const kind = textOf(value.kind);
  const apiVersion = textOf(value.apiVersion);
  if (kind === "" || apiVersion === "") return "no Kubernetes object: kind or apiVersion is missing";
  const slash = apiVersion.lastIndexOf("/");
  const group = apiVersion.slice(0, Math.max(0, slash));
  if (!Object.hasOwn(kinds, kind) || kinds[kind] !== group)
    return `${apiVersion} ${kind} is none of the kinds that are judged`;
  const meta = mapOf(value.metadata);
  const namespace = textOf(meta.namespace);
  const name = textOf(meta.name) || (meta.generateName === undefined ? "" : `${textOf(meta.generateName)}…`);
  return {
    object,
    kind: kind as Known["kind"],
    group,
    version: apiVersion.slice(slash + 1),
    namespace,
    name,
    title: `${kind} ${namespace === "" ? "" : `${namespace}/`}${name || "without a name"}`,
    live: object.document === undefined,
  };
}

/** Whether the kind's group serves this version. */
export function isServed({ kind, version }: Known): boolean {
  return kind === "Pod" ? version === "v1" : servedVersions.includes(version);
}

/** Whether the object has a Pod of its own to judge. */
export function isTemplated(known: Known): known is Known & { kind: TemplateKind } {
  return known.kind === "Sandbox" || known.kind === "SandboxTemplate" || known.kind === "Pod";
}

/** The object's Pod, as far as there is one. */
export function subjectOf(known: Known & { kind: TemplateKind }): Subject {
  const { value } = known.object;
  const top: Path = known.kind === "Pod" ? [] : ["spec", "podTemplate"];
  const metaPath = [...top, "metadata"];
  const specPath = [...top, "spec"];
  const spec = mapOf(at(value, ...specPath));
  const annotations = textsOf(at(value, ...metaPath, "annotations"));
  return {
    ...known,
    metaPath,
    specPath,
    annotations,
    meant: new Set(Object.keys(annotations).flatMap((key) => misspeltKey(key)?.meant ?? [])),
    labels: textsOf(at(value, ...metaPath, "labels")),
    spec,
    containers: listOf(spec.containers).filter(isMap),
  };
}

/** The entries of a map as text: what an author meant who forgot the quotes. Null is empty, as the API reads it. */
export function textsOf(value: unknown): Record<string, string> {
  const texts: Record<string, string> = {};
  for (const [key, entry] of Object.entries(mapOf(value))) {
    if (typeof entry === "string") texts[key] = entry;
    else if (typeof entry === "number" || typeof entry === "boolean") texts[key] = String(entry);
    else if (entry === null) texts[key] = "";
  }
  return texts;
}

/** Rules about the manifest itself, whoever the Pod is for. */
import { annotationPath } from "./context.ts";
import { deprecatedVersions, isCocoonKey, isContractKey, isSandboxKey, servedVersions } from "./contract.ts";
import { at, isMap, mapOf, pathText, shown } from "./shape.ts";
import { misspeltKey } from "./spelling.ts";
import { isServed, type Known, type Subject } from "./subject.ts";
import type { Hit, Path } from "./types.ts";

/** Judges what every known kind has: version, keys, and maps of strings. */
export function judgeObject(known: Known): Hit[] {
  const hits: Hit[] = [];
  const { object } = known;
  for (const path of object.document?.duplicates ?? []) {
    if (!object.base.every((step, index) => path[index] === step)) continue;
    const own = path.slice(object.base.length);
    hits.push({
      rule: "manifest/duplicate-key",
      path: own,
      what: `${shown(own.at(-1))} is in this map twice; which one counts depends on who reads the file.`,
      fix: "Remove one of the two.",
    });
  }
  if (!isServed(known)) {
    hits.push({
      rule: "manifest/unserved-version",
      path: ["apiVersion"],
      what: `${known.kind} has no version ${shown(known.version)}; the API server refuses the object.`,
      fix: `Use ${known.kind === "Pod" ? "v1" : `${known.group}/${servedVersions[0]}`}.`,
    });
  } else if (deprecatedVersions.includes(known.version) && !known.live) {
    hits.push({
      rule: "manifest/deprecated-version",
      path: ["apiVersion"],
      what: `${known.group}/${known.version} is deprecated; it goes with one of the next releases of the CRDs.`,
      fix: `Move to ${known.group}/${servedVersions[0]}${movedFields[known.kind] ?? ""}.`,
    });
  }
  for (const path of stringMaps(known)) hits.push(...notStrings(known, path));
  return hits;
}

const movedFields: Readonly<Record<string, string>> = {
  Sandbox: "; spec.replicas 1 and 0 became spec.operatingMode Running and Suspended",
  SandboxClaim: "; spec.sandboxTemplateRef became spec.warmPoolRef",
};

function stringMaps(known: Known): Path[] {
  const own: Path[] = [
    ["metadata", "annotations"],
    ["metadata", "labels"],
  ];
  if (known.kind === "Pod") return [...own, ["spec", "nodeSelector"]];
  if (known.kind === "SandboxClaim")
    return [
      ...own,
      ["spec", "additionalPodMetadata", "annotations"],
      ["spec", "additionalPodMetadata", "labels"],
    ];
  if (known.kind === "SandboxWarmPool") return own;
  const template = ["spec", "podTemplate"];
  return [
    ...own,
    [...template, "metadata", "annotations"],
    [...template, "metadata", "labels"],
    [...template, "spec", "nodeSelector"],
  ];
}

function notStrings(known: Known, path: Path): Hit[] {
  const hits: Hit[] = [];
  for (const [key, value] of Object.entries(mapOf(at(known.object.value, ...path)))) {
    if (typeof value === "string" || value === null) continue;
    const scalar = typeof value === "number" || typeof value === "boolean";
    const kind = Array.isArray(value) ? "list" : typeof value === "object" ? "map" : typeof value;
    hits.push({
      rule: "manifest/not-a-string",
      path: [...path, key],
      what: `${key} is a ${kind} (${shown(value)}) where only strings are allowed; the API server refuses the object.`,
      fix: scalar ? `Quote it: "${value}".` : "Make it a string.",
      edits: scalar ? [{ kind: "quote", path: [...path, key] }] : undefined,
    });
  }
  return hits;
}

/** Judges that there is a Pod template at all, and where its annotations are. */
export function judgeTemplate(subject: Subject): Hit[] {
  const hits: Hit[] = [];
  const { value } = subject.object;
  if (subject.kind !== "Pod" && !isMap(at(value, "spec", "podTemplate", "spec"))) {
    hits.push({
      rule: "manifest/no-pod-template",
      path: ["spec", "podTemplate", "spec"],
      what: `${subject.kind} has no spec.podTemplate.spec; the API server refuses the object.`,
      fix: "Write the Pod template: metadata.annotations and spec.",
    });
    return hits;
  }
  if (subject.containers.length === 0)
    hits.push({
      rule: "manifest/no-pod-template",
      path: [...subject.specPath, "containers"],
      what: "There are no containers, and the API server refuses a Pod without one.",
      fix: "Name one container; on a microVM node its image should equal the pool template.",
    });
  hits.push(...misplaced(subject), ...misspelt(subject));
  return hits;
}

function misplaced(subject: Subject): Hit[] {
  const hits: Hit[] = [];
  const places: Path[] = [[...subject.metaPath, "labels"]];
  if (subject.kind !== "Pod") places.push(["metadata", "annotations"], ["metadata", "labels"]);
  const target = pathText([...subject.metaPath, "annotations"]);
  for (const place of places)
    for (const key of Object.keys(mapOf(at(subject.object.value, ...place)))) {
      if (!isContractKey(key) || misspeltKey(key) !== undefined || ownLabels.has(key)) continue;
      const there = Object.hasOwn(subject.annotations, key);
      hits.push({
        rule: "manifest/misplaced-annotation",
        severity: there ? "warning" : "error",
        path: [...place, key],
        what: there
          ? `${key} is read from ${target} only; here it does nothing.`
          : `${key} is read from ${target} only; here it does nothing, and the Pod comes without it.`,
        fix: there ? "Remove it here." : `Move it to ${target}.`,
      });
    }
  return hits;
}

/** Labels that controllers of both providers put on their objects themselves. */
const ownLabels = new Set([
  "cocoonset.cocoonstack.io/name",
  "sandbox.cocoonstack.io/node",
  "sandbox.cocoonstack.io/phase",
  "sandbox.cocoonstack.io/claim",
  // Of a Node; harmless, and common on Pods that are counted by it.
  "sandbox.cocoonstack.io/runtime",
]);

function misspelt(subject: Subject): Hit[] {
  const hits: Hit[] = [];
  for (const key of Object.keys(subject.annotations)) {
    const found = misspeltKey(key);
    if (found === undefined) continue;
    const path = annotationPath(subject, key);
    if (found.meant === undefined) {
      const reader = isSandboxKey(key) ? "vk-sandbox" : isCocoonKey(key) ? "vk-cocoon" : "No provider";
      hits.push({
        rule: "manifest/unknown-annotation",
        path,
        what: `${reader} reads no annotation ${key}; it does nothing.`,
        fix: "Remove it, or look up the key that was meant in docs/check.md.",
      });
      continue;
    }
    const taken = Object.hasOwn(subject.annotations, found.meant);
    hits.push({
      rule: "manifest/misspelt-annotation",
      path,
      what: `Nothing reads ${key}; ${taken ? `${found.meant} is there beside it` : "the node sees a Pod without it"}.`,
      fix: taken ? `Remove it; ${found.meant} counts.` : `Write ${found.meant}.`,
      edits: taken ? undefined : [{ kind: "rename", path, key: found.meant }],
    });
  }
  return hits;
}

/** Rules about several objects: what points at what, and what two of them share. */
import { claimIdKey, isSandboxKey, vmNameKey } from "./contract.ts";
import { at, isMap, listOf, mapOf, shown, textOf } from "./shape.ts";
import type { Known, Subject } from "./subject.ts";
import type { Backend, Hit, SourceObject } from "./types.ts";

/** One hit and the object it is about. */
export interface Related {
  object: SourceObject;
  known: Known;
  hit: Hit;
}

/** All objects of one check. */
export interface Everything {
  known: readonly Known[];
  subjects: readonly { subject: Subject; backend: Backend }[];
  /** The objects are all that the namespaces hold, so that what is missing is missing. */
  complete: boolean;
}

/** `namespace/name` of SandboxTemplates that a SandboxWarmPool names. */
export function pooledTemplates(known: readonly Known[]): ReadonlySet<string> {
  return new Set(
    known
      .filter(({ kind }) => kind === "SandboxWarmPool")
      .map((pool) => `${pool.namespace}/${templateRef(pool)}`),
  );
}

function templateRef({ object }: Known): string {
  return textOf(at(object.value, "spec", "sandboxTemplateRef", "name"));
}

/** Judges the objects of one check against each other. */
export function judgeRelations(all: Everything): Related[] {
  return [...references(all), ...sharedNames(all)];
}

function references({ known, subjects, complete }: Everything): Related[] {
  const related: Related[] = [];
  const exists = (kind: string, namespace: string, name: string) =>
    known.find((other) => other.kind === kind && other.namespace === namespace && other.name === name);
  const severity = complete ? ("error" as const) : undefined;
  const where = complete ? "in the namespace" : "among what was checked";
  for (const one of known) {
    const push = (hit: Hit) => related.push({ object: one.object, known: one, hit });
    if (one.kind === "SandboxWarmPool") {
      const name = templateRef(one);
      if (name === "" || exists("SandboxTemplate", one.namespace, name) !== undefined) continue;
      push({
        rule: "pool/template-missing",
        severity,
        path: ["spec", "sandboxTemplateRef", "name"],
        what: `No SandboxTemplate ${shown(name)} is ${where}; the pool stays empty until there is one.`,
        fix: complete
          ? "Create it, or name one that there is."
          : "Check the file that has it along, or use --cluster.",
      });
    }
    if (one.kind !== "SandboxClaim") continue;
    const pool = textOf(at(one.object.value, "spec", "warmPoolRef", "name"));
    const direct = templateRef(one);
    const found = pool === "" ? undefined : exists("SandboxWarmPool", one.namespace, pool);
    if (pool !== "" && found === undefined)
      push({
        rule: "claim/pool-missing",
        severity,
        path: ["spec", "warmPoolRef", "name"],
        what: `No SandboxWarmPool ${shown(pool)} is ${where}; the claim waits until there is one.`,
        fix: complete
          ? "Create it, or name one that there is."
          : "Check the file that has it along, or use --cluster.",
      });
    if (direct !== "" && exists("SandboxTemplate", one.namespace, direct) === undefined)
      push({
        rule: "claim/template-missing",
        severity,
        path: ["spec", "sandboxTemplateRef", "name"],
        what: `No SandboxTemplate ${shown(direct)} is ${where}; the claim waits until there is one.`,
        fix: complete
          ? "Create it, or name one that there is."
          : "Check the file that has it along, or use --cluster.",
      });
    for (const hit of claimFields(one, direct || (found === undefined ? "" : templateRef(found)), subjects))
      push(hit);
  }
  return related;
}

/** What a claim adds to Pods that are, by the template, for sandboxd. */
function claimFields(claim: Known, template: string, subjects: Everything["subjects"]): Hit[] {
  const hits: Hit[] = [];
  const spec = mapOf(claim.object.value.spec);
  const backend = subjects.find(
    ({ subject }) =>
      subject.kind === "SandboxTemplate" &&
      subject.namespace === claim.namespace &&
      subject.name === template,
  )?.backend;
  for (const key of Object.keys(mapOf(at(spec, "additionalPodMetadata", "annotations")))) {
    if (!isSandboxKey(key)) continue;
    hits.push({
      rule: "claim/annotation-late",
      severity: key === claimIdKey ? "error" : undefined,
      path: ["spec", "additionalPodMetadata", "annotations", key],
      what: `The sandbox has its VM before it is claimed; ${key} comes too late to choose another.`,
      fix: "Put it into the SandboxTemplate, one template for each kind of VM.",
    });
  }
  if (backend !== "sandboxd") return hits;
  for (const field of ["env", "volumeClaimTemplates"])
    if (listOf(spec[field]).length > 0)
      hits.push({
        rule: "claim/ignored-field",
        path: ["spec", field],
        what: `${field} does not reach the VM: a sandboxd node makes no containers and mounts no volumes.`,
        fix: "Hand it over through the sandbox SDK once the sandbox runs.",
      });
  return hits;
}

/** VM names that two objects carry; a live Pod repeats its Sandbox's. */
function sharedNames({ subjects }: Everything): Related[] {
  const related: Related[] = [];
  const first = new Map<string, Subject>();
  for (const { subject, backend } of subjects) {
    const name = subject.annotations[vmNameKey] ?? "";
    if (backend !== "vk-cocoon" || name === "" || subject.kind === "SandboxTemplate") continue;
    const other = first.get(name);
    if (other === undefined) {
      first.set(name, subject);
      continue;
    }
    if (isPodOf(subject, other) || isPodOf(other, subject)) continue;
    related.push({
      object: subject.object,
      known: subject,
      hit: {
        rule: "cocoon/name-shared",
        path: [...subject.metaPath, "annotations", vmNameKey],
        what: `${other.title} in ${other.object.file} names the VM ${shown(name)} too: the later Pod adopts the earlier one's VM.`,
        fix: "Give each its own VM name.",
      },
    });
  }
  return related;
}

function isPodOf(pod: Subject, owner: Subject): boolean {
  if (pod.kind !== "Pod" || owner.kind !== "Sandbox" || pod.namespace !== owner.namespace) return false;
  return listOf(at(pod.object.value, "metadata", "ownerReferences"))
    .filter(isMap)
    .some((ref) => ref.kind === "Sandbox" && ref.name === owner.name);
}

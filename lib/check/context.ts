/** What a judgement rests on beside the object itself. */
import type { Verdict } from "./backend.ts";
import type { Subject } from "./subject.ts";
import type { ClusterFacts, Hit, Path, Pools } from "./types.ts";

export interface Context {
  /** Labels by which sandboxd nodes are chosen: the contract's, or those of the operator's `--node-labels`. */
  nodeLabels: Readonly<Record<string, string>>;
  /** Absent when no sandboxd and no inventory was asked. */
  pools?: Pools;
  /** Absent when no cluster was asked. */
  cluster?: ClusterFacts;
  /** Milliseconds since the epoch. */
  nowMs: number;
}

/** One subject with all that its judges need. */
export interface Case {
  subject: Subject;
  verdict: Verdict;
  context: Context;
  /** SandboxTemplate only: a SandboxWarmPool that was read refers to it. */
  pooled: boolean;
}

/** Path of an annotation of the subject's Pod. */
export function annotationPath(subject: Subject, key: string): Path {
  return [...subject.metaPath, "annotations", key];
}

/** Path below the subject's Pod spec. */
export function specPath(subject: Subject, ...path: Path): Path {
  return [...subject.specPath, ...path];
}

/** The edit that lets the Pod onto a virtual node. */
export function tolerationEdit(subject: Subject): NonNullable<Hit["edits"]>[number] {
  return {
    kind: "add",
    path: specPath(subject, "tolerations", Number.POSITIVE_INFINITY),
    value: { key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" },
  };
}

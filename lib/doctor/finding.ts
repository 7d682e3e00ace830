/** What a check comes to, in words for the operator who reads it. */

/** The headings of the report, in order. */
export const groups = ["host", "state", "sandboxd", "cluster"] as const;
export type Group = (typeof groups)[number];

/** `skipped`: could not be looked at, and `found` says what kept it. It is never a quiet pass. */
export type Status = "pass" | "warn" | "fail" | "skipped";

/** One line of the report. */
export interface Finding {
  /** `state.lock`: stable, for scripts and for docs/troubleshooting.md. */
  id: string;
  group: Group;
  status: Status;
  /** What is there now: a fact with its numbers. */
  found: string;
  /** Why it matters: what goes wrong when it is not right. */
  why: string;
  /** What to do, as a command where there is one; empty when nothing is to be done. */
  todo: string;
}

/** What a check returns; id, group and the usual `why` come from its declaration. */
export interface Outcome {
  status: Status;
  found: string;
  /** Instead of the declaration's, where this outcome matters for another reason. */
  why?: string;
  todo?: string;
}

export function pass(found: string): Outcome {
  return { status: "pass", found };
}

export function warn(found: string, todo: string, why?: string): Outcome {
  return { status: "warn", found, todo, why };
}

export function fail(found: string, todo: string, why?: string): Outcome {
  return { status: "fail", found, todo, why };
}

/** @param found what kept the check from being made */
export function skipped(found: string, todo = ""): Outcome {
  return { status: "skipped", found, todo };
}

/** Counts by status. */
export type Tally = Record<Status, number>;

export function tally(findings: readonly Finding[]): Tally {
  const counts: Tally = { pass: 0, warn: 0, fail: 0, skipped: 0 };
  for (const { status } of findings) counts[status]++;
  return counts;
}

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

/** `1 Pod`, `3 Pods`. */
export function count(n: number, one: string, many = `${one}s`): string {
  return `${n} ${n === 1 ? one : many}`;
}

/** `a, b and c`. */
export function listed(words: readonly string[]): string {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** A span of time as a person says it: `850 ms`, `12 s`, `3 min`, `5 h`, `2 d`. Two units where one is too coarse. */
export function span(ms: number): string {
  const abs = Math.abs(Math.round(ms));
  if (abs < 1000) return `${abs} ms`;
  if (abs < 100_000) return `${Math.round(abs / 1000)} s`;
  const minutes = Math.round(abs / 60_000);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h${minutes % 60 === 0 ? "" : ` ${minutes % 60} min`}`;
  const days = Math.floor(hours / 24);
  return `${days} d${hours % 24 === 0 ? "" : ` ${hours % 24} h`}`;
}

/** Bytes in binary units with three figures: `512 MiB`, `1.5 GiB`. */
export function bytes(n: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = n;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${units[unit]}`;
}

import type { OwnerState } from "./types.ts";

/** What may happen to a claim whose Pod is going or gone, and the evidence in words. */
export interface Verdict {
  release: boolean;
  reason: string;
  /** The owner lives and asks for no running VM (spec.operatingMode: Suspended). */
  suspended: boolean;
}

/**
 * Decides about a claim from one quorum read of its authority (contract: Delete, the verdict table).
 * Release needs a reply that proves the authority's end; everything else preserves, since a VM destroyed
 * by mistake cannot be given back.
 *
 * @param authority UID that may decide: the controller owner's, or the Pod's own for a bare Pod
 * @param subject what was read, in words, e.g. `Sandbox agent-1`
 * @param state what the read came to
 */
export function verdict(authority: string, subject: string, state: OwnerState): Verdict {
  const preserve = (reason: string, suspended = false): Verdict => ({ release: false, reason, suspended });
  const release = (reason: string): Verdict => ({ release: true, reason, suspended: false });
  switch (state.kind) {
    case "failed":
      return preserve(`${subject} could not be read: ${state.why}`);
    case "not_found":
      return state.named
        ? release(`${subject} is gone`)
        : preserve(`404 that does not name ${subject}: the address may be wrong, its end is not proven`);
    case "found":
      if (authority === "") return preserve(`${subject} lives, and the claim names no authority`);
      if (state.uid !== authority) return release(`${subject} was made anew (its UID is another)`);
      if (state.deleting) return release(`${subject} is being deleted`);
      if (state.expired) return release(`${subject} has expired`);
      return preserve(`${subject} lives${state.suspended ? ", suspended" : ""}`, state.suspended);
  }
}

/** The grounds of a verdict, as metrics name them. */
const GROUNDS: readonly (readonly [string, RegExp])[] = [
  // These two end in somebody else's words, so they are looked for first.
  ["superseded", /^superseded: /],
  ["unreadable", / could not be read: /],
  ["gone", / is gone$/],
  ["being_deleted", / is being deleted$/],
  ["made_anew", / was made anew /],
  ["expired", / has expired$/],
  ["bare_pod_deleted", /^the bare Pod was deleted$/],
  ["suspended", / lives, suspended$/],
  ["alive", / lives$/],
  ["not_named", /^404 that does not name /],
  ["no_authority", /names no authority/],
];

/**
 * The ground of a verdict's reason: a word from a fixed set, for metrics, where a sentence with names in it would
 * make a series for each Pod.
 *
 * @param reason as `verdict` gives it, or as the core notes it for `preserved` and `release_decided`
 */
export function groundOf(reason: string): string {
  return GROUNDS.find(([, sentence]) => sentence.test(reason))?.[0] ?? "other";
}

import type { Plan } from "./plan.ts";
import { replay, type Step } from "./simulation.ts";

/** Replays spent on one trace at most. */
const REPLAYS_MAX = 3_000;

/**
 * Cuts a failing list of actions down to a short one that still fails with the same kind of violation.
 *
 * @param violation the message of the run that failed
 */
export function shrink(plan: Plan, steps: readonly Step[], violation: string): Step[] {
  const kind = kindOf(violation);
  let left = [...steps];
  let replays = 0;
  for (let size = Math.ceil(left.length / 2); size >= 1; ) {
    let cut = false;
    for (let at = left.length - size; at > -size && replays < REPLAYS_MAX; at -= size) {
      const from = Math.max(0, at);
      const shorter = [...left.slice(0, from), ...left.slice(at + size)];
      replays++;
      const result = replay(plan, shorter);
      if (result.violation === undefined || kindOf(result.violation) !== kind) continue;
      // Actions that no longer take place fall away with it.
      left = result.steps;
      cut = true;
    }
    if (!cut || size > left.length) size = size === 1 ? 0 : Math.ceil(size / 2);
  }
  return left;
}

/** A violation without the names in it. */
export function kindOf(violation: string): string {
  return (violation.split("\n")[0] ?? "").replace(/\d+/g, "N").replace(/(, (ns\/p|sb_)N)+/g, "");
}

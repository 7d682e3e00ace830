import type { Note } from "../provider/types.ts";

/** Notes of one kind about one Pod that are told within the window. */
export const quietBurst = 10;
export const quietWindowMs = 600_000;
/** Pods remembered; the one that was quiet the longest is forgotten first. */
export const quietPodsMax = 1024;

/**
 * What whoever may edit a Pod can have said again and again, by one change of an annotation each: no VM's fate is in
 * them. Everything else is told every time.
 */
const provocable: ReadonlySet<Note["kind"]> = new Set(["refused", "unrecoverable"]);

export interface Quiet {
  /**
   * Whether a note is to be told.
   *
   * @returns undefined when it has been told often enough; otherwise how many were left out before it
   */
  admit(note: Pick<Note, "kind" | "key">, nowMs: number): number | undefined;
}

/**
 * Keeps a Pod that somebody edits in a loop from filling the log, and from pushing other Pods' history out of the
 * ledger, which is bounded. Per Pod name and not per UID, since a Pod can be made anew in a loop too.
 */
export function createQuiet(): Quiet {
  const told = new Map<string, { count: number; sinceMs: number; leftOut: number }>();
  return {
    admit({ kind, key }, nowMs) {
      if (!provocable.has(kind)) return 0;
      const name = `${kind} ${key}`;
      let entry = told.get(name);
      told.delete(name);
      // A clock that was set back must not silence a Pod for longer.
      if (entry === undefined || Math.abs(nowMs - entry.sinceMs) >= quietWindowMs)
        entry = { count: 0, sinceMs: nowMs, leftOut: entry?.leftOut ?? 0 };
      told.set(name, entry);
      if (told.size > quietPodsMax)
        for (const oldest of told.keys()) {
          told.delete(oldest);
          break;
        }
      if (entry.count >= quietBurst) {
        entry.leftOut++;
        return undefined;
      }
      entry.count++;
      const { leftOut } = entry;
      entry.leftOut = 0;
      return leftOut;
    },
  };
}

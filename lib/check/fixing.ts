/** `--fix` for one file: mend, read again, check again, until nothing is left that can be mended. */
import type { CheckResult } from "./check.ts";
import { applySplices, splicesFor } from "./fix.ts";
import { parseManifests } from "./parse.ts";
import type { SourceFile, SourceObject } from "./types.ts";

/** One mend can uncover another (a quoted value that is then seen to be wrong); more rounds are a fault. */
export const roundsMax = 8;

export type FixResult =
  | {
      ok: true;
      text: string;
      /** Rules that were mended, with how often. */
      mended: Map<string, number>;
    }
  | {
      ok: false;
      /** Why the file stays as it is, and what to do. */
      reason: string;
    };

/**
 * Mends a file's mechanical mistakes.
 *
 * @param check judges the objects of this file alone
 * @returns the corrected text, equal to the old one when nothing was to be done; or why it was left alone
 */
export function fixText(
  source: SourceFile,
  check: (objects: readonly SourceObject[]) => CheckResult,
): FixResult {
  let current = source;
  let parsed = parseManifests(current);
  const [unreadable] = parsed.unreadable;
  if (unreadable !== undefined)
    return { ok: false, reason: "has documents that do not parse; mend those first" };
  let result = check(parsed.objects);
  const mended = new Map<string, number>();
  for (let round = 0; round < roundsMax; round++) {
    const fixable = result.findings.filter(({ source: { hit } }) => hit.edits !== undefined);
    const splices = splicesFor(
      fixable.map(({ source: { object, hit } }) => ({ object, edits: hit.edits ?? [] })),
    );
    if (splices.length === 0) break;
    const next: SourceFile = { ...current, text: applySplices(current.text, splices) };
    const reparsed = parseManifests(next);
    const rechecked = check(reparsed.objects);
    // The text is only ever written when a machine that knows nothing of the edits finds it better than before.
    if (reparsed.unreadable.length > 0 || errors(rechecked) > errors(result))
      return {
        ok: false,
        reason: "could not be mended without breaking something else; mend it by hand",
      };
    countMended(mended, result, rechecked);
    current = next;
    parsed = reparsed;
    result = rechecked;
  }
  return { ok: true, text: current.text, mended };
}

function errors({ findings }: CheckResult): number {
  return findings.filter(({ severity }) => severity === "error").length;
}

function countMended(mended: Map<string, number>, before: CheckResult, after: CheckResult): void {
  const left = new Map<string, number>();
  for (const { rule } of after.findings) left.set(rule, (left.get(rule) ?? 0) + 1);
  const had = new Map<string, number>();
  for (const { rule, fixable } of before.findings) if (fixable) had.set(rule, (had.get(rule) ?? 0) + 1);
  for (const [rule, count] of had) {
    const gone = count - (left.get(rule) ?? 0);
    if (gone > 0) mended.set(rule, (mended.get(rule) ?? 0) + gone);
  }
}

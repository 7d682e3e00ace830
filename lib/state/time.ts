/** Times of the table on disk: RFC 3339 as Go's encoding/json writes and reads it. */

const shape = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$/;
const LAST_MS = 253_402_300_799_999; // 9999-12-31T23:59:59.999Z, the last that RFC 3339 can say

/**
 * Milliseconds since the epoch of an RFC 3339 time with up to nanoseconds; 0 for Go's zero time and for
 * anything before the epoch; undefined when it is not a time.
 */
export function parseRfc3339(text: string): number | undefined {
  if (!shape.test(text)) return undefined;
  const ms = Date.parse(text);
  if (Number.isNaN(ms)) return undefined;
  return Math.max(ms, 0);
}

/** The time as Go reads it; null for 0, which is how metav1.Time writes its zero. */
export function formatRfc3339(ms: number): string | null {
  if (!(ms > 0)) return null;
  const text = new Date(Math.min(Math.floor(ms), LAST_MS)).toISOString();
  return text.endsWith(".000Z") ? `${text.slice(0, -5)}Z` : text;
}

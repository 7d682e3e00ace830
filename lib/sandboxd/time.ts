const shape = /^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$/;

/**
 * Milliseconds since the epoch of an RFC 3339 time of sandboxd's, nanoseconds cut off. Go's zero time (year
 * 1), an empty text and none at all are 0, which as a deadline means "kept for ever" (facts: sandboxd's API).
 * @returns undefined when it is something else
 */
export function parseTime(value: unknown): number | undefined {
  if (value === undefined || value === null || value === "") return 0;
  if (typeof value !== "string" || !shape.test(value)) return undefined;
  const ms = Date.parse(value);
  return Number.isNaN(ms) ? undefined : Math.max(ms, 0);
}

import * as v from "valibot";

/**
 * metav1.Status as an API server sends it with an error (apimachinery meta/v1 types.go). Only what decisions
 * and messages need; a Status without details has an empty `detailsName`.
 */
export interface ApiStatus {
  code: number;
  /** Machine-readable: NotFound, Conflict, Expired, Invalid, TooManyRequests … Empty when absent. */
  reason: string;
  message: string;
  detailsName: string;
  detailsKind: string;
  /** details.retryAfterSeconds in milliseconds; 0 when absent. */
  retryAfterMs: number;
}

const optional = <const S extends v.GenericSchema>(schema: S) => v.nullish(schema);

const statusSchema = v.object({
  kind: v.literal("Status"),
  status: optional(v.string()),
  code: optional(v.pipe(v.number(), v.integer())),
  reason: optional(v.string()),
  message: optional(v.string()),
  details: optional(
    v.object({
      name: optional(v.string()),
      kind: optional(v.string()),
      retryAfterSeconds: optional(v.number()),
    }),
  ),
});

/** Reads a metav1.Status. Returns undefined for anything else, so that a proxy's page is never taken for one. */
export function parseStatus(value: unknown): ApiStatus | undefined {
  const parsed = v.safeParse(statusSchema, value);
  if (!parsed.success) return undefined;
  const { code, reason, message, details } = parsed.output;
  return {
    code: code ?? 0,
    reason: reason ?? "",
    message: message ?? "",
    detailsName: details?.name ?? "",
    detailsKind: details?.kind ?? "",
    retryAfterMs: Math.max(0, (details?.retryAfterSeconds ?? 0) * 1000),
  };
}

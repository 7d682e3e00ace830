/** The ledger as the `audit` verb reads it, beside the running daemon. */
import type { Database } from "bun:sqlite";
import { existsSync } from "node:fs";
import * as v from "valibot";
import { SCHEMA_VERSION } from "./schema.ts";

/** Rows in one answer. */
export const QUERY_ROWS_MAX = 10_000;

export interface LedgerQuery {
  /** A Pod key, or a Pod's name in any namespace. */
  pod?: string;
  /** A claim id. */
  id?: string;
  /** Decisions at or after this time. */
  sinceMs?: number;
  /** Only rows with a higher number, oldest first: for following. Without it the newest `limit` rows. */
  afterRow?: number;
  /** At most QUERY_ROWS_MAX. */
  limit: number;
}

/** A decision as it was recorded. */
export interface LedgerRow {
  row: number;
  atMs: number;
  kind: string;
  /** The Pod key. */
  key: string;
  id: string;
  podUID: string;
  reason: string;
  cause?: string;
}

export type LedgerAnswer =
  /** Oldest first. */
  { ok: true; rows: LedgerRow[] } | { ok: false; kind: "missing" | "unreadable"; message: string };

const text = v.string();
const rowSchema = v.pipe(
  v.object({
    row: v.number(),
    at_ms: v.number(),
    kind: text,
    pod: text,
    id: text,
    pod_uid: text,
    reason: text,
    cause: v.nullable(text),
  }),
  v.transform(
    (row): LedgerRow => ({
      row: row.row,
      atMs: row.at_ms,
      kind: row.kind,
      key: row.pod,
      id: row.id,
      podUID: row.pod_uid,
      reason: row.reason,
      ...(row.cause === null ? {} : { cause: row.cause }),
    }),
  ),
);

/**
 * Reads decisions, oldest first. Takes no lock that the daemon would wait for.
 * @param path the database file, `audit.db` beside the claims table
 */
export async function queryLedger(path: string, query: LedgerQuery): Promise<LedgerAnswer> {
  if (!existsSync(path)) {
    return {
      ok: false,
      kind: "missing",
      message: `${path} does not exist: no decision has been recorded here yet`,
    };
  }
  let database: Database | undefined;
  try {
    const { Database } = await import("bun:sqlite");
    database = new Database(path, { readonly: true });
    database.run("PRAGMA busy_timeout = 1000");
    const version =
      database.query<{ user_version: number }, []>("PRAGMA user_version").get()?.user_version ?? 0;
    if (version > SCHEMA_VERSION) {
      return unreadable(
        path,
        `it is in format ${version} and this program reads ${SCHEMA_VERSION}: use the newer program`,
      );
    }
    const { where, values } = conditions(query);
    const limit = Math.max(0, Math.min(query.limit, QUERY_ROWS_MAX));
    const order = query.afterRow === undefined ? "DESC" : "ASC";
    const found = database
      .query<unknown, (string | number)[]>(`SELECT * FROM decisions ${where} ORDER BY row ${order} LIMIT ?`)
      .all(...values, limit);
    const rows = v.safeParse(v.array(rowSchema), found, { abortEarly: true });
    if (!rows.success) return unreadable(path, "its table is not the ledger's");
    return { ok: true, rows: order === "DESC" ? rows.output.reverse() : rows.output };
  } catch (error) {
    return unreadable(path, (error as Error).message);
  } finally {
    database?.close();
  }
}

function conditions(query: LedgerQuery): { where: string; values: (string | number)[] } {
  const parts: string[] = [];
  const values: (string | number)[] = [];
  const add = (part: string, ...given: (string | number)[]) => {
    parts.push(part);
    values.push(...given);
  };
  if (query.pod !== undefined) {
    if (query.pod.includes("/")) add("pod = ?", query.pod);
    else add("substr(pod, instr(pod, '/') + 1) = ?", query.pod);
  }
  if (query.id !== undefined) add("id = ?", query.id);
  if (query.sinceMs !== undefined) add("at_ms >= ?", query.sinceMs);
  if (query.afterRow !== undefined) add("row > ?", query.afterRow);
  return { where: parts.length === 0 ? "" : `WHERE ${parts.join(" AND ")}`, values };
}

function unreadable(path: string, why: string): LedgerAnswer {
  return { ok: false, kind: "unreadable", message: `${path} cannot be read as the audit ledger: ${why}` };
}

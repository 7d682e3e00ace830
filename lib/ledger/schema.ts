/** The ledger's one table. */

/** Raised with any change that an older program could not read. */
export const SCHEMA_VERSION = 1;

/**
 * No index: the table is bounded, and reading all of it takes some tens of milliseconds, while every index
 * would cost the daemon at each decision. AUTOINCREMENT, so that a reader who follows by row number is never
 * shown a number twice.
 */
export const CREATE = `CREATE TABLE IF NOT EXISTS decisions (
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  pod TEXT NOT NULL,
  id TEXT NOT NULL,
  pod_uid TEXT NOT NULL,
  reason TEXT NOT NULL,
  cause TEXT
) STRICT`;

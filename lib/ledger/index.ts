/** The audit ledger: what was decided about each VM, when, on what evidence. */

export type { LedgerAnswer, LedgerQuery, LedgerRow } from "./reader.ts";
export { QUERY_ROWS_MAX, queryLedger } from "./reader.ts";
export type { Ledger, LedgerOptions, LedgerStats } from "./writer.ts";
export { openLedger } from "./writer.ts";

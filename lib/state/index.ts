/** The claims table on disk. */

export type { StateFs } from "./fs.ts";
export { realFs } from "./fs.ts";
export type { Holder, OpenFault, Refused } from "./place.ts";
export { isOwnName, pathsOf, recordedHolder } from "./place.ts";
export type { ReadOnlyTable, ShownRow } from "./readonly.ts";
export { readTableReadOnly } from "./readonly.ts";
export type { Committed, Store, StoreOptions, StoreStats, Trouble } from "./store.ts";
export { openStore } from "./store.ts";

import type { Change, Table } from "./types.ts";

/** A table without anything in it. */
export function emptyTable(): Table {
  return { rows: new Map(), intents: new Map(), releasing: new Map(), displaced: new Map() };
}

/**
 * Carries out committed changes on a table, in their order. Values are replaced, never changed in place.
 *
 * @param table changed in place
 * @param changes one commit's
 */
export function applyChanges(table: Table, changes: readonly Change[]): void {
  for (const change of changes) {
    switch (change.kind) {
      case "row":
        put(table.rows, change.key, change.value);
        break;
      case "intent":
        put(table.intents, change.key, change.value);
        break;
      case "releasing":
        put(table.releasing, change.id, change.value);
        break;
      case "displaced":
        put(table.displaced, change.id, change.value);
        break;
    }
  }
}

function put<V>(map: Map<string, V>, key: string, value: V | null): void {
  if (value === null) map.delete(key);
  else map.set(key, value);
}

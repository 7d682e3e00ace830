/** The table as a bystander reads it: beside the running daemon, without its lock and without credentials. */
import type { Intent, Row } from "../provider/types.ts";
import { type FileStat, realFs, type StateFs } from "./fs.ts";
import { load } from "./load.ts";
import { pathsOf, type Refused } from "./place.ts";

/** A row without its credential. */
export type ShownRow = Omit<Row, "token">;

export interface ReadOnlyTable {
  ok: true;
  /** By Pod key. */
  rows: Map<string, ShownRow>;
  /** By Pod key. */
  intents: Map<string, Intent>;
  releasing: { key: string; row: ShownRow; reason: string }[];
  displaced: { key: string; row: ShownRow }[];
  warnings: string[];
}

/** Compactions that may come between the reading of the two files before it is given up. */
const ATTEMPTS_MAX = 5;

function shown(row: Row): ShownRow {
  const { token: _, ...rest } = row;
  return rest;
}

/**
 * Reads snapshot and journal while another process may be writing them. A compaction in between is seen by
 * the snapshot's inode and the reading repeated. Changes nothing; a missing table is an empty one.
 * @param path the snapshot's path (`--state-path`)
 */
export function readTableReadOnly(path: string, fs: StateFs = realFs): ReadOnlyTable | Refused {
  const paths = pathsOf(path);
  const look = (): FileStat | undefined => {
    try {
      return fs.stat(paths.snapshot);
    } catch {
      return undefined;
    }
  };
  for (let attempt = 1; ; attempt++) {
    const before = look();
    const loaded = load(fs, paths);
    const after = look();
    const moved = before?.ino !== after?.ino || before?.dev !== after?.dev;
    if (moved && attempt < ATTEMPTS_MAX) continue;
    if (!loaded.ok) return loaded;
    const { table, warnings } = loaded;
    return {
      ok: true,
      rows: new Map([...table.rows].map(([key, row]) => [key, shown(row)])),
      intents: table.intents,
      releasing: [...table.releasing.values()].map((held) => ({ ...held, row: shown(held.row) })),
      displaced: [...table.displaced.values()].map((held) => ({ ...held, row: shown(held.row) })),
      warnings,
    };
  }
}

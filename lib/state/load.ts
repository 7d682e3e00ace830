/** Snapshot, then journal: the table as the two files say it. */
import { applyChanges } from "../provider/table.ts";
import type { Table } from "../provider/types.ts";
import { reasonOf, type StateFs } from "./fs.ts";
import { type JournalHeader, readHeader, readJournal } from "./journal.ts";
import { type Paths, type Refused, refuse } from "./place.ts";
import { emptyTable, type JournalMark, readSnapshot } from "./snapshot.ts";

/** A larger file is no claims table: 256 MiB would be some 400,000 claims on one host. */
export const FILE_BYTES_MAX = 256 << 20;

/** The table and where the next journal goes on. */
export interface Loaded {
  ok: true;
  table: Table;
  /** The journal that was read (0: none yet) and how far it was good. */
  at: { generation: number; offset: number };
  warnings: string[];
}

const UNTOUCHED = "Nothing was changed";

type FileBytes = { ok: true; bytes: Uint8Array | undefined; mode: number } | Refused;

function readFile(fs: StateFs, path: string): FileBytes {
  try {
    const stat = fs.stat(path);
    if (stat === undefined) return { ok: true, bytes: undefined, mode: 0 };
    if (stat.kind !== "file") {
      return refuse(
        "not_ours",
        `${path} is not a regular file: name the file itself in --state-path, not a link or a directory`,
      );
    }
    if (stat.size > FILE_BYTES_MAX) {
      return refuse(
        "not_ours",
        `${path} has ${stat.size} bytes, more than any claims table (${FILE_BYTES_MAX}): look at what it is and move it away`,
      );
    }
    return { ok: true, bytes: fs.read(path), mode: stat.mode };
  } catch (error) {
    return refuse(
      "unreadable",
      `${path}: ${reasonOf(error)}. Make it readable for user ${fs.uid()}, or give another --state-path`,
    );
  }
}

/** Reads the table; changes nothing on disk. */
export function load(fs: StateFs, paths: Paths): Loaded | Refused {
  const snapshotFile = readFile(fs, paths.snapshot);
  if (!snapshotFile.ok) return snapshotFile;
  const journalFile = readFile(fs, paths.journal);
  if (!journalFile.ok) return journalFile;

  const warnings: string[] = [];
  for (const [path, { bytes, mode }] of [
    [paths.snapshot, snapshotFile],
    [paths.journal, journalFile],
  ] as const) {
    if (bytes !== undefined && (mode & 0o077) !== 0) {
      warnings.push(
        `${path} had mode ${mode.toString(8).padStart(4, "0")}: other users could read the credentials in it; it is rewritten with 0600`,
      );
    }
  }

  if (snapshotFile.bytes === undefined) {
    if (journalFile.bytes === undefined) {
      return { ok: true, table: emptyTable(), at: { generation: 0, offset: 0 }, warnings };
    }
    return refuse(
      "malformed",
      `${paths.snapshot} is missing, but its journal ${paths.journal} is there and means nothing without it. ${UNTOUCHED}: restore the file, or move the journal away to start with an empty table`,
    );
  }
  const snapshot = readSnapshot(snapshotFile.bytes);
  if (!snapshot.ok) {
    return refuse(
      snapshot.kind,
      `${paths.snapshot}: ${snapshot.message}. ${UNTOUCHED}: repair or restore the file, or move it and ${paths.journal} away to start with an empty table`,
    );
  }
  const { table, mark } = snapshot;
  if (journalFile.bytes === undefined) {
    if (mark !== undefined && !mark.closed) {
      warnings.push(`${paths.journal} is missing: what was committed after the last snapshot is not known`);
    }
    return { ok: true, table, at: at(mark), warnings };
  }
  return replay(paths, table, mark, journalFile.bytes, warnings);
}

function at(mark: JournalMark | undefined): { generation: number; offset: number } {
  return mark === undefined
    ? { generation: 0, offset: 0 }
    : { generation: mark.generation, offset: mark.offset };
}

function replay(
  paths: Paths,
  table: Table,
  mark: JournalMark | undefined,
  bytes: Uint8Array,
  warnings: string[],
): Loaded | Refused {
  const next = `${UNTOUCHED}: repair or restore the journal, or move it away to go on with the snapshot alone`;
  const head = readHeader(bytes);
  if (!head.ok) return refuse("malformed", `${paths.journal}: ${head.message}. ${next}`);
  const fit = fits(mark, head.header);
  if (fit === "foreign") {
    return refuse(
      "malformed",
      `${paths.journal} is of generation ${head.header.generation} and does not continue ${paths.snapshot} (${
        mark === undefined ? "which names no journal" : `generation ${mark.generation}, byte ${mark.offset}`
      }): one of the two is from another time. ${next}`,
    );
  }
  const offset = fit === "same" && mark !== undefined ? mark.offset : 0;
  const journal = readJournal(bytes, offset);
  if (!journal.ok) return refuse("malformed", `${paths.journal}: ${journal.message}. ${next}`);
  for (const changes of journal.commits) applyChanges(table, changes);
  if (journal.torn > 0) {
    warnings.push(
      `${paths.journal}: the last line was torn (${journal.torn} bytes after byte ${journal.end}), so that commit did not happen; it is cut off`,
    );
  }
  const end = Math.max(offset, journal.end);
  return { ok: true, table, at: { generation: journal.header.generation, offset: end }, warnings };
}

/**
 * `same`: the snapshot was taken out of this journal, whose rest is to be replayed (the process died before
 * the journal was replaced). `next`: the journal goes on exactly where the snapshot ends.
 */
function fits(mark: JournalMark | undefined, header: JournalHeader): "same" | "next" | "foreign" {
  // A snapshot that names no journal was written by another program after this journal was left behind.
  if (mark === undefined) return "foreign";
  const { generation, offset } = mark;
  if (header.generation === generation) return "same";
  const { follows } = header;
  return header.generation === generation + 1 &&
    follows.generation === generation &&
    follows.offset === offset
    ? "next"
    : "foreign";
}

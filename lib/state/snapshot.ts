/**
 * The table as one JSON file in the format of the Go reference (contract: State file), so that either
 * program reads what the other left. What only this program knows (`displaced`, `intents`, `journal`, and
 * `key` and `reason` of a release) are further fields, which encoding/json passes over.
 */
import * as v from "valibot";
import type { Displaced, Intent, OwnerRef, Releasing, Row, Table } from "../provider/types.ts";
import { parseJson, placeOf } from "./json.ts";
import { formatRfc3339, parseRfc3339 } from "./time.ts";

/** Format of the fields that are ours. A higher one is refused: a newer program wrote it. */
export const FORMAT_VERSION = 1;
/** Rows serialised in one go by a compaction beside the running daemon: about 0.1 ms of the event loop. */
const SLICE_ROWS = 64;

/** How much of which journal a snapshot contains. */
export interface JournalMark {
  generation: number;
  /** Bytes of that journal which the snapshot contains. */
  offset: number;
  /** A clean stop: there is no journal beside this snapshot. */
  closed: boolean;
}

/** A table without anything in it. */
export function emptyTable(): Table {
  return { rows: new Map(), intents: new Map(), releasing: new Map(), displaced: new Map() };
}

/** New Maps over the same values; the values are never changed in place. */
export function copyTable(table: Table): Table {
  return {
    rows: new Map(table.rows),
    intents: new Map(table.intents),
    releasing: new Map(table.releasing),
    displaced: new Map(table.displaced),
  };
}

function claimObject(row: Row): Record<string, unknown> {
  return {
    id: row.id,
    token: row.token,
    address: row.address,
    podUID: row.podUID,
    authority: row.authority,
    claimedAt: formatRfc3339(row.claimedAtMs),
    deadline: formatRfc3339(row.deadlineMs),
    owner: ownerObject(row.owner),
    supersededAt: row.supersededAtMs === undefined ? undefined : formatRfc3339(row.supersededAtMs),
  };
}

function ownerObject(owner: OwnerRef | undefined): Record<string, unknown> | null {
  if (owner === undefined) return null;
  const { apiVersion, kind, name, uid } = owner;
  return { apiVersion, kind, name, uid, controller: true, blockOwnerDeletion: true };
}

function intentObject(intent: Intent): Record<string, unknown> {
  const { podUID, authority, owner, atMs, template, net, size } = intent;
  return { podUID, authority, owner: ownerObject(owner), at: formatRfc3339(atMs), template, net, size };
}

/** The snapshot's text in slices, one row a line, so that writing it can give way to commits in between. */
export function* snapshotSlices(table: Table, mark: JournalMark): Generator<string> {
  function* section<V>(open: string, values: Iterable<V>, line: (value: V) => string): Generator<string> {
    let text = open;
    let count = 0;
    for (const value of values) {
      text += `${count === 0 ? "\n" : ",\n"}${line(value)}`;
      if (++count % SLICE_ROWS === 0) {
        yield text;
        text = "";
      }
    }
    yield text;
  }
  const keyed = (key: string, value: unknown) => `${JSON.stringify(key)}:${JSON.stringify(value)}`;
  const held = ({ key, row, reason }: { key: string; row: Row; reason?: string }) =>
    JSON.stringify({ ...claimObject(row), key, reason });
  yield* section('{"claims":{', table.rows, ([key, row]) => keyed(key, claimObject(row)));
  yield* section('},\n"releasing":[', table.releasing.values(), held);
  yield* section('],\n"displaced":[', table.displaced.values(), held);
  yield* section('],\n"intents":{', table.intents, ([key, intent]) => keyed(key, intentObject(intent)));
  yield `},\n"journal":${JSON.stringify({ version: FORMAT_VERSION, ...mark })}}\n`;
}

const text = v.string();
/** Go writes a nil pointer, map or slice as null. */
const orNothing = <S extends v.GenericSchema>(schema: S) => v.optional(v.nullable(schema));
const time = v.pipe(
  v.nullish(text, null),
  v.check((value) => value === null || parseRfc3339(value) !== undefined, "an RFC 3339 time"),
  v.transform((value): number => (value === null ? 0 : (parseRfc3339(value) ?? 0))),
);
const owner = orNothing(v.object({ apiVersion: text, kind: text, name: text, uid: text }));
/**
 * What sandboxd's ids are made of, as the client takes them: an id goes into the path of a request. One that could
 * not would never be released, and its Pod never served, so a table with it is not read.
 */
export const CLAIM_ID = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;
const id = v.pipe(
  text,
  v.regex(CLAIM_ID, "a claim id (at most 128 letters, digits, dots, dashes, underscores)"),
);
const claimFields = {
  id,
  token: text,
  address: text,
  podUID: text,
  authority: v.optional(text, ""),
  claimedAt: time,
  deadline: time,
  owner,
  supersededAt: time,
};
const claim = v.object(claimFields);
const heldClaim = v.object({ ...claimFields, key: v.optional(text, ""), reason: v.optional(text, "") });
const key = v.pipe(text, v.regex(/^[^/]+\/[^/]+$/, "a Pod key of the form namespace/name"));
/** valibot takes an array for a record; Go does not take one for a map. */
const byKey = <S extends v.GenericSchema>(schema: S) =>
  v.pipe(
    v.unknown(),
    v.check((value) => !Array.isArray(value), "an object"),
    v.record(key, schema),
  );
const count = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
const snapshot = v.object({
  claims: orNothing(byKey(claim)),
  releasing: orNothing(v.array(heldClaim)),
  displaced: orNothing(v.array(heldClaim)),
  intents: orNothing(
    byKey(
      v.object({ podUID: text, authority: text, owner, at: time, template: text, net: text, size: text }),
    ),
  ),
  journal: orNothing(v.object({ version: count, generation: count, offset: count, closed: v.boolean() })),
});

function toOwner(value: v.InferOutput<typeof owner>): { owner?: OwnerRef } {
  return value ? { owner: value } : {};
}

function toRow(value: v.InferOutput<typeof claim>): Row {
  return {
    id: value.id,
    token: value.token,
    address: value.address,
    podUID: value.podUID,
    authority: value.authority,
    claimedAtMs: value.claimedAt,
    deadlineMs: value.deadline,
    ...toOwner(value.owner),
    ...(value.supersededAt > 0 ? { supersededAtMs: value.supersededAt } : {}),
  };
}

/** What a snapshot's text holds, or why it holds nothing. `mark` is absent in a table of the reference. */
export type ReadSnapshot =
  | { ok: true; table: Table; mark: JournalMark | undefined }
  | { ok: false; kind: "malformed" | "not_ours"; message: string };

/** A schema's first complaint with its path, quoting no value: one of them could be a token. */
export function complaintOf(issues: [v.BaseIssue<unknown>, ...v.BaseIssue<unknown>[]]): string {
  const [issue] = issues;
  const path = (issue.path ?? [])
    .map((part) => (typeof part.key === "number" ? `[${part.key}]` : `.${String(part.key)}`))
    .join("")
    .replace(/^\./, "");
  if (path !== "" && issue.kind === "schema" && issue.received === "undefined") return `${path} is missing`;
  const own = issue.kind === "validation" ? issue.message : undefined;
  const expected = own ?? issue.expected ?? "something else";
  return `${path || "the value"} should be ${expected}`;
}

/**
 * Reads a snapshot, ours or the reference's.
 * @param bytes the whole file
 */
export function readSnapshot(bytes: Uint8Array): ReadSnapshot {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return { ok: false, kind: "malformed", message: "it is not UTF-8 text" };
  }
  if (text.trim() === "")
    return { ok: false, kind: "malformed", message: `it is empty (${bytes.length} bytes)` };
  const parsed = parseJson(text);
  if (!parsed.ok) {
    const { line, column } = placeOf(text, parsed.offset);
    return { ok: false, kind: "malformed", message: `line ${line}, column ${column}: ${parsed.reason}` };
  }
  const { value } = parsed;
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return { ok: false, kind: "not_ours", message: "it holds no JSON object, so it is not a claims table" };
  }
  if (!("claims" in value) && Object.keys(value).length > 0) {
    return { ok: false, kind: "not_ours", message: 'it has no "claims" field, so it is not a claims table' };
  }
  const checked = v.safeParse(snapshot, value, { abortEarly: true });
  if (!checked.success) return { ok: false, kind: "malformed", message: complaintOf(checked.issues) };
  const { claims, releasing, displaced, intents, journal } = checked.output;
  if (journal && journal.version > FORMAT_VERSION) {
    return {
      ok: false,
      kind: "malformed",
      message: `it was written in format ${journal.version} and this program reads up to ${FORMAT_VERSION}: run the newer program`,
    };
  }
  const table = emptyTable();
  for (const [podKey, row] of Object.entries(claims ?? {})) table.rows.set(podKey, toRow(row));
  for (const held of releasing ?? []) {
    const reason = held.reason || "left in the release queue by another provider";
    table.releasing.set(held.id, { key: held.key, row: toRow(held), reason } satisfies Releasing);
  }
  for (const held of displaced ?? []) {
    table.displaced.set(held.id, { key: held.key, row: toRow(held) } satisfies Displaced);
  }
  for (const [podKey, intent] of Object.entries(intents ?? {})) {
    const { podUID, authority, at, template, net, size } = intent;
    table.intents.set(podKey, { podUID, authority, ...toOwner(intent.owner), atMs: at, template, net, size });
  }
  const mark = journal && { generation: journal.generation, offset: journal.offset, closed: journal.closed };
  return { ok: true, table, mark: mark ?? undefined };
}

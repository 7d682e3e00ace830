/**
 * The journal beside the snapshot: a header line, then one line per commit, which is a JSON array of
 * Changes. Only a line that ends in a line feed counts, so a write torn anywhere is a commit that did not
 * happen.
 */
import * as v from "valibot";
import type { Change, Intent, Row } from "../provider/types.ts";
import { parseJson } from "./json.ts";
import { CLAIM_ID, complaintOf, FORMAT_VERSION } from "./snapshot.ts";

/** Longest line a commit may become; what is longer has something in it that is no claim. */
export const LINE_BYTES_MAX = 1 << 20;
const LINE_FEED = 0x0a;

/** Which journal this is, and where in its predecessor it begins: the snapshot must say the same. */
export interface JournalHeader {
  generation: number;
  follows: { generation: number; offset: number };
}

const encoder = new TextEncoder();

/** The header line. */
export function encodeHeader(header: JournalHeader): Uint8Array {
  return encoder.encode(`${JSON.stringify({ journal: "vk-sandbox", version: FORMAT_VERSION, ...header })}\n`);
}

/** One commit as a line. */
export function encodeCommit(changes: readonly Change[]): Uint8Array {
  return Buffer.from(`${JSON.stringify(changes)}\n`);
}

const text = v.string();
const name = v.pipe(text, v.minLength(1, "a name that is not empty"));
const ms = v.pipe(v.number(), v.finite(), v.minValue(0));
const owner = v.optional(v.object({ apiVersion: text, kind: text, name: text, uid: text }));
const row = v.object({
  id: v.pipe(text, v.regex(CLAIM_ID, "a claim id")),
  token: text,
  address: text,
  podUID: text,
  authority: text,
  claimedAtMs: ms,
  deadlineMs: ms,
  owner,
  supersededAtMs: v.optional(ms),
});
const intent = v.object({
  podUID: text,
  authority: text,
  owner,
  atMs: ms,
  template: text,
  net: text,
  size: text,
});
const change = v.variant("kind", [
  v.object({ kind: v.literal("row"), key: name, value: v.nullable(row) }),
  v.object({ kind: v.literal("intent"), key: name, value: v.nullable(intent) }),
  v.object({
    kind: v.literal("releasing"),
    id: name,
    value: v.nullable(v.object({ key: text, row, reason: text })),
  }),
  v.object({ kind: v.literal("displaced"), id: name, value: v.nullable(v.object({ key: text, row })) }),
]);
const commit = v.array(change);
const header = v.object({
  journal: v.literal("vk-sandbox"),
  version: v.number(),
  generation: v.pipe(v.number(), v.safeInteger(), v.minValue(1)),
  follows: v.object({ generation: v.number(), offset: v.number() }),
});

/**
 * Whether a change would read back as it is: what the schemas above demand, by hand, because this runs on
 * the handover path. A row with a missing token or a NaN time would make the whole journal unreadable.
 * @returns the fault, or undefined
 */
export function faultOf(change: Change): string | undefined {
  const { kind, value } = change;
  if ((kind === "row" || kind === "intent" ? change.key : change.id) === "")
    return `a ${kind} without a name`;
  if (value === null) return undefined;
  if (kind === "intent") return intentFault(value);
  if (kind === "row") return rowFault(value);
  if (typeof value.key !== "string") return `a ${kind} without its Pod key`;
  if (kind === "releasing" && typeof value.reason !== "string") return "a release without its reason";
  return rowFault(value.row);
}

function rowFault(row: Row): string | undefined {
  if (typeof row.id !== "string" || !CLAIM_ID.test(row.id)) return "a row without a usable claim id";
  if (typeof row.token !== "string") return `the row of claim ${row.id} has no token`;
  if (
    typeof row.address !== "string" ||
    typeof row.podUID !== "string" ||
    typeof row.authority !== "string"
  ) {
    return `the row of claim ${row.id} lacks its address, Pod UID or authority`;
  }
  if (!isMs(row.claimedAtMs) || !isMs(row.deadlineMs) || !isMs(row.supersededAtMs ?? 0)) {
    return `the row of claim ${row.id} has a time that is not a number of milliseconds`;
  }
  return undefined;
}

function intentFault(intent: Intent): string | undefined {
  const { podUID, authority, template, net, size } = intent;
  for (const field of [podUID, authority, template, net, size]) {
    if (typeof field !== "string") return "an intent with a missing field";
  }
  return isMs(intent.atMs) ? undefined : "an intent whose time is not a number of milliseconds";
}

function isMs(value: number): boolean {
  return Number.isFinite(value) && value >= 0;
}

/** What a journal's bytes hold. `end`: bytes up to and including the last whole line. */
export type ReadJournal =
  | { ok: true; header: JournalHeader; commits: Change[][]; end: number; torn: number }
  | { ok: false; message: string };

/** The header alone. */
export function readHeader(
  bytes: Uint8Array,
): { ok: true; header: JournalHeader; end: number } | { ok: false; message: string } {
  const end = bytes.indexOf(LINE_FEED) + 1;
  if (end === 0) {
    return {
      ok: false,
      message: `line 1: the header is missing or cut off (${bytes.length} bytes in the file)`,
    };
  }
  const parsed = parseLine(bytes.subarray(0, end - 1));
  if (!parsed.ok) return { ok: false, message: `line 1: ${parsed.message}` };
  const checked = v.safeParse(header, parsed.value, { abortEarly: true });
  if (!checked.success) {
    return {
      ok: false,
      message: `line 1: not the header of a journal of vk-sandbox: ${complaintOf(checked.issues)}`,
    };
  }
  const { version, generation, follows } = checked.output;
  if (version > FORMAT_VERSION) {
    return {
      ok: false,
      message: `line 1: written in format ${version} and this program reads up to ${FORMAT_VERSION}: run the newer program`,
    };
  }
  return { ok: true, header: { generation, follows }, end };
}

/**
 * Reads a journal.
 * @param bytes the whole file
 * @param from bytes of it that the snapshot contains already; those are not looked at
 */
export function readJournal(bytes: Uint8Array, from: number): ReadJournal {
  const head = readHeader(bytes);
  if (!head.ok) return head;
  const commits: Change[][] = [];
  let start = Math.max(head.end, from);
  // The line number is only for the message; the part that the snapshot contains is counted, not read.
  let line = 1;
  for (let at = head.end; at < Math.min(start, bytes.length); at++) if (bytes[at] === LINE_FEED) line++;
  while (start < bytes.length) {
    const feed = bytes.indexOf(LINE_FEED, start);
    if (feed < 0) break;
    line++;
    const parsed = parseLine(bytes.subarray(start, feed));
    const place = `line ${line} (byte ${start})`;
    if (!parsed.ok) return { ok: false, message: `${place}: ${parsed.message}` };
    const checked = v.safeParse(commit, parsed.value, { abortEarly: true });
    if (!checked.success) return { ok: false, message: `${place}: ${complaintOf(checked.issues)}` };
    commits.push(checked.output);
    start = feed + 1;
  }
  return {
    ok: true,
    header: head.header,
    commits,
    end: Math.min(start, bytes.length),
    torn: Math.max(bytes.length - start, 0),
  };
}

function parseLine(bytes: Uint8Array): { ok: true; value: unknown } | { ok: false; message: string } {
  let line: string;
  try {
    line = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return { ok: false, message: "not UTF-8 text" };
  }
  const parsed = parseJson(line);
  return parsed.ok ? parsed : { ok: false, message: `column ${parsed.offset + 1}: ${parsed.reason}` };
}

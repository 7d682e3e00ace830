import { expect } from "bun:test";
import * as fc from "fast-check";
import { anyJson, damaged, fuzz, jsonTexts, mutated, SECRET, withoutSecret } from "../fuzzing.ts";
import { applyChanges } from "../provider/table.ts";
import type { Change, Intent, OwnerRef, Row, Table } from "../provider/types.ts";
import { createFakeDisk } from "./fakefs.ts";
import { encodeCommit, encodeHeader, faultOf, readJournal } from "./journal.ts";
import { parseJson } from "./json.ts";
import { readTableReadOnly } from "./readonly.ts";
import { emptyTable, readSnapshot, snapshotSlices } from "./snapshot.ts";
import { openStore } from "./store.ts";
import { formatRfc3339, parseRfc3339 } from "./time.ts";

// Go and JSON have no lone surrogates, and neither has anything that comes from the API.
const text = fc.string({ unit: "grapheme", maxLength: 20 });
const ms = fc.integer({ min: 0, max: Date.UTC(2200, 0) });
const owner: fc.Arbitrary<OwnerRef> = fc.record({ apiVersion: text, kind: text, name: text, uid: text });
const row: fc.Arbitrary<Row> = fc.record(
  {
    id: fc.stringMatching(/^sb_[a-z0-9]{1,12}$/),
    token: fc.oneof(fc.constant(SECRET), text),
    address: text,
    podUID: text,
    authority: text,
    claimedAtMs: ms,
    deadlineMs: ms,
    owner,
    supersededAtMs: fc.integer({ min: 1, max: Date.UTC(2200, 0) }),
  },
  { requiredKeys: ["id", "token", "address", "podUID", "authority", "claimedAtMs", "deadlineMs"] },
);
const intent: fc.Arbitrary<Intent> = fc.record(
  { podUID: text, authority: text, owner, atMs: ms, template: text, net: text, size: text },
  { requiredKeys: ["podUID", "authority", "atMs", "template", "net", "size"] },
);
const key = fc
  .tuple(fc.stringMatching(/^[a-z0-9-]{1,12}$/), fc.stringMatching(/^[a-z0-9.-]{1,12}$/))
  .map(([namespace, name]) => `${namespace}/${name}`);
const change: fc.Arbitrary<Change> = fc.oneof(
  fc.record({ kind: fc.constant("row" as const), key, value: fc.option(row) }),
  fc.record({ kind: fc.constant("intent" as const), key, value: fc.option(intent) }),
  fc.tuple(key, row, text, fc.boolean()).map(
    ([k, held, reason, there]): Change => ({
      kind: "releasing",
      id: held.id,
      value: there ? { key: k, row: held, reason: reason || "a reason" } : null,
    }),
  ),
  fc.tuple(key, row, fc.boolean()).map(
    ([k, held, there]): Change => ({
      kind: "displaced",
      id: held.id,
      value: there ? { key: k, row: held } : null,
    }),
  ),
);
const commits = fc.array(fc.array(change, { minLength: 1, maxLength: 4 }), { maxLength: 8 });
const table: fc.Arbitrary<Table> = commits.map((all) => {
  const made = emptyTable();
  applyChanges(made, all.flat());
  return made;
});

const mark = { generation: 3, offset: 100, closed: false };
const snapshotText = (of: Table) => [...snapshotSlices(of, mark)].join("");
const header = { generation: 4, follows: { generation: 3, offset: 100 } };
const journalBytes = (all: readonly (readonly Change[])[]) =>
  Buffer.concat([encodeHeader(header), ...all.map(encodeCommit)]);
const bytesOf = (given: string) => new TextEncoder().encode(given);

fuzz("a table that is written is read back as it was", table, (given) => {
  const read = readSnapshot(bytesOf(snapshotText(given)));
  if (!read.ok) throw new Error(read.message);
  expect(read.table).toEqual(given);
  expect(read.mark).toEqual(mark);
});

fuzz(
  "any text is a table or a fault with its place, which quotes no credential",
  jsonTexts(table.map((given) => JSON.parse(snapshotText(given)) as unknown)),
  (given) => {
    const read = readSnapshot(bytesOf(given));
    if (!read.ok) {
      expect(read.message).not.toBe("");
      withoutSecret(read.message);
    } else
      for (const [name, held] of read.table.rows)
        expect([name.includes("/"), held.id !== ""]).toEqual([true, true]);
  },
);

fuzz("any bytes are a table or a fault", fc.uint8Array({ maxLength: 500 }), (bytes) => {
  expect(["malformed", "not_ours", undefined]).toContain((readSnapshot(bytes) as { kind?: string }).kind);
});

fuzz("commits that are written are read back in order", commits, (all) => {
  const read = readJournal(journalBytes(all), 0);
  if (!read.ok) throw new Error(read.message);
  expect(read.commits).toEqual(all);
  expect([read.header, read.torn]).toEqual([header, 0]);
});

fuzz(
  "a journal that is cut anywhere is its whole lines, or has no header",
  fc.tuple(commits, fc.double({ min: 0, max: 1, noNaN: true })),
  ([all, share]) => {
    const bytes = journalBytes(all);
    const cut = bytes.subarray(0, Math.floor(bytes.length * share));
    const read = readJournal(cut, 0);
    if (!read.ok) return expect(cut.includes(10)).toBe(false);
    expect(read.commits).toEqual(all.slice(0, read.commits.length));
    expect(read.end + read.torn).toBe(cut.length);
  },
);

fuzz(
  "a journal with anything in it is commits or a fault with its line, which quotes no credential",
  damaged(commits.map((all) => journalBytes(all).toString("utf8"))),
  (given) => {
    const read = readJournal(bytesOf(given), 0);
    if (read.ok) return;
    expect(read.message).toMatch(/^line [0-9]+/);
    withoutSecret(read.message);
  },
);

fuzz(
  "what the store would write reads back; what would not read back it refuses",
  mutated(change),
  (given) => {
    const candidate = given as Change;
    let fault: string | undefined;
    try {
      fault = faultOf(candidate);
    } catch {
      // No Change at all: the types keep it from the store.
      return;
    }
    if (!["row", "intent", "releasing", "displaced"].includes(candidate.kind)) return;
    const name = "key" in candidate ? candidate.key : candidate.id;
    if (fault !== undefined || typeof name !== "string") return;
    const read = readJournal(Buffer.concat([encodeHeader(header), encodeCommit([candidate])]), 0);
    // Optional parts of a row are the provider's own, and never anything else.
    if (!read.ok) expect(read.message).toMatch(/owner|supersededAtMs/);
  },
);

fuzz(
  "JSON is parsed, or the place of its first fault is told",
  fc.oneof(jsonTexts(anyJson), fc.string()),
  (given) => {
    const parsed = parseJson(given);
    if (parsed.ok) return expect(parsed.value).toEqual(JSON.parse(given));
    expect(parsed.offset).toBeGreaterThanOrEqual(0);
    expect(parsed.offset).toBeLessThanOrEqual(given.length);
    withoutSecret(parsed.reason);
  },
);

fuzz("times come back to the millisecond", fc.integer({ min: 1, max: Date.UTC(9999, 0) }), (at) => {
  expect(parseRfc3339(formatRfc3339(at) ?? "")).toBe(at);
});

const PATH = "/s/claims.json";
fuzz(
  "whatever the two files hold, opening gives a store or a refusal that changes nothing, and reading beside it agrees",
  fc.tuple(
    fc.option(fc.oneof(table.map(snapshotText), damaged(table.map(snapshotText)), fc.string())),
    fc.option(
      fc.oneof(
        commits.map((all) => journalBytes(all).toString()),
        damaged(commits.map((all) => journalBytes(all).toString())),
      ),
    ),
  ),
  ([snapshot, journal]) => {
    const disk = createFakeDisk();
    disk.plantDirectory("/s", 0o700);
    if (snapshot !== null) disk.plant(PATH, snapshot);
    if (journal !== null) disk.plant(`${PATH}.journal`, journal);
    const before = [PATH, `${PATH}.journal`].map((path) => disk.read(path));
    const beside = readTableReadOnly(PATH, disk.process());
    const opened = openStore({ path: PATH, fs: disk.process(), schedule: () => {}, nowMs: () => 0 });
    expect(opened.ok).toBe(beside.ok);
    if (opened.ok && beside.ok) {
      expect([...opened.store.table.rows.keys()]).toEqual([...beside.rows.keys()]);
      withoutSecret(JSON.stringify([...beside.rows.values(), ...beside.releasing, ...beside.displaced]));
      return;
    }
    if (opened.ok) return;
    withoutSecret(opened.message);
    expect([PATH, `${PATH}.journal`].map((path) => disk.read(path))).toEqual(before);
  },
);

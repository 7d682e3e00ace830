import { afterAll, expect } from "bun:test";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { fuzz } from "../fuzzing.ts";
import type { Note } from "../provider/types.ts";
import { queryLedger } from "./reader.ts";
import { openLedger } from "./writer.ts";

const dir = mkdtempSync(join(tmpdir(), "ledger-fuzz-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));
const path = join(dir, "audit.db");
const good = join(dir, "good.db");

const clear = () => {
  for (const suffix of ["", "-wal", "-shm", ".damaged"]) rmSync(path + suffix, { force: true });
};
const note = fc.record({
  kind: fc.constantFrom<Note["kind"]>("claimed", "released", "refused"),
  key: fc.string({ unit: "grapheme" }),
  id: fc.string({ unit: "grapheme" }),
  podUID: fc.string({ unit: "grapheme" }),
  reason: fc.string({ unit: "grapheme", maxLength: 300 }),
});

async function write(notes: readonly Note[], troubles: string[] = []): Promise<void> {
  const ledger = openLedger({
    path,
    nowMs: () => 1_000,
    schedule: (task) => queueMicrotask(task),
    onTrouble: (message) => troubles.push(message),
  });
  for (const one of notes) ledger.record(one, 1_000);
  await ledger.close();
}

fuzz(
  "notes are read back as they were, whatever is in them",
  fc.array(note, { maxLength: 5 }),
  async (notes) => {
    clear();
    // SQLite's text ends at a NUL for most readers; none is in a name.
    const plain = notes.map((one) => JSON.parse(JSON.stringify(one).replaceAll("\\u0000", "")) as Note);
    await write(plain);
    const answer = await queryLedger(path, { limit: 10 });
    if (!answer.ok) return expect([answer.kind, plain.length]).toEqual(["missing", 0]);
    expect(
      answer.rows.map(({ kind, key, id, podUID, reason }) => ({ kind, key, id, podUID, reason })),
    ).toEqual(
      plain as unknown as { kind: string; key: string; id: string; podUID: string; reason: string }[],
    );
  },
);

clear();
await write(
  Array.from({ length: 20 }, (_, i) => ({
    kind: "claimed",
    key: `ns/${i}`,
    id: `sb_${i}`,
    podUID: "u",
    reason: "r",
  })),
);
copyFileSync(path, good);
const sound = readFileSync(good);

fuzz(
  "a ledger file with bytes changed or cut off is read, or said to be unreadable, and written to or set aside",
  fc.tuple(
    fc.array(fc.tuple(fc.nat({ max: sound.length - 1 }), fc.integer({ min: 0, max: 255 })), {
      maxLength: 12,
    }),
    fc.nat({ max: sound.length }),
    fc.boolean(),
  ),
  async ([changes, length, cut]) => {
    clear();
    const bytes = Buffer.from(sound);
    for (const [at, value] of changes) bytes[at] = value;
    writeFileSync(path, cut ? bytes.subarray(0, length) : bytes);
    const answer = await queryLedger(path, { limit: 100 });
    if (!answer.ok) expect(answer.message).toContain(path);
    const troubles: string[] = [];
    await write([{ kind: "claimed", key: "ns/new", id: "sb_new", podUID: "u", reason: "r" }], troubles);
    const after = await queryLedger(path, { pod: "ns/new", limit: 1 });
    // Written, or told why not: never neither.
    if (!after.ok || after.rows.length === 0) expect(troubles.length).toBeGreaterThan(0);
  },
);

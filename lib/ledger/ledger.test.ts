import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Note } from "../provider/types.ts";
import { queryLedger } from "./reader.ts";
import { type LedgerOptions, openLedger, QUEUE_MAX } from "./writer.ts";

const DAY_MS = 86_400_000;
let directory: string;
let path: string;
let now: number;
let troubles: string[];
let tasks: (() => void)[];

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "ledger-"));
  path = join(directory, "audit.db");
  now = 1_800_000_000_000;
  troubles = [];
  tasks = [];
});
afterEach(() => rmSync(directory, { recursive: true }));

function note(n: number, more: Partial<Note> = {}): Note {
  return {
    kind: "claimed",
    key: `ns/p${n}`,
    id: `sb_${n}`,
    podUID: `uid-${n}`,
    reason: `reason ${n}`,
    ...more,
  };
}

function ledgerHere(options: Partial<LedgerOptions> = {}) {
  return openLedger({
    path,
    nowMs: () => now,
    schedule: (task) => tasks.push(task),
    onTrouble: (message) => troubles.push(message),
    ...options,
  });
}

async function rowsOf(query: Partial<Parameters<typeof queryLedger>[1]> = {}) {
  const answer = await queryLedger(path, { limit: 100, ...query });
  if (!answer.ok) throw new Error(answer.message);
  return answer.rows;
}

test("a decision is read back as it was recorded, by pod, name, claim and time", async () => {
  const ledger = ledgerHere();
  ledger.record(note(1), now);
  ledger.record(note(2, { kind: "refused", cause: "draining", id: "" }), now + 1_000);
  ledger.record(note(1, { kind: "released", key: "other/p1" }), now + 2_000);
  await ledger.close();
  const [first, second, third] = await rowsOf();
  expect(first).toEqual({
    row: 1,
    atMs: now,
    kind: "claimed",
    key: "ns/p1",
    id: "sb_1",
    podUID: "uid-1",
    reason: "reason 1",
  });
  expect(second).toMatchObject({ kind: "refused", cause: "draining" });
  expect(await rowsOf({ pod: "ns/p1" })).toEqual([first as never]);
  expect((await rowsOf({ pod: "p1" })).length).toBe(2);
  expect(await rowsOf({ id: "sb_1", sinceMs: now + 1 })).toEqual([third as never]);
  expect(await rowsOf({ limit: 1 })).toEqual([third as never]);
  expect(await rowsOf({ afterRow: 1, limit: 1 })).toEqual([second as never]);
});

test("recording touches no file; a reader follows while the writer runs", async () => {
  const ledger = ledgerHere();
  ledger.record(note(1), now);
  expect(readdirSync(directory)).toEqual([]);
  expect(await queryLedger(path, { limit: 1 })).toMatchObject({ ok: false, kind: "missing" });
  await ledger.flush();
  expect((await rowsOf()).length).toBe(1);
  for (let n = 2; n < 300; n++) {
    ledger.record(note(n), now);
    if (n % 50 === 0) await ledger.flush();
    if (n % 50 === 0) expect((await rowsOf({ afterRow: n - 1 })).map((row) => row.id)).toEqual([`sb_${n}`]);
  }
  await ledger.close();
});

test("what is recorded is written by the scheduled tasks alone", async () => {
  const ledger = ledgerHere();
  for (let n = 0; n < 250; n++) ledger.record(note(n), now);
  expect(tasks.length).toBe(1);
  while (ledger.stats().queued > 0) {
    tasks.shift()?.();
    await Bun.sleep(0);
  }
  expect(ledger.stats()).toMatchObject({ written: 250, queued: 0, dropped: 0 });
  await ledger.close();
});

test("a full queue drops and counts", async () => {
  const ledger = ledgerHere();
  for (let n = 0; n < QUEUE_MAX + 5; n++) ledger.record(note(n), now);
  expect(ledger.stats()).toMatchObject({ queued: QUEUE_MAX, dropped: 5 });
  await ledger.close();
  expect(ledger.stats().written).toBe(QUEUE_MAX);
});

test("the ledger is bounded in rows and in age, and never gives a row number twice", async () => {
  const ledger = ledgerHere({ maxRows: 10, maxAgeMs: DAY_MS });
  for (let n = 0; n < 30; n++) {
    ledger.record(note(n), now);
    await ledger.flush();
  }
  expect((await rowsOf()).map((row) => row.row)).toEqual([21, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
  now += DAY_MS + 1;
  ledger.record(note(31), now);
  await ledger.close();
  expect((await rowsOf()).map((row) => row.row)).toEqual([31]);
  now += 2 * DAY_MS;
  const next = ledgerHere({ maxRows: 10, maxAgeMs: DAY_MS });
  next.record(note(32), now);
  await next.close();
  expect((await rowsOf()).map((row) => row.row)).toEqual([32]);
});

test("nobody else can read it", async () => {
  writeFileSync(path, "", { mode: 0o644 });
  const ledger = ledgerHere();
  ledger.record(note(1), now);
  await ledger.flush();
  for (const name of readdirSync(directory))
    expect(statSync(join(directory, name)).mode & 0o077, name).toBe(0);
  await ledger.close();
});

test("a damaged ledger is set aside, said, and a new one begun", async () => {
  writeFileSync(path, "this is no database, whatever its name says".repeat(100));
  const ledger = ledgerHere();
  ledger.record(note(1), now);
  await ledger.close();
  expect(troubles.length).toBe(1);
  expect(troubles[0]).toContain(`${path}.damaged`);
  expect((await rowsOf()).length).toBe(1);
  expect(readdirSync(directory)).toContain("audit.db.damaged");
});

test("a ledger damaged in its pages, or made by somebody else, is set aside too", async () => {
  const first = ledgerHere();
  for (let n = 0; n < 2_000; n++) first.record(note(n, { reason: "x".repeat(500) }), now);
  await first.close();
  const bytes = new Uint8Array(await Bun.file(path).arrayBuffer());
  bytes.fill(0xff, 4096);
  await Bun.write(path, bytes);
  const second = ledgerHere();
  second.record(note(1), now);
  await second.close();
  expect((await rowsOf()).length).toBe(1);

  rmSync(path);
  const { Database } = await import("bun:sqlite");
  const foreign = new Database(path);
  foreign.run("CREATE TABLE decisions (something TEXT)");
  foreign.close();
  const third = ledgerHere();
  third.record(note(2), now);
  await third.close();
  expect(await rowsOf()).toMatchObject([{ id: "sb_2" }]);
  expect(troubles.length).toBe(2);
});

test("a ledger that cannot be written says so once, keeps the notes and goes on when it can", async () => {
  path = join(directory, "not-yet", "audit.db");
  const ledger = ledgerHere();
  ledger.record(note(1), now);
  await ledger.flush();
  ledger.record(note(2), now);
  await ledger.flush();
  expect(troubles.length).toBe(1);
  expect(ledger.stats()).toMatchObject({ queued: 2, failures: 2 });
  mkdirSync(join(directory, "not-yet"));
  await ledger.flush();
  expect(await rowsOf()).toMatchObject([{ id: "sb_1" }, { id: "sb_2" }]);
  await ledger.close();
});

test("a link planted under the ledger's name is not followed", async () => {
  const elsewhere = join(directory, "elsewhere");
  symlinkSync(elsewhere, path);
  const ledger = ledgerHere();
  ledger.record(note(1), now);
  await ledger.close();
  expect(readdirSync(directory)).toEqual(["audit.db"]);
  expect(troubles.length).toBe(1);
});

test("a writer killed with kill -9 leaves a ledger that is read and written on", async () => {
  const script = join(directory, "writer.ts");
  writeFileSync(
    script,
    `import { openLedger } from ${JSON.stringify(join(import.meta.dir, "writer.ts"))};
     const ledger = openLedger({ path: ${JSON.stringify(path)}, nowMs: Date.now });
     for (let n = 0; ; n++) {
       ledger.record({ kind: "claimed", key: "ns/p", id: "sb_" + n, podUID: "u", reason: "r" }, Date.now());
       if (n % 10 === 9) await ledger.flush();
       if (n === 499) process.kill(process.pid, "SIGKILL");
     }`,
  );
  const child = Bun.spawn([process.execPath, script], { stdout: "ignore", stderr: "ignore" });
  await child.exited;
  expect(child.signalCode).toBe("SIGKILL");
  expect((await rowsOf({ limit: 1000 })).length).toBe(500);
  const ledger = ledgerHere({ maxAgeMs: Number.MAX_SAFE_INTEGER });
  ledger.record(note(1), now);
  await ledger.close();
  expect((await rowsOf({ limit: 1000 })).length).toBe(501);
  expect(troubles).toEqual([]);
});

test("a file that is no ledger is not read as one", async () => {
  writeFileSync(path, "nonsense".repeat(200));
  expect(await queryLedger(path, { limit: 1 })).toMatchObject({ ok: false, kind: "unreadable" });
});

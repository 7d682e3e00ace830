import { expect, test } from "bun:test";
import {
  ANON_GROWTH_BYTES,
  COMPILED_AFTER_WORK,
  createMemoryKeeper,
  DROP_INTERVAL_MS,
  dropProgramPages,
  droppableMappings,
  FILE_BYTES_MAX,
  residentBytes,
} from "./memory.ts";

function keeper() {
  const at = {
    now: 0,
    anonBytes: 10 << 20,
    fileBytes: FILE_BYTES_MAX - 1,
    collections: 0,
    drops: 0,
    ended: 0,
  };
  const memory = createMemoryKeeper({
    collect: () => at.collections++,
    drop: () => at.drops++,
    endCompiling: () => at.ended++,
    resident: () => at,
    ticks: () => at.now,
  });
  return { at, look: memory.look };
}

test("while work is done or in flight nothing is collected; after it, once", () => {
  const { at, look } = keeper();
  look(1, false);
  look(2, false);
  look(2, true);
  look(3, true);
  expect(at.collections).toBe(0);
  look(3, false);
  look(3, false);
  look(3, false);
  expect(at.collections).toBe(1);
  look(4, false);
  look(4, false);
  expect(at.collections).toBe(2);
});

test("compiling ends once, after enough work, busy or not", () => {
  const { at, look } = keeper();
  look(COMPILED_AFTER_WORK - 1, true);
  expect(at.ended).toBe(0);
  look(COMPILED_AFTER_WORK, true);
  look(COMPILED_AFTER_WORK + 1, false);
  look(COMPILED_AFTER_WORK + 1, false);
  expect(at.ended).toBe(1);
});

test("without work it collects again only when what no file backs has grown", () => {
  const { at, look } = keeper();
  look(1, false);
  look(1, false);
  at.anonBytes += ANON_GROWTH_BYTES;
  look(1, false);
  expect(at.collections).toBe(1);
  at.anonBytes += 1;
  look(1, false);
  expect(at.collections).toBe(2);
});

test("the program's pages are dropped in a quiet moment when there are many of them, and not again soon", () => {
  const { at, look } = keeper();
  look(1, false);
  look(1, false);
  expect(at.drops).toBe(0);
  at.fileBytes = FILE_BYTES_MAX + 1;
  look(2, false);
  expect(at.drops).toBe(0);
  look(2, false);
  expect(at.drops).toBe(1);
  at.now += DROP_INTERVAL_MS - 1;
  look(2, false);
  expect(at.drops).toBe(1);
  at.now += 1;
  look(2, false);
  expect(at.drops).toBe(2);
});

test("where memory cannot be told it still collects after work, and drops nothing", () => {
  let collections = 0;
  const memory = createMemoryKeeper({
    collect: () => collections++,
    drop: () => {
      throw new Error("dropped");
    },
    resident: () => undefined,
    ticks: () => 0,
  });
  for (const work of [1, 1, 1, 2, 2]) memory.look(work, false);
  expect(collections).toBe(2);
});

const smaps = `00200000-01a39000 r--p 00000000 fe:00 17 /usr/bin/vk sandbox
Rss:                7396 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
01a40000-06849000 r-xp 01840000 fe:00 17 /usr/bin/vk sandbox
Private_Dirty:      8 kB
Anonymous:             0 kB
06849000-06867000 r--p 06649000 fe:00 17 /usr/bin/vk sandbox
Anonymous:            88 kB
06867000-06aad000 rw-p 06667000 fe:00 17 /usr/bin/vk sandbox
Anonymous:             0 kB
06aad000-06bad000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000001000 r--s 00000000 fe:00 17 /usr/bin/vk sandbox
Anonymous:             0 kB
7f7c62430000-7f7c62586000 r-xp 00028000 fe:00 99 /usr/lib/libc.so.6
Anonymous:             0 kB
`;

test("only private, unwritable mappings of the program without a page of their own can be dropped", () => {
  expect(droppableMappings(smaps, "/usr/bin/vk sandbox")).toEqual([
    { start: 0x200000, bytes: 0x1839000 },
    { start: 0x1a40000, bytes: 0x4e09000 },
  ]);
  expect(droppableMappings(smaps, "/usr/bin/other")).toEqual([]);
  expect(droppableMappings("", "")).toEqual([]);
});

test("the calls go to the mappings, and without a C library nothing happens", () => {
  const calls: [number, number, number][] = [];
  dropProgramPages({
    flock: () => -1,
    prctl: () => -1,
    madvise: (...call) => calls.push(call),
  });
  expect(calls.length).toBeGreaterThan(0);
  for (const [address, bytes, advice] of calls) {
    expect(address).toBeGreaterThan(0);
    expect(bytes).toBeGreaterThan(0);
    expect(advice).toBe(4);
  }
  expect(() => dropProgramPages({ unavailable: "no C library" })).not.toThrow();
});

// In a process of its own, since it is about the whole process.
test("a program that dropped its pages has fewer of them, and goes on", () => {
  const script = `
    import { dropProgramPages, residentBytes } from ${JSON.stringify(`${import.meta.dir}/memory.ts`)};
    const before = residentBytes();
    dropProgramPages();
    const after = residentBytes();
    const digest = new Bun.CryptoHasher("sha256").update("still here").digest("hex").length;
    console.log(JSON.stringify({ fewer: after.fileBytes < before.fileBytes, digest }));`;
  const { stdout, stderr } = Bun.spawnSync([process.execPath, "-e", script]);
  expect(stderr.toString()).toBe("");
  expect(JSON.parse(stdout.toString())).toEqual({ fewer: true, digest: 64 });
});

test("this process has memory of both kinds", () => {
  const now = residentBytes();
  expect(now?.anonBytes).toBeGreaterThan(1 << 20);
  expect(now?.fileBytes).toBeGreaterThan(1 << 20);
});

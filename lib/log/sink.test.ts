import { expect, test } from "bun:test";
import { fdSink } from "./sink.ts";

type Done = (error: NodeJS.ErrnoException | null, written: number) => void;

/** A descriptor whose writes finish when the test says so. */
function descriptor() {
  const writes: { text: string; done: Done }[] = [];
  let arrived: (() => void) | undefined;
  return {
    writes,
    write(_fd: number, bytes: Uint8Array, done: Done) {
      writes.push({ text: Buffer.from(bytes).toString(), done });
      arrived?.();
    },
    /** Resolves when the n-th write has been asked for. */
    async nth(n: number) {
      while (writes.length < n)
        await new Promise<void>((resolve) => {
          arrived = resolve;
        });
      const write = writes[n - 1];
      if (write === undefined) throw new Error("no write");
      return write;
    },
  };
}
const errno = (code: string) => Object.assign(new Error(code), { code });

test("lines of one turn go out in one write, later ones after it", async () => {
  const fd = descriptor();
  const sink = fdSink(1, { write: fd.write });
  sink.write("a\n");
  sink.write("b\n");
  expect(fd.writes.length).toBe(0);
  const first = await fd.nth(1);
  expect(first.text).toBe("a\nb\n");
  sink.write("c\n");
  first.done(null, 4);
  expect((await fd.nth(2)).text).toBe("c\n");
});

test("a short write goes on where it stopped", async () => {
  const fd = descriptor();
  const sink = fdSink(1, { write: fd.write });
  sink.write("abcdef\n");
  (await fd.nth(1)).done(null, 3);
  expect((await fd.nth(2)).text).toBe("def\n");
});

test("a full descriptor is tried again with the same bytes", async () => {
  const fd = descriptor();
  const sink = fdSink(1, { write: fd.write, after: (_ms, run) => run() });
  sink.write("a\n");
  (await fd.nth(1)).done(errno("EAGAIN"), 0);
  expect((await fd.nth(2)).text).toBe("a\n");
});

test("a slow reader costs lines above the bound, which are counted", async () => {
  const fd = descriptor();
  const sink = fdSink(1, { write: fd.write, bufferCharsMax: 10 });
  sink.write("first\n");
  const first = await fd.nth(1);
  for (let i = 0; i < 100; i++) sink.write("12345\n");
  first.done(null, 6);
  const { text } = await fd.nth(2);
  expect(text.startsWith("12345\n{")).toBe(true);
  expect(JSON.parse(text.split("\n")[1] ?? "")).toMatchObject({ lines: 99 });
});

test("a reader that is gone ends the writing and nothing else", async () => {
  const fd = descriptor();
  const sink = fdSink(1, { write: fd.write });
  sink.write("a\n");
  (await fd.nth(1)).done(errno("EPIPE"), 0);
  sink.write("b\n");
  expect(await sink.flush(1000)).toBe(true);
  expect(fd.writes.length).toBe(1);
});

test("flush waits for what is on its way, and gives up on a reader that is stuck", async () => {
  const fd = descriptor();
  const sink = fdSink(1, { write: fd.write });
  sink.write("a\n");
  const stuck = await fd.nth(1);
  expect(await sink.flush(1)).toBe(false);
  const flushed = sink.flush(60_000);
  stuck.done(null, 2);
  expect(await flushed).toBe(true);
});

test("a program whose log's reader went away stays alive and ends by its own will", async () => {
  const program = `
    const { createLog } = await import(${JSON.stringify(`${import.meta.dir}/index.ts`)});
    const log = createLog();
    let n = 0;
    const timer = setInterval(() => {
      log.info("line", { n });
      if (++n === 200) { clearInterval(timer); process.exitCode = 7; }
    }, 1);`;
  const child = Bun.spawn([process.execPath, "-e", program], { stdout: "pipe", stderr: "pipe" });
  const reader = child.stdout.getReader();
  await reader.read();
  await reader.cancel();
  expect(await child.exited).toBe(7);
});

test("a program whose log nobody reads is not held up by it", async () => {
  const program = `
    const { createLog } = await import(${JSON.stringify(`${import.meta.dir}/index.ts`)});
    const log = createLog();
    for (let i = 0; i < 20000; i++) log.info("x".repeat(500));
    await new Promise((resolve) => setTimeout(resolve, 100));
    for (let i = 0; i < 20000; i++) log.info("x".repeat(500));
    console.error("alive");
    await log.flush(10);
    process.exit(0);`;
  const child = Bun.spawn(["sh", "-c", 'exec "$0" -e "$1" | (sleep 600)', process.execPath, program], {
    stdout: "ignore",
    stderr: "pipe",
    detached: true,
  });
  const stderr = child.stderr.getReader();
  const { value } = await stderr.read();
  expect(new TextDecoder().decode(value)).toContain("alive");
  process.kill(-child.pid, "SIGKILL");
});

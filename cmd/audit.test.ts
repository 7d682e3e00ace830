import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Ledger, openLedger } from "../lib/ledger/index.ts";
import type { Note } from "../lib/provider/types.ts";
import { createLines, selectorsOf, startOf } from "./audit.ts";

/** Two hours ago, in whole seconds: the ledger drops what is old. */
const startMs = Math.floor(Date.now() / 1000) * 1000 - 7_200_000;
const timeOf = (ms: number) => new Date(ms).toISOString();
const note = (change: Partial<Note> = {}): Note => ({
  kind: "claimed",
  key: "default/agent",
  id: "sb_1",
  podUID: "uid-1",
  reason: "img:1/none/small",
  ...change,
});

let dir = "";
let ledger: Ledger;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vk-audit-"));
  ledger = openLedger({ path: join(dir, "audit.db"), nowMs: Date.now });
  ledger.record(note(), startMs);
  ledger.record(note({ key: "team/agent", id: "sb_2", podUID: "uid-2" }), startMs + 1000);
  ledger.record(note({ kind: "preserved", reason: "its Sandbox lives" }), startMs + 2000);
  ledger.record(note({ key: "default/other", id: "plainid", podUID: "uid-3" }), Date.now());
  await ledger.flush();
});

afterAll(async () => {
  await ledger.close();
  rmSync(dir, { recursive: true });
});

const command = (argv: string[]) => [process.execPath, join(import.meta.dir, "main.ts"), "audit", ...argv];
const environment = (at: string) => ({
  PATH: process.env.PATH ?? "",
  HOME: at,
  VK_STATE_PATH: join(at, "claims.json"),
});

async function vk(argv: string[], at = dir) {
  const child = Bun.spawn(command(argv), { env: environment(at), stdout: "pipe", stderr: "pipe" });
  const [out, err, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { out, err, code };
}

describe("audit, beside a provider that writes", () => {
  test("tells everything, oldest first, in lines for people", async () => {
    const { out, err, code } = await vk([]);
    expect([code, err]).toEqual([0, ""]);
    const lines = out.trimEnd().split("\n");
    expect(lines).toHaveLength(4);
    expect(lines[0]).toBe(
      `${timeOf(startMs).slice(0, 19).replace("T", " ")}Z  default/agent  sb_1     claimed a sandbox for the Pod: img:1/none/small`,
    );
    expect(lines[2]).toContain("preserved the sandbox");
    expect(lines[2]).toEndWith(": its Sandbox lives");
  });

  test("finds a Pod by key and by name, and a VM by its claim id", async () => {
    const rows = async (...argv: string[]) =>
      (await vk([...argv, "--json"])).out
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line).row);
    expect(await rows("default/agent")).toEqual([1, 3]);
    expect(await rows("agent")).toEqual([1, 2, 3]);
    expect(await rows("sb_2")).toEqual([2]);
    // A word that could be a Pod's name is looked for as a claim id too.
    expect(await rows("plainid")).toEqual([4]);
  });

  test("keeps to --since and --limit, and says when there is more", async () => {
    expect((await vk(["--since", "1h"])).out.trimEnd().split("\n")).toHaveLength(1);
    expect((await vk(["--since", timeOf(startMs + 2000)])).out.trimEnd().split("\n")).toHaveLength(2);
    const limited = await vk(["--limit", "1"]);
    expect(limited.out).toContain("default/other");
    expect(limited.out.trimEnd().split("\n")).toHaveLength(1);
    expect(limited.err).toContain("the newest 1 are shown");
  });

  test("prints JSON lines with what happened in words", async () => {
    const { out } = await vk(["sb_1", "--json", "--limit", "1"]);
    expect(JSON.parse(out)).toEqual({
      row: 3,
      time: timeOf(startMs + 2000),
      kind: "preserved",
      what: expect.stringContaining("preserved"),
      pod: "default/agent",
      podUID: "uid-1",
      claim: "sb_1",
      reason: "its Sandbox lives",
    });
  });

  test("says what was searched when nothing is found", async () => {
    const { out, err, code } = await vk(["default/nobody", "--since", "1h"]);
    expect([code, out]).toEqual([0, ""]);
    expect(err).toContain(
      `nothing recorded about Pod default/nobody in the last 1h in ${join(dir, "audit.db")}`,
    );
    expect((await vk(["sb_nobody"])).err).toContain("claim sb_nobody");
    expect((await vk(["nobody"])).err).toContain('a Pod or claim "nobody"');
  });

  test("ends quietly when its reader goes away", async () => {
    const line = `"${command([]).join('" "')}" | true; echo "code \${PIPESTATUS[0]}"`;
    const child = Bun.spawn(["bash", "-c", line], { env: environment(dir), stdout: "pipe", stderr: "pipe" });
    const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
    expect([out, err]).toEqual(["code 0\n", ""]);
  });
});

describe("audit of what cannot be read", () => {
  test("exits 1 and asks whether the path is right where there is no ledger", async () => {
    const { err, code } = await vk([], join(dir, "nowhere"));
    expect(code).toBe(1);
    expect(err).toContain(join(dir, "nowhere", "audit.db"));
    expect(err).toContain("--state-path");
  });

  test("exits 1 for a file that is no ledger", async () => {
    mkdirSync(join(dir, "broken"));
    writeFileSync(
      join(dir, "broken", "audit.db"),
      "not a database, and longer than a header would be. ".repeat(20),
    );
    const { err, code } = await vk([], join(dir, "broken"));
    expect(code).toBe(1);
    expect(err).toContain("cannot be read as the audit ledger");
  });

  test("exits 2 for a duration or a number that is none", async () => {
    for (const argv of [
      ["--since", "yesterday"],
      ["--since", "2026-13-45"],
      ["--limit", "0"],
      ["--limit", "many"],
    ]) {
      const { err, code } = await vk(argv);
      expect(code, argv.join(" ")).toBe(2);
      expect(err).toContain(argv[0] ?? "");
    }
  });
});

describe("audit --follow", () => {
  /** Reads lines of a child's output until one has the text. */
  async function until(
    reader: { read(): Promise<{ done: boolean; value?: Uint8Array }> },
    text: string,
  ): Promise<string> {
    let seen = "";
    while (!seen.includes(text)) {
      const { done, value } = await reader.read();
      if (done) throw new Error(`ended after: ${seen}`);
      seen += new TextDecoder().decode(value);
    }
    return seen;
  }

  test("goes on with what happens, and exits 0 when interrupted", async () => {
    const child = Bun.spawn(command(["sb_new", "--follow"]), {
      env: environment(dir),
      stdout: "pipe",
      stderr: "pipe",
    });
    const errors = child.stderr.getReader();
    await until(errors, "nothing recorded about claim sb_new");
    ledger.record(note({ id: "sb_other", reason: "of no interest" }), Date.now());
    ledger.record(note({ id: "sb_new", reason: "first" }), Date.now());
    await ledger.flush();
    const lines = child.stdout.getReader();
    await until(lines, "first\n");
    ledger.record(note({ kind: "released", id: "sb_new", reason: "second" }), Date.now());
    await ledger.flush();
    expect(await until(lines, "second\n")).not.toContain("first");
    child.kill("SIGINT");
    expect(await child.exited).toBe(0);
  });

  test("waits for a ledger that is not there yet", async () => {
    const later = mkdtempSync(join(dir, "later-"));
    const child = Bun.spawn(command(["--follow", "--json"]), {
      env: environment(later),
      stdout: "pipe",
      stderr: "pipe",
    });
    await until(child.stderr.getReader(), "waiting for it");
    const written = openLedger({ path: join(later, "audit.db"), nowMs: Date.now });
    written.record(note({ id: "sb_late" }), Date.now());
    await written.close();
    expect(await until(child.stdout.getReader(), "\n")).toContain("sb_late");
    child.kill("SIGTERM");
    expect(await child.exited).toBe(0);
  });
});

describe("the words of audit", () => {
  test("a subject with a slash is a Pod, what no name can be is a claim, anything else may be both", () => {
    expect(selectorsOf(undefined)).toEqual([{}]);
    expect(selectorsOf("default/a")).toEqual([{ pod: "default/a" }]);
    expect(selectorsOf("sb_1")).toEqual([{ id: "sb_1" }]);
    expect(selectorsOf("agent-1.x")).toEqual([{ pod: "agent-1.x" }, { id: "agent-1.x" }]);
  });

  test("--since is a duration back from now, or a time", () => {
    expect(startOf("1h30m", startMs)).toBe(startMs - 5_400_000);
    expect(startOf("2026-05-01T11:00:00Z", startMs)).toBe(Date.parse("2026-05-01T11:00:00Z"));
    expect(() => startOf("10", startMs)).toThrow("--since");
  });

  test("nothing that another program said moves the cursor, and a kind of a later version is shown as it is", () => {
    const lines = createLines();
    const line = lines([
      {
        row: 1,
        atMs: 1_777_636_800_000,
        kind: "transmuted",
        key: "a/b",
        id: "",
        podUID: "",
        reason: "x\x1b[2Jy\nz",
        cause: "timeout",
      },
    ]);
    expect(line).toBe("2026-05-01 12:00:00Z  a/b  -  transmuted: xy z (timeout)\n");
  });
});

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Row } from "../lib/provider/types.ts";
import { openStore, type Store } from "../lib/state/index.ts";
import { jsonOf, renderClaims, type ShownClaim } from "./claims.ts";

const secret = "release-credential";
const hourMs = 3_600_000;
const nowMs = Date.parse("2026-05-01T12:00:00Z");

const row = (id: string, change: Partial<Row> = {}): Row => ({
  id,
  token: secret,
  address: "10.88.0.1:8080",
  podUID: "11111111-aaaa",
  authority: "22222222-bbbb",
  claimedAtMs: nowMs - hourMs,
  deadlineMs: nowMs + hourMs,
  owner: { apiVersion: "agents.x-k8s.io/v1beta1", kind: "Sandbox", name: "agent", uid: "22222222-bbbb" },
  ...change,
});

let dir = "";
let store: Store;

beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "vk-claims-"));
  const opened = openStore({ path: join(dir, "state", "claims.json"), schedule: () => {} });
  if (!opened.ok) throw new Error(opened.message);
  store = opened.store;
  const intent = { podUID: "u", authority: "u", atMs: nowMs, template: "img", net: "", size: "" };
  const committed = store.commit([
    { kind: "row", key: "default/agent", value: row("sb_1") },
    { kind: "intent", key: "default/new", value: intent },
    { kind: "displaced", id: "sb_2", value: { key: "default/agent", row: row("sb_2") } },
    {
      kind: "releasing",
      id: "sb_3",
      value: { key: "default/old", row: row("sb_3"), reason: "owner is gone" },
    },
  ]);
  expect(committed).toEqual({ ok: true });
});

afterAll(() => {
  store.close();
  rmSync(dir, { recursive: true });
});

async function vk(argv: string[], env: Record<string, string> = {}) {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "main.ts"), "claims", ...argv], {
    env: { PATH: process.env.PATH ?? "", HOME: dir, ...env },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { out, err, code };
}

describe("claims, beside a provider that holds the table", () => {
  test("shows rows, intents, displaced and releasing claims, and no token", async () => {
    const { out, err, code } = await vk(["--state-path", join(dir, "state", "claims.json")]);
    expect([code, err]).toEqual([0, ""]);
    const lines = out.split("\n");
    expect(lines[0]).toMatch(/^POD +CLAIM +STATE +POD UID +AUTHORITY +ADDRESS +CLAIMED +DEADLINE$/);
    expect(lines[1]).toMatch(
      /^default\/agent +sb_1 +row +11111111 +Sandbox\/agent 22222222 +10\.88\.0\.1:8080 /,
    );
    expect(lines[2]).toMatch(/^default\/agent +sb_2 +displaced /);
    expect(lines[3]).toMatch(/^default\/new +- +intent +u +the Pod itself +- /);
    expect(lines[4]).toMatch(/^default\/old +sb_3 +releasing /);
    expect(lines[6]).toBe(
      "1 claim; 1 asked for, not answered yet; 1 displaced: another Pod has the name, the owner is still asked; 1 on the way back to sandboxd.",
    );
    expect(out).not.toContain(secret);
  });

  test("takes the path from the provider's variable, and prints JSON without a token", async () => {
    const { out, code } = await vk(["--json"], { VK_STATE_PATH: join(dir, "state", "claims.json") });
    expect(code).toBe(0);
    expect(out).not.toContain(secret);
    const { claims } = JSON.parse(out);
    expect(claims.map((claim: { state: string }) => claim.state)).toEqual([
      "row",
      "displaced",
      "intent",
      "releasing",
    ]);
    expect(claims[0]).toMatchObject({
      key: "default/agent",
      id: "sb_1",
      deadline: "2026-05-01T13:00:00.000Z",
      owner: { kind: "Sandbox" },
    });
    expect(claims[3].reason).toBe("owner is gone");
  });

  test("ends quietly when its reader goes away", async () => {
    const command = `"${process.execPath}" "${join(import.meta.dir, "main.ts")}" claims | true; echo "code \${PIPESTATUS[0]}"`;
    const child = Bun.spawn(["bash", "-c", command], {
      env: { PATH: process.env.PATH ?? "", VK_STATE_PATH: join(dir, "state", "claims.json") },
      stdout: "pipe",
      stderr: "pipe",
    });
    const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
    expect(out).toBe("code 0\n");
    expect(err).toBe("");
  });
});

describe("claims of a table that is not as it should be", () => {
  test.each([[[]], [["--json"]]])(
    "exits 1 where there is none: a wrong path is not a host without claims %p",
    async (flags) => {
      const { out, err, code } = await vk(["--state-path", join(dir, "nowhere", "claims.json"), ...flags]);
      expect([code, out]).toEqual([1, ""]);
      expect(err).toContain("does not exist: no provider has started with it. Is --state-path");
    },
  );

  test("exits 0 for one without a claim", async () => {
    const path = join(dir, "fresh", "claims.json");
    const opened = openStore({ path, schedule: () => {} });
    if (!opened.ok) throw new Error(opened.message);
    opened.store.close();
    expect(await vk(["--state-path", path])).toEqual({
      out: `No claims: ${path} holds none\n`,
      err: "",
      code: 0,
    });
  });

  test("exits 1 with place and reason for a malformed one", async () => {
    mkdirSync(join(dir, "broken"));
    writeFileSync(join(dir, "broken", "claims.json"), "{", { mode: 0o600 });
    const { out, err, code } = await vk(["--state-path", join(dir, "broken", "claims.json")]);
    expect([code, out]).toEqual([1, ""]);
    expect(err).toContain(join(dir, "broken", "claims.json"));
  });

  test("exits 2 for a path that is none", async () => {
    const { err, code } = await vk(["--state-path="]);
    expect(code).toBe(2);
    expect(err).toContain("--state-path");
  });
});

describe("the table for people", () => {
  const claim = (change: Partial<ShownClaim>): ShownClaim => ({
    key: "default/a",
    state: "row",
    id: "sb_1",
    podUID: "11111111-aaaa",
    authority: "11111111-aaaa",
    address: "10.0.0.1:8080",
    claimedAtMs: nowMs - 90_000,
    deadlineMs: nowMs + 2 * hourMs,
    ...change,
  });
  const line = (change: Partial<ShownClaim>, wide = false) =>
    renderClaims([claim(change)], nowMs, wide).split("\n")[1] ?? "";

  test("says how much time is left, how long it is over, or that there is no end", () => {
    expect(line({})).toEndWith("90 s ago  in 2 h");
    expect(line({ deadlineMs: nowMs - 120_000 })).toEndWith("2 min ago");
    expect(line({ deadlineMs: 0 })).toEndWith("never");
    expect(line({ deadlineMs: undefined })).toEndWith("-");
  });

  test("names the authority: the Pod itself, an owner, or none in an old table", () => {
    expect(line({})).toContain("the Pod itself");
    expect(line({ authority: "" })).toContain("none (old table)");
    expect(line({ authority: "99999999-cccc" })).toContain("99999999  ");
    expect(line({ authority: "99999999-cccc" }, true)).toContain("99999999-cccc");
  });

  test("says when a claim is superseded", () => {
    expect(line({ supersededAtMs: nowMs })).toContain("row, superseded");
    expect(jsonOf(claim({ supersededAtMs: nowMs }), nowMs).supersededAt).toBe("2026-05-01T12:00:00.000Z");
  });

  test("a claim that is kept for ever has no deadline in JSON", () => {
    expect(jsonOf(claim({ deadlineMs: 0 }), nowMs)).toMatchObject({ deadline: null, secondsLeft: null });
    expect(jsonOf(claim({}), nowMs)).toMatchObject({ secondsLeft: 7200 });
  });
});

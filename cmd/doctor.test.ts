import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ApiServer, startApiServer } from "../lib/sim/apiserver.ts";
import { type Sandboxd, startSandboxd } from "../lib/sim/sandboxd.ts";

let dir = "";
let sandboxd: Sandboxd;
let api: ApiServer;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vk-doctor-verb-"));
  const pools = [{ template: "img:1", net: "none", size: "small", warm: 1 }];
  [sandboxd, api] = await Promise.all([
    startSandboxd({ token: "root-token", pools }),
    startApiServer({ token: "kube-token" }),
  ]);
  writeFileSync(join(dir, "token"), "root-token\n", { mode: 0o600 });
  const kubeconfig = {
    "current-context": "sim",
    contexts: [{ name: "sim", context: { cluster: "sim", user: "sim" } }],
    clusters: [{ name: "sim", cluster: { server: api.url } }],
    users: [{ name: "sim", user: { token: "kube-token" } }],
  };
  writeFileSync(join(dir, "kubeconfig"), JSON.stringify(kubeconfig), { mode: 0o600 });
});

afterAll(async () => {
  await Promise.all([sandboxd.stop(), api.stop()]);
  rmSync(dir, { recursive: true });
});

/** The verb is configured by the same variables as the provider. */
const environment = () => ({
  PATH: process.env.PATH ?? "",
  HOME: dir,
  VK_NODE_NAME: "vk-1",
  VK_LISTEN_ADDR: "127.0.0.1:0",
  VK_STATE_PATH: join(dir, "state", "claims.json"),
  VK_KUBECONFIG: join(dir, "kubeconfig"),
  SANDBOXD_URL: sandboxd.url,
  SANDBOXD_TOKEN_FILE: join(dir, "token"),
});

async function vk(argv: string[], change: Record<string, string> = {}) {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "main.ts"), "doctor", ...argv], {
    env: { ...environment(), ...change },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { out, err, code };
}

test("exits 0 when nothing failed, with a report that names what was looked at and no progress off a terminal", async () => {
  const { out, err, code } = await vk([]);
  expect([code, err]).toEqual([0, ""]);
  expect(out).toStartWith("node      vk-1\n");
  expect(out).toContain("\nSummary\n  Fit to serve, as far as was checked: ");
  expect(out).not.toContain("\x1b");
});

test("exits 1 for a failure, and says what to do first", async () => {
  const { out, code } = await vk([], { SANDBOXD_TOKEN_FILE: join(dir, "none") });
  expect(code).toBe(1);
  expect(out).toContain("Do this, in this order:\n   1. sandboxd.token-file:");
});

test("prints one JSON object that carries every finding and no token", async () => {
  const { out, code } = await vk(["--json"]);
  expect(code).toBe(0);
  const report = JSON.parse(out);
  expect(report).toMatchObject({ ok: true, node: "vk-1", summary: { fail: 0 } });
  const { pass, warn, skipped } = report.summary;
  expect(pass + warn + skipped).toBe(report.findings.length);
  for (const finding of report.findings) {
    expect(Object.keys(finding).sort()).toEqual(["found", "group", "id", "status", "todo", "why"]);
  }
  expect(out).not.toContain("root-token");
  expect(out).not.toContain("kube-token");
});

test("takes the provider's flags before its variables", async () => {
  const { out } = await vk(["--node-name", "vk-2", "--json"]);
  expect(JSON.parse(out).node).toBe("vk-2");
});

test("exits 2 with every error of a configuration that is none", async () => {
  const { out, err, code } = await vk(["--node-memory=8TiB", "--publish-interval=soon"]);
  expect([code, out]).toEqual([2, ""]);
  expect(err).toContain('--node-memory "8TiB"');
  expect(err).toContain('--publish-interval "soon"');
});

test("ends quietly when its reader goes away", async () => {
  const command = `"${process.execPath}" "${join(import.meta.dir, "main.ts")}" doctor --json | true; echo "code \${PIPESTATUS[0]}"`;
  const child = Bun.spawn(["bash", "-c", command], { env: environment(), stdout: "pipe", stderr: "pipe" });
  const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  // Whether the reader was gone before the report came or not.
  expect([out, err]).toEqual(["code 0\n", ""]);
});

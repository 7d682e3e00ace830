import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ApiServer, startApiServer } from "../lib/sim/apiserver.ts";

let dir = "";
let server: ApiServer;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vk-explain-"));
  server = await startApiServer({ token: "admin-of-tests" });
  const kubeconfig = {
    clusters: [{ name: "c", cluster: { server: server.url } }],
    users: [{ name: "u", user: { token: "admin-of-tests" } }],
    contexts: [{ name: "x", context: { cluster: "c", user: "u", namespace: "team-a" } }],
    "current-context": "x",
  };
  writeFileSync(join(dir, "kubeconfig"), JSON.stringify(kubeconfig));
  server.objects.create("namespaces", { metadata: { name: "team-a" } });
  server.objects.create("pods", {
    metadata: { name: "one", namespace: "team-a", annotations: { "sandbox.cocoonstack.io/template": "rt" } },
    spec: {
      nodeSelector: { "sandbox.cocoonstack.io/runtime": "sandboxed" },
      containers: [{ name: "agent", image: "rt" }],
    },
  });
  server.objects.patch("pods/status", "team-a/one", {
    status: {
      phase: "Pending",
      conditions: [
        {
          type: "PodScheduled",
          status: "False",
          reason: "Unschedulable",
          message: "0/0 nodes are available.",
        },
      ],
    },
  });
  server.objects.create("sandboxes.agents.x-k8s.io", {
    metadata: { name: "asleep", namespace: "team-a" },
    spec: { operatingMode: "Suspended", podTemplate: { spec: { containers: [] } } },
  });
});
afterAll(async () => {
  await server.stop();
  rmSync(dir, { recursive: true, force: true });
});

async function vk(argv: string[], env: Record<string, string> = { KUBECONFIG: join(dir, "kubeconfig") }) {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "main.ts"), ...argv], {
    env: { PATH: process.env.PATH ?? "", HOME: dir, ...env },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { out, err, code };
}

describe("explain", () => {
  test.each([["one"], ["team-a/one"], ["pod/one"]])(
    "%s: the reason in one sentence, what says so, what to do",
    async (name) => {
      const { out, err, code } = await vk(["explain", name]);
      expect(out).toStartWith("Pod team-a/one is Pending: its selector fits none of the cluster's 0 Nodes");
      expect(out).toContain("\nEvidence\n  - The scheduler says: 0/0 nodes are available.\n");
      expect(out).toContain("\nNext\n");
      expect(out).not.toContain("\x1b");
      expect([err, code]).toEqual(["", 0]);
    },
  );
  test("a Sandbox that has no Pod on purpose", async () => {
    const { out, code } = await vk(["explain", "--sandbox", "asleep", "-n", "team-a"]);
    expect(out).toStartWith("Sandbox team-a/asleep: the Sandbox is suspended, so it has no Pod");
    expect(code).toBe(0);
  });
  test("--json has the reason's id, and what check says of the Pod", async () => {
    const { out } = await vk(["explain", "one", "--json"]);
    const explanation = JSON.parse(out);
    expect(explanation).toMatchObject({
      subject: "Pod team-a/one",
      phase: "Pending",
      fine: false,
      reason: "selector-fits-none",
      unseen: [],
    });
    expect(explanation.findings.map((one: { rule: string }) => one.rule)).toEqual([
      "sandboxd/selector-value",
      "sandboxd/toleration-missing",
    ]);
  });
  test("1 for what does not exist", async () => {
    const { out, code } = await vk(["explain", "gone"]);
    expect(out).toStartWith("Pod team-a/gone: there is no Pod team-a/gone.");
    expect(code).toBe(1);
  });
  test.each([
    ["no name", ["explain"], /whose trouble/],
    ["two names", ["explain", "one", "two"], /two: unexpected argument/],
    ["a Pod and a Sandbox", ["explain", "one", "--sandbox", "two"], /two questions/],
    ["a name with too many parts", ["explain", "a/b/c"], /neither NAME nor NAMESPACE\/NAME/],
    ["an unknown flag", ["explain", "one", "--namepsace", "a"], /did you mean --namespace/],
  ])("2 for %s", async (_, argv, reason) => {
    const { err, code } = await vk(argv);
    expect(err).toMatch(reason);
    expect(code).toBe(2);
  });
  test("2 without a kubeconfig", async () => {
    const { err, code } = await vk(["explain", "one"], {});
    expect(err).toMatch(/kubeconfig/);
    expect(code).toBe(2);
  });
  test("1 when the API server cannot be asked", async () => {
    server.control.fault({
      match: "/pods/one",
      effect: "status",
      status: 403,
      body: { kind: "Status", code: 403, reason: "Forbidden", message: "no" },
    });
    const { err, code } = await vk(["explain", "one"]);
    server.control.clearFaults();
    expect(err).toBe("vk-sandbox: Pod team-a/one: 403 Forbidden: no\n");
    expect(code).toBe(1);
  });
});

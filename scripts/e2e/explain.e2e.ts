/** What `explain` and `check --cluster` say of Pods whose trouble is real. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join, resolve } from "node:path";
import type { Explanation } from "../../lib/explain/index.ts";
import { annotation, conditionOf, controlPlane, type PodOptions, World } from "./world.ts";

const binary = resolve(process.env.VK_E2E_BINARY ?? join(import.meta.dir, "../../dist/vk-sandbox"));

let world: World;
beforeAll(async () => {
  world = await World.create();
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

async function vk(...argv: string[]): Promise<{ out: string; code: number }> {
  const child = Bun.spawn([binary, ...argv, "--kubeconfig", controlPlane().kubeconfig("admin")], {
    env: { PATH: process.env.PATH ?? "", HOME: world.dir },
    stdout: "pipe",
    stderr: "inherit",
  });
  const [out, code] = await Promise.all([child.stdout.text(), child.exited]);
  return { out, code };
}

async function explain(name: string, ...more: string[]): Promise<Explanation> {
  const { out, code } = await vk("explain", `${world.name}/${name}`, "--json", ...more);
  expect(code).toBe(0);
  return JSON.parse(out) as Explanation;
}

/** Waits until somebody has said no: the scheduler on its condition, or the provider on the status. */
async function troubled(name: string): Promise<void> {
  await world.eventually(
    `Pod ${name} was looked at and refused`,
    () => world.pod(name),
    (pod) =>
      conditionOf(pod, "PodScheduled")?.reason === "Unschedulable" || pod?.status.reason === "ProviderFailed",
  );
}

const rows: {
  name: string;
  options: PodOptions;
  reason: Explanation["reason"];
  because: RegExp;
  next: RegExp;
  /** What check says of the same Pod. */
  rule: string;
}[] = [
  {
    name: "wrong-selector",
    options: { spec: { nodeSelector: { [annotation("runtime")]: "other" } } },
    reason: "selector-fits-none",
    because: /its selector fits none of the cluster's/,
    next: /Select sandbox.cocoonstack.io\/runtime: sandboxd/,
    rule: "sandboxd/selector-value",
  },
  {
    name: "no-toleration",
    options: { spec: { tolerations: [] } },
    reason: "taint-not-tolerated",
    because: /virtual-kubelet.io\/provider, which keeps it off the node that its selector fits/,
    next: /operator Exists/,
    rule: "sandboxd/toleration-missing",
  },
  {
    name: "no-template",
    options: { annotations: { [annotation("template")]: null } },
    reason: "refused",
    because: /io\/template is missing/,
    next: /Set sandbox.cocoonstack.io\/template/,
    rule: "sandboxd/template-missing",
  },
  {
    name: "unknown-lane",
    options: { annotations: { [annotation("net")]: "internet" } },
    reason: "refused",
    because: /"internet"/,
    next: /none, egress/,
    rule: "sandboxd/net-value",
  },
];

describe("a Pod that does not run", () => {
  for (const { name, options, reason, because, next, rule } of rows)
    test(`${name}: explain says why, and check says it of the live object`, async () => {
      await world.createPod(name, options);
      await troubled(name);
      const explanation = await explain(name);
      expect([explanation.reason, explanation.phase, explanation.unseen]).toEqual([reason, "Pending", []]);
      expect(explanation.because).toMatch(because);
      expect(explanation.next.join("\n")).toMatch(next);
      const { out, code } = await vk("check", "--cluster", "-n", world.name, "--json");
      expect(code).toBe(1);
      const { findings } = JSON.parse(out) as { findings: { rule: string; object: string }[] };
      const own = findings.filter(({ object }) => object === `Pod ${world.name}/${name}`);
      expect(own.map((finding) => finding.rule)).toContain(rule);
    });
});

test("a Pod that runs: which VM, where, until when, by the node's own table too", async () => {
  await world.createPod("well");
  const pod = await world.running("well");
  const id = pod.metadata.annotations?.[annotation("claim-id")] ?? "";
  const explanation = await explain("well", "--state-path", world.daemon.statePath);
  expect([explanation.reason, explanation.fine]).toEqual(["runs", true]);
  expect(explanation.because).toBe(`it runs in VM ${id} on Node ${world.name}, at ${pod.status.podIP}`);
  expect(explanation.evidence.join("\n")).toContain(
    `This host's table has VM ${id} for it, held for another`,
  );
  await world.eventually(
    "the ledger has the claim",
    () => explain("well", "--state-path", world.daemon.statePath),
    ({ evidence }) => evidence.some((line) => line.includes(`claimed ${id}`)),
  );
});

test("a Pod that is asked for by its Sandbox", async () => {
  await world.createSandbox("owned");
  await world.running("owned");
  const { out, code } = await vk("explain", "--sandbox", `${world.name}/owned`);
  expect(out).toStartWith(`Pod ${world.name}/owned is Running: it runs in VM `);
  expect(code).toBe(0);
});

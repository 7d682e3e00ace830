import { describe, expect, test } from "bun:test";
import type { Check } from "./context.ts";
import { checks, runDoctor } from "./doctor.ts";
import { groups, tally } from "./finding.ts";
import { clusterOf, configOf, goodAnswers, noCluster, probesOf, type Spoilt } from "./fixtures.ts";

const run = (spoilt: Spoilt = {}, flags: Record<string, string> = {}) =>
  runDoctor({ config: configOf(flags), probes: probesOf(spoilt) });
const check = (id: string, run: Check["run"]): Check => ({ id, group: "host", why: "Because.", run });

describe("doctor as a whole", () => {
  test("finds nothing wrong where everything is right", async () => {
    const findings = await run();
    expect(findings.filter(({ status }) => status === "warn" || status === "fail")).toEqual([]);
    expect(findings).toHaveLength(checks.length);
  });

  test("reports in the order of its checks, groups together, and each id once", async () => {
    const findings = await run();
    expect(findings.map(({ id }) => id)).toEqual(checks.map(({ id }) => id));
    expect(new Set(checks.map(({ id }) => id)).size).toBe(checks.length);
    const order = findings.map(({ group }) => groups.indexOf(group));
    expect(order).toEqual([...order].sort());
    for (const { id, group } of checks) expect(id.startsWith(`${group}.`), id).toBe(true);
  });

  test("says why each check matters, and what to do about each that is not right", async () => {
    for (const finding of await run({ cluster: noCluster })) {
      expect(finding.why, finding.id).toMatch(/^\S.*\.$/s);
      if (finding.status === "fail" || finding.status === "warn")
        expect(finding.todo, finding.id).not.toBe("");
      if (finding.status === "pass") expect(finding.todo, finding.id).toBe("");
    }
  });

  test("without a cluster it fails once and skips what needs one", async () => {
    const findings = await run({ cluster: noCluster });
    const cluster = findings.filter(({ group }) => group === "cluster");
    expect(cluster.filter(({ status }) => status === "fail").map(({ id }) => id)).toEqual([
      "cluster.credentials",
    ]);
    expect(tally(cluster).pass).toBe(0);
  });

  test("asks the API server for nothing but reads and reviews", async () => {
    const asked: string[] = [];
    await run({ cluster: clusterOf(goodAnswers, undefined, asked) }, { "publish-inventory": "true" });
    expect(asked.length).toBeGreaterThan(20);
    const reviews = /^POST \/apis\/auth(entication|orization)\.k8s\.io\/v1\/selfsubject(access)?reviews$/;
    expect(asked.filter((request) => !request.startsWith("GET ") && !reviews.test(request))).toEqual([]);
  });

  test("asks for the same thing once", async () => {
    const asked: string[] = [];
    await run({ cluster: clusterOf(goodAnswers, undefined, asked) }, { "publish-inventory": "true" });
    for (const path of [
      "GET /version",
      "GET /api/v1/nodes/vk-1",
      "POST /apis/authentication.k8s.io/v1/selfsubjectreviews",
    ]) {
      expect(
        asked.filter((request) => request === path),
        path,
      ).toHaveLength(1);
    }
  });
});

describe("a check", () => {
  test("that throws is a failure that asks for a report, and keeps no other from being made", async () => {
    const findings = await runDoctor({
      config: configOf(),
      probes: probesOf(),
      checks: [
        check("host.a", () => {
          throw new Error("a fault of ours");
        }),
        check("host.b", async () => Promise.reject(new Error("another"))),
        check("host.c", () => ({ status: "pass", found: "fine" })),
      ],
    });
    expect(findings.map(({ status }) => status)).toEqual(["fail", "fail", "pass"]);
    expect(findings[0]?.found).toContain("a fault of ours");
    expect(findings[1]?.found).toContain("another");
  });

  test("that does not end is a failure that names its timeout", async () => {
    const [finding] = await runDoctor({
      config: configOf(),
      probes: probesOf(),
      timeoutMs: 10,
      checks: [check("host.a", () => new Promise(() => {}))],
    });
    expect(finding?.status).toBe("fail");
    expect(finding?.found).toContain("0.01 s");
  });

  test("is reported to the progress line until it is done", async () => {
    const seen: [number, string[]][] = [];
    const held = Promise.withResolvers<{ status: "pass"; found: string }>();
    const running = runDoctor({
      config: configOf(),
      probes: probesOf(),
      checks: [check("host.a", () => held.promise), check("host.b", () => ({ status: "pass", found: "" }))],
      onProgress: (done, total, waitingFor) => {
        expect(total).toBe(2);
        seen.push([done, waitingFor]);
        if (done === 1) held.resolve({ status: "pass", found: "" });
      },
    });
    await running;
    expect(seen).toEqual([
      [0, ["host.a", "host.b"]],
      [1, ["host.a"]],
      [2, []],
    ]);
  });
});

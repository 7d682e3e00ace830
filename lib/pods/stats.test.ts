import { expect, test } from "bun:test";
import type { ClaimView, Provider } from "../provider/provider.ts";
import type { PodView } from "../provider/types.ts";
import { createStats } from "./stats.ts";

function provider(): Provider {
  const pod = (name: string, phase: string): PodView => ({
    key: `ns/${name}`,
    uid: `uid-${name}`,
    resourceVersion: "1",
    phase,
    deleting: false,
    restartNever: false,
    runtime: "",
    template: "rt",
    net: "",
    size: "",
    ttl: "",
    renew: false,
    claimId: phase === "Running" ? `sb_${name}` : "",
    podIP: phase === "Running" ? "10.0.0.1" : "",
    containers: [
      { name: "agent", image: "rt" },
      { name: "side", image: "rt" },
    ],
    digest: { head: "", conditions: "", containers: "" },
  });
  const claim: ClaimView = {
    key: "ns/a",
    id: "sb_a",
    podUID: "uid-a",
    authority: "uid-a",
    address: "10.0.0.1:80",
    claimedAtMs: 1_700_000_000_000,
    deadlineMs: 0,
    state: "held",
  };
  const unused = () => {
    throw new Error("not used here");
  };
  return {
    handle: unused,
    nextDueMs: unused,
    counts: unused,
    verify: unused,
    claims: () => [claim],
    pods: () => [pod("a", "Running"), pod("b", "Pending")],
  };
}

function stats(asked: string[] = [], cpu: number | undefined = 12.5) {
  return createStats({
    nodeName: "n1",
    provider,
    memoryOf: async (id) => {
      asked.push(id);
      return { usedBytes: 1000, totalBytes: 4000, measuredAtMs: 0 };
    },
    hostCpuSeconds: () => cpu,
    now: () => 1_700_000_100_000,
    startedAtMs: 1_700_000_000_000,
  });
}

test("the summary shows each running sandbox's memory once, on its first container", async () => {
  const summary = (await stats().summary()) as {
    node: { memory: { workingSetBytes: number } };
    pods: { podRef: { name: string }; containers: { name: string; memory: { workingSetBytes: number } }[] }[];
  };
  expect(summary.node.memory.workingSetBytes).toBe(1000);
  expect(summary.pods.map((pod) => pod.podRef.name)).toEqual(["a"]);
  expect(summary.pods[0]?.containers).toMatchObject([{ name: "agent", memory: { workingSetBytes: 1000 } }]);
});

test("scrapes that follow each other ask sandboxd once", async () => {
  const asked: string[] = [];
  const { summary, resourceMetrics } = stats(asked);
  await Promise.all([summary(), resourceMetrics(), summary()]);
  expect(asked).toEqual(["sb_a"]);
});

test("resource metrics carry no CPU that nobody measured", async () => {
  const text = await stats().resourceMetrics();
  expect(text).toContain(
    'container_memory_working_set_bytes{container="agent",namespace="ns",pod="a"} 1000\n',
  );
  expect(text).toContain("node_cpu_usage_seconds_total 12.5\n");
  expect(text).not.toContain("container_cpu");
  expect(text).toContain("scrape_error 0\n");
});

test("the Pod list names every Pod, and the running list only those that run", () => {
  const { pods, runningPods } = stats();
  const names = (list: unknown) =>
    (list as { items: { metadata: { name: string } }[] }).items.map((item) => item.metadata.name);
  expect(names(pods())).toEqual(["a", "b"]);
  expect(names(runningPods())).toEqual(["a"]);
});

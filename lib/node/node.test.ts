import { beforeEach, describe, expect, test } from "bun:test";
import { type FakeClock, fakeClock } from "../kube/fake-clock.ts";
import { away, type FakeApi, fakeApi, settle, status } from "./fake-api.ts";
import {
  createNode,
  holderIdentity,
  identityParts,
  type NodeController,
  type NodeOptions,
  type ProbeResult,
} from "./index.ts";
import type { NodeSpec } from "./object.ts";

const nodePath = "/api/v1/nodes/vk-1";
const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const leasePath = `${leases}/vk-1`;

const spec: NodeSpec = {
  name: "vk-1",
  ip: "10.0.0.5",
  kubeletPort: 10260,
  cpu: { text: "4000", value: 4000 },
  memory: { text: "8Ti", value: 8 * 2 ** 40 },
  pods: { text: "2000", value: 2000 },
  labels: { "sandbox.cocoonstack.io/runtime": "sandboxd" },
  info: {
    machineID: "m",
    systemUUID: "s",
    bootID: "b",
    kernelVersion: "6.1",
    osImage: "Debian",
    containerRuntimeVersion: "sandboxd://",
    kubeletVersion: "v0.1.0",
    kubeProxyVersion: "",
    operatingSystem: "linux",
    architecture: "amd64",
  },
};
const holder = holderIdentity({ nodeName: "vk-1", parts: ["machine", "/state"], pid: 1 });

let api: FakeApi;
let clock: FakeClock;
let answers: ProbeResult;
let lost: string[];
let said: string[];

beforeEach(() => {
  api = fakeApi();
  clock = fakeClock(Date.parse("2026-01-01T00:00:00Z"));
  answers = { ok: true };
  lost = [];
  said = [];
});

const say = (message: string) => void said.push(message);
const log = {
  debug: say,
  info: say,
  warn: say,
  error: say,
  with: () => log,
  redact() {},
  enabled: () => true,
  flush: () => Promise.resolve(true),
  flushSync() {},
};

function node(options: Partial<NodeOptions> = {}): NodeController {
  return createNode({
    kube: api,
    spec,
    holder,
    probe: () => Promise.resolve(answers),
    notReadyAfterMs: 40_000,
    clock,
    random: () => 0,
    log,
    onLost: (other) => void lost.push(other),
    ...options,
  });
}

async function started(options: Partial<NodeOptions> = {}): Promise<NodeController> {
  const made = node(options);
  expect(await made.acquire()).toEqual({ ok: true });
  made.start();
  await settle();
  return made;
}

/** Time passes in steps, and everything that waits for promises runs in between. */
async function pass(ms: number, stepMs = 1000): Promise<void> {
  for (let left = ms; left > 0; left -= stepMs) {
    clock.advance(Math.min(stepMs, left));
    await settle();
  }
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into objects of the API at will
const object = (path = nodePath): any => api.objects.get(path);
const conditionOf = (type: string) =>
  object().status.conditions.find((c: { type: string }) => c.type === type);
const taintsOf = (key: string) => object().spec.taints.filter((t: { key: string }) => t.key === key);

describe("registration", () => {
  test("a new Node is Ready with the request that makes it, and says everything the contract asks for", async () => {
    await started();
    expect(api.lines()).toEqual([
      `GET ${leasePath}`,
      `POST ${leases}`,
      `GET ${nodePath}`,
      "POST /api/v1/nodes",
    ]);
    const made = object();
    expect(made.metadata.labels).toEqual({
      "sandbox.cocoonstack.io/runtime": "sandboxd",
      type: "virtual-kubelet",
      "kubernetes.io/hostname": "vk-1",
      "kubernetes.io/role": "agent",
      "node.kubernetes.io/exclude-from-external-load-balancers": "true",
    });
    expect(made.spec.taints).toEqual([
      { key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" },
    ]);
    expect(made.status.capacity).toEqual({ cpu: "4000", memory: "8Ti", pods: "2000" });
    expect(made.status.allocatable).toEqual(made.status.capacity);
    expect(made.status.addresses).toEqual([
      { type: "InternalIP", address: "10.0.0.5" },
      { type: "Hostname", address: "vk-1" },
    ]);
    expect(made.status.daemonEndpoints.kubeletEndpoint.Port).toBe(10260);
    expect(made.status.nodeInfo).toEqual(spec.info);
    expect(
      made.status.conditions.map((c: { type: string; status: string }) => `${c.type}=${c.status}`),
    ).toEqual([
      "Ready=True",
      "MemoryPressure=False",
      "DiskPressure=False",
      "PIDPressure=False",
      "NetworkUnavailable=False",
    ]);
    for (const c of made.status.conditions) {
      expect(c.reason).toMatch(/^[A-Z][A-Za-z]+$/);
      expect(c.lastHeartbeatTime).toBe("2026-01-01T00:00:00Z");
      expect(c.lastTransitionTime).toBe("2026-01-01T00:00:00Z");
    }
  });

  test("every request is exempt from the budget", async () => {
    await started();
    await pass(300_000, 5000);
    for (const { options } of api.asked) expect(options.exempt).toBe(true);
  });

  test("a Node that is there is adopted: ours corrected, foreign labels and taints kept, times not moved", async () => {
    const long = "2020-01-01T00:00:00Z";
    api.edit(nodePath, {
      metadata: {
        name: "vk-1",
        uid: "old",
        labels: { type: "other", mine: "yes" },
        annotations: { mine: "yes" },
      },
      spec: {
        taints: [
          { key: "node.kubernetes.io/not-ready", effect: "NoSchedule" },
          { key: "virtual-kubelet.io/provider", value: "wrong", effect: "NoExecute" },
        ],
      },
      status: {
        capacity: { cpu: "1", memory: "1", pods: "1", "example.com/gpu": "1" },
        addresses: [{ type: "InternalIP", address: "10.9.9.9" }],
        conditions: [
          { type: "Ready", status: "True", lastTransitionTime: long },
          { type: "Foreign", status: "True", lastTransitionTime: long },
        ],
      },
    });
    const made = await started();
    expect(made.uid()).toBe("old");
    expect(object().metadata.labels).toMatchObject({ type: "virtual-kubelet", mine: "yes" });
    expect(object().metadata.annotations).toEqual({ mine: "yes" });
    expect(object().spec.taints).toEqual([
      { key: "node.kubernetes.io/not-ready", effect: "NoSchedule" },
      { key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" },
    ]);
    expect(object().status.capacity).toEqual({
      cpu: "4000",
      memory: "8Ti",
      pods: "2000",
      "example.com/gpu": "1",
    });
    expect(object().status.addresses).toEqual([
      { type: "InternalIP", address: "10.0.0.5" },
      { type: "Hostname", address: "vk-1" },
    ]);
    expect(conditionOf("Ready")).toMatchObject({ status: "True", lastTransitionTime: long });
    expect(conditionOf("Foreign").status).toBe("True");
  });

  test("an adopted Node that is right already costs one status and nothing else", async () => {
    const first = await started();
    first.stop();
    api.clear();
    await started();
    expect(api.lines()).toEqual([
      `GET ${leasePath}`,
      `PATCH ${leasePath}`,
      `GET ${nodePath}`,
      `PATCH ${nodePath}/status`,
    ]);
  });

  test("labels, taint and capacity that someone changed are corrected by the next status", async () => {
    await started();
    api.edit(nodePath, {
      metadata: { labels: { type: "x" } },
      spec: { taints: [] },
      status: { capacity: { cpu: "1" } },
    });
    await pass(300_000, 5000);
    expect(object().metadata.labels.type).toBe("virtual-kubelet");
    expect(taintsOf("virtual-kubelet.io/provider").length).toBe(1);
    expect(object().status.capacity.cpu).toBe("4000");
  });

  test("a taint written by another in between is never lost", async () => {
    await started();
    api.edit(nodePath, { spec: { taints: [] } });
    let first = true;
    api.before = ({ method, path }) => {
      if (method === "PATCH" && path === nodePath && first) {
        first = false;
        api.edit(nodePath, { spec: { taints: [{ key: "foreign", effect: "NoSchedule" }] } });
      }
      return undefined;
    };
    await pass(300_000, 5000);
    expect(object().spec.taints.map((t: { key: string }) => t.key)).toEqual([
      "foreign",
      "virtual-kubelet.io/provider",
    ]);
  });

  test("a Node deleted by someone is registered again when its Lease goes with it, without a question asked before", async () => {
    const uids: string[] = [];
    const made = await started({ onRegistered: (uid) => void uids.push(uid) });
    await pass(10_000);
    expect(object(leasePath).metadata.ownerReferences).toEqual([
      { apiVersion: "v1", kind: "Node", name: "vk-1", uid: made.uid() },
    ]);
    api.objects.delete(nodePath);
    // The garbage collector.
    api.objects.delete(leasePath);
    await pass(10_000);
    expect(conditionOf("Ready").status).toBe("True");
    expect(uids.length).toBe(2);
    expect(made.uid()).toBe(uids[1]);
    expect(object(leasePath).metadata.ownerReferences[0].uid).toBe(uids[1]);
  });

  test("without a garbage collector the next status notices that the Node is gone", async () => {
    await started();
    api.objects.delete(nodePath);
    await pass(300_000, 5000);
    expect(conditionOf("Ready").status).toBe("True");
    await pass(10_000);
    expect(object(leasePath).metadata.ownerReferences[0].uid).toBe(object().metadata.uid);
  });

  test("a Node that is being deleted is made anew once it is gone", async () => {
    api.edit(nodePath, { metadata: { name: "vk-1", uid: "old", deletionTimestamp: "2026-01-01T00:00:00Z" } });
    const made = await started();
    expect(made.uid()).toBeUndefined();
    api.objects.delete(nodePath);
    await pass(2000, 100);
    expect(made.uid()).not.toBe("old");
    expect(conditionOf("Ready").status).toBe("True");
  });
});

describe("under NodeRestriction", () => {
  const forbidden = (message: string) => status(403, "Forbidden", `nodes "vk-1" is forbidden: ${message}`);
  const restriction: FakeApi["before"] = ({ method, path, body }) => {
    // biome-ignore lint/suspicious/noExplicitAny: the body of a test
    const { metadata, spec: nodeSpec } = body as any;
    if (metadata?.labels?.["kubernetes.io/role"] !== undefined)
      return forbidden("is not allowed to set the following labels: kubernetes.io/role");
    if (method === "PATCH" && path === nodePath && nodeSpec?.taints !== undefined)
      return forbidden('node "vk-1" is not allowed to modify taints');
    return undefined;
  };

  test("the Node is made without the role label, which is said once", async () => {
    api.before = restriction;
    const made = await started();
    expect(object().metadata.labels["kubernetes.io/role"]).toBeUndefined();
    expect(object().metadata.labels["kubernetes.io/hostname"]).toBe("vk-1");
    expect(taintsOf("virtual-kubelet.io/provider").length).toBe(1);
    await pass(900_000, 10_000);
    expect(said.filter((line) => /may not set some labels/.test(line)).length).toBe(1);
    expect(made.uid()).toBeDefined();
  });

  test("an adopted Node keeps the taints it has, which is said once, and the rest works", async () => {
    api.edit(nodePath, {
      metadata: { name: "vk-1", uid: "old", labels: {} },
      spec: { taints: [] },
      status: {},
    });
    api.before = restriction;
    const made = await started();
    await pass(900_000, 10_000);
    made.setCapacity("exhausted");
    await settle();
    expect(object().metadata.labels.type).toBe("virtual-kubelet");
    expect(conditionOf("Ready").status).toBe("True");
    expect(said.filter((line) => /may not change its Node's taints/.test(line)).length).toBe(1);
  });
});

describe("status", () => {
  test("five minutes of idleness cost thirty leases, one status, and nothing else", async () => {
    await started();
    await pass(20_000);
    api.clear();
    await pass(290_000, 5000);
    const lines = api.lines();
    expect(lines.filter((line) => line === `PATCH ${leasePath}`).length).toBe(29);
    expect(lines.filter((line) => line === `PATCH ${nodePath}/status`).length).toBe(1);
    expect(lines.length).toBe(30);
  });

  test("an API server that is away is asked again until it is back, and the log is not filled", async () => {
    let down = true;
    api.before = () => (down ? away : undefined);
    const made = node();
    const acquired = made.acquire();
    await pass(600_000, 2000);
    expect(said.length).toBeLessThan(40);
    down = false;
    await pass(10_000);
    expect(await acquired).toEqual({ ok: true });
    made.start();
    await settle();
    expect(conditionOf("Ready").status).toBe("True");
  });

  test("after an outage long enough to be marked Unknown the status is posted with the first lease", async () => {
    await started();
    let down = false;
    api.before = () => (down ? away : undefined);
    await pass(15_000);
    down = true;
    await pass(60_000);
    down = false;
    api.edit(nodePath, { status: { conditions: [{ type: "Ready", status: "Unknown" }] } });
    await pass(10_000);
    expect(conditionOf("Ready").status).toBe("True");
  });

  test("an answer that is no Node is not believed", async () => {
    await started();
    api.before = ({ path }) =>
      path === `${nodePath}/status` ? { ok: true, status: 200, body: {} } : undefined;
    await pass(300_000, 5000);
    expect(said.some((line) => /cannot be posted/.test(line))).toBe(true);
  });
});

describe("readiness of sandboxd", () => {
  const no: ProbeResult = { ok: false, why: "connection refused" };

  test("a failed probe, or a few, turn nothing", async () => {
    await started();
    answers = no;
    await pass(10_000);
    answers = { ok: true };
    await pass(10_000);
    answers = no;
    await pass(39_000);
    expect(conditionOf("Ready").status).toBe("True");
  });

  test("NotReady after the stated time with the reason, posted at once, and Ready again when it answers", async () => {
    await started();
    answers = no;
    // Up to one interval until the first probe fails, then the stated 40 s.
    await pass(51_000);
    expect(conditionOf("Ready")).toMatchObject({
      status: "False",
      reason: "SandboxdUnreachable",
      message: "sandboxd cannot be reached: connection refused",
      lastTransitionTime: "2026-01-01T00:00:50Z",
    });
    expect(conditionOf("MemoryPressure").lastTransitionTime).toBe("2026-01-01T00:00:00Z");
    answers = { ok: true };
    await pass(12_000);
    expect(conditionOf("Ready").status).toBe("True");
  });

  test("one good answer among bad ones does not turn it Ready", async () => {
    let flapping = false;
    let asked = 0;
    const probe = () => Promise.resolve(flapping && asked++ % 2 === 0 ? { ok: true as const } : answers);
    await started({ probe });
    answers = no;
    await pass(51_000);
    flapping = true;
    await pass(120_000);
    expect(conditionOf("Ready").status).toBe("False");
  });

  test("a clock that steps by a day turns nothing", async () => {
    let stepMs = 0;
    const stepping = { now: () => clock.now() + stepMs, after: clock.after };
    await started({ clock: stepping });
    answers = no;
    await pass(12_000);
    stepMs = 86_400_000;
    await pass(20_000);
    expect(conditionOf("Ready").status).toBe("True");
    stepMs = -86_400_000;
    await pass(5000);
    expect(conditionOf("Ready").status).toBe("True");
    await pass(20_000);
    expect(conditionOf("Ready").status).toBe("False");
  });

  test("a probe that never answers counts as failed, and the stated time stays what it is", async () => {
    const silence = Promise.withResolvers<ProbeResult>().promise;
    let hangs = false;
    await started({ probe: () => (hangs ? silence : Promise.resolve({ ok: true as const })) });
    hangs = true;
    await pass(50_000);
    expect(conditionOf("Ready").status).toBe("True");
    await pass(11_000);
    expect(conditionOf("Ready")).toMatchObject({
      status: "False",
      message: "sandboxd cannot be reached: no answer within 10 s",
    });
    hangs = false;
    await pass(12_000);
    expect(conditionOf("Ready").status).toBe("True");
  });

  test("a probe that throws counts as failed", async () => {
    await started({ probe: () => Promise.reject(new Error("boom")) });
    await pass(60_000);
    expect(conditionOf("Ready").message).toContain("boom");
  });

  test("a new Node of a sandboxd that does not answer begins NotReady; an adopted Ready one waits the stated time", async () => {
    answers = no;
    const first = await started();
    await pass(1000);
    expect(conditionOf("Ready")).toMatchObject({ status: "False", reason: "SandboxdNotYetReached" });
    first.stop();
    api.edit(nodePath, {
      status: { conditions: [{ type: "Ready", status: "True", lastTransitionTime: "2025-01-01T00:00:00Z" }] },
    });
    await started();
    await pass(30_000);
    expect(conditionOf("Ready").status).toBe("True");
    await pass(15_000);
    expect(conditionOf("Ready").status).toBe("False");
  });
});

describe("capacity taint", () => {
  const taint = () => taintsOf("sandbox.cocoonstack.io/capacity").map((t: { value: string }) => t.value);

  test("set at once, lifted after 30 s of room, kept by a refusal in between", async () => {
    const made = await started();
    made.setCapacity("available");
    await settle();
    expect(taint()).toEqual([]);
    made.setCapacity("exhausted");
    await settle();
    expect(object().spec.taints).toContainEqual({
      key: "sandbox.cocoonstack.io/capacity",
      value: "exhausted",
      effect: "PreferNoSchedule",
    });
    made.setCapacity("available");
    await pass(20_000);
    made.setCapacity("exhausted");
    made.setCapacity("available");
    await pass(20_000);
    expect(taint()).toEqual(["exhausted"]);
    await pass(11_000);
    expect(taint()).toEqual([]);
  });

  test("draining outweighs exhausted, and softens only after a while", async () => {
    const made = await started();
    made.setCapacity("exhausted");
    made.setCapacity("draining");
    await settle();
    expect(taint()).toEqual(["draining"]);
    made.setCapacity("exhausted");
    await settle();
    expect(taint()).toEqual(["draining"]);
    await pass(31_000);
    expect(taint()).toEqual(["exhausted"]);
  });

  test("a change costs one request, and a thousand refusals none", async () => {
    const made = await started();
    api.clear();
    for (let i = 0; i < 1000; i++) made.setCapacity("exhausted");
    await settle();
    expect(api.lines()).toEqual([`PATCH ${nodePath}`]);
  });

  test("a taint from before a restart stays until it is known to be wrong", async () => {
    const first = await started();
    first.setCapacity("exhausted");
    await settle();
    first.stop();
    const second = await started();
    expect(taint()).toEqual(["exhausted"]);
    second.setCapacity("available");
    await settle();
    expect(taint()).toEqual([]);
  });
});

describe("the lease", () => {
  test("says what kubelets' leases say", async () => {
    await started();
    expect(object(leasePath).spec).toEqual({
      holderIdentity: holder,
      leaseDurationSeconds: 40,
      renewTime: "2026-01-01T00:00:00.000000Z",
    });
  });

  test("our own previous incarnation is recognised, and we start at once", async () => {
    const before = await started();
    before.stop();
    const again = node({
      holder: holderIdentity({ nodeName: "vk-1", parts: ["machine", "/state"], pid: 999 }),
    });
    expect(await again.acquire()).toEqual({ ok: true });
  });

  const foreign = (renewTime: string) =>
    api.edit(leasePath, {
      metadata: { name: "vk-1" },
      spec: { holderIdentity: "vk-1", leaseDurationSeconds: 40, renewTime },
    });

  test("a second provider that renews is refused, and named", async () => {
    foreign("2026-01-01T00:00:00.000000Z");
    const acquired = node().acquire();
    await settle();
    await pass(10_000);
    foreign("2026-01-01T00:00:10.000000Z");
    await pass(6000);
    const result = await acquired;
    expect(result).toMatchObject({ ok: false, holder: "vk-1" });
    expect("message" in result && result.message).toMatch(/another provider.*"vk-1".*--node-name/);
    expect(api.objects.has(nodePath)).toBe(false);
    expect(object(leasePath).spec.holderIdentity).toBe("vk-1");
  });

  test("a provider on another host with the same path is a second one", async () => {
    const elsewhere = holderIdentity({ nodeName: "vk-1", parts: ["other-machine", "/state"], pid: 1 });
    api.edit(leasePath, {
      metadata: { name: "vk-1" },
      spec: { holderIdentity: elsewhere, renewTime: "2026-01-01T00:00:00Z" },
    });
    const acquired = node().acquire();
    await pass(3000);
    api.edit(leasePath, { spec: { renewTime: "2026-01-01T00:00:03Z" } });
    await pass(3000);
    expect(await acquired).toMatchObject({ ok: false, holder: elsewhere });
  });

  test("one that renews no more is taken over, even when our clock is minutes off", async () => {
    foreign("2025-12-31T23:55:00.000000Z");
    const acquired = node().acquire();
    await pass(20_000);
    expect(object(leasePath).spec.holderIdentity).toBe("vk-1");
    await pass(10_000);
    expect(await acquired).toEqual({ ok: true });
    expect(object(leasePath).spec.holderIdentity).toBe(holder);
  });

  test("one that is long dead is taken over at once", async () => {
    foreign("2025-12-31T00:00:00.000000Z");
    expect(await node().acquire()).toEqual({ ok: true });
  });

  test("a lost reply is no second provider", async () => {
    await started();
    let drop = true;
    const request = api.request.bind(api);
    const lossy = createNode({
      kube: {
        async request(method, path, options) {
          const reply = await request(method, path, options);
          return drop && method === "PATCH" && path === leasePath ? away : reply;
        },
      },
      spec,
      holder,
      probe: () => Promise.resolve(answers),
      notReadyAfterMs: 40_000,
      clock,
      random: () => 0,
      onLost: (other) => void lost.push(other),
    });
    drop = false;
    await lossy.acquire();
    lossy.start();
    drop = true;
    await pass(11_000);
    drop = false;
    await pass(2000);
    expect(lost).toEqual([]);
    expect(clock.now() - lossy.renewedAtMs()).toBeLessThan(10_000);
  });

  test("a provider that took the lease while we were cut off makes us stop", async () => {
    await started();
    foreign("2026-01-01T00:00:05.000000Z");
    await pass(11_000);
    expect(lost).toEqual(["vk-1"]);
    expect(object(leasePath).spec.holderIdentity).toBe("vk-1");
  });

  test("a lease deleted by someone is made again, with one look at the Node", async () => {
    await started();
    await pass(10_000);
    api.objects.delete(leasePath);
    api.clear();
    await pass(10_000);
    expect(api.lines()).toEqual([`PATCH ${leasePath}`, `PATCH ${nodePath}/status`, `POST ${leases}`]);
  });

  test("stopping ends everything", async () => {
    const made = await started();
    made.stop();
    await settle();
    api.clear();
    await pass(600_000, 10_000);
    expect(api.lines()).toEqual([]);
    expect(clock.timers).toBe(0);
  });

  test("stopping ends the wait for an API server that is away", async () => {
    api.before = () => away;
    const made = node();
    const acquired = made.acquire();
    await settle();
    made.stop();
    expect(await acquired).toEqual({ ok: false, stopped: true });
  });
});

test("a host without a machine id is told apart by its boot id", () => {
  expect(identityParts({ machineID: "", bootID: "b" }, "/s")).toEqual(["b", "/s"]);
  expect(identityParts({ machineID: "m", bootID: "b" }, "/s")).toEqual(["m", "/s"]);
});

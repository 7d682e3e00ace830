/** A Pod becomes a VM, and a VM's end is its owner's end: the main job on a real control plane. */
import { expect, test } from "bun:test";
import { defaultAddress } from "./daemon.ts";
import { type Condition, conditionOf, template, World } from "./world.ts";

test("a Pod that the scheduler binds runs in a claimed VM and carries its address and claim id", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  const pod = await world.running("a");

  const [vm, ...others] = world.granted("a");
  expect(others).toEqual([]);
  expect(pod.spec.nodeName).toBe(world.name);
  expect(pod.metadata.annotations).toMatchObject({ "sandbox.cocoonstack.io/claim-id": vm?.id ?? "" });
  const host = vm?.address.split(":")[0] ?? "";
  expect(pod.status).toMatchObject({ podIP: host, podIPs: [{ ip: host }], hostIP: host });
  for (const type of ["Initialized", "Ready", "ContainersReady", "PodScheduled"])
    expect(conditionOf(pod, type)).toMatchObject({ status: "True", lastTransitionTime: expect.any(String) });
  expect(pod.status.containerStatuses).toMatchObject([
    {
      name: "agent",
      ready: true,
      imageID: `sandboxd://${vm?.id}`,
      state: { running: { startedAt: expect.any(String) } },
    },
  ]);
  expect(Date.parse(pod.status.startTime ?? "")).toBe(Math.floor((vm?.claimedAtMs ?? 0) / 1000) * 1000);
  expect(vm).toMatchObject({ key: { template, net: "none", size: "small" }, leaseSeconds: 86_400 });
  await world.eventually(
    "the success is an Event of the Pod",
    () => world.events("a"),
    (events) =>
      events.some(
        (e) => e.reason === "ProviderCreateSuccess" && e.source.component === `${world.name}/pod-controller`,
      ),
  );
});

test("status and annotation of a Pod take one API write, and no control loop lists", async () => {
  await using world = await World.create();
  await world.createPod("a");
  await world.running("a");
  await world.api.delete(world.podPath("a"));
  await world.gone(world.podPath("a"));

  const requests = world.requests();
  const aboutThePod = requests.filter((r) => r.requestURI.includes(`/pods/a`));
  // Running; then the terminal status and the delete that finalizes.
  expect(aboutThePod.map((r) => r.verb)).toEqual(["patch", "patch", "delete"]);
  const lists = requests.filter(
    (r) => r.verb === "list" || (r.verb === "watch" && !r.requestURI.includes("/pods?")),
  );
  expect(lists).toEqual([]);
});

test("a Node is registered complete: labels, taint, capacity, conditions, node information", async () => {
  await using world = await World.create({
    flags: ["--node-cpu=12", "--node-memory=34Gi", "--node-pods=56"],
  });
  const node = await world.nodeReady();
  expect(node.metadata.labels).toMatchObject({
    type: "virtual-kubelet",
    "kubernetes.io/hostname": world.name,
    "kubernetes.io/role": "agent",
    "sandbox.cocoonstack.io/runtime": "sandboxd",
  });
  expect(node.spec.taints).toEqual([
    { key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" },
  ]);
  expect(node.status.capacity).toMatchObject({ cpu: "12", memory: "34Gi", pods: "56" });
  expect(node.status.addresses).toEqual([
    { type: "InternalIP", address: defaultAddress },
    { type: "Hostname", address: world.name },
  ]);
  expect(node.status.conditions.map((c: Condition) => [c.type, c.status]).sort()).toEqual([
    ["DiskPressure", "False"],
    ["MemoryPressure", "False"],
    ["NetworkUnavailable", "False"],
    ["PIDPressure", "False"],
    ["Ready", "True"],
  ]);
  for (const condition of node.status.conditions)
    expect(condition).toMatchObject({
      reason: expect.stringMatching(/./),
      lastTransitionTime: expect.any(String),
    });
  for (const field of ["kubeletVersion", "operatingSystem", "architecture", "kernelVersion"])
    expect(node.status.nodeInfo[field]).toMatch(/./);
  const port = new URL(world.daemon.kubeletUrl).port;
  expect(node.status.daemonEndpoints.kubeletEndpoint.Port).toBe(Number(port));
});

test("a bare Pod that is deleted takes its VM with it, and its object does not wait for the grace period", async () => {
  await using world = await World.create();
  await world.createPod("a");
  await world.running("a");
  const [vm] = world.granted("a");

  await world.api.delete(world.podPath("a"));
  await world.gone(world.podPath("a"));
  await world.released(vm?.id ?? "");
});

test("a Pod deleted while its Sandbox lives leaves the VM to the replacement, which makes no claim", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  const first = await world.running("a");

  await world.api.delete(world.podPath("a"));
  const second = await world.running("a", first);

  expect(second.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"]).toBe(
    first.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"],
  );
  expect(second.status.podIP).toBe(first.status.podIP);
  expect(world.fates("a")).toEqual(["lives"]);
});

test("the same Pod replaced ten times keeps one VM", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  let pod = await world.running("a");
  for (let round = 0; round < 10; round++) {
    await world.api.delete(world.podPath("a"), round % 2 === 0 ? {} : { gracePeriodSeconds: 0 });
    pod = await world.running("a", pod);
  }
  expect(world.fates("a")).toEqual(["lives"]);
});

test("a deleted Sandbox releases its VM, and the Pod object goes at once", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  await world.running("a");
  const [vm] = world.granted("a");

  await world.api.delete(world.sandboxPath("a"));
  await world.gone(world.podPath("a"));
  await world.released(vm?.id ?? "");
  expect(world.granted("a")).toHaveLength(1);
});

test("a Sandbox that is being torn down, held by a finalizer, releases its VM", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  await world.running("a");
  const [vm] = world.granted("a");

  await world.api.patch(world.sandboxPath("a"), { metadata: { finalizers: ["test.example/hold"] } });
  await world.api.delete(world.sandboxPath("a"));
  await world.api.delete(world.podPath("a"));
  await world.released(vm?.id ?? "");
  expect(await world.sandbox("a")).toMatchObject({ metadata: { deletionTimestamp: expect.any(String) } });
  await world.api.patch(world.sandboxPath("a"), { metadata: { finalizers: null } });
});

test("a Sandbox recreated under the same name gets a fresh VM, and the old one is released", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  const first = await world.running("a");

  await world.api.delete(world.sandboxPath("a"), { propagationPolicy: "Background" });
  await world.createSandbox("a");
  const second = await world.running("a", first);

  const [old, fresh, ...others] = world.granted("a");
  expect(others).toEqual([]);
  expect(second.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"]).toBe(fresh?.id ?? "");
  await world.released(old?.id ?? "");
  expect(world.fates("a")[1]).toBe("lives");
});

test("a Pod whose Sandbox was orphaned runs on, and its VM ends with the Pod", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  const pod = await world.running("a");
  await world.api.delete(world.sandboxPath("a"), { propagationPolicy: "Orphan" });
  await world.gone(world.sandboxPath("a"));
  expect((await world.pod("a"))?.metadata.uid).toBe(pod.metadata.uid ?? "");
  expect(world.fates("a")).toEqual(["lives"]);

  await world.api.delete(world.podPath("a"));
  await world.gone(world.podPath("a"));
  await world.released(world.granted("a")[0]?.id ?? "");
});

test("an expired Sandbox, which lives on without a Pod, releases its VM", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  await world.running("a");
  const condition = {
    type: "Ready",
    status: "False",
    reason: "SandboxExpired",
    message: "shutdownTime has passed",
    lastTransitionTime: new Date().toISOString(),
  };
  // The controller deletes the Pod of a Sandbox with this condition.
  await world.api.patch(`${world.sandboxPath("a")}/status`, { status: { conditions: [condition] } });
  await world.gone(world.podPath("a"));
  await world.released(world.granted("a")[0]?.id ?? "");
});

test("a namespace that is deleted has every VM released, and goes away", async () => {
  await using world = await World.create();
  for (const name of ["a", "b", "c"]) await world.createSandbox(name);
  await world.createPod("bare");
  for (const name of ["a", "b", "c", "bare"]) await world.running(name);

  // The namespace's Pods and Sandboxes go in no order: a Pod may go while its owner is still there.
  await world.api.delete(world.path);
  await world.eventually(
    "no VM lives",
    () => world.living(),
    (vms) => vms.length === 0,
    { timeoutMs: 60_000 },
  );
  await world.eventually(
    "the namespace is gone",
    () => world.api.find(world.path),
    (ns) => ns === undefined,
    {
      timeoutMs: 60_000,
    },
  );
  expect(world.sandboxd.control.history()).toHaveLength(4);
}, 120_000);

test("200 Pods at once all run, each in a VM of its own, and all leave when their Sandboxes do", async () => {
  await using world = await World.create({ warm: 200 });
  const names = Array.from({ length: 200 }, (_, i) => `s${i}`);
  await Promise.all(names.map((name) => world.createSandbox(name)));
  const pods = await world.eventually(
    "all Pods run",
    () => world.pods(),
    (all) => all.length === 200 && all.every((p) => p.status.phase === "Running"),
    { timeoutMs: 60_000 },
  );
  const claims = new Set(pods.map((p) => p.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"]));
  expect(claims.size).toBe(200);
  expect(world.sandboxd.control.history()).toHaveLength(200);

  await world.api.delete(world.sandboxPath());
  await world.eventually(
    "no Pod is left",
    () => world.pods(),
    (all) => all.length === 0,
    { timeoutMs: 60_000 },
  );
  await world.eventually(
    "no VM is left",
    () => world.living(),
    (vms) => vms.length === 0,
  );
  expect(world.sandboxd.control.history().every((vm) => vm.endedBy === "sandbox")).toBe(true);
}, 180_000);

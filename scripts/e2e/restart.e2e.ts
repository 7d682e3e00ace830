/** The daemon dies, stops, stands still or meets its double: VMs and credentials live through it. */
import { expect, test } from "bun:test";
import { statSync } from "node:fs";
import { join } from "node:path";
import { conditionOf, World } from "./world.ts";

test("killed with SIGKILL and started again: same VM, and the credential still releases it", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  const before = await world.running("a");
  await world.daemon.kill();
  await world.startDaemon();

  // A write of our own that the daemon has to answer shows that it holds the Pod again.
  await world.disturb("a");
  const after = await world.running("a");
  expect(after.metadata.uid).toBe(before.metadata.uid ?? "");
  expect(after.status.podIP).toBe(before.status.podIP ?? "");
  expect(after.metadata.annotations).toEqual(before.metadata.annotations ?? {});
  expect(world.fates("a")).toEqual(["lives"]);

  await world.api.delete(world.sandboxPath("a"));
  await world.gone(world.podPath("a"));
  await world.eventually(
    "the VM is released with its own token, which only the state file knew",
    () => world.granted("a"),
    ([vm]) => vm?.endedBy === "sandbox",
  );
});

test("SIGTERM: exit 0, and Node, Pods, VMs and a private state file stay", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  const before = await world.running("a");
  expect(await world.daemon.stop()).toBe(0);

  expect(await world.node()).toBeDefined();
  expect((await world.pod("a"))?.status.phase).toBe("Running");
  expect(world.living()).toHaveLength(1);
  expect(statSync(world.daemon.statePath).mode & 0o777).toBe(0o600);
  expect(statSync(world.daemon.stateDir).mode & 0o777).toBe(0o700);

  await world.startDaemon();
  await world.api.delete(world.podPath("a"));
  const after = await world.running("a", before);
  expect(after.status.podIP).toBe(before.status.podIP ?? "");
  expect(world.granted("a")).toHaveLength(1);
});

test("a second SIGTERM ends it at once while sandboxd hangs", async () => {
  await using world = await World.create();
  world.sandboxd.control.fault({ match: "POST /v1/claim", effect: "hang" });
  await world.createPod("a");
  await world.eventually(
    "the claim hangs",
    () => world.sandboxd.control.faults(),
    ([fault]) => (fault?.hits ?? 0) > 0,
  );
  const exited = world.daemon.exited(9_000);
  process.kill(world.daemon.pid, "SIGTERM");
  await world.eventually("the first signal is taken note of", () =>
    world.daemon.log.some((line) => /SIGTERM|stopping/i.test(line)),
  );
  process.kill(world.daemon.pid, "SIGTERM");
  // Below the ten seconds that the first signal would give it, which `exited` enforces with SIGKILL (137).
  expect(await exited).not.toBe(137);
});

test("Pods force-deleted while it was down are settled at start, each as its owner says", async () => {
  await using world = await World.create({ noController: true });
  const alive = await world.createSandbox("alive");
  const doomed = await world.createSandbox("doomed");
  await world.createPod("alive", { owner: alive });
  await world.createPod("doomed", { owner: doomed });
  await world.createPod("bare");
  for (const name of ["alive", "doomed", "bare"]) await world.running(name);

  await world.daemon.kill();
  for (const name of ["alive", "doomed", "bare"])
    await world.api.delete(world.podPath(name), { gracePeriodSeconds: 0 });
  await world.api.delete(world.sandboxPath("doomed"));
  await world.gone(world.sandboxPath("doomed"));
  await world.startDaemon();

  await world.released(world.granted("bare")[0]?.id ?? "");
  await world.released(world.granted("doomed")[0]?.id ?? "");
  expect(world.fates("alive")).toEqual(["lives"]);
  const replacement = await world.createPod("alive", { owner: alive });
  const pod = await world.running("alive");
  expect(pod.metadata.uid).toBe(replacement.metadata.uid ?? "");
  expect(world.fates("alive")).toEqual(["lives"]);
});

test("Pods deleted while it was down, Terminating ever since, are finalized at start", async () => {
  await using world = await World.create({ noController: true });
  const owner = await world.createSandbox("owned");
  await world.createPod("owned", { owner });
  await world.createPod("bare");
  for (const name of ["owned", "bare"]) await world.running(name);

  await world.daemon.kill();
  for (const name of ["owned", "bare"]) await world.api.delete(world.podPath(name));
  expect((await world.pod("bare"))?.metadata.deletionTimestamp).toBeDefined();
  await world.startDaemon();

  await world.gone(world.podPath("owned"));
  await world.gone(world.podPath("bare"));
  await world.released(world.granted("bare")[0]?.id ?? "");
  expect(world.fates("owned")).toEqual(["lives"]);
});

test("a Pod created while it was down runs at start", async () => {
  await using world = await World.create();
  await world.daemon.kill();
  await world.createPod("a");
  await world.startDaemon();
  await world.running("a");
  expect(world.granted("a")).toHaveLength(1);
});

test("a status that someone else overwrote is put back", async () => {
  await using world = await World.create();
  await world.createSandbox("a");
  await world.running("a");
  await world.disturb("a");
  expect(world.granted("a")).toHaveLength(1);
});

test("a Node that someone deletes is registered again, and Pods and VMs are not touched", async () => {
  await using world = await World.create();
  for (const name of ["a", "b"]) await world.createSandbox(name);
  const before = [await world.running("a"), await world.running("b")];
  const uid = (await world.node())?.metadata.uid;

  await world.api.delete(world.nodePath);
  await world.eventually(
    "the Node is there again, as a new object",
    () => world.node(),
    (node) => node !== undefined && node.metadata.uid !== uid,
  );
  await world.nodeReady();
  const after = [await world.running("a"), await world.running("b")];
  expect(after.map((p) => p.metadata.uid)).toEqual(before.map((p) => p.metadata.uid));
  expect([...world.fates("a"), ...world.fates("b")]).toEqual(["lives", "lives"]);
  // And the node still serves.
  await world.createPod("c");
  await world.running("c");
});

test("labels, taint and capacity that someone changed are corrected with the next status, and foreign ones are kept", async () => {
  await using world = await World.create({ flags: ["--not-ready-after=1s"] });
  const node = await world.nodeReady();
  const foreign = { key: "example.com/mine", value: "x", effect: "PreferNoSchedule" };
  await world.api.patch(world.nodePath, {
    metadata: { labels: { "sandbox.cocoonstack.io/runtime": "other", "example.com/mine": "x" } },
    spec: { taints: [foreign] },
  });
  await world.api.patch(`${world.nodePath}/status`, {
    status: { capacity: { pods: "1" }, allocatable: { pods: "1" } },
  });
  // A status is due every five minutes, and at once when readiness changes.
  await world.sandboxd.control.down();
  const ours = { key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" };
  await world.eventually(
    "the Node is as the daemon registered it, with what others added",
    () => world.node(),
    (n) =>
      n?.metadata.labels?.["sandbox.cocoonstack.io/runtime"] === "sandboxd" &&
      n.metadata.labels["example.com/mine"] === "x" &&
      [ours.key, foreign.key].every((key) => (n.spec.taints ?? []).some((t) => t.key === key)) &&
      n.status.capacity.pods === node.status.capacity.pods,
  );
});

test("a second provider under the same node name is refused while the first one lives", async () => {
  await using world = await World.create();
  const second = world.daemonOf({ dir: join(world.dir, "second") });
  await second.start();
  expect(await second.exited(30_000)).toBe(1);
  expect(second.log.join("\n")).toContain(world.name);
  expect(conditionOf(await world.node(), "Ready")?.status).toBe("True");
  expect(world.daemon.running).toBe(true);
}, 60_000);

test("a second process on the same state file is refused, and told who holds it", async () => {
  await using world = await World.create();
  const second = world.daemonOf({ nodeName: `${world.name}-b` });
  await second.start();
  expect(await second.exited()).toBe(1);
  expect(second.log.join("\n")).toContain(String(world.daemon.pid));
  expect(await world.api.find(`/api/v1/nodes/${world.name}-b`)).toBeUndefined();
});

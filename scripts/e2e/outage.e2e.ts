/** What the daemon depends on goes away and comes back: nothing is lost, and everything catches up. */
import { expect, test } from "bun:test";
import { conditionOf, controlPlane, World } from "./world.ts";

/** Runs `during` with the API server killed, and returns when it serves again. */
async function withoutApiServer(world: World, during: () => Promise<unknown>): Promise<void> {
  await controlPlane().stop("kube-apiserver");
  try {
    await during();
  } finally {
    controlPlane().start("kube-apiserver");
    await controlPlane().ready("kube-apiserver");
    // Until its authorizer has read the roles, a starting API server refuses everybody.
    world.forgetRequests();
  }
}

test("a Running that could not be published while the API server was down is published when it is back", async () => {
  await using world = await World.create();
  world.sandboxd.control.fault({ match: "POST /v1/claim", effect: "delay", delayMs: 2_000 });
  await world.createPod("a");
  await world.eventually(
    "the claim is under way",
    () => world.sandboxd.control.faults(),
    ([fault]) => (fault?.hits ?? 0) > 0,
  );
  await withoutApiServer(world, () =>
    world.eventually(
      "the VM is granted meanwhile",
      () => world.granted("a"),
      (vms) => vms.length === 1,
    ),
  );

  const pod = await world.running("a", undefined, { timeoutMs: 90_000 });
  expect(pod.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"]).toBe(world.granted("a")[0]?.id ?? "");
  expect(world.granted("a")).toHaveLength(1);
  expect(world.daemon.running).toBe(true);
}, 180_000);

test("after the API server was away, Pods are made and deleted as before, and no VM was touched meanwhile", async () => {
  await using world = await World.create();
  for (const name of ["a", "b"]) await world.createSandbox(name);
  for (const name of ["a", "b"]) await world.running(name);

  await withoutApiServer(world, async () => {
    // Killed meanwhile: it starts without an API server and waits for one.
    await world.daemon.kill();
    await world.daemon.start();
    await world.eventually(
      "the daemon has said that it cannot reach the API server",
      () => world.daemon.tail(50),
      (log) => log.includes(new URL(controlPlane().server).host),
    );
  });

  expect(world.daemon.running).toBe(true);
  await world.createSandbox("c");
  await world.running("c", undefined, { timeoutMs: 90_000 });
  expect(world.living()).toHaveLength(3);
  await world.api.delete(world.sandboxPath("a"));
  await world.gone(world.podPath("a"));
  await world.released(world.granted("a")[0]?.id ?? "");
  expect(world.living().map((vm) => vm.claimRef)).toEqual([`${world.name}/b`, `${world.name}/c`]);
}, 180_000);

test("without sandboxd the Node turns NotReady with a reason, Pods wait, and both come back with it", async () => {
  await using world = await World.create({ flags: ["--not-ready-after=2s"] });
  await world.createSandbox("before");
  const before = await world.running("before");
  await world.sandboxd.control.down();
  const node = await world.eventually(
    "the Node is NotReady",
    () => world.node(),
    (n) => conditionOf(n, "Ready")?.status === "False",
    { timeoutMs: 60_000 },
  );
  expect(conditionOf(node, "Ready")?.message).toMatch(/sandboxd/);
  // Pinned: the scheduler would wait for the Node.
  await world.createPod("during", { spec: { nodeName: world.name } });
  await world.eventually(
    "the Pod says that sandboxd cannot be reached",
    () => world.pod("during"),
    (p) => p?.status.reason === "ProviderFailed" && (p.status.message ?? "").includes("sandboxd"),
  );

  await world.sandboxd.control.up();
  await world.nodeReady();
  await world.running("during", undefined, { timeoutMs: 90_000 });
  const after = await world.eventually(
    "the Pod from before is Ready",
    () => world.pod("before"),
    (p) => conditionOf(p, "Ready")?.status === "True",
  );
  expect(after?.metadata.uid).toBe(before.metadata.uid ?? "");
  expect(world.sandboxd.control.history()).toHaveLength(2);
}, 180_000);

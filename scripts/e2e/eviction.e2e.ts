/**
 * A node whose heartbeats stop is emptied by kube-controller-manager: every Pod on it is deleted while the VMs
 * go on serving their users. The eviction here is the real one, with kube-controller-manager's defaults: 50 s
 * without a heartbeat, then the Pods' own tolerationSeconds.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { type Api, ApiError, type KubeObject } from "../controlplane/api.ts";
import { type Condition, conditionOf, controlPlane, evictedAfter, World } from "./world.ts";

const evictionTimeoutMs = 120_000;

/**
 * kube-controller-manager evicts nobody while most nodes of a small cluster are unhealthy, so others must be
 * there and stay Ready: Node objects with nothing behind them but a lease that is renewed.
 */
const bystanders = Array.from(
  { length: 5 },
  (_, i) => `bystander-${Math.random().toString(36).slice(2, 8)}-${i}`,
);
const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
let heartbeat: Timer | undefined;

beforeAll(async () => {
  const { api } = controlPlane();
  for (const name of bystanders) {
    const metadata = { name };
    await api.create("/api/v1/nodes", { metadata });
    const now = new Date().toISOString();
    const conditions = [
      { type: "Ready", status: "True", reason: "Test", lastHeartbeatTime: now, lastTransitionTime: now },
    ];
    await api.patch(`/api/v1/nodes/${name}/status`, { status: { conditions } });
    await api.create(leases, { metadata, spec: leaseSpec(name) });
  }
  heartbeat = setInterval(() => void renew(api), 5_000);
});

afterAll(async () => {
  clearInterval(heartbeat);
  const { api } = controlPlane();
  for (const name of bystanders) {
    await api.delete(`/api/v1/nodes/${name}`);
    await api.delete(`${leases}/${name}`);
  }
});

async function renew(api: Api): Promise<void> {
  for (const name of bystanders)
    await api.patch(`${leases}/${name}`, { spec: leaseSpec(name) }).catch((error: unknown) => {
      // One renewal that fails is made up for by the next.
      if (!(error instanceof ApiError)) throw error;
    });
}

function leaseSpec(name: string): Record<string, unknown> {
  const renewTime = `${new Date().toISOString().slice(0, -1)}000Z`;
  return { holderIdentity: name, leaseDurationSeconds: 40, renewTime };
}

/** The Pod is deleted, but still there: only its node can let it go. */
function evicted(pod: KubeObject | undefined): boolean {
  return pod?.metadata.deletionTimestamp !== undefined;
}

// The two nodes go away in the two ways there are, at the same time: each waits for the same minute.
test("a NotReady node's Pods are evicted while it is dead or hangs, and every VM whose Sandbox lives is kept for its replacement", async () => {
  await using dead = await World.create();
  await using hung = await World.create();
  const worlds = [dead, hung];
  const short = { tolerations: evictedAfter(2) };
  const before = new Map<string, string>();
  for (const world of worlds) {
    for (const name of ["a", "b"]) await world.createSandbox(name, short);
    await world.createSandbox("stays");
    await world.createPod("bare", short);
    await world.createSandbox("leaves", short);
    for (const name of ["a", "b", "stays", "bare", "leaves"]) {
      const pod = await world.running(name);
      before.set(`${world.name}/${name}`, pod.metadata.uid ?? "");
    }
  }

  await dead.daemon.kill();
  hung.daemon.pause();
  for (const world of worlds)
    await world.eventually(
      `the Pods of ${world.name} that tolerate it for 2 s only are evicted`,
      () => Promise.all(["a", "b", "bare", "leaves"].map((name) => world.pod(name))),
      (pods) => pods.every(evicted),
      { timeoutMs: evictionTimeoutMs },
    );
  for (const world of worlds) {
    expect(conditionOf(await world.node(), "Ready")?.status).toBe("Unknown");
    // Long before its five minutes are over, the Pod that stays is marked by kube-controller-manager.
    await world.eventually(
      "the Pod that stays is marked not ready",
      () => world.pod("stays"),
      (pod) => conditionOf(pod, "Ready")?.status === "False",
    );
    // And while it is away, one Sandbox comes to its end.
    await world.api.delete(world.sandboxPath("leaves"));
    expect(world.living()).toHaveLength(5);
  }

  await dead.startDaemon();
  hung.daemon.resume();
  for (const world of worlds) {
    await world.nodeReady();
    for (const name of ["a", "b"]) {
      await world.eventually(
        `the replacement of Pod ${name} runs`,
        () => world.pod(name),
        (pod) =>
          pod?.status.phase === "Running" &&
          !evicted(pod) &&
          pod.metadata.uid !== before.get(`${world.name}/${name}`),
      );
      // The same VM, and no second claim.
      expect(world.fates(name)).toEqual(["lives"]);
      const pod = await world.pod(name);
      expect(pod?.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"]).toBe(
        world.granted(name)[0]?.id ?? "",
      );
    }
    const stays = await world.eventually(
      "the Pod that stayed is Ready again",
      () => world.pod("stays"),
      (pod) => conditionOf(pod, "Ready")?.status === "True",
    );
    expect(stays?.metadata.uid).toBe(before.get(`${world.name}/stays`) ?? "");
    expect(stays?.status.conditions?.filter((c: Condition) => c.status !== "True")).toEqual([]);
    await world.gone(world.podPath("bare"));
    await world.gone(world.podPath("leaves"));
    await world.released(world.granted("bare")[0]?.id ?? "");
    await world.released(world.granted("leaves")[0]?.id ?? "");
    expect(
      world
        .living()
        .map((vm) => vm.claimRef.split("/")[1])
        .sort(),
    ).toEqual(["a", "b", "stays"]);
    expect(world.sandboxd.control.history()).toHaveLength(5);
  }
}, 300_000);

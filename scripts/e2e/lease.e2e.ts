/** A VM's end that nobody asked for: its lease is over, or it was killed; and how a lease is made longer. */
import { expect, test } from "bun:test";
import { annotation, conditionOf, type Pod, World } from "./world.ts";

/** sandboxd's index is looked at this often, so that a VM's end is noticed soon. */
const flags = ["--orphan-scan-interval=500ms"];
const ttl = (seconds: number) => ({ [annotation("ttl-seconds")]: String(seconds) });
const idOf = (world: World, name: string) => world.granted(name)[0]?.id ?? "";

interface Terminated {
  exitCode: number;
  reason: string;
  finishedAt: string;
}

const terminatedOf = (pod: Pod | undefined) =>
  pod?.status.containerStatuses?.map((c) => c.state.terminated as Terminated | undefined) ?? [];

/** Waits until the Pod is Failed, and returns it. */
async function failed(world: World, name: string, reason: string): Promise<Pod> {
  const pod = await world.eventually(
    `Pod ${name} is Failed with ${reason}`,
    () => world.pod(name),
    (p) => p?.status.phase === "Failed",
  );
  expect(pod?.status.reason).toBe(reason);
  for (const type of ["Ready", "ContainersReady"]) expect(conditionOf(pod, type)?.status).toBe("False");
  if (pod === undefined) throw new Error("unreachable: the Pod exists");
  return pod;
}

test.concurrent("a lease that ends publishes Failed, SandboxLeaseExpired, exit code 1, finished at the deadline", async () => {
  await using world = await World.create({ flags, noController: true });
  await world.createPod("a", { annotations: ttl(2) });
  const deadlineMs =
    (await world.eventually("a VM is granted", () => world.granted("a")[0]))?.deadlineMs ?? 0;
  const pod = await failed(world, "a", "SandboxLeaseExpired");
  const finishedAt = `${new Date(deadlineMs).toISOString().slice(0, 19)}Z`;
  expect(terminatedOf(pod)).toMatchObject([{ exitCode: 1, reason: "SandboxLeaseExpired", finishedAt }]);
  expect(pod.status.message).toContain(idOf(world, "a"));
  // Nothing was released: the reaper did it. And no other VM is claimed.
  expect(world.fates("a")).toEqual(["reaper"]);
  await world.eventually(
    "a Warning of the Pod says so",
    () => world.events("a"),
    (events) => events.some((e) => e.type === "Warning" && e.message.includes(idOf(world, "a"))),
  );
}, 120_000);

test.concurrent("a deadline that sandboxd moves, as an archive does, moves for the Pod, too", async () => {
  await using world = await World.create({ flags, sandboxd: { archiveKeepMs: 0 } });
  const { control } = world.sandboxd;
  for (const name of ["later", "archived", "forever"]) await world.createPod(name, { annotations: ttl(10) });
  for (const name of ["later", "archived", "forever"]) await world.running(name);
  const granted = new Map(
    ["later", "archived", "forever"].map((n) => [n, world.granted(n)[0]?.deadlineMs ?? 0]),
  );
  control.setDeadline({ id: idOf(world, "later"), deadlineMs: Date.now() + 3_600_000 });
  control.archive(idOf(world, "archived"));
  control.setDeadline({ id: idOf(world, "forever"), deadlineMs: 0 });
  await world.eventually("every granted deadline is over", () =>
    [...granted.values()].every((deadlineMs) => Date.now() > deadlineMs + 2_000),
  );
  for (const name of granted.keys()) {
    expect((await world.pod(name))?.status.phase).toBe("Running");
    expect(world.fates(name)).toEqual(["lives"]);
  }
  // And a moved deadline counts as one: when it is over, so is the Pod.
  control.setDeadline({ id: idOf(world, "later"), deadlineMs: Date.now() + 500 });
  await failed(world, "later", "SandboxLeaseExpired");
  expect((await world.pod("forever"))?.status.phase).toBe("Running");
}, 120_000);

test.concurrent("while the index cannot be read a lease's end is not decided, and it is when it can", async () => {
  await using world = await World.create({ flags });
  const { control } = world.sandboxd;
  await world.createPod("a", { annotations: ttl(2) });
  await world.running("a");
  const id = control.fault({
    match: "^GET /v1/sandboxes",
    effect: "status",
    status: 500,
    body: { error: "x" },
    count: 0,
  });
  await world.eventually("the reaper has taken it", () => world.fates("a")[0] === "reaper");
  const before = control.faults()[0]?.hits ?? 0;
  await world.eventually(
    "the index was asked for again",
    () => (control.faults()[0]?.hits ?? 0) > before + 2,
  );
  expect((await world.pod("a"))?.status.phase).toBe("Running");
  control.clearFaults(id);
  await failed(world, "a", "SandboxLeaseExpired");
}, 120_000);

test.concurrent("a VM that is killed before its deadline makes its Pod Failed with SandboxLost, and no other VM is given", async () => {
  await using world = await World.create({ flags });
  await world.createSandbox("a");
  await world.running("a");
  world.sandboxd.control.kill(idOf(world, "a"));
  const pod = await failed(world, "a", "SandboxLost");
  expect(terminatedOf(pod)).toMatchObject([{ exitCode: 1, reason: "SandboxLost" }]);
  expect(world.fates("a")).toEqual(["killed"]);
  // Whoever wants another one makes another Pod, and that one claims afresh.
  await world.api.delete(world.podPath("a"));
  const next = await world.running("a", pod);
  expect(next.metadata.annotations?.[annotation("claim-id")]).not.toBe(
    pod.metadata.annotations?.[annotation("claim-id")],
  );
  expect(world.fates("a")).toEqual(["killed", "lives"]);
}, 120_000);

test.concurrent("a VM that an operator released by hand is lost as well", async () => {
  await using world = await World.create({ flags });
  await world.createPod("a");
  await world.running("a");
  const token = await Bun.file(`${world.dir}/token`).text();
  const reply = await fetch(`${world.sandboxd.url}/v1/sandboxes/${idOf(world, "a")}/release`, {
    method: "POST",
    headers: { authorization: `Bearer ${token.trim()}` },
  });
  expect(reply.status).toBe(204);
  await failed(world, "a", "SandboxLost");
  expect(world.fates("a")).toEqual(["root"]);
}, 120_000);

const renewals: { what: string; more: string[]; annotations: Record<string, string> }[] = [
  { what: "by the Pod's annotation", more: [], annotations: { [annotation("renew")]: "true" } },
  { what: "by --renew-leases", more: ["--renew-leases"], annotations: {} },
];

for (const { what, more, annotations } of renewals)
  test.concurrent(`a lease is renewed ${what}, again and again, and not where nobody asked for it`, async () => {
    await using world = await World.create({ flags: [...flags, ...more] });
    const others = more.length === 0 ? ["other"] : [];
    await world.createPod("kept", { annotations: { ...ttl(16), ...annotations } });
    for (const name of others) await world.createPod(name, { annotations: ttl(16) });
    await world.running("kept");
    const granted = world.granted("kept")[0]?.deadlineMs ?? 0;
    await world.eventually(
      "the lease was renewed twice, and its first end is past",
      () => [world.sandboxd.control.counts()["POST /v1/sandboxes/{id}/renew"] ?? 0, Date.now()],
      ([renewals = 0, now = 0]) => renewals >= 2 && now > granted + 1_000,
    );
    expect((await world.pod("kept"))?.status.phase).toBe("Running");
    expect(world.fates("kept")).toEqual(["lives"]);
    for (const name of others) await failed(world, name, "SandboxLeaseExpired");
    // After a restart, too, the deadline is the renewed one.
    await world.daemon.kill();
    await world.startDaemon();
    await world.disturb("kept");
    const later = world.granted("kept")[0]?.deadlineMs ?? 0;
    await world.eventually(
      "it is renewed by the next process",
      () => world.granted("kept")[0]?.deadlineMs ?? 0,
      (deadlineMs) => deadlineMs > later,
    );
  }, 120_000);

test.concurrent("a renewal that is refused, as for an archived VM, is said once and harms nobody", async () => {
  await using world = await World.create({ flags });
  world.sandboxd.control.fault({
    match: "/renew$",
    effect: "status",
    status: 409,
    body: { error: "sandbox is archived; wake it first" },
    count: 0,
  });
  await world.createPod("a", { annotations: { ...ttl(6), [annotation("renew")]: "true" } });
  await world.running("a");
  await failed(world, "a", "SandboxLeaseExpired");
  expect(world.daemon.log.filter((line) => line.includes('"renew_refused"'))).toHaveLength(1);
}, 120_000);

test.concurrent("a VM that ended while the provider was down: its Pod is Failed at start, and never runs in another", async () => {
  await using world = await World.create({ flags, noController: true });
  for (const name of ["killed", "stays"]) await world.createPod(name);
  await world.createPod("expired", { annotations: ttl(15) });
  for (const name of ["killed", "expired", "stays"]) await world.running(name);
  await world.daemon.kill();
  world.sandboxd.control.kill(idOf(world, "killed"));
  await world.eventually("the lease is over", () => world.fates("expired")[0] === "reaper");
  await world.startDaemon();
  await failed(world, "killed", "SandboxLost");
  const expired = await failed(world, "expired", "SandboxLeaseExpired");
  const deadlineMs = world.granted("expired")[0]?.deadlineMs ?? 0;
  expect(terminatedOf(expired)).toMatchObject([
    { finishedAt: `${new Date(deadlineMs).toISOString().slice(0, 19)}Z` },
  ]);
  await world.disturb("stays");
  expect(world.sandboxd.control.history()).toHaveLength(3);
}, 120_000);

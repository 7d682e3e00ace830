/** SIGTERM in the middle of work: what is in flight is finished, the table is left compact, and the exit code is 0. */
import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { startApiProxy } from "./apiproxy.ts";
import { annotation, World } from "./world.ts";

interface Table {
  claims: Record<string, { id: string }>;
  releasing: unknown[];
  intents: Record<string, unknown>;
}

const table = (world: World) => JSON.parse(readFileSync(world.daemon.statePath, "utf8")) as Table;

for (const signal of ["SIGTERM", "SIGINT"] as const)
  test.concurrent(`${signal} while claims are under way: they are finished, published and on disk, in one file, exit 0`, async () => {
    await using world = await World.create();
    const id = world.sandboxd.control.fault({
      match: "POST /v1/claim",
      effect: "delay",
      delayMs: 2_000,
      count: 0,
    });
    const names = Array.from({ length: 20 }, (_, i) => `p${i}`);
    await Promise.all(names.map((name) => world.createPod(name)));
    await world.eventually(
      "all claims are under way",
      () => (world.sandboxd.control.faults()[0]?.hits ?? 0) >= 20,
    );
    const exited = world.daemon.exited();
    process.kill(world.daemon.pid, signal);
    expect(await exited).toBe(0);

    expect(world.living()).toHaveLength(20);
    const { claims, intents, releasing } = table(world);
    expect(
      Object.values(claims)
        .map((claim) => claim.id)
        .sort(),
    ).toEqual(
      world
        .living()
        .map((vm) => vm.id)
        .sort(),
    );
    expect([intents, releasing]).toEqual([{}, []]);
    expect(existsSync(`${world.daemon.statePath}.journal`)).toBe(false);
    for (const pod of await world.pods()) {
      expect(pod.status.phase).toBe("Running");
      expect(pod.metadata.annotations?.[annotation("claim-id")]).toBe(
        claims[`${world.name}/${pod.metadata.name}`]?.id ?? "",
      );
    }
    // Nothing was begun after the signal, and the Node is as it was.
    expect(await world.node()).toBeDefined();
    world.sandboxd.control.clearFaults(id);
    await world.startDaemon();
    await world.disturb("p0");
    expect(world.sandboxd.control.history()).toHaveLength(20);
  }, 120_000);

test.concurrent("SIGTERM while sandboxd hangs: it leaves within its ten seconds, and the intents are settled at the next start", async () => {
  await using world = await World.create();
  const id = world.sandboxd.control.fault({ match: "POST /v1/claim", effect: "hang", after: true, count: 0 });
  for (const name of ["a", "b"]) await world.createSandbox(name);
  await world.eventually("both claims hang", () => (world.sandboxd.control.faults()[0]?.hits ?? 0) >= 2);
  // `stop` kills after 20 s.
  expect(await world.daemon.stop()).toBe(0);
  expect(Object.keys(table(world).intents).sort()).toEqual([`${world.name}/a`, `${world.name}/b`]);
  world.sandboxd.control.clearFaults(id);
  await world.startDaemon();
  for (const name of ["a", "b"]) {
    await world.running(name);
    expect(world.fates(name)).toEqual(["lives"]);
  }
}, 120_000);

test.concurrent("a second signal ends it at once, and nothing is lost by it", async () => {
  await using world = await World.create();
  await world.createSandbox("held");
  await world.running("held");
  const id = world.sandboxd.control.fault({ match: "POST /v1/claim", effect: "hang", after: true, count: 0 });
  await world.createSandbox("asked");
  await world.eventually("the claim hangs", () => (world.sandboxd.control.faults()[0]?.hits ?? 0) >= 1);
  const exited = world.daemon.exited();
  process.kill(world.daemon.pid, "SIGTERM");
  await world.eventually("the first signal is taken note of", () =>
    world.daemon.log.some((line) => line.includes('"stopping"')),
  );
  process.kill(world.daemon.pid, "SIGINT");
  expect(await exited).toBe(1);
  expect(world.daemon.log.some((line) => line.includes("a second signal"))).toBe(true);
  expect(world.daemon.log.some((line) => line.includes('"stopped"'))).toBe(false);
  world.sandboxd.control.clearFaults(id);
  await world.startDaemon();
  await world.disturb("held");
  await world.running("asked");
  expect([...world.fates("held"), ...world.fates("asked")]).toEqual(["lives", "lives"]);
}, 120_000);

for (const [effect, what] of [
  ["hang", "no answer comes to"],
  ["status", "the API server refuses"],
  ["reset", "the connection breaks under"],
] as const)
  test.concurrent(`SIGTERM while ${what} every write: it leaves with exit 0, and the next start makes good`, async () => {
    await using proxy = await startApiProxy();
    await using world = await World.create({ identity: () => proxy.kubeconfig });
    const told = (text: string) =>
      world.eventually(
        "an event tells it",
        () => world.events("wrong"),
        (events) => events.some(({ message }) => message.includes(text)),
      );
    const size = (value: string) =>
      world.api.patch(world.podPath("wrong"), { metadata: { annotations: { [annotation("size")]: value } } });
    await world.createPod("ends");
    await world.createSandbox("held");
    await world.createPod("wrong", { annotations: { [annotation("size")]: "one" } });
    await told("one");
    await size("two");
    await told("two");
    await world.running("ends");
    await world.running("held");

    const writes = [
      "PATCH /api/v1/namespaces/[^/]+/events/",
      "PATCH [^?]*/status",
      "DELETE ",
      "(POST|PUT|PATCH) ",
    ];
    for (const match of writes) proxy.faults.add({ match: `^${match}`, effect, status: 503, count: 0 });
    // An event is counted up, a status is written, a Pod object is to be removed, events and a lease are sent.
    await size("one");
    await world.createPod("begins");
    await world.api.delete(world.podPath("ends"));
    await world.eventually(
      "each kind of write is tried",
      () => proxy.faults.list(),
      (faults) => faults.every(({ hits }) => hits > 0),
      { timeoutMs: 60_000 },
    );
    // `stop` kills after 20 s.
    expect(await world.daemon.stop()).toBe(0);
    expect(world.daemon.log.some((line) => line.includes('"stopped"'))).toBe(true);

    proxy.faults.clear();
    await world.startDaemon();
    await world.gone(world.podPath("ends"));
    await world.running("begins");
    expect([...world.fates("held"), ...world.fates("begins")]).toEqual(["lives", "lives"]);
  }, 120_000);

/**
 * The wall clock is stepped by a day, forward and back, under the running daemon: no wait is held up or cut short by it,
 * and no VM is destroyed but by its lease. The compiled binary runs with clock-preload.ts.
 */
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { annotation, conditionOf, type Pod, World } from "./world.ts";

const dayMs = 86_400_000;
const claimIdOf = (pod: Pod | undefined) => pod?.metadata.annotations?.[annotation("claim-id")];
const idOf = (world: World, name: string) => world.granted(name)[0]?.id ?? "";

interface SteppedWorld extends AsyncDisposable {
  world: World;
  /** Steps the daemon's clock to so far from the true one, and sandboxd's, too, unless told otherwise. */
  step(offsetMs: number, options?: { sandboxd?: boolean }): Promise<void>;
}

async function steppedWorld(flags: string[]): Promise<SteppedWorld> {
  const dir = mkdtempSync(join(tmpdir(), "e2e-clock-"));
  const file = join(dir, "offset");
  writeFileSync(file, "0");
  let sandboxdMs = 0;
  const world = await World.create({
    flags,
    sandboxd: { now: () => Date.now() + sandboxdMs },
    env: { BUN_OPTIONS: `--preload=${join(import.meta.dir, "clock-preload.ts")}`, VK_E2E_CLOCK: file },
  });
  return {
    world,
    async step(offsetMs, { sandboxd = true } = {}) {
      writeFileSync(file, String(offsetMs));
      if (sandboxd) sandboxdMs = offsetMs;
      const said = () => world.daemon.log.filter((line) => line === `clock: ${offsetMs}`).length;
      const before = said();
      process.kill(world.daemon.pid, "SIGUSR2");
      await world.eventually("the daemon's clock is stepped", () => said() > before);
    },
    async [Symbol.asyncDispose]() {
      await world[Symbol.asyncDispose]();
      rmSync(dir, { recursive: true });
    },
  };
}

/** The newest heartbeat, as the API server has it. */
const renewTime = async (world: World) => (await world.api.find(world.leasePath))?.spec?.renewTime;

async function heartbeat(world: World): Promise<void> {
  const before = await renewTime(world);
  await world.eventually("a heartbeat comes", async () => (await renewTime(world)) !== before);
}

for (const [what, offsetMs] of [
  ["forward", dayMs],
  ["back", -dayMs],
] as const)
  test.concurrent(`stepped ${what} by a day: retries, re-checks, releases and heartbeats go on as before, and Pods come and go`, async () => {
    await using stepped = await steppedWorld(["--orphan-scan-interval=1s"]);
    const { world, step } = stepped;
    const { control } = world.sandboxd;
    for (const name of ["kept", "leaves", "unowned"]) await world.createSandbox(name);
    // Kept for ever, as one that was archived: its lease is none that a clock could end.
    for (const name of ["kept", "leaves", "unowned"]) {
      await world.running(name);
      control.setDeadline({ id: idOf(world, name), deadlineMs: 0 });
    }
    const moved = () => world.daemon.log.filter((line) => line.includes('"lease_moved"')).length;
    await world.eventually("the daemon knows of it", () => moved() >= 3);
    const kept = await world.pod("kept");

    // Waiting for something, each in its way, when the clock is stepped.
    await world.stopController();
    await world.api.delete(world.podPath("unowned"));
    await world.gone(world.podPath("unowned"));
    const release = control.fault({
      match: "/release$",
      effect: "status",
      status: 500,
      body: { error: "x" },
      count: 0,
    });
    await world.api.delete(world.sandboxPath("leaves"));
    await world.eventually(
      "the release waits for its next attempt",
      () => (control.faults()[0]?.hits ?? 0) > 2,
    );
    const [pool] = control.pools();
    if (pool === undefined) throw new Error("no pool");
    control.setPool({ ...pool.key, warm: 0 });
    await world.createPod("waits");
    await world.eventually(
      "the Pod is refused",
      () => world.pod("waits"),
      (pod) => pod?.status.reason === "ProviderFailed",
    );
    await step(offsetMs);

    control.clearFaults(release);
    control.setPool({ ...pool.key, warm: 10 });
    await world.running("waits");
    await world.released(idOf(world, "leaves"));
    await world.gone(world.podPath("leaves"));
    await world.api.delete(world.sandboxPath("unowned"));
    await world.released(idOf(world, "unowned"));
    await heartbeat(world);
    await heartbeat(world);
    expect(conditionOf(await world.node(), "Ready")?.status).toBe("True");
    await world.disturb("kept");

    // Pods of the new time come, go, and have a lost answer found again.
    control.fault({ match: "POST /v1/claim", effect: "reset", after: true });
    await world.createPod("new");
    await world.running("new");
    expect(world.fates("new")).toEqual(["lives"]);
    await world.api.delete(world.podPath("new"));
    await world.gone(world.podPath("new"));
    await world.released(idOf(world, "new"));

    // And back again, with a restart in between.
    await world.daemon.kill();
    await world.startDaemon();
    await step(0);
    await world.disturb("kept");
    await world.createPod("last");
    await world.running("last");
    expect(claimIdOf(await world.pod("kept"))).toBe(claimIdOf(kept) ?? "");
    expect(world.fates("kept")).toEqual(["lives"]);
    // What was claimed a day ago by this clock may end by its lease now; what never ends by one must not.
    const ended = /"kind":"(lost|dropped)"|"kind":"lease_expired".*"pod":"[^"]*\/(kept|leaves|unowned)"/;
    expect(world.daemon.log.filter((line) => ended.test(line))).toEqual([]);
  }, 240_000);

test.concurrent("stepped forward over a lease on both sides the VM ends by its lease and the Pod says so; on the daemon's side alone nothing ends", async () => {
  await using stepped = await steppedWorld(["--orphan-scan-interval=1s"]);
  const { world, step } = stepped;
  await world.createPod("a");
  await world.running("a");
  await step(2 * dayMs, { sandboxd: false });
  const lists = world.sandboxd.control.counts()["GET /v1/sandboxes"] ?? 0;
  await world.eventually(
    "the index was read some more times",
    () => world.sandboxd.control.counts()["GET /v1/sandboxes"] ?? 0,
    (now) => now > lists + 3,
  );
  await world.disturb("a");
  expect(world.fates("a")).toEqual(["lives"]);

  await step(2 * dayMs);
  const pod = await world.eventually(
    "the Pod is Failed",
    () => world.pod("a"),
    (p) => p?.status.phase === "Failed",
  );
  expect(pod?.status.reason).toBe("SandboxLeaseExpired");
  expect(world.fates("a")).toEqual(["reaper"]);
}, 180_000);

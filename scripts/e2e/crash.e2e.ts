/**
 * kill -9 at random moments while 200 Pods churn: no VM is leaked, none is lost, and every Pod is right in the end,
 * counted against sandboxd's own index and history.
 *
 * VK_E2E_CRASH_ROUNDS: how often it is killed (default 6, 50 with scripts/e2e/run --long). VK_E2E_SEED: which moments,
 * faults and deeds; the seed of each run is printed.
 */
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import type { Fault } from "../../lib/sim/faults.ts";
import { createRandom, type Random } from "../../lib/sim/simulation/random.ts";
import { Churn } from "./churn.ts";
import { controlPlane, World } from "./world.ts";

const rounds = Number(process.env.VK_E2E_CRASH_ROUNDS ?? (process.env.VK_E2E_LONG ? 50 : 6));
const seed = Number(process.env.VK_E2E_SEED ?? Math.floor(Math.random() * 2 ** 31));
/** Longest life of a process, in ms: it is up and has caught up by then, on a busy machine too. */
const lifeMsMax = 4_000;
const settleTimeoutMs = 180_000;

/** How long the API server hangs. kube-controller-manager gives a silent node 50 s. */
const hangMs = 60_000;

/** What sandboxd does to the process in its last moments. Each leaves something half done when the kill comes. */
const troubles: (Omit<Fault, "match"> & { match: string })[] = [
  // Granted, and the answer never comes.
  { match: "POST /v1/claim", effect: "hang", after: true },
  { match: "POST /v1/claim", effect: "reset", after: true },
  { match: "POST /v1/claim", effect: "truncate" },
  // Asked for, and granted long after the process that asked is dead.
  { match: "POST /v1/claim", effect: "delay", delayMs: 1_500 },
  // Released, and the answer never comes.
  { match: "POST /v1/sandboxes/[^/]+/release", effect: "hang", after: true },
  { match: "POST /v1/sandboxes/[^/]+/release", effect: "status", status: 500 },
  { match: "POST /v1/sandboxes/[^/]+/(hibernate|wake)", effect: "reset", after: true },
  { match: "GET /v1/sandboxes$", effect: "truncate" },
];

/** Mostly long enough to serve, sometimes too short to start. */
function lifeMs(random: Random): number {
  return random.chance(0.15) ? random.below(700) : 700 + random.below(lifeMsMax - 700);
}

/** Waits until everything has come to rest, and is as it should be. */
async function atRest(world: World, churn: Churn): Promise<void> {
  await world.eventually(
    "everybody who lives runs in a VM, and nothing else is left",
    () => churn.unsettled(),
    (wrong) => wrong.length === 0,
    { timeoutMs: settleTimeoutMs },
  );
}

test(
  `killed ${rounds} times while 200 Pods churn: no VM leaked, none lost, every Pod right in the end (seed ${seed})`,
  async () => {
    const random = createRandom(seed);
    await using world = await World.create({
      warm: 1_000_000,
      idle: true,
      // As on a real node, whose VMs are all reached at its own address: a VM found again needs no reply to have one.
      sandboxd: { vmHost: "10.88.0.1" },
    });
    const { daemon, sandboxd } = world;
    await using churn = new Churn(world, {
      sandboxes: 160,
      barePods: 40,
      workers: 2,
      pauseMs: 10,
      // A source of its own: how fast the machine is must not change when the daemon is killed.
      random: createRandom(random.u32()),
    });
    await churn.start();
    const startedMs = Date.now();
    for (let round = 1; round <= rounds; round++) {
      const life = lifeMs(random);
      const trouble = random.chance(0.7) ? troubles[random.below(troubles.length)] : undefined;
      const count = 1 + random.below(8);
      const skip = random.below(4);
      sandboxd.control.clearFaults();
      if (trouble !== undefined) sandboxd.control.fault({ ...trouble, count, skip });
      await daemon.start();
      await Bun.sleep(life);
      expect(daemon.running).toBe(true);
      await daemon.kill();
      const hits = sandboxd.control.faults()[0]?.hits ?? 0;
      const vms = sandboxd.control.history();
      console.log(
        `round ${round}: killed after ${life} ms${trouble ? `, ${trouble.effect}${trouble.after ? " after the act" : ""} of ${trouble.match} (${hits} hit)` : ""}; ${vms.length} VMs granted, ${vms.filter((vm) => vm.endedBy === undefined).length} live, ${churn.living} owners`,
      );
    }
    sandboxd.control.clearFaults();
    await churn.calm();
    const calmMs = Date.now();
    await world.startDaemon();
    await atRest(world, churn);
    const settledMs = Date.now();
    expect(churn.wrongs()).toEqual([]);
    const granted = sandboxd.control.history().length;
    const living = churn.living;
    const unseen = churn.unseen();

    await churn.end();
    await world.eventually(
      "no VM lives and no Pod is there",
      async () => [...world.living(), ...(await world.pods())].length,
      (left) => left === 0,
      { timeoutMs: settleTimeoutMs },
    );
    expect(churn.wrongs()).toEqual([]);
    expect(await daemon.stop()).toBe(0);
    const table = JSON.parse(readFileSync(daemon.statePath, "utf8")) as Record<string, unknown>;
    expect(table).toMatchObject({ claims: {}, releasing: [], displaced: [], intents: {} });
    console.log(
      `seed ${seed}: ${rounds} kills in ${((calmMs - startedMs) / 1000).toFixed(0)} s; ${granted} VMs granted, ${unseen} of them never shown by a Pod, ${granted - living} released, ${living} alive for ${living} owners; settled ${((settledMs - calmMs) / 1000).toFixed(1)} s after the last start; deeds ${JSON.stringify(churn.deeds)}`,
    );
  },
  rounds * 15_000 + 3 * settleTimeoutMs,
);

test(
  `the API server hangs for ${hangMs / 1000} s in the middle of the churn: the daemon stays up, touches no VM, and catches up (seed ${seed})`,
  async () => {
    const random = createRandom(seed + 1);
    await using world = await World.create({ warm: 1_000_000, sandboxd: { vmHost: "10.88.0.1" } });
    const { daemon, sandboxd } = world;
    await using churn = new Churn(world, { sandboxes: 160, barePods: 40, workers: 2, pauseMs: 10, random });
    await churn.start();
    await world.eventually(
      "most of them have run",
      () => sandboxd.control.history().length,
      (granted) => granted > 150,
    );
    await churn.pause();
    const pid = daemon.pid;
    controlPlane().signal("kube-apiserver", "SIGSTOP");
    let releasedMeanwhile = 0;
    try {
      // What was decided before may still be carried out; after that nothing can be learned, and so nothing decided.
      const untilMs = Date.now() + hangMs;
      const settledMs = Date.now() + 15_000;
      const ended = () => sandboxd.control.history().filter((vm) => vm.endedBy !== undefined);
      await world.eventually("the time is over", () => Date.now() > untilMs, Boolean, {
        timeoutMs: 2 * hangMs,
      });
      releasedMeanwhile = ended().filter((vm) => (vm.endedAtMs ?? 0) > settledMs).length;
    } finally {
      controlPlane().signal("kube-apiserver", "SIGCONT");
    }
    const backMs = Date.now();
    expect(releasedMeanwhile).toBe(0);
    expect(daemon.pid).toBe(pid);
    expect(daemon.running).toBe(true);
    await controlPlane().ready();
    await world.nodeReady();
    const readyMs = Date.now();
    churn.go();
    const before = sandboxd.control.history().length;
    await world.eventually(
      "Pods are served as before",
      () => sandboxd.control.history().length > before + 10,
    );
    await churn.calm();
    await atRest(world, churn);
    expect(churn.wrongs()).toEqual([]);
    expect(daemon.pid).toBe(pid);
    console.log(
      `API server hung for ${hangMs / 1000} s: Node Ready ${((readyMs - backMs) / 1000).toFixed(1)} s after its return; ${sandboxd.control.history().length} VMs granted, ${world.living().length} alive for ${churn.living} owners`,
    );
    world.forgetRequests();
    await churn.end();
  },
  hangMs + 3 * settleTimeoutMs,
);

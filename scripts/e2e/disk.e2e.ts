/** The disk under the claims table runs full, or its directory disappears: nothing is Running that is not durable. */
import { expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { mountDisk } from "./disk.ts";
import { annotation, type Pod, World } from "./world.ts";

const claimIdOf = (pod: Pod | undefined) => pod?.metadata.annotations?.[annotation("claim-id")];
const idOf = (world: World, name: string) => world.granted(name)[0]?.id ?? "";
const unwritable = /claim table on this node cannot be written/;
const diskKib = 2_048;
const burst = 40;

/** All that is on disk about claims. */
function onDisk(world: World): string {
  const { stateDir } = world.daemon;
  const files = readdirSync(stateDir).filter((name) => /^claims\.json(\.journal)?$/.test(name));
  return files.map((name) => readFileSync(join(stateDir, name), "utf8")).join("");
}

test.concurrent(`the disk runs full under ${burst} claims: none runs that is not on disk, their VMs are returned, and all is made up for`, async () => {
  await using world = await World.create({ idle: true, warm: 500, flags: ["--orphan-scan-interval=1s"] });
  using disk = mountDisk(world.daemon.stateDir, diskKib);
  await world.startDaemon();
  const { control } = world.sandboxd;
  for (const name of ["kept", "doomed"]) await world.createSandbox(name);
  await world.createPod("bare");
  const before = { kept: await world.running("kept"), bare: await world.running("bare") };
  await world.running("doomed");

  // Every intent is on disk, and every claim under way, when the last page goes: the delay is long beside what it
  // takes to make the Pods on a busy machine, and short beside the 30 s that a claim may take.
  const id = control.fault({ match: "POST /v1/claim", effect: "delay", delayMs: 12_000, count: 0 });
  const names = Array.from({ length: burst }, (_, i) => `p${i}`);
  await Promise.all(names.map((name) => world.createPod(name)));
  await world.eventually("all claims are under way", () => (control.faults()[0]?.hits ?? 0) >= burst);
  disk.fill();
  const isOf = (list: string[]) => (pod: Pod) => list.includes(pod.metadata.name);
  await world.eventually(
    "each Pod runs or says that the table cannot be written",
    () => world.pods(),
    (pods) =>
      pods.filter(isOf(names)).length === burst &&
      pods
        .filter(isOf(names))
        .every((pod) => pod.status.phase === "Running" || unwritable.test(pod.status.message ?? "")),
  );
  control.clearFaults(id);
  const running = (await world.pods()).filter((pod) => pod.status.phase === "Running");
  // What fitted into the last page, and those from before.
  expect(running.filter(isOf(names)).length).toBeLessThan(burst / 2);
  for (const pod of running) expect(onDisk(world)).toContain(claimIdOf(pod) ?? "no claim id");
  await world.eventually(
    "no VM lives but those of running Pods: the others were returned",
    async () => {
      const ids = (await world.pods()).filter((pod) => pod.status.phase === "Running").map(claimIdOf);
      return world.living().filter((vm) => !ids.includes(vm.id));
    },
    (strays) => strays.length === 0,
  );

  // A commit that failed was cut off again, so that a smaller one may still fit: until not even an intent does.
  const more: string[] = [];
  do {
    const name = `more${more.length}`;
    more.push(name);
    await world.createPod(name);
    await world.eventually(
      `Pod ${name} runs or says that the table cannot be written`,
      () => world.pod(name),
      (pod) => pod?.status.phase === "Running" || unwritable.test(pod?.status.message ?? ""),
    );
  } while (world.granted(more.at(-1) ?? "").length > 0);

  // Neither an adoption nor a release is done that could not be written down.
  await world.api.delete(world.podPath("kept"));
  await world.api.delete(world.podPath("bare"));
  await world.api.delete(world.sandboxPath("doomed"));
  await world.eventually("the replacement is there", async () => {
    const pod = await world.pod("kept");
    return pod !== undefined && pod.metadata.uid !== before.kept.metadata.uid;
  });
  await world.eventually("the daemon has tried to write all three down", () =>
    ["kept", "bare", "doomed"].every((name) =>
      world.daemon.log.some(
        (line) => line.includes('"uncommitted"') && line.includes(`${world.name}/${name}"`),
      ),
    ),
  );
  expect((await world.pod("kept"))?.status.phase).toBe("Pending");
  expect([...world.fates("kept"), ...world.fates("bare"), ...world.fates("doomed")]).toEqual([
    "lives",
    "lives",
    "lives",
  ]);

  disk.free();
  for (const name of [...names, ...more]) {
    const pod = await world.running(name);
    expect(onDisk(world)).toContain(claimIdOf(pod) ?? "no claim id");
    expect(world.fates(name).filter((fate) => fate === "lives")).toHaveLength(1);
  }
  expect(claimIdOf(await world.running("kept", before.kept))).toBe(idOf(world, "kept"));
  await world.released(idOf(world, "bare"));
  await world.released(idOf(world, "doomed"));
  await world.gone(world.podPath("bare"), before.bare.metadata.uid);
  expect(world.living()).toHaveLength(burst + more.length + 1);
}, 240_000);

test.concurrent("killed while the disk is full it does not start, says why, and serves again when there is room", async () => {
  await using world = await World.create({ idle: true });
  using disk = mountDisk(world.daemon.stateDir, diskKib);
  await world.startDaemon();
  await world.createSandbox("a");
  const before = await world.running("a");
  disk.fill();
  await world.daemon.kill();
  await world.daemon.start();
  expect(await world.daemon.exited()).toBe(1);
  expect(world.daemon.tail()).toMatch(/ENOSPC|no space/i);
  expect(world.daemon.tail()).toContain(world.daemon.stateDir);
  disk.free();
  await world.startDaemon();
  await world.api.delete(world.podPath("a"));
  expect(claimIdOf(await world.running("a", before))).toBe(idOf(world, "a"));
  expect(world.fates("a")).toEqual(["lives"]);
}, 120_000);

for (const [what, vanish, comeBack] of [
  [
    "comes back as it was",
    (dir: string) => renameSync(dir, `${dir}.away`),
    (dir: string) => renameSync(`${dir}.away`, dir),
  ],
  [
    "comes back empty",
    (dir: string) => rmSync(dir, { recursive: true }),
    (dir: string) => mkdirSync(dir, { mode: 0o700 }),
  ],
] as const)
  test.concurrent(`a state directory that disappears and ${what}: nothing runs meanwhile, nothing is lost, and a kill afterwards neither`, async () => {
    await using world = await World.create();
    const { stateDir } = world.daemon;
    await world.createSandbox("a");
    const before = await world.running("a");
    vanish(stateDir);
    await world.createSandbox("b");
    await world.eventually(
      "the new Pod says that the table cannot be written",
      () => world.pod("b"),
      (pod) => unwritable.test(pod?.status.message ?? ""),
    );
    expect(world.granted("b")).toEqual([]);
    expect(world.fates("a")).toEqual(["lives"]);
    comeBack(stateDir);
    await world.running("b");
    expect(onDisk(world)).toContain(idOf(world, "a"));
    expect(onDisk(world)).toContain(idOf(world, "b"));

    await world.daemon.kill();
    await world.startDaemon();
    await world.api.delete(world.podPath("a"));
    expect(claimIdOf(await world.running("a", before))).toBe(idOf(world, "a"));
    await world.api.delete(world.sandboxPath("b"));
    await world.released(idOf(world, "b"));
    expect(world.fates("a")).toEqual(["lives"]);
    expect(world.granted("b")).toHaveLength(1);
  }, 120_000);

/**
 * The state file lost, older than the cluster, or from the reference provider: VMs are found again by what sandboxd and
 * the Pod both say, and nobody else's is taken.
 */
import { expect, test } from "bun:test";
import { cpSync, existsSync, readFileSync, rmSync } from "node:fs";
import { annotation, type Pod, template, World } from "./world.ts";

const claimIdOf = (pod: Pod | undefined) => pod?.metadata.annotations?.[annotation("claim-id")];
const idOf = (world: World, name: string) => world.granted(name)[0]?.id ?? "";
/** All VMs at the node's own address, as on a real one: nothing but the reply to a claim says more. */
const sandboxd = { vmHost: "10.88.0.1" };

test.concurrent("with the state lost every VM is recovered by claim-id and claim_ref, credential included", async () => {
  await using world = await World.create({ sandboxd });
  await world.createSandbox("owned");
  await world.createPod("bare");
  const before = { owned: await world.running("owned"), bare: await world.running("bare") };
  await world.daemon.kill();
  rmSync(world.daemon.stateDir, { recursive: true });
  await world.startDaemon();

  // Held again: a replacement adopts, the bare Pod's end releases, both with what was read from sandboxd.
  await world.disturb("owned");
  await world.api.delete(world.podPath("owned"));
  const owned = await world.running("owned", before.owned);
  expect(claimIdOf(owned)).toBe(idOf(world, "owned"));
  expect(owned.status.podIP).toBe(before.owned.status.podIP ?? "");
  await world.api.delete(world.podPath("bare"));
  await world.gone(world.podPath("bare"));
  await world.eventually(
    "the bare Pod's VM is released with its own token",
    () => world.fates("bare"),
    ([fate]) => fate === "sandbox",
  );
  expect(world.fates("owned")).toEqual(["lives"]);
}, 120_000);

test.concurrent("with the state lost a Pod that was deleted meanwhile still has its VM judged by its owner", async () => {
  await using world = await World.create({ sandboxd, noController: true });
  const alive = await world.createSandbox("alive");
  const doomed = await world.createSandbox("doomed");
  await world.createPod("alive", { owner: alive });
  await world.createPod("doomed", { owner: doomed });
  await world.createPod("bare");
  for (const name of ["alive", "doomed", "bare"]) await world.running(name);
  await world.daemon.kill();
  rmSync(world.daemon.stateDir, { recursive: true });
  for (const name of ["alive", "bare"]) await world.api.delete(world.podPath(name));
  await world.api.delete(world.sandboxPath("doomed"));
  await world.eventually("the garbage collector deletes its Pod", async () => {
    const pod = await world.pod("doomed");
    return pod?.metadata.deletionTimestamp !== undefined;
  });
  await world.startDaemon();
  for (const name of ["alive", "doomed", "bare"]) await world.gone(world.podPath(name));
  await world.released(idOf(world, "doomed"));
  await world.released(idOf(world, "bare"));
  expect(world.fates("alive")).toEqual(["lives"]);
  await world.createPod("alive", { owner: alive });
  expect(claimIdOf(await world.running("alive"))).toBe(idOf(world, "alive"));
}, 120_000);

test.concurrent("with the state lost, and the VM with it, the Pod is Failed with SandboxLost and gets no other VM", async () => {
  await using world = await World.create({ sandboxd });
  await world.createSandbox("a");
  await world.running("a");
  await world.daemon.kill();
  rmSync(world.daemon.stateDir, { recursive: true });
  world.sandboxd.control.kill(idOf(world, "a"));
  await world.startDaemon();
  const pod = await world.eventually(
    "the Pod is Failed",
    () => world.pod("a"),
    (p) => p?.status.phase === "Failed",
  );
  expect(pod?.status.reason).toBe("SandboxLost");
  expect(world.fates("a")).toEqual(["killed"]);
}, 120_000);

test.concurrent("a table from before the last claims: the newer VMs are recovered, the older rows are not believed blindly", async () => {
  await using world = await World.create({ sandboxd });
  await world.createSandbox("old");
  await world.createPod("gone");
  for (const name of ["old", "gone"]) await world.running(name);
  expect(await world.daemon.stop()).toBe(0);
  const backup = `${world.dir}/backup`;
  cpSync(world.daemon.stateDir, backup, { recursive: true });

  await world.startDaemon();
  await world.createSandbox("new");
  await world.running("new");
  await world.api.delete(world.podPath("gone"));
  await world.gone(world.podPath("gone"));
  await world.createPod("gone");
  const again = await world.running("gone");
  await world.daemon.kill();
  rmSync(world.daemon.stateDir, { recursive: true });
  cpSync(backup, world.daemon.stateDir, { recursive: true });
  await world.startDaemon();

  for (const name of ["old", "new", "gone"]) await world.disturb(name);
  expect(claimIdOf(await world.pod("gone"))).toBe(claimIdOf(again) ?? "");
  expect([...world.fates("old"), ...world.fates("new"), ...world.fates("gone")]).toEqual([
    "lives",
    "lives",
    "sandbox",
    "lives",
  ]);
  // Each ends with its own authority, and nothing is left.
  await world.api.delete(world.sandboxPath());
  await world.api.delete(world.podPath("gone"));
  await world.eventually("no VM lives", () => world.living().length === 0);
}, 120_000);

test.concurrent("a claim-id that a user wrote takes nobody's VM: not at create, not with the state lost, not at the end", async () => {
  await using world = await World.create({ sandboxd });
  await world.createSandbox("victim");
  await world.running("victim");
  const forged = { [annotation("claim-id")]: idOf(world, "victim") };
  await world.createPod("thief", { annotations: forged });
  const thief = await world.running("thief");
  expect(claimIdOf(thief)).toBe(idOf(world, "thief"));
  expect(idOf(world, "thief")).not.toBe(idOf(world, "victim"));

  // The same while the daemon is down and its table is lost: only claim_ref tells whose it is.
  await world.daemon.kill();
  rmSync(world.daemon.stateDir, { recursive: true });
  await world.createPod("second", { annotations: forged });
  await world.api.patch(world.podPath("thief"), { metadata: { annotations: forged } });
  await world.startDaemon();
  await world.running("second");
  await world.disturb("victim");
  expect(world.fates("victim")).toEqual(["lives"]);
  for (const name of ["thief", "second"]) {
    await world.api.delete(world.podPath(name));
    await world.gone(world.podPath(name));
  }
  expect(world.fates("victim")).toEqual(["lives"]);
  expect(claimIdOf(await world.pod("victim"))).toBe(idOf(world, "victim"));

  // And its own end is still its owner's to decide.
  await world.api.delete(world.sandboxPath("victim"));
  await world.released(idOf(world, "victim"));
}, 120_000);

test.concurrent("a claim-id that names no VM keeps a Pod that never ran from getting one silently", async () => {
  await using world = await World.create();
  await world.createPod("a", { annotations: { [annotation("claim-id")]: "sb_0000000000000000" } });
  // It says that it ran; whether a user wrote that or a lost table, nobody can tell, and a silent reboot is worse.
  const pod = await world.eventually(
    "the Pod is Failed or runs",
    () => world.pod("a"),
    (p) => p?.status.phase !== "Pending",
  );
  expect(pod?.status).toMatchObject({ phase: "Failed", reason: "SandboxLost" });
  expect(world.granted("a")).toEqual([]);
}, 120_000);

test.concurrent("the orphan scan reports and never releases: without claim_ref an orphan, with one external, each once", async () => {
  await using world = await World.create({ flags: ["--orphan-scan-interval=300ms"] });
  const token = (await Bun.file(`${world.dir}/token`).text()).trim();
  const claimed = async (claim_ref?: string) => {
    const reply = await fetch(`${world.sandboxd.url}/v1/claim`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}` },
      body: JSON.stringify({ template, claim_ref }),
    });
    return ((await reply.json()) as { id: string }).id;
  };
  await world.createSandbox("ours");
  await world.running("ours");
  const orphan = await claimed();
  const external = await claimed("elsewhere/other");
  const sameName = await claimed(`${world.name}/ours`);
  const said = (id: string, kind: string) =>
    world.daemon.log.filter((line) => line.includes(id) && line.includes(`"kind":"${kind}"`));
  await world.eventually("all three are reported", () =>
    [said(orphan, "orphan"), said(external, "external"), said(sameName, "external")].every(
      (l) => l.length > 0,
    ),
  );
  const lists = world.sandboxd.control.counts()["GET /v1/sandboxes"] ?? 0;
  await world.eventually(
    "the index was read some more times",
    () => world.sandboxd.control.counts()["GET /v1/sandboxes"] ?? 0,
    (now) => now > lists + 4,
  );
  expect(
    [said(orphan, "orphan"), said(external, "external"), said(sameName, "external")].map((l) => l.length),
  ).toEqual([1, 1, 1]);
  // The end of the Pod whose name it bears does not touch it either.
  await world.api.delete(world.sandboxPath("ours"));
  await world.released(idOf(world, "ours"));
  await world.gone(world.podPath("ours"));
  const living = () => world.living().map((vm) => vm.id);
  expect(living().sort()).toEqual([orphan, external, sameName].sort());
  // Nor does a Pod of that name that comes later, or a restart.
  await world.daemon.kill();
  await world.startDaemon();
  await world.createPod("ours");
  const pod = await world.running("ours");
  expect(claimIdOf(pod)).not.toBe(sameName);
  await world.api.delete(world.podPath("ours"));
  await world.gone(world.podPath("ours"));
  await world.eventually("its VM is released", () => living().length === 3);
  expect(living().sort()).toEqual([orphan, external, sameName].sort());
  expect(existsSync(world.daemon.statePath)).toBe(true);
  expect(readFileSync(world.daemon.statePath, "utf8")).not.toContain(sameName);
}, 120_000);

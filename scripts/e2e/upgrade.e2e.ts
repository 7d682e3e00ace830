/** A binary is replaced under running Pods, forth and back: no VM notices. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { copyFileSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { type Build, previousBuild } from "./previous.ts";
import { type Pod, World } from "./world.ts";

const binary = resolve(process.env.VK_E2E_BINARY ?? join(import.meta.dir, "../../dist/vk-sandbox"));
let dir: string;
let previous: Build;
let current: Build;

beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "upgrade-"));
  previous = previousBuild(dir);
  const told = Bun.spawnSync([binary, "version", "--json"]).stdout.toString();
  const { version, commit } = JSON.parse(told) as { version: string; commit: string };
  current = { path: binary, version, from: commit };
  console.log(`upgrade from ${previous.from} to ${current.from}`);
  expect(previous.version).not.toBe(current.version);
}, 120_000);

afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** As `install` does it: a new file takes the name, and the process that runs keeps the old one. */
function install(build: Build, to: string): void {
  copyFileSync(build.path, `${to}.new`);
  renameSync(`${to}.new`, to);
}

/** What of a Pod may not change while the provider is replaced. */
function identity({ metadata, status }: Pod) {
  const { uid, annotations } = metadata;
  const { phase, podIP, podIPs, hostIP, startTime, containerStatuses } = status;
  const ready = status.conditions?.map(({ type, status: state, lastTransitionTime }) => [
    type,
    state,
    lastTransitionTime,
  ]);
  return { uid, annotations, phase, podIP, podIPs, hostIP, startTime, containerStatuses, ready };
}

for (const signal of ["SIGTERM", "SIGKILL"] as const)
  test(`upgrade and downgrade under running Pods, ended with ${signal}: the same VMs, no release, no second claim`, async () => {
    const installed = join(dir, `vk-sandbox-${signal}`);
    install(previous, installed);
    await using world = await World.create({ binary: installed, noController: true });

    const replaceBy = async (build: Build) => {
      install(build, installed);
      if (signal === "SIGTERM") expect(await world.daemon.stop()).toBe(0);
      else await world.daemon.kill();
      await world.startDaemon();
      await world.eventually(
        `the Node says ${build.version}`,
        () => world.node(),
        (node) => node?.status.nodeInfo.kubeletVersion === `v${build.version}`,
      );
    };
    const run = async (name: string, owner?: Awaited<ReturnType<World["createSandbox"]>>) => {
      await world.createPod(name, { owner });
      return await world.running(name);
    };

    // Under the previous build: two owned Pods, a bare one, and a VM that is preserved for its owner.
    const owners = [await world.createSandbox("a"), await world.createSandbox("b")];
    const keeper = await world.createSandbox("kept");
    const before = [await run("a", owners[0]), await run("b", owners[1]), await run("bare")];
    await run("kept", keeper);
    await world.api.delete(world.podPath("kept"));
    await world.gone(world.podPath("kept"));
    const vms = () => world.sandboxd.control.history().map(({ id, endedBy }) => [id, endedBy ?? "lives"]);
    const four = vms();
    expect(four.map(([, fate]) => fate)).toEqual(["lives", "lives", "lives", "lives"]);

    await replaceBy(current);
    for (const pod of before) expect(identity(await world.running(pod.metadata.name))).toEqual(identity(pod));
    expect(vms()).toEqual(four);
    // It adopts what the previous build preserved, and claims anew for what is new.
    const kept = await run("kept", keeper);
    expect(vms()).toEqual(four);
    const later = await run("later");
    expect(vms()).toHaveLength(5);

    await replaceBy(previous);
    const all = [...before, kept, later];
    for (const pod of all) expect(identity(await world.running(pod.metadata.name))).toEqual(identity(pod));
    expect(vms().map(([, fate]) => fate)).toEqual(["lives", "lives", "lives", "lives", "lives"]);

    // The credentials went with it, those that the newer build wrote too.
    await world.api.delete(world.podPath("later"));
    await world.gone(world.podPath("later"));
    await world.api.delete(world.sandboxPath("a"));
    await world.api.delete(world.podPath("a"));
    await world.gone(world.podPath("a"));
    await world.eventually(
      "both VMs are released, each with its own token",
      () => ["later", "a"].map((name) => world.granted(name)[0]?.endedBy),
      (fates) => fates.every((fate) => fate === "sandbox"),
    );
    expect(["b", "bare", "kept"].flatMap((name) => world.fates(name))).toEqual(["lives", "lives", "lives"]);
  }, 120_000);

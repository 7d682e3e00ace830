/**
 * The state file of the Go reference: read as it is, served, and left so that a Go program reads it again. What writes
 * and reads it here is a Go program (scripts/e2e/reference) with encoding/json and the table's fields as structs.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { annotation, ownerReference, type Pod, template, World } from "./world.ts";

interface Claim {
  id: string;
  token: string;
  address: string;
  podUID: string;
  authority?: string;
  claimedAt: string | null;
  deadline: string | null;
  owner?: Record<string, unknown>;
}

interface Table {
  claims: Record<string, Claim>;
  releasing?: Claim[];
}

const hasGo = Bun.which("go") !== null;
const claimIdOf = (pod: Pod | undefined) => pod?.metadata.annotations?.[annotation("claim-id")];
let dir = "";
let program = "";

beforeAll(() => {
  if (!hasGo) return;
  dir = mkdtempSync(join(tmpdir(), "e2e-reference-"));
  program = join(dir, "reference");
  go("build", "-o", program, ".");
}, 120_000);

afterAll(() => rmSync(dir, { recursive: true, force: true }));

function go(...args: string[]): void {
  const { success, stderr } = Bun.spawnSync(["go", ...args], {
    cwd: join(import.meta.dir, "reference"),
    env: { ...process.env, GOPROXY: "off", GOTOOLCHAIN: "local", GOFLAGS: "-mod=mod" },
    stderr: "pipe",
  });
  if (!success) throw new Error(`go ${args.join(" ")}: ${stderr.toString()}`);
}

function reference(verb: "read" | "write", path: string, stdin = ""): string {
  const { success, stdout, stderr } = Bun.spawnSync([program, verb, path], {
    stdin: Buffer.from(stdin),
    stdout: "pipe",
    stderr: "pipe",
  });
  if (!success) throw new Error(`the reference could not ${verb} ${path}: ${stderr.toString()}`);
  return stdout.toString();
}

/** A claim as another provider made it before: straight from sandboxd, for a Pod key. */
async function claimFor(
  world: World,
  name: string,
): Promise<{ id: string; token: string; owner_addr: string; deadline: string }> {
  const token = (await Bun.file(join(world.dir, "token")).text()).trim();
  const reply = await fetch(`${world.sandboxd.url}/v1/claim`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}` },
    body: JSON.stringify({ template, claim_ref: `${world.name}/${name}`, ttl_seconds: 86_400 }),
  });
  expect(reply.status).toBe(200);
  return (await reply.json()) as { id: string; token: string; owner_addr: string; deadline: string };
}

test.skipIf(!hasGo)(
  "a table that a Go provider left is served, and left again so that it reads every field of it",
  async () => {
    await using world = await World.create({ idle: true, noController: true });
    const path = world.daemon.statePath;
    const table: Table & { claims: Record<string, Claim> } = { claims: {}, releasing: [] };
    const sandboxes = new Map<string, Awaited<ReturnType<World["createSandbox"]>>>();
    const wholeSeconds = (at: number) => `${new Date(at).toISOString().slice(0, 19)}Z`;
    for (const name of ["owned", "older", "bare", "ended"]) {
      const { id, token, owner_addr, deadline } = await claimFor(world, name);
      const owner = name === "owned" || name === "older" ? await world.createSandbox(name) : undefined;
      if (owner !== undefined) sandboxes.set(name, owner);
      const claim: Claim = {
        id,
        token,
        address: owner_addr,
        podUID: crypto.randomUUID(),
        claimedAt: wholeSeconds(Date.now()),
        deadline: wholeSeconds(Date.parse(deadline)),
      };
      if (name === "ended") {
        table.releasing?.push({ ...claim, authority: claim.podUID });
        continue;
      }
      // Bound already, as it was when the other provider published it.
      const pod = await world.createPod(name, { owner, spec: { nodeName: world.name } });
      claim.podUID = pod.metadata.uid ?? "";
      if (name !== "older") claim.authority = owner?.metadata.uid ?? claim.podUID;
      if (name === "owned" && owner !== undefined) claim.owner = { ...ownerReference(owner) };
      table.claims[`${world.name}/${name}`] = claim;
      await world.api.patch(world.podPath(name), {
        metadata: { annotations: { [annotation("claim-id")]: id } },
      });
      await world.api.patch(`${world.podPath(name)}/status`, { status: { phase: "Running" } });
    }
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    reference("write", path, JSON.stringify(table));

    await world.startDaemon();
    // What it was releasing is released, with its own token.
    await world.eventually("the release queue is worked off", () => world.fates("ended")[0] === "sandbox");
    for (const name of ["owned", "older", "bare"]) {
      await world.disturb(name);
      expect(claimIdOf(await world.pod(name))).toBe(table.claims[`${world.name}/${name}`]?.id ?? "");
    }
    // Owners have the authority that the table gave them, or that an older table had no word for.
    for (const [name, owner] of sandboxes) {
      const before = await world.pod(name);
      await world.api.delete(world.podPath(name));
      await world.gone(world.podPath(name));
      await world.createPod(name, { owner });
      expect(claimIdOf(await world.running(name, before))).toBe(
        table.claims[`${world.name}/${name}`]?.id ?? "",
      );
    }
    await world.api.delete(world.podPath("bare"));
    await world.gone(world.podPath("bare"));
    await world.eventually("the bare Pod's VM is released", () => world.fates("bare")[0] === "sandbox");
    await world.createPod("fresh");
    const fresh = await world.running("fresh");
    expect(world.sandboxd.control.history()).toHaveLength(5);

    expect(await world.daemon.stop()).toBe(0);
    const read = JSON.parse(reference("read", path)) as Table;
    expect(Object.keys(read.claims).sort()).toEqual(
      ["fresh", "older", "owned"].map((n) => `${world.name}/${n}`),
    );
    expect(read.releasing ?? []).toEqual([]);
    for (const [name, owner] of sandboxes) {
      const written = table.claims[`${world.name}/${name}`];
      const claim = read.claims[`${world.name}/${name}`];
      const pod = await world.pod(name);
      const vm = world.granted(name)[0];
      expect(claim).toMatchObject({
        id: written?.id,
        token: written?.token,
        address: written?.address,
        podUID: pod?.metadata.uid,
        authority: owner.metadata.uid,
        deadline: wholeSeconds(vm?.deadlineMs ?? 0),
        owner: ownerReference(owner),
      });
      if (name === "owned") expect(claim?.claimedAt).toBe(written?.claimedAt ?? "");
    }
    const vm = world.granted("fresh")[0];
    expect(read.claims[`${world.name}/fresh`]).toMatchObject({
      id: claimIdOf(fresh),
      address: vm?.address,
      podUID: fresh.metadata.uid,
      authority: fresh.metadata.uid,
      claimedAt: fresh.status.startTime,
      deadline: wholeSeconds(vm?.deadlineMs ?? 0),
    });
    // The credential that it read is the one that releases.
    const reply = await fetch(`${world.sandboxd.url}/v1/sandboxes/${vm?.id}/release`, {
      method: "POST",
      headers: { authorization: `Bearer ${read.claims[`${world.name}/fresh`]?.token}` },
    });
    expect(reply.status).toBe(204);
    expect(world.fates("fresh")).toEqual(["sandbox"]);
  },
  180_000,
);

test.skipIf(!hasGo)(
  "a lease that never ends is read by the Go program as no time at all",
  async () => {
    await using world = await World.create({ flags: ["--orphan-scan-interval=500ms"] });
    await world.createPod("a");
    await world.running("a");
    world.sandboxd.control.setDeadline({ id: world.granted("a")[0]?.id ?? "", deadlineMs: 0 });
    await world.eventually("the daemon knows of it", () =>
      world.daemon.log.some((line) => line.includes('"lease_moved"') && line.includes("kept for ever")),
    );
    expect(await world.daemon.stop()).toBe(0);
    const read = JSON.parse(reference("read", world.daemon.statePath)) as Table;
    expect(read.claims[`${world.name}/a`]?.deadline).toBeNull();

    // And back: written by Go with null, it is kept for ever here as well.
    reference("write", world.daemon.statePath, JSON.stringify(read));
    rmSync(`${world.daemon.statePath}.journal`, { force: true });
    await world.startDaemon();
    await world.disturb("a");
    expect(world.fates("a")).toEqual(["lives"]);
  },
  120_000,
);

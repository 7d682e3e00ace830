/**
 * A sandboxd that is restarted, hangs, fails, loses answers or answers nonsense: Pods say why they wait, the Node says
 * when it cannot serve, and no VM is destroyed, doubled or leaked by it.
 */
import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Fault } from "../../lib/sim/faults.ts";
import type { NodeSettings } from "../../lib/sim/vms.ts";
import { annotation, conditionOf, type Pod, template, World } from "./world.ts";

const claim = "^POST /v1/claim";
const listing = "^GET /v1/sandboxes$";
const claimIdOf = (pod: Pod | undefined) => pod?.metadata.annotations?.[annotation("claim-id")];

/** Waits until the Pod waits with this said of it. */
function waits(world: World, name: string, says: RegExp): Promise<Pod | undefined> {
  return world.eventually(
    `Pod ${name} is Pending and says ${says}`,
    () => world.pod(name),
    (pod) =>
      pod?.status.phase === "Pending" &&
      pod.status.reason === "ProviderFailed" &&
      says.test(pod.status.message ?? ""),
    { timeoutMs: 60_000 },
  );
}

/** Waits until a fault has hit so often. */
function hit(world: World, id: number, times = 1): Promise<unknown> {
  return world.eventually(
    `the fault has hit ${times} times`,
    () => world.sandboxd.control.faults().find((fault) => fault.id === id)?.hits ?? 0,
    (hits) => hits >= times,
    { timeoutMs: 60_000 },
  );
}

describe("a claim that is refused is Pending with its cause, and runs when the cause is gone", () => {
  const settings: { what: string; set: Partial<NodeSettings>; says: RegExp }[] = [
    { what: "the node drains", set: { draining: true }, says: /drain/ },
    { what: "the node is at max_claims", set: { maxClaims: 1 }, says: /max_claims|limit of claims/ },
    {
      what: "no VM is warm, and peers have some",
      set: { peers: ["10.9.9.1:7777", "10.9.9.2:7777"] },
      says: /no warm.*10\.9\.9\.1:7777, 10\.9\.9\.2:7777/,
    },
    {
      what: "the node is at capacity",
      set: { atCapacity: "tap devices exhausted" },
      says: /tap devices exhausted/,
    },
    { what: "the egress lane is missing", set: { egress: false }, says: /egress/ },
  ];
  const answers: { what: string; fault: Omit<Fault, "match">; says: RegExp }[] = [
    {
      what: "401",
      fault: { effect: "status", status: 401, body: { error: "invalid api token" } },
      says: /token.*--sandboxd-token-file/s,
    },
    {
      what: "403",
      fault: { effect: "status", status: 403, body: { error: "root token required" } },
      says: /token.*--sandboxd-token-file/s,
    },
    {
      what: "500",
      fault: { effect: "status", status: 500, body: { error: "clone failed: no space" } },
      says: /could not provision.*clone failed: no space/s,
    },
    { what: "a proxy's page", fault: { effect: "status", status: 502, body: "<html>" }, says: /HTTP 502/ },
  ];

  for (const { what, set, says } of settings)
    test.concurrent(what, async () => {
      await using world = await World.create({ sandboxd: { pools: pools(0) } });
      const egress = set.egress === false;
      const before = { ...world.sandboxd.control.settings() };
      world.sandboxd.control.set(set);
      await world.createPod("a", { annotations: egress ? { [annotation("net")]: "egress" } : {} });
      // max_claims lets the first in.
      if (set.maxClaims === 1) {
        world.sandboxd.control.setPool({ template, warm: 5 });
        await world.running("a");
      }
      const name = set.maxClaims === 1 ? "b" : "a";
      if (name === "b") await world.createPod("b");
      await waits(world, name, says);
      expect(world.granted(name)).toEqual([]);

      world.sandboxd.control.set(before);
      for (const net of ["none", "egress"]) world.sandboxd.control.setPool({ template, net, warm: 5 });
      const pod = await world.running(name, undefined, { timeoutMs: 60_000 });
      expect(pod.status.message).toBeUndefined();
      expect(world.fates(name)).toEqual(["lives"]);
    }, 120_000);

  for (const { what, fault, says } of answers)
    test.concurrent(`answered ${what}`, async () => {
      await using world = await World.create();
      const id = world.sandboxd.control.fault({ ...fault, match: claim, count: 0 });
      await world.createPod("a");
      await waits(world, "a", says);
      expect(world.granted("a")).toEqual([]);
      world.sandboxd.control.clearFaults(id);
      await world.running("a", undefined, { timeoutMs: 60_000 });
      expect(world.fates("a")).toEqual(["lives"]);
    }, 120_000);
});

/** The usual pool, and one of the egress lane, with so many warm VMs. */
function pools(warm: number) {
  return ["none", "egress"].map((net) => ({ template, net, warm }));
}

const lost: { what: string; fault: Omit<Fault, "match"> }[] = [
  { what: "a reset", fault: { effect: "reset", after: true } },
  { what: "half an answer", fault: { effect: "truncate" } },
  { what: "broken JSON", fault: { effect: "cut" } },
  { what: "an empty answer", fault: { effect: "empty", after: true } },
  { what: "a proxy's page", fault: { effect: "garbage", after: true } },
  { what: "a proxy's 504", fault: { effect: "status", status: 504, body: "", after: true } },
];

for (const { what, fault } of lost)
  test.concurrent(`a claim that was granted and answered with ${what} is found again: the same VM, no second one`, async () => {
    await using world = await World.create();
    world.sandboxd.control.fault({ ...fault, match: claim });
    await world.createSandbox("a");
    await waits(world, "a", /looked for/);
    expect(world.granted("a")).toHaveLength(1);
    const pod = await world.running("a", undefined, { timeoutMs: 60_000 });
    expect(claimIdOf(pod)).toBe(world.granted("a")[0]?.id ?? "");
    expect(world.fates("a")).toEqual(["lives"]);

    // Its credential is there, too: it is released with its own token.
    await world.api.delete(world.sandboxPath("a"));
    await world.gone(world.podPath("a"));
    await world.eventually(
      "the VM is released with the token that was read for it",
      () => world.fates("a"),
      ([fate]) => fate === "sandbox",
    );
  }, 120_000);

test.concurrent("a lost answer is found again after a kill as well, also when its Pod was replaced meanwhile", async () => {
  await using world = await World.create();
  const id = world.sandboxd.control.fault({ match: claim, effect: "hang", after: true, count: 2 });
  for (const name of ["same", "replaced"]) await world.createSandbox(name);
  await hit(world, id, 2);
  await world.daemon.kill();
  const old = await world.pod("replaced");
  await world.api.delete(world.podPath("replaced"), { gracePeriodSeconds: 0 });
  await world.eventually(
    "the Sandbox has another Pod",
    () => world.pod("replaced"),
    (pod) => pod !== undefined && pod.metadata.uid !== old?.metadata.uid,
  );
  await world.startDaemon();
  for (const name of ["same", "replaced"]) {
    const pod = await world.running(name, undefined, { timeoutMs: 60_000 });
    expect(world.fates(name)).toEqual(["lives"]);
    expect(claimIdOf(pod)).toBe(world.granted(name)[0]?.id ?? "");
  }
}, 120_000);

test.concurrent("what a lost answer left behind for a Pod that is gone goes back to sandboxd", async () => {
  await using world = await World.create();
  const id = world.sandboxd.control.fault({ match: claim, effect: "reset", after: true, count: 2 });
  await world.createPod("bare");
  await world.createSandbox("owned");
  await hit(world, id, 2);
  await world.api.delete(world.podPath("bare"));
  await world.api.delete(world.sandboxPath("owned"));
  for (const name of ["bare", "owned"]) {
    await world.eventually(
      `the VM of ${name} is released`,
      () => world.fates(name),
      (fates) => fates.length === 1 && fates[0] === "sandbox",
      { timeoutMs: 60_000 },
    );
    await world.gone(world.podPath(name));
  }
}, 120_000);

test.concurrent("a VM that may be another's is left alone: claimed by someone else under the same claim_ref", async () => {
  await using world = await World.create({ flags: ["--orphan-scan-interval=1s"] });
  // Somebody else, with the node's token, claims for the same name, as an aggregated API server does.
  const token = await Bun.file(join(world.dir, "token")).text();
  const foreign = await fetch(`${world.sandboxd.url}/v1/claim`, {
    method: "POST",
    headers: { authorization: `Bearer ${token.trim()}` },
    body: JSON.stringify({ template, claim_ref: `${world.name}/a` }),
  });
  expect(foreign.status).toBe(200);
  const { id: foreignId } = (await foreign.json()) as { id: string };
  // sandboxd may cut claimed_at to whole seconds, so that one of the same second could be either's.
  const [{ claimedAtMs } = { claimedAtMs: 0 }] = world.granted("a");
  await world.eventually(
    "it is older than anything that is asked for now",
    () => Date.now() > claimedAtMs + 2_000,
  );
  // Then our own claim's answer is lost, and never was granted.
  world.sandboxd.control.fault({ match: claim, effect: "reset" });
  await world.createPod("a");
  const pod = await world.running("a", undefined, { timeoutMs: 60_000 });
  expect(claimIdOf(pod)).not.toBe(foreignId);
  await world.api.delete(world.podPath("a"));
  await world.gone(world.podPath("a"));
  await world.eventually(
    "ours is released",
    () => world.granted("a").find((vm) => vm.id !== foreignId)?.endedBy,
    (endedBy) => endedBy === "sandbox",
  );
  expect(world.granted("a").find((vm) => vm.id === foreignId)?.endedBy).toBeUndefined();
  await world.eventually("the foreign one is reported", () =>
    world.daemon.log.some((line) => line.includes(foreignId) && line.includes('"external"')),
  );
}, 120_000);

test.concurrent("sandboxd restarted again and again while 40 Pods are made: each runs in one VM, and none is left over", async () => {
  await using world = await World.create({ flags: ["--not-ready-after=1m"] });
  const names = Array.from({ length: 40 }, (_, i) => `s${i}`);
  const made = Promise.all(names.map((name) => world.createSandbox(name)));
  for (let restart = 0; restart < 4; restart++) {
    const before = world.sandboxd.control.history().length;
    await world.eventually(
      "some more were granted",
      () => world.sandboxd.control.history().length,
      (now) => now > before + 3 || now >= 40,
    );
    await world.sandboxd.control.restart({ downMs: 300 });
  }
  await made;
  for (const name of names) {
    const pod = await world.running(name, undefined, { timeoutMs: 90_000 });
    expect(world.fates(name)).toEqual(["lives"]);
    expect(claimIdOf(pod)).toBe(world.granted(name)[0]?.id ?? "");
  }
  expect(conditionOf(await world.node(), "Ready")?.status).toBe("True");
}, 240_000);

test.concurrent("while sandboxd accepts and never answers the Node is NotReady and Pods say so; both come back, with one VM each", async () => {
  await using world = await World.create({ flags: ["--not-ready-after=4s"] });
  await world.createSandbox("before");
  const before = await world.running("before");
  const { control } = world.sandboxd;
  // One claim is carried out before sandboxd goes silent, one is not.
  const first = control.fault({ match: claim, effect: "hang", after: true });
  await world.createSandbox("granted");
  await hit(world, first);
  const rest = control.fault({ match: ".", effect: "hang", count: 0 });
  await world.createSandbox("asked");
  const startedMs = Date.now();
  const node = await world.eventually(
    "the Node is NotReady",
    () => world.node(),
    (n) => conditionOf(n, "Ready")?.status === "False",
    { timeoutMs: 60_000 },
  );
  console.log(
    `NotReady ${((Date.now() - startedMs) / 1000).toFixed(1)} s after sandboxd went silent (--not-ready-after=4s)`,
  );
  expect(conditionOf(node, "Ready")?.message).toMatch(/sandboxd/);
  for (const name of ["granted", "asked"]) await waits(world, name, /did not answer/);
  // The first Pod is deleted meanwhile: nobody can say what became of its VM, so it is kept.
  await world.api.delete(world.podPath("before"));
  await world.eventually(
    "the Sandbox has another Pod",
    () => world.pod("before"),
    (pod) => pod !== undefined && pod.metadata.uid !== before.metadata.uid,
  );

  control.clearFaults(first);
  control.clearFaults(rest);
  await world.nodeReady();
  for (const name of ["before", "granted", "asked"]) {
    await world.running(name, undefined, { timeoutMs: 90_000 });
    expect(world.fates(name)).toEqual(["lives"]);
  }
}, 240_000);

test.concurrent("while sandboxd answers 500 to everything the Node is NotReady, releases are retried, and all is settled afterwards", async () => {
  await using world = await World.create({ flags: ["--not-ready-after=2s", "--orphan-scan-interval=1s"] });
  for (const name of ["stays", "leaves"]) await world.createSandbox(name);
  for (const name of ["stays", "leaves"]) await world.running(name);
  const { control } = world.sandboxd;
  control.fault({ match: ".", effect: "status", status: 500, body: { error: "internal error" }, count: 0 });
  await world.eventually(
    "the Node is NotReady",
    () => world.node(),
    (n) => conditionOf(n, "Ready")?.status === "False",
    { timeoutMs: 60_000 },
  );
  await world.createPod("new", { spec: { nodeName: world.name } });
  await waits(world, "new", /could not provision/);
  await world.api.delete(world.sandboxPath("leaves"));
  await world.eventually(
    "the release fails, and a Warning of the Pod says so",
    () => world.events("leaves"),
    (events) => events.some((e) => e.type === "Warning" && e.reason === "ProviderDeleteFailed"),
  );
  // The Pod waits with its VM: whoever waits for the object waits for the VM's end.
  expect((await world.pod("leaves"))?.metadata.deletionTimestamp).toBeDefined();
  // A kill in between loses nothing of it.
  await world.daemon.kill();
  await world.daemon.start();
  await world.eventually("it has tried again", () => (control.counts()["GET /healthz"] ?? 0) > 0);
  expect(world.fates("leaves")).toEqual(["lives"]);

  control.clearFaults();
  await world.nodeReady();
  await world.released(world.granted("leaves")[0]?.id ?? "");
  await world.gone(world.podPath("leaves"));
  await world.running("new", undefined, { timeoutMs: 60_000 });
  expect([...world.fates("stays"), ...world.fates("new")]).toEqual(["lives", "lives"]);
}, 240_000);

const falseListings: { what: string; fault: Omit<Fault, "match"> }[] = [
  { what: "garbage", fault: { effect: "garbage" } },
  { what: "an empty body", fault: { effect: "empty" } },
  { what: "half of itself", fault: { effect: "truncate" } },
  { what: "half of itself, well framed", fault: { effect: "cut" } },
  { what: "500", fault: { effect: "status", status: 500, body: { error: "internal error" } } },
  { what: "404", fault: { effect: "status", status: 404, body: "404 page not found\n" } },
  { what: "a list of nobody", fault: { effect: "garbage", body: { sandboxes: [] } } },
  { what: "an object without a list", fault: { effect: "garbage", body: {} } },
  { what: "null", fault: { effect: "garbage", body: "null" } },
  { what: "the index of an hour ago", fault: { effect: "stale" } },
];

for (const { what, fault } of falseListings)
  test.concurrent(`an index answered with ${what} fails no Pod and drops no row, in a running daemon or at its start`, async () => {
    await using world = await World.create({ flags: ["--orphan-scan-interval=500ms"] });
    const { control } = world.sandboxd;
    let id = control.fault({ ...fault, match: listing, count: 0 });
    await world.createSandbox("a");
    const pod = await world.running("a");
    await hit(world, id, 3);
    await world.daemon.kill();
    control.clearFaults(id);
    id = control.fault({ ...fault, match: listing, count: 0 });
    await world.startDaemon();
    await hit(world, id, 2);
    // A stale index of this moment knows the VM; one of before it was claimed does not, and stays in force below.
    expect((await world.pod("a"))?.status.phase).toBe("Running");
    expect(world.daemon.log.filter((line) => /"kind":"(lost|lease_expired|dropped)"/.test(line))).toEqual([]);

    control.clearFaults();
    await world.api.delete(world.podPath("a"));
    const after = await world.running("a", pod, { timeoutMs: 60_000 });
    expect(claimIdOf(after)).toBe(claimIdOf(pod) ?? "");
    expect(world.fates("a")).toEqual(["lives"]);
  }, 120_000);

test.concurrent("a tenant's token in place of root's, which sees no VM of root's, costs none of them", async () => {
  const tenant = `tenant-${crypto.randomUUID()}`;
  await using world = await World.create({
    flags: ["--orphan-scan-interval=500ms", "--not-ready-after=1s"],
    sandboxd: { tenants: { [tenant]: "acme" } },
  });
  const tokenFile = join(world.dir, "token");
  const root = await Bun.file(tokenFile).text();
  await world.createSandbox("a");
  const pod = await world.running("a");
  const { control } = world.sandboxd;

  const put = (token: string) => writeFileSync(tokenFile, token, { mode: 0o600 });
  put(tenant);
  await world.eventually("the token was read again", () =>
    world.daemon.log.some((line) => line.includes("token was read again")),
  );
  control.resetCounts();
  await world.eventually(
    "its index was read, and the VM that it lacks was asked for",
    () => [control.counts()["GET /v1/sandboxes"] ?? 0, control.counts()["GET /v1/sandboxes/{id}"] ?? 0],
    ([lists = 0, reads = 0]) => lists > 2 && reads > 0,
    { timeoutMs: 60_000 },
  );
  expect((await world.pod("a"))?.status.phase).toBe("Running");

  // The same for one that starts with it.
  await world.daemon.kill();
  control.resetCounts();
  await world.startDaemon();
  await world.eventually(
    "its index was read, and the VM that it lacks was asked for",
    () => [control.counts()["GET /v1/sandboxes"] ?? 0, control.counts()["GET /v1/sandboxes/{id}"] ?? 0],
    ([lists = 0, reads = 0]) => lists > 2 && reads > 0,
    { timeoutMs: 60_000 },
  );
  expect((await world.pod("a"))?.status.phase).toBe("Running");
  expect(world.daemon.log.filter((line) => /"kind":"(lost|lease_expired|dropped)"/.test(line))).toEqual([]);

  put(root);
  await world.api.delete(world.podPath("a"));
  const after = await world.running("a", pod, { timeoutMs: 60_000 });
  expect(claimIdOf(after)).toBe(claimIdOf(pod) ?? "");
  expect(world.fates("a")).toEqual(["lives"]);
}, 180_000);

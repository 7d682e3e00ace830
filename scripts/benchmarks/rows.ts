/** The rows of the table: what is measured, how, and what it must be. */
import { mkdirSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { deletePods, Follower, inParallel, makePods, names, podFor, type Seen } from "./load.ts";
import { median, quantile } from "./numbers.ts";
import { cpuSecondsOf, descriptorsOf, type Memory, memoryOf, peakOf } from "./process.ts";
import { allFeatures, openBudget, root, type Subject, settled, until, type World } from "./world.ts";

/** One measured line of the table. */
export interface Result {
  row: string;
  what: string;
  /** Absent where only the daemon has it. */
  floor?: number;
  daemon: number;
  unit: string;
  /** The bound on `daemon`, or on daemon ÷ floor when `ratio` is set. */
  must?: { atMost?: number; atLeast?: number; ratio?: boolean };
  note?: string;
}

/** How much is done. */
export interface Size {
  latencyPods: number;
  pinnedPods: number;
  pinnedRounds: number;
  scheduledPods: number;
  scheduledRounds: number;
  heldPods: number;
  leakPods: number;
  leakBatch: number;
  idleMs: number;
  quietMs: number;
  deletedPods: number;
  deletedRounds: number;
  handovers: number;
}

export const full: Size = {
  latencyPods: 60,
  pinnedPods: 1_000,
  pinnedRounds: 2,
  scheduledPods: 200,
  scheduledRounds: 3,
  heldPods: 1_000,
  leakPods: 50_000,
  leakBatch: 2_000,
  idleMs: 60_000,
  quietMs: 35_000,
  deletedPods: 50,
  deletedRounds: 5,
  handovers: 2_000,
};

/** Seconds, for a run that only shows that the bench itself works. */
export const smoke: Size = {
  latencyPods: 3,
  pinnedPods: 10,
  pinnedRounds: 1,
  scheduledPods: 5,
  scheduledRounds: 1,
  heldPods: 10,
  leakPods: 40,
  leakBatch: 20,
  idleMs: 2_000,
  quietMs: 500,
  deletedPods: 5,
  deletedRounds: 1,
  handovers: 50,
};

export interface Bench {
  world: World;
  size: Size;
  say: (line: string) => void;
}

/** Both subjects, running side by side: rounds alternate between them, so that what else this machine does hits both. */
async function both(bench: Bench, flags: string[]): Promise<[Side, Side]> {
  const sides: Side[] = [];
  for (const kind of ["daemon", "floor"] as const) {
    const subject = await bench.world.start(kind, { flags });
    const follower = new Follower(bench.world.api, subject);
    await follower.start();
    sides.push({ subject, follower });
  }
  return sides as [Side, Side];
}

interface Side {
  subject: Subject;
  follower: Follower;
}

async function end(bench: Bench, ...sides: Side[]): Promise<void> {
  for (const { subject, follower } of sides) {
    follower.stop();
    // What was measured counts, whether this world can be tidied up or not.
    await subject.remove().catch((error: unknown) => bench.say(String(error)));
  }
}

/** The rows by name, in the order of the table. */
export const rows: Record<string, (bench: Bench) => Promise<Result[]>> = {
  handover,
  latency,
  pinned,
  scheduled,
  rss,
  leak,
  idle,
  delete: deleted,
  binary,
};

/** Measured inside, without servers: see handover.ts. Alternating, since even this row has a noisy machine under it. */
async function handover({ world, size, say }: Bench): Promise<Result[]> {
  interface Inside {
    handoverP50Us: number;
    handoverP99Us: number;
    handoverCpuP50Us: number;
    handoverCpuP99Us: number;
    commitP50Us: number;
    commitCpuP50Us: number;
  }
  const found: Record<number, Inside[]> = { 0: [], 2000: [] };
  for (const round of [1, 2, 3])
    for (const held of [0, 2000]) {
      say(`handover: round ${round} with ${held} rows`);
      const dir = mkdtempSync(join(world.dir, "handover-"));
      const state = join(dir, "state");
      mkdirSync(state, { mode: 0o700 });
      const program = join(root, "dist/bench-handover");
      const run = Bun.spawnSync([program, state, String(held), String(size.handovers)]);
      rmSync(dir, { recursive: true, force: true });
      if (!run.success) throw new Error(`bench-handover: ${run.stderr.toString()}`);
      found[held]?.push(JSON.parse(run.stdout.toString()) as Inside);
    }
  const of = (held: number, field: keyof Inside) =>
    median((found[held] ?? []).map((one) => one[field])) / 1000;
  const row = "handover";
  const ms = (what: string, daemon: number, must: Result["must"], note?: string): Result => ({
    row,
    what,
    daemon,
    unit: "ms",
    must,
    note,
  });
  return [
    ms("own time on the handover path, p50, clock", of(0, "handoverP50Us"), { atMost: 1 }),
    ms("own time on the handover path, p99, CPU", of(0, "handoverCpuP99Us"), { atMost: 3 }),
    ms(
      "own time on the handover path, p99, clock",
      of(0, "handoverP99Us"),
      undefined,
      "with what else this machine ran",
    ),
    {
      row,
      what: "own time with 2,000 rows ÷ with none, p50, CPU",
      daemon: of(2000, "handoverCpuP50Us") / of(0, "handoverCpuP50Us"),
      unit: "×",
      must: { atMost: 1.2 },
    },
    ms("commit of one claim, p50, clock", of(0, "commitP50Us"), { atMost: 0.1 }),
    {
      row,
      what: "commit with 2,000 rows ÷ with none, p50, CPU",
      daemon: of(2000, "commitCpuP50Us") / of(0, "commitCpuP50Us"),
      unit: "×",
      must: { atMost: 1.2 },
    },
  ];
}

/** One Pod at a time, the two subjects in turn. */
async function latency(bench: Bench): Promise<Result[]> {
  const { world, size } = bench;
  const sides = await both(bench, openBudget);
  const times = sides.map(() => [] as number[]);
  for (let n = 0; n < size.latencyPods; n++)
    for (const [at, { subject, follower }] of sides.entries()) {
      const [seen] = await makePods(world.api, subject, follower, names(1));
      times[at]?.push((seen?.runningAt ?? Number.NaN) - (seen?.postedAt ?? Number.NaN));
      await deletePods(world.api, subject, follower, [...follower.pods.keys()]);
      follower.forgetGone();
    }
  await end(bench, ...sides);
  const [daemon = [], floor = []] = times;
  const line = (what: string, at: number, must?: Result["must"]): Result => ({
    row: "latency",
    what,
    floor: quantile(floor, at),
    daemon: quantile(daemon, at),
    unit: "ms",
    must,
  });
  return [
    line("one Pod, POST to Running, p50", 0.5, { atMost: 1.25, ratio: true }),
    line("one Pod, POST to Running, p95", 0.95),
  ];
}

/** Pinned Pods from many writers: throughput, CPU, and requests as the API server recorded them. */
async function pinned(bench: Bench): Promise<Result[]> {
  const { world, size, say } = bench;
  const sides = await both(bench, openBudget);
  const rate: number[][] = [[], []];
  const cpu: number[][] = [[], []];
  const lifeCpu: number[][] = [[], []];
  const requests: number[] = [];
  const events: number[] = [];
  for (let round = 1; round <= size.pinnedRounds; round++)
    for (const [at, { subject, follower }] of sides.entries()) {
      say(`pinned: round ${round}, ${subject.kind}`);
      const mark = world.auditMark();
      const cpuBefore = cpuSecondsOf(subject.pid);
      const startedAt = performance.now();
      const made = names(size.pinnedPods);
      await makePods(world.api, subject, follower, made);
      rate[at]?.push((1000 * size.pinnedPods) / (performance.now() - startedAt));
      cpu[at]?.push((1000 * (cpuSecondsOf(subject.pid) - cpuBefore)) / size.pinnedPods);
      if (subject.kind === "daemon") {
        // The events follow the Pods; they are counted when no more come.
        await settled(() => ourRequests(world, mark, subject).length);
        const lines = ourRequests(world, mark, subject);
        const posts = lines.filter((line) => line.objectRef?.resource === "events").length;
        events.push(posts / size.pinnedPods);
        requests.push((lines.length - posts) / size.pinnedPods);
      }
      await deletePods(world.api, subject, follower, made);
      follower.forgetGone();
      lifeCpu[at]?.push((1000 * (cpuSecondsOf(subject.pid) - cpuBefore)) / size.pinnedPods);
    }
  await end(bench, ...sides);
  const row = "pinned";
  const pair = (what: string, values: number[][], unit: string, must?: Result["must"]): Result => ({
    row,
    what,
    floor: median(values[1] ?? []),
    daemon: median(values[0] ?? []),
    unit,
    must,
  });
  return [
    pair(`${size.pinnedPods} Pods pinned, 32 writers: Pods per second`, rate, "/s", {
      atLeast: 0.8,
      ratio: true,
    }),
    pair("CPU per Pod, made and Running", cpu, "ms", { atMost: 2.5, ratio: true }),
    pair("CPU per Pod, made, Running, deleted and gone", lifeCpu, "ms"),
    {
      row,
      what: "API requests per Pod, events apart",
      daemon: median(requests),
      unit: "",
      must: { atMost: 1 },
    },
    { row, what: "API requests per Pod, events", daemon: median(events), unit: "", must: { atMost: 1 } },
  ];
}

/** Requests of the daemon about Pods: heartbeats and inventories have rows of their own. */
function ourRequests(world: World, mark: number, subject: Subject) {
  return world
    .audit(mark)
    .filter(
      ({ userAgent, objectRef, stage }) =>
        userAgent?.startsWith("vk-sandbox/") &&
        stage === "ResponseComplete" &&
        (objectRef?.resource === "pods" ||
          objectRef?.resource === "events" ||
          objectRef?.resource === "sandboxes") &&
        (objectRef as { namespace?: string }).namespace === subject.name,
    );
}

/** All at once, through the scheduler. */
async function scheduled(bench: Bench): Promise<Result[]> {
  const { world, size, say } = bench;
  const sides = await both(bench, openBudget);
  const p50: number[][] = [[], []];
  for (let round = 1; round <= size.scheduledRounds; round++)
    for (const [at, { subject, follower }] of sides.entries()) {
      say(`scheduled: round ${round}, ${subject.kind}`);
      const made = names(size.scheduledPods);
      const seen: Seen[] = [];
      const before = follower.running;
      // One writer for each Pod: they arrive together.
      await inParallel(made, made.length, async (name) => {
        const one: Seen = { postedAt: performance.now() };
        seen.push(one);
        follower.pods.set(name, one);
        await world.api.create(subject.podsPath, podFor(subject, name, false));
      });
      await follower.until("all Running", () => follower.running >= before + made.length);
      p50[at]?.push(median(seen.map((s) => (s.runningAt ?? Number.NaN) - (s.boundAt ?? Number.NaN))));
      await deletePods(world.api, subject, follower, made);
      follower.forgetGone();
    }
  await end(bench, ...sides);
  return [
    {
      row: "scheduled",
      what: `${size.scheduledPods} at once through the scheduler, bound to Running p50`,
      floor: median(p50[1] ?? []),
      daemon: median(p50[0] ?? []),
      unit: "ms",
      must: { atMost: 1.2, ratio: true },
    },
  ];
}

/** Memory at rest, all features on, and how fast the process serves again with that many rows. */
async function rss(bench: Bench): Promise<Result[]> {
  const { world, size, say } = bench;
  const flags = [...allFeatures, ...openBudget];
  const subject = await world.start("daemon", { flags });
  const follower = new Follower(world.api, subject);
  await follower.start();
  const found: Result[] = [];
  const add = (what: string, memory: Memory, atMost: number) =>
    found.push({
      row: "rss",
      what,
      daemon: memory.rssMb,
      unit: "MB",
      must: size === full ? { atMost } : undefined,
      note: `heap ${memory.anonMb.toFixed(0)}, files ${memory.fileMb.toFixed(0)}, peak ${peakOf(subject.pid).toFixed(0)}`,
    });
  say(`rss: idle for ${size.quietMs / 1000} s`);
  await Bun.sleep(size.quietMs);
  add("RSS idle, all features on", memoryOf(subject.pid), 45);
  for (const [at, atMost] of [60, 75].entries()) {
    const held = size.heldPods * (at + 1);
    say(`rss: ${held} Pods`);
    await makePods(world.api, subject, follower, names(size.heldPods));
    await Bun.sleep(size.quietMs);
    add(`RSS with ${held} Pods, ${size.quietMs / 1000} s after the last`, memoryOf(subject.pid), atMost);
  }
  say(`rss: restart with ${size.heldPods * 2} rows`);
  const times: number[] = [];
  for (let round = 0; round < 3; round++) {
    await subject.stop();
    times.push(await restart(world, subject));
  }
  found.push({
    row: "rss",
    what: `start to node Ready with ${size.heldPods * 2} rows on disk`,
    daemon: median(times),
    unit: "ms",
    must: { atMost: 500 },
    note: "until the new process's lease and its Ready status are both written",
  });
  await end(bench, { subject, follower });
  return found;
}

/** Starts the daemon again; ms until its lease and its Node status are both written by the new process. */
async function restart(world: World, subject: Subject): Promise<number> {
  const mark = world.auditMark();
  await subject.start(openBudget);
  const written = (verb: string, resource: string, subresource?: string) =>
    world
      .audit(mark)
      .find(
        (line) =>
          line.userAgent?.startsWith("vk-sandbox/") &&
          line.verb === verb &&
          line.objectRef?.resource === resource &&
          line.objectRef.subresource === subresource &&
          line.objectRef.name === subject.name &&
          line.responseStatus?.code === 200,
      );
  const [lease, status] = await until("the new process's lease and status are written", () => {
    subject.alive();
    const found = [written("patch", "leases"), written("patch", "nodes", "status")];
    return found.every((line) => line !== undefined) ? found : undefined;
  });
  const at = (line: { stageTimestamp?: string } | undefined) => Date.parse(line?.stageTimestamp ?? "");
  return Math.max(at(lease), at(status)) - subject.startedAtMs;
}

/** Memory after many Pods have come and gone, with a token and with a client certificate. */
async function leak(bench: Bench): Promise<Result[]> {
  const { world, size, say } = bench;
  const found: Result[] = [];
  const certificate = world.cluster.identity("bench-client", {
    user: "system:serviceaccount:vk-sandbox:vk-sandbox",
    groups: [],
  });
  for (const [with_, kubeconfig] of [
    ["token", undefined] as const,
    ["client certificate", certificate] as const,
  ]) {
    const subject = await world.start("daemon", { flags: [...allFeatures, ...openBudget], kubeconfig });
    const follower = new Follower(world.api, subject);
    await follower.start();
    let early: Memory | undefined;
    for (let done = 0; done < size.leakPods; done += size.leakBatch) {
      const made = names(size.leakBatch);
      await makePods(world.api, subject, follower, made);
      await deletePods(world.api, subject, follower, made);
      follower.forgetGone();
      if (done === 0) {
        await Bun.sleep(size.quietMs);
        early = memoryOf(subject.pid);
      }
      say(`leak, ${with_}: ${done + size.leakBatch} Pods, RSS ${memoryOf(subject.pid).rssMb.toFixed(0)} MB`);
    }
    await Bun.sleep(size.quietMs);
    const late = memoryOf(subject.pid);
    found.push({
      row: "leak",
      what: `RSS after ${size.leakPods} Pods ÷ after ${size.leakBatch}, made and deleted, ${with_}`,
      daemon: late.rssMb / (early?.rssMb ?? Number.NaN),
      unit: "×",
      must: { atMost: 1.15 },
      note: `${early?.rssMb.toFixed(0)} and ${late.rssMb.toFixed(0)} MB, ${descriptorsOf(subject.pid)} descriptors`,
    });
    await end(bench, { subject, follower });
  }
  return found;
}

/** What a minute without Pods costs the API server. */
async function idle({ world, size, say }: Bench): Promise<Result[]> {
  const subject = await world.start("daemon", {});
  // Registration has requests of its own; they are over when a heartbeat was the last thing asked.
  await settled(() => world.audit(0).length);
  say(`idle: starting up is over in ${size.quietMs / 1000} s`);
  await Bun.sleep(size.quietMs);
  const mark = world.auditMark();
  const cpu = cpuSecondsOf(subject.pid);
  say(`idle: ${size.idleMs / 1000} s`);
  await Bun.sleep(size.idleMs);
  const spent = cpuSecondsOf(subject.pid) - cpu;
  const lines = world.audit(mark).filter((line) => line.userAgent?.startsWith("vk-sandbox/"));
  await subject.remove();
  const isLease = (line: (typeof lines)[number]) => line.objectRef?.resource === "leases";
  const others = lines.filter((line) => !isLease(line)).map((line) => `${line.verb} ${line.requestURI}`);
  const minutes = size.idleMs / 60_000;
  return [
    {
      row: "idle",
      what: `${size.idleMs / 1000} s idle: lease renewals`,
      daemon: lines.filter(isLease).length,
      unit: "",
      must: { atMost: Math.ceil(6 * minutes) },
    },
    {
      row: "idle",
      what: `${size.idleMs / 1000} s idle: other API requests`,
      daemon: others.length,
      unit: "",
      must: { atMost: 0 },
      note: others.join(", "),
    },
    { row: "idle", what: "CPU of an idle minute", daemon: (1000 * spent) / minutes, unit: "ms" },
  ];
}

/** Deleted by hand, with the grace that everyone gets. */
async function deleted(bench: Bench): Promise<Result[]> {
  const { world, size } = bench;
  const sides = await both(bench, openBudget);
  const times: number[][] = [[], []];
  for (let round = 0; round < size.deletedRounds; round++)
    for (const [at, { subject, follower }] of sides.entries()) {
      const made = names(size.deletedPods);
      await makePods(world.api, subject, follower, made);
      const startedAt = performance.now();
      await deletePods(world.api, subject, follower, made);
      times[at]?.push(performance.now() - startedAt);
      follower.forgetGone();
    }
  await end(bench, ...sides);
  const [daemon = [], floor = []] = times;
  return [
    {
      row: "delete",
      what: `${size.deletedPods} Pods deleted with the default grace, last object gone`,
      floor: median(floor),
      daemon: median(daemon),
      unit: "ms",
      must: { atMost: 500 },
      note: `rounds: ${daemon.map((ms) => ms.toFixed(0)).join(", ")}; floor: ${floor.map((ms) => ms.toFixed(0)).join(", ")}`,
    },
  ];
}

/** What people download, and what of it is ours. */
async function binary({ world }: Bench): Promise<Result[]> {
  const path = process.env.BENCH_BINARY ?? join(root, "dist/vk-sandbox");
  const packed = Bun.gzipSync(await Bun.file(path).bytes(), { level: 9 }).length;
  const empty = join(world.dir, "empty.ts");
  await Bun.write(empty, "");
  const out = join(world.dir, "empty");
  Bun.spawnSync([process.execPath, "build", empty, "--compile", "--outfile", out]);
  const mb = (bytes: number) => bytes / (1 << 20);
  const runtime = statSync(out, { throwIfNoEntry: false })?.size ?? Number.NaN;
  return [
    { row: "binary", what: "binary, gzip -9", daemon: mb(packed), unit: "MB" },
    {
      row: "binary",
      what: "binary",
      daemon: mb(statSync(path).size),
      unit: "MB",
      note: `Bun ${mb(runtime).toFixed(1)}, ours with its bytecode ${mb(statSync(path).size - runtime).toFixed(1)}`,
    },
  ];
}

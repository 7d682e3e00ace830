import { podView } from "../../provider/pod.ts";
import { createProvider, type Provider } from "../../provider/provider.ts";
import { applyChanges, emptyTable } from "../../provider/table.ts";
import type { Change, Effect, Event, Intent, Listed, Note, PodView, Table } from "../../provider/types.ts";
import { type Cluster, createCluster, type RawPod } from "./cluster.ts";
import { createMemoryDisk, createRealDisk, type Disk } from "./disk.ts";
import type { Plan } from "./plan.ts";
import { createRandom, type Random } from "./random.ts";
import { createModelSandboxd, type ModelSandboxd } from "./sandboxd.ts";

/** An invariant that does not hold. */
export class Violation extends Error {}

/** What stands for the death of the process: thrown through the core, which can do nothing about it. */
const DEATH = new Error("the process died");

export interface InFlight {
  effect: Effect;
  /** The server has dealt with it; the answer is on its way. */
  answer?: Event;
  /** The intent that was open when a claim was asked for. */
  intent?: Intent;
}

/** One life of the provider's process. */
export interface Process {
  provider: Provider;
  inFlight: InFlight[];
  /** Position in the watch log up to which events were delivered. */
  cursor: number;
  /** Position that the last complete list stood for. */
  listedTo: number;
  /** Position that no list may lag behind: the process has heard of it, be it as the answer to a push. */
  heardTo: number;
  relisting?: { pods: RawPod[]; at: number; end: number; complete: boolean };
  /** Events were dropped or came out of order since the last complete list. */
  watchBroken: boolean;
  /** The last list lacked Pods: the process has forgotten what it knew of them. */
  lacking: boolean;
  /** Claim ids that sandboxd has told this process of. */
  vouched: Set<string>;
  lastAnswer?: Event;
  /** The event that is being handled. */
  handling?: Event;
  /** Pods that it has evicted. */
  evicted: Set<string>;
  /** Answers that came too late: their calls were given up before. */
  tooLate: Event[];
  /** Rows of the last search by claim_ref, by key. */
  lastFound: Map<string, Listed[]>;
  /** Each Pod generation as the process was last told of it; undefined: that it is gone. */
  told: Map<string, PodView | undefined>;
  /** Each Pod generation's phase as the process has pushed it itself, and the version that this made. */
  pushed: Map<string, { version: number; phase: string }>;
  /** Newest version that the watch has delivered since the last list began. */
  newest: number;
}

/** Watches over a run; see invariants.ts. */
export interface Checks {
  /** A commit is about to be made durable. */
  commit(changes: Change[]): void;
  committed(changes: Change[]): void;
  run(effect: Effect): void;
  note(note: Note): void;
  /** After every event that the core has handled, and after every act of the world. */
  step(): void;
}

export interface World {
  readonly plan: Plan;
  readonly cluster: Cluster;
  readonly sandboxd: ModelSandboxd;
  readonly disk: Disk;
  /** Randomness of the present step. */
  readonly random: Random;
  readonly checks: Checks;
  process: Process | undefined;
  monoMs: number;
  /** Wall clock minus monotonic clock. */
  clockOffsetMs: number;
  /** The wall clock was stepped at this monotonic time last. */
  steppedAtMs: number;
  faults: boolean;
  diskFails: boolean;
  /** The process dies at the n-th commit or effect from now; 0 = it does not. */
  deathIn: number;
  /** The state file was lost or cut while the process was down. */
  memoryLost: boolean;
  events: number;
  onEvent?: (event: Event) => void;
  onNote?: (note: Note) => void;
  trace?: (line: string) => void;
}

export function wallMs(world: World): number {
  return world.monoMs + world.clockOffsetMs;
}

/** Wall clock at the start: any time will do. */
const EPOCH_MS = 1_700_000_000_000;

export function createWorld(plan: Plan, checksOf: (world: World) => Checks): World {
  const random = createRandom(plan.seed);
  const cluster = createCluster();
  const sandboxd = createModelSandboxd({ coarseTimes: plan.coarseTimes });
  const table = emptyTable();
  const startMs = 1_000_000;
  if (plan.oldTable) plantOldTable(table, plan, cluster, sandboxd, EPOCH_MS);
  const world: World = {
    plan,
    cluster,
    sandboxd,
    disk: plan.realStore ? createRealDisk(table) : createMemoryDisk(table),
    random,
    checks: undefined as unknown as Checks,
    process: undefined,
    monoMs: startMs,
    clockOffsetMs: EPOCH_MS - startMs,
    steppedAtMs: Number.NEGATIVE_INFINITY,
    faults: true,
    diskFails: false,
    deathIn: 0,
    memoryLost: false,
    events: 0,
  };
  (world as { checks: Checks }).checks = checksOf(world);
  return world;
}

/** Rows as a table of the Go reference from before authority has them: one VM lives, one is long gone. */
function plantOldTable(
  table: Table,
  plan: Plan,
  cluster: Cluster,
  sandboxd: ModelSandboxd,
  nowMs: number,
): void {
  // One more that was to be released; the reference's queue does not name the key.
  const leaving = sandboxd.create({ claimRef: "ns/p0", claimedAtMs: nowMs - 90_000, ours: true });
  const { id, token, claimedAtMs, deadlineMs } = leaving;
  const row = { id, token, address: "", podUID: "before", authority: "", claimedAtMs, deadlineMs };
  table.releasing.set(id, { key: "", row, reason: "left in the queue" });
  for (let at = 0; at < plan.keys; at++) {
    const vm = sandboxd.create({
      claimRef: `ns/p${at}`,
      claimedAtMs: nowMs - 60_000,
      deadlineMs: nowMs + 3_600_000,
      ours: true,
    });
    if (at === 1) sandboxd.end(vm);
    const owner = cluster.createOwner(`p${at}`);
    const pod = cluster.createPod("ns", `p${at}`, {
      owner,
      annotations: { "sandbox.cocoonstack.io/template": "t1" },
      restartNever: false,
      elsewhere: false,
      containers: 1,
    });
    vm.podUID = pod.metadata.uid;
    table.rows.set(`ns/p${at}`, {
      id: vm.id,
      token: vm.token,
      address: "10.0.0.1:9000",
      podUID: pod.metadata.uid,
      authority: "",
      claimedAtMs: vm.claimedAtMs,
      deadlineMs: vm.deadlineMs,
    });
  }
}

// ---- the process ------------------------------------------------------------------------------------

/** Starts the provider on what the disk holds, with a fresh list of Pods before it. */
export function startProcess(world: World): boolean {
  const table = world.disk.open();
  if (table === undefined) return false;
  const inFlight: InFlight[] = [];
  const process: Process = {
    inFlight,
    cursor: 0,
    listedTo: 0,
    heardTo: 0,
    watchBroken: false,
    lacking: false,
    vouched: new Set(),
    lastFound: new Map(),
    told: new Map(),
    pushed: new Map(),
    tooLate: [],
    evicted: new Set(),
    newest: 0,
    provider: undefined as unknown as Provider,
  };
  const { checks } = world;
  process.provider = createProvider(
    table,
    {
      commit(changes) {
        checks.commit(changes);
        const answer = world.disk.commit(changes, commitOutcome(world), world.random);
        world.trace?.(`    commit ${answer}: ${changes.map(describeChange).join(", ")}`);
        if (answer === "ok" || answer === "died_after") checks.committed(changes);
        if (answer === "died_before" || answer === "died_after") throw DEATH;
        if (answer === "failed") return false;
        applyChanges(table, changes);
        return true;
      },
      run(effect) {
        const dies = deathAt(world);
        if (dies === "before") throw DEATH;
        checks.run(effect);
        world.trace?.(`    start ${describeEffect(effect)}`);
        inFlight.push({
          effect,
          intent: effect.kind === "claim" ? table.intents.get(effect.key) : undefined,
        });
        if (dies === "after") throw DEATH;
      },
      note: checks.note,
      random: world.random.float,
    },
    world.plan.options,
    wallMs(world),
    world.monoMs,
  );
  world.process = process;
  beginRelist(world, process, world.cluster.log.length);
  return true;
}

function deathAt(world: World): "before" | "after" | undefined {
  if (world.deathIn === 0 || --world.deathIn > 0) return undefined;
  return world.random.chance(0.5) ? "before" : "after";
}

function commitOutcome(world: World): "ok" | "failed" | "died_before" | "died_after" {
  const dies = deathAt(world);
  if (dies !== undefined) return dies === "before" ? "died_before" : "died_after";
  return world.diskFails && world.random.chance(0.8) ? "failed" : "ok";
}

/** Gives the core an event, as the runner would; the process may die of it. */
export function deliver(world: World, event: Event): void {
  const { process } = world;
  if (process === undefined) return;
  learn(process, event);
  process.handling = event;
  world.onEvent?.(event);
  world.events++;
  try {
    process.provider.handle(event, wallMs(world), world.monoMs);
  } catch (error) {
    if (error !== DEATH) throw error;
    world.trace?.("    the process dies");
    endProcess(world, "kill");
    return;
  }
  if (event.type === "tick") {
    const dueMs = process.provider.nextDueMs();
    if (dueMs <= world.monoMs)
      throw new Violation(
        `after a tick another is due at once: a loop that spins: ${dueMs} at ${world.monoMs}`,
      );
  }
  world.checks.step();
}

/** Keeps account of what the process has been told. */
function learn(process: Process, event: Event): void {
  switch (event.type) {
    case "listed":
      if (event.result.ok) for (const row of event.result.rows) process.vouched.add(row.id);
      break;
    case "found":
      if (event.result.ok) process.lastFound.set((event.effect as { key: string }).key, event.result.rows);
      break;
    case "read":
      if (event.result.ok) process.vouched.add(event.result.listed.id);
      break;
    case "claimed":
      if (event.result.ok) process.vouched.add(event.result.grant.id);
      break;
    case "pod": {
      const { uid, resourceVersion } = event.pod;
      // An event that comes out of its order tells nothing.
      if (Number(resourceVersion) < process.newest && process.relisting === undefined) break;
      process.newest = Math.max(process.newest, Number(resourceVersion));
      process.told.set(uid, event.pod);
      break;
    }
    case "podGone":
      process.newest = Math.max(process.newest, Number(event.resourceVersion));
      process.told.set(event.uid, undefined);
      break;
    case "relist":
      process.newest = 0;
      break;
  }
}

/** The process ends; what it had asked of sandboxd and the API server may still be carried out. */
export function endProcess(world: World, how: "kill" | "stop" | "power"): void {
  const { process, sandboxd, random } = world;
  if (process === undefined) return;
  world.process = undefined;
  world.deathIn = 0;
  for (const call of process.inFlight) {
    if (call.answer !== undefined) continue;
    if (call.effect.kind === "claim" && call.intent !== undefined) {
      const limitMs = world.monoMs + world.plan.options.claimSettleMs;
      sandboxd.late.push({ effect: call.effect, intent: call.intent, limitMs, heard: false });
    } else if (!sandboxd.state.hung && random.chance(0.5)) serve(world, call);
  }
  if (how === "kill") world.disk.kill();
  else if (how === "stop") world.disk.stop();
  else world.disk.powerCut(random);
}

// ---- the watch --------------------------------------------------------------------------------------

/**
 * Begins a list of the Pods as they were after `end` events of the log.
 *
 * @param lacks chance for each Pod to be missing from it, though the list ends as if it were complete
 */
export function beginRelist(world: World, process: Process, end: number, lacks = 0): void {
  const { log, pods } = world.cluster;
  let listed: RawPod[];
  if (end === log.length) {
    listed = [...pods.values()].filter((pod) => pod.spec.nodeName === world.plan.options.nodeName);
  } else {
    const at = new Map<string, RawPod>();
    for (const { type, pod } of log.slice(0, end)) {
      if (type === "object") at.set(`${pod.metadata.name}`, pod);
      else at.delete(pod.metadata.name);
    }
    listed = [...at.values()];
  }
  if (lacks > 0) listed = listed.filter(() => !world.random.chance(lacks));
  process.relisting = { pods: listed, at: -1, end, complete: lacks === 0 };
}

/** Delivers the next thing the watch has. Returns whether there was one. */
export function deliverWatch(world: World): boolean {
  const { process } = world;
  if (process === undefined) return false;
  const { relisting } = process;
  if (relisting !== undefined) {
    const at = relisting.at++;
    if (at < 0) deliver(world, { type: "relist" });
    else {
      const pod = relisting.pods[at];
      if (pod !== undefined) deliverPod(world, pod);
      else {
        process.relisting = undefined;
        process.cursor = process.listedTo = relisting.end;
        process.watchBroken = process.lacking = !relisting.complete;
        // What the list lacked is forgotten, with what was pushed to it.
        if (process.lacking) process.pushed.clear();
        deliver(world, { type: "synced" });
      }
    }
    return true;
  }
  const logged = world.cluster.log[process.cursor];
  if (logged === undefined) return false;
  process.cursor++;
  deliverLogged(world, logged);
  return true;
}

export function deliverLogged(world: World, logged: { type: "object" | "gone"; pod: RawPod }): void {
  if (logged.type === "object") deliverPod(world, logged.pod);
  else {
    const { namespace, name, uid, resourceVersion } = logged.pod.metadata;
    deliver(world, { type: "podGone", key: `${namespace}/${name}`, uid, resourceVersion });
  }
}

function deliverPod(world: World, raw: RawPod): void {
  const pod = podView(raw);
  if (pod === undefined) throw new Violation("a Pod of the API could not be read");
  deliver(world, { type: "pod", pod });
}

// ---- effects ----------------------------------------------------------------------------------------

/** The server carries a call out and prepares its answer. Returns false when it cannot just now. */
export function serve(world: World, call: InFlight): boolean {
  const { cluster, sandboxd, random } = world;
  const { effect } = call;
  const fault = world.faults && random.chance(world.plan.faultChance);
  const now = wallMs(world);
  switch (effect.kind) {
    case "claim": {
      if (sandboxd.state.hung || call.intent === undefined) return false;
      const { result, vm } = sandboxd.claim(effect, call.intent, now, random);
      if (vm !== undefined) granted(world, vm.id, call.intent);
      call.answer = { type: "claimed", effect, result };
      return true;
    }
    case "find":
    case "list": {
      if (sandboxd.state.hung) return false;
      if (fault || sandboxd.state.broken) call.answer = failureOf(effect);
      else if (effect.kind === "list") {
        const lags = world.faults && random.chance(world.plan.faultChance);
        const rows = lags ? sandboxd.staleList(random) : sandboxd.remember(sandboxd.list());
        call.answer = { type: "listed", effect, result: { ok: true, rows } };
      } else {
        for (const late of sandboxd.late) if (late.effect.key === effect.key) late.heard = true;
        call.answer = { type: "found", effect, result: { ok: true, rows: sandboxd.list(effect.key) } };
      }
      return true;
    }
    case "read":
      if (sandboxd.state.hung) return false;
      call.answer =
        fault || sandboxd.state.broken
          ? failureOf(effect)
          : { type: "read", effect, result: sandboxd.read(effect.id) };
      return true;
    case "release":
    case "hibernate":
    case "wake":
    case "renew":
      if (sandboxd.state.hung) return false;
      call.answer =
        fault || sandboxd.state.broken
          ? failureOf(effect)
          : { type: "called", effect, result: sandboxd.call(effect, now, random) };
      return true;
    case "ask": {
      const name = effect.owner?.name ?? "";
      const owner = fault
        ? random.chance(0.5)
          ? { kind: "not_found" as const, named: false }
          : { kind: "failed" as const, why: "the API server did not answer" }
        : effect.owner === undefined
          ? cluster.readBarePod(effect.key)
          : cluster.readOwner(name);
      const pod = effect.withPod
        ? fault
          ? { kind: "failed" as const, why: "the API server did not answer" }
          : cluster.readPod(effect.key)
        : undefined;
      call.answer = { type: "asked", effect, owner, pod };
      return true;
    }
    case "publish":
      call.answer = fault
        ? failureOf(effect)
        : {
            type: "called",
            effect,
            result: cluster.patch(effect.key, effect.uid, effect.status, effect.claimId, effect.address),
          };
      return true;
    case "finalize": {
      if (fault) {
        call.answer = failureOf(effect);
        return true;
      }
      if (effect.status !== undefined) cluster.patch(effect.key, effect.uid, effect.status, "", "");
      call.answer = { type: "called", effect, result: cluster.deleteNow(effect.key, effect.uid) };
      return true;
    }
    case "evict":
      call.answer = fault
        ? failureOf(effect)
        : { type: "called", effect, result: cluster.deleteNow(effect.key, effect.uid) };
      return true;
  }
}

/** Takes note of a VM that was granted while the clock was stepped: it cannot be told from an older one. */
export function granted(world: World, id: string, intent: Intent): void {
  const vm = world.sandboxd.vms.get(id);
  if (vm === undefined) return;
  const { owner } = intent;
  vm.forged = owner !== undefined && world.cluster.lives.get(owner.uid)?.name !== owner.name;
  if (vm.claimedAtMs < intent.atMs - 1_000) {
    vm.unfindable = "the clock was set back between intent and claim";
  }
}

/** The answer of a call that failed on the way. */
export function failureOf(effect: Effect): Event {
  const why = "connection reset";
  switch (effect.kind) {
    case "claim":
      return {
        type: "claimed",
        effect,
        result: { ok: false, lost: true, cause: { kind: "timeout", message: "sandboxd did not answer" } },
      };
    case "find":
      return { type: "found", effect, result: { ok: false, why } };
    case "list":
      return { type: "listed", effect, result: { ok: false, why } };
    case "read":
      return { type: "read", effect, result: { ok: false, absent: false, why } };
    case "ask":
      return { type: "asked", effect, owner: { kind: "failed", why }, pod: { kind: "failed", why } };
    default:
      return { type: "called", effect, result: { ok: false, kind: "failed", why } };
  }
}

/** Whether a Pod of this phase has come to its end. */
export function isEnd(phase: unknown): boolean {
  return phase === "Failed" || phase === "Succeeded";
}

/** Phase of a Pod as the process knows it: from the watch, or from its own later push. */
export function phaseTold(process: Process, uid: string): string | undefined {
  const pod = process.told.get(uid);
  const pushed = process.pushed.get(uid);
  if (pod === undefined) return undefined;
  return pushed !== undefined && pushed.version >= Number(pod.resourceVersion) ? pushed.phase : pod.phase;
}

/** Gives the answer of a call to the core. */
export function answer(world: World, call: InFlight, event: Event): void {
  const { process } = world;
  if (process === undefined) return;
  if (call.answer !== undefined && call.answer !== event) process.tooLate.push(call.answer);
  process.inFlight.splice(process.inFlight.indexOf(call), 1);
  process.lastAnswer = event;
  if (event.type === "called" && call.effect.kind === "evict" && event.result.ok) {
    process.evicted.add(call.effect.uid);
  }
  if (event.type === "called" && call.effect.kind === "publish" && event.result.ok) {
    const { uid, status } = call.effect;
    const version = Number(event.result.resourceVersion);
    process.heardTo = world.cluster.log.length;
    // An end that was pushed to a Pod which a list lacked is not remembered either.
    const phase = String(status.phase);
    if (!process.lacking || !isEnd(phase)) process.pushed.set(uid, { version, phase });
  }
  deliver(world, event);
}

// ---- time -------------------------------------------------------------------------------------------

/** Lets time pass; what must have happened by then, happens. */
export function advanceTo(world: World, monoMs: number): void {
  const { sandboxd } = world;
  for (;;) {
    const due = sandboxd.late.find((late) => late.limitMs <= monoMs && !sandboxd.state.hung);
    if (due === undefined) break;
    world.monoMs = Math.max(world.monoMs, Math.min(due.limitMs, monoMs));
    finishLate(world, due, world.random.chance(0.5));
  }
  world.monoMs = Math.max(world.monoMs, monoMs);
  sandboxd.reap(wallMs(world));
}

/** sandboxd grants or abandons a claim whose caller has gone. */
export function finishLate(world: World, late: ModelSandboxd["late"][number], grants: boolean): void {
  const { sandboxd } = world;
  sandboxd.late = sandboxd.late.filter((other) => other !== late);
  if (!grants || !sandboxd.state.warm) return;
  const vm = sandboxd.grant(late.effect, late.intent, wallMs(world));
  granted(world, vm.id, late.intent);
  if (late.forgotten) vm.unfindable = "the disk forgot it";
  world.trace?.(`  sandboxd grants ${vm.id} late, for ${late.effect.key}`);
}

// ---- words ------------------------------------------------------------------------------------------

export function describeEffect(effect: Effect): string {
  const id = "id" in effect ? ` ${effect.id}` : "";
  const key = "key" in effect ? ` ${effect.key}` : "";
  const uid = "uid" in effect ? ` ${effect.uid}` : "";
  const status = effect.kind === "publish" ? ` ${effect.status.phase}/${effect.status.reason ?? ""}` : "";
  const owner = effect.kind === "ask" ? ` ${effect.owner?.uid ?? "bare Pod"}` : "";
  return `${effect.kind}#${effect.seq}${key}${uid}${id}${status}${owner}`;
}

function describeChange(change: Change): string {
  const at = "key" in change ? change.key : change.id;
  if (change.value === null) return `${change.kind} ${at} gone`;
  const value = change.value;
  if ("row" in value) return `${change.kind} ${at} (${value.key})`;
  if ("id" in value)
    return `${change.kind} ${at} = ${value.id} for ${value.podUID} of ${value.authority || "nobody"}`;
  return `${change.kind} ${at} for ${value.podUID}`;
}

export function describeEvent(event: Event): string {
  switch (event.type) {
    case "pod": {
      const { pod } = event;
      return `pod ${pod.key} ${pod.uid} v${pod.resourceVersion} ${pod.phase}${pod.deleting ? " deleting" : ""} ${pod.claimId} of ${pod.owner?.uid ?? "nobody"}`;
    }
    case "podGone":
      return `podGone ${event.key} ${event.uid}`;
    case "relist":
    case "synced":
    case "tick":
      return event.type;
    case "asked":
      return `asked ${describeEffect(event.effect)}: ${JSON.stringify(event.owner)} ${JSON.stringify(event.pod ?? null)}`;
    case "listed":
    case "found":
      return `${event.type} ${describeEffect(event.effect)}: ${event.result.ok ? event.result.rows.map((row) => row.id).join(",") : "failed"}`;
    default:
      return `${event.type} ${describeEffect(event.effect)}: ${JSON.stringify(event.result)}`;
  }
}

/**
 * The seeded simulator: runs the decision core, and the real store, through random interleavings of what
 * people, controllers, servers, disks and clocks do, and checks the invariants after every step. A seed
 * always gives the same run; a run that fails is a list of actions that can be replayed and shrunk.
 */
import { actions, isDoomed, unhang } from "./actions.ts";
import type { Coverage } from "./coverage.ts";
import { checkEnd, createChecks } from "./invariants.ts";
import { ACTIONS, type ActionName, type Plan, planOf } from "./plan.ts";
import { createRandom } from "./random.ts";
import {
  advanceTo,
  answer,
  beginRelist,
  createWorld,
  deliver,
  deliverWatch,
  describeEvent,
  failureOf,
  finishLate,
  serve,
  startProcess,
  Violation,
  type World,
} from "./world.ts";

/** One action that took place, with the randomness it used. */
export interface Step {
  action: ActionName;
  random: number;
}

export interface RunResult {
  /** What was violated; absent when all is well. */
  violation?: string;
  steps: Step[];
  /** Events given to the core. */
  events: number;
}

export interface RunOptions {
  coverage?: Coverage;
  trace?: (line: string) => void;
}

/** Choices per step: most of what might happen cannot happen just then. */
const TRIES = 10;

/** Fails a run that does not come to rest. */
const QUIET_ROUNDS_MAX = 20_000;

/** Runs a seed from beginning to end. */
export function runSeed(seed: number, options: RunOptions & { realStore?: boolean } = {}): RunResult {
  const plan = planOf(seed, options.realStore);
  const choose = createRandom(seed ^ 0x5bd1e995);
  const { names, bounds, total } = wheelOf(plan);
  const steps: Step[] = [];
  return run(plan, options, steps, (world) => {
    for (let at = 0; at < plan.steps * TRIES && steps.length < plan.steps; at++) {
      const x = choose.float() * total;
      let low = 0;
      while ((bounds[low] ?? total) <= x && low < names.length - 1) low++;
      const action = names[low] ?? "tick";
      const random = choose.u32();
      steps.push({ action, random });
      if (!take(world, action, random)) steps.pop();
    }
  });
}

/** Runs a list of actions under a seed's plan; what cannot happen at its turn is passed over. */
export function replay(plan: Plan, steps: readonly Step[], options: RunOptions = {}): RunResult {
  const taken: Step[] = [];
  return run(plan, options, taken, (world) => {
    for (const step of steps) {
      taken.push(step);
      if (!take(world, step.action, step.random)) taken.pop();
    }
  });
}

function wheelOf(plan: Plan): { names: ActionName[]; bounds: number[]; total: number } {
  const names: ActionName[] = [];
  const bounds: number[] = [];
  let total = 0;
  for (const name of ACTIONS) {
    if (plan.weights[name] <= 0) continue;
    total += plan.weights[name];
    names.push(name);
    bounds.push(total);
  }
  return { names, bounds, total };
}

function run(plan: Plan, options: RunOptions, steps: Step[], body: (world: World) => void): RunResult {
  let events = 0;
  try {
    const world = createWorld(plan, createChecks);
    world.trace = options.trace;
    const { coverage, trace } = options;
    if (coverage !== undefined) world.onNote = coverage.said;
    if (coverage !== undefined || trace !== undefined) {
      world.onEvent = (event) => {
        coverage?.hit(world, event);
        trace?.(`  > ${describeEvent(event)}`);
      };
    }
    try {
      body(world);
      settle(world);
      checkEnd(world);
    } finally {
      events = world.events;
    }
    return { steps, events };
  } catch (error) {
    const violation = error instanceof Violation ? error.message : `${(error as Error).stack ?? error}`;
    return { violation, steps, events };
  }
}

function take(world: World, action: ActionName, random: number): boolean {
  world.random.reseed(random);
  world.trace?.(action);
  const taken = actions[action](world);
  if (taken) world.checks.step();
  return taken;
}

/**
 * The faults end, controllers finish what they were at, every call is answered, and time goes on until
 * everything that was going to happen has happened.
 */
function settle(world: World): void {
  const { sandboxd, cluster, plan } = world;
  world.trace?.("settle");
  world.random.reseed(plan.seed);
  world.faults = false;
  world.diskFails = false;
  world.deathIn = 0;
  unhang(world);
  Object.assign(sandboxd.state, { warm: true, draining: false, broken: false });
  for (const late of sandboxd.late) finishLate(world, late, true);
  for (const pod of [...cluster.pods.values()]) {
    const elsewhere =
      pod.spec.nodeName !== plan.options.nodeName && pod.metadata.deletionTimestamp === undefined;
    if (elsewhere) cluster.setStatus(pod, { phase: "Running" });
  }
  // Leases that end while all comes to rest would never let it.
  for (const vm of sandboxd.alive) vm.deadlineMs = 0;
  sandboxd.state.endless = true;
  if (!plan.stuckOwners) {
    for (const owner of [...cluster.owners.values()]) if (owner.deleting) cluster.endOwner(owner);
  }
  if (world.process === undefined) startProcess(world);
  const { process } = world;
  if (process === undefined) throw new Violation("the process does not start");
  const { relisting } = process;
  if (relisting === undefined ? process.watchBroken : !relisting.complete)
    beginRelist(world, process, cluster.log.length);

  const { orphanScanMs = 0, recheckMaxMs = 0, claimSettleMs } = plan.options;
  const routineMs = orphanScanMs > 0 ? orphanScanMs : 60_000;
  const untilMs = world.monoMs + 3 * recheckMaxMs + 2 * claimSettleMs + 2 * routineMs + 20_000;
  for (let round = 0; ; round++) {
    if (round > QUIET_ROUNDS_MAX) throw new Violation("it does not come to rest");
    if (deliverWatch(world)) continue;
    const call = process.inFlight[0];
    if (call !== undefined) {
      if (call.answer === undefined && !serve(world, call)) answer(world, call, failureOf(call.effect));
      else if (call.answer !== undefined) answer(world, call, call.answer);
      continue;
    }
    let collected = false;
    for (const pod of cluster.pods.values()) {
      const deleting = pod.metadata.deletionTimestamp !== undefined;
      if (!deleting && isDoomed(world, pod))
        collected = cluster.markDeleting(`ns/${pod.metadata.name}`) || collected;
      if (deleting && pod.spec.nodeName !== plan.options.nodeName) cluster.remove(`ns/${pod.metadata.name}`);
    }
    if (collected) continue;
    const dueMs = process.provider.nextDueMs();
    if (dueMs > untilMs) break;
    advanceTo(world, dueMs);
    deliver(world, { type: "tick" });
  }
}

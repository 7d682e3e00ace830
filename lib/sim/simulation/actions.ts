import { CLAIM_ID_ANNOTATION } from "../../provider/pod.ts";
import { hasEnded, type OwnerLife, type PodShape, type RawPod } from "./cluster.ts";
import { accountForLoss, isTerminal } from "./invariants.ts";
import type { ActionName } from "./plan.ts";
import { TEMPLATES, type Vm } from "./sandboxd.ts";
import {
  advanceTo,
  answer,
  beginRelist,
  deliver,
  deliverLogged,
  deliverWatch,
  describeEffect,
  endProcess,
  failureOf,
  finishLate,
  serve,
  startProcess,
  Violation,
  type World,
  wallMs,
} from "./world.ts";

/** One thing that may happen. Returns false when it cannot happen now; it has then changed nothing. */
type Action = (world: World) => boolean;

const ANNOTATION = "sandbox.cocoonstack.io/";

function pick<T>(world: World, items: readonly T[]): T | undefined {
  return items[world.random.below(items.length)];
}

function anyName(world: World): string {
  return `p${world.random.below(world.plan.keys)}`;
}

function anyPod(world: World, fits: (pod: RawPod) => boolean = () => true): RawPod | undefined {
  return pick(world, [...world.cluster.pods.values()].filter(fits));
}

function anyOwner(world: World, fits: (life: OwnerLife) => boolean): OwnerLife | undefined {
  return pick(world, [...world.cluster.owners.values()].filter(fits));
}

function anyVm(world: World, fits: (vm: Vm) => boolean = () => true): Vm | undefined {
  return pick(world, [...world.sandboxd.alive].filter(fits));
}

function isHere(world: World, pod: RawPod): boolean {
  return pod.spec.nodeName === world.plan.options.nodeName;
}

function annotationsOf(world: World): Record<string, string> {
  const { random } = world;
  const annotations: Record<string, string> = {};
  annotations[`${ANNOTATION}template`] = random.chance(0.9) ? (pick(world, TEMPLATES) ?? "t1") : "unknown";
  if (random.chance(0.05)) delete annotations[`${ANNOTATION}template`];
  if (random.chance(0.05)) annotations[`${ANNOTATION}runtime`] = "other";
  if (random.chance(0.3)) annotations[`${ANNOTATION}net`] = random.chance(0.5) ? "egress" : "none";
  if (random.chance(0.2)) annotations[`${ANNOTATION}size`] = "large";
  if (random.chance(0.3)) annotations[`${ANNOTATION}ttl-seconds`] = String([3, 8, 30, 0][random.below(4)]);
  if (random.chance(0.2)) annotations[`${ANNOTATION}renew`] = "true";
  return annotations;
}

function createPod(
  world: World,
  name: string,
  owner: OwnerLife | undefined,
  elsewhere: boolean,
  forgedName?: string,
): boolean {
  if (world.cluster.pods.has(`ns/${name}`)) return false;
  const shape: PodShape = {
    owner,
    annotations: annotationsOf(world),
    restartNever: world.random.chance(0.1),
    elsewhere,
    containers: 1 + world.random.below(2),
    forgedName,
  };
  const pod = world.cluster.createPod("ns", name, shape);
  world.trace?.(`  Pod ${name} ${pod.metadata.uid} of ${owner?.uid ?? "nobody"} on ${pod.spec.nodeName}`);
  return true;
}

function markDeleting(world: World, pod: RawPod): boolean {
  const done = world.cluster.markDeleting(`ns/${pod.metadata.name}`);
  if (done) world.trace?.(`  ${pod.metadata.uid} gets a deletionTimestamp`);
  return done;
}

function removePod(world: World, pod: RawPod): void {
  world.trace?.(`  ${pod.metadata.uid} is removed at once`);
  world.cluster.remove(`ns/${pod.metadata.name}`);
}

export const actions: Record<ActionName, Action> = {
  deliver: deliverWatch,
  serve(world) {
    const call = pick(world, world.process?.inFlight.filter((call) => call.answer === undefined) ?? []);
    if (call === undefined || !serve(world, call)) return false;
    world.trace?.(`  served ${describeEffect(call.effect)}`);
    return true;
  },
  answer(world) {
    const call = pick(world, world.process?.inFlight.filter((call) => call.answer !== undefined) ?? []);
    if (call?.answer === undefined) return false;
    answer(world, call, call.answer);
    return true;
  },
  tick(world) {
    const dueMs = world.process?.provider.nextDueMs() ?? Number.POSITIVE_INFINITY;
    if (dueMs === Number.POSITIVE_INFINITY) return false;
    advanceTo(world, dueMs);
    deliver(world, { type: "tick" });
    return true;
  },
  advance(world) {
    // Time goes by while the process sleeps until its next timer.
    const dueMs = world.process?.provider.nextDueMs() ?? Number.POSITIVE_INFINITY;
    const untilMs = Math.min(world.monoMs + 1 + world.random.below(3_000), dueMs);
    if (untilMs <= world.monoMs) return false;
    advanceTo(world, untilMs);
    world.trace?.(`  time ${world.monoMs}`);
    return true;
  },
  background: (world) => world.process !== undefined && world.disk.background(world.random),
  start: (world) => world.process === undefined && startProcess(world),

  // ---- people and controllers
  createOwner(world) {
    const name = anyName(world);
    if (world.cluster.owners.has(name)) return false;
    const life = world.cluster.createOwner(name);
    world.trace?.(`  owner ${life.uid}`);
    return true;
  },
  createOwnedPod(world) {
    const owner = anyOwner(world, (life) => !hasEnded(life) && !life.suspended);
    const elsewhere = world.random.chance(world.plan.elsewhereChance);
    return owner !== undefined && createPod(world, owner.name, owner, elsewhere);
  },
  createBarePod: (world) => createPod(world, anyName(world), undefined, false),
  createPodElsewhere(world) {
    if (world.random.chance(0.4)) return createPod(world, anyName(world), undefined, true);
    const owner = anyOwner(world, (life) => !hasEnded(life) && !life.suspended);
    return owner !== undefined && createPod(world, owner.name, owner, true);
  },
  runElsewhere(world) {
    const pod = anyPod(world, (pod) => !isHere(world, pod) && pod.status.phase !== "Running");
    if (pod === undefined) return false;
    world.cluster.setStatus(pod, { phase: "Running" });
    return true;
  },
  deletePod(world) {
    const pod = anyPod(world, (pod) => pod.metadata.deletionTimestamp === undefined);
    if (pod === undefined) return false;
    if (isHere(world, pod)) return markDeleting(world, pod);
    removePod(world, pod);
    return true;
  },
  removePod(world) {
    const pod = anyPod(world);
    if (pod === undefined) return false;
    removePod(world, pod);
    return true;
  },
  deleteOwner(world) {
    const owner = anyOwner(world, (life) => !life.deleting);
    if (owner === undefined) return false;
    if (world.random.chance(0.4)) world.cluster.endOwner(owner);
    else owner.deleting = true;
    world.trace?.(`  owner ${owner.uid} ${owner.gone ? "is gone" : "is being deleted"}`);
    return true;
  },
  finishOwner(world) {
    const owner = anyOwner(world, (life) => life.deleting);
    if (owner === undefined) return false;
    world.cluster.endOwner(owner);
    world.trace?.(`  owner ${owner.uid} is gone`);
    return true;
  },
  expireOwner(world) {
    const owner = anyOwner(world, (life) => !hasEnded(life));
    if (owner === undefined) return false;
    owner.expired = true;
    world.trace?.(`  owner ${owner.uid} has expired`);
    return true;
  },
  suspendOwner(world) {
    const owner = anyOwner(world, (life) => !hasEnded(life) && !life.suspended);
    if (owner === undefined) return false;
    owner.suspended = owner.slept = true;
    const pod = world.cluster.pods.get(`ns/${owner.name}`);
    if (pod?.metadata.ownerReferences[0]?.uid === owner.uid) markDeleting(world, pod);
    world.trace?.(`  owner ${owner.uid} is suspended`);
    return true;
  },
  resumeOwner(world) {
    const owner = anyOwner(world, (life) => life.suspended);
    if (owner === undefined) return false;
    owner.suspended = false;
    world.trace?.(`  owner ${owner.uid} resumes`);
    return true;
  },
  /** The garbage collector and the Sandbox controller delete the Pods of owners that have ended. */
  collect(world) {
    const pod = anyPod(world, (pod) => pod.metadata.deletionTimestamp === undefined && isDoomed(world, pod));
    return pod !== undefined && markDeleting(world, pod);
  },
  evictAll(world) {
    let some = false;
    for (const pod of [...world.cluster.pods.values()])
      if (isHere(world, pod) && markDeleting(world, pod)) some = true;
    return some;
  },
  /** kube-controller-manager, when the Node was NotReady. */
  markNotReady(world) {
    const pod = anyPod(world, (pod) => isHere(world, pod) && pod.status.phase === "Running");
    if (pod === undefined) return false;
    world.cluster.setStatus(pod, { conditions: [{ type: "Ready", status: "False" }] });
    world.trace?.(`  ${pod.metadata.uid} is marked Ready=False`);
    return true;
  },
  editPod(world) {
    const pod = anyPod(world, (pod) => isHere(world, pod));
    if (pod === undefined) return false;
    world.cluster.annotate(pod, {
      [`${ANNOTATION}template`]: pick(world, TEMPLATES) ?? "t1",
      [`${ANNOTATION}runtime`]: "sandboxd",
    });
    return true;
  },
  /** Someone else says that a Pod has ended: the Pod garbage collector, or a person. */
  endPod(world) {
    const pod = anyPod(world, (pod) => isHere(world, pod) && !isTerminal(pod));
    const generation = pod && world.cluster.generations.get(pod.metadata.uid);
    if (pod === undefined || generation === undefined) return false;
    generation.ended = true;
    world.cluster.setStatus(pod, { phase: world.random.chance(0.5) ? "Failed" : "Succeeded" });
    world.trace?.(`  someone ends ${pod.metadata.uid}`);
    return true;
  },
  tamperClaimId(world) {
    const pod = anyPod(world, (pod) => isHere(world, pod));
    if (pod === undefined) return false;
    const id = anyVm(world)?.id ?? "sb_999";
    const generation = world.cluster.generations.get(pod.metadata.uid);
    if (generation !== undefined) generation.tampered = true;
    world.cluster.annotate(pod, { [CLAIM_ID_ANNOTATION]: world.random.chance(0.5) ? id : "sb_999" });
    world.trace?.(`  someone writes a claim-id on ${pod.metadata.uid}`);
    return true;
  },
  /** A controller adopts a Pod, or its owner goes and leaves it behind. */
  reparentPod(world) {
    const pod = anyPod(world, (pod) => isHere(world, pod) && pod.metadata.deletionTimestamp === undefined);
    if (pod === undefined) return false;
    const owner = world.cluster.owners.get(pod.metadata.name);
    const present = pod.metadata.ownerReferences[0]?.uid;
    const next = owner === undefined || hasEnded(owner) || owner.uid === present ? undefined : owner;
    if (present === next?.uid) return false;
    world.cluster.setOwner(pod, next);
    world.trace?.(`  ${pod.metadata.uid} now belongs to ${next?.uid ?? "nobody"}`);
    return true;
  },
  forgeOwner(world) {
    const pod = anyPod(world, (pod) => isHere(world, pod) && pod.metadata.deletionTimestamp === undefined);
    if (pod === undefined) return false;
    world.cluster.forgeOwner(pod);
    world.trace?.(`  ${pod.metadata.uid} is made to point at an owner that never was`);
    return true;
  },
  createForgedPod(world) {
    const owner = anyOwner(world, () => true);
    return owner !== undefined && createPod(world, owner.name, owner, false, "nobody");
  },

  // ---- the watch
  dropEvent(world) {
    const { process } = world;
    if (process === undefined || process.relisting !== undefined) return false;
    if (process.cursor >= world.cluster.log.length) return false;
    process.cursor++;
    process.watchBroken = true;
    world.trace?.("  an event is dropped");
    return true;
  },
  repeatEvent(world) {
    const { process } = world;
    if (process === undefined || process.relisting !== undefined) return false;
    const logged = world.cluster.log[process.cursor - 1];
    if (logged === undefined) return false;
    deliverLogged(world, logged);
    return true;
  },
  swapEvents(world) {
    const { process } = world;
    if (process === undefined || process.relisting !== undefined) return false;
    const first = world.cluster.log[process.cursor];
    const second = world.cluster.log[process.cursor + 1];
    if (first === undefined || second === undefined) return false;
    process.cursor += 2;
    process.watchBroken = true;
    deliverLogged(world, second);
    deliverLogged(world, first);
    return true;
  },
  /** A delete of a former generation that is still on its way, or anything else from this watch's past. */
  replayOldEvent(world) {
    const { process } = world;
    if (process === undefined || process.relisting !== undefined) return false;
    const age = world.random.below(process.cursor);
    const logged = age < process.cursor ? world.cluster.log[age] : undefined;
    if (logged === undefined || (logged.type === "object" && age < process.listedTo)) return false;
    deliverLogged(world, logged);
    return true;
  },
  relist(world) {
    if (world.process === undefined) return false;
    beginRelist(world, world.process, world.cluster.log.length);
    return true;
  },
  /** A list from a server that lags behind, though not behind what this watch has delivered. */
  relistStale(world) {
    const { process } = world;
    if (process === undefined) return false;
    const { length } = world.cluster.log;
    const from = Math.max(process.relisting?.end ?? process.cursor, process.heardTo);
    if (from >= length) return false;
    beginRelist(world, process, from + world.random.below(length - from));
    return true;
  },
  /** A list that lacks Pods, or all of them, and ends as if it were complete. */
  relistIncomplete(world) {
    if (world.process === undefined) return false;
    beginRelist(world, world.process, world.cluster.log.length, world.random.chance(0.5) ? 1 : 0.3);
    return true;
  },

  // ---- calls that fail
  loseAnswer(world) {
    const call = pick(world, world.process?.inFlight.filter((call) => call.answer !== undefined) ?? []);
    if (call === undefined) return false;
    answer(world, call, failureOf(call.effect));
    return true;
  },
  loseCall(world) {
    const call = pick(world, world.process?.inFlight.filter((call) => call.answer === undefined) ?? []);
    if (call === undefined) return false;
    const { effect, intent } = call;
    if (effect.kind === "claim" && intent !== undefined) {
      if (world.random.chance(0.3)) {
        // Refused before anything was sent.
        const cause = { kind: "unreachable" as const, message: "connection refused" };
        answer(world, call, { type: "claimed", effect, result: { ok: false, lost: false, cause } });
        return true;
      }
      const limitMs = world.monoMs + world.plan.options.claimSettleMs;
      world.sandboxd.late.push({ effect, intent, limitMs, heard: false });
    }
    answer(world, call, failureOf(effect));
    return true;
  },
  repeatAnswer(world) {
    const event = world.process?.lastAnswer;
    if (event === undefined) return false;
    deliver(world, event);
    return true;
  },

  /** The real answer of a call that was given up. */
  answerAfterAll(world) {
    const event = world.process?.tooLate.shift();
    if (event === undefined) return false;
    deliver(world, event);
    return true;
  },

  // ---- sandboxd
  killVm(world) {
    const vm = anyVm(world);
    if (vm === undefined) return false;
    world.sandboxd.end(vm);
    world.trace?.(`  ${vm.id} is killed`);
    return true;
  },
  foreignClaim(world) {
    const { random } = world;
    const claimRef = random.chance(0.7) ? `ns/${anyName(world)}` : random.chance(0.5) ? "" : "ns/other";
    const vm = world.sandboxd.create({
      claimRef,
      claimedAtMs: wallMs(world),
      template: pick(world, TEMPLATES),
      size: random.chance(0.8) ? "small" : "large",
      net: random.chance(0.8) ? "none" : "egress",
    });
    world.trace?.(`  someone else claims ${vm.id} for ${claimRef || "nothing"}`);
    return true;
  },
  foreignRelease(world) {
    const vm = anyVm(world, (vm) => !vm.ours);
    if (vm === undefined) return false;
    world.sandboxd.end(vm);
    return true;
  },
  rewriteDeadline(world) {
    const vm = anyVm(world);
    if (vm === undefined) return false;
    const { random } = world;
    vm.deadlineMs = random.chance(0.3) ? 0 : wallMs(world) + 500 + random.below(20_000);
    world.trace?.(`  the lease of ${vm.id} is rewritten`);
    return true;
  },
  exhaust: (world) => toggle(world, "warm", true, false),
  refill: (world) => toggle(world, "warm", false, true),
  drain: (world) => toggle(world, "draining", false, true),
  breakSandboxd: (world) => toggle(world, "broken", false, true),
  hang: (world) => toggle(world, "hung", false, true),
  recover(world) {
    const { state } = world.sandboxd;
    if (!state.broken && !state.hung && !state.draining) return false;
    unhang(world);
    state.broken = state.draining = false;
    world.trace?.("  sandboxd recovers");
    return true;
  },
  /** All its calls are cut off; its VMs stay. */
  restartSandboxd(world) {
    const calls = world.process?.inFlight.filter(
      ({ effect }) => !["ask", "publish", "finalize", "evict"].includes(effect.kind),
    );
    if (calls === undefined || calls.length === 0) return false;
    unhang(world);
    // A claim that was running is abandoned with the process that ran it.
    world.sandboxd.late = [];
    for (const call of calls) {
      if (!world.process?.inFlight.includes(call)) continue;
      answer(world, call, failureOf(call.effect));
    }
    return true;
  },
  hibernateByOperator(world) {
    const vm = anyVm(world, (vm) => !vm.hibernated && vm.net !== "egress");
    if (vm === undefined) return false;
    vm.hibernated = true;
    return true;
  },
  finishLateClaim(world) {
    const late = world.sandboxd.state.hung ? undefined : pick(world, world.sandboxd.late);
    if (late === undefined) return false;
    finishLate(world, late, world.random.chance(0.8));
    world.checks.step();
    return true;
  },

  // ---- time
  jumpToDeadline(world) {
    const vm = anyVm(world, (vm) => vm.deadlineMs > 0 && vm.deadlineMs < wallMs(world) + 60_000);
    if (vm === undefined) return false;
    const atMs = vm.deadlineMs - world.clockOffsetMs + world.random.below(3) - 1;
    const dueMs = world.process?.provider.nextDueMs() ?? Number.POSITIVE_INFINITY;
    if (atMs <= world.monoMs || atMs > dueMs) return false;
    advanceTo(world, atMs);
    return true;
  },
  stepClock(world) {
    const { random } = world;
    const stepMs = random.chance(0.5) ? 86_400_000 : random.below(120_000);
    world.clockOffsetMs += random.chance(0.5) ? stepMs : -stepMs;
    world.steppedAtMs = world.monoMs;
    world.trace?.(`  the clock is stepped to ${wallMs(world)}`);
    return true;
  },

  // ---- the process and its disk
  crash(world) {
    if (world.process === undefined) return false;
    world.trace?.("  kill -9");
    endProcess(world, "kill");
    return true;
  },
  crashInside(world) {
    if (world.process === undefined || world.deathIn > 0) return false;
    world.deathIn = 1 + world.random.below(6);
    return true;
  },
  stop(world) {
    if (world.process === undefined) return false;
    world.trace?.("  stopped");
    endProcess(world, "stop");
    return true;
  },
  powerCut(world) {
    if (world.process === undefined) return false;
    world.trace?.("  power cut");
    endProcess(world, "power");
    // Only the next process finds out what the disk kept.
    startProcess(world);
    accountForLoss(world);
    return true;
  },
  loseState(world) {
    if (world.process !== undefined) return false;
    world.trace?.("  the state file is lost");
    world.disk.lose();
    accountForLoss(world);
    return true;
  },
  failDisk(world) {
    if (world.diskFails) return false;
    world.diskFails = true;
    world.trace?.("  the disk fails");
    return true;
  },
  mendDisk(world) {
    if (!world.diskFails) return false;
    world.diskFails = false;
    world.trace?.("  the disk is mended");
    return true;
  },
  secondProcess(world) {
    if (world.process === undefined) return false;
    if (world.disk.trySecond()) throw new Violation("a second process got the table");
    return true;
  },
};

function toggle(world: World, what: keyof World["sandboxd"]["state"], from: boolean, to: boolean): boolean {
  if (world.sandboxd.state[what] !== from) return false;
  world.sandboxd.state[what] = to;
  world.trace?.(`  sandboxd ${what} = ${to}`);
  return true;
}

/** A hung sandboxd goes on: what it had been asked before anyone heard from it again takes its time. */
export function unhang(world: World): void {
  const { sandboxd, plan } = world;
  if (!sandboxd.state.hung) return;
  sandboxd.state.hung = false;
  for (const late of [...sandboxd.late]) {
    if (late.heard) finishLate(world, late, world.random.chance(0.5));
    else late.limitMs = world.monoMs + plan.options.claimSettleMs;
  }
}

/** Whether the Pod's owner no longer wants it. */
export function isDoomed(world: World, pod: RawPod): boolean {
  const uid = pod.metadata.ownerReferences[0]?.uid;
  const life = uid === undefined ? undefined : world.cluster.lives.get(uid);
  const forged = world.cluster.generations.get(pod.metadata.uid)?.forged;
  // The garbage collector deletes what points at an owner that is not there.
  if (uid !== undefined && (life === undefined || forged)) return true;
  return life !== undefined && (hasEnded(life) || life.suspended);
}

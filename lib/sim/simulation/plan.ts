import type { ProviderOptions } from "../../provider/provider.ts";
import { NODE } from "./cluster.ts";
import { createRandom } from "./random.ts";

/** What one seed is like: how big its world is, which options the provider runs with, and how often what happens. */
export interface Plan {
  seed: number;
  keys: number;
  steps: number;
  options: ProviderOptions & { claimSettleMs: number };
  /** The real store on a disk in memory, instead of a table that is durable by definition. */
  realStore: boolean;
  /** Chance that an answer of a server is a fault. */
  faultChance: number;
  /** The first table is one of an older provider: rows without authority. */
  oldTable: boolean;
  coarseTimes: boolean;
  /** Owners that are being deleted at the end stay so: a finalizer holds them. */
  stuckOwners: boolean;
  /** Chance that the scheduler puts a Pod on another node. */
  elsewhereChance: number;
  /** Weight of each action; 0 = it never happens under this seed. */
  weights: Record<ActionName, number>;
}

/** Base weights. What moves things on is common; what goes wrong is rare, and per seed scaled or left out. */
const BASE = {
  // What moves things on.
  deliver: 30,
  serve: 30,
  answer: 30,
  tick: 12,
  advance: 4,
  background: 3,
  start: 8,
  // People and controllers.
  createOwner: 3,
  createOwnedPod: 6,
  createBarePod: 2,
  createPodElsewhere: 1,
  runElsewhere: 3,
  deletePod: 3,
  removePod: 1,
  deleteOwner: 1.5,
  finishOwner: 1,
  expireOwner: 0.5,
  suspendOwner: 3,
  resumeOwner: 5,
  collect: 3,
  evictAll: 0.3,
  markNotReady: 1,
  editPod: 0.7,
  endPod: 0.2,
  tamperClaimId: 0.2,
  reparentPod: 0.3,
  forgeOwner: 0.2,
  createForgedPod: 0.3,
  // The watch.
  dropEvent: 1.2,
  repeatEvent: 0.5,
  swapEvents: 0.4,
  replayOldEvent: 0.5,
  relist: 0.5,
  relistStale: 0.3,
  relistIncomplete: 0.3,
  // Calls that fail.
  loseAnswer: 4,
  loseCall: 2,
  repeatAnswer: 0.5,
  answerAfterAll: 1,
  // sandboxd.
  killVm: 0.7,
  foreignClaim: 0.7,
  foreignRelease: 0.3,
  rewriteDeadline: 0.7,
  exhaust: 0.7,
  refill: 0.7,
  drain: 0.2,
  breakSandboxd: 0.3,
  hang: 0.3,
  recover: 1.5,
  restartSandboxd: 0.2,
  hibernateByOperator: 0.3,
  finishLateClaim: 1,
  // Time.
  jumpToDeadline: 0.7,
  stepClock: 0.1,
  // The process and its disk.
  crash: 0.7,
  crashInside: 1,
  stop: 0.2,
  powerCut: 0.15,
  loseState: 0.05,
  failDisk: 0.4,
  mendDisk: 1.5,
  secondProcess: 0.1,
};

export type ActionName = keyof typeof BASE;

export const ACTIONS = Object.keys(BASE) as ActionName[];

/** Actions that always keep their weight: without them nothing happens. */
const ALWAYS: ReadonlySet<string> = new Set([
  "deliver",
  "serve",
  "answer",
  "tick",
  "advance",
  "start",
  "createOwner",
  "createOwnedPod",
  "recover",
  "refill",
  "mendDisk",
]);

/**
 * The plan of a seed. Every seed leaves out some of what can go wrong and exaggerates some: faults that hide
 * one another are found that way (swarm testing).
 *
 * @param realStore forces the store; by default one seed in eight runs on the real one
 */
export function planOf(seed: number, realStore?: boolean): Plan {
  const random = createRandom(Math.imul(seed + 1, 0x9e3779b1));
  const weights = {} as Record<ActionName, number>;
  for (const name of ACTIONS) {
    const scale = ALWAYS.has(name) ? 1 : ([0, 0, 0.5, 1, 1, 3][random.below(6)] ?? 1);
    weights[name] = BASE[name] * scale;
  }
  return {
    seed,
    keys: 1 + random.below(4),
    steps: 60 + random.below(400),
    options: {
      nodeName: NODE,
      renewLeases: random.chance(0.2),
      releaseSupersededAfterMs: random.chance(0.3) ? 4_000 : 0,
      rescheduleAfterMs: random.chance(0.3) ? 1_500 : 0,
      orphanScanMs: random.chance(0.75) ? 5_000 : 0,
      claimSettleMs: 3_000,
      verifyMs: 2_000,
      recheckMinMs: 1_000,
      recheckMaxMs: 8_000,
      retryMinMs: 100,
      retryMaxMs: 2_000,
      poolFaultRetryMs: 5_000,
    },
    realStore: realStore ?? random.chance(0.125),
    faultChance: [0, 0.05, 0.2][random.below(3)] ?? 0,
    oldTable: random.chance(0.1),
    coarseTimes: random.chance(0.5),
    stuckOwners: random.chance(0.3),
    elsewhereChance: [0, 0, 0.1, 0.5][random.below(4)] ?? 0,
    weights,
  };
}

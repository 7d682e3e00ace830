import { hasAuthority } from "./authority.ts";
import {
  authorityOf,
  claimAxes,
  digestCovers,
  isLive,
  isNewer,
  isTerminal,
  mergeDigest,
  statusDigest,
  TTL_DEFAULT_SECONDS,
} from "./pod.ts";
import { type DeathReason, deadStatus, endedStatus, refusedStatus, runningStatus } from "./status.ts";
import type {
  Cause,
  Change,
  CurrentPod,
  Displaced,
  Effect,
  Event,
  Grant,
  Intent,
  Listed,
  Note,
  OwnerRef,
  OwnerState,
  PodStatus,
  PodView,
  ReadResult,
  Releasing,
  Row,
  Table,
} from "./types.ts";
import { verdict } from "./verdict.ts";

export interface ProviderOptions {
  nodeName: string;
  /** Renew every Pod's lease at half-life; a Pod's own annotation turns it on for itself. */
  renewLeases?: boolean;
  /** Release a superseded VM after this long; 0 = only report it. */
  releaseSupersededAfterMs?: number;
  /** Delete an owned Pod that was refused for capacity this long; 0 = never. */
  rescheduleAfterMs?: number;
  /** Interval of the orphan scan; 0 = no orphan reports (leases and lost VMs are still watched). */
  orphanScanMs?: number;
  /** How long after a lost reply sandboxd may still bring up the VM we asked for. */
  claimSettleMs?: number;
  /** Interval of the listing while rows are unverified. */
  verifyMs?: number;
  /** Owner re-check of a claim without a Pod: first delay, doubling to the last. */
  recheckMinMs?: number;
  recheckMaxMs?: number;
  /** Retries of claims, releases and API writes: first delay, doubling to the last. */
  retryMinMs?: number;
  retryMaxMs?: number;
  /** Retry of a template that sandboxd does not know: only a changed Pod or a new pool can help. */
  poolFaultRetryMs?: number;
  /** The IP in an owner_addr; empty when it holds a host name or nothing. Without it a wrong podIP is not noticed. */
  ipOf?: (address: string) => string;
}

/** What the core needs from around it. Nothing here may call back into `handle` before it returns. */
export interface ProviderPorts {
  /** Makes the changes durable and applies them to the table, both or neither. */
  commit(changes: Change[]): boolean;
  /** Starts an effect; its result comes back later as an event. */
  run(effect: Effect): void;
  /** Tells log, ledger, metrics and events. */
  note(note: Note): void;
  /** 0 ≤ x < 1, for jitter. */
  random(): number;
}

/** A claim as the outside may see it: no token. */
export interface ClaimView {
  key: string;
  id: string;
  podUID: string;
  authority: string;
  address: string;
  claimedAtMs: number;
  deadlineMs: number;
  state: "held" | "preserved" | "quarantined" | "displaced" | "releasing";
}

export interface Counts {
  pods: number;
  held: number;
  preserved: number;
  quarantined: number;
  displaced: number;
  releasing: number;
  intents: number;
  orphans: number;
  external: number;
}

export interface Provider {
  /**
   * Folds one event in and starts what follows from it. Never throws on any input event.
   *
   * @param nowMs wall clock, ms since the epoch: for leases and for what is written down
   * @param monotonicMs a clock that nobody steps: for every wait; the wall clock where there is none
   */
  handle(event: Event, nowMs: number, monotonicMs?: number): void;
  /** When the next `tick` is due, on the monotonic clock; Infinity when nothing waits. */
  nextDueMs(): number;
  counts(): Counts;
  /** Every claim of the table, without credentials. */
  claims(): Iterable<ClaimView>;
  /** Pods seen on this node. */
  pods(): Iterable<PodView>;
  /** Asks for a listing of sandboxd as soon as may be. */
  verify(nowMs: number, monotonicMs?: number): void;
}

/** A listing already asked for is given this long before the next one. */
const LIST_GAP_MS = 250;
/** A lost VM is noticed within this long when no orphan scan runs. */
const LIST_ROUTINE_MS = 60_000;
/** How much earlier than its intent a claim may look when claimed_at is cut to whole seconds. */
const CLAIMED_AT_SLACK_MS = 1_000;
/** A status that someone keeps overwriting is pushed again at most this fast at first. */
const REPUBLISH_CALM_MS = 60_000;
/** Pushes of one Pod within that time that do not wait: Pending, Running, and some corrections. */
const PUSHES_AT_ONCE = 5;

/** Foreign sandboxes told of one by one in one scan; the gauge counts the others too. */
const ORPHAN_NOTES_MAX = 200;

const OLDER_TABLE = "the table is older than the Pod, whose claim-id names another sandbox";

const CAPACITY_CAUSES: ReadonlySet<string> = new Set(["no_warm_capacity", "max_claims", "draining"]);

/** One owner re-check schedule, for a claim at its key or a displaced one. */
interface Recheck {
  askAtMs: number;
  delayMs: number;
  lastReason: string;
}

/**
 * Whether the VM sleeps: by somebody's hand, by ours, or perhaps by ours. What we put to sleep, or tried to,
 * is woken before a Pod runs in it, whatever a listing says: the call may have come through late.
 */
type Sleep = "awake" | "asleep" | "ours" | "tried";

/** The VM is confirmed gone. */
interface Death {
  reason: DeathReason;
  atMs: number;
  /** Number of the read that confirmed it. */
  seq: number;
}

/** The search for a claim whose reply was lost. */
interface Find {
  /**
   * By when sandboxd has finished or abandoned the claim; unset until it has answered anything since, because
   * one that hangs finishes nothing.
   */
  settledAtMs?: number;
  atMs: number;
  attempt: number;
  /** Nothing more can come of the intent: it only remains to close it. */
  over: boolean;
}

/** What the process knows about one Pod key beside the durable row and intent. */
interface Slot {
  key: string;
  pod?: PodView;
  /** How the last Pod went: its UID when the watch said DELETED, absent when a list lacked it. */
  goneUid?: string;
  /** Relist generation in which the Pod was last seen. */
  seenIn: number;
  busy?: Effect;
  dueAtMs: number;

  // The row's volatile side.
  /** Sequence number at which the row was committed: only a younger listing can deny it. */
  rowSeq: number;
  quarantined: boolean;
  sleep: Sleep;
  /** Its owner was just found suspended: the VM is to sleep once its Pod is out of the way. */
  sleepWanted: boolean;
  keepsRunning: boolean;
  leaseFromMs: number;
  /** Past its deadline and still listed: when to look again; 0 = not looked yet. */
  leaseCheckAtMs: number;
  leaseChecks: number;
  renewRefused: boolean;
  /** A listing lacked the row: confirm by reading it. */
  suspect: boolean;
  /** The VM is confirmed gone. */
  dead?: Death;
  recheck?: Recheck;
  /** Deletion of this Pod UID has been judged. */
  judgedUid?: string;
  /** Claims of this key that are on their way back to sandboxd. */
  releasing: string[];
  /** The Pod UID whose VM was judged or buried here: its claim-id leads nowhere any more. */
  settledUid?: string;
  /** UID of an owner that the Pod got later and that the API server does not confirm. */
  falseOwner?: string;

  // Claiming.
  cause?: Cause;
  attempt: number;
  retryAtMs: number;
  /** When a claim may be asked for again; Infinity: only a changed Pod can help. */
  claimAtMs: number;
  capacitySinceMs?: number;
  /** The Pod UID that was deleted so that its owner makes another: nothing is claimed for it any more. */
  evictedUid?: string;
  /** The Pod UID whose unknown former VM has been looked for and is settled as "never was". */
  neverRanUid?: string;
  /** The Pod's own former VM is confirmed gone, and no row is left to say so. */
  lostUid?: string;
  lostAtMs: number;
  /** Listing younger than this number answers what the slot waits for; 0 = waits for none. */
  needsListing: number;
  recover?: Listed;

  tentative?: Grant;
  find?: Find;

  // Publishing.
  ackedVersion: string;
  publishAttempt: number;
  publishAtMs: number;
  publishedAtMs: number;
  publishHeld: boolean;
  finalizedUid?: string;
  finalizeAttempt: number;
  finalizeAtMs: number;
}

/** A release under way. */
interface ReleaseState {
  busy?: Effect;
  attempt: number;
  atMs: number;
}

/** A displaced claim being asked about. */
interface DisplacedState extends Recheck {
  busy?: Effect;
  seq: number;
  suspect: boolean;
}

/**
 * The decision core. It holds what is known about each Pod key, and answers every event with durable
 * changes (committed synchronously), effects and notes. It does no I/O and knows no clock: a simulator can
 * run it through any interleaving, crash and fault.
 *
 * Rules: facts/provider-contract (Create, Delete, Leases, Restart). Per key at most one effect is in flight,
 * so events of one Pod are handled in order while no Pod waits for another's.
 *
 * @param table the durable table as loaded; `commit` changes it
 * @param ports what it acts through
 * @param nowMs wall clock at the start
 * @param monotonicMs the clock of all waits at the start; see `handle`
 */
export function createProvider(
  table: Table,
  given: ProviderPorts,
  options: ProviderOptions,
  nowMs: number,
  monotonicMs = nowMs,
): Provider {
  const {
    nodeName,
    renewLeases = false,
    releaseSupersededAfterMs = 0,
    rescheduleAfterMs = 0,
    orphanScanMs = 60_000,
    claimSettleMs = 10_000,
    verifyMs = 15_000,
    recheckMinMs = 10_000,
    recheckMaxMs = 600_000,
    retryMinMs = 500,
    retryMaxMs = 30_000,
    poolFaultRetryMs = 300_000,
    ipOf = () => "",
  } = options;

  /** Key of the row that holds a claim id: asked for every claim, so it must not cost a look at every row. */
  const keyOfRow = new Map<string, string>();
  for (const [key, row] of table.rows) keyOfRow.set(row.id, key);
  const ports: ProviderPorts = { ...given, commit: commitRows };

  const slots = new Map<string, Slot>();
  const releases = new Map<string, ReleaseState>();
  const displaced = new Map<string, DisplacedState>();
  /** What the orphan scan reported, by claim id, so that each transition is said once. */
  const reported = new Map<string, "orphan" | "external">();
  /** Slots whose claim could not be committed and was not returned yet. */
  let tentatives = 0;
  let seq = 0;
  let generation = 0;
  /** Between `relist` and `synced`: Pods come in any order. */
  let relisting = false;
  /** Newest version the watch has brought since the last list began. */
  let watchVersion = "";
  let synced = false;
  /** Wall clock, for what is written down and for leases. */
  let now = nowMs;
  /** Monotonic clock, for every wait: a stepped wall clock must neither hurry nor hold up anything. */
  let mono = monotonicMs;
  let listing: Effect | undefined;
  let listAtMs = Number.POSITIVE_INFINITY;
  let listedAtMs = Number.NEGATIVE_INFINITY;
  let listFailures = 0;
  let dueMs = Number.POSITIVE_INFINITY;

  for (const key of table.rows.keys()) {
    const slot = slotOf(key);
    slot.quarantined = true;
  }
  for (const key of table.intents.keys()) {
    slotOf(key).find = newFind();
  }
  for (const [id, entry] of table.releasing) {
    releases.set(id, { attempt: 0, atMs: mono });
    // A queue of the Go reference does not name the keys.
    if (entry.key !== "") slotOf(entry.key).releasing.push(id);
  }
  for (const id of table.displaced.keys()) {
    displaced.set(id, { askAtMs: mono, delayMs: 0, lastReason: "", seq: 0, suspect: false });
  }
  if (table.rows.size + table.displaced.size > 0) listAtMs = mono;
  if (orphanScanMs > 0) listAtMs = Math.min(listAtMs, mono + orphanScanMs);
  dueMs = mono;

  function slotOf(key: string): Slot {
    let slot = slots.get(key);
    if (slot === undefined) {
      slot = {
        key,
        seenIn: -1,
        dueAtMs: Number.POSITIVE_INFINITY,
        rowSeq: 0,
        quarantined: false,
        sleep: "awake",
        sleepWanted: false,
        keepsRunning: false,
        leaseFromMs: 0,
        leaseCheckAtMs: 0,
        leaseChecks: 0,
        renewRefused: false,
        suspect: false,
        releasing: [],
        attempt: 0,
        retryAtMs: 0,
        claimAtMs: 0,
        lostAtMs: 0,
        needsListing: 0,
        ackedVersion: "",
        publishAttempt: 0,
        publishAtMs: 0,
        publishedAtMs: Number.NEGATIVE_INFINITY,
        publishHeld: false,
        finalizeAttempt: 0,
        finalizeAtMs: 0,
      };
      slots.set(key, slot);
    }
    return slot;
  }

  // ---- small helpers -------------------------------------------------------------------------------

  function note(
    kind: Note["kind"],
    key: string,
    id: string,
    podUID: string,
    reason: string,
    cause?: Cause,
  ): void {
    ports.note({ kind, key, id, podUID, reason, cause: cause?.kind });
  }

  function backoff(attempt: number, minMs = retryMinMs, maxMs = retryMaxMs): number {
    const ceiling = Math.min(maxMs, minMs * 2 ** Math.min(attempt, 20));
    return Math.ceil(ceiling / 2 + (ceiling / 2) * ports.random());
  }

  function start<E extends Effect>(slot: Slot, effect: E): void {
    slot.busy = effect;
    ports.run(effect);
  }

  function waitUntil(slot: Slot, atMs: number): void {
    if (atMs < slot.dueAtMs) slot.dueAtMs = atMs;
    if (atMs < dueMs) dueMs = atMs;
  }

  /** Waits for a time of the wall clock, and looks at that clock again then. */
  function waitUntilTime(slot: Slot, atMs: number): void {
    waitUntil(slot, mono + Math.max(0, atMs - now));
  }

  function wantListing(slot: Slot | undefined): void {
    if (slot !== undefined && slot.needsListing === 0) slot.needsListing = seq + 1;
    const atMs = listFailures > 0 ? listAtMs : Math.max(mono, listedAtMs + LIST_GAP_MS);
    if (atMs < listAtMs) listAtMs = atMs;
  }

  function forgetRowState(slot: Slot): void {
    slot.quarantined = false;
    slot.sleep = "awake";
    slot.sleepWanted = false;
    slot.keepsRunning = false;
    slot.renewRefused = false;
    slot.suspect = false;
    slot.dead = undefined;
    slot.recheck = undefined;
    slot.needsListing = 0;
    slot.leaseFromMs = 0;
    slot.leaseCheckAtMs = 0;
    slot.leaseChecks = 0;
  }

  /** Commits, and keeps the index of rows by claim id. */
  function commitRows(changes: Change[]): boolean {
    const before: [string, string][] = [];
    for (const change of changes) {
      const row = change.kind === "row" ? table.rows.get(change.key) : undefined;
      if (row !== undefined && change.kind === "row") before.push([row.id, change.key]);
    }
    if (!given.commit(changes)) return false;
    for (const [id, key] of before) if (keyOfRow.get(id) === key) keyOfRow.delete(id);
    for (const change of changes) {
      if (change.kind === "row" && change.value !== null) keyOfRow.set(change.value.id, change.key);
    }
    return true;
  }

  function isHeld(id: string): boolean {
    if (keyOfRow.has(id) || table.releasing.has(id) || table.displaced.has(id)) return true;
    if (tentatives > 0) for (const slot of slots.values()) if (slot.tentative?.id === id) return true;
    return false;
  }

  // ---- one Pod key ---------------------------------------------------------------------------------

  /**
   * Looks at everything known about the key and takes the next step, if one can be taken now. Every branch
   * ends by starting one effect, by naming the time to look again, or with nothing left to do.
   */
  function next(slot: Slot): void {
    slot.dueAtMs = Number.POSITIVE_INFINITY;
    if (slot.busy !== undefined) return;
    if (slot.tentative !== undefined) return settleTentative(slot, slot.tentative);
    const intent = table.intents.get(slot.key);
    if (intent !== undefined) return findLost(slot, intent);
    const row = table.rows.get(slot.key);
    if (row !== undefined && slot.dead !== undefined) return bury(slot, row, slot.dead);
    if (row !== undefined && slot.suspect) {
      if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
      return start(slot, { kind: "read", seq: ++seq, key: slot.key, id: row.id });
    }
    const { pod } = slot;
    if (pod === undefined || pod.deleting) return leave(slot, pod, row);
    if (isTerminal(pod)) {
      // It is left alone, but it does not hide another's claim from its owner's end.
      if (row === undefined || row.podUID === pod.uid) return;
      if (!recheckOwner(slot, pod, row) && slot.sleepWanted) hibernate(slot, row);
      return;
    }
    slot.recheck = undefined;
    slot.sleepWanted = false;
    if (row !== undefined) return hold(slot, pod, row);
    return obtain(slot, pod);
  }

  /** A live Pod and a row at its key: adopt, publish, watch the lease; or displace. */
  function hold(slot: Slot, pod: PodView, row: Row): void {
    if (slot.quarantined) return wantListing(slot);
    const own = row.podUID === pod.uid;
    if (!own && row.authority !== "" && !hasAuthority(row, pod)) {
      return displace(slot, row, "a Pod of another owner has taken over the name");
    }
    if (!own && namesAnother(slot, pod, row.id)) {
      return displace(slot, row, OLDER_TABLE);
    }
    if (row.deadlineMs > 0 && now >= row.deadlineMs) {
      // The cached deadline is not the last word: an archive lifecycle moves leases on the node.
      checkLease(slot);
      if (!own && slot.leaseCheckAtMs === 0) return;
    }
    // What someone put to sleep under a running Pod is theirs to wake.
    const ran = own && pod.phase === "Running";
    if (slot.sleep !== "awake" && !(ran && slot.sleep === "asleep")) return wake(slot, pod, row);
    if (!own || row.authority === "") {
      const adopted = adopt(slot, pod, row);
      if (adopted !== undefined) hold(slot, pod, adopted);
      return;
    }
    slot.cause = undefined;
    slot.capacitySinceMs = undefined;
    if (publish(slot, pod, runningStatus(pod, row), row.id, row.address)) return;
    const owner = newOwner(slot, pod, row);
    if (owner !== undefined) return confirmOwner(slot, row, owner);
    if (row.deadlineMs === 0) return;
    if (now < row.deadlineMs) waitUntilTime(slot, row.deadlineMs);
    if ((renewLeases || pod.renew) && !slot.renewRefused && now < row.deadlineMs) renewInTime(slot, pod, row);
  }

  /** Writes down whose the row is now. Returns it, or undefined when that is not durable yet. */
  function adopt(slot: Slot, pod: PodView, row: Row): Row | undefined {
    if (slot.retryAtMs > mono) {
      waitUntil(slot, slot.retryAtMs);
      return undefined;
    }
    const adopted: Row = {
      ...row,
      podUID: pod.uid,
      authority: authorityOf(pod),
      owner: pod.owner,
      supersededAtMs: undefined,
    };
    if (!ports.commit([{ kind: "row", key: slot.key, value: adopted }])) {
      retryLater(slot, "the adoption could not be made durable");
      return undefined;
    }
    slot.attempt = 0;
    slot.keepsRunning = false;
    if (row.podUID !== pod.uid)
      note("adopted", slot.key, row.id, pod.uid, "the replacement Pod has the same owner");
    else if (row.authority !== "")
      note("adopted", slot.key, row.id, pod.uid, "its Pod has another owner now");
    return adopted;
  }

  /**
   * The controller that took the Pod over since its claim was made, when it still has to be confirmed. Its
   * reference alone is its writer's word: the row goes over to it once the API server knows such an object.
   */
  function newOwner(slot: Slot, pod: PodView, row: Row): OwnerRef | undefined {
    const { owner } = pod;
    if (owner === undefined || row.podUID !== pod.uid || row.authority === "") return undefined;
    return owner.uid === row.authority || owner.uid === slot.falseOwner ? undefined : owner;
  }

  function confirmOwner(slot: Slot, row: Row, owner: OwnerRef): void {
    if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
    start(slot, { kind: "ask", seq: ++seq, key: slot.key, id: row.id, owner, withPod: false });
  }

  function onOwnerConfirmed(slot: Slot, pod: PodView, row: Row, owner: OwnerRef, state: OwnerState): void {
    if (state.kind === "failed") slot.retryAtMs = mono + backoff(slot.attempt++);
    else if (state.kind === "found" && state.uid === owner.uid) adopt(slot, pod, row);
    else slot.falseOwner = owner.uid;
  }

  /** The VM sleeps: no Pod runs in it before it has been woken, and a Pod that waits for that says so. */
  function wake(slot: Slot, pod: PodView, row: Row): void {
    if (slot.cause !== undefined) {
      publish(slot, pod, refusedStatus({ ...pod, restartNever: false }, slot.cause), "", "");
      if (slot.busy !== undefined) return;
    }
    if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
    // Until it is answered, and if it is not, the VM may be awake or asleep.
    slot.sleep = "tried";
    start(slot, { kind: "wake", seq: ++seq, key: slot.key, id: row.id, token: row.token });
  }

  /** The Pod says that it ran with another claim than this one, and that has not been looked into yet. */
  function namesAnother(slot: Slot, pod: PodView, id: string): boolean {
    return pod.claimId !== "" && pod.claimId !== id && slot.neverRanUid !== pod.uid;
  }

  /** Past the deadline: list, and ask again ever more slowly while sandboxd still lists the row. */
  function checkLease(slot: Slot): void {
    if (slot.leaseCheckAtMs > mono) waitUntil(slot, slot.leaseCheckAtMs);
    else wantListing(slot);
  }

  function renewInTime(slot: Slot, pod: PodView, row: Row): void {
    if (slot.leaseFromMs === 0) slot.leaseFromMs = now;
    const halfLifeMs = Math.ceil((slot.leaseFromMs + row.deadlineMs) / 2);
    if (now < halfLifeMs) return waitUntilTime(slot, halfLifeMs);
    if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
    const axes = claimAxes(pod);
    const ttlSeconds = axes.ok && axes.axes.ttlSeconds > 0 ? axes.axes.ttlSeconds : TTL_DEFAULT_SECONDS;
    start(slot, { kind: "renew", seq: ++seq, key: slot.key, id: row.id, token: row.token, ttlSeconds });
  }

  /** The key now belongs to a Pod of another authority. The old claim waits beside it for its own verdict. */
  function displace(slot: Slot, row: Row, reason: string): void {
    if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
    const changes: Change[] = [
      { kind: "row", key: slot.key, value: null },
      { kind: "displaced", id: row.id, value: { key: slot.key, row } },
    ];
    if (!ports.commit(changes)) return retryLater(slot, "the old claim could not be set aside durably");
    note("displaced", slot.key, row.id, row.podUID, reason);
    displaced.set(row.id, {
      askAtMs: mono,
      delayMs: 0,
      lastReason: "",
      seq: slot.rowSeq,
      suspect: slot.suspect,
    });
    forgetRowState(slot);
    slot.attempt = 0;
    nextDisplaced(row.id);
    next(slot);
  }

  /** A live Pod without a row: find the VM it had, or claim one. */
  function obtain(slot: Slot, pod: PodView): void {
    const authority = authorityOf(pod);
    for (const [id, entry] of table.displaced) {
      if (entry.key !== slot.key) continue;
      const own = entry.row.podUID === pod.uid;
      if (!own && entry.row.authority !== "" && !hasAuthority(entry.row, pod)) continue;
      if (!own && namesAnother(slot, pod, id)) continue;
      const state = displaced.get(id);
      if (state?.busy !== undefined) return waitUntil(slot, mono + LIST_GAP_MS);
      const changes: Change[] = [
        { kind: "displaced", id, value: null },
        { kind: "row", key: slot.key, value: entry.row },
      ];
      if (!ports.commit(changes)) return retryLater(slot, "the claim could not be taken back durably");
      displaced.delete(id);
      forgetRowState(slot);
      slot.rowSeq = ++seq;
      slot.quarantined = true;
      return hold(slot, pod, entry.row);
    }
    if (slot.lostUid === pod.uid) {
      publish(slot, pod, deadStatus(pod, "SandboxLost", slot.lostAtMs), pod.claimId, "");
      return;
    }
    if (mayHaveRun(slot, pod)) return lookBack(slot, pod);
    if (slot.evictedUid === pod.uid) return;

    const parsed = claimAxes(pod);
    if (!parsed.ok) return refuse(slot, pod, parsed.cause);
    if (slot.cause?.kind === "bad_annotation") slot.cause = undefined;
    if (slot.cause !== undefined) {
      publish(slot, pod, refusedStatus(pod, slot.cause), "", "");
      if (slot.busy !== undefined || slot.publishHeld || pod.restartNever) return;
      if (overdueForReschedule(slot, pod)) {
        return start(slot, { kind: "evict", seq: ++seq, key: slot.key, uid: pod.uid });
      }
    }
    if (slot.claimAtMs > mono) return waitUntil(slot, slot.claimAtMs);
    const { template, net, size, ttlSeconds } = parsed.axes;
    const intent: Intent = {
      podUID: pod.uid,
      authority,
      owner: pod.owner,
      atMs: now,
      template,
      net,
      size,
    };
    if (!ports.commit([{ kind: "intent", key: slot.key, value: intent }])) {
      return refuse(slot, pod, {
        kind: "state_unwritable",
        message:
          "the claim table on this node cannot be written, so no sandbox is claimed: free disk space or repair --state-path",
      });
    }
    start(slot, { kind: "claim", seq: ++seq, key: slot.key, template, net, size, ttlSeconds });
  }

  function overdueForReschedule(slot: Slot, pod: PodView): boolean {
    if (rescheduleAfterMs === 0 || pod.owner === undefined || slot.capacitySinceMs === undefined)
      return false;
    const atMs = slot.capacitySinceMs + rescheduleAfterMs;
    if (mono >= atMs) return true;
    waitUntil(slot, atMs);
    return false;
  }

  /** Whether the Pod says that it ran here and that has not been looked into yet. */
  function mayHaveRun(slot: Slot, pod: PodView): boolean {
    if (pod.phase !== "Running" && pod.claimId === "") return false;
    return slot.neverRanUid !== pod.uid && slot.lostUid !== pod.uid;
  }

  /** This Pod's status or annotation says that it ran here, and no row knows of it (state lost or older). */
  function lookBack(slot: Slot, pod: PodView): void {
    if (slot.recover !== undefined) {
      if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
      return start(slot, { kind: "read", seq: ++seq, key: slot.key, id: slot.recover.id });
    }
    if (slot.suspect) {
      if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
      return start(slot, { kind: "read", seq: ++seq, key: slot.key, id: pod.claimId });
    }
    wantListing(slot);
  }

  function lookBackInListing(slot: Slot, pod: PodView, byId: Map<string, Listed>): void {
    const listed = pod.claimId === "" ? undefined : byId.get(pod.claimId);
    if (listed === undefined) {
      if (pod.claimId === "") return confirmNeverFound(slot, pod);
      slot.suspect = true;
      slot.retryAtMs = 0;
      return;
    }
    if (!mayRecover(slot, pod, listed)) return;
    slot.recover = listed;
    slot.retryAtMs = 0;
  }

  /** Whether the sandbox that the claim-id names is this Pod's to take back. */
  function mayRecover(slot: Slot, pod: PodView, listed: Listed): boolean {
    if (listed.claimRef === slot.key && !isHeld(listed.id)) return true;
    // Its namespace's users can write anything into the annotation.
    const reason = "the claim-id annotation names a sandbox claimed for another";
    note("unrecoverable", slot.key, listed.id, pod.uid, reason);
    confirmNeverFound(slot, pod);
    return false;
  }

  function confirmNeverFound(slot: Slot, pod: PodView): void {
    slot.suspect = false;
    slot.recover = undefined;
    if (pod.phase === "Running") {
      slot.lostUid = pod.uid;
      slot.lostAtMs = now;
      note(
        "lost",
        slot.key,
        pod.claimId,
        pod.uid,
        "the Pod ran here and sandboxd no longer knows its sandbox",
      );
    } else {
      slot.neverRanUid = pod.uid;
    }
  }

  function refuse(slot: Slot, pod: PodView, cause: Cause): void {
    const news = slot.cause?.kind !== cause.kind || slot.cause.message !== cause.message;
    slot.cause = cause;
    if (CAPACITY_CAUSES.has(cause.kind)) slot.capacitySinceMs ??= mono;
    else slot.capacitySinceMs = undefined;
    if (news) note("refused", slot.key, "", pod.uid, cause.message, cause);
    if (cause.kind === "bad_annotation") slot.claimAtMs = Number.POSITIVE_INFINITY;
    else if (cause.kind === "unknown_template")
      slot.claimAtMs = mono + backoff(0, poolFaultRetryMs, poolFaultRetryMs);
    else slot.claimAtMs = mono + backoff(slot.attempt++);
    if (publish(slot, pod, refusedStatus(pod, cause), "", "")) return;
    if (!pod.restartNever) waitUntil(slot, slot.claimAtMs);
  }

  function retryLater(slot: Slot, why: string): void {
    if (slot.attempt === 0)
      note("uncommitted", slot.key, table.rows.get(slot.key)?.id ?? "", slot.pod?.uid ?? "", why);
    slot.retryAtMs = mono + backoff(slot.attempt++);
    waitUntil(slot, slot.retryAtMs);
  }

  /** Pushes a status when the API's differs. Returns whether a push is under way or waits its turn. */
  function publish(slot: Slot, pod: PodView, status: PodStatus, claimId: string, address: string): boolean {
    const wanted = statusDigest(status, claimId === "" ? pod.claimId : claimId);
    const ip = address === "" ? "" : ipOf(address);
    const addressed = address === "" || (ip === "" ? pod.podIP !== "" : pod.podIP === ip);
    if (addressed && digestCovers(pod.digest, wanted)) return false;
    if (slot.publishHeld) return true;
    if (slot.publishAtMs > mono) {
      waitUntil(slot, slot.publishAtMs);
      return true;
    }
    start(slot, { kind: "publish", seq: ++seq, key: slot.key, uid: pod.uid, status, claimId, address });
    return true;
  }

  /** No live Pod at the key: judge the row, then let the Pod object go. */
  function leave(slot: Slot, pod: PodView | undefined, row: Row | undefined): void {
    slot.cause = undefined;
    slot.capacitySinceMs = undefined;
    if (row !== undefined && (pod !== undefined || synced)) {
      if (
        pod !== undefined &&
        row.podUID !== pod.uid &&
        slot.settledUid !== pod.uid &&
        mayHaveRun(slot, pod) &&
        namesAnother(slot, pod, row.id)
      ) {
        return displace(slot, row, OLDER_TABLE);
      }
      const owner = pod === undefined ? undefined : newOwner(slot, pod, row);
      if (owner !== undefined) return confirmOwner(slot, row, owner);
      if (recheckOwner(slot, pod, row)) return;
    }
    if (pod !== undefined) {
      const settled = row !== undefined || slot.settledUid === pod.uid || slot.finalizedUid === pod.uid;
      if (!settled && !isTerminal(pod) && mayHaveRun(slot, pod)) return lookBack(slot, pod);
      finalize(slot, pod);
      if (slot.finalizedUid !== pod.uid) return;
    }
    if (row !== undefined && slot.sleepWanted) hibernate(slot, row);
    if (pod !== undefined) return;
    if (row === undefined && !table.intents.has(slot.key) && slot.releasing.length === 0)
      slots.delete(slot.key);
  }

  /** Puts the VM of a suspended owner to sleep: one try for each time that its owner is asked. */
  function hibernate(slot: Slot, row: Row): void {
    slot.sleepWanted = false;
    if (slot.keepsRunning || (slot.sleep !== "awake" && slot.sleep !== "tried")) return;
    // Until it is answered, and if it is not, the VM may be awake or asleep.
    slot.sleep = "tried";
    start(slot, { kind: "hibernate", seq: ++seq, key: slot.key, id: row.id, token: row.token });
  }

  /** Asks about a row that no live Pod holds, at once and then ever more rarely. Returns whether the slot is now busy. */
  function recheckOwner(slot: Slot, pod: PodView | undefined, row: Row): boolean {
    const judgedNow = pod?.deleting ? slot.judgedUid === pod.uid : slot.recheck !== undefined;
    if (!judgedNow || (slot.recheck !== undefined && mono >= slot.recheck.askAtMs)) {
      if (judge(slot, pod, row)) return true;
    }
    if (slot.recheck !== undefined) waitUntil(slot, slot.recheck.askAtMs);
    if (row.deadlineMs > 0) {
      if (now >= row.deadlineMs) checkLease(slot);
      else waitUntilTime(slot, row.deadlineMs);
    }
    return false;
  }

  /** Starts the question that decides about a row without a live Pod. Returns whether the slot is now busy. */
  function judge(slot: Slot, pod: PodView | undefined, row: Row): boolean {
    if (slot.retryAtMs > mono) {
      waitUntil(slot, slot.retryAtMs);
      return true;
    }
    const owner = row.owner ?? (row.authority === "" ? pod?.owner : undefined);
    if (owner === undefined) {
      const endedUid = pod?.uid ?? slot.goneUid;
      const bare =
        row.authority === "" ? pod !== undefined && row.podUID === pod.uid : row.authority === row.podUID;
      if (bare && endedUid === row.podUID) {
        withdraw(slot, row, "the bare Pod was deleted");
        return true;
      }
      if (!bare) {
        preserved(slot, row, pod, "the claim names no authority that could be asked", 0);
        return false;
      }
    }
    start(slot, { kind: "ask", seq: ++seq, key: slot.key, id: row.id, owner, withPod: pod === undefined });
    return true;
  }

  function preserved(slot: Slot, row: Row, pod: PodView | undefined, reason: string, delayMs: number): void {
    if (pod !== undefined) slot.judgedUid = slot.settledUid = pod.uid;
    const before = slot.recheck;
    const nextDelayMs =
      delayMs > 0
        ? delayMs
        : before === undefined
          ? recheckMinMs
          : Math.min(recheckMaxMs, before.delayMs * 2);
    slot.recheck = { askAtMs: mono + nextDelayMs, delayMs: nextDelayMs, lastReason: reason };
    if (before?.lastReason !== reason) note("preserved", slot.key, row.id, row.podUID, reason);
  }

  /** Takes a claim off its key and queues its release. Returns whether that is durable. */
  function withdraw(slot: Slot, row: Row, reason: string): boolean {
    const entry: Releasing = { key: slot.key, row, reason };
    const changes: Change[] = [
      { kind: "row", key: slot.key, value: null },
      { kind: "releasing", id: row.id, value: entry },
    ];
    if (!ports.commit(changes)) {
      retryLater(slot, "the release could not be made durable");
      return false;
    }
    slot.attempt = 0;
    note("release_decided", slot.key, row.id, row.podUID, reason);
    slot.settledUid = row.podUID;
    forgetRowState(slot);
    beginRelease(slot, row.id);
    return true;
  }

  function finalize(slot: Slot, pod: PodView): void {
    if (slot.finalizedUid === pod.uid) return;
    // Another error keeps the Pod: whoever waits for its end waits for the VM's (contract: Delete, Release).
    if (slot.releasing.some((id) => concerns(pod, table.releasing.get(id)?.row))) return;
    if (slot.finalizeAtMs > mono) return waitUntil(slot, slot.finalizeAtMs);
    const status = pod.phase === "Running" ? endedStatus(pod, now) : undefined;
    start(slot, { kind: "finalize", seq: ++seq, key: slot.key, uid: pod.uid, status });
  }

  /** Whether the Pod, or its owner, is whose VM this was. */
  function concerns(pod: PodView, row: Row | undefined): boolean {
    return row !== undefined && (row.podUID === pod.uid || hasAuthority(row, pod));
  }

  /** The VM is confirmed gone: say so on the Pod it served, then forget the row. */
  function bury(slot: Slot, row: Row, dead: Death): void {
    const { pod } = slot;
    // Its Pod may be in the list that is still to come, and is to hear of it.
    if (pod === undefined && !synced) return;
    if (pod !== undefined && isLive(pod) && pod.uid === row.podUID) {
      if (publish(slot, pod, deadStatus(pod, dead.reason, dead.atMs, row), row.id, "")) return;
    }
    if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
    if (!ports.commit([{ kind: "row", key: slot.key, value: null }])) {
      return retryLater(slot, "the end of the sandbox could not be made durable");
    }
    slot.attempt = 0;
    slot.settledUid = row.podUID;
    forgetRowState(slot);
    next(slot);
  }

  function declareDead(slot: Slot, row: Row, readSeq: number): void {
    const expired = row.deadlineMs > 0 && now >= row.deadlineMs;
    slot.suspect = false;
    slot.dead = expired
      ? { reason: "SandboxLeaseExpired", atMs: row.deadlineMs, seq: readSeq }
      : { reason: "SandboxLost", atMs: now, seq: readSeq };
    note(
      expired ? "lease_expired" : "lost",
      slot.key,
      row.id,
      row.podUID,
      expired
        ? "the lease ended and sandboxd no longer lists it"
        : "sandboxd no longer lists it, before its deadline",
    );
  }

  // ---- claims whose reply was lost, and claims that could not be committed ---------------------------

  function settleTentative(slot: Slot, grant: Grant): void {
    if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
    start(slot, { kind: "release", seq: ++seq, key: slot.key, id: grant.id, token: grant.token });
  }

  function newFind(over = false): Find {
    return { atMs: mono, attempt: 0, over };
  }

  function findLost(slot: Slot, intent: Intent): void {
    slot.find ??= newFind();
    const { find, pod } = slot;
    if (slot.recover !== undefined) {
      if (slot.retryAtMs > mono) return waitUntil(slot, slot.retryAtMs);
      return start(slot, { kind: "read", seq: ++seq, key: slot.key, id: slot.recover.id });
    }
    if (slot.cause !== undefined && pod !== undefined && isLive(pod) && pod.uid === intent.podUID) {
      publish(slot, pod, refusedStatus({ ...pod, restartNever: false }, slot.cause), "", "");
      if (slot.busy !== undefined) return;
    }
    if (find.atMs > mono) return waitUntil(slot, find.atMs);
    if (!find.over) return start(slot, { kind: "find", seq: ++seq, key: slot.key });
    if (!ports.commit([{ kind: "intent", key: slot.key, value: null }])) {
      find.atMs = mono + backoff(find.attempt++);
      return waitUntil(slot, find.atMs);
    }
    slot.find = undefined;
    next(slot);
  }

  /**
   * sandboxd told what it holds under the key's claim_ref. Only what it tells once the lost claim is finished
   * or abandoned decides: before that, a lone candidate may be another's while ours is still being made.
   */
  function onFound(slot: Slot, intent: Intent, rows: Listed[] | undefined): void {
    const { find } = slot;
    if (find === undefined) return;
    if (rows === undefined) {
      find.atMs = mono + backoff(find.attempt++, retryMinMs, verifyMs);
      return;
    }
    if (find.settledAtMs === undefined) {
      find.settledAtMs = mono + claimSettleMs;
      find.atMs = find.settledAtMs;
      return;
    }
    const free = rows.filter((row) => row.claimRef === slot.key && !isHeld(row.id));
    const candidates = free.filter((row) => matches(row, intent));
    const [only] = candidates;
    if (candidates.length === 1 && only !== undefined) {
      slot.recover = only;
      slot.retryAtMs = 0;
      return;
    }
    for (const row of free) {
      const reason = "a sandbox with this claim_ref may be another's: it is left alone";
      note("unrecoverable", slot.key, row.id, intent.podUID, reason);
    }
    find.over = true;
  }

  /** Whether a sandbox may be what the intent asked for. */
  function matches(row: Listed, intent: Intent): boolean {
    return (
      row.claimedAtMs !== undefined &&
      row.claimedAtMs >= intent.atMs - slackOf(row.claimedAtMs) &&
      row.template === intent.template &&
      (intent.net === "" || row.net === intent.net) &&
      (intent.size === "" || row.size === intent.size)
    );
  }

  /** A root read answered for a VM we may recover: after a lost reply, or after a lost table. */
  function onRecoveryRead(slot: Slot, listed: Listed, result: ReadResult): void {
    const intent = table.intents.get(slot.key);
    const { pod } = slot;
    if (!result.ok) {
      if (result.absent) {
        slot.recover = undefined;
        if (slot.find !== undefined) slot.find.over = true;
        if (intent === undefined && pod !== undefined) confirmNeverFound(slot, pod);
      } else {
        if (slot.attempt === 0) {
          note(
            "unrecoverable",
            slot.key,
            listed.id,
            intent?.podUID ?? pod?.uid ?? "",
            `its credential could not be read: ${result.why}`,
          );
        }
        slot.retryAtMs = mono + backoff(slot.attempt++, retryMinMs, verifyMs);
      }
      return;
    }
    const from =
      intent ??
      (pod === undefined ? undefined : { podUID: pod.uid, authority: authorityOf(pod), owner: pod.owner });
    if (from === undefined || result.listed.claimRef !== slot.key || isHeld(listed.id)) {
      slot.recover = undefined;
      return;
    }
    const row: Row = {
      id: listed.id,
      token: result.token,
      address: result.address || addressOfPod(pod) || anyAddress(),
      podUID: from.podUID,
      authority: from.authority,
      owner: from.owner,
      claimedAtMs: result.listed.claimedAtMs ?? listed.claimedAtMs ?? intent?.atMs ?? now,
      deadlineMs: result.listed.deadlineMs,
    };
    const changes: Change[] = [{ kind: "row", key: slot.key, value: row }];
    if (intent !== undefined) changes.push({ kind: "intent", key: slot.key, value: null });
    if (!ports.commit(changes)) {
      slot.retryAtMs = mono + backoff(slot.attempt++);
      return;
    }
    forgetRowState(slot);
    slot.recover = undefined;
    slot.find = undefined;
    slot.attempt = 0;
    slot.retryAtMs = 0;
    slot.rowSeq = ++seq;
    slot.sleep = result.listed.hibernated ? "asleep" : "awake";
    keepListing();
    note(
      "recovered",
      slot.key,
      row.id,
      row.podUID,
      intent === undefined
        ? "claim-id and claim_ref match, and no row held it"
        : "the reply to its claim was lost",
    );
  }

  /** The address that the Pod was published with. */
  function addressOfPod(pod: PodView | undefined): string {
    const ip = pod?.podIP ?? "";
    return ip.includes(":") && !ip.startsWith("[") ? `[${ip}]` : ip;
  }

  /** owner_addr is the node's own: a recovered row that lacks it takes that of any other claim here. */
  function anyAddress(): string {
    for (const row of table.rows.values()) if (row.address !== "") return row.address;
    return "";
  }

  // ---- releases and displaced claims ----------------------------------------------------------------

  function beginRelease(slot: Slot, id: string): void {
    slot.releasing.push(id);
    releases.set(id, { attempt: 0, atMs: mono });
    nextRelease(id);
  }

  function nextRelease(id: string): void {
    const state = releases.get(id);
    const entry = table.releasing.get(id);
    if (state === undefined || entry === undefined || state.busy !== undefined) return;
    if (state.atMs > mono) {
      if (state.atMs < dueMs) dueMs = state.atMs;
      return;
    }
    state.busy = { kind: "release", seq: ++seq, key: entry.key, id, token: entry.row.token };
    ports.run(state.busy);
  }

  function onReleased(id: string, state: ReleaseState, ok: boolean, why: string): void {
    state.busy = undefined;
    const entry = table.releasing.get(id);
    if (entry === undefined) return;
    if (ok && ports.commit([{ kind: "releasing", id, value: null }])) {
      releases.delete(id);
      note("released", entry.key, id, entry.row.podUID, entry.reason);
      const slot = slots.get(entry.key);
      if (slot !== undefined) {
        slot.releasing = slot.releasing.filter((other) => other !== id);
        next(slot);
      }
      return;
    }
    if (state.attempt === 0) {
      note(
        "release_failed",
        entry.key,
        id,
        entry.row.podUID,
        ok ? "released, but that could not be made durable" : why,
      );
    }
    state.atMs = mono + backoff(state.attempt++);
    nextRelease(id);
  }

  function nextDisplaced(id: string): void {
    const state = displaced.get(id);
    const entry = table.displaced.get(id);
    if (state === undefined || entry === undefined || state.busy !== undefined) return;
    if (state.suspect) {
      state.busy = { kind: "read", seq: ++seq, key: entry.key, id };
      return ports.run(state.busy);
    }
    if (state.askAtMs > mono) {
      if (state.askAtMs < dueMs) dueMs = state.askAtMs;
      return;
    }
    state.busy = { kind: "ask", seq: ++seq, key: entry.key, id, owner: entry.row.owner, withPod: false };
    ports.run(state.busy);
  }

  function onDisplacedAsked(id: string, state: DisplacedState, entry: Displaced, owner: OwnerState): void {
    const judged = verdict(entry.row.authority, subjectOf(entry.row.owner), owner);
    if (judged.release) {
      const changes: Change[] = [
        { kind: "displaced", id, value: null },
        { kind: "releasing", id, value: { key: entry.key, row: entry.row, reason: judged.reason } },
      ];
      if (ports.commit(changes)) {
        displaced.delete(id);
        note("release_decided", entry.key, id, entry.row.podUID, judged.reason);
        return beginRelease(slotOf(entry.key), id);
      }
    } else if (state.lastReason !== judged.reason) {
      note("preserved", entry.key, id, entry.row.podUID, judged.reason);
      state.lastReason = judged.reason;
    }
    state.delayMs = state.delayMs === 0 ? recheckMinMs : Math.min(recheckMaxMs, state.delayMs * 2);
    state.askAtMs = mono + state.delayMs;
    nextDisplaced(id);
  }

  function dropDisplaced(id: string, state: DisplacedState, entry: Displaced, result: ReadResult): void {
    state.suspect = false;
    const absent = !result.ok && result.absent;
    if (!absent || !ports.commit([{ kind: "displaced", id, value: null }])) return nextDisplaced(id);
    displaced.delete(id);
    note("dropped", entry.key, id, entry.row.podUID, "sandboxd no longer lists it");
  }

  // ---- results -------------------------------------------------------------------------------------

  function onClaimed(
    slot: Slot,
    effect: Effect & { kind: "claim" },
    event: Event & { type: "claimed" },
  ): void {
    const intent = table.intents.get(slot.key);
    if (intent === undefined) return;
    const { result } = event;
    if (result.ok) {
      const { grant } = result;
      if (isHeld(grant.id)) {
        // One VM for two Pods would end with the first of them. Whose it is is known; that it is not this Pod's, too.
        slot.find = newFind();
        slot.cause = {
          kind: "bad_reply",
          message: `sandboxd granted sandbox ${grant.id}, which another Pod holds already; the claim is not taken and will be tried again`,
        };
        note("refused", slot.key, "", intent.podUID, slot.cause.message, slot.cause);
        return;
      }
      const row: Row = {
        id: grant.id,
        token: grant.token,
        address: grant.address,
        podUID: intent.podUID,
        authority: intent.authority,
        claimedAtMs: now,
        deadlineMs: grant.deadlineMs,
        owner: intent.owner,
      };
      const changes: Change[] = [
        { kind: "row", key: slot.key, value: row },
        { kind: "intent", key: slot.key, value: null },
      ];
      if (ports.commit(changes)) {
        forgetRowState(slot);
        slot.rowSeq = effect.seq;
        slot.leaseFromMs = now;
        slot.attempt = 0;
        slot.retryAtMs = 0;
        keepListing();
        note("claimed", slot.key, row.id, row.podUID, effect.template);
        return;
      }
      note(
        "uncommitted",
        slot.key,
        grant.id,
        intent.podUID,
        "the claim could not be made durable: it goes back to sandboxd",
      );
      slot.tentative = grant;
      tentatives++;
      slot.retryAtMs = 0;
      slot.cause = {
        kind: "state_unwritable",
        message:
          "the claim table on this node cannot be written, so the sandbox was returned: free disk space or repair --state-path",
      };
      return;
    }
    const { cause } = result;
    if (result.lost) {
      slot.find = newFind();
      const news = slot.cause?.kind !== cause.kind || slot.cause.message !== cause.message;
      slot.cause = cause;
      if (news) note("refused", slot.key, "", intent.podUID, cause.message, cause);
      return;
    }
    if (!ports.commit([{ kind: "intent", key: slot.key, value: null }])) slot.find = newFind(true);
    const { pod } = slot;
    if (pod !== undefined && isLive(pod) && pod.uid === intent.podUID) refuse(slot, pod, cause);
  }

  function onTentativeReleased(slot: Slot, ok: boolean, why: string): void {
    const grant = slot.tentative;
    if (grant === undefined) return;
    if (!ok) {
      if (slot.attempt === 0) note("release_failed", slot.key, grant.id, slot.pod?.uid ?? "", why);
      slot.retryAtMs = mono + backoff(slot.attempt++);
      return;
    }
    slot.tentative = undefined;
    tentatives--;
    note(
      "settled",
      slot.key,
      grant.id,
      slot.pod?.uid ?? "",
      "the sandbox that could not be committed was returned",
    );
    slot.claimAtMs = mono + backoff(slot.attempt++);
    slot.find = newFind(true);
  }

  function onAsked(
    slot: Slot,
    effect: Effect & { kind: "ask" },
    owner: OwnerState,
    current?: CurrentPod,
  ): void {
    const row = table.rows.get(slot.key);
    if (row === undefined || row.id !== effect.id) return;
    const { pod } = slot;
    const confirmed = pod === undefined ? undefined : newOwner(slot, pod, row);
    if (pod !== undefined && confirmed !== undefined && confirmed.uid === effect.owner?.uid) {
      return onOwnerConfirmed(slot, pod, row, confirmed, owner);
    }
    // An answer about somebody else, a reference that was to be confirmed, say, decides nothing here.
    if (row.authority !== "" && row.authority !== (effect.owner?.uid ?? row.podUID)) return;
    if (pod !== undefined && (isLive(pod) || (!pod.deleting && pod.uid === row.podUID))) return;
    const authority = row.authority !== "" ? row.authority : (effect.owner?.uid ?? row.podUID);
    const subject = subjectOf(effect.owner);
    const judged = verdict(authority, subject, owner);
    if (judged.release) {
      withdraw(slot, row, judged.reason);
      return;
    }
    if (pod === undefined && effect.owner !== undefined && supersede(slot, row, current)) return;
    preserved(slot, row, pod, judged.reason, 0);
    slot.sleepWanted = judged.suspended;
  }

  /** The owner's current Pod runs on another node: this VM serves nobody. Returns whether it is on its way out. */
  function supersede(slot: Slot, row: Row, current: CurrentPod | undefined): boolean {
    if (current === undefined || current.kind === "failed") return false;
    // A stranger's Pod of the same name says nothing about this owner's.
    const elsewhere =
      current.kind === "found" &&
      (current.ownerUid ?? row.authority) === row.authority &&
      current.nodeName !== "" &&
      current.nodeName !== nodeName &&
      current.running;
    if (!elsewhere) {
      if (row.supersededAtMs !== undefined) {
        ports.commit([{ kind: "row", key: slot.key, value: { ...row, supersededAtMs: undefined } }]);
      }
      return false;
    }
    const reason = `its owner's Pod runs on node ${current.nodeName} with claim ${current.claimId || "unknown"}`;
    if (row.supersededAtMs === undefined) {
      ports.commit([{ kind: "row", key: slot.key, value: { ...row, supersededAtMs: now } }]);
      note("superseded", slot.key, row.id, row.podUID, reason);
      return false;
    }
    // To destroy on it, it must be known whose that Pod is.
    if (current.ownerUid !== row.authority) return false;
    if (releaseSupersededAfterMs === 0 || now - row.supersededAtMs < releaseSupersededAfterMs) return false;
    return withdraw(slot, row, `superseded: ${reason}`);
  }

  function onRead(slot: Slot, effect: Effect & { kind: "read" }, result: ReadResult): void {
    if (slot.recover !== undefined && slot.recover.id === effect.id)
      return onRecoveryRead(slot, slot.recover, result);
    const row = table.rows.get(slot.key);
    if (row !== undefined && row.id === effect.id && slot.suspect) {
      if (result.ok) {
        slot.suspect = false;
        slot.attempt = 0;
        believe(slot, row, result.listed);
      } else if (result.absent) {
        slot.attempt = 0;
        slot.retryAtMs = 0;
        declareDead(slot, row, effect.seq);
      } else {
        slot.retryAtMs = mono + backoff(slot.attempt++, retryMinMs, verifyMs);
      }
      return;
    }
    const { pod } = slot;
    if (row === undefined && pod !== undefined && pod.claimId === effect.id && slot.suspect) {
      if (result.ok) {
        slot.suspect = false;
        if (mayRecover(slot, pod, result.listed)) {
          slot.recover = result.listed;
          onRecoveryRead(slot, result.listed, result);
        }
      } else if (result.absent) {
        slot.attempt = 0;
        slot.retryAtMs = 0;
        if (pod.phase === "Running") confirmNeverFound(slot, pod);
        else {
          // Only the annotation says that it ran; a VM that once was is not given again silently.
          slot.suspect = false;
          slot.lostUid = pod.uid;
          slot.lostAtMs = now;
          note(
            "lost",
            slot.key,
            pod.claimId,
            pod.uid,
            "the Pod's claim-id names a sandbox that sandboxd no longer knows",
          );
        }
      } else slot.retryAtMs = mono + backoff(slot.attempt++, retryMinMs, verifyMs);
    }
  }

  /** sandboxd knows the row: it may be adopted and published, and sandboxd's word about it counts. */
  function believe(slot: Slot, row: Row, listed: Listed): void {
    if (slot.sleep === "awake" || slot.sleep === "asleep")
      slot.sleep = listed.hibernated ? "asleep" : "awake";
    if (slot.quarantined) {
      slot.quarantined = false;
      note("vouched", slot.key, row.id, row.podUID, "sandboxd lists it");
    }
    moveDeadline(slot, row, listed.deadlineMs);
  }

  function moveDeadline(slot: Slot, row: Row, deadlineMs: number): void {
    if (row.deadlineMs === deadlineMs) return;
    if (ports.commit([{ kind: "row", key: slot.key, value: { ...row, deadlineMs } }])) {
      slot.leaseFromMs = 0;
      note(
        "lease_moved",
        slot.key,
        row.id,
        row.podUID,
        deadlineMs === 0 ? "kept for ever" : new Date(deadlineMs).toISOString(),
      );
    }
  }

  function onCalled(slot: Slot, effect: Effect, event: Event & { type: "called" }): void {
    const { result } = event;
    const row = table.rows.get(slot.key);
    switch (effect.kind) {
      case "publish": {
        const { pod } = slot;
        if (pod === undefined || pod.uid !== effect.uid) return;
        if (result.ok) {
          const version = result.resourceVersion ?? "";
          slot.ackedVersion = version;
          // What the watch has brought from after this push says more than the push itself.
          if (version === "" || !isNewer(pod.resourceVersion, version)) {
            const claimId = effect.claimId === "" ? pod.claimId : effect.claimId;
            slot.pod = {
              ...pod,
              claimId,
              phase: typeof effect.status.phase === "string" ? effect.status.phase : pod.phase,
              podIP: effect.address === "" ? pod.podIP : ipOf(effect.address) || pod.podIP || effect.address,
              digest: mergeDigest(pod.digest, statusDigest(effect.status, claimId)),
            };
          }
          // Someone who keeps overwriting it is answered ever more slowly.
          if (mono - slot.publishedAtMs > REPUBLISH_CALM_MS) slot.publishAttempt = 0;
          slot.publishAttempt++;
          const overdone = slot.publishAttempt - PUSHES_AT_ONCE;
          slot.publishAtMs = overdone < 0 ? 0 : mono + backoff(overdone);
          slot.publishedAtMs = mono;
          return;
        }
        if (result.kind === "gone") {
          slot.publishHeld = true;
          return;
        }
        if (slot.publishAttempt === 0)
          note("publish_failed", slot.key, effect.claimId, effect.uid, result.why);
        slot.publishAtMs = mono + backoff(slot.publishAttempt++);
        return;
      }
      case "finalize": {
        if (result.ok || result.kind === "gone") {
          slot.finalizedUid = effect.uid;
          slot.finalizeAttempt = 0;
          slot.finalizeAtMs = 0;
          note(
            "finalized",
            slot.key,
            "",
            effect.uid,
            result.ok ? "the Pod object was deleted" : "the Pod object was gone",
          );
          return;
        }
        if (slot.finalizeAttempt === 0)
          note(
            "publish_failed",
            slot.key,
            "",
            effect.uid,
            `the Pod object could not be deleted: ${result.why}`,
          );
        slot.finalizeAtMs = mono + backoff(slot.finalizeAttempt++);
        return;
      }
      case "evict": {
        if (result.ok) {
          note(
            "rescheduled",
            slot.key,
            "",
            effect.uid,
            "no capacity here: the Pod was deleted so that its owner makes another",
          );
          slot.capacitySinceMs = undefined;
          slot.evictedUid = effect.uid;
        } else {
          slot.capacitySinceMs = result.kind === "gone" ? undefined : mono;
        }
        return;
      }
      case "release":
        return onTentativeReleased(slot, result.ok || result.kind === "gone", result.ok ? "" : result.why);
      case "hibernate": {
        if (row === undefined || row.id !== effect.id) return;
        if (result.ok) {
          slot.sleep = "ours";
          note("hibernated", slot.key, row.id, row.podUID, "its Sandbox is suspended");
        } else if (result.kind === "refused") {
          slot.sleep = "awake";
          slot.keepsRunning = true;
          note(
            "hibernate_refused",
            slot.key,
            row.id,
            row.podUID,
            `it keeps running while suspended: ${result.why}`,
          );
        } else if (result.kind === "gone") slot.suspect = true;
        return;
      }
      case "wake": {
        if (row === undefined || row.id !== effect.id) return;
        if (result.ok) {
          slot.sleep = "awake";
          slot.attempt = 0;
          slot.retryAtMs = 0;
          note("woken", slot.key, row.id, row.podUID, "its Sandbox resumed");
        } else if (result.kind === "gone") slot.suspect = true;
        else {
          slot.retryAtMs = mono + backoff(slot.attempt++);
          const message = `sandbox ${row.id} is kept for this Pod and could not be woken: ${result.why}`;
          const cause: Cause = { kind: "provisioning_failed", message };
          if (slot.cause?.message !== message)
            note("refused", slot.key, row.id, slot.pod?.uid ?? row.podUID, message, cause);
          slot.cause = cause;
        }
        return;
      }
      case "renew": {
        if (row === undefined || row.id !== effect.id) return;
        if (result.ok) {
          const deadlineMs = result.deadlineMs ?? row.deadlineMs;
          slot.leaseFromMs = now;
          slot.retryAtMs = 0;
          slot.attempt = 0;
          if (deadlineMs !== row.deadlineMs) {
            ports.commit([{ kind: "row", key: slot.key, value: { ...row, deadlineMs } }]);
          }
          note(
            "renewed",
            slot.key,
            row.id,
            row.podUID,
            deadlineMs === 0 ? "kept for ever" : new Date(deadlineMs).toISOString(),
          );
        } else if (result.kind === "gone") slot.suspect = true;
        else if (result.kind === "refused") {
          slot.renewRefused = true;
          note("renew_refused", slot.key, row.id, row.podUID, result.why);
        } else slot.retryAtMs = mono + backoff(slot.attempt++);
        return;
      }
    }
  }

  // ---- listings ------------------------------------------------------------------------------------

  const routineMs = orphanScanMs > 0 ? orphanScanMs : LIST_ROUTINE_MS;

  /** There is something to watch over from now on. */
  function keepListing(): void {
    if (listing === undefined && listAtMs === Number.POSITIVE_INFINITY) listAtMs = mono + routineMs;
  }

  function startListing(): void {
    listing = { kind: "list", seq: ++seq };
    listedAtMs = mono;
    listAtMs = Number.POSITIVE_INFINITY;
    ports.run(listing);
  }

  function onListed(effect: Effect, rows: Listed[] | undefined): void {
    if (listing === undefined || effect.seq !== listing.seq) return;
    listing = undefined;
    if (rows === undefined) {
      listAtMs = mono + backoff(listFailures++, retryMinMs, verifyMs);
      return;
    }
    listFailures = 0;
    const byId = new Map<string, Listed>();
    for (const row of rows) byId.set(row.id, row);
    let waiting = false;
    for (const slot of slots.values()) {
      const row = table.rows.get(slot.key);
      const answered = slot.needsListing > 0 && slot.needsListing <= effect.seq;
      if (slot.needsListing > 0 && !answered) waiting = true;
      if (answered) slot.needsListing = 0;
      if (row === undefined) {
        const { pod } = slot;
        if (
          answered &&
          pod !== undefined &&
          !isTerminal(pod) &&
          slot.busy === undefined &&
          !table.intents.has(slot.key) &&
          mayHaveRun(slot, pod)
        ) {
          lookBackInListing(slot, pod, byId);
          next(slot);
        } else if (answered) next(slot);
        continue;
      }
      if (slot.rowSeq >= effect.seq) continue;
      const listed = byId.get(row.id);
      if (listed === undefined) {
        if (slot.dead === undefined && !slot.suspect) {
          slot.suspect = true;
          slot.retryAtMs = 0;
          note(
            "stale",
            slot.key,
            row.id,
            row.podUID,
            "ours, but sandboxd does not list it: it is read once more before anything follows",
          );
          next(slot);
        }
        continue;
      }
      const was = { quarantined: slot.quarantined, deadlineMs: row.deadlineMs };
      slot.suspect = false;
      if (slot.dead !== undefined && slot.dead.seq < effect.seq) slot.dead = undefined;
      believe(slot, row, listed);
      if (listed.deadlineMs > 0 && now >= listed.deadlineMs) {
        slot.leaseCheckAtMs = mono + backoff(slot.leaseChecks++, 1_000, verifyMs);
      } else {
        slot.leaseCheckAtMs = 0;
        slot.leaseChecks = 0;
      }
      if (was.quarantined || answered || was.deadlineMs !== listed.deadlineMs) next(slot);
    }
    for (const [id, state] of displaced) {
      if (state.seq >= effect.seq || byId.has(id)) continue;
      state.suspect = true;
      nextDisplaced(id);
    }
    if (orphanScanMs > 0) reportOrphans(byId);
    const held = table.rows.size + table.displaced.size > 0;
    const atMs = waiting
      ? mono + Math.min(1_000, verifyMs)
      : held || orphanScanMs > 0
        ? mono + routineMs
        : Number.POSITIVE_INFINITY;
    if (atMs < listAtMs) listAtMs = atMs;
  }

  /** The orphan scan tells, each transition once; it never releases (contract: orphan scan). */
  function reportOrphans(byId: Map<string, Listed>): void {
    const ours = new Set<string>();
    for (const row of table.rows.values()) ours.add(row.id);
    for (const id of table.releasing.keys()) ours.add(id);
    for (const id of table.displaced.keys()) ours.add(id);
    for (const slot of slots.values()) {
      if (slot.tentative !== undefined) ours.add(slot.tentative.id);
      if (slot.recover !== undefined) ours.add(slot.recover.id);
    }
    for (const id of reported.keys()) if (!byId.has(id) || ours.has(id)) reported.delete(id);
    let told = 0;
    for (const [id, listed] of byId) {
      if (ours.has(id) || (listed.claimRef !== "" && table.intents.has(listed.claimRef))) continue;
      const kind = listed.claimRef === "" ? "orphan" : "external";
      if (reported.get(id) === kind) continue;
      reported.set(id, kind);
      if (++told > ORPHAN_NOTES_MAX) continue;
      note(
        kind,
        listed.claimRef,
        id,
        "",
        kind === "orphan"
          ? "sandboxd lists it, no claim of ours and no claim_ref: a possible orphan"
          : "sandboxd lists it under a claim_ref that is not our claim",
      );
    }
  }

  // ---- events --------------------------------------------------------------------------------------

  /** Whether an event of the watch comes out of its order, from before what is known already. */
  function isLate(resourceVersion: string): boolean {
    if (watchVersion !== "" && isNewer(watchVersion, resourceVersion)) return !relisting;
    watchVersion = resourceVersion;
    return false;
  }

  function onPod(pod: PodView): void {
    if (isLate(pod.resourceVersion)) return;
    const slot = slotOf(pod.key);
    const before = slot.pod;
    slot.seenIn = generation;
    slot.publishHeld = false;
    if (before?.uid === pod.uid) {
      if (slot.ackedVersion !== "" && !isNewer(pod.resourceVersion, slot.ackedVersion)) {
        // An event from before our own push: its spec side counts, its status is older than what we know.
        slot.pod = {
          ...pod,
          phase: before.phase,
          podIP: before.podIP,
          claimId: before.claimId,
          digest: before.digest,
        };
      } else slot.pod = pod;
      if (faultChanged(before, pod)) slot.claimAtMs = 0;
    } else {
      slot.pod = pod;
      slot.goneUid = undefined;
      slot.needsListing = 0;
      slot.ackedVersion = "";
      slot.publishAttempt = 0;
      slot.publishAtMs = 0;
      slot.cause = undefined;
      slot.capacitySinceMs = undefined;
      slot.attempt = 0;
      slot.retryAtMs = 0;
      slot.claimAtMs = 0;
      slot.finalizeAttempt = 0;
      slot.finalizeAtMs = 0;
      if (table.rows.get(pod.key) === undefined) {
        slot.suspect = false;
        if (!table.intents.has(pod.key)) slot.recover = undefined;
      }
    }
    next(slot);
  }

  function faultChanged(a: PodView, b: PodView): boolean {
    return (
      a.runtime !== b.runtime ||
      a.template !== b.template ||
      a.net !== b.net ||
      a.size !== b.size ||
      a.ttl !== b.ttl
    );
  }

  function podLeft(slot: Slot, uid: string | undefined): void {
    slot.pod = undefined;
    slot.goneUid = uid;
    slot.retryAtMs = 0;
    slot.claimAtMs = 0;
    next(slot);
  }

  function handle(event: Event, atMs: number, atMonotonicMs = atMs): void {
    now = atMs;
    mono = atMonotonicMs;
    switch (event.type) {
      case "pod":
        return onPod(event.pod);
      case "podGone": {
        if (event.resourceVersion !== undefined) isLate(event.resourceVersion);
        const slot = slots.get(event.key);
        if (slot === undefined || (slot.pod !== undefined && slot.pod.uid !== event.uid)) return;
        return podLeft(slot, event.uid);
      }
      case "relist":
        generation++;
        relisting = true;
        watchVersion = "";
        return;
      case "synced": {
        synced = true;
        relisting = false;
        for (const slot of slots.values()) {
          if (slot.pod !== undefined && slot.seenIn !== generation) podLeft(slot, undefined);
          else if (slot.pod === undefined) next(slot);
        }
        return;
      }
      case "tick":
        return tick();
      case "listed":
        return onListed(event.effect, event.result.ok ? event.result.rows : undefined);
      default:
        return onResult(event);
    }
  }

  function onResult(event: Event & { effect: Effect }): void {
    const { effect } = event;
    if (effect.kind === "list") return;
    if (effect.kind === "release" || effect.kind === "ask" || effect.kind === "read") {
      const release = releases.get(effect.id);
      if (release?.busy?.seq === effect.seq && event.type === "called") {
        const { result } = event;
        return onReleased(
          effect.id,
          release,
          result.ok || result.kind === "gone",
          result.ok ? "" : result.why,
        );
      }
      const state = displaced.get(effect.id);
      const entry = table.displaced.get(effect.id);
      if (state?.busy?.seq === effect.seq && entry !== undefined) {
        state.busy = undefined;
        if (event.type === "asked") return onDisplacedAsked(effect.id, state, entry, event.owner);
        if (event.type === "read") return dropDisplaced(effect.id, state, entry, event.result);
        return;
      }
    }
    const slot = slots.get(effect.key);
    if (slot === undefined || slot.busy?.seq !== effect.seq) return;
    slot.busy = undefined;
    switch (event.type) {
      case "claimed":
        if (effect.kind === "claim") onClaimed(slot, effect, event);
        break;
      case "found": {
        const intent = table.intents.get(slot.key);
        if (intent !== undefined) onFound(slot, intent, event.result.ok ? event.result.rows : undefined);
        break;
      }
      case "read":
        if (effect.kind === "read") onRead(slot, effect, event.result);
        break;
      case "asked":
        if (effect.kind === "ask") onAsked(slot, effect, event.owner, event.pod);
        break;
      case "called":
        onCalled(slot, effect, event);
        break;
    }
    next(slot);
  }

  function tick(): void {
    dueMs = Number.POSITIVE_INFINITY;
    for (const slot of slots.values()) {
      if (slot.dueAtMs <= mono) next(slot);
      else if (slot.dueAtMs < dueMs) dueMs = slot.dueAtMs;
    }
    for (const id of releases.keys()) nextRelease(id);
    for (const id of displaced.keys()) nextDisplaced(id);
    // Last, so that it answers what has just been asked for.
    if (listing === undefined && listAtMs <= mono) startListing();
  }

  // Rows and intents on disk are looked at as soon as there is anything to look with.
  for (const slot of slots.values()) slot.dueAtMs = mono;

  function stateOf(slot: Slot | undefined): ClaimView["state"] {
    if (slot?.quarantined) return "quarantined";
    return slot?.pod === undefined || slot.pod.deleting ? "preserved" : "held";
  }

  function view(key: string, row: Row, state: ClaimView["state"]): ClaimView {
    const { id, podUID, authority, address, claimedAtMs, deadlineMs } = row;
    return { key, id, podUID, authority, address, claimedAtMs, deadlineMs, state };
  }

  return {
    handle,
    // While a listing is under way its answer leads on, not a timer.
    nextDueMs: () => (listing === undefined ? Math.min(dueMs, listAtMs) : dueMs),
    verify(atMs, atMonotonicMs = atMs) {
      now = atMs;
      mono = atMonotonicMs;
      wantListing(undefined);
    },
    counts() {
      const counts: Counts = {
        pods: 0,
        held: 0,
        preserved: 0,
        quarantined: 0,
        displaced: table.displaced.size,
        releasing: table.releasing.size,
        intents: table.intents.size,
        orphans: 0,
        external: 0,
      };
      for (const slot of slots.values()) if (slot.pod !== undefined) counts.pods++;
      for (const key of table.rows.keys()) {
        const state = stateOf(slots.get(key));
        if (state === "held" || state === "preserved" || state === "quarantined") counts[state]++;
      }
      for (const kind of reported.values()) {
        if (kind === "orphan") counts.orphans++;
        else counts.external++;
      }
      return counts;
    },
    *claims() {
      for (const [key, row] of table.rows) yield view(key, row, stateOf(slots.get(key)));
      for (const entry of table.displaced.values()) yield view(entry.key, entry.row, "displaced");
      for (const entry of table.releasing.values()) yield view(entry.key, entry.row, "releasing");
    },
    *pods() {
      for (const slot of slots.values()) if (slot.pod !== undefined) yield slot.pod;
    },
  };
}

/** A time with a fraction is exact: what it puts before the intent is another's, however close. */
function slackOf(claimedAtMs: number): number {
  return claimedAtMs % 1_000 === 0 ? CLAIMED_AT_SLACK_MS : 0;
}

function subjectOf(owner: OwnerRef | undefined): string {
  return owner === undefined ? "the bare Pod" : `${owner.kind} ${owner.name}`;
}

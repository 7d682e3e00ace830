import {
  authorityOf,
  claimAxes,
  digestCovers,
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
  /** Folds one event in and starts what follows from it. Never throws on any input event. */
  handle(event: Event, nowMs: number): void;
  /** When the next `tick` is due, in ms since the epoch; Infinity when nothing waits. */
  nextDueMs(): number;
  counts(): Counts;
  /** Every claim of the table, without credentials. */
  claims(): Iterable<ClaimView>;
  /** Pods seen on this node. */
  pods(): Iterable<PodView>;
  /** Asks for a listing of sandboxd as soon as may be. */
  verify(nowMs: number): void;
}

/** A listing already asked for is given this long before the next one. */
const LIST_GAP_MS = 250;
/** A lost VM is noticed within this long when no orphan scan runs. */
const LIST_ROUTINE_MS = 60_000;
/** sandboxd's claimed_at may be cut to whole seconds. */
const CLAIMED_AT_SLACK_MS = 1_000;
/** A status that someone keeps overwriting is pushed again at most this fast at first. */
const REPUBLISH_CALM_MS = 60_000;

const CAPACITY_CAUSES: ReadonlySet<string> = new Set(["no_warm_capacity", "max_claims", "draining"]);

/** One owner re-check schedule, for a claim at its key or a displaced one. */
interface Recheck {
  askAtMs: number;
  delayMs: number;
  lastReason: string;
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
  hibernated: boolean;
  keepsRunning: boolean;
  leaseFromMs: number;
  /** Past its deadline and still listed: when to look again; 0 = not looked yet. */
  leaseCheckAtMs: number;
  leaseChecks: number;
  renewRefused: boolean;
  /** A listing lacked the row: confirm by reading it. */
  suspect: boolean;
  /** The VM is confirmed gone. */
  dead?: { reason: DeathReason; atMs: number };
  recheck?: Recheck;
  /** Deletion of this Pod UID has been judged. */
  judgedUid?: string;
  /** A release of this Pod's claim is under way: its object waits. */
  releasingId?: string;
  releasingUid?: string;

  // Claiming.
  cause?: Cause;
  attempt: number;
  retryAtMs: number;
  capacitySinceMs?: number;
  /** The Pod UID whose unknown former VM has been looked for and is settled as "never was". */
  neverRanUid?: string;
  /** The Pod's own former VM is confirmed gone, and no row is left to say so. */
  lostUid?: string;
  lostAtMs: number;
  /** Listing younger than this number answers what the slot waits for; 0 = waits for none. */
  needsListing: number;
  recover?: Listed;

  tentative?: Grant;
  find?: { untilMs: number; atMs: number; attempt: number; reported: boolean };

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
 * @param nowMs when the process started, for recovery windows
 */
export function createProvider(
  table: Table,
  ports: ProviderPorts,
  options: ProviderOptions,
  nowMs: number,
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
  } = options;

  const slots = new Map<string, Slot>();
  const releases = new Map<string, ReleaseState>();
  const displaced = new Map<string, DisplacedState>();
  /** What the orphan scan reported, by claim id, so that each transition is said once. */
  const reported = new Map<string, "orphan" | "external">();
  let seq = 0;
  let generation = 0;
  let synced = false;
  let now = nowMs;
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
    slotOf(key).find = { untilMs: now + claimSettleMs, atMs: now, attempt: 0, reported: false };
  }
  for (const [id, entry] of table.releasing) {
    releases.set(id, { attempt: 0, atMs: now });
    const slot = slotOf(entry.key);
    slot.releasingId = id;
    slot.releasingUid = entry.row.podUID;
  }
  for (const id of table.displaced.keys()) {
    displaced.set(id, { askAtMs: now, delayMs: 0, lastReason: "", seq: 0, suspect: false });
  }
  if (table.rows.size + table.displaced.size > 0) listAtMs = now;
  if (orphanScanMs > 0) listAtMs = Math.min(listAtMs, now + orphanScanMs);
  dueMs = now;

  function slotOf(key: string): Slot {
    let slot = slots.get(key);
    if (slot === undefined) {
      slot = {
        key,
        seenIn: -1,
        dueAtMs: Number.POSITIVE_INFINITY,
        rowSeq: 0,
        quarantined: false,
        hibernated: false,
        keepsRunning: false,
        leaseFromMs: 0,
        leaseCheckAtMs: 0,
        leaseChecks: 0,
        renewRefused: false,
        suspect: false,
        attempt: 0,
        retryAtMs: 0,
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
    return ceiling / 2 + (ceiling / 2) * ports.random();
  }

  function start<E extends Effect>(slot: Slot, effect: E): void {
    slot.busy = effect;
    ports.run(effect);
  }

  function waitUntil(slot: Slot, atMs: number): void {
    if (atMs < slot.dueAtMs) slot.dueAtMs = atMs;
    if (atMs < dueMs) dueMs = atMs;
  }

  function wantListing(slot: Slot | undefined): void {
    if (slot !== undefined && slot.needsListing === 0) slot.needsListing = seq + 1;
    const atMs = listFailures > 0 ? listAtMs : Math.max(now, listedAtMs + LIST_GAP_MS);
    if (atMs < listAtMs) listAtMs = atMs;
    if (listAtMs < dueMs) dueMs = listAtMs;
  }

  function forgetRowState(slot: Slot): void {
    slot.quarantined = false;
    slot.hibernated = false;
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

  function isHeld(id: string): boolean {
    if (table.releasing.has(id) || table.displaced.has(id)) return true;
    for (const row of table.rows.values()) if (row.id === id) return true;
    for (const slot of slots.values()) if (slot.tentative?.id === id) return true;
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
      if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
      return start(slot, { kind: "read", seq: ++seq, key: slot.key, id: row.id });
    }
    const { pod } = slot;
    if (pod === undefined || pod.deleting) return leave(slot, pod, row);
    if (isTerminal(pod)) return;
    slot.recheck = undefined;
    if (row !== undefined) return hold(slot, pod, row);
    return obtain(slot, pod);
  }

  /** A live Pod and a row at its key: adopt, publish, watch the lease; or displace. */
  function hold(slot: Slot, pod: PodView, row: Row): void {
    if (slot.quarantined) return wantListing(slot);
    const authority = authorityOf(pod);
    const own = row.podUID === pod.uid;
    if (!own && row.authority !== "" && row.authority !== authority) {
      return displace(slot, pod, row, "a Pod of another owner has taken over the name");
    }
    if (!own && namesAnother(slot, pod, row.id)) {
      return displace(
        slot,
        pod,
        row,
        "the table is older than the Pod, whose claim-id names another sandbox",
      );
    }
    if (row.deadlineMs > 0 && now >= row.deadlineMs) {
      // The cached deadline is not the last word: an archive lifecycle moves leases on the node.
      checkLease(slot);
      if (!own && slot.leaseCheckAtMs === 0) return;
    }
    if (!own || row.authority === "") {
      if (slot.hibernated) {
        if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
        return start(slot, { kind: "wake", seq: ++seq, key: slot.key, id: row.id, token: row.token });
      }
      if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
      const adopted: Row = {
        ...row,
        podUID: pod.uid,
        authority,
        owner: pod.owner,
        supersededAtMs: undefined,
      };
      if (!ports.commit([{ kind: "row", key: slot.key, value: adopted }])) {
        return retryLater(slot, "the adoption could not be made durable");
      }
      slot.attempt = 0;
      if (!own) note("adopted", slot.key, row.id, pod.uid, "the replacement Pod has the same owner");
      return hold(slot, pod, adopted);
    }
    slot.cause = undefined;
    slot.capacitySinceMs = undefined;
    if (publish(slot, pod, runningStatus(pod, row), row.id, row.address)) return;
    if (row.deadlineMs === 0) return;
    if (now < row.deadlineMs) waitUntil(slot, row.deadlineMs);
    if ((renewLeases || pod.renew) && !slot.renewRefused && now < row.deadlineMs) renewInTime(slot, pod, row);
  }

  /** The Pod says that it ran with another claim than this one, and that has not been looked into yet. */
  function namesAnother(slot: Slot, pod: PodView, id: string): boolean {
    return pod.claimId !== "" && pod.claimId !== id && slot.neverRanUid !== pod.uid;
  }

  /** Past the deadline: list, and ask again ever more slowly while sandboxd still lists the row. */
  function checkLease(slot: Slot): void {
    if (slot.leaseCheckAtMs > now) waitUntil(slot, slot.leaseCheckAtMs);
    else wantListing(slot);
  }

  function renewInTime(slot: Slot, pod: PodView, row: Row): void {
    if (slot.leaseFromMs === 0) slot.leaseFromMs = now;
    const halfLifeMs = slot.leaseFromMs + (row.deadlineMs - slot.leaseFromMs) / 2;
    const atMs = Math.max(halfLifeMs, slot.retryAtMs);
    if (now < atMs) return waitUntil(slot, atMs);
    const axes = claimAxes(pod);
    const ttlSeconds = axes.ok && axes.axes.ttlSeconds > 0 ? axes.axes.ttlSeconds : TTL_DEFAULT_SECONDS;
    start(slot, { kind: "renew", seq: ++seq, key: slot.key, id: row.id, token: row.token, ttlSeconds });
  }

  /** The key now belongs to a Pod of another authority. The old claim waits beside it for its own verdict. */
  function displace(slot: Slot, pod: PodView, row: Row, reason: string): void {
    if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
    const changes: Change[] = [
      { kind: "row", key: slot.key, value: null },
      { kind: "displaced", id: row.id, value: { key: slot.key, row } },
    ];
    if (!ports.commit(changes)) return retryLater(slot, "the old claim could not be set aside durably");
    note("displaced", slot.key, row.id, row.podUID, reason);
    displaced.set(row.id, {
      askAtMs: now,
      delayMs: 0,
      lastReason: "",
      seq: slot.rowSeq,
      suspect: slot.suspect,
    });
    forgetRowState(slot);
    slot.attempt = 0;
    nextDisplaced(row.id);
    obtain(slot, pod);
  }

  /** A live Pod without a row: find the VM it had, or claim one. */
  function obtain(slot: Slot, pod: PodView): void {
    const authority = authorityOf(pod);
    for (const [id, entry] of table.displaced) {
      if (entry.key !== slot.key || entry.row.authority !== authority) continue;
      if (namesAnother(slot, pod, id)) continue;
      const state = displaced.get(id);
      if (state?.busy !== undefined) return waitUntil(slot, now + LIST_GAP_MS);
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
    if ((pod.phase === "Running" || pod.claimId !== "") && slot.neverRanUid !== pod.uid)
      return lookBack(slot, pod);

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
    if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
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
    if (now >= atMs) return true;
    waitUntil(slot, atMs);
    return false;
  }

  /** This Pod's status or annotation says that it ran here, and no row knows of it (state lost or older). */
  function lookBack(slot: Slot, pod: PodView): void {
    if (slot.recover !== undefined) {
      if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
      return start(slot, { kind: "read", seq: ++seq, key: slot.key, id: slot.recover.id });
    }
    if (slot.suspect) {
      if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
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
    if (listed.claimRef !== slot.key || isHeld(listed.id)) {
      // The annotation names a VM that is not this Pod's: its namespace's users can write anything there.
      note(
        "unrecoverable",
        slot.key,
        listed.id,
        pod.uid,
        "the claim-id annotation names a sandbox claimed for another",
      );
      return confirmNeverFound(slot, pod);
    }
    slot.recover = listed;
    slot.retryAtMs = 0;
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
    if (CAPACITY_CAUSES.has(cause.kind)) slot.capacitySinceMs ??= now;
    else slot.capacitySinceMs = undefined;
    if (news) note("refused", slot.key, "", pod.uid, cause.message, cause);
    if (cause.kind === "bad_annotation") slot.retryAtMs = Number.POSITIVE_INFINITY;
    else if (cause.kind === "unknown_template")
      slot.retryAtMs = now + backoff(0, poolFaultRetryMs, poolFaultRetryMs);
    else slot.retryAtMs = now + backoff(slot.attempt++);
    if (publish(slot, pod, refusedStatus(pod, cause), "", "")) return;
    if (Number.isFinite(slot.retryAtMs) && !pod.restartNever) waitUntil(slot, slot.retryAtMs);
  }

  function retryLater(slot: Slot, why: string): void {
    if (slot.attempt === 0)
      note("uncommitted", slot.key, table.rows.get(slot.key)?.id ?? "", slot.pod?.uid ?? "", why);
    slot.retryAtMs = now + backoff(slot.attempt++);
    waitUntil(slot, slot.retryAtMs);
  }

  /** Pushes a status when the API's differs. Returns whether a push is under way or waits its turn. */
  function publish(slot: Slot, pod: PodView, status: PodStatus, claimId: string, address: string): boolean {
    const wanted = statusDigest(status, claimId === "" ? pod.claimId : claimId);
    if (digestCovers(pod.digest, wanted) && (address === "" || pod.podIP !== "")) {
      slot.publishAttempt = 0;
      return false;
    }
    if (slot.publishHeld) return true;
    if (slot.publishAtMs > now) {
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
      const judgedNow = pod === undefined ? slot.recheck !== undefined : slot.judgedUid === pod.uid;
      if (!judgedNow || (slot.recheck !== undefined && now >= slot.recheck.askAtMs)) {
        if (judge(slot, pod, row)) return;
      }
      if (slot.recheck !== undefined) waitUntil(slot, slot.recheck.askAtMs);
      if (row.deadlineMs > 0) {
        if (now >= row.deadlineMs) checkLease(slot);
        else waitUntil(slot, row.deadlineMs);
      }
    }
    if (pod !== undefined) return finalize(slot, pod);
    if (row === undefined && !table.intents.has(slot.key) && slot.releasingId === undefined)
      slots.delete(slot.key);
  }

  /** Starts the question that decides about a row without a live Pod. Returns whether the slot is now busy. */
  function judge(slot: Slot, pod: PodView | undefined, row: Row): boolean {
    if (slot.retryAtMs > now) {
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
    if (pod !== undefined) slot.judgedUid = pod.uid;
    const before = slot.recheck;
    const nextDelayMs =
      delayMs > 0
        ? delayMs
        : before === undefined
          ? recheckMinMs
          : Math.min(recheckMaxMs, before.delayMs * 2);
    slot.recheck = { askAtMs: now + nextDelayMs, delayMs: nextDelayMs, lastReason: reason };
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
    slot.releasingId = row.id;
    slot.releasingUid = slot.pod?.uid ?? row.podUID;
    forgetRowState(slot);
    releases.set(row.id, { attempt: 0, atMs: now });
    nextRelease(row.id);
    return true;
  }

  function finalize(slot: Slot, pod: PodView): void {
    if (slot.finalizedUid === pod.uid) return;
    // Another error keeps the Pod: whoever waits for its end waits for the VM's (contract: Delete, Release).
    if (slot.releasingId !== undefined && slot.releasingUid === pod.uid) return;
    if (slot.finalizeAtMs > now) return waitUntil(slot, slot.finalizeAtMs);
    const status = pod.phase === "Running" ? endedStatus(pod, now) : undefined;
    start(slot, { kind: "finalize", seq: ++seq, key: slot.key, uid: pod.uid, status });
  }

  /** The VM is confirmed gone: say so on the Pod it served, then forget the row. */
  function bury(slot: Slot, row: Row, dead: { reason: DeathReason; atMs: number }): void {
    const { pod } = slot;
    if (pod !== undefined && !pod.deleting && !isTerminal(pod) && pod.uid === row.podUID) {
      if (publish(slot, pod, deadStatus(pod, dead.reason, dead.atMs, row), row.id, "")) return;
    }
    if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
    if (!ports.commit([{ kind: "row", key: slot.key, value: null }])) {
      return retryLater(slot, "the end of the sandbox could not be made durable");
    }
    slot.attempt = 0;
    forgetRowState(slot);
    next(slot);
  }

  function declareDead(slot: Slot, row: Row): void {
    const expired = row.deadlineMs > 0 && now >= row.deadlineMs;
    slot.suspect = false;
    slot.dead = expired
      ? { reason: "SandboxLeaseExpired", atMs: row.deadlineMs }
      : { reason: "SandboxLost", atMs: now };
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
    if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
    start(slot, { kind: "release", seq: ++seq, key: slot.key, id: grant.id, token: grant.token });
  }

  function findLost(slot: Slot, intent: Intent): void {
    slot.find ??= { untilMs: now + claimSettleMs, atMs: now, attempt: 0, reported: false };
    if (slot.recover !== undefined) {
      if (slot.retryAtMs > now) return waitUntil(slot, slot.retryAtMs);
      return start(slot, { kind: "read", seq: ++seq, key: slot.key, id: slot.recover.id });
    }
    const { pod } = slot;
    if (
      pod !== undefined &&
      !pod.deleting &&
      !isTerminal(pod) &&
      slot.cause !== undefined &&
      pod.uid === intent.podUID
    ) {
      if (publish(slot, pod, refusedStatus({ ...pod, restartNever: false }, slot.cause), "", "")) return;
    }
    if (slot.find.atMs > now) return waitUntil(slot, slot.find.atMs);
    start(slot, { kind: "find", seq: ++seq, key: slot.key });
  }

  function onFound(slot: Slot, intent: Intent, rows: Listed[] | undefined): void {
    const { find } = slot;
    if (find === undefined) return;
    if (rows !== undefined) {
      const free = rows.filter((row) => row.claimRef === slot.key && !isHeld(row.id));
      const ours = free.filter(
        (row) =>
          row.claimedAtMs !== undefined &&
          row.claimedAtMs >= intent.atMs - CLAIMED_AT_SLACK_MS &&
          row.template === intent.template &&
          (intent.net === "" || row.net === intent.net) &&
          (intent.size === "" || row.size === intent.size),
      );
      const [only] = ours;
      if (ours.length === 1 && only !== undefined) {
        slot.recover = only;
        slot.retryAtMs = 0;
        return;
      }
      if (free.length > 0 && !find.reported) {
        find.reported = true;
        for (const row of free) {
          note(
            "unrecoverable",
            slot.key,
            row.id,
            intent.podUID,
            "a sandbox with this claim_ref may be another's: it is left alone",
          );
        }
      }
      if (now >= find.untilMs) {
        if (ports.commit([{ kind: "intent", key: slot.key, value: null }])) {
          slot.find = undefined;
          slot.retryAtMs = 0;
          return;
        }
      }
    }
    find.atMs = now + backoff(find.attempt++, retryMinMs, verifyMs);
  }

  /** A root read answered for a VM we may recover: after a lost reply, or after a lost table. */
  function onRecoveryRead(slot: Slot, listed: Listed, result: ReadResult): void {
    const intent = table.intents.get(slot.key);
    const { pod } = slot;
    if (!result.ok) {
      if (result.absent) {
        slot.recover = undefined;
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
        slot.retryAtMs = now + backoff(slot.attempt++, retryMinMs, verifyMs);
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
      address: result.address !== "" ? result.address : (pod?.podIP ?? "") || anyAddress(),
      podUID: from.podUID,
      authority: from.authority,
      owner: from.owner,
      claimedAtMs: result.listed.claimedAtMs ?? listed.claimedAtMs ?? intent?.atMs ?? now,
      deadlineMs: result.listed.deadlineMs,
    };
    const changes: Change[] = [{ kind: "row", key: slot.key, value: row }];
    if (intent !== undefined) changes.push({ kind: "intent", key: slot.key, value: null });
    if (!ports.commit(changes)) {
      slot.retryAtMs = now + backoff(slot.attempt++);
      return;
    }
    forgetRowState(slot);
    slot.recover = undefined;
    slot.find = undefined;
    slot.attempt = 0;
    slot.retryAtMs = 0;
    slot.rowSeq = ++seq;
    slot.hibernated = result.listed.hibernated;
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

  /** owner_addr is the node's own: a recovered row that lacks it takes that of any other claim here. */
  function anyAddress(): string {
    for (const row of table.rows.values()) if (row.address !== "") return row.address;
    return "";
  }

  // ---- releases and displaced claims ----------------------------------------------------------------

  function nextRelease(id: string): void {
    const state = releases.get(id);
    const entry = table.releasing.get(id);
    if (state === undefined || entry === undefined || state.busy !== undefined) return;
    if (state.atMs > now) {
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
      if (slot !== undefined && slot.releasingId === id) {
        slot.releasingId = undefined;
        slot.releasingUid = undefined;
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
    state.atMs = now + backoff(state.attempt++);
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
    if (state.askAtMs > now) {
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
        releases.set(id, { attempt: 0, atMs: now });
        return nextRelease(id);
      }
    } else if (state.lastReason !== judged.reason) {
      note("preserved", entry.key, id, entry.row.podUID, judged.reason);
      state.lastReason = judged.reason;
    }
    state.delayMs = state.delayMs === 0 ? recheckMinMs : Math.min(recheckMaxMs, state.delayMs * 2);
    state.askAtMs = now + state.delayMs;
    nextDisplaced(id);
  }

  function dropDisplaced(id: string, state: DisplacedState, entry: Displaced, result: ReadResult): void {
    state.suspect = false;
    if (result.ok || !result.absent) return nextDisplaced(id);
    if (!ports.commit([{ kind: "displaced", id, value: null }])) return;
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
      slot.find = { untilMs: now + claimSettleMs, atMs: now, attempt: 0, reported: false };
      const news = slot.cause?.kind !== cause.kind || slot.cause.message !== cause.message;
      slot.cause = cause;
      if (news) note("refused", slot.key, "", intent.podUID, cause.message, cause);
      return;
    }
    if (!ports.commit([{ kind: "intent", key: slot.key, value: null }])) {
      slot.find = { untilMs: now, atMs: now, attempt: 0, reported: false };
    }
    const { pod } = slot;
    if (
      pod !== undefined &&
      !pod.deleting &&
      !isTerminal(pod) &&
      pod.uid === intent.podUID &&
      !table.intents.has(slot.key)
    ) {
      refuse(slot, pod, cause);
    }
  }

  function onTentativeReleased(slot: Slot, ok: boolean, why: string): void {
    const grant = slot.tentative;
    if (grant === undefined) return;
    if (!ok) {
      if (slot.attempt === 0) note("release_failed", slot.key, grant.id, slot.pod?.uid ?? "", why);
      slot.retryAtMs = now + backoff(slot.attempt++);
      return;
    }
    slot.tentative = undefined;
    note(
      "settled",
      slot.key,
      grant.id,
      slot.pod?.uid ?? "",
      "the sandbox that could not be committed was returned",
    );
    slot.retryAtMs = now + backoff(slot.attempt++);
    // The intent that is still open finds nothing now; it is closed as soon as the table can be written.
    slot.find = { untilMs: now, atMs: now, attempt: 0, reported: false };
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
    if (pod !== undefined && !pod.deleting) return;
    const authority = row.authority !== "" ? row.authority : (effect.owner?.uid ?? row.podUID);
    const subject = subjectOf(effect.owner);
    const judged = verdict(authority, subject, owner);
    if (judged.release) {
      withdraw(slot, row, judged.reason);
      return;
    }
    if (pod === undefined && effect.owner !== undefined && supersede(slot, row, current)) return;
    preserved(slot, row, pod, judged.reason, 0);
    if (judged.suspended && !slot.hibernated && !slot.keepsRunning) {
      start(slot, { kind: "hibernate", seq: ++seq, key: slot.key, id: row.id, token: row.token });
    }
  }

  /** The owner's current Pod runs on another node: this VM serves nobody. Returns whether it is on its way out. */
  function supersede(slot: Slot, row: Row, current: CurrentPod | undefined): boolean {
    if (current === undefined || current.kind === "failed") return false;
    const elsewhere =
      current.kind === "found" && current.nodeName !== "" && current.nodeName !== nodeName && current.running;
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
        moveDeadline(slot, row, result.listed.deadlineMs);
      } else if (result.absent) {
        slot.attempt = 0;
        slot.retryAtMs = 0;
        declareDead(slot, row);
      } else {
        slot.retryAtMs = now + backoff(slot.attempt++, retryMinMs, verifyMs);
      }
      return;
    }
    const { pod } = slot;
    if (row === undefined && pod !== undefined && pod.claimId === effect.id && slot.suspect) {
      if (result.ok) slot.suspect = false;
      else if (result.absent) {
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
      } else slot.retryAtMs = now + backoff(slot.attempt++, retryMinMs, verifyMs);
    }
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
          slot.ackedVersion = result.resourceVersion ?? "";
          const claimId = effect.claimId === "" ? pod.claimId : effect.claimId;
          slot.pod = {
            ...pod,
            claimId,
            phase: typeof effect.status.phase === "string" ? effect.status.phase : pod.phase,
            podIP: effect.address === "" ? pod.podIP : pod.podIP || effect.address,
            digest: mergeDigest(pod.digest, statusDigest(effect.status, claimId)),
          };
          // Someone who keeps overwriting it is answered ever more slowly.
          if (now - slot.publishedAtMs > REPUBLISH_CALM_MS) slot.publishAttempt = 0;
          slot.publishAtMs = slot.publishAttempt === 0 ? 0 : now + backoff(slot.publishAttempt);
          slot.publishAttempt++;
          slot.publishedAtMs = now;
          return;
        }
        if (result.kind === "gone") {
          slot.publishHeld = true;
          return;
        }
        if (slot.publishAttempt === 0)
          note("publish_failed", slot.key, effect.claimId, effect.uid, result.why);
        slot.publishAtMs = now + backoff(slot.publishAttempt++);
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
        slot.finalizeAtMs = now + backoff(slot.finalizeAttempt++);
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
        } else {
          slot.capacitySinceMs = result.kind === "gone" ? undefined : now;
        }
        return;
      }
      case "release":
        return onTentativeReleased(slot, result.ok || result.kind === "gone", result.ok ? "" : result.why);
      case "hibernate": {
        if (row === undefined || row.id !== effect.id) return;
        if (result.ok) {
          slot.hibernated = true;
          note("hibernated", slot.key, row.id, row.podUID, "its Sandbox is suspended");
        } else if (result.kind === "refused") {
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
          slot.hibernated = false;
          slot.attempt = 0;
          slot.retryAtMs = 0;
          note("woken", slot.key, row.id, row.podUID, "its Sandbox resumed");
        } else if (result.kind === "gone") slot.suspect = true;
        else slot.retryAtMs = now + backoff(slot.attempt++);
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
        } else slot.retryAtMs = now + backoff(slot.attempt++);
        return;
      }
    }
  }

  // ---- listings ------------------------------------------------------------------------------------

  function startListing(): void {
    listing = { kind: "list", seq: ++seq };
    listedAtMs = now;
    listAtMs = Number.POSITIVE_INFINITY;
    ports.run(listing);
  }

  function onListed(effect: Effect, rows: Listed[] | undefined): void {
    if (listing === undefined || effect.seq !== listing.seq) return;
    listing = undefined;
    if (rows === undefined) {
      listAtMs = now + backoff(listFailures++, retryMinMs, verifyMs);
      if (listAtMs < dueMs) dueMs = listAtMs;
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
        if (answered && pod !== undefined && !pod.deleting && !isTerminal(pod) && slot.busy === undefined) {
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
      slot.hibernated = listed.hibernated;
      if (was.quarantined) {
        slot.quarantined = false;
        note("vouched", slot.key, row.id, row.podUID, "sandboxd lists it");
      }
      moveDeadline(slot, row, listed.deadlineMs);
      if (listed.deadlineMs > 0 && now >= listed.deadlineMs) {
        slot.leaseCheckAtMs = now + backoff(slot.leaseChecks++, 1_000, verifyMs);
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
    const routineMs = orphanScanMs > 0 ? orphanScanMs : LIST_ROUTINE_MS;
    const held = table.rows.size + table.displaced.size > 0;
    const atMs = waiting
      ? now + Math.min(1_000, verifyMs)
      : held || orphanScanMs > 0
        ? now + routineMs
        : Number.POSITIVE_INFINITY;
    if (atMs < listAtMs) listAtMs = atMs;
    if (listAtMs < dueMs) dueMs = listAtMs;
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
    for (const [id, listed] of byId) {
      if (ours.has(id) || (listed.claimRef !== "" && table.intents.has(listed.claimRef))) continue;
      const kind = listed.claimRef === "" ? "orphan" : "external";
      if (reported.get(id) === kind) continue;
      reported.set(id, kind);
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

  function onPod(pod: PodView): void {
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
      if (faultChanged(before, pod)) slot.retryAtMs = 0;
    } else {
      slot.pod = pod;
      slot.goneUid = undefined;
      slot.ackedVersion = "";
      slot.publishAttempt = 0;
      slot.publishAtMs = 0;
      slot.cause = undefined;
      slot.capacitySinceMs = undefined;
      slot.attempt = 0;
      slot.retryAtMs = 0;
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
    next(slot);
  }

  function handle(event: Event, atMs: number): void {
    now = atMs;
    switch (event.type) {
      case "pod":
        return onPod(event.pod);
      case "podGone": {
        const slot = slots.get(event.key);
        if (slot === undefined || (slot.pod !== undefined && slot.pod.uid !== event.uid)) return;
        return podLeft(slot, event.uid);
      }
      case "relist":
        generation++;
        return;
      case "synced": {
        synced = true;
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
    if (listing === undefined && listAtMs <= now) startListing();
    else if (listing === undefined && listAtMs < dueMs) dueMs = listAtMs;
    for (const slot of slots.values()) {
      if (slot.dueAtMs <= now) next(slot);
      else if (slot.dueAtMs < dueMs) dueMs = slot.dueAtMs;
    }
    for (const id of releases.keys()) nextRelease(id);
    for (const id of displaced.keys()) nextDisplaced(id);
  }

  // Rows and intents on disk are looked at as soon as there is anything to look with.
  for (const slot of slots.values()) slot.dueAtMs = now;

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
    nextDueMs: () => dueMs,
    verify(atMs) {
      now = atMs;
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

function subjectOf(owner: OwnerRef | undefined): string {
  return owner === undefined ? "the bare Pod" : `${owner.kind} ${owner.name}`;
}

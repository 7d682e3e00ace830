import { podView } from "./pod.ts";
import { createProvider, type ProviderOptions, type ProviderPorts } from "./provider.ts";
import { applyChanges, emptyTable } from "./table.ts";
import type {
  CallResult,
  CauseKind,
  Change,
  CurrentPod,
  Effect,
  Event,
  Listed,
  Note,
  OwnerRef,
  OwnerState,
  PodView,
  Row,
  Table,
} from "./types.ts";

/** The instant at which a test's world begins. */
export const START_MS = Date.UTC(2026, 0, 1);
export const NODE = "node-a";
export const KEY = "agents/agent-1";
export const SANDBOX: OwnerRef = {
  apiVersion: "agents.x-k8s.io/v1beta1",
  kind: "Sandbox",
  name: "agent-1",
  uid: "sandbox-uid-1",
};
/** A Sandbox of the same name that was made after the first one's end. */
export const OTHER_SANDBOX: OwnerRef = { ...SANDBOX, uid: "sandbox-uid-2" };

const ANNOTATIONS = "sandbox.cocoonstack.io/";
/** Ticks at one instant after which the core is taken to spin. */
const TICKS_MAX = 1_000;

type Json = Record<string, unknown>;

/** What a test says of a Pod; everything else is as a Sandbox controller and the scheduler leave it. */
export interface PodSpec {
  key?: string;
  uid?: string;
  /** null: a bare Pod. */
  owner?: OwnerRef | null;
  /** Without their prefix. */
  annotations?: Record<string, string>;
  restartPolicy?: "Always" | "Never" | "OnFailure";
  status?: Json;
  deleting?: boolean;
  containers?: string[];
}

/** A Pod object as the API server holds it, bound to this node. */
export function rawPod(spec: PodSpec = {}, resourceVersion = "100"): Json {
  const { key = KEY, uid = "pod-1", owner = SANDBOX, restartPolicy = "Always" } = spec;
  const [namespace, name] = key.split("/");
  const annotations: Record<string, string> = {};
  for (const [word, value] of Object.entries({ template: "py312", ...spec.annotations })) {
    if (value !== "") annotations[`${ANNOTATIONS}${word}`] = value;
  }
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      namespace,
      name,
      uid,
      resourceVersion,
      creationTimestamp: "2025-12-31T23:59:00Z",
      annotations,
      ...(spec.deleting ? { deletionTimestamp: "2026-01-01T00:00:30Z", deletionGracePeriodSeconds: 30 } : {}),
      ...(owner === null
        ? {}
        : { ownerReferences: [{ ...owner, controller: true, blockOwnerDeletion: true }] }),
    },
    spec: {
      nodeName: NODE,
      restartPolicy,
      containers: (spec.containers ?? ["agent"]).map((container) => ({
        name: container,
        image: `registry.example/${container}:1`,
      })),
    },
    status: spec.status ?? {
      phase: "Pending",
      qosClass: "BestEffort",
      conditions: [{ type: "PodScheduled", status: "True", lastTransitionTime: "2025-12-31T23:59:01Z" }],
    },
  };
}

/** The view of such a Pod. */
export function viewOf(raw: unknown): PodView {
  const view = podView(raw);
  if (view === undefined) throw new Error("no Pod");
  return view;
}

/** A row as a claim of the Sandbox' Pod `pod-1` leaves it, an hour from its deadline. */
export function rowOf(changes: Partial<Row> = {}): Row {
  return {
    id: "sb-1",
    token: "secret-1",
    address: "10.0.0.7:7777",
    podUID: "pod-1",
    authority: SANDBOX.uid,
    owner: SANDBOX,
    claimedAtMs: START_MS - 60_000,
    deadlineMs: START_MS + 3_600_000,
    ...changes,
  };
}

/** What sandboxd lists of that row. */
export function listedOf(row: Partial<Row> = {}, changes: Partial<Listed> = {}): Listed {
  const { id, deadlineMs, claimedAtMs } = rowOf(row);
  const axes = { template: "py312", net: "none", size: "small" };
  return { id, ...axes, deadlineMs, claimedAtMs, hibernated: false, claimRef: KEY, ...changes };
}

/** An owner that lives. */
export function alive(changes: Partial<OwnerState & { kind: "found" }> = {}): OwnerState {
  return {
    kind: "found",
    uid: SANDBOX.uid,
    deleting: false,
    expired: false,
    suspended: false,
    ...changes,
  };
}

/** A structured NotFound that names the owner. */
export const GONE: OwnerState = { kind: "not_found", named: true };

export interface WorldOptions extends Partial<ProviderOptions> {
  /** By Pod key. */
  rows?: Record<string, Row>;
  table?: Table;
  startMs?: number;
}

export type World = ReturnType<typeof createWorld>;

/**
 * A world for the core: it records what the core commits, starts and tells, plays the API server's side of each
 * Pod, and answers an effect when the test says so. Whatever is due at an instant is done at that instant.
 */
export function createWorld(options: WorldOptions = {}) {
  const { rows = {}, table = emptyTable(), startMs = START_MS, ...rest } = options;
  for (const [key, row] of Object.entries(rows)) table.rows.set(key, row);
  const commits: Change[][] = [];
  const started: Effect[] = [];
  const notes: Note[] = [];
  const objects = new Map<string, Json>();
  let outstanding: Effect[] = [];
  let failing = 0;
  let nowMs = startMs;
  let skewMs = 0;
  let version = 100;
  let granted = 0;
  let provider = begin();

  function begin() {
    const ports: ProviderPorts = {
      commit(changes) {
        if (failing > 0) {
          failing--;
          return false;
        }
        commits.push(changes);
        applyChanges(table, changes);
        return true;
      },
      run(effect) {
        started.push(effect);
        outstanding.push(effect);
      },
      note: (note) => void notes.push(note),
      random: () => 0.5,
    };
    return createProvider(table, ports, { nodeName: NODE, ...rest }, nowMs + skewMs, nowMs);
  }

  function send(event: Event): void {
    provider.handle(event, nowMs + skewMs, nowMs);
    settle();
  }

  function settle(): void {
    for (let ticks = 0; provider.nextDueMs() <= nowMs; ticks++) {
      if (ticks === TICKS_MAX) throw new Error("the core spins");
      provider.handle({ type: "tick" }, nowMs + skewMs, nowMs);
    }
  }

  /** Lets time pass, ticking whenever something is due. */
  function pass(ms: number): void {
    const untilMs = nowMs + ms;
    for (let due = provider.nextDueMs(); due <= untilMs; due = provider.nextDueMs()) {
      nowMs = Math.max(nowMs, due);
      settle();
    }
    nowMs = untilMs;
  }

  /** Lets time pass until something is due; returns how long that was. */
  function passToDue(): number {
    const due = provider.nextDueMs();
    if (!Number.isFinite(due)) throw new Error("nothing is due");
    const ms = due - nowMs;
    nowMs = due;
    settle();
    return ms;
  }

  /** Lets time pass while sandboxd answers every listing with these. */
  function passListing(ms: number, ...listed: Listed[]): void {
    const untilMs = nowMs + ms;
    for (;;) {
      while (pending("list").length > 0) answerList(...listed);
      const due = provider.nextDueMs();
      if (due > untilMs) break;
      nowMs = Math.max(nowMs, due);
      settle();
    }
    nowMs = untilMs;
  }

  /** Lets time pass until an effect of the kind is under way; returns how long that was. */
  function until(kind: Effect["kind"]): number {
    const fromMs = nowMs;
    for (let ticks = 0; pending(kind).length === 0; ticks++) {
      if (ticks === TICKS_MAX) throw new Error(`no ${kind} comes`);
      passToDue();
    }
    return nowMs - fromMs;
  }

  const isOf =
    <K extends Effect["kind"]>(kind: K) =>
    (effect: Effect): effect is Effect & { kind: K } =>
      effect.kind === kind;

  /** The effects of a kind that wait for their answer. */
  function pending<K extends Effect["kind"]>(kind: K): (Effect & { kind: K })[] {
    return outstanding.filter(isOf(kind));
  }

  /** The effects of a kind that were ever started. */
  function ever<K extends Effect["kind"]>(kind: K): (Effect & { kind: K })[] {
    return started.filter(isOf(kind));
  }

  /** Takes the oldest outstanding effect of a kind, of which there must be one. */
  function take<K extends Effect["kind"]>(kind: K): Effect & { kind: K } {
    const [effect] = pending(kind);
    if (effect === undefined)
      throw new Error(`no ${kind} under way, only [${outstanding.map((effect) => effect.kind)}]`);
    outstanding = outstanding.filter((other) => other !== effect);
    return effect;
  }

  function show(raw: Json): void {
    send({ type: "pod", pod: viewOf(raw) });
  }

  /** The Pod object under a key, to be changed in place; give it back with `changed`. */
  function object(key: string): { metadata: Json; spec: Json; status: Json } {
    const raw = objects.get(key);
    if (raw === undefined) throw new Error(`no Pod ${key}`);
    return raw as { metadata: Json; spec: Json; status: Json };
  }

  /** A Pod appears under its key, or its next generation does, and the watch shows it. */
  function create(spec: PodSpec = {}): void {
    const raw = rawPod(spec, String(++version));
    objects.set(spec.key ?? KEY, raw);
    show(raw);
  }

  /** Somebody changes the Pod object, and the watch shows it. */
  function edit(change: (raw: { metadata: Json; spec: Json; status: Json }) => void, key = KEY): void {
    const raw = structuredClone(object(key));
    change(raw);
    raw.metadata.resourceVersion = String(++version);
    objects.set(key, raw);
    show(raw);
  }

  function annotate(word: string, value: string, key = KEY): void {
    edit((raw) => {
      raw.metadata.annotations = { ...(raw.metadata.annotations as Json), [`${ANNOTATIONS}${word}`]: value };
    }, key);
  }

  /** The Pod is being deleted: it has a deletionTimestamp from now on. */
  function remove(key = KEY): void {
    edit((raw) => {
      raw.metadata.deletionTimestamp = "2026-01-01T00:10:00Z";
    }, key);
  }

  /** The Pod object is gone, and the watch says so. */
  function gone(key = KEY, uid = String(object(key).metadata.uid)): void {
    objects.delete(key);
    send({ type: "podGone", key, uid, resourceVersion: String(++version) });
  }

  /** A list of this node's Pods begins and ends, with these in it. */
  function list(...specs: PodSpec[]): void {
    send({ type: "relist" });
    for (const spec of specs) create(spec);
    send({ type: "synced" });
  }

  /** sandboxd grants the claim under way. */
  function grant(changes: Partial<Row> = {}): string {
    const id = changes.id ?? `sb-${++granted}`;
    const { token, address, deadlineMs } = { ...rowOf({ deadlineMs: nowMs + 3_600_000 }), ...changes };
    const result = { ok: true as const, grant: { id, token, address, deadlineMs } };
    send({ type: "claimed", effect: take("claim"), result });
    return id;
  }

  /** sandboxd refuses the claim under way. */
  function refuse(kind: CauseKind, message = `${kind} in words`): void {
    send({
      type: "claimed",
      effect: take("claim"),
      result: { ok: false, lost: false, cause: { kind, message } },
    });
  }

  /** No reply to the claim under way: sandboxd may have granted it. */
  function lose(kind: "timeout" | "unreachable" = "timeout"): void {
    const cause = { kind, message: `${kind} in words` };
    send({ type: "claimed", effect: take("claim"), result: { ok: false, lost: true, cause } });
  }

  function answerAsk(owner: OwnerState, pod?: CurrentPod): void {
    send({ type: "asked", effect: take("ask"), owner, pod });
  }

  function answerList(...listed: Listed[]): void {
    send({ type: "listed", effect: take("list"), result: { ok: true, rows: listed } });
  }

  function failList(): void {
    send({ type: "listed", effect: take("list"), result: { ok: false, why: "the body was cut short" } });
  }

  function answerFind(...listed: Listed[]): void {
    send({ type: "found", effect: take("find"), result: { ok: true, rows: listed } });
  }

  function failFind(): void {
    send({ type: "found", effect: take("find"), result: { ok: false, why: "no answer" } });
  }

  function answerRead(listed: Listed, token = "secret-read", address = "10.0.0.7:7777"): void {
    send({ type: "read", effect: take("read"), result: { ok: true, listed, token, address } });
  }

  /** `absent`: a structured 404; otherwise a failure that proves nothing. */
  function failRead(absent: boolean): void {
    send({
      type: "read",
      effect: take("read"),
      result: { ok: false, absent, why: absent ? "404" : "no answer" },
    });
  }

  function call(kind: "release" | "hibernate" | "wake" | "renew" | "publish" | "finalize" | "evict") {
    const answer = (result: CallResult) => send({ type: "called", effect: take(kind), result });
    return {
      ok: (more: { deadlineMs?: number; resourceVersion?: string } = {}) => answer({ ok: true, ...more }),
      gone: () => answer({ ok: false, kind: "gone", why: "404" }),
      refused: (why = "409") => answer({ ok: false, kind: "refused", why }),
      failed: (why = "503") => answer({ ok: false, kind: "failed", why }),
    };
  }

  /** The push under way reaches the API server, and the watch shows what came of it. */
  function pushed(): PodView {
    const effect = take("publish");
    const raw = structuredClone(object(effect.key));
    mergeStatus(raw.status, effect.status);
    if (effect.address !== "") raw.status.podIP = effect.address.replace(/:\d+$/, "");
    if (effect.claimId !== "") {
      const annotations = raw.metadata.annotations as Json;
      raw.metadata.annotations = { ...annotations, [`${ANNOTATIONS}claim-id`]: effect.claimId };
    }
    const resourceVersion = String(++version);
    raw.metadata.resourceVersion = resourceVersion;
    objects.set(effect.key, raw);
    send({ type: "called", effect, result: { ok: true, resourceVersion } });
    show(raw);
    return viewOf(raw);
  }

  /** The Pod object's end under way is done, and the watch says so. */
  function finalized(): void {
    const effect = take("finalize");
    send({ type: "called", effect, result: { ok: true } });
    gone(effect.key, effect.uid);
  }

  return {
    table,
    commits,
    started,
    notes,
    send,
    settle,
    pass,
    passToDue,
    until,
    passListing,
    pending,
    ever,
    take,
    object,
    show,
    create,
    edit,
    annotate,
    remove,
    gone,
    list,
    grant,
    refuse,
    lose,
    answerAsk,
    answerList,
    failList,
    answerFind,
    failFind,
    answerRead,
    failRead,
    call,
    pushed,
    finalized,
    /** Kinds of all that waits for its answer. */
    underWay: () => outstanding.map((effect) => effect.kind),
    /** The notes of a kind. */
    told: (kind: Note["kind"]) => notes.filter((note) => note.kind === kind),
    /** The row at a key, which must be there. */
    row(key = KEY): Row {
      const row = table.rows.get(key);
      if (row === undefined) throw new Error(`no row at ${key}`);
      return row;
    },
    /** The next `times` commits fail. */
    failCommits(times = 1) {
      failing = times;
    },
    /** How many commits are still to fail. */
    commitsToFail: () => failing,
    /** The monotonic clock, which the wall clock agrees with until it is stepped. */
    now: () => nowMs,
    /** Somebody steps the wall clock. */
    stepClock(ms: number) {
      skewMs += ms;
    },
    counts: () => provider.counts(),
    claims: () => [...provider.claims()],
    pods: () => [...provider.pods()],
    nextDueMs: () => provider.nextDueMs(),
    /** kill -9 and a new start on the same table: what was under way is answered to nobody. */
    crash() {
      outstanding = [];
      started.length = 0;
      failing = 0;
      provider = begin();
      settle();
    },
  };
}

/** Merges a pushed status as the API server does: conditions by type, null takes a field away. */
function mergeStatus(held: Json, given: Json): void {
  for (const [field, value] of Object.entries(given)) {
    if (value === null) delete held[field];
    else if (field === "conditions") {
      const wanted = value as Json[];
      const kept = ((held.conditions ?? []) as Json[]).filter(
        (condition) => !wanted.some((other) => other.type === condition.type),
      );
      held.conditions = [...kept, ...wanted];
    } else held[field] = value;
  }
}

/** Somebody says that the Pod is not ready, as kube-controller-manager does for every Pod of a NotReady node. */
export function setReadyFalse(raw: { status: Record<string, unknown> }): void {
  const conditions = (raw.status.conditions ?? []) as Json[];
  raw.status.conditions = conditions.map((condition) =>
    condition.type === "Ready"
      ? { ...condition, status: "False", lastTransitionTime: "2026-01-01T00:01:00Z" }
      : condition,
  );
}

/** A world in which a Pod was created, claimed `sb-1` and is Running. */
export function runningWorld(
  options: WorldOptions = {},
  spec: PodSpec = {},
  grant: Partial<Row> = {},
): World {
  const world = createWorld(options);
  world.list();
  world.create(spec);
  world.grant(grant);
  world.pushed();
  return world;
}

/** A world in which that Pod was deleted, its owner lives, and the VM is kept for it. */
export function preservedWorld(options: WorldOptions = {}, grant: Partial<Row> = {}): World {
  const world = runningWorld(options, {}, grant);
  world.remove();
  world.answerAsk(alive());
  world.finalized();
  return world;
}

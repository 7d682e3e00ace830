/**
 * What must hold after every step of a simulation (design: invariants 1 to 7), and what must be true when
 * nothing is left to happen. All of it compares the provider's acts with the truth of the models, never with
 * what the provider believes.
 */
import { CLAIM_ID_ANNOTATION } from "../../provider/pod.ts";
import type { Change, Effect, Intent, Note, Row } from "../../provider/types.ts";
import { hasEnded, NOBODY, type RawPod } from "./cluster.ts";
import type { Vm } from "./sandboxd.ts";
import { TEMPLATES } from "./sandboxd.ts";
import { type Checks, describeEffect, isEnd, phaseTold, Violation, type World } from "./world.ts";

/** sandboxd's claimed_at may be cut to whole seconds; the same number as the core's. */
const CLAIMED_AT_SLACK_MS = 1_000;
/** A VM that only the claim-id of its Pod still leads to. */
export const RECOVERABLE = "only its Pod's claim-id leads to it";

export function createChecks(world: World): Checks {
  const { cluster, sandboxd, plan } = world;

  /** Whether the end of a VM is justified for a row of the table. */
  function mayRelease(row: Row): boolean {
    if (row.authority === "") return true;
    if (cluster.authorityEnded(row.authority)) return true;
    // A claim made under a forged reference is its forger's, whatever UID it names.
    if (row.owner !== undefined && row.owner.name !== cluster.lives.get(row.authority)?.name) return true;
    if (!plan.options.releaseSupersededAfterMs) return false;
    for (const generation of cluster.generations.values()) {
      if (generation.ranElsewhere && generation.authorities.includes(row.authority)) return true;
    }
    return false;
  }

  /** Whether the Pod, as the process knows it, has the UID of an owner under a false name. */
  function isForged(podUID: string): boolean {
    const owner = world.process?.told.get(podUID)?.owner;
    return owner !== undefined && cluster.lives.get(owner.uid)?.name !== owner.name;
  }

  function onRow(key: string, row: Row, changes: Change[]): void {
    const vm = sandboxd.vms.get(row.id);
    if (vm === undefined) throw new Violation(`row of ${key}: ${row.id} was never granted`);
    const generation = cluster.generations.get(row.podUID);
    if (generation === undefined) throw new Violation(`row of ${key}: Pod ${row.podUID} never was`);
    if (generation.key !== key) throw new Violation(`row of ${key} is for a Pod of ${generation.key}`);
    const moves =
      vm.authority !== row.authority && vm.authority !== "" && row.authority !== "" && vm.unfindable === "";
    if (moves && (row.authority === NOBODY || !generation.authorities.includes(row.authority))) {
      throw new Violation(`row of ${key}: ${row.authority} never was an authority of ${row.podUID}`);
    }
    if (!vm.ours) return generation.tampered ? undefined : mayTake(vm, key, changes);
    if (vm.podUID === row.podUID || vm.authority === "" || vm.unfindable !== "") return;
    if (!world.process?.vouched.has(row.id)) {
      throw new Violation(`${row.podUID} adopts ${vm.id}, which sandboxd has not vouched for`);
    }
    const theirs = vm.authority === NOBODY || vm.forged;
    if (isForged(row.podUID) && !theirs)
      throw new Violation(`${row.podUID}, whose owner is forged, adopts ${vm.id}`);
    if (!generation.authorities.includes(vm.authority)) {
      throw new Violation(`${row.podUID} adopts ${vm.id}, which ${vm.authority} decides about`);
    }
  }

  /** A row may be taken that nothing tells from one of ours. */
  function mayTake(vm: Vm, key: string, changes: Change[]): void {
    const intent = world.disk.durable().intents.get(key);
    const closes = changes.some((change) => change.kind === "intent" && change.value === null);
    if (intent !== undefined && closes && looksLike(vm, intent, key)) {
      for (const other of sandboxd.alive) {
        if (other.ours && other.unfindable === "" && looksLike(other, intent, key) && !isHeld(other)) {
          throw new Violation(`${vm.id} is another's and was taken, while ${other.id} is the one`);
        }
      }
      return;
    }
    throw new Violation(`${vm.id} is another's and was taken for ${key}`);
  }

  function isHeld(vm: Vm): boolean {
    const { rows, releasing, displaced } = world.disk.durable();
    return rows.get(vm.claimRef)?.id === vm.id || releasing.has(vm.id) || displaced.has(vm.id);
  }

  function checkHeld(): void {
    const { intents } = world.disk.durable();
    for (const vm of sandboxd.alive) {
      if (!vm.ours || vm.unfindable !== "" || isHeld(vm)) continue;
      if (intents.get(vm.claimRef)?.podUID === vm.podUID) continue;
      throw new Violation(`${vm.id}, granted for ${vm.claimRef}, is in no row, no queue and no open intent`);
    }
  }

  /** An intent is given up: its VM cannot be told from another's, where there is one like it. */
  function onGivenUp(key: string, changes: Change[]): void {
    const intent = world.disk.durable().intents.get(key);
    if (intent === undefined || changes.some((change) => change.kind === "row" && change.key === key)) return;
    const alike = (world.process?.lastFound.get(key) ?? []).filter((row) => {
      const vm = sandboxd.vms.get(row.id);
      return vm !== undefined && looksLike(vm, intent, key);
    });
    if (alike.length < 2) return;
    for (const { id } of alike) {
      const vm = sandboxd.vms.get(id);
      if (vm?.ours && !isHeld(vm)) vm.unfindable = "another's looks the same";
    }
  }

  function hasEndedForUs(uid: string): boolean {
    return world.process !== undefined && isEnd(phaseTold(world.process, uid));
  }

  function onRun(effect: Effect): void {
    const durable = world.disk.durable();
    switch (effect.kind) {
      case "claim": {
        const intent = durable.intents.get(effect.key);
        if (intent === undefined) throw new Violation(`a claim for ${effect.key} without a durable intent`);
        if (durable.rows.has(effect.key)) throw new Violation(`a claim for ${effect.key}, which holds a row`);
        const generation = cluster.generations.get(intent.podUID);
        const told = world.process?.told.get(intent.podUID);
        if (told === undefined || told.deleting || hasEndedForUs(intent.podUID)) {
          throw new Violation(`a claim for ${intent.podUID}, which is gone, going or at its end`);
        }
        if (told.template !== effect.template || told.net !== effect.net || told.size !== effect.size) {
          throw new Violation(`a claim for ${intent.podUID} of another kind than it asks for`);
        }
        if (!world.process?.lacking && world.process?.evicted.has(intent.podUID))
          throw new Violation(`a claim for ${intent.podUID}, which we evicted`);
        if (generation?.ran && !world.process?.lacking)
          throw new Violation(`${intent.podUID} ran already and gets another VM`);
        for (const vm of sandboxd.alive) {
          if (!vm.ours || durable.releasing.has(vm.id)) continue;
          if (vm.unfindable !== "" && vm.unfindable !== RECOVERABLE) continue;
          if (vm.podUID === intent.podUID)
            throw new Violation(`a second claim for ${intent.podUID}, which has ${vm.id}`);
          const aside = durable.displaced.get(vm.id)?.row;
          if (aside?.authority !== intent.authority || vm.claimRef !== effect.key) continue;
          if (!isForged(intent.podUID) && !vm.forged) {
            throw new Violation(`a claim for ${intent.podUID}, whose authority has ${vm.id} set aside`);
          }
        }
        return;
      }
      case "publish":
        return onPublish(effect);
      case "finalize": {
        const generation = cluster.generations.get(effect.uid);
        if (!generation?.deleting) throw new Violation(`${effect.uid} is finalized and nobody deletes it`);
        for (const vm of sandboxd.alive) {
          if (!vm.ours || vm.podUID !== effect.uid || generation.ended) continue;
          if (durable.releasing.has(vm.id))
            throw new Violation(`${effect.uid} is let go before ${vm.id} is released`);
          if (
            !isHeld(vm) &&
            vm.unfindable === RECOVERABLE &&
            !generation.tampered &&
            !durable.intents.has(effect.key)
          ) {
            throw new Violation(`${effect.uid} is let go, and only its claim-id led to ${vm.id}`);
          }
        }
        return;
      }
      case "evict": {
        if (!plan.options.rescheduleAfterMs)
          throw new Violation("a Pod is evicted and nobody asked for that");
        const generation = cluster.generations.get(effect.uid);
        if (generation?.ran || world.process?.told.get(effect.uid)?.owner === undefined) {
          throw new Violation(`${effect.uid} is evicted: it ran, or nobody would make another`);
        }
        return;
      }
      case "renew":
        if (
          !plan.options.renewLeases &&
          !world.process?.told.get(durable.rows.get(effect.key)?.podUID ?? "")?.renew
        ) {
          throw new Violation(`the lease of ${effect.id} is renewed and nobody asked for that`);
        }
        return;
      case "hibernate": {
        const authority = durable.rows.get(effect.key)?.authority ?? "";
        if (authority !== "" && !cluster.lives.get(authority)?.slept) {
          throw new Violation(`${effect.id} is put to sleep and its owner never was suspended`);
        }
        return;
      }
      case "release": {
        const vm = sandboxd.vms.get(effect.id);
        if (vm === undefined) throw new Violation(`release of ${effect.id}, which never was`);
        if (!vm.ours) throw new Violation(`release of ${effect.id}, which is another's`);
        const entry = durable.releasing.get(effect.id);
        // What is not in the queue was granted and could not be committed: only its intent knows of it.
        if (entry === undefined && (isHeld(vm) || !durable.intents.has(vm.claimRef))) {
          throw new Violation(`release of ${effect.id} outside the release queue`);
        }
        return;
      }
    }
  }

  /** What is said about a listing must stand in the listing that is being handled. */
  function checkEvidence(note: Note): void {
    if (note.kind !== "stale" && note.kind !== "orphan" && note.kind !== "external") return;
    const event = world.process?.handling;
    const rows = event?.type === "listed" && event.result.ok ? event.result.rows : undefined;
    const listed = rows?.some((row) => row.id === note.id);
    if (rows === undefined || listed === (note.kind === "stale")) {
      throw new Violation(`${note.id} is said to be ${note.kind}, and no listing says so`);
    }
  }

  function onPublish(effect: Effect & { kind: "publish" }): void {
    const { phase, reason } = effect.status;
    if (hasEndedForUs(effect.uid)) throw new Violation(`${String(phase)} of ${effect.uid}, which has ended`);
    if (phase === "Running") {
      const row = world.disk.durable().rows.get(effect.key);
      if (row === undefined || row.id !== effect.claimId || row.podUID !== effect.uid) {
        throw new Violation(`Running of ${effect.uid} with ${effect.claimId}, and no durable row says so`);
      }
      if (!world.process?.vouched.has(row.id)) {
        throw new Violation(`Running of ${effect.uid} with ${row.id}, which sandboxd has not vouched for`);
      }
      if (sandboxd.vms.get(row.id)?.hibernatedByUs) {
        throw new Violation(`Running of ${effect.uid} with ${row.id}, which we put to sleep`);
      }
      return;
    }
    if (reason !== "SandboxLost" && reason !== "SandboxLeaseExpired") return;
    if (reason === "SandboxLeaseExpired") {
      const deadlineMs = world.disk.durable().rows.get(effect.key)?.deadlineMs ?? 0;
      if (deadlineMs === 0)
        throw new Violation(`SandboxLeaseExpired of ${effect.uid}, whose lease has no end`);
    }
    if (cluster.generations.get(effect.uid)?.tampered) return;
    for (const vm of sandboxd.alive) {
      if (!vm.ours || vm.podUID !== effect.uid || world.disk.durable().releasing.has(vm.id)) continue;
      if (vm.unfindable === "" || vm.unfindable === RECOVERABLE) {
        throw new Violation(`${String(reason)} of ${effect.uid}, whose ${vm.id} lives`);
      }
    }
  }

  return {
    commit(changes) {
      for (const change of changes) {
        if (change.kind === "intent" && change.value === null) onGivenUp(change.key, changes);
        if (change.value === null) continue;
        if (change.kind === "row") onRow(change.key, change.value, changes);
        else if (change.kind === "releasing" && !mayRelease(change.value.row)) {
          throw new Violation(
            `${change.id} of ${change.value.key} is to be released and ${change.value.row.authority} has not ended`,
          );
        }
      }
    },
    committed(changes) {
      for (const change of changes) {
        if (change.kind !== "row" || change.value === null) continue;
        const vm = sandboxd.vms.get(change.value.id);
        if (vm === undefined) continue;
        const { owner, authority } = change.value;
        if (!vm.ours || vm.authority === "")
          vm.forged = owner !== undefined && cluster.lives.get(authority)?.name !== owner.name;
        vm.ours = true;
        vm.podUID = change.value.podUID;
        vm.authority = change.value.authority;
        vm.unfindable = "";
      }
    },
    run: onRun,
    note(note: Note) {
      if (note.reason.includes("secret_")) throw new Violation(`a token in a note: ${note.reason}`);
      checkEvidence(note);
      world.onNote?.(note);
      world.trace?.(`    note ${note.kind} ${note.key} ${note.id}: ${note.reason}`);
    },
    step() {
      if (world.process === undefined) return;
      checkHeld();
      const busy = new Set<string>();
      for (const { effect } of world.process.inFlight) {
        if (
          effect.kind === "list" ||
          effect.kind === "release" ||
          effect.kind === "ask" ||
          effect.kind === "read"
        )
          continue;
        if (busy.has(effect.key))
          throw new Violation(`two calls at once for ${effect.key}: ${describeEffect(effect)}`);
        busy.add(effect.key);
      }
    },
  };
}

/** Whether a VM may be what an intent asked for. */
function looksLike(vm: Vm, intent: Intent, key: string): boolean {
  return (
    vm.claimRef === key &&
    vm.template === intent.template &&
    (intent.net === "" || vm.net === intent.net) &&
    (intent.size === "" || vm.size === intent.size) &&
    vm.claimedAtMs >= intent.atMs - CLAIMED_AT_SLACK_MS
  );
}

/** What the disk forgot, at a power cut or with the whole file: who can still be found again, and who cannot. */
export function accountForLoss(world: World): void {
  const { rows, intents, releasing, displaced } = world.disk.durable();
  for (const late of world.sandboxd.late) {
    const intent = intents.get(late.effect.key);
    const { atMs, podUID, template, net, size } = late.intent;
    const same = intent?.atMs === atMs && intent.podUID === podUID && intent.template === template;
    if (!same || intent.net !== net || intent.size !== size) late.forgotten = true;
  }
  const kept = [...displaced.values(), ...releasing.values()].map((entry) => entry.row);
  for (const row of [...rows.values(), ...kept]) {
    // An adoption that was forgotten did not take place.
    const vm = world.sandboxd.vms.get(row.id);
    if (vm?.ours) Object.assign(vm, { podUID: row.podUID, authority: row.authority });
  }
  for (const vm of world.sandboxd.alive) {
    if (!vm.ours) continue;
    if (rows.get(vm.claimRef)?.id === vm.id || releasing.has(vm.id) || displaced.has(vm.id)) continue;
    const intent = intents.get(vm.claimRef);
    if (intent?.podUID === vm.podUID && looksLike(vm, intent, vm.claimRef)) {
      vm.authority = intent.authority;
      continue;
    }
    const pod = world.cluster.pods.get(vm.claimRef);
    const leads =
      pod !== undefined &&
      pod.metadata.annotations[CLAIM_ID_ANNOTATION] === vm.id &&
      pod.spec.nodeName === world.plan.options.nodeName &&
      !isTerminal(pod);
    vm.unfindable = leads ? RECOVERABLE : "the disk forgot it";
  }
}

export function isTerminal(pod: RawPod): boolean {
  return isEnd(pod.status.phase);
}

/** Nothing is left to happen: no VM leaked, none kept for nobody, no Pod wrong. */
export function checkEnd(world: World): void {
  const { cluster, sandboxd, disk, plan } = world;
  const table = disk.durable();
  const fail = (message: string): never => {
    throw new Violation(`in the end: ${message}`);
  };
  if (table.intents.size > 0) fail(`the intent of ${[...table.intents.keys()].join(", ")} is open`);
  if (table.releasing.size > 0) fail(`${[...table.releasing.keys()].join(", ")} is not released`);
  const kept = [...[...table.rows].map(([key, row]) => ({ key, row })), ...[...table.displaced.values()]];
  const keptIds = new Set<string>();
  for (const { key, row } of kept) {
    const vm = sandboxd.vms.get(row.id);
    if (!vm?.alive) fail(`${row.id} is gone and ${key} keeps its row`);
    if (keptIds.has(row.id)) fail(`${row.id} is held twice`);
    keptIds.add(row.id);
    const served = cluster.pods.get(key)?.metadata.uid === row.podUID;
    if (row.authority !== "" && !served && cluster.authorityEnded(row.authority)) {
      fail(`${row.id} of ${key} is kept and ${row.authority} has ended`);
    }
    const life = cluster.lives.get(row.authority);
    if (
      vm !== undefined &&
      life?.suspended &&
      !served &&
      vm.net !== "egress" &&
      !vm.hibernated &&
      table.rows.get(key) === row
    ) {
      fail(`${row.id} of ${key} runs and its Sandbox is suspended`);
    }
  }
  if (plan.options.releaseSupersededAfterMs) {
    for (const [key, row] of table.rows) {
      const pod = cluster.pods.get(key);
      if (pod === undefined || pod.spec.nodeName === plan.options.nodeName) continue;
      if (pod.status.phase === "Running" && pod.metadata.ownerReferences[0]?.uid === row.authority) {
        fail(`${row.id} of ${key} is superseded and kept`);
      }
    }
  }
  for (const vm of sandboxd.alive) {
    if (vm.ours && vm.unfindable === "" && !keptIds.has(vm.id)) fail(`${vm.id} for ${vm.claimRef} is leaked`);
  }
  for (const [key, pod] of cluster.pods) {
    if (pod.spec.nodeName !== plan.options.nodeName) continue;
    checkPod(world, key, pod, table.rows.get(key), fail);
  }
}

function checkPod(
  world: World,
  key: string,
  pod: RawPod,
  row: Row | undefined,
  fail: (message: string) => never,
): void {
  const { uid, annotations, deletionTimestamp } = pod.metadata;
  const { phase, reason } = pod.status;
  const generation = world.cluster.generations.get(uid);
  const says = `${uid} of ${key} is ${String(phase)}/${String(reason ?? "")}`;
  if (deletionTimestamp !== undefined) fail(`${says}, deleted and still there`);
  if (generation?.ended && isTerminal(pod)) return;
  if (phase === "Failed") {
    if (reason === "ProviderFailed" && pod.spec.restartPolicy !== "Never")
      fail(`${says}, and would be retried`);
    if (reason !== "ProviderFailed" && reason !== "SandboxLost" && reason !== "SandboxLeaseExpired")
      fail(says);
    return;
  }
  if (row?.podUID !== uid) {
    const template = annotations["sandbox.cocoonstack.io/template"] ?? "";
    const runtime = annotations["sandbox.cocoonstack.io/runtime"] ?? "sandboxd";
    const cannot = runtime !== "sandboxd" || !TEMPLATES.includes(template);
    if (!cannot) fail(`${says}, could run, and holds no VM`);
    if (phase !== "Pending" || reason !== "ProviderFailed") fail(`${says}, cannot run, and does not say so`);
    return;
  }
  if (phase !== "Running") fail(`${says}, and holds ${row.id}`);
  if (annotations[CLAIM_ID_ANNOTATION] !== row.id) fail(`${says} with another claim-id than ${row.id}`);
  if (pod.status.podIP === undefined) fail(`${says} without an IP`);
  const conditions = pod.status.conditions as { type: string; status: string }[];
  for (const { type, status } of conditions) {
    if (status !== "True") fail(`${says}, and its condition ${type} is ${status}`);
  }
  const containers = pod.status.containerStatuses as { ready: boolean; imageID: string }[];
  if (containers.length !== pod.spec.containers.length) fail(`${says} with ${containers.length} containers`);
  for (const container of containers) {
    if (!container.ready || container.imageID !== `sandboxd://${row.id}`) fail(`${says}, a container is not`);
  }
  if (world.sandboxd.vms.get(row.id)?.hibernatedByUs) fail(`${says} and ${row.id} sleeps`);
  if (generation === undefined || hasEndedOwner(world, pod)) fail(`${says} and its owner has ended`);
}

function hasEndedOwner(world: World, pod: RawPod): boolean {
  const uid = pod.metadata.ownerReferences.find((ref) => ref.controller)?.uid;
  const life = uid === undefined ? undefined : world.cluster.lives.get(uid);
  return life !== undefined && hasEnded(life);
}

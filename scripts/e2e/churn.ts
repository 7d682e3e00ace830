/**
 * Two hundred names whose Pods and owners come and go, and a book of who lived when. The book is kept from what the
 * test itself asked of the API server and from a watch of its own, so that it can judge the daemon: nothing in it
 * comes from the daemon's table, log or ledger.
 */
import type { VmView } from "../../lib/sim/sandboxd.ts";
import type { Random } from "../../lib/sim/simulation/random.ts";
import { ApiError, type KubeObject } from "../controlplane/api.ts";
import { annotation, conditionOf, type Pod, type World } from "./world.ts";

/** One who may decide about a VM: a Sandbox, or a bare Pod. */
interface Life {
  name: string;
  uid: string;
  /** Before it was asked for. */
  fromMs: number;
  /** Before its end was asked for; absent while it lives. */
  endedMs?: number;
}

interface Slot {
  name: string;
  bare: boolean;
  life?: Life;
  suspended: boolean;
  busy: boolean;
}

export interface ChurnOptions {
  sandboxes: number;
  barePods: number;
  /** Requests under way at once. */
  workers: number;
  /** Between two requests of a worker. */
  pauseMs: number;
  random: Random;
}

/** What was done so far, by name of the deed. */
export type Deeds = Record<string, number>;

/** Times of the stand-in and of the book come from one clock, cut to milliseconds. */
const slackMs = 1;

export class Churn implements AsyncDisposable {
  readonly deeds: Deeds = {};
  private readonly slots: Slot[] = [];
  private readonly lives: Life[] = [];
  /** Claim ids that the Pods of an authority ever carried, by its UID. */
  private readonly claims = new Map<string, Set<string>>();
  private readonly failed: string[] = [];
  private readonly abort = new AbortController();
  private watching: Promise<void> | undefined;
  private running: Promise<unknown> | undefined;
  private stopping = false;

  constructor(
    private readonly world: World,
    private readonly options: ChurnOptions,
  ) {
    const slot = (name: string, bare: boolean) => ({ name, bare, suspended: false, busy: false });
    for (let i = 0; i < options.sandboxes; i++) this.slots.push(slot(`s${i}`, false));
    for (let i = 0; i < options.barePods; i++) this.slots.push(slot(`p${i}`, true));
  }

  /** Makes everybody, then starts the workers. */
  async start(): Promise<void> {
    this.watching = this.watch();
    const { workers } = this.options;
    const waiting = this.slots.values();
    const fill = async () => {
      for (const slot of waiting) await this.make(slot);
    };
    await Promise.all(Array.from({ length: workers }, fill));
    this.go();
  }

  /** Stops the workers after their present deed; `go` starts them again. What they began goes on. */
  async pause(): Promise<void> {
    this.stopping = true;
    await this.running;
  }

  go(): void {
    this.stopping = false;
    const { workers } = this.options;
    this.running = Promise.all(Array.from({ length: workers }, () => this.work()));
  }

  /** No more deeds; what is suspended is resumed, so that everybody who lives wants a running VM. */
  async calm(): Promise<void> {
    await this.pause();
    for (const slot of this.slots) if (slot.suspended) await this.suspend(slot, false);
  }

  /** Deletes everybody. */
  async end(): Promise<void> {
    for (const slot of this.slots) if (slot.life !== undefined) await this.remove(slot, {});
    this.abort.abort();
    await this.watching;
  }

  /** Lets go of everything, also in the middle of a test that failed: the next one must not meet its watch. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.stopping = true;
    this.abort.abort();
    await Promise.allSettled([this.running, this.watching]);
  }

  get living(): number {
    return this.slots.filter((slot) => slot.life !== undefined).length;
  }

  private did(what: string): void {
    this.deeds[what] = (this.deeds[what] ?? 0) + 1;
  }

  private async work(): Promise<void> {
    const { random, pauseMs } = this.options;
    while (!this.stopping) {
      const slot = this.slots[random.below(this.slots.length)];
      if (slot !== undefined && !slot.busy) {
        slot.busy = true;
        await this.act(slot);
        slot.busy = false;
      }
      await Bun.sleep(pauseMs);
    }
  }

  private async act(slot: Slot): Promise<void> {
    const { random } = this.options;
    if (slot.life === undefined) return await this.make(slot);
    if (slot.bare) return await this.remove(slot, random.chance(0.5) ? {} : { gracePeriodSeconds: 0 });
    const dice = random.float();
    if (dice < 0.35) return await this.evict(slot, {});
    if (dice < 0.6) return await this.evict(slot, { gracePeriodSeconds: 0 });
    if (dice < 0.75) return await this.suspend(slot, !slot.suspended);
    await this.remove(slot, {});
    // Half of them are made anew at once, while the daemon still knows the one before.
    if (random.chance(0.5)) await this.make(slot);
  }

  private async make(slot: Slot): Promise<void> {
    const fromMs = Date.now();
    try {
      const made: KubeObject = slot.bare
        ? await this.world.createPod(slot.name)
        : await this.world.createSandbox(slot.name);
      slot.life = { name: slot.name, uid: made.metadata.uid ?? "", fromMs };
      slot.suspended = false;
      this.lives.push(slot.life);
      this.did(slot.bare ? "bare Pod made" : "Sandbox made");
    } catch (error) {
      // The one of that name is still Terminating: nobody finalizes it while the daemon is down.
      if (!(error instanceof ApiError && error.code === 409)) throw error;
      this.did("name still taken");
    }
  }

  private async remove(slot: Slot, options: Record<string, unknown>): Promise<void> {
    if (slot.life !== undefined) slot.life.endedMs = Date.now();
    const { world } = this;
    await world.api.delete(slot.bare ? world.podPath(slot.name) : world.sandboxPath(slot.name), options);
    slot.life = undefined;
    slot.suspended = false;
    this.did(slot.bare ? "bare Pod deleted" : "Sandbox deleted");
  }

  private async evict(slot: Slot, options: Record<string, unknown>): Promise<void> {
    await this.world.api.delete(this.world.podPath(slot.name), options);
    this.did("gracePeriodSeconds" in options ? "Pod force-deleted" : "Pod deleted");
  }

  private async suspend(slot: Slot, suspended: boolean): Promise<void> {
    const operatingMode = suspended ? "Suspended" : "Running";
    await this.world.api.patch(this.world.sandboxPath(slot.name), { spec: { operatingMode } });
    slot.suspended = suspended;
    this.did(suspended ? "Sandbox suspended" : "Sandbox resumed");
  }

  private async watch(): Promise<void> {
    const { api, path } = this.world;
    while (!this.abort.signal.aborted) {
      try {
        const list = await api.list<Pod>(`${path}/pods`);
        for (const pod of list.items) this.seen(pod);
        const events = api.watch<Pod>(`${path}/pods`, list.metadata.resourceVersion, this.abort.signal);
        for await (const { type, object } of events) {
          if (type === "ERROR") break;
          if (type !== "BOOKMARK") this.seen(object);
        }
      } catch (error) {
        if (!this.abort.signal.aborted && !(error instanceof ApiError)) throw error;
      }
    }
  }

  private seen(pod: Pod): void {
    const { metadata, status } = pod;
    const owner = metadata.ownerReferences?.find((o) => o.controller);
    if (status.phase === "Failed") this.failed.push(`${metadata.name}: ${status.reason} ${status.message}`);
    const id = metadata.annotations?.[annotation("claim-id")];
    if (id === undefined) return;
    const authority = owner?.uid ?? metadata.uid ?? "";
    const known = this.claims.get(authority) ?? new Set();
    this.claims.set(authority, known.add(id));
  }

  /** What is not yet as it should be once everything has come to rest; empty when all is right. */
  async unsettled(): Promise<string[]> {
    const { world } = this;
    const wrong: string[] = [];
    const pods = new Map((await world.pods()).map((pod) => [pod.metadata.name, pod]));
    const index = world.sandboxd.control.index();
    for (const { name, life, bare } of this.slots) {
      const pod = pods.get(name);
      pods.delete(name);
      const vms = index.filter((vm) => vm.claimRef === `${world.name}/${name}`);
      if (life === undefined) {
        if (pod !== undefined) wrong.push(`${name} is gone and its Pod is there`);
        if (vms.length > 0) wrong.push(`${name} is gone and VM ${vms.map((vm) => vm.id)} lives`);
        continue;
      }
      const [vm] = vms;
      if (vm === undefined || vms.length > 1) {
        wrong.push(`${name} lives and has ${vms.length} VMs`);
        continue;
      }
      if (vm.hibernated) wrong.push(`${name} lives and its VM ${vm.id} sleeps`);
      const authority = bare ? pod?.metadata.uid : pod?.metadata.ownerReferences?.[0]?.uid;
      if (authority !== life.uid || !runsIn(pod, vm)) wrong.push(`${name} does not run in ${vm.id}`);
    }
    for (const name of pods.keys()) wrong.push(`there is a Pod ${name} that nobody asked for`);
    return wrong;
  }

  /** What the whole of sandboxd's history shows to have been wrong at any time; empty when nothing was. */
  wrongs(): string[] {
    const wrong = this.failed.map((pod) => `a Pod turned Failed: ${pod}`);
    const authorityOf = new Map<string, string>();
    const byUid = new Map(this.lives.map((life) => [life.uid, life]));
    for (const [uid, ids] of this.claims) {
      if (ids.size > 1) wrong.push(`${byUid.get(uid)?.name} ran in ${[...ids]} in one life`);
      for (const id of ids) {
        const other = authorityOf.get(id);
        if (other !== undefined) wrong.push(`VM ${id} served ${other} and ${uid}`);
        authorityOf.set(id, uid);
      }
    }
    const perName = new Map<string, VmView[]>();
    for (const vm of this.world.sandboxd.control.history()) {
      const name = vm.claimRef.slice(vm.claimRef.indexOf("/") + 1);
      perName.set(name, [...(perName.get(name) ?? []), vm]);
    }
    for (const [name, vms] of perName) {
      const lives = this.lives.filter((life) => life.name === name);
      if (vms.length > lives.length) wrong.push(`${name} had ${lives.length} lives and ${vms.length} VMs`);
      for (const vm of vms) {
        const life = byUid.get(authorityOf.get(vm.id) ?? "");
        const fault = life === undefined ? anonymousFault(vm, lives) : fateFault(vm, life);
        if (fault !== undefined) wrong.push(`VM ${vm.id} of ${name} ${fault}`);
      }
    }
    return wrong;
  }

  /** VMs whose id no Pod ever showed: granted, and the daemon killed before it could say so. */
  unseen(): number {
    const shown = new Set([...this.claims.values()].flatMap((ids) => [...ids]));
    return this.world.sandboxd.control.history().filter((vm) => !shown.has(vm.id)).length;
  }
}

/** Whether Pod and VM are each other's, and the Pod says so in full. */
function runsIn(pod: Pod | undefined, vm: VmView): boolean {
  return (
    pod?.status.phase === "Running" &&
    pod.metadata.deletionTimestamp === undefined &&
    pod.metadata.annotations?.[annotation("claim-id")] === vm.id &&
    pod.status.podIP === vm.address.split(":")[0] &&
    ["Ready", "ContainersReady"].every((type) => conditionOf(pod, type)?.status === "True")
  );
}

/** What is wrong with the end of a VM whose authority is known. */
function fateFault(vm: VmView, life: Life): string | undefined {
  if (vm.endedBy === undefined)
    return life.endedMs === undefined ? undefined : "lives, and its owner does not";
  if (vm.endedBy !== "sandbox" && vm.endedBy !== "root") return `ended by ${vm.endedBy}`;
  if (life.endedMs === undefined) return "was released, and its owner lives";
  if ((vm.endedAtMs ?? 0) < life.endedMs - slackMs) return "was released before its owner's end";
  return undefined;
}

/** The same for one whose authority no Pod ever showed: somebody of that name must explain it. */
function anonymousFault(vm: VmView, lives: Life[]): string | undefined {
  const born = lives.filter((life) => life.fromMs <= vm.claimedAtMs + slackMs);
  if (born.length === 0) return "was claimed before there was anybody to claim it for";
  return born.some((life) => fateFault(vm, life) === undefined) ? undefined : fateFault(vm, born[0] as Life);
}

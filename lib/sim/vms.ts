/**
 * The VMs and warm pools of the sandboxd stand-in: what a node knows and decides, without HTTP.
 * Rules: sandboxd's HTTP API as its documentation states it.
 */

export interface PoolKey {
  template: string;
  net: string;
  size: string;
}

/** A warm pool as the configuration names it. */
export interface PoolSpec {
  template: string;
  /** Default "none". */
  net?: string;
  /** Default "small". */
  size?: string;
  /** VMs that wait for a claim now. */
  warm: number;
  /** What a refill fills up to. Default: `warm`. */
  target?: number;
}

export interface Pool {
  key: PoolKey;
  warm: number;
  target: number;
}

/** How a VM ended. */
export type EndedBy =
  /** Released with its own token. */
  | "sandbox"
  /** Released with the root token. */
  | "root"
  /** Its lease ended. */
  | "reaper"
  /** It was archived and its retention ended. */
  | "retention"
  /** Killed through the control: a crash, an operator. */
  | "killed";

/** One VM that was ever granted. Times are milliseconds since the epoch; deadline 0 = kept for ever. */
export interface Vm {
  id: string;
  token: string;
  key: PoolKey;
  claimRef: string;
  /** Empty: claimed with the root token. */
  tenant: string;
  address: string;
  claimedAtMs: number;
  deadlineMs: number;
  /** Length of the lease it was granted, which a wake from the archive grants again. */
  leaseSeconds: number;
  hibernated: boolean;
  archived: boolean;
  /** Volumes are attached: it does not hibernate. */
  volumes: boolean;
  wakes: number;
  /** Absent while it lives. */
  endedAtMs?: number;
  endedBy?: EndedBy;
}

/** What the node is like; all of it can change while it runs. */
export interface NodeSettings {
  /** 0 = no cap. */
  maxClaims: number;
  draining: boolean;
  /** Not empty: the node cannot attach another VM, and says why. */
  atCapacity: string;
  /** The node has an egress attachment. */
  egress: boolean;
  /** Peers with warm capacity, as host:port: a claim without a warm VM is redirected there. */
  peers: string[];
  /** Without a warm VM and without a peer: refuse with 429, or boot one, which takes `coldMs`. */
  cold: "refuse" | "boot";
  coldMs: number;
  /** Claims of templates that no pool has are cold ones, not 400. */
  anyTemplate: boolean;
  /** An expired hibernated VM is archived for so long instead of destroyed; 0 = for ever, null = never archived. */
  archiveKeepMs: number | null;
}

export interface ClaimRequest {
  template: string;
  net: string;
  size: string;
  ttlSeconds: number;
  claimRef: string;
  noRedirect: boolean;
  volumes: boolean;
  tenant: string;
  /** False once the process the request came to is gone. */
  alive(): boolean;
}

export type Refusal = { ok: false; status: number; error: string };
export type ClaimOutcome = { ok: true; vm: Vm } | { ok: true; redirect: string[] } | Refusal;

/** Memory and CPUs by size, as sandboxd has them. */
export const sizes: Record<string, { cpus: number; memoryBytes: number }> = {
  small: { cpus: 1, memoryBytes: 512 << 20 },
  medium: { cpus: 2, memoryBytes: 1 << 30 },
  large: { cpus: 4, memoryBytes: 4 * 2 ** 30 },
  xlarge: { cpus: 4, memoryBytes: 8 * 2 ** 30 },
  "2xlarge": { cpus: 8, memoryBytes: 16 * 2 ** 30 },
};

const ttlDefaultSeconds = 300;
const ttlMaxSeconds = 86_400;
/** VMs that ended are remembered up to this many; the oldest are forgotten. */
const endedMax = 200_000;

export interface VmsOptions {
  now: () => number;
  random: () => string;
  settings: NodeSettings;
  pools: PoolSpec[];
  /** Host of every VM's address; absent: a distinct 10.88.x.y each. */
  vmHost?: string;
  vmPort: number;
  /** Makes a VM's present state durable. Called before a claim is answered. */
  persist: (vm: Vm) => void;
  /** VMs of an earlier run, ended ones included. */
  restored: Vm[];
}

export interface Vms {
  settings: NodeSettings;
  pools(): Pool[];
  /** Adds a pool or changes one. */
  setPool(spec: PoolSpec): Pool;
  /** Drops every pool that is not among these. */
  replacePools(specs: PoolSpec[]): void;
  /** Fills every pool up to its target. */
  refill(): void;
  claim(request: ClaimRequest): Promise<ClaimOutcome> | ClaimOutcome;
  /** The live VM of this id. */
  get(id: string): Vm | undefined;
  alive(): Vm[];
  /** Every VM ever granted, in order of grant. */
  history(): Vm[];
  end(vm: Vm, by: EndedBy): void;
  hibernate(vm: Vm): Refusal | undefined;
  wake(vm: Vm): void;
  renew(vm: Vm, ttlSeconds: number): Refusal | undefined;
  /** Archives a VM as the idle sweep would; its deadline becomes the retention's. */
  archive(vm: Vm): void;
  setDeadline(vm: Vm, deadlineMs: number): void;
  /** Ends, or archives, every VM whose deadline has passed. Cheap when none has. */
  reap(): void;
}

export function createVms(options: VmsOptions): Vms {
  const { settings, now, random, persist } = options;
  const pools = new Map<string, Pool>();
  const live = new Map<string, Vm>();
  const granted = new Map<string, Vm>();
  let ended = 0;
  let addresses = 0;
  let nextDeadlineMs = Number.POSITIVE_INFINITY;

  for (const vm of options.restored) {
    granted.set(vm.id, vm);
    if (vm.endedBy) ended++;
    else live.set(vm.id, vm);
    addresses++;
    noteDeadline(vm);
  }

  function noteDeadline(vm: Vm): void {
    if (!vm.endedBy && vm.deadlineMs > 0) nextDeadlineMs = Math.min(nextDeadlineMs, vm.deadlineMs);
  }

  function setPool(spec: PoolSpec): Pool {
    if (typeof spec?.template !== "string" || typeof spec.warm !== "number")
      throw new Error("a pool needs template and warm");
    const key = { template: spec.template, net: spec.net || "none", size: spec.size || "small" };
    const fault = axisFault(key);
    if (fault) throw new Error(fault);
    const pool = { key, warm: spec.warm, target: spec.target ?? spec.warm };
    pools.set(poolName(key), pool);
    return pool;
  }
  for (const spec of options.pools) setPool(spec);

  function address(): string {
    const n = addresses++;
    // .0 and .255 are left out, so that an address never looks like a network's own.
    const host = options.vmHost ?? `10.88.${Math.floor(n / 254) % 256}.${(n % 254) + 1}`;
    return `${host.includes(":") && !host.startsWith("[") ? `[${host}]` : host}:${options.vmPort}`;
  }

  function quota(): Refusal | undefined {
    const refuse = (error: string): Refusal => ({
      ok: false,
      status: 429,
      error: `quota exceeded: ${error}`,
    });
    if (settings.draining) return refuse("node draining");
    if (settings.maxClaims > 0 && live.size >= settings.maxClaims)
      return refuse(`${live.size} live claims, cap ${settings.maxClaims}`);
    return undefined;
  }

  function claim(request: ClaimRequest): Promise<ClaimOutcome> | ClaimOutcome {
    const key = { template: request.template, net: request.net || "none", size: request.size || "small" };
    const fault = axisFault(key);
    if (fault) return { ok: false, status: 400, error: fault };
    const known =
      settings.anyTemplate || [...pools.values()].some((pool) => pool.key.template === key.template);
    if (!known) return { ok: false, status: 400, error: `unknown template ${JSON.stringify(key.template)}` };
    if (key.net === "egress" && !settings.egress)
      return { ok: false, status: 409, error: "no egress attachment on this node" };

    // Draining or full, a node names a warm peer before it refuses.
    const redirect: ClaimOutcome | undefined =
      settings.peers.length > 0 && !request.noRedirect ? { ok: true, redirect: settings.peers } : undefined;
    const refused = quota();
    if (refused) return redirect ?? refused;

    const pool = pools.get(poolName(key));
    if (pool && pool.warm > 0) {
      pool.warm--;
      return { ok: true, vm: grant(request, key) };
    }
    if (redirect) return redirect;
    if (settings.atCapacity !== "")
      return { ok: false, status: 429, error: `at capacity: ${settings.atCapacity}` };
    if (settings.cold === "refuse")
      return { ok: false, status: 429, error: `no warm sandbox for ${key.template} ${key.net} ${key.size}` };
    return boot(request, key);
  }

  async function boot(request: ClaimRequest, key: PoolKey): Promise<ClaimOutcome> {
    await new Promise((resolve) => setTimeout(resolve, settings.coldMs));
    if (!request.alive()) return { ok: false, status: 500, error: "provisioning failed" };
    return quota() ?? { ok: true, vm: grant(request, key) };
  }

  function grant(request: ClaimRequest, key: PoolKey): Vm {
    const leaseSeconds = clampTtl(request.ttlSeconds);
    const vm: Vm = {
      id: `sb_${random().replaceAll("-", "").slice(0, 16)}`,
      token: random().replaceAll("-", ""),
      key,
      claimRef: request.claimRef,
      tenant: request.tenant,
      address: address(),
      claimedAtMs: now(),
      deadlineMs: now() + leaseSeconds * 1000,
      leaseSeconds,
      hibernated: false,
      archived: false,
      volumes: request.volumes,
      wakes: 0,
    };
    persist(vm);
    live.set(vm.id, vm);
    granted.set(vm.id, vm);
    noteDeadline(vm);
    return vm;
  }

  function end(vm: Vm, by: EndedBy): void {
    if (vm.endedBy) return;
    vm.endedAtMs = now();
    vm.endedBy = by;
    persist(vm);
    live.delete(vm.id);
    if (++ended <= endedMax) return;
    for (const old of granted.values()) {
      if (!old.endedBy) continue;
      granted.delete(old.id);
      ended--;
      break;
    }
  }

  function archive(vm: Vm): void {
    const keepMs = settings.archiveKeepMs ?? 0;
    vm.hibernated = true;
    vm.archived = true;
    vm.deadlineMs = keepMs > 0 ? now() + keepMs : 0;
    noteDeadline(vm);
    persist(vm);
  }

  return {
    settings,
    pools: () => [...pools.values()],
    setPool,
    replacePools(specs) {
      const kept = new Set(specs.map((spec) => poolName(setPool(spec).key)));
      for (const name of pools.keys()) if (!kept.has(name)) pools.delete(name);
    },
    refill() {
      if (settings.draining || settings.atCapacity !== "") return;
      for (const pool of pools.values()) pool.warm = Math.max(pool.warm, pool.target);
    },
    claim,
    get: (id) => live.get(id),
    alive: () => [...live.values()],
    history: () => [...granted.values()],
    end,
    hibernate(vm) {
      if (vm.key.net === "egress")
        return { ok: false, status: 409, error: "egress sandboxes do not hibernate" };
      if (vm.volumes) return { ok: false, status: 409, error: "sandboxes with volumes do not hibernate" };
      vm.hibernated = true;
      persist(vm);
      return undefined;
    },
    wake(vm) {
      if (!vm.hibernated) return;
      if (vm.archived) vm.deadlineMs = now() + vm.leaseSeconds * 1000;
      vm.archived = false;
      vm.hibernated = false;
      vm.wakes++;
      noteDeadline(vm);
      persist(vm);
    },
    renew(vm, ttlSeconds) {
      if (vm.archived) return { ok: false, status: 409, error: "sandbox is archived; wake it first" };
      vm.leaseSeconds = clampTtl(ttlSeconds);
      vm.deadlineMs = now() + vm.leaseSeconds * 1000;
      noteDeadline(vm);
      persist(vm);
      return undefined;
    },
    archive,
    setDeadline(vm, deadlineMs) {
      vm.deadlineMs = deadlineMs;
      noteDeadline(vm);
      persist(vm);
    },
    reap() {
      const atMs = now();
      if (atMs <= nextDeadlineMs) return;
      nextDeadlineMs = Number.POSITIVE_INFINITY;
      for (const vm of [...live.values()]) {
        if (vm.deadlineMs === 0 || atMs <= vm.deadlineMs) noteDeadline(vm);
        else if (vm.archived) end(vm, "retention");
        else if (vm.hibernated && settings.archiveKeepMs !== null) archive(vm);
        else end(vm, "reaper");
      }
    },
  };
}

function poolName(key: PoolKey): string {
  return `${key.template}|${key.net}|${key.size}`;
}

function axisFault(key: PoolKey): string | undefined {
  if (key.template === "") return "template must not be empty";
  if (key.net !== "none" && key.net !== "egress") return `unknown net shape ${JSON.stringify(key.net)}`;
  if (!Object.hasOwn(sizes, key.size)) return `unknown size ${JSON.stringify(key.size)}`;
  return undefined;
}

function clampTtl(seconds: number): number {
  return seconds <= 0 ? ttlDefaultSeconds : Math.min(seconds, ttlMaxSeconds);
}

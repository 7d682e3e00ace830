/**
 * A stand-in for sandboxd over real sockets: its HTTP API, its pools, leases and lifecycle, and faults on command.
 * For the demo, tests and benchmarks. Rules: sandboxd's HTTP API as its documentation states it; where the stand-in
 * differs it is said below.
 *
 * - A cold claim is refused with 429 unless `cold: "boot"`: the real one clones or boots, which may take seconds.
 * - A template that no pool has is 400 unless `anyTemplate`: the real one tries to boot an image of that name.
 * - Every VM has an address of its own; the real `owner_addr` is the node's.
 */
import type { Fault, FaultState } from "./faults.ts";
import { type Handler, json, type SimReply, type SimRequest, startSimServer, text } from "./http.ts";
import { openJournal } from "./journal.ts";
import { callRemote, remotePrefix } from "./remote.ts";
import {
  type ClaimOutcome,
  createVms,
  type NodeSettings,
  type Pool,
  type PoolSpec,
  sizes,
  type Vm,
} from "./vms.ts";

export interface SandboxdOptions extends Partial<NodeSettings> {
  /** 0 = any free port. */
  port?: number;
  /** Default 127.0.0.1. */
  hostname?: string;
  /** The root token. Absent: the node's endpoints are open, as on a real node without api_token. */
  token?: string;
  /** Tenant name by its token. */
  tenants?: Record<string, string>;
  pools?: PoolSpec[];
  /** Refill every pool so often; 0 = only through the control. Default 0. */
  refillIntervalMs?: number;
  /** Look for ended leases so often, beside at each request; 0 = only then. Default 1000. */
  reapIntervalMs?: number;
  /** One host for every VM's address instead of distinct ones. */
  vmHost?: string;
  /** Default 8080. */
  vmPort?: number;
  /** Claims live in this file across restarts. */
  statePath?: string;
  /** Serve the control under /_sim/ as well. Whoever reaches the port can then do everything. */
  control?: boolean;
  now?: () => number;
  /** Something unguessable, at least 16 hexadecimal digits, hyphens allowed. */
  random?: () => string;
}

/** A VM as the control shows it: everything but its token. */
export type VmView = Omit<Vm, "token">;

/** Every function takes at most one JSON value and answers one, so the remote control has them all. */
export interface SandboxdControl {
  fault(fault: Fault): number;
  faults(): FaultState[];
  clearFaults(id?: number): void;
  /** Requests so far, by `METHOD /path` with `{id}` for the sandbox. */
  counts(): Record<string, number>;
  resetCounts(): void;
  pools(): Pool[];
  setPool(spec: PoolSpec): Pool;
  /** Fills the pools up to their targets. */
  refill(): Pool[];
  settings(): NodeSettings;
  /** Changes some of the node's settings, such as `{draining: true}`, and answers all. */
  set(change: Partial<NodeSettings>): NodeSettings;
  /** The root token from now on; the last one is refused. */
  setToken(token: string): void;
  /** The live VMs. */
  index(): VmView[];
  /** Every VM ever granted, in order, with how it ended. */
  history(): VmView[];
  /** The VM is gone before its deadline: crashed, or removed by an operator. */
  kill(id: string): void;
  archive(id: string): void;
  setDeadline(change: { id: string; deadlineMs: number }): void;
  /** Ends the leases that are over. */
  reap(): void;
  /** Requests in flight die, warm VMs are made anew, a drain is forgotten, claims live. Down for `downMs`. */
  restart(options?: { downMs?: number }): Promise<void>;
  /** Refuses connections, until `up` or for `ms`. */
  down(options?: { ms?: number }): Promise<void>;
  up(): Promise<void>;
}

export interface Sandboxd {
  /** `http://host:port` */
  url: string;
  stop(): Promise<void>;
  control: SandboxdControl;
}

const bodyBytesMax = 1 << 20;

type Caller =
  | { kind: "root" }
  | { kind: "tenant"; name: string }
  /** A bearer that is neither: perhaps a sandbox's own token. */
  | { kind: "other"; token: string }
  | { kind: "none" };

/** Starts it. Rejects when the port is taken or the state file cannot be read. */
export async function startSandboxd(options: SandboxdOptions = {}): Promise<Sandboxd> {
  const now = options.now ?? Date.now;
  const journal = options.statePath === undefined ? undefined : openJournal(options.statePath);
  const vms = createVms({
    now,
    random: options.random ?? (() => crypto.randomUUID()),
    settings: {
      maxClaims: options.maxClaims ?? 0,
      draining: options.draining ?? false,
      atCapacity: options.atCapacity ?? "",
      egress: options.egress ?? true,
      peers: options.peers ?? [],
      cold: options.cold ?? "refuse",
      coldMs: options.coldMs ?? 2000,
      anyTemplate: options.anyTemplate ?? false,
      archiveKeepMs: options.archiveKeepMs ?? null,
    },
    pools: options.pools ?? [],
    vmHost: options.vmHost,
    vmPort: options.vmPort ?? 8080,
    persist: (vm) => journal?.persist(vm),
    restored: journal?.restored ?? [],
  });
  const { settings } = vms;
  let rootToken = options.token;
  let counts: Record<string, number> = {};
  const tally = { warm: 0, cold: 0, releases: 0, hibernates: 0, wakes: 0 };

  function callerOf(request: SimRequest): Caller {
    const header = request.headers.authorization ?? "";
    const token = header.startsWith("Bearer ") ? header.slice("Bearer ".length) : "";
    if (token === "") return { kind: "none" };
    if (rootToken && token === rootToken) return { kind: "root" };
    const tenant = options.tenants?.[token];
    return tenant === undefined ? { kind: "other", token } : { kind: "tenant", name: tenant };
  }

  /** The node's endpoints: root, and tenants where they may. A node without tokens is open. */
  function nodeCaller(request: SimRequest, tenants: boolean): { tenant: string } | SimReply {
    if (!rootToken && !options.tenants) return { tenant: "" };
    const caller = callerOf(request);
    if (caller.kind === "root") return { tenant: "" };
    if (caller.kind === "tenant")
      return tenants ? { tenant: caller.name } : failure(403, "root token required");
    return failure(401, "invalid api token");
  }

  /** A sandbox's endpoints: its own token, or root. Anything else learns nothing: 404. */
  function ownSandbox(request: SimRequest, id: string): { vm: Vm; root: boolean } | SimReply {
    const caller = callerOf(request);
    if (caller.kind === "none") return failure(401, "missing bearer token");
    const vm = vms.get(id);
    const root = caller.kind === "root";
    if (!vm || !(root || (caller.kind === "other" && caller.token === vm.token)))
      return failure(404, "unknown sandbox");
    return { vm, root };
  }

  function claim(request: SimRequest): Promise<SimReply> | SimReply {
    const caller = nodeCaller(request, true);
    if ("status" in caller) return caller;
    const body = parse(request.body);
    if (!body || !fits(body)) return failure(400, "invalid request body");
    const outcome = vms.claim({
      template: body.template ?? "",
      net: body.net ?? "",
      size: body.size ?? "",
      ttlSeconds: body.ttl_seconds ?? 0,
      claimRef: body.claim_ref ?? "",
      noRedirect: body.no_redirect ?? false,
      volumes: (body.volumes ?? []).length > 0,
      tenant: caller.tenant,
      alive: request.alive,
    });
    if (!(outcome instanceof Promise)) {
      if ("vm" in outcome) tally.warm++;
      return claimReply(outcome);
    }
    return outcome.then((cold) => {
      if ("vm" in cold) tally.cold++;
      return claimReply(cold);
    });
  }

  function sandboxCall(request: SimRequest, id: string, verb: string): SimReply {
    const own = ownSandbox(request, id);
    if ("status" in own) return own;
    const { vm, root } = own;
    if (verb === "release") {
      vms.end(vm, root ? "root" : "sandbox");
      tally.releases++;
      return { status: 204 };
    }
    if (verb === "hibernate") {
      const refused = vms.hibernate(vm);
      if (refused) return failure(refused.status, refused.error);
      tally.hibernates++;
      return { status: 204 };
    }
    if (verb === "wake") {
      vms.wake(vm);
      tally.wakes++;
      return { status: 204 };
    }
    const body = request.body === "" ? {} : parse(request.body);
    const ttlSeconds = body?.ttl_seconds ?? 0;
    if (typeof ttlSeconds !== "number" || !Number.isInteger(ttlSeconds))
      return failure(400, "invalid request body");
    const refused = vms.renew(vm, ttlSeconds);
    return refused ? failure(refused.status, refused.error) : json(200, { deadline: goTime(vm.deadlineMs) });
  }

  function list(request: SimRequest, of: () => Vm[]): SimReply {
    const caller = nodeCaller(request, true);
    if ("status" in caller) return caller;
    const wanted = request.query.get("claim_ref") ?? "";
    const rows = of().filter(
      (vm) =>
        (caller.tenant === "" || vm.tenant === caller.tenant) && (wanted === "" || vm.claimRef === wanted),
    );
    return json(200, { sandboxes: rows.map(row) });
  }

  function info(): Record<string, unknown> {
    const alive = vms.alive();
    return {
      pools: vms.pools().map((pool) => ({
        key: pool.key,
        warm: pool.warm,
        refilling: pool.warm < pool.target && (options.refillIntervalMs ?? 0) > 0 ? 1 : 0,
        target: pool.target,
        golden: true,
      })),
      claimed: alive.length,
      hibernated: alive.filter((vm) => vm.hibernated && !vm.archived).length,
      archived: alive.filter((vm) => vm.archived).length,
      draining: settings.draining || undefined,
      at_capacity: settings.atCapacity !== "" || undefined,
      at_capacity_reason: settings.atCapacity || undefined,
      peers: settings.peers.length > 0 ? settings.peers : undefined,
    };
  }

  function metrics(): SimReply {
    const lines: string[] = [];
    const metric = (name: string, kind: string, values: [labels: string, value: number][]) => {
      lines.push(`# TYPE sandboxd_${name} ${kind}`);
      for (const [labels, value] of values) lines.push(`sandboxd_${name}${labels} ${value}`);
    };
    const { claimed, hibernated, archived } = info();
    metric("claimed", "gauge", [["", Number(claimed)]]);
    metric("hibernated", "gauge", [["", Number(hibernated)]]);
    metric("archived", "gauge", [["", Number(archived)]]);
    metric("draining", "gauge", [["", settings.draining ? 1 : 0]]);
    const labels = ({ key }: Pool) => `{template="${key.template}",net="${key.net}",size="${key.size}"}`;
    for (const [name, field] of [
      ["pool_warm", "warm"],
      ["pool_target", "target"],
    ] as const)
      metric(
        name,
        "gauge",
        vms.pools().map((pool) => [labels(pool), pool[field]]),
      );
    metric("claims_total", "counter", [
      ['{tier="warm"}', tally.warm],
      ['{tier="cold"}', tally.cold],
    ]);
    metric("releases_total", "counter", [["", tally.releases]]);
    const reaps = vms.history().filter((vm) => vm.endedBy === "reaper" || vm.endedBy === "retention");
    metric("reaps_total", "counter", [["", reaps.length]]);
    metric("hibernates_total", "counter", [["", tally.hibernates]]);
    metric("wakes_total", "counter", [["", tally.wakes]]);
    return {
      status: 200,
      headers: { "content-type": "text/plain; version=0.0.4" },
      body: `${lines.join("\n")}\n`,
    };
  }

  /** One sandbox as root reads it; with its token where the node has one to ask for. */
  function readSandbox(vm: Vm | undefined): SimReply {
    if (!vm) return failure(404, "unknown sandbox");
    return json(200, rootToken ? { ...row(vm), token: vm.token } : row(vm));
  }

  function node(request: SimRequest): SimReply {
    const caller = nodeCaller(request, false);
    if ("status" in caller) return caller;
    switch (`${request.method} ${request.path}`) {
      case "GET /v1/info":
        return json(200, info());
      case "GET /metrics":
        return metrics();
      case "POST /v1/drain":
        settings.draining = true;
        for (const pool of vms.pools()) pool.warm = 0;
        return json(200, info());
      case "DELETE /v1/drain":
        settings.draining = false;
        vms.refill();
        return json(200, info());
      case "PUT /v1/pools": {
        const pools = parse(request.body)?.pools;
        if (!Array.isArray(pools)) return failure(400, "invalid request body");
        try {
          vms.replacePools(pools.map((pool) => ({ ...pool, warm: pool.warm ?? 0 })));
        } catch (error) {
          return failure(400, error instanceof Error ? error.message : String(error));
        }
        return json(200, info());
      }
      default:
        return text(404, "404 page not found\n");
    }
  }

  function handle(request: SimRequest): Promise<SimReply> | SimReply {
    vms.reap();
    const { method, path } = request;
    if (method === "POST" && path === "/v1/claim") return claim(request);
    if (method === "GET" && path === "/healthz") return text(200, "ok");
    if (method === "GET" && path === "/v1/sandboxes") return list(request, vms.alive);
    const [, id, verb] = /^\/v1\/sandboxes\/([^/]+)(?:\/([a-z]+))?$/.exec(path) ?? [];
    if (id !== undefined && method === "POST" && verb && sandboxVerbs.includes(verb))
      return sandboxCall(request, id, verb);
    if (id !== undefined && method === "GET" && (verb === undefined || verb === "stats")) {
      const caller = nodeCaller(request, false);
      if ("status" in caller) return caller;
      const vm = vms.get(id);
      return verb && vm ? json(200, stats(vm, now())) : readSandbox(vm);
    }
    return node(request);
  }

  /** Reads of the index as it is now, for the `stale` fault; everything else as usual. */
  function freeze(): Handler {
    const frozen = vms.alive().map((vm) => ({ ...vm }));
    return (request) => {
      if (request.method === "GET" && request.path === "/v1/sandboxes") return list(request, () => frozen);
      const [, id] = /^\/v1\/sandboxes\/([^/]+)$/.exec(request.path) ?? [];
      if (request.method !== "GET" || id === undefined) return handle(request);
      const caller = nodeCaller(request, false);
      return "status" in caller ? caller : readSandbox(frozen.find((vm) => vm.id === id));
    };
  }

  const server = await startSimServer({
    port: options.port,
    hostname: options.hostname,
    bodyBytesMax,
    tooLarge: failure(400, "invalid request body"),
    exemptPrefix: remotePrefix,
    freeze,
    handle(request) {
      if (request.path.startsWith(remotePrefix) && options.control)
        return callRemote(control, request, ["restart", "down"]);
      const route = request.path.replace(/^\/v1\/sandboxes\/[^/]+/, "/v1/sandboxes/{id}");
      const name = `${request.method} ${route}`;
      counts[name] = (counts[name] ?? 0) + 1;
      return handle(request);
    },
  });

  function known(id: string): Vm {
    const vm = vms.get(id);
    if (!vm) throw new Error(`no live VM ${id}`);
    return vm;
  }

  const control: SandboxdControl = {
    fault: (fault) => server.faults.add(fault),
    faults: () => server.faults.list(),
    clearFaults: (id) => server.faults.clear(id),
    counts: () => ({ ...counts }),
    resetCounts() {
      counts = {};
    },
    pools: vms.pools,
    setPool: vms.setPool,
    refill() {
      vms.refill();
      return vms.pools();
    },
    settings: () => settings,
    set: (change) => Object.assign(settings, change),
    setToken(token) {
      rootToken = token;
    },
    index: () => vms.alive().map(view),
    history: () => vms.history().map(view),
    kill: (id) => vms.end(known(id), "killed"),
    archive: (id) => vms.archive(known(id)),
    setDeadline: ({ id, deadlineMs }) => vms.setDeadline(known(id), deadlineMs),
    reap: vms.reap,
    async restart({ downMs = 0 } = {}) {
      await server.down();
      settings.draining = false;
      for (const pool of vms.pools()) pool.warm = pool.target;
      if (downMs > 0) await new Promise((resolve) => setTimeout(resolve, downMs));
      await server.up();
    },
    async down({ ms } = {}) {
      await server.down();
      if (ms === undefined) return;
      await new Promise((resolve) => setTimeout(resolve, ms));
      await server.up();
    },
    up: server.up,
  };

  const timers = [
    every(options.refillIntervalMs ?? 0, vms.refill),
    every(options.reapIntervalMs ?? 1000, vms.reap),
  ];
  return {
    url: server.url,
    control,
    async stop() {
      for (const timer of timers) clearInterval(timer);
      await server.stop();
      journal?.close();
    },
  };
}

const sandboxVerbs = ["release", "renew", "hibernate", "wake"];

function every(intervalMs: number, act: () => void): ReturnType<typeof setInterval> | undefined {
  if (intervalMs <= 0) return undefined;
  const timer = setInterval(act, intervalMs);
  timer.unref();
  return timer;
}

function failure(status: number, error: string): SimReply {
  return json(status, { error });
}

function claimReply(outcome: ClaimOutcome): SimReply {
  if (!outcome.ok) return failure(outcome.status, outcome.error);
  if ("redirect" in outcome) return json(200, { redirect: outcome.redirect });
  const { id, token, deadlineMs, address } = outcome.vm;
  return json(200, { id, token, deadline: goTime(deadlineMs), owner_addr: address });
}

/** A VM as the index lists it: never its token. */
function row(vm: Vm): Record<string, unknown> {
  return {
    id: vm.id,
    key: vm.key,
    deadline: goTime(vm.deadlineMs),
    claimed_at: goTime(vm.claimedAtMs),
    hibernated: vm.hibernated,
    archived: vm.archived || undefined,
    claim_ref: vm.claimRef || undefined,
  };
}

function stats(vm: Vm, atMs: number): Record<string, unknown> {
  const size = sizes[vm.key.size];
  const memoryBytes = size?.memoryBytes ?? 0;
  return {
    id: vm.id,
    cpu_count: size?.cpus ?? 0,
    mem_total_bytes: memoryBytes,
    mem_used_bytes: vm.hibernated ? 0 : Math.floor(memoryBytes * 0.4),
    mem_used_measured: !vm.hibernated,
    hibernated: vm.hibernated,
    measured_at: goTime(atMs),
  };
}

function view({ token: _, ...rest }: Vm): VmView {
  return rest;
}

/** As Go writes a time: nanoseconds, and the zero time for "none". */
function goTime(atMs: number): string {
  return atMs === 0 ? "0001-01-01T00:00:00Z" : new Date(atMs).toISOString().replace("Z", "000001Z");
}

function parse(body: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(body);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

interface ClaimBody {
  template?: string;
  net?: string;
  size?: string;
  ttl_seconds?: number;
  claim_ref?: string;
  no_redirect?: boolean;
  volumes?: unknown[];
}

const claimFields: Record<keyof ClaimBody, (value: unknown) => boolean> = {
  template: (value) => typeof value === "string",
  net: (value) => typeof value === "string",
  size: (value) => typeof value === "string",
  ttl_seconds: Number.isInteger,
  claim_ref: (value) => typeof value === "string",
  no_redirect: (value) => typeof value === "boolean",
  volumes: Array.isArray,
};

/** Whether a Go decoder would take it: known fields of the right type, unknown ones ignored. */
function fits(body: Record<string, unknown>): body is ClaimBody & Record<string, unknown> {
  return Object.entries(claimFields).every(([name, isRight]) => body[name] == null || isRight(body[name]));
}

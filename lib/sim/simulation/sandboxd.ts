import type { CallResult, ClaimResult, Effect, Intent, Listed, ReadResult } from "../../provider/types.ts";
import type { Random } from "./random.ts";

/** A microVM in truth. */
export interface Vm {
  id: string;
  token: string;
  claimRef: string;
  template: string;
  net: string;
  size: string;
  claimedAtMs: number;
  deadlineMs: number;
  alive: boolean;
  hibernated: boolean;
  /** Hibernated on our call, not by an operator. */
  hibernatedByUs: boolean;
  /** Granted to a claim of ours. */
  ours: boolean;
  /** The Pod generation that holds it, or held it last. */
  podUID: string;
  /** UID that decides about it; empty for a row of an old table. */
  authority: string;
  /** The reference it was claimed under has its owner's UID and a false name. */
  forged: boolean;
  /** Why nobody could find it again: the clock was stepped, the disk lost it, another's VM looks the same. */
  unfindable: string;
}

/** A claim whose caller has given up: sandboxd may still finish it, until `limitMs` (monotonic). */
export interface LateClaim {
  effect: Effect & { kind: "claim" };
  intent: Intent;
  limitMs: number;
  /** A search for it was answered since: sandboxd was not hung after the call's end. */
  heard: boolean;
  /** The disk forgot its intent. */
  forgotten?: boolean;
}

export const TEMPLATES = ["t1", "t2"];
/** Listings that a lagging answer may come from. */
const PAST_MAX = 4;
const TTL_MAX_SECONDS = 86_400;
const TTL_DEFAULT_SECONDS = 300;

export interface SandboxdSettings {
  /** claimed_at is cut to whole seconds. */
  coarseTimes: boolean;
}

/** A model of sandboxd: it decides about VMs in truth; whether its answers arrive is the simulation's affair. */
export function createModelSandboxd(settings: SandboxdSettings) {
  const vms = new Map<string, Vm>();
  const alive = new Set<Vm>();
  const past: Listed[][] = [];
  let ids = 0;
  const state = {
    warm: true,
    draining: false,
    /** Accepts calls and answers none. */
    hung: false,
    /** Every call answers 500. */
    broken: false,
    /** Leases never end. */
    endless: false,
  };
  let late: LateClaim[] = [];

  function create(vm: Partial<Vm> & { claimRef: string; claimedAtMs: number }): Vm {
    const n = ++ids;
    const made: Vm = {
      id: `sb_${n}`,
      token: `secret_${n}`,
      template: "t1",
      net: "none",
      size: "small",
      deadlineMs: 0,
      alive: true,
      hibernated: false,
      hibernatedByUs: false,
      ours: false,
      podUID: "",
      authority: "",
      forged: false,
      unfindable: "",
      ...vm,
    };
    if (settings.coarseTimes) made.claimedAtMs = Math.floor(made.claimedAtMs / 1000) * 1000;
    vms.set(made.id, made);
    alive.add(made);
    return made;
  }

  function end(vm: Vm): void {
    vm.alive = false;
    alive.delete(vm);
  }

  function grant(effect: Effect & { kind: "claim" }, intent: Intent, wallMs: number): Vm {
    const seconds =
      effect.ttlSeconds === 0 ? TTL_DEFAULT_SECONDS : Math.min(effect.ttlSeconds, TTL_MAX_SECONDS);
    return create({
      claimRef: effect.key,
      template: effect.template,
      net: effect.net === "" ? "none" : effect.net,
      size: effect.size === "" ? "small" : effect.size,
      claimedAtMs: wallMs,
      deadlineMs: state.endless ? 0 : wallMs + seconds * 1000,
      ours: true,
      podUID: intent.podUID,
      authority: intent.authority,
    });
  }

  /** Answers a claim; `vm` is what it granted. */
  function claim(
    effect: Effect & { kind: "claim" },
    intent: Intent,
    wallMs: number,
    random: Random,
  ): { result: ClaimResult; vm?: Vm } {
    const refuse = (kind: (ClaimResult & { ok: false })["cause"]["kind"]) => ({
      result: { ok: false as const, lost: false, cause: { kind, message: `refused: ${kind}` } },
    });
    if (state.broken) return refuse("provisioning_failed");
    if (!TEMPLATES.includes(effect.template)) return refuse("unknown_template");
    if (state.draining) return refuse("draining");
    if (!state.warm) return refuse(random.chance(0.5) ? "no_warm_capacity" : "max_claims");
    const vm = grant(effect, intent, wallMs);
    const { id, token, deadlineMs } = vm;
    return { result: { ok: true, grant: { id, token, address: `10.0.0.${ids}:9000`, deadlineMs } }, vm };
  }

  function listedOf(vm: Vm): Listed {
    const { id, template, net, size, deadlineMs, hibernated, claimRef } = vm;
    return { id, template, net, size, deadlineMs, claimedAtMs: vm.claimedAtMs, hibernated, claimRef };
  }

  function list(claimRef?: string): Listed[] {
    const rows: Listed[] = [];
    for (const vm of alive) if (claimRef === undefined || vm.claimRef === claimRef) rows.push(listedOf(vm));
    return rows;
  }

  /**
   * What it told earlier: the answer of a server that lags behind about which VMs there are and about their
   * leases. Whether a VM sleeps is never out of date: there the provider trusts a listing (see the assumptions
   * in docs/reliability.md).
   */
  function staleList(random: Random): Listed[] {
    const rows = past[random.below(past.length)] ?? list();
    return rows.map((row) => ({ ...row, hibernated: vms.get(row.id)?.hibernated ?? false }));
  }

  function remember(rows: Listed[]): Listed[] {
    if (past.push(rows) > PAST_MAX) past.shift();
    return rows;
  }

  function read(id: string): ReadResult {
    const vm = vms.get(id);
    if (!vm?.alive) return { ok: false, absent: true, why: "404" };
    return { ok: true, listed: listedOf(vm), token: vm.token, address: "10.0.0.9:9000" };
  }

  /** Calls with a VM's credential. */
  function call(
    effect: Effect & { kind: "release" | "hibernate" | "wake" | "renew" },
    wallMs: number,
    random: Random,
  ): CallResult {
    const vm = vms.get(effect.id);
    if (!vm?.alive) return { ok: false, kind: "gone", why: "404" };
    if (effect.token !== vm.token) return { ok: false, kind: "failed", why: "401" };
    switch (effect.kind) {
      case "release":
        end(vm);
        return { ok: true };
      case "hibernate":
        if (vm.net === "egress") return { ok: false, kind: "refused", why: "409" };
        vm.hibernated = vm.hibernatedByUs = true;
        return { ok: true };
      case "wake":
        vm.hibernated = vm.hibernatedByUs = false;
        return { ok: true };
      case "renew": {
        if (vm.hibernated) return { ok: false, kind: "refused", why: "409" };
        const seconds = Math.min(effect.ttlSeconds, TTL_MAX_SECONDS) * (random.chance(0.2) ? 0.5 : 1);
        vm.deadlineMs = vm.deadlineMs === 0 ? 0 : Math.max(vm.deadlineMs, wallMs + seconds * 1000);
        return { ok: true, deadlineMs: vm.deadlineMs };
      }
    }
  }

  /** The reaper: ends every VM whose lease is over. */
  function reap(wallMs: number): void {
    for (const vm of alive) if (vm.deadlineMs > 0 && wallMs >= vm.deadlineMs) end(vm);
  }

  return {
    vms,
    alive,
    state,
    get late() {
      return late;
    },
    set late(value: LateClaim[]) {
      late = value;
    },
    create,
    end,
    grant,
    claim,
    list,
    staleList,
    remember,
    read,
    call,
    reap,
  };
}

export type ModelSandboxd = ReturnType<typeof createModelSandboxd>;

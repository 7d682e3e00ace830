import type { Clock, WatchEvent } from "../kube/index.ts";
import { podView } from "../provider/pod.ts";
import { createProvider, type Provider, type ProviderOptions } from "../provider/provider.ts";
import type { Change, Effect, Event, Note, Table } from "../provider/types.ts";

export interface PodsOptions {
  provider: ProviderOptions;
  table: Table;
  /** Makes changes durable and applies them to `table`, or neither (lib/state). */
  commit: (changes: Change[]) => boolean;
  /** Carries out an effect; never rejects (`createEffects`). */
  runEffect: (effect: Effect) => Promise<Event>;
  onNote: (note: Note) => void;
  /** A fault of our own code while handling an event: said, never fatal. */
  onFault: (error: unknown, event: Event) => void;
  /** Our own time on one handover, in ms (`vk_sandbox_handover_seconds` in docs/performance.md). */
  onHandover?: (ms: number) => void;
  onEffect?: (kind: Effect["kind"], ms: number) => void;
  clock: Clock;
  /** A monotonic clock in ms, for durations and for every wait: the wall clock may be stepped. */
  ticks: () => number;
  random: () => number;
}

export interface Pods {
  /** Takes one event of the Pod watch, synchronously. */
  onWatch(event: WatchEvent): void;
  /** Starts what the loaded table asks for: verification, releases, recovery. */
  start(): void;
  /**
   * Stops taking new work and waits for what is in flight.
   *
   * @returns effects still in flight when the time was up
   */
  drain(timeoutMs: number): Promise<number>;
  readonly provider: Provider;
  /** Effects in flight now. */
  readonly inFlight: number;
}

/** Handovers whose time is being taken at once; beyond it, no more are timed. */
const TIMED_MAX = 4096;

/**
 * Joins the decision core to the world: watch events and answers go in, effects come out. The path from a
 * watch line to the claim request, and from the claim reply to the status patch, runs without a timer, a queue
 * or a second read.
 */
export function createPods(options: PodsOptions): Pods {
  const { clock, ticks, onNote, onFault, onHandover, onEffect } = options;
  let inFlight = 0;
  let draining = false;
  let idle: (() => void) | undefined;
  let armedMs = Number.POSITIVE_INFINITY;
  let disarm: (() => void) | undefined;
  /** When the event being handled was read; handover time is measured from it. */
  let readAt = 0;
  const timed = new Map<string, number>();

  const provider = createProvider(
    options.table,
    { commit: options.commit, run, note: onNote, random: options.random },
    options.provider,
    clock.now(),
    ticks(),
  );

  function run(effect: Effect): void {
    inFlight++;
    const startedAt = ticks();
    const answer = options.runEffect(effect);
    if (onHandover !== undefined) time(effect);
    answer.then((event) => {
      inFlight--;
      readAt = ticks();
      onEffect?.(effect.kind, readAt - startedAt);
      dispatch(event);
      if (inFlight === 0) idle?.();
    });
  }

  function time(effect: Effect): void {
    if (effect.kind === "claim") {
      if (timed.size < TIMED_MAX) timed.set(effect.key, ticks() - readAt);
    } else if (effect.kind === "publish" && timed.size > 0) {
      const before = timed.get(effect.key);
      if (before === undefined) return;
      timed.delete(effect.key);
      if (effect.status.phase === "Running") onHandover?.(before + ticks() - readAt);
    }
  }

  function dispatch(event: Event): void {
    try {
      provider.handle(event, clock.now(), ticks());
    } catch (error) {
      onFault(error, event);
    }
    arm();
  }

  function arm(): void {
    if (draining) return;
    const dueMs = provider.nextDueMs();
    if (dueMs >= armedMs || dueMs === Number.POSITIVE_INFINITY) return;
    disarm?.();
    armedMs = dueMs;
    disarm = clock.after(Math.max(0, Math.min(dueMs - ticks(), TIMER_MS_MAX)), () => {
      armedMs = Number.POSITIVE_INFINITY;
      dispatch({ type: "tick" });
    });
  }

  return {
    provider,
    get inFlight() {
      return inFlight;
    },
    start: arm,
    onWatch(event) {
      if (draining) return;
      readAt = ticks();
      switch (event.type) {
        case "relist":
        case "synced":
          return dispatch(event);
        case "object": {
          const pod = podView(event.object);
          if (pod !== undefined) dispatch({ type: "pod", pod });
          return;
        }
        case "gone": {
          const pod = podView(event.object);
          if (pod !== undefined) {
            const { key, uid, resourceVersion } = pod;
            dispatch({ type: "podGone", key, uid, resourceVersion });
          }
          return;
        }
      }
    },
    drain(timeoutMs) {
      draining = true;
      disarm?.();
      if (inFlight === 0) return Promise.resolve(0);
      return new Promise((resolve) => {
        const cancel = clock.after(timeoutMs, () => resolve(inFlight));
        idle = () => {
          cancel();
          resolve(0);
        };
      });
    },
  };
}

/** Longest single timer; a tick that comes early finds nothing due and is armed again. */
const TIMER_MS_MAX = 3_600_000;

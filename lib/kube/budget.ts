import type { Clock } from "./clock.ts";

/** Longest hold obeyed to the letter. */
export const holdMsMax = 60_000;

/** How a wait for the budget ended. */
export type Admission = "admitted" | "full" | "aborted";

export interface BudgetOptions {
  /** Requests a second, in the long run. */
  qps: number;
  /** Requests that may start at once after a quiet time. */
  burst: number;
  /** Requests in flight at once. Bun runs 256 at once for the whole process; heartbeats need some of them. */
  inFlightMax: number;
  /** Requests that may wait; one more is turned away. */
  waitingMax: number;
  clock: Clock;
}

/** The client-side budget: a token bucket and a bound on requests in flight, first come, first served. */
export interface Budget {
  /**
   * Asks to start one request.
   *
   * @returns undefined when it may start now (no promise, no timer), otherwise a promise of the outcome.
   *   Whoever was admitted calls `done` when the request has ended.
   */
  take(signal?: AbortSignal): Promise<Admission> | undefined;
  /** A request that was admitted has ended. */
  done(): void;
  /** The API server asked for silence (429, Retry-After): nothing starts before `untilMs`, and then at `qps`, not in a burst. */
  hold(untilMs: number): void;
  /** Requests waiting now. */
  readonly waiting: number;
  /** Requests in flight now. */
  readonly inFlight: number;
}

interface Waiter {
  settle: ((admission: Admission) => void) | undefined;
  signal: AbortSignal | undefined;
  onAbort: (() => void) | undefined;
}

/** Makes a budget that starts with a full bucket. */
export function createBudget(options: BudgetOptions): Budget {
  const { qps, burst, inFlightMax, waitingMax, clock } = options;
  let tokens = burst;
  let filledAtMs = clock.now();
  let heldUntilMs = 0;
  let inFlight = 0;
  let waiting = 0;
  let queue: Waiter[] = [];
  let head = 0;
  let cancelTimer: (() => void) | undefined;

  function fill(nowMs: number): void {
    // A wall clock set back must not stop the bucket for that long; only a hold means the future.
    if (heldUntilMs - nowMs > holdMsMax) heldUntilMs = nowMs;
    if (filledAtMs > Math.max(nowMs, heldUntilMs)) filledAtMs = nowMs;
    if (nowMs <= filledAtMs) return;
    tokens = Math.min(burst, tokens + ((nowMs - filledAtMs) * qps) / 1000);
    filledAtMs = nowMs;
  }

  function free(nowMs: number): boolean {
    fill(nowMs);
    return tokens >= 1 && inFlight < inFlightMax && nowMs >= heldUntilMs;
  }

  function start(): void {
    tokens -= 1;
    inFlight += 1;
  }

  /** Admits the waiters that may start, and arms one timer for the next when only time stands in its way. */
  function drain(): void {
    const nowMs = clock.now();
    while (waiting > 0 && free(nowMs)) {
      const waiter = queue[head];
      head += 1;
      if (waiter?.settle === undefined) continue;
      const settle = waiter.settle;
      waiter.settle = undefined;
      if (waiter.onAbort !== undefined) waiter.signal?.removeEventListener("abort", waiter.onAbort);
      waiting -= 1;
      start();
      settle("admitted");
    }
    if (waiting === 0) {
      queue = [];
      head = 0;
    } else if (head > 1024 && head * 2 > queue.length) {
      queue = queue.slice(head);
      head = 0;
    }
    if (waiting > 0 && inFlight < inFlightMax && cancelTimer === undefined) {
      const tokenMs = tokens >= 1 ? 0 : Math.ceil(((1 - tokens) * 1000) / qps);
      const waitMs = Math.max(1, tokenMs, heldUntilMs - nowMs);
      cancelTimer = clock.after(waitMs, () => {
        cancelTimer = undefined;
        drain();
      });
    }
  }

  return {
    take(signal) {
      if (waiting === 0 && free(clock.now())) {
        start();
        return undefined;
      }
      if (signal?.aborted) return Promise.resolve<Admission>("aborted");
      if (waiting >= waitingMax) return Promise.resolve<Admission>("full");
      return new Promise<Admission>((resolve) => {
        const waiter: Waiter = { settle: resolve, signal, onAbort: undefined };
        if (signal !== undefined) {
          waiter.onAbort = () => {
            if (waiter.settle === undefined) return;
            waiter.settle = undefined;
            waiting -= 1;
            resolve("aborted");
          };
          signal.addEventListener("abort", waiter.onAbort, { once: true });
        }
        queue.push(waiter);
        waiting += 1;
        drain();
      });
    },
    done() {
      inFlight -= 1;
      if (waiting > 0) drain();
    },
    hold(askedMs) {
      const untilMs = Math.min(askedMs, clock.now() + holdMsMax);
      if (untilMs <= heldUntilMs) return;
      heldUntilMs = untilMs;
      tokens = 0;
      filledAtMs = untilMs;
      if (cancelTimer !== undefined) {
        cancelTimer();
        cancelTimer = undefined;
        drain();
      }
    },
    get waiting() {
      return waiting;
    },
    get inFlight() {
      return inFlight;
    },
  };
}

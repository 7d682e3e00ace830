/** Time as a parameter: what is below cmd/ never asks the machine for it. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Runs `run` once after `delayMs`; calling what it returns takes that back. */
  after(delayMs: number, run: () => void): () => void;
}

/** The machine's own clock. A timer keeps the process alive until it ran or was taken back: whoever waits, waits. */
export const systemClock: Clock = {
  now: Date.now,
  after(delayMs, run) {
    const timer = setTimeout(run, delayMs);
    return () => clearTimeout(timer);
  },
};

/**
 * Whether less than `forMs` have passed since `sinceMs`. A time in the future is none: a clock that was set back by a day
 * must not make an answer hold for a day.
 */
export function isRecent(nowMs: number, sinceMs: number, forMs: number): boolean {
  const ageMs = nowMs - sinceMs;
  return ageMs >= 0 && ageMs < forMs;
}

/**
 * Waits for `delayMs`, or until `signal` aborts.
 *
 * @returns true when the time has passed, false when the wait was aborted
 */
export function pause(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<boolean> {
  if (signal?.aborted) return Promise.resolve(false);
  return new Promise((resolve) => {
    const aborted = () => {
      cancel();
      resolve(false);
    };
    const cancel = clock.after(delayMs, () => {
      signal?.removeEventListener("abort", aborted);
      resolve(true);
    });
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/**
 * Full-jitter exponential backoff: anything from nothing to the bound, so that a fleet that lost its API
 * server does not come back in step.
 *
 * @param attempt failures in a row before this wait, from 1
 * @param random a number in [0, 1)
 * @returns the wait in milliseconds, at most `maxMs`
 */
export function fullJitter(attempt: number, minMs: number, maxMs: number, random: () => number): number {
  const bound = Math.min(maxMs, minMs * 2 ** Math.min(Math.max(attempt - 1, 0), 30));
  return Math.floor(random() * bound);
}

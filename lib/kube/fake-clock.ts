import type { Clock } from "./clock.ts";

/** A clock for tests: time passes only in `advance`. */
export interface FakeClock extends Clock {
  /** Lets time pass; timers run in the order they are due, those they set included. */
  advance(ms: number): void;
  /** Timers set and not yet run. */
  readonly timers: number;
}

/** Makes a clock that stands at `startMs`. */
export function fakeClock(startMs = 1_000_000): FakeClock {
  let nowMs = startMs;
  let last = 0;
  const timers = new Map<number, { atMs: number; run: () => void }>();
  return {
    now: () => nowMs,
    after(delayMs, run) {
      last += 1;
      const id = last;
      timers.set(id, { atMs: nowMs + delayMs, run });
      return () => timers.delete(id);
    },
    advance(ms) {
      const untilMs = nowMs + ms;
      for (;;) {
        let due: [number, { atMs: number; run: () => void }] | undefined;
        for (const entry of timers) {
          if (entry[1].atMs <= untilMs && (due === undefined || entry[1].atMs < due[1].atMs)) due = entry;
        }
        if (due === undefined) break;
        timers.delete(due[0]);
        nowMs = Math.max(nowMs, due[1].atMs);
        due[1].run();
      }
      nowMs = untilMs;
    },
    get timers() {
      return timers.size;
    },
  };
}

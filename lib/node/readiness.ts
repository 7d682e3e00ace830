/** Whether sandboxd can be reached, without ever flapping on one answer (contract: Node). */
import type { Clock } from "../kube/index.ts";

/** What one probe came to. */
export type ProbeResult = { ok: true } | { ok: false; why: string };

export interface Readiness {
  state: "unknown" | "reachable" | "unreachable";
  /** Why the last failed probe failed; empty when the last one did not. */
  why: string;
}

export interface ReadinessOptions {
  /** Asks sandboxd whether it is there. No answer within `timeoutMs` counts as a failure, and so does a rejection. */
  probe: (timeoutMs: number) => Promise<ProbeResult>;
  /** How long sandboxd must be unreachable before that is believed. */
  notReadyAfterMs: number;
  clock: Clock;
  onChange: (now: Readiness) => void;
}

const probeIntervalMsMax = 10_000;
const probeIntervalMsMin = 50;
/** How soon a recovery is confirmed by a second probe. */
const confirmMs = 1000;
const successesToRecover = 2;

/**
 * Probes every 10 s (four times in `notReadyAfterMs` when that is shorter). Unreachable after enough failures
 * in a row to fill `notReadyAfterMs`, reachable again after two successes. Counts probes instead of comparing
 * times: a clock that steps by a day must not turn a Node NotReady.
 */
export function readiness(options: ReadinessOptions): { start(): void; stop(): void; current(): Readiness } {
  const { probe, notReadyAfterMs, clock, onChange } = options;
  const intervalMs = Math.max(
    probeIntervalMsMin,
    Math.min(probeIntervalMsMax, Math.floor(notReadyAfterMs / 4)),
  );
  const failuresToBelieve = Math.max(2, Math.ceil(notReadyAfterMs / intervalMs) + 1);
  let current: Readiness = { state: "unknown", why: "" };
  let failures = 0;
  let successes = 0;
  let running = false;
  let cancel = () => {};

  const move = (state: Readiness["state"], why: string) => {
    const changed = state !== current.state;
    current = { state, why };
    if (changed) onChange(current);
  };

  const judge = (result: ProbeResult) => {
    if (result.ok) {
      failures = 0;
      successes++;
      // Nothing bad is known of a sandboxd that was not asked before: its first answer is enough.
      if (current.state !== "unreachable" || successes >= successesToRecover) move("reachable", "");
      return;
    }
    successes = 0;
    failures++;
    if (failures >= failuresToBelieve) move("unreachable", result.why);
    else current = { ...current, why: result.why };
  };

  const round = async () => {
    const startedMs = clock.now();
    let result: ProbeResult;
    // Whatever the probe's own limits are: the stated time is counted in intervals.
    const limit = Promise.withResolvers<ProbeResult>();
    const cancelLimit = clock.after(intervalMs, () =>
      limit.resolve({ ok: false, why: `no answer within ${intervalMs / 1000} s` }),
    );
    try {
      result = await Promise.race([probe(intervalMs), limit.promise]);
    } catch (error) {
      result = { ok: false, why: error instanceof Error ? error.message : String(error) };
    }
    cancelLimit();
    if (!running) return;
    judge(result);
    const waitMs =
      result.ok && current.state === "unreachable" ? Math.min(confirmMs, intervalMs) : intervalMs;
    // The probe's own time is part of the interval, or a sandboxd that hangs would double the stated time.
    const tookMs = Math.min(Math.max(0, clock.now() - startedMs), waitMs);
    cancel = clock.after(waitMs - tookMs, () => void round());
  };

  return {
    start() {
      if (running) return;
      running = true;
      void round();
    },
    stop() {
      running = false;
      cancel();
    },
    current: () => current,
  };
}

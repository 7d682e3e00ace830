import type { Metrics } from "../metrics/metrics.ts";
import type { Provider } from "../provider/provider.ts";
import type { Note } from "../provider/types.ts";

/** Buckets in seconds: our own time on the handover path is a fraction of a millisecond. */
const FAST_SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1];
const CALL_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

export interface Telemetry {
  onNote(note: Note): void;
  /** Our own time on one handover, in ms. */
  onHandover(ms: number): void;
  /** One commit, in ms, and whether it held. */
  onCommit(ms: number, ok: boolean): void;
  /** One effect from start to answer, in ms. */
  onEffect(kind: string, ms: number): void;
  /** One request to the API server; code 0 = no reply. */
  onRequest(verb: string, code: number, ms: number): void;
  onFault(): void;
}

/**
 * The daemon's metrics (docs/metrics.md lists them). Everything that is a state is read when scraped; what is
 * an event is counted when it happens.
 */
export function createTelemetry(
  metrics: Metrics,
  provider: () => Provider | undefined,
  now: () => number,
): Telemetry {
  const claims = metrics.counter(
    "vk_sandbox_claims_total",
    "Claims by what they came to: claimed, adopted, recovered, refused; with the cause of a refusal.",
    ["result", "cause"],
  );
  const verdicts = metrics.counter("vk_sandbox_verdicts_total", "Verdicts about claims whose Pod is gone.", [
    "verdict",
  ]);
  const decisions = metrics.counter(
    "vk_sandbox_decisions_total",
    "Decisions and observations about sandboxes by kind, as the log and the ledger name them.",
    ["kind"],
  );
  const handover = metrics.histogram(
    "vk_sandbox_handover_seconds",
    "The provider's own time on a handover: watch event to claim request, plus claim reply to status request.",
    FAST_SECONDS,
  );
  const commits = metrics.histogram(
    "vk_sandbox_commit_seconds",
    "Time of one commit to the claims table.",
    FAST_SECONDS,
  );
  const commitFailures = metrics.counter(
    "vk_sandbox_commit_failures_total",
    "Commits that did not reach the disk.",
  );
  const effects = metrics.histogram(
    "vk_sandbox_effect_seconds",
    "Time of one call that a decision asked for, by kind.",
    CALL_SECONDS,
    ["kind"],
  );
  const requests = metrics.counter(
    "vk_sandbox_api_requests_total",
    "Requests to the API server by verb and status code; 0 = no reply.",
    ["verb", "code"],
  );
  const requestSeconds = metrics.histogram(
    "vk_sandbox_api_request_seconds",
    "Time of one request to the API server by verb.",
    CALL_SECONDS,
    ["verb"],
  );
  const faults = metrics.counter(
    "vk_sandbox_faults_total",
    "Faults of the provider's own code that were survived; each is in the log.",
  );
  metrics.gauge(
    "vk_sandbox_claims",
    "Claims by state: held by a Pod, preserved for an owner, quarantined until sandboxd vouches, displaced, releasing.",
    ["state"],
    () => {
      const counts = provider()?.counts();
      if (counts === undefined) return [];
      const { held, preserved, quarantined, displaced, releasing } = counts;
      return Object.entries({ held, preserved, quarantined, displaced, releasing }).map(([state, value]) => ({
        labels: [state],
        value,
      }));
    },
  );
  metrics.gauge("vk_sandbox_pods", "Pods bound to this Node.", [], () => {
    const counts = provider()?.counts();
    return counts === undefined ? [] : [{ value: counts.pods }];
  });
  metrics.gauge("vk_sandbox_open_intents", "Claims asked for and not answered yet.", [], () => {
    const counts = provider()?.counts();
    return counts === undefined ? [] : [{ value: counts.intents }];
  });
  metrics.gauge(
    "vk_sandbox_foreign_sandboxes",
    "Sandboxes that sandboxd lists and we do not hold: orphan = without claim_ref, external = another party's.",
    ["kind"],
    () => {
      const counts = provider()?.counts();
      if (counts === undefined) return [];
      return [
        { labels: ["orphan"], value: counts.orphans },
        { labels: ["external"], value: counts.external },
      ];
    },
  );
  const startedMs = now();
  metrics.gauge("process_start_time_seconds", "When the process started.", [], () => [
    { value: startedMs / 1000 },
  ]);
  metrics.gauge("process_resident_memory_bytes", "Resident memory.", [], () => [
    { value: process.memoryUsage.rss() },
  ]);
  metrics.counted("process_cpu_seconds_total", "CPU time, user and system.", () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1e6;
  });

  return {
    onNote({ kind, cause }) {
      decisions.inc([kind]);
      if (kind === "claimed" || kind === "adopted" || kind === "recovered") claims.inc([kind, ""]);
      else if (kind === "refused") claims.inc(["refused", cause ?? ""]);
      else if (kind === "preserved") verdicts.inc(["preserve"]);
      else if (kind === "release_decided") verdicts.inc(["release"]);
    },
    onHandover: (ms) => handover.observe(ms / 1000),
    onCommit(ms, ok) {
      if (ok) commits.observe(ms / 1000);
      else commitFailures.inc();
    },
    onEffect: (kind, ms) => effects.observe(ms / 1000, [kind]),
    onRequest(verb, code, ms) {
      requests.inc([verb, String(code)]);
      requestSeconds.observe(ms / 1000, [verb]);
    },
    onFault: () => faults.inc(),
  };
}

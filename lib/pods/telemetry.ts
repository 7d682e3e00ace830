import { type Metrics, SERIES_MAX } from "../metrics/metrics.ts";
import type { Provider } from "../provider/provider.ts";
import type { Note } from "../provider/types.ts";
import { groundOf } from "../provider/verdict.ts";

/** Buckets in seconds: our own time on the handover path is a fraction of a millisecond. */
const FAST_SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1];
const CALL_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

/** Where states are read when scraped. A source that is not there yet answers undefined. */
export interface TelemetrySources {
  provider: () => Provider | undefined;
  /** Pools as sandboxd last told them. */
  pools: () =>
    | readonly { template: string; net: string; size: string; warm: number; target: number }[]
    | undefined;
  store: () => { journalBytes: number; snapshotBytes: number; unsyncedBytes: number; compactions: number };
  watch: () =>
    | { connects: number; relists: number; events: number; garbage: number; silences: number }
    | undefined;
  /** Requests that wait for the API budget. */
  waiting: () => number;
  /** Effects in flight. */
  inFlight: () => number;
  ready: () => boolean;
  leaseRenewedAtMs: () => number;
  build: { version: string; commit: string };
}

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
export function createTelemetry(metrics: Metrics, sources: TelemetrySources, now: () => number): Telemetry {
  const { provider } = sources;
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
  metrics.gauge("vk_sandbox_build_info", "The running build.", ["version", "commit"], () => [
    { labels: [sources.build.version, sources.build.commit], value: 1 },
  ]);
  metrics.gauge("vk_sandbox_ready", "1 while the Node is Ready: sandboxd answers.", [], () => [
    { value: sources.ready() ? 1 : 0 },
  ]);
  metrics.gauge(
    "vk_sandbox_lease_renewed_timestamp_seconds",
    "When the Node's lease was last renewed.",
    [],
    () => [{ value: sources.leaseRenewedAtMs() / 1000 }],
  );
  for (const figure of ["warm", "target"] as const) {
    metrics.gauge(
      `vk_sandbox_pool_${figure}`,
      figure === "warm"
        ? "Warm sandboxes of a pool, as sandboxd tells."
        : "Warm sandboxes a pool is filled up to.",
      ["template", "net", "size"],
      () =>
        (sources.pools() ?? [])
          .slice(0, SERIES_MAX)
          .map(({ template, net, size, [figure]: value }) => ({ labels: [template, net, size], value })),
    );
  }
  metrics.gauge("vk_sandbox_state_bytes", "Size of the claims table on disk.", ["file"], () => {
    const { journalBytes, snapshotBytes, unsyncedBytes } = sources.store();
    return [
      { labels: ["journal"], value: journalBytes },
      { labels: ["snapshot"], value: snapshotBytes },
      { labels: ["unsynced"], value: unsyncedBytes },
    ];
  });
  metrics.counted(
    "vk_sandbox_state_compactions_total",
    "Rewrites of the snapshot.",
    () => sources.store().compactions,
  );
  metrics.gauge("vk_sandbox_queue_depth", "Work that waits or is in flight.", ["queue"], () => [
    { labels: ["api_budget"], value: sources.waiting() },
    { labels: ["effects_in_flight"], value: sources.inFlight() },
  ]);
  for (const [figure, help] of [
    ["connects", "Connections of the Pod watch."],
    ["relists", "Complete lists begun by the Pod watch."],
    ["events", "Objects the Pod watch delivered."],
    ["garbage", "Watch lines that could not be understood."],
    ["silences", "Watch connections given up for silence."],
  ] as const) {
    metrics.counted(`vk_sandbox_watch_${figure}_total`, help, () => sources.watch()?.[figure] ?? 0);
  }
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
    onNote({ kind, cause, reason }) {
      decisions.inc([kind]);
      if (kind === "claimed" || kind === "adopted" || kind === "recovered") claims.inc([kind, ""]);
      else if (kind === "refused") claims.inc(["refused", cause ?? ""]);
      else if (kind === "preserved") verdicts.inc(["preserve", groundOf(reason)]);
      else if (kind === "release_decided") verdicts.inc(["release", groundOf(reason)]);
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

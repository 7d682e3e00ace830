import { splitKey } from "../provider/pod.ts";
import type { ClaimView, Provider } from "../provider/provider.ts";
import { rfc3339 } from "../provider/status.ts";
import type { PodView } from "../provider/types.ts";

/** Memory of one sandbox as sandboxd reports it. */
export interface SandboxMemory {
  usedBytes: number;
  totalBytes: number;
  /** When sandboxd measured it, in ms since the epoch; 0 when it does not say. */
  measuredAtMs: number;
}

export interface StatsOptions {
  nodeName: string;
  provider: () => Provider;
  /** Asks sandboxd about one sandbox; undefined when it cannot say. */
  memoryOf: (claimId: string) => Promise<SandboxMemory | undefined>;
  /** Seconds of CPU time the host has spent; undefined when it cannot be read. */
  hostCpuSeconds: () => number | undefined;
  now: () => number;
  startedAtMs: number;
}

export interface Stats {
  /** v1 PodList: GET /pods. */
  pods(): unknown;
  /** The same for Pods that run: GET /runningpods/. */
  runningPods(): unknown;
  /** Summary of the kubelet's stats API: GET /stats/summary. */
  summary(): Promise<unknown>;
  /** Prometheus text for metrics-server: GET /metrics/resource. */
  resourceMetrics(): Promise<string>;
}

/** Calls to sandboxd at once while a summary is made. */
const CALLS_MAX = 8;
/** A reading is given again for this long: scrapers come in pairs. */
const FRESH_MS = 10_000;

/**
 * What the kubelet API shows of Pods and their memory. CPU per sandbox is not shown, because sandboxd does not
 * measure it, and a made-up nought would be worse than none.
 */
export function createStats(options: StatsOptions): Stats {
  const { nodeName, provider, memoryOf, now } = options;
  let read: { atMs: number; memory: Promise<Map<string, SandboxMemory>> } | undefined;

  function heldClaims(): ClaimView[] {
    return [...provider().claims()].filter((claim) => claim.state === "held");
  }

  function memory(): Promise<Map<string, SandboxMemory>> {
    const nowMs = now();
    if (read === undefined || nowMs - read.atMs > FRESH_MS) read = { atMs: nowMs, memory: ask(heldClaims()) };
    return read.memory;
  }

  async function ask(claims: ClaimView[]): Promise<Map<string, SandboxMemory>> {
    const found = new Map<string, SandboxMemory>();
    const waiting = claims.values();
    async function worker(): Promise<void> {
      for (const { id, key } of waiting) {
        const usage = await memoryOf(id);
        if (usage !== undefined) found.set(key, usage);
      }
    }
    await Promise.all(Array.from({ length: CALLS_MAX }, worker));
    return found;
  }

  function list(keep: (pod: PodView) => boolean): unknown {
    const items = [...provider().pods()].filter(keep).map((pod) => podOf(pod, nodeName));
    return { kind: "PodList", apiVersion: "v1", metadata: {}, items };
  }

  return {
    pods: () => list(() => true),
    runningPods: () => list((pod) => pod.phase === "Running"),
    async summary() {
      const usages = await memory();
      const at = rfc3339(now());
      const pods: unknown[] = [];
      let workingSetBytes = 0;
      const claims = new Map(heldClaims().map((claim) => [claim.key, claim]));
      for (const pod of provider().pods()) {
        const usage = usages.get(pod.key);
        const claim = claims.get(pod.key);
        if (usage === undefined || claim === undefined) continue;
        workingSetBytes += usage.usedBytes;
        const reading = {
          time: usage.measuredAtMs === 0 ? at : rfc3339(usage.measuredAtMs),
          availableBytes: Math.max(0, usage.totalBytes - usage.usedBytes),
          usageBytes: usage.usedBytes,
          workingSetBytes: usage.usedBytes,
        };
        const startTime = rfc3339(claim.claimedAtMs);
        const [first] = pod.containers;
        pods.push({
          podRef: { ...splitKey(pod.key), uid: pod.uid },
          startTime,
          // The VM is one; its memory is shown on the first container, so that a sum over containers is right.
          containers: first === undefined ? [] : [{ name: first.name, startTime, memory: reading }],
          memory: reading,
        });
      }
      return {
        node: { nodeName, startTime: rfc3339(options.startedAtMs), memory: { time: at, workingSetBytes } },
        pods,
      };
    },
    async resourceMetrics() {
      const usages = await memory();
      let total = 0;
      let containers = "";
      for (const pod of provider().pods()) {
        const usage = usages.get(pod.key);
        const [first] = pod.containers;
        if (usage === undefined || first === undefined) continue;
        total += usage.usedBytes;
        const { namespace, name } = splitKey(pod.key);
        containers += `container_memory_working_set_bytes{container="${first.name}",namespace="${namespace}",pod="${name}"} ${usage.usedBytes}\n`;
      }
      const cpu = options.hostCpuSeconds();
      return [
        "# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes\n# TYPE container_memory_working_set_bytes gauge\n",
        containers,
        cpu === undefined
          ? ""
          : `# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds\n# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total ${cpu}\n`,
        `# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes\n# TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes ${total}\n`,
        `# HELP scrape_error [ALPHA] 1 if there was an error while getting container metrics, 0 otherwise\n# TYPE scrape_error gauge\nscrape_error ${cpu === undefined ? 1 : 0}\n`,
      ].join("");
    },
  };
}

function podOf(pod: PodView, nodeName: string): unknown {
  const { namespace, name } = splitKey(pod.key);
  const annotations = pod.claimId === "" ? undefined : { "sandbox.cocoonstack.io/claim-id": pod.claimId };
  return {
    metadata: { namespace, name, uid: pod.uid, resourceVersion: pod.resourceVersion, annotations },
    spec: { nodeName, containers: pod.containers },
    status: { phase: pod.phase, podIP: pod.podIP === "" ? undefined : pod.podIP },
  };
}

/** The daemon: one virtual Node in front of one sandboxd. Wires the parts; decides nothing itself. */
import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { ipVersion, type RunConfig, readTokenFile, type TokenFile, tokenFile } from "../lib/config/index.ts";
import { denyDumps } from "../lib/dumps.ts";
import { createInventory } from "../lib/inventory/inventory.ts";
import {
  createDiscovery,
  createEventRecorder,
  createKubeClient,
  loadCluster,
  readBarePod,
  readOwner,
  readPod,
  systemClock,
  watch,
} from "../lib/kube/index.ts";
import { createKubelet } from "../lib/kubelet/index.ts";
import { openLedger } from "../lib/ledger/index.ts";
import { createLog, isTerminal, type Log } from "../lib/log/index.ts";
import { createMemoryKeeper } from "../lib/memory.ts";
import { createMetrics } from "../lib/metrics/metrics.ts";
import { createNode, holderIdentity, identityParts, readNodeInfo } from "../lib/node/index.ts";
import { createEffects } from "../lib/pods/effects.ts";
import { toldListing } from "../lib/pods/listing.ts";
import { styleOf } from "../lib/pods/notes.ts";
import { createPods } from "../lib/pods/pods.ts";
import { createQuiet } from "../lib/pods/quiet.ts";
import { createStats } from "../lib/pods/stats.ts";
import { createTelemetry } from "../lib/pods/telemetry.ts";
import { splitKey } from "../lib/provider/pod.ts";
import { applyChanges } from "../lib/provider/table.ts";
import type { Change, ClaimResult, Note } from "../lib/provider/types.ts";
import { type ClaimSpec, createSandboxd, hostOf, type Info } from "../lib/sandboxd/index.ts";
import { openStore } from "../lib/state/index.ts";
import { openSystemd } from "../lib/systemd/notify.ts";
import { commit as commitId, version } from "../lib/version.ts";
import { exitDone, exitFailed } from "./verb.ts";

/** How long a stopping daemon waits for what is in flight. */
const DRAIN_MS = 10_000;
/** Period of the one timer that keeps the process alive, and in which it looks whether memory can go back. */
const MEMORY_LOOK_MS = 10_000;
/** What one ledger row takes on disk, index included, to turn --audit-max-size into rows. */
const LEDGER_ROW_BYTES = 400;
/** How long it waits for its last log lines. */
const FLUSH_MS = 2_000;

/**
 * Runs until SIGTERM or SIGINT. Anything that would keep it from serving is fatal before the Node registers.
 *
 * @returns the exit code
 */
export async function run(config: RunConfig): Promise<number> {
  const log = createLog({ ...config.log, terminal: isTerminal(1) });
  const fatal = async (message: string): Promise<number> => {
    log.error(message);
    await log.flush(FLUSH_MS);
    return exitFailed;
  };

  // Every other timer is unref'd, and a burst of concurrent fetches can leave Bun's event loop believing that
  // nothing is pending: the process then ends with code 0 in the middle of its work (seen with 200 Pods at once).
  let lookAtMemory = () => {};
  setInterval(() => lookAtMemory(), MEMORY_LOOK_MS);
  const stopped = stopSignal(log);
  // Before the first credential is in memory.
  const dumpable = denyDumps();
  if (dumpable !== undefined)
    log.warn("core dumps cannot be turned off here, and one would hold every release credential", {
      why: dumpable,
    });
  const token = openToken(config, log);
  if (token.ok === false) return fatal(token.reason);

  const cluster = await loadCluster({
    env: process.env,
    kubeconfig: config.kube.kubeconfig,
    context: config.kube.context,
    onProblem: (why) => log.warn("a credential could not be renewed; the last good one is kept", { why }),
  });
  if (!cluster.ok) return fatal(cluster.message);

  const opened = openStore({
    path: resolve(config.statePath),
    onTrouble: ({ kind, message }) => log.error(message, { kind }),
  });
  if (!opened.ok) return fatal(opened.message);
  const { store } = opened;
  for (const warning of store.warnings) log.warn(warning);

  const metrics = createMetrics();
  let info: Info | undefined;
  let podWatch: ReturnType<typeof watch> | undefined;
  const telemetry = createTelemetry(
    metrics,
    {
      provider: () => pods.provider,
      pools: () => info?.pools,
      store: store.stats,
      watch: () => podWatch?.stats,
      waiting: () => kube.waiting,
      inFlight: () => pods.inFlight,
      ready: () => node.readiness().state === "reachable",
      leaseRenewedAtMs: () => node.renewedAtMs(),
      build: { version, commit: commitId },
    },
    Date.now,
  );
  const kube = createKubeClient({
    ...cluster.cluster,
    qps: config.kube.qps,
    burst: config.kube.burst,
    userAgent: `vk-sandbox/${version}`,
    onRequest(verb, code, ms) {
      telemetry.onRequest(verb, code, ms);
      // The API server is back: the Pod watch need not wait out its backoff.
      const answered = code >= 200 && code < 300 && verb !== "watch" && verb !== "list";
      if (answered && podWatch?.stats.connected === false) podWatch.retryNow();
    },
    onSecret: log.redact,
  });
  const discovery = createDiscovery(kube);
  const sandboxd = createSandboxd({ url: config.sandboxd.url, token: () => token.file?.current() });

  const events = createEventRecorder({
    client: kube,
    component: `${config.node.name}/pod-controller`,
    disableNormal: !config.normalEvents,
    onProblem: (why) => log.debug("a Kubernetes event was given up", { why }),
  });

  const ledger = config.audit.enabled
    ? openLedger({
        path: join(dirname(resolve(config.statePath)), "audit.db"),
        nowMs: Date.now,
        maxAgeMs: config.audit.ageMaxMs,
        maxRows: Math.max(1, Math.floor(config.audit.bytesMax / LEDGER_ROW_BYTES)),
        onTrouble: (message) => log.warn(message),
      })
    : undefined;

  const quiet = createQuiet();
  /** Notes of this turn. They are told after it: first the claim, or the status, is on its way. */
  let notes: Note[] = [];
  function onNote(note: Note): void {
    if (notes.length === 0) setImmediate(tellNotes);
    notes.push(note);
  }

  function tellNotes(): void {
    const told = notes;
    notes = [];
    for (const note of told) {
      try {
        tell(note);
      } catch (error) {
        telemetry.onFault();
        log.error("a fault in vk-sandbox itself, please report it", { event: note.kind, error });
      }
    }
  }

  function tell(note: Note): void {
    telemetry.onNote(note);
    const { level, message, audit, event } = styleOf(note);
    const { kind, key, id, podUID, reason, cause } = note;
    const leftOut = quiet.admit(note, Date.now());
    if (leftOut !== undefined) {
      if (audit) ledger?.record(note, Date.now());
      const before = leftOut > 0 ? leftOut : undefined;
      log[level](message, { kind, pod: key, claim: id, podUID, reason, cause, leftOutBefore: before });
    }
    if (event !== undefined) {
      const pod = { apiVersion: "v1", kind: "Pod", ...splitKey(key), uid: podUID };
      events.record(pod, event.type, event.reason, event.message);
    }
    // Rotated a moment ago, most likely: the claim is tried again in half a second, the next probe is further off.
    if (cause === "bad_token") refreshToken(token.ok ? token.file : undefined, log);
  }

  /** Every refusal counts for the Node's taint; notes tell only the first of its kind. */
  async function claim(spec: ClaimSpec): Promise<ClaimResult> {
    const result = await sandboxd.claim(spec);
    if (!result.ok) {
      const { kind } = result.cause;
      if (kind === "draining") node.setCapacity("draining");
      else if (kind === "max_claims" || kind === "no_warm_capacity") node.setCapacity("exhausted");
    }
    return result;
  }

  function commit(changes: Change[]): boolean {
    const startedAt = performance.now();
    const done = store.commit(changes);
    telemetry.onCommit(performance.now() - startedAt, done.ok);
    if (done.ok) applyChanges(store.table, changes);
    else log.error("the claims table cannot be written", { why: done.why });
    return done.ok;
  }

  const pods = createPods({
    provider: {
      nodeName: config.node.name,
      renewLeases: config.renewLeases,
      releaseSupersededAfterMs: config.releaseSupersededAfterMs,
      rescheduleAfterMs: config.rescheduleAfterMs,
      orphanScanMs: config.orphanScanIntervalMs,
      ipOf(address) {
        const host = hostOf(address);
        return ipVersion(host) === 0 ? "" : host;
      },
    },
    table: store.table,
    commit,
    runEffect: createEffects({
      kube,
      sandboxd: { ...sandboxd, claim, hostOf, list: toldListing(sandboxd.list, log) },
      reads: {
        owner: (namespace, owner) => readOwner(kube, discovery, namespace, owner),
        barePod: (namespace, name) => readBarePod(kube, namespace, name),
        pod: (namespace, name) => readPod(kube, namespace, name),
      },
      fallbackAddress: config.sandboxd.advertiseAddr,
    }),
    onNote,
    onFault(error, event) {
      telemetry.onFault();
      log.error("a fault in vk-sandbox itself, please report it", { event: event.type, error });
    },
    onHandover: telemetry.onHandover,
    onEffect: telemetry.onEffect,
    clock: systemClock,
    ticks: () => performance.now(),
    random: Math.random,
  });

  const stats = createStats({
    nodeName: config.node.name,
    provider: () => pods.provider,
    memoryOf: async (id) => {
      const answer = await sandboxd.stats(id);
      if (!answer.ok) return undefined;
      const { memUsedBytes, memTotalBytes, measuredAtMs } = answer.stats;
      return { usedBytes: memUsedBytes, totalBytes: memTotalBytes, measuredAtMs };
    },
    hostCpuSeconds,
    now: Date.now,
    startedAtMs: Date.now(),
  });
  const kubelet = createKubelet({
    ...config.kubelet,
    nodeName: config.node.name,
    nodeIP: config.node.ip,
    kube,
    content: {
      pods: stats.pods,
      runningPods: stats.runningPods,
      stats: stats.summary,
      metrics: metrics.text,
      resourceMetrics: stats.resourceMetrics,
    },
    clock: systemClock,
    log,
  });
  const listening = await kubelet.start();
  if (!listening.ok) {
    store.close();
    return fatal(listening.message);
  }

  const machine = readNodeInfo(version);
  const node = createNode({
    kube,
    spec: { ...config.node, kubeletPort: listening.port, info: machine },
    holder: holderIdentity({
      nodeName: config.node.name,
      parts: identityParts(machine, resolve(config.statePath)),
      pid: process.pid,
    }),
    async probe() {
      refreshToken(token.file, log);
      const health = await sandboxd.healthz();
      if (!health.ok) return health;
      const answer = await sandboxd.info();
      if (answer.ok) {
        info = answer.info;
        node.setCapacity(info.draining ? "draining" : info.atCapacity ? "exhausted" : "available");
      } else info = undefined;
      tellDenied(answer.ok ? 200 : answer.status, log);
      return health;
    },
    notReadyAfterMs: config.node.notReadyAfterMs,
    clock: systemClock,
    random: Math.random,
    log,
    onLost: (holder) =>
      stopped.stop(`another provider took over Node ${config.node.name}: ${holder}`, exitFailed),
  });

  const inventory = config.inventory.publish
    ? createInventory({
        kube,
        nodeName: config.node.name,
        advertiseAddr: config.sandboxd.advertiseAddr,
        intervalMs: config.inventory.intervalMs,
        list: () => sandboxd.list().then((answer) => (answer.ok ? answer.rows : undefined)),
        pools: () => sandboxd.info().then((answer) => (answer.ok ? answer.info.pools : undefined)),
        addresses() {
          const addresses = new Map<string, string>();
          for (const { id, address } of pods.provider.claims()) addresses.set(id, address);
          return addresses;
        },
        nodeUid: node.uid,
        clock: systemClock,
        onSkipped: (why) => log.warn("the inventory was not published", { why }),
      })
    : undefined;

  log.info("vk-sandbox starts", {
    version,
    node: config.node.name,
    sandboxd: config.sandboxd.url,
    cluster: cluster.cluster.source,
    state: config.statePath,
    claims: store.table.rows.size,
    intents: store.table.intents.size,
    releasing: store.table.releasing.size,
  });

  // sandboxd is asked about the rows on disk while the API server is being reached.
  pods.start();
  const acquired = await Promise.race([node.acquire(), stopped.promise]);
  if (typeof acquired === "object" && "ok" in acquired) {
    if (!acquired.ok) {
      if ("message" in acquired) {
        store.close();
        return fatal(acquired.message);
      }
    } else {
      node.start();
      podWatch = watch({
        client: kube,
        path: "/api/v1/pods",
        query: { fieldSelector: `spec.nodeName=${config.node.name}` },
        onEvent: pods.onWatch,
        onProblem: ({ message, attempt, retryInMs }) =>
          log.warn("the Pod watch was interrupted", { why: message, attempt, retryInMs }),
      });
      const memory = createMemoryKeeper({ collect: () => Bun.gc(true), ticks: () => performance.now() });
      lookAtMemory = () =>
        memory.look((podWatch?.stats.events ?? 0) + store.stats().commits, pods.inFlight > 0);
      inventory?.start();
      const systemd = await openSystemd(process.env, process.pid);
      node.registered().then(() => {
        log.info("the Node is registered", { node: config.node.name });
        systemd.notify("READY=1");
      });
      const beat =
        systemd.watchdogMs > 0
          ? setInterval(() => systemd.notify("WATCHDOG=1"), systemd.watchdogMs)
          : undefined;
      await stopped.promise;
      clearInterval(beat);
      systemd.notify("STOPPING=1");
    }
  }
  const { reason, code } = await stopped.promise;
  log.info("stopping", { reason, inFlight: pods.inFlight });
  podWatch?.stop();
  inventory?.stop();
  kubelet.stop();
  const left = await pods.drain(DRAIN_MS);
  tellNotes();
  if (left > 0)
    log.warn("stopped with calls in flight; their intents are on disk and are settled at the next start", {
      left,
    });
  node.stop();
  events.stop();
  kube.close();
  await ledger?.close();
  const closed = store.close();
  if (!closed.ok)
    log.error("the claims table could not be compacted; its journal is complete", { why: closed.why });
  log.info("stopped", { claims: store.table.rows.size });
  await log.flush(FLUSH_MS);
  return code;
}

/** Resolves at the first signal or internal reason to stop; a second signal ends the process at once. */
function stopSignal(log: Log) {
  const { promise, resolve: settle } = Promise.withResolvers<{ reason: string; code: number }>();
  let asked = false;
  const onSignal = (name: string) => {
    if (asked) {
      log.warn("a second signal: exiting at once", { signal: name });
      log.flushSync();
      process.exit(exitFailed);
    }
    asked = true;
    settle({ reason: name, code: exitDone });
  };
  process.on("SIGTERM", () => onSignal("SIGTERM"));
  process.on("SIGINT", () => onSignal("SIGINT"));
  // Files are followed, so there is nothing to reload; without a handler each of these would end the daemon.
  for (const name of ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"] as const) {
    process.on(name, () =>
      log.info("this signal changes nothing; files are read again by themselves", { signal: name }),
    );
  }
  return {
    promise,
    stop(reason: string, code: number) {
      asked = true;
      log.error(reason);
      settle({ reason, code });
    },
  };
}

let toldDenied = false;

/** A token that sandboxd refuses is told once, before the first Pod has to; and once when it is taken again. */
function tellDenied(status: number | undefined, log: Log): void {
  const denied = status === 401 || status === 403;
  // Any other failure says nothing about the token.
  if (denied === toldDenied || (!denied && status !== 200)) return;
  toldDenied = denied;
  if (!denied) return log.info("sandboxd takes the token");
  log.warn(
    "sandboxd refuses the token: every claim will fail; put its root api_token into --sandboxd-token-file",
    {
      status,
    },
  );
}

/** CPU time this host has spent on anything but idling, from /proc/stat (proc(5): user to steal, in ticks of 10 ms). */
function hostCpuSeconds(): number | undefined {
  try {
    const [first = ""] = readFileSync("/proc/stat", "latin1").split("\n", 1);
    const ticks = first.split(/\s+/).slice(1, 9).map(Number);
    const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0, steal = 0] = ticks;
    const sum = user + nice + system + irq + softirq + steal;
    return Number.isFinite(sum) && sum > 0 ? sum / 100 : undefined;
  } catch {
    return undefined;
  }
}

type OpenToken = { ok: true; file: TokenFile | undefined } | { ok: false; reason: string };

function openToken(config: RunConfig, log: Log): OpenToken {
  const path = config.sandboxd.tokenFile;
  if (path === undefined) return { ok: true, file: undefined };
  const read = readTokenFile(path);
  if (!read.ok) return read;
  if (read.warning !== undefined) log.warn(read.warning);
  log.redact(read.token);
  return { ok: true, file: tokenFile(path, read.token) };
}

function refreshToken(file: TokenFile | undefined, log: Log): void {
  const news = file?.refresh();
  if (news === undefined || news.kind === "same") return;
  if (news.kind === "failed")
    return log.warn("the new token could not be read; the last one is kept", { why: news.reason });
  log.redact(news.token);
  if (news.warning !== undefined) log.warn(news.warning);
  log.info("sandboxd's token was read again");
}

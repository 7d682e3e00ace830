/** What checks share: the configuration, the probes, and reads that several checks need made once. */
import type { RunConfig } from "../config/index.ts";
import { describeFailure, type KubeFailure, type KubeReply } from "../kube/index.ts";
import type { Group, Outcome } from "./finding.ts";
import type { Cluster, ClusterProbe, Probes } from "./probes.ts";

export interface Check {
  id: string;
  group: Group;
  /** Why it matters, unless the outcome says otherwise. */
  why: string;
  run(context: Context): Outcome | Promise<Outcome>;
}

/** Who holds the state directory's lock. `ours`: a vk-sandbox that lives, which is a running daemon. */
export type LockState =
  | { kind: "free"; lastPid?: number }
  | { kind: "ours"; pid: number; startedAtMs: number }
  | { kind: "other"; pid: number; name: string }
  | { kind: "unknown"; why: string };

/** Who the API server says we are. */
export interface Identity {
  username: string;
  groups: string[];
}

export type Read<T> = { ok: true; value: T } | { ok: false; why: string };

export interface Context {
  config: RunConfig;
  probes: Probes;
  lock(): LockState;
  info(): ReturnType<Probes["sandboxd"]["info"]>;
  /** The cluster as the provider will see it. */
  cluster(): Promise<Read<Cluster>>;
  /** The operator's own access, where one was given. */
  admin(): Promise<Read<Cluster> | undefined>;
  /** A GET as the provider, made once for each path. */
  get(path: string): Promise<KubeReply>;
  identity(): Promise<Read<Identity>>;
}

/** Wraps the probes for one run of all checks. */
export function createContext(config: RunConfig, probes: Probes): Context {
  const gets = new Map<string, Promise<KubeReply>>();
  const cluster = once(() => connect(probes.cluster));
  return {
    config,
    probes,
    lock: once(() => lockState(probes)),
    info: once(() => probes.sandboxd.info(true)),
    cluster,
    admin: once(async () => (probes.admin === undefined ? undefined : connect(probes.admin))),
    get(path) {
      let reply = gets.get(path);
      if (reply === undefined) {
        reply = cluster().then((found) =>
          found.ok
            ? found.value.request("GET", path)
            : { ok: false, kind: "credentials", message: found.why },
        );
        gets.set(path, reply);
      }
      return reply;
    },
    identity: once(async () => readIdentity(await cluster())),
  };
}

function once<T>(read: () => T): () => T {
  let held: { value: T } | undefined;
  return () => {
    held ??= { value: read() };
    return held.value;
  };
}

async function connect(probe: ClusterProbe): Promise<Read<Cluster>> {
  const found = await probe.connect();
  return found.ok ? { ok: true, value: found.cluster } : found;
}

function lockState(probes: Probes): LockState {
  const { state } = probes;
  const recorded = state.recordedHolder();
  const holder = state.lockHolder();
  // Only vk-sandbox writes the lock file in this form, so whoever wrote it and holds it is one.
  if (holder === undefined) return { kind: "free", lastPid: recorded?.pid };
  if (holder === "unknown") {
    const alive = recorded === undefined ? undefined : state.process(recorded.pid);
    if (recorded === undefined || alive === undefined) return { kind: "free", lastPid: recorded?.pid };
    return {
      kind: "unknown",
      why: `the lock file names process ${recorded.pid} (${alive.name}), which is alive, but this system does not show who holds locks`,
    };
  }
  if (recorded !== undefined && holder.pid === recorded.pid) return { kind: "ours", ...recorded };
  if (holder.pid === 0) {
    return { kind: "unknown", why: "the lock is held by a process outside this container" };
  }
  return { kind: "other", pid: holder.pid, name: state.process(holder.pid)?.name ?? "unknown program" };
}

async function readIdentity(cluster: Read<Cluster>): Promise<Read<Identity>> {
  if (!cluster.ok) return cluster;
  const reply = await cluster.value.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {
    body: { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" },
  });
  if (!reply.ok) return { ok: false, why: describeFailure(reply) };
  const { status } = reply.body as { status?: { userInfo?: { username?: unknown; groups?: unknown } } };
  const { username, groups } = status?.userInfo ?? {};
  if (typeof username !== "string" || username === "") {
    return { ok: false, why: "the API server's answer names no user" };
  }
  const named = Array.isArray(groups) ? groups.filter((group) => typeof group === "string") : [];
  return { ok: true, value: { username, groups: named } };
}

/** Whether a failed request was answered with this HTTP status. */
export function hasCode(reply: KubeFailure, code: number): boolean {
  return (reply.kind === "status" || reply.kind === "http") && reply.code === code;
}

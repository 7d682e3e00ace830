/** For tests: probes of a host on which everything is right, to be spoilt one by one. */
import { expect, test } from "bun:test";
import { type ConfigResult, configFrom, type RunConfig } from "../config/index.ts";
import type { KubeReply, Method, RequestOptions } from "../kube/index.ts";
import type { Info } from "../sandboxd/index.ts";
import type { ReadOnlyTable, ShownRow } from "../state/index.ts";
import { type Check, createContext } from "./context.ts";
import { checks } from "./doctor.ts";
import type { Outcome } from "./finding.ts";
import type {
  Cluster,
  ClusterProbe,
  HostProbe,
  PathInfo,
  Probes,
  SandboxdProbe,
  StateProbe,
} from "./probes.ts";

export const nowMs = Date.parse("2026-05-01T12:00:00Z");

/** The configuration that these flags describe, beside a node name and address that are right. */
export function configOf(flags: Record<string, string> = {}): RunConfig {
  const texts = new Map(Object.entries({ "node-name": "vk-1", "node-ip": "10.0.0.5", ...flags }));
  const loaded: ConfigResult = configFrom(texts, {});
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.errors));
  return loaded.config;
}

const directory: PathInfo = { kind: "directory", mode: 0o700, uid: 990, bytes: 4096, modifiedAtMs: nowMs };

export const goodInfo: Info = {
  pools: [{ template: "img:1", net: "none", size: "small", warm: 3, target: 4 }],
  claimed: 2,
  hibernated: 0,
  archived: 0,
  draining: false,
  atCapacity: false,
  atCapacityReason: "",
};

export function tableOf(...rows: [key: string, row: Partial<ShownRow>][]): ReadOnlyTable {
  const full = (row: Partial<ShownRow>): ShownRow => ({
    id: "sb_1",
    address: "10.0.0.5:8080",
    podUID: "pod-uid",
    authority: "owner-uid",
    claimedAtMs: nowMs - 3_600_000,
    deadlineMs: nowMs + 3_600_000,
    ...row,
  });
  return {
    ok: true,
    rows: new Map(rows.map(([key, row]) => [key, full(row)])),
    intents: new Map(),
    releasing: [],
    displaced: [],
    warnings: [],
  };
}

/** What the API server answers, by `METHOD path`; anything else is 404. */
export type Answers = Record<string, KubeReply | ((options: RequestOptions) => KubeReply)>;

export const ok = (body: unknown, status = 200): KubeReply => ({ ok: true, status, body });

export const statusOf = (code: number, reason: string, message = reason): KubeReply => ({
  ok: false,
  kind: "status",
  code,
  reason,
  message,
  detailsName: "",
  detailsKind: "",
  retryAfterMs: 0,
  body: {},
});

const identityPath = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
export const reviewPath = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

export const userIs = (username: string, ...groups: string[]): Answers => ({
  [identityPath]: ok({ status: { userInfo: { username, groups } } }, 201),
});

const resources = (...names: string[]) => ok({ resources: names.map((name) => ({ name })) });

export const goodAnswers: Answers = {
  ...userIs("system:serviceaccount:vk-sandbox:vk-sandbox", "system:serviceaccounts"),
  [reviewPath]: ok({ status: { allowed: true } }, 201),
  "GET /version": ok({ major: "1", minor: "36", gitVersion: "v1.36.1" }),
  "GET /apis/agents.x-k8s.io": ok({ versions: [{ version: "v1beta1" }] }),
  "GET /apis/agents.x-k8s.io/v1beta1": resources("sandboxes", "sandboxes/status"),
  "GET /apis/extensions.agents.x-k8s.io": ok({ versions: [{ version: "v1beta1" }] }),
  "GET /apis/extensions.agents.x-k8s.io/v1beta1": resources("sandboxtemplates"),
  "GET /apis/sandbox.cocoonstack.io/v1beta1": resources("nodeinventories"),
  "GET /openapi/v3/apis/sandbox.cocoonstack.io/v1beta1": ok({
    components: {
      schemas: {
        "io.cocoonstack.sandbox.v1beta1.NodeInventory": { properties: { node: {}, publishedAt: {} } },
      },
    },
  }),
  "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": ok({ items: [] }),
  "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": ok({ items: [] }),
};

/** A cluster that answers as told, and records what was asked. */
export function clusterOf(
  answers: Answers,
  date?: Awaited<ReturnType<Cluster["date"]>>,
  asked: string[] = [],
): ClusterProbe {
  const cluster: Cluster = {
    server: "https://api:6443",
    from: "/etc/vk/kubeconfig, context prod",
    async request(method: Method, path: string, options: RequestOptions = {}) {
      asked.push(`${method} ${path}`);
      const answer = answers[`${method} ${path}`] ?? statusOf(404, "NotFound");
      return typeof answer === "function" ? answer(options) : answer;
    },
    date: async () => date ?? { ok: true, serverMs: nowMs, localMs: nowMs, roundTripMs: 4 },
  };
  return { connect: async () => ({ ok: true, cluster }) };
}

export const noCluster: ClusterProbe = {
  connect: async () => ({ ok: false, why: "no kubeconfig anywhere" }),
};

/** What to spoil. */
export interface Spoilt {
  host?: Partial<HostProbe>;
  state?: Partial<StateProbe>;
  sandboxd?: Partial<SandboxdProbe>;
  answers?: Answers;
  cluster?: ClusterProbe;
  admin?: ClusterProbe;
  isOurs?: Probes["isOurs"];
  now?: number;
  clock?: () => number;
}

export function probesOf(spoilt: Spoilt = {}): Probes {
  const { answers = {} } = spoilt;
  return {
    host: {
      platform: "linux",
      arch: "x64",
      kernel: "6.1.0-13-amd64",
      hostname: "host-1",
      libc: () => ({ kind: "glibc", version: "2.36" }),
      openFiles: () => ({ soft: 1024, hard: 1_048_576 }),
      tryListen: async () => ({ ok: true }),
      listener: () => undefined,
      cocoon: () => [],
      addresses: () => ["127.0.0.1", "10.0.0.5", "fd00::5"],
      readText: () => ({ ok: false, code: "ENOENT" }),
      ...spoilt.host,
    },
    state: {
      uid: 990,
      stat: (path) => (path === "/var/lib/vk-sandbox" ? directory : undefined),
      writable: () => true,
      list: () => [],
      statfs: () => ({ magic: 0xef53, freeBytes: 10 * 2 ** 30, inodes: 1_000_000, freeInodes: 900_000 }),
      recordedHolder: () => undefined,
      lockHolder: () => undefined,
      process: (pid) => ({ pid, name: "vk-sandbox" }),
      table: () => tableOf(),
      ...spoilt.state,
    },
    sandboxd: {
      token: () => ({ kind: "read" }),
      healthz: async () => ({ ok: true }),
      info: async (withToken) =>
        withToken ? { ok: true, info: goodInfo } : { ok: false, why: "401", status: 401 },
      list: async () => ({ ok: true, rows: [] }),
      version: async () => "1.4.0",
      ...spoilt.sandboxd,
    },
    cluster: spoilt.cluster ?? clusterOf({ ...goodAnswers, ...answers }),
    admin: spoilt.admin,
    isOurs: spoilt.isOurs ?? (() => false),
    now: spoilt.clock ?? (() => spoilt.now ?? nowMs),
  };
}

/** A daemon of ours holds the lock: for `Spoilt.state`. */
export const daemonRuns: Partial<StateProbe> = {
  recordedHolder: () => ({ pid: 4711, startedAtMs: nowMs - 60_000 }),
  lockHolder: () => ({ pid: 4711 }),
};

/** One check by its id, made once. */
export async function outcomeOf(
  id: string,
  spoilt: Spoilt = {},
  flags: Record<string, string> = {},
): Promise<Outcome> {
  const check: Check | undefined = checks.find((candidate) => candidate.id === id);
  if (check === undefined) throw new Error(`no check ${id}`);
  return check.run(createContext(configOf(flags), probesOf(spoilt)));
}

/** A row of a table of expectations. */
export interface Case {
  id: string;
  /** What is wrong, as a test's name. */
  when: string;
  spoilt?: Spoilt;
  flags?: Record<string, string>;
  status: Outcome["status"];
  /** Texts that must be in what was found or in what to do. */
  says?: string[];
}

/** A test for each expectation; beside it, that whatever is wrong comes with what to do. */
export function testCases(cases: readonly Case[]): void {
  for (const { id, when, spoilt, flags, status, says = [] } of cases) {
    test(`${id}: ${status} when ${when}`, async () => {
      const outcome = await outcomeOf(id, spoilt, flags);
      expect(outcome.status, outcome.found).toBe(status);
      for (const text of says) expect(`${outcome.found}\n${outcome.todo ?? ""}`).toContain(text);
      if (status === "warn" || status === "fail") expect(outcome.todo ?? "").not.toBe("");
    });
  }
}

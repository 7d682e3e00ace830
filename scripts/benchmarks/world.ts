/**
 * What is measured, and where: the daemon and the floor as processes, each with a Node, a namespace and a sandboxd
 * stand-in of its own, on one real control plane.
 */
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { Api, KubeObject } from "../controlplane/api.ts";
import { ControlPlane, freePorts } from "../controlplane/controlplane.ts";

export const root = resolve(import.meta.dir, "../..");
export const template = "registry.example/sandbox/rt:24.04";
const startTimeoutMs = 60_000;
const stopTimeoutMs = 20_000;
const removeTimeoutMs = 300_000;
/** Warm VMs of a stand-in: more than any row claims. */
const warm = 1_000_000;

export type Kind = "daemon" | "floor";

/** The flags that turn everything on; the API budget is opened, or it would be what a burst measures. */
export const allFeatures = ["--publish-inventory", "--renew-leases", "--reschedule-after=5m"];
export const openBudget = ["--kube-api-qps=100000", "--kube-api-burst=100000"];

export interface AuditLine {
  verb: string;
  requestURI: string;
  userAgent?: string;
  objectRef?: { resource?: string; subresource?: string; namespace?: string; name?: string };
  requestReceivedTimestamp: string;
  stageTimestamp: string;
  stage: string;
  responseStatus?: { code?: number };
}

export class World implements AsyncDisposable {
  readonly api: Api;
  private readonly subjects: Subject[] = [];

  private constructor(
    readonly cluster: ControlPlane,
    readonly dir: string,
    private readonly own: boolean,
  ) {
    this.api = cluster.api;
  }

  /** On the control plane of `attachTo`, or on one of its own that goes with it. */
  static async open(attachTo: string | undefined, say: (line: string) => void): Promise<World> {
    const dir = mkdtempSync(join(tmpdir(), "vk-sandbox-bench-"));
    if (attachTo !== undefined) return new World(ControlPlane.attach(attachTo), dir, false);
    const cluster = await ControlPlane.up({ dir: join(dir, "cluster"), say });
    await cluster.serviceAccount("vk-sandbox", "vk-sandbox");
    return new World(cluster, dir, true);
  }

  /** A subject that runs, with its Node Ready. */
  async start(kind: Kind, options: SubjectOptions = {}): Promise<Subject> {
    const subject = await Subject.make(this, kind, options);
    this.subjects.push(subject);
    await subject.start();
    await subject.ready();
    return subject;
  }

  /** Where the audit log ends now. */
  auditMark(): number {
    return statSync(this.cluster.auditLog, { throwIfNoEntry: false })?.size ?? 0;
  }

  /** What the daemon asked of the API server since `mark`, as the API server recorded it. A watch that goes on is not in it. */
  audit(mark: number): AuditLine[] {
    const size = this.auditMark();
    const buffer = Buffer.alloc(Math.max(0, size - mark));
    const fd = openSync(this.cluster.auditLog, "r");
    readSync(fd, buffer, 0, buffer.length, mark);
    closeSync(fd);
    const text = buffer.toString("utf8");
    return text
      .slice(0, text.lastIndexOf("\n") + 1)
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => JSON.parse(line) as AuditLine);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const subject of this.subjects) await subject.remove();
    if (this.own) await this.cluster.down();
    rmSync(this.dir, { recursive: true, force: true });
  }
}

export interface SubjectOptions {
  /** Of the daemon, after the usual ones. */
  flags?: string[];
  /** Another kubeconfig than that of the provider's service account. */
  kubeconfig?: string;
  /** Another binary. */
  binary?: string;
  /** The stand-in of another subject, instead of one of its own. */
  sandboxd?: { url: string; tokenFile: string };
}

let made = 0;

export class Subject {
  private process: Bun.Subprocess | undefined;
  private standIn: Bun.Subprocess | undefined;
  startedAtMs = 0;

  private constructor(
    private readonly world: World,
    readonly kind: Kind,
    /** Of the Node and of the namespace. */
    readonly name: string,
    readonly dir: string,
    private readonly options: SubjectOptions,
    private sandboxdUrl: string,
    private readonly port: number,
  ) {}

  static async make(world: World, kind: Kind, options: SubjectOptions): Promise<Subject> {
    const name = `bench-${kind}-${++made}-${Math.random().toString(36).slice(2, 6)}`;
    const dir = join(world.dir, name);
    mkdirSync(dir, { mode: 0o700 });
    writeFileSync(join(dir, "token"), `root-${crypto.randomUUID()}\n`, { mode: 0o600 });
    const [port = 0] = await freePorts("127.0.0.1", 1);
    const subject = new Subject(world, kind, name, dir, options, options.sandboxd?.url ?? "", port);
    if (options.sandboxd === undefined) await subject.startSandboxd();
    await world.api.create("/api/v1/namespaces", { metadata: { name } });
    await until("the namespace has its service account", () =>
      world.api.find(`/api/v1/namespaces/${name}/serviceaccounts/default`),
    );
    return subject;
  }

  private async startSandboxd(): Promise<void> {
    const main = join(root, "lib/sim/sandboxd-main.ts");
    const args = [
      "--token-file",
      join(this.dir, "token"),
      "--pool",
      `${template},none,small,${warm}`,
      "--control",
    ];
    const log = openSync(join(this.dir, "sandboxd.log"), "a");
    this.standIn = Bun.spawn([process.execPath, main, ...args], { stdout: "pipe", stderr: log });
    const reader = (this.standIn.stdout as ReadableStream<Uint8Array>).getReader();
    const { value } = await reader.read();
    reader.releaseLock();
    const { url } = JSON.parse(new TextDecoder().decode(value)) as { url: string };
    this.sandboxdUrl = url;
  }

  get podsPath(): string {
    return `/api/v1/namespaces/${this.name}/pods`;
  }

  get pid(): number {
    if (this.process === undefined) throw new Error(`${this.name} was never started`);
    return this.process.pid;
  }

  get statePath(): string {
    return join(this.dir, "state", "claims.json");
  }

  get url(): string {
    return this.sandboxdUrl;
  }

  get tokenFile(): string {
    return this.options.sandboxd?.tokenFile ?? join(this.dir, "token");
  }

  signalSandboxd(signal: NodeJS.Signals): void {
    this.standIn?.kill(signal);
  }

  /** Puts the same token into the token file once more, by renaming a new file over it. */
  rewriteToken(): void {
    writeFileSync(`${this.tokenFile}.new`, readFileSync(this.tokenFile), { mode: 0o600 });
    renameSync(`${this.tokenFile}.new`, this.tokenFile);
  }

  /** Starts the process; returns at once. */
  async start(flags: string[] = []): Promise<void> {
    const { dir } = this;
    const log = openSync(join(dir, `${this.kind}.log`), "a");
    this.startedAtMs = performance.timeOrigin + performance.now();
    this.process = Bun.spawn(this.kind === "daemon" ? this.daemonCommand(flags) : this.floorCommand(), {
      cwd: dir,
      env: {
        PATH: process.env.PATH ?? "",
        HOME: dir,
        KUBECONFIG: this.options.kubeconfig ?? this.world.cluster.kubeconfig("vk-sandbox"),
        ...this.measuredEnvironment(),
      },
      stdin: "ignore",
      stdout: log,
      stderr: log,
    });
    closeSync(log);
  }

  /** BENCH_ENV_X=y gives the daemon X=y: for trying what a setting of the runtime does. */
  private measuredEnvironment(): Record<string, string> {
    const found: Record<string, string> = {};
    for (const [name, value] of Object.entries(process.env))
      if (name.startsWith("BENCH_ENV_")) found[name.slice("BENCH_ENV_".length)] = value ?? "";
    return found;
  }

  private daemonCommand(flags: string[]): string[] {
    return [
      this.options.binary ?? process.env.BENCH_BINARY ?? join(root, "dist/vk-sandbox"),
      `--node-name=${this.name}`,
      "--node-ip=127.0.0.1",
      `--listen-addr=127.0.0.1:${this.port}`,
      `--client-ca-file=${join(this.world.cluster.dir, "pki/ca.crt")}`,
      `--sandboxd-url=${this.sandboxdUrl}`,
      `--sandboxd-token-file=${this.tokenFile}`,
      `--state-path=${this.statePath}`,
      "--node-pods=10000",
      ...(this.options.flags ?? []),
      ...flags,
    ];
  }

  private floorCommand(): string[] {
    const { cluster } = this.world;
    const token = JSON.parse(readFileSync(cluster.kubeconfig("vk-sandbox"), "utf8")) as {
      users: { user: { token: string } }[];
    };
    const file = join(this.dir, "kube-token");
    writeFileSync(file, token.users[0]?.user.token ?? "", { mode: 0o600 });
    return [
      process.env.BENCH_FLOOR ?? join(root, "dist/bench-floor"),
      cluster.server,
      join(cluster.dir, "pki/ca.crt"),
      file,
      this.name,
      this.sandboxdUrl,
      join(this.dir, "token"),
      join(this.dir, "journal"),
    ];
  }

  /** Waits until the Node is Ready and takes Pods. */
  async ready(): Promise<void> {
    interface NodeStatus {
      conditions?: { type: string; status: string }[];
    }
    await until(`Node ${this.name} is Ready`, async () => {
      this.alive();
      const node = await this.world.api.find<KubeObject>(`/api/v1/nodes/${this.name}`);
      const status = node?.status as NodeStatus | undefined;
      const taints = (node?.spec?.taints ?? []) as { key: string }[];
      const isReady = status?.conditions?.some((c) => c.type === "Ready" && c.status === "True");
      return isReady && !taints.some((t) => t.key.startsWith("node.kubernetes.io/")) ? node : undefined;
    });
  }

  /** Throws, with its last lines, when the process is gone. */
  alive(): void {
    const { process: child } = this;
    if (child === undefined || (child.exitCode === null && child.signalCode === null)) return;
    const lines = readFileSync(join(this.dir, `${this.kind}.log`), "utf8")
      .trimEnd()
      .split("\n");
    throw new Error(
      `${this.name} ended (${child.exitCode ?? child.signalCode}):\n${lines.slice(-20).join("\n")}`,
    );
  }

  /** SIGTERM, then SIGKILL; waits until it is gone. */
  async stop(): Promise<void> {
    const { process: child } = this;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), stopTimeoutMs);
    await child.exited;
    clearTimeout(timer);
  }

  private removed = false;

  async remove(): Promise<void> {
    if (this.removed) return;
    this.removed = true;
    await this.stop();
    this.standIn?.kill("SIGKILL");
    const { api } = this.world;
    // Nobody is left to finalize what is still there. A request ends before thousands are deleted on a busy machine.
    const now = { kind: "DeleteOptions", apiVersion: "v1", gracePeriodSeconds: 0 };
    const gone = () =>
      api.request("DELETE", this.podsPath, now).then(
        () => true,
        () => false,
      );
    await until(`the Pods of ${this.name} are gone`, gone, removeTimeoutMs);
    for (const path of [
      `/api/v1/namespaces/${this.name}`,
      `/api/v1/nodes/${this.name}`,
      `/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/${this.name}`,
    ])
      await api.delete(path);
  }
}

/** Waits until `look` finds something, looking every 20 ms. */
export async function until<T>(
  what: string,
  look: () => Promise<T | undefined | false> | T | undefined | false,
  timeoutMs = startTimeoutMs,
): Promise<T> {
  const giveUpAt = Date.now() + timeoutMs;
  for (;;) {
    const found = await look();
    if (found !== undefined && found !== false) return found;
    if (Date.now() > giveUpAt) throw new Error(`after ${timeoutMs / 1000} s: not ${what}`);
    await Bun.sleep(20);
  }
}

/** Waits until a count stays the same for half a second. */
export async function settled(count: () => number): Promise<void> {
  let before = -1;
  for (let now = count(); now !== before; now = count()) {
    before = now;
    await Bun.sleep(500);
  }
}

/**
 * The demo: the real daemon as a process of its own, against stand-ins or a real API server, through the steps that
 * the provider exists for. A step that is not as it should be ends it with a non-zero exit code.
 */
import { chmodSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { apiPath, createKubeClient, describeFailure, type KubeClient, loadCluster } from "../kube/index.ts";
import { type ApiServer, startApiServer } from "./apiserver.ts";
import { startControllers } from "./controllers.ts";
import { type Sandboxd, startSandboxd } from "./sandboxd.ts";

export interface DemoOptions {
  /** A real cluster; absent: the API server is a stand-in too. */
  kubeconfig?: string;
  /** Keep the files of the run. */
  keep: boolean;
  env: Readonly<Record<string, string | undefined>>;
  /** Command that starts the daemon, without its flags. */
  daemon: string[];
}

/** Longest wait for one thing to become true. */
const WAIT_MS = 30_000;
const POLL_MS = 20;
const template = "ghcr.io/cocoonstack/sandbox/rt:24.04";
const claimIdAnnotation = "sandbox.cocoonstack.io/claim-id";

interface Json {
  metadata: { name: string; uid: string; annotations?: Record<string, string>; deletionTimestamp?: string };
  status?: {
    phase?: string;
    podIP?: string;
    reason?: string;
    message?: string;
    conditions?: { type: string; status: string }[];
  };
}

/**
 * Runs the demo and prints what happens.
 *
 * @returns exit code: 0 when every step was as it should be, 1 otherwise
 */
export async function runDemo(options: DemoOptions): Promise<number> {
  const dir = mkdtempSync(join(tmpdir(), "vk-sandbox-demo-"));
  const world = new World(options, dir);
  const interrupted = new Promise<never>((_, reject) => {
    for (const signal of ["SIGINT", "SIGTERM"] as const) {
      process.once(signal, () => reject(new Error(`interrupted by ${signal}`)));
    }
  });
  try {
    await Promise.race([steps(world), interrupted]);
    print(`\nAll ${world.stepsDone} steps were as they should be.`);
    return 0;
  } catch (error) {
    print(`\n✗ ${error instanceof Error ? error.message : String(error)}`);
    print(world.lastLogLines());
    return 1;
  } finally {
    await world.end();
    if (options.keep) print(`The daemon's log and state are in ${dir}`);
    else rmSync(dir, { recursive: true, force: true });
  }
}

async function steps(world: World): Promise<void> {
  await world.begin();

  await world.step("a Sandbox becomes a Pod that runs in a warm VM", async (say) => {
    await world.createSandbox("agent-1");
    const pod = await world.running("agent-1");
    say(`Pod agent-1 is Running: claim ${claimOf(pod)}, IP ${pod.status?.podIP}`);
  });

  await world.step(
    "its Pod is evicted while the Sandbox lives: the replacement has the same VM",
    async (say) => {
      const before = await world.running("agent-1");
      await world.deletePod("agent-1");
      const after = await world.running("agent-1", before.metadata.uid);
      expectSame(claimOf(after), claimOf(before), "the replacement's claim id");
      expectSame(world.vmsOf("agent-1"), 1, "number of VMs ever claimed for agent-1");
      say(`a new Pod, and still ${claimOf(after)} at ${after.status?.podIP}`);
    },
  );

  await world.step(
    "the daemon is killed with SIGKILL and started again: same VM, credential kept",
    async (say) => {
      const before = await world.running("agent-1");
      await world.killDaemon();
      await world.startDaemon();
      await world.deletePod("agent-1");
      const after = await world.running("agent-1", before.metadata.uid);
      expectSame(claimOf(after), claimOf(before), "the claim id after the restart");
      say(`a Pod made after the restart adopted ${claimOf(after)}`);
    },
  );

  await world.step("the Sandbox is deleted: its VM is released and the Pod object is gone", async (say) => {
    const id = claimOf(await world.running("agent-1"));
    await world.deleteSandbox("agent-1");
    await world.until(`VM ${id} is released`, () =>
      world.sandboxd.control.index().every((vm) => vm.id !== id),
    );
    await world.until("the Pod object is gone", async () => (await world.pod("agent-1")) === undefined);
    say(`sandboxd no longer has ${id}`);
  });

  await world.step("a pool without warm VMs: the Pod says so, and runs when there is one", async (say) => {
    world.sandboxd.control.setPool({ template, net: "none", size: "small", warm: 0, target: 0 });
    await world.createSandbox("agent-2");
    const waiting = await world.until("Pod agent-2 is Pending with a reason", async () => {
      const pod = await world.pod("agent-2");
      return pod?.status?.phase === "Pending" && pod.status.reason === "ProviderFailed" ? pod : undefined;
    });
    say(`Pending: ${waiting.status?.message}`);
    world.sandboxd.control.setPool({ template, net: "none", size: "small", warm: 1, target: 1 });
    const pod = await world.running("agent-2");
    say(`Running after the pool was filled: ${claimOf(pod)} at ${pod.status?.podIP}`);
    await world.deleteSandbox("agent-2");
    await world.until("every VM is released", () => world.sandboxd.control.index().length === 0);
  });
}

/** One run: stand-ins or cluster, the daemon, and the words for what happens to them. */
class World {
  stepsDone = 0;
  sandboxd!: Sandboxd;
  private server: ApiServer | undefined;
  private stopControllers: () => void = () => {};
  private kube!: KubeClient;
  private kubeconfig: string;
  private daemon: Bun.Subprocess | undefined;
  private starts = 0;
  private readonly namespace: string;
  private readonly node: string;
  private port = 0;
  private playing = false;
  private readonly wanted = new Map<string, Json>();

  constructor(
    private readonly options: DemoOptions,
    private readonly dir: string,
  ) {
    const id = crypto.randomUUID().slice(0, 8);
    this.namespace = `vk-sandbox-demo-${id}`;
    this.node = `vk-sandbox-demo-${id}`;
    this.kubeconfig = options.kubeconfig ?? join(dir, "kubeconfig");
  }

  async begin(): Promise<void> {
    const token = crypto.randomUUID();
    this.sandboxd = await startSandboxd({
      token,
      pools: [{ template, net: "none", size: "small", warm: 4, target: 4 }],
    });
    writeFileSync(join(this.dir, "token"), token, { mode: 0o600 });
    mkdirSync(join(this.dir, "state"), { mode: 0o700 });
    chmodSync(this.dir, 0o700);
    if (this.options.kubeconfig === undefined) {
      const apiToken = crypto.randomUUID();
      this.server = await startApiServer({ token: apiToken });
      this.stopControllers = startControllers(this.server.objects);
      writeFileSync(this.kubeconfig, kubeconfigOf(this.server.url, apiToken), { mode: 0o600 });
    }
    const loaded = await loadCluster({ env: this.options.env, kubeconfig: this.kubeconfig });
    if (!loaded.ok) throw new Error(loaded.message);
    this.kube = createKubeClient(loaded.cluster);
    await this.must("POST", "/api/v1/namespaces", {
      apiVersion: "v1",
      kind: "Namespace",
      metadata: { name: this.namespace },
    });
    this.port = await freePort();
    print(
      this.server === undefined
        ? `API server: ${loaded.cluster.server}, namespace ${this.namespace}; sandboxd: a stand-in`
        : "API server and sandboxd are stand-ins on loopback; the daemon is the real one, in a process of its own",
    );
    const startedAt = performance.now();
    await this.startDaemon();
    print(`Node ${this.node} is Ready after ${ms(performance.now() - startedAt)}\n`);
  }

  async end(): Promise<void> {
    this.playing = false;
    try {
      if (this.server === undefined && this.kube !== undefined) {
        const background = { apiVersion: "v1", kind: "DeleteOptions", propagationPolicy: "Background" };
        await this.kube.request("DELETE", `/api/v1/namespaces/${this.namespace}`, { body: background });
        const gone = async () => {
          const reply = await this.kube.request("GET", `/api/v1/namespaces/${this.namespace}`);
          return !reply.ok && reply.kind === "status" && reply.code === 404;
        };
        await this.until("the demo's namespace is gone", gone).catch((error: Error) => print(error.message));
      }
      await this.stopDaemon("SIGTERM");
      if (this.server === undefined && this.kube !== undefined) {
        await this.kube.request("DELETE", `/api/v1/nodes/${this.node}`);
        await this.kube.request(
          "DELETE",
          `/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/${this.node}`,
        );
      }
    } finally {
      this.kube?.close();
      this.stopControllers();
      await this.server?.stop();
      await this.sandboxd?.stop();
    }
  }

  /** One step: its title, what was seen, and how long it took. */
  async step(title: string, run: (say: (line: string) => void) => Promise<void>): Promise<void> {
    const lines: string[] = [];
    print(`${this.stepsDone + 1}. ${title}`);
    const startedAt = performance.now();
    await run((line) => lines.push(line));
    for (const line of lines) print(`   ${line}`);
    print(`   ✓ ${ms(performance.now() - startedAt)}\n`);
    this.stepsDone++;
  }

  async startDaemon(): Promise<void> {
    const log = openSync(join(this.dir, `daemon-${++this.starts}.log`), "w", 0o600);
    this.daemon = Bun.spawn(
      [
        ...this.options.daemon,
        "run",
        "--node-name",
        this.node,
        "--kubeconfig",
        this.kubeconfig,
        "--sandboxd-url",
        this.sandboxd.url,
        "--sandboxd-token-file",
        join(this.dir, "token"),
        "--state-path",
        join(this.dir, "state", "claims.json"),
        "--listen-addr",
        `127.0.0.1:${this.port}`,
        "--log-format",
        "json",
      ],
      { stdin: "ignore", stdout: log, stderr: log },
    );
    await this.until(`Node ${this.node} is Ready`, async () => {
      if (this.daemon?.exitCode != null)
        throw new Error(`the daemon exited with code ${this.daemon.exitCode}`);
      const node = await this.get(`/api/v1/nodes/${this.node}`);
      return node?.status?.conditions?.some(({ type, status }) => type === "Ready" && status === "True");
    });
  }

  async killDaemon(): Promise<void> {
    await this.stopDaemon("SIGKILL");
  }

  private async stopDaemon(signal: "SIGKILL" | "SIGTERM"): Promise<void> {
    this.daemon?.kill(signal);
    await this.daemon?.exited;
    this.daemon = undefined;
  }

  lastLogLines(): string {
    if (this.starts === 0) return "";
    const lines = readFileSync(join(this.dir, `daemon-${this.starts}.log`), "utf8")
      .trimEnd()
      .split("\n");
    return `The daemon's last lines:\n${lines.slice(-15).join("\n")}`;
  }

  async createSandbox(name: string): Promise<void> {
    const path = `${sandboxesPath(this.namespace)}`;
    const created = await this.must("POST", path, {
      apiVersion: "agents.x-k8s.io/v1beta1",
      kind: "Sandbox",
      metadata: { name },
      spec: { podTemplate: this.podTemplate() },
    });
    this.wanted.set(name, created);
    if (this.server === undefined) void this.playController();
  }

  async deleteSandbox(name: string): Promise<void> {
    this.wanted.delete(name);
    await this.must("DELETE", `${sandboxesPath(this.namespace)}/${name}`);
  }

  /** What an eviction does: a delete with the Pod's own grace period. */
  async deletePod(name: string): Promise<void> {
    await this.must("DELETE", this.podPath(name));
  }

  async pod(name: string): Promise<Json | undefined> {
    return this.get(this.podPath(name));
  }

  /** Waits for a Pod of this name that runs with a claim, of another generation than `notUid`. */
  running(name: string, notUid = ""): Promise<Json> {
    return this.until(`Pod ${name} is Running`, async () => {
      const pod = await this.pod(name);
      const there = pod?.status?.phase === "Running" && pod.metadata.uid !== notUid && claimOf(pod) !== "";
      return there && pod.metadata.deletionTimestamp === undefined ? pod : undefined;
    });
  }

  /** VMs that sandboxd ever granted for this Pod. */
  vmsOf(name: string): number {
    const ref = `${this.namespace}/${name}`;
    return this.sandboxd.control.history().filter((vm) => vm.claimRef === ref).length;
  }

  async until<T>(
    what: string,
    look: () => T | undefined | false | Promise<T | undefined | false>,
  ): Promise<T> {
    const endAt = performance.now() + WAIT_MS;
    for (;;) {
      const found = await look();
      if (found !== undefined && found !== false) return found;
      if (performance.now() > endAt)
        throw new Error(`waited ${WAIT_MS / 1000} s and did not see that ${what}`);
      await Bun.sleep(POLL_MS);
    }
  }

  /**
   * Sandboxes that no controller turns into Pods would never show anything: where the cluster has none, the demo makes
   * the Pods itself, as the upstream controller does.
   */
  private async playController(): Promise<void> {
    if (this.playing) return;
    this.playing = true;
    await Bun.sleep(1_500);
    while (this.playing) {
      for (const [name, sandbox] of this.wanted) {
        if (!this.playing || (await this.pod(name).catch(() => sandbox)) !== undefined) continue;
        const template = this.podTemplate();
        const owner = {
          apiVersion: "agents.x-k8s.io/v1beta1",
          kind: "Sandbox",
          name,
          uid: sandbox.metadata.uid,
          controller: true,
        };
        await this.kube.request("POST", `/api/v1/namespaces/${this.namespace}/pods`, {
          body: {
            apiVersion: "v1",
            kind: "Pod",
            metadata: { ...template.metadata, name, ownerReferences: [owner] },
            spec: template.spec,
          },
        });
      }
      await Bun.sleep(100);
    }
  }

  private podTemplate() {
    return {
      metadata: {
        annotations: {
          "sandbox.cocoonstack.io/runtime": "sandboxd",
          "sandbox.cocoonstack.io/template": template,
          "sandbox.cocoonstack.io/net": "none",
          "sandbox.cocoonstack.io/size": "small",
        },
      },
      spec: {
        // The demo's own node, so that it never lands on one that serves users.
        nodeSelector: { "sandbox.cocoonstack.io/runtime": "sandboxd", "kubernetes.io/hostname": this.node },
        tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" }],
        automountServiceAccountToken: false,
        containers: [{ name: "agent", image: template }],
      },
    };
  }

  private podPath(name: string): string {
    return `/api/v1/namespaces/${this.namespace}/pods/${name}`;
  }

  private async get(path: string): Promise<Json | undefined> {
    const reply = await this.kube.request("GET", path);
    if (reply.ok) return reply.body as Json;
    if (reply.kind === "status" && reply.code === 404) return undefined;
    throw new Error(`GET ${path}: ${describeFailure(reply)}`);
  }

  private async must(method: "POST" | "DELETE", path: string, body?: unknown): Promise<Json> {
    const reply = await this.kube.request(method, path, { body });
    if (reply.ok) return reply.body as Json;
    const hint =
      path.includes("agents.x-k8s.io") && reply.kind !== "status" ? " (is the Sandbox CRD installed?)" : "";
    throw new Error(`${method} ${path}: ${describeFailure(reply)}${hint}`);
  }
}

function sandboxesPath(namespace: string): string {
  return apiPath("/apis/agents.x-k8s.io/v1beta1", "namespaces", namespace, "sandboxes") ?? "";
}

function claimOf(pod: Json): string {
  return pod.metadata.annotations?.[claimIdAnnotation] ?? "";
}

function expectSame<T>(seen: T, wanted: T, what: string): void {
  if (seen !== wanted) throw new Error(`${what} is ${seen}, and should be ${wanted}`);
}

function ms(value: number): string {
  return value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`;
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

function kubeconfigOf(server: string, token: string): string {
  return JSON.stringify({
    apiVersion: "v1",
    kind: "Config",
    clusters: [{ name: "demo", cluster: { server } }],
    users: [{ name: "demo", user: { token } }],
    contexts: [{ name: "demo", context: { cluster: "demo", user: "demo" } }],
    "current-context": "demo",
  });
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address !== null ? address.port : 0));
    });
  });
}

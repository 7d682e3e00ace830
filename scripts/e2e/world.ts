/**
 * What one test lives in: a namespace, a sandboxd stand-in, a node of its own with its daemon, and a sandbox
 * controller, on the control plane that scripts/e2e/run started. Everything is gone when the test is over.
 *
 * The daemon runs as the service account of manifests/rbac.yaml unless told otherwise: a request that the API server
 * refused it fails the test, and so does a credential in its log.
 */
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Sandboxd, type SandboxdOptions, startSandboxd } from "../../lib/sim/sandboxd.ts";
import { type Api, ApiError, type KubeObject, type List, type OwnerReference } from "../controlplane/api.ts";
import { ControlPlane } from "../controlplane/controlplane.ts";
import { type SandboxController, sandboxApi, startSandboxController } from "./controller.ts";
import { Daemon, type DaemonOptions } from "./daemon.ts";
import { type EventuallyOptions, eventually } from "./eventually.ts";

export const template = "registry.example/sandbox/rt:24.04";
export const annotation = (name: string) => `sandbox.cocoonstack.io/${name}`;
const evictionTaints = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

export interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
}

export interface Pod extends KubeObject {
  spec: { nodeName?: string; containers: { name: string; image: string }[]; [field: string]: unknown };
  status: {
    phase?: string;
    reason?: string;
    message?: string;
    podIP?: string;
    podIPs?: { ip: string }[];
    hostIP?: string;
    startTime?: string;
    conditions?: Condition[];
    containerStatuses?: {
      name: string;
      ready: boolean;
      imageID: string;
      state: { running?: { startedAt: string }; waiting?: unknown; terminated?: unknown };
    }[];
  };
}

export interface Node extends KubeObject {
  spec: { taints?: { key: string; value?: string; effect: string }[] };
  status: {
    conditions: Condition[];
    capacity: Record<string, string>;
    addresses: { type: string; address: string }[];
    daemonEndpoints: { kubeletEndpoint: { Port: number } };
    nodeInfo: Record<string, string>;
  };
}

export interface WorldOptions {
  /** Warm VMs of the pool of `template`. */
  warm?: number;
  flags?: string[];
  /** Do not start the daemon. */
  idle?: boolean;
  /** Of its daemons, instead of the binary under test. */
  binary?: string;
  /** No sandbox controller: nothing makes Pods of Sandboxes but the test. */
  noController?: boolean;
  /** Path of the daemon's kubeconfig, given the world's name, which is the Node's too. Default: the service account's. */
  identity?: (name: string) => string;
  /** The daemon's environment beside the usual. */
  env?: Record<string, string>;
  /** Of the stand-in, beside its token and its pool. */
  sandboxd?: Omit<SandboxdOptions, "token" | "random">;
}

/** A further virtual Node with a sandboxd of its own. */
export interface SecondNode {
  name: string;
  sandboxd: Sandboxd;
  daemon: Daemon;
}

/** What a test changes about the Pod it makes. */
export interface PodOptions {
  annotations?: Record<string, string | null>;
  spec?: Record<string, unknown>;
  owner?: KubeObject;
  /** Further tolerations than that of the virtual node's taint. */
  tolerations?: Record<string, unknown>[];
}

let cluster: ControlPlane | undefined;

/** The control plane of this run. */
export function controlPlane(): ControlPlane {
  const dir = process.env.VK_E2E_CLUSTER;
  if (dir === undefined) throw new Error("no control plane: run these tests with scripts/e2e/run");
  cluster ??= ControlPlane.attach(dir);
  return cluster;
}

export class World implements AsyncDisposable {
  readonly api: Api = controlPlane().api;
  readonly daemon: Daemon;
  private readonly daemons: Daemon[] = [];
  private readonly others: SecondNode[] = [];
  private controller: SandboxController | undefined;
  private auditFrom = sizeOf(controlPlane().auditLog);

  private constructor(
    readonly name: string,
    readonly dir: string,
    readonly sandboxd: Sandboxd,
    private readonly secrets: Secrets,
    private readonly options: WorldOptions,
  ) {
    this.daemon = this.daemonOf();
  }

  /** Makes the namespace and the stand-in, and unless told otherwise starts controller and daemon and waits until its Node is Ready. */
  static async create(options: WorldOptions = {}): Promise<World> {
    const name = `e2e-${Math.random().toString(36).slice(2, 10)}`;
    const dir = mkdtempSync(join(tmpdir(), `${name}-`));
    const rootToken = `root-${crypto.randomUUID()}`;
    writeFileSync(join(dir, "token"), `${rootToken}\n`, { mode: 0o600 });
    const secrets: Secrets = {
      node: [rootToken, ...Object.keys(options.sandboxd?.tenants ?? {})],
      vms: new Set(),
    };
    const sandboxd = await standIn(rootToken, secrets, options);
    const world = new World(name, dir, sandboxd, secrets, options);
    try {
      await world.api.create("/api/v1/namespaces", { metadata: { name } });
      await world.eventually("the namespace has its service account", () =>
        world.api.find(`${world.path}/serviceaccounts/default`),
      );
      if (!options.noController) world.startController();
      if (!options.idle) await world.startDaemon();
      return world;
    } catch (error) {
      await world.remove();
      throw error;
    }
  }

  /** Another daemon for the same cluster and sandboxd; the same node name unless `nodeName` is given. */
  daemonOf(changes: Partial<DaemonOptions> = {}): Daemon {
    const daemon = new Daemon({
      nodeName: this.name,
      kubeconfig: this.options.identity?.(this.name) ?? controlPlane().kubeconfig("vk-sandbox"),
      sandboxdUrl: this.sandboxd.url,
      tokenFile: join(this.dir, "token"),
      env: this.options.env,
      dir: join(this.dir, "daemon"),
      binary: this.options.binary,
      ...changes,
      flags: [...(this.options.flags ?? []), ...(changes.flags ?? [])],
    });
    this.daemons.push(daemon);
    return daemon;
  }

  /** Another Node with a sandboxd and a daemon of its own; returns when it is Ready. */
  async addNode(options: Pick<WorldOptions, "warm" | "flags" | "sandboxd"> = {}): Promise<SecondNode> {
    const name = `${this.name}-${this.others.length + 2}`;
    const rootToken = `root-${crypto.randomUUID()}`;
    this.secrets.node.push(rootToken);
    const dir = join(this.dir, name);
    mkdirSync(dir);
    const tokenFile = join(dir, "token");
    writeFileSync(tokenFile, `${rootToken}\n`, { mode: 0o600 });
    const sandboxd = await standIn(rootToken, this.secrets, options);
    const daemon = this.daemonOf({
      nodeName: name,
      sandboxdUrl: sandboxd.url,
      tokenFile,
      dir,
      flags: options.flags,
    });
    this.others.push({ name, sandboxd, daemon });
    await daemon.start();
    await this.nodeReady(name);
    return { name, sandboxd, daemon };
  }

  startController(): void {
    this.controller ??= startSandboxController(this.api, this.name);
  }

  async stopController(): Promise<void> {
    await this.controller?.stop();
    this.controller = undefined;
  }

  /** Starts the daemon and waits until it serves: Node Ready, not tainted, and a heartbeat of this process seen. */
  async startDaemon(): Promise<void> {
    const before = (await this.api.find(this.leasePath))?.spec?.renewTime;
    await this.daemon.start();
    await this.eventually(
      "a heartbeat of the new process",
      () => this.api.find(this.leasePath),
      (lease) => lease?.spec?.renewTime !== undefined && lease.spec.renewTime !== before,
    );
    await this.nodeReady();
  }

  async nodeReady(name = this.name): Promise<Node> {
    const node = await this.eventually(
      `Node ${name} is Ready and takes Pods`,
      () => this.node(name),
      (n) =>
        conditionOf(n, "Ready")?.status === "True" &&
        !(n?.spec.taints ?? []).some((t) => t.key.startsWith("node.kubernetes.io/")),
    );
    if (node === undefined) throw new Error("unreachable: a Node that is Ready exists");
    return node;
  }

  /** Base path of the namespace's core resources. */
  get path(): string {
    return `/api/v1/namespaces/${this.name}`;
  }

  get nodePath(): string {
    return `/api/v1/nodes/${this.name}`;
  }

  get leasePath(): string {
    return leasePathOf(this.name);
  }

  sandboxPath(name = ""): string {
    return `/apis/${sandboxApi}/namespaces/${this.name}/sandboxes${name && `/${name}`}`;
  }

  podPath(name: string): string {
    return `${this.path}/pods/${name}`;
  }

  node(name = this.name): Promise<Node | undefined> {
    return this.api.find<Node>(`/api/v1/nodes/${name}`);
  }

  pod(name: string): Promise<Pod | undefined> {
    return this.api.find<Pod>(this.podPath(name));
  }

  async pods(): Promise<Pod[]> {
    return (await this.api.list<Pod>(`${this.path}/pods`)).items;
  }

  sandbox(name: string): Promise<KubeObject | undefined> {
    return this.api.find(this.sandboxPath(name));
  }

  /** Like `eventually`, with the daemon's last lines and the controller's troubles in a failure. */
  eventually<T>(
    what: string,
    probe: () => T | Promise<T>,
    holds?: (value: T) => boolean,
    options: EventuallyOptions = {},
  ): Promise<T> {
    const context = () =>
      [
        this.daemon.tail(),
        ...(this.controller?.troubles ?? []).slice(-5).map((t) => `controller: ${t}`),
      ].join("\n");
    return eventually(what, probe, holds, { context, ...options });
  }

  /** A Pod template that this world's node serves. */
  podTemplate({ annotations = {}, spec = {}, tolerations = [] }: PodOptions = {}) {
    const all: Record<string, string | null> = { [annotation("template")]: template, ...annotations };
    return {
      metadata: {
        // null removes what is there by default.
        annotations: Object.fromEntries(Object.entries(all).filter((entry) => entry[1] !== null)),
      },
      spec: {
        nodeSelector: { "kubernetes.io/hostname": this.name, [annotation("runtime")]: "sandboxd" },
        tolerations: [
          { key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" },
          ...tolerations,
        ],
        containers: [{ name: "agent", image: template }],
        ...spec,
      },
    };
  }

  /** Creates a Pod; with `owner`, that object is its controller. */
  createPod(name: string, options: PodOptions = {}): Promise<Pod> {
    const { metadata, spec } = this.podTemplate(options);
    const ownerReferences = options.owner === undefined ? undefined : [ownerReference(options.owner)];
    return this.api.create<Pod>(`${this.path}/pods`, {
      apiVersion: "v1",
      kind: "Pod",
      metadata: { name, ...metadata, ownerReferences },
      spec,
    });
  }

  /** Creates a Sandbox; the controller makes its Pod. */
  createSandbox(name: string, options: PodOptions = {}): Promise<KubeObject> {
    return this.api.create(this.sandboxPath(), {
      apiVersion: sandboxApi,
      kind: "Sandbox",
      metadata: { name },
      spec: { podTemplate: this.podTemplate(options) },
    });
  }

  /** Waits until the Pod runs in a VM; `not` is a generation that is not meant. */
  async running(name: string, not?: Pod, options?: EventuallyOptions): Promise<Pod> {
    const pod = await this.eventually(
      `Pod ${name} is Running${not ? " again, as another Pod" : ""}`,
      () => this.pod(name),
      (p) =>
        p?.status.phase === "Running" &&
        p.metadata.deletionTimestamp === undefined &&
        p.metadata.uid !== not?.metadata.uid,
      options,
    );
    if (pod === undefined) throw new Error("unreachable: a Pod that runs exists");
    return pod;
  }

  /** Waits until the object is gone; well below a Pod's grace of 30 s, which nothing here may wait for. */
  async gone(path: string, uid?: string): Promise<void> {
    await this.eventually(
      `${path} is gone`,
      () => this.api.find(path),
      (object) => object === undefined || (uid !== undefined && object.metadata.uid !== uid),
      { timeoutMs: 25_000 },
    );
  }

  /** Does what kube-controller-manager does to the Pods of a NotReady node, and waits until the daemon has undone it. */
  async disturb(name: string): Promise<void> {
    const notReady = { type: "Ready", status: "False", reason: "NodeNotReady" };
    const disturbed = await this.api.request<KubeObject>(
      "PATCH",
      `${this.podPath(name)}/status`,
      { status: { conditions: [notReady] } },
      "application/strategic-merge-patch+json",
    );
    await this.eventually(
      `Pod ${name} is Ready again`,
      () => this.pod(name),
      (pod) =>
        pod?.metadata.resourceVersion !== disturbed.metadata.resourceVersion &&
        conditionOf(pod, "Ready")?.status === "True",
      { timeoutMs: 60_000 },
    );
  }

  /** Every VM that was ever granted for a Pod name of this namespace, in order. */
  granted(name: string) {
    return this.sandboxd.control.history().filter((vm) => vm.claimRef === `${this.name}/${name}`);
  }

  /** What became of each of them: "lives", or how it ended. */
  fates(name: string): string[] {
    return this.granted(name).map((vm) => vm.endedBy ?? "lives");
  }

  /** The VMs that live. */
  living() {
    return this.sandboxd.control.history().filter((vm) => vm.endedBy === undefined);
  }

  /** Waits until the VM was released, with its own credential or with root's. */
  async released(id: string): Promise<void> {
    await this.eventually(
      `VM ${id} is released`,
      () => this.sandboxd.control.history().find((vm) => vm.id === id),
      (vm) => vm?.endedBy === "sandbox" || vm?.endedBy === "root",
    );
  }

  /** The Events about a Pod. */
  async events(
    pod: string,
  ): Promise<{ reason: string; type: string; message: string; source: { component?: string } }[]> {
    type Event = KubeObject & {
      reason: string;
      type: string;
      message: string;
      source: { component?: string };
    };
    const list: List<Event> = await this.api.list(
      `${this.path}/events?fieldSelector=involvedObject.name=${pod}`,
    );
    return list.items;
  }

  /** The requests that this run's providers made since the world began, as the API server recorded them. */
  requests(): AuditEntry[] {
    return readFrom(controlPlane().auditLog, this.auditFrom)
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => JSON.parse(line) as AuditEntry);
  }

  /** Requests before this moment count no more: neither in `requests` nor as refused. */
  forgetRequests(): void {
    this.auditFrom = sizeOf(controlPlane().auditLog);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const log = this.daemons.flatMap((d) => d.log);
    const refused = this.requests().filter(
      // Not those that admission forbade: nothing can be created in a namespace that is being deleted.
      (r) => r.annotations?.["authorization.k8s.io/decision"] === "forbid",
    );
    await this.remove();
    const leaked = log.find((line) => mentions(line, this.secrets));
    if (leaked !== undefined) throw new Error(`the daemon logged a credential: ${leaked}`);
    const fault = log.find((line) => line.includes("a fault in vk-sandbox itself"));
    if (fault !== undefined) throw new Error(`the daemon met a fault of its own: ${fault}`);
    if (refused.length > 0) {
      const lines = refused.slice(0, 5).map((r) => `${r.verb} ${r.requestURI}`);
      throw new Error(`manifests/rbac.yaml does not allow what the daemon asked: ${lines.join(", ")}`);
    }
  }

  private async remove(): Promise<void> {
    await this.stopController();
    await Promise.all(this.daemons.map((d) => d.kill()));
    for (const { sandboxd } of [this, ...this.others]) await sandboxd.stop();
    const now = { gracePeriodSeconds: 0 };
    for (const path of [
      this.sandboxPath(),
      `${this.path}/pods`,
      `/api/v1/namespaces/${this.name}`,
      ...[this, ...this.others].flatMap(({ name }) => [`/api/v1/nodes/${name}`, leasePathOf(name)]),
    ])
      await this.api.delete(path, path.endsWith("/pods") ? now : {}).catch((error: unknown) => {
        if (!(error instanceof ApiError)) throw error;
      });
    rmSync(this.dir, { recursive: true, force: true });
  }
}

export interface AuditEntry {
  verb: string;
  requestURI: string;
  user: { username: string; extra?: Record<string, string[]> };
  responseStatus?: { code?: number };
  annotations?: Record<string, string>;
}

/** A condition of a Pod or Node. */
export function conditionOf(
  object: { status?: { conditions?: Condition[] } } | undefined,
  type: string,
): Condition | undefined {
  return object?.status?.conditions?.find((c) => c.type === type);
}

/** A controller ownerReference to an object. */
export function ownerReference(owner: KubeObject): OwnerReference {
  return {
    apiVersion: owner.apiVersion ?? sandboxApi,
    kind: owner.kind ?? "Sandbox",
    name: owner.metadata.name,
    uid: owner.metadata.uid ?? "",
    controller: true,
    blockOwnerDeletion: true,
  };
}

/** Tolerations that let a Pod be evicted `seconds` after its node went away, instead of five minutes. */
export function evictedAfter(seconds: number): Record<string, unknown>[] {
  return evictionTaints.map((key) => ({
    key,
    operator: "Exists",
    effect: "NoExecute",
    tolerationSeconds: seconds,
  }));
}

/** Every credential of a world: those of its sandboxds, and those of their VMs, which are 32 hexadecimal digits. */
interface Secrets {
  node: string[];
  vms: Set<string>;
}

function mentions(line: string, secrets: Secrets): boolean {
  const digits = line.match(/[0-9a-f]{32}/g) ?? [];
  return digits.some((d) => secrets.vms.has(d)) || secrets.node.some((token) => line.includes(token));
}

/** A sandboxd stand-in; every credential that it gives out is added to `secrets`. */
function standIn(
  rootToken: string,
  secrets: Secrets,
  { warm = 50, sandboxd }: Pick<WorldOptions, "warm" | "sandboxd">,
): Promise<Sandboxd> {
  return startSandboxd({
    pools: [{ template, net: "none", size: "small", warm }],
    ...sandboxd,
    token: rootToken,
    // What it draws becomes ids (a part of it) and tokens (all of it, without hyphens).
    random: () => {
      const drawn = crypto.randomUUID();
      secrets.vms.add(drawn.replaceAll("-", ""));
      return drawn;
    },
  });
}

function leasePathOf(node: string): string {
  return `/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/${node}`;
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

function readFrom(path: string, offset: number): string {
  const size = sizeOf(path);
  const buffer = Buffer.alloc(Math.max(0, size - offset));
  const fd = openSync(path, "r");
  try {
    readSync(fd, buffer, 0, buffer.length, offset);
  } finally {
    closeSync(fd);
  }
  const text = buffer.toString("utf8");
  return text.slice(0, text.lastIndexOf("\n") + 1);
}

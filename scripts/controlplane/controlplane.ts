/**
 * A real control plane on this machine: etcd, kube-apiserver, kube-scheduler and kube-controller-manager as
 * processes, with all they own in one directory, so that a crashed run can still be taken down.
 */
import { generateKeyPairSync } from "node:crypto";
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { join, resolve } from "node:path";
import { Api, ApiError, type Credentials } from "./api.ts";
import { ensureBinaries, type Program } from "./binaries.ts";

const root = resolve(import.meta.dir, "../..");

export type Component = Exclude<Program, "issuecert">;
export const components: Component[] = [
  "etcd",
  "kube-apiserver",
  "kube-scheduler",
  "kube-controller-manager",
];

export interface Options {
  /** Holds everything; must be missing, empty, or a control plane's directory that nothing lives in. */
  dir: string;
  /** Where everything listens. Another address than loopback serves hosts in network namespaces of the caller's own. */
  address?: string;
  /** Without them kube-controller-manager has its defaults, in particular of node monitoring. */
  controllerManagerArgs?: string[];
  apiserverArgs?: string[];
  /** Neither CRDs nor manifests/rbac.yaml are applied. */
  bare?: boolean;
  say?: (line: string) => void;
}

/** Who a kubeconfig speaks for. */
export interface Identity {
  user: string;
  groups: string[];
}

interface State {
  binaries: string;
  server: string;
  /** Command line of each component, program first. */
  commands: Record<Component, string[]>;
  /** Where each component says that it is healthy. */
  health: Record<Component, string>;
  pids: Partial<Record<Component, number>>;
}

const upTimeoutMs = 120_000;
const stopTimeoutMs = 20_000;
const upAttemptsMax = 3;

/** A control plane that is up, or that was. */
export class ControlPlane {
  readonly api: Api;

  private constructor(
    readonly dir: string,
    private readonly state: State,
  ) {
    this.api = new Api(this.credentials("admin"));
  }

  /** Starts a control plane and returns when it serves. Throws, with all taken down again, when it does not come up. */
  static async up(options: Options): Promise<ControlPlane> {
    const say = options.say ?? (() => {});
    const dir = resolve(options.dir);
    if (existsSync(join(dir, "cluster.json"))) {
      if (processesOf(dir).length > 0)
        throw new Error(
          `a control plane runs in ${dir}; take it down with: scripts/cluster down --dir ${dir}`,
        );
      remove(dir);
    }
    if (existsSync(dir) && readdirSync(dir).length > 0)
      throw new Error(`${dir} is not empty and not a control plane's: name another directory with --dir`);
    const binaries = await ensureBinaries(say);
    // A port that was free may be taken by the time it is bound: then everything is tried again with others.
    for (let attempt = 1; ; attempt++) {
      const started = Date.now();
      const cluster = await ControlPlane.prepare(dir, binaries, options);
      try {
        cluster.start("etcd");
        cluster.start("kube-apiserver");
        // The other two give up when the API server's own roles are not there yet.
        await cluster.ready("etcd", "kube-apiserver");
        // Before kube-controller-manager: its garbage collector looks for new kinds every 30 s only.
        if (!options.bare) await cluster.applyManifests();
        cluster.start("kube-scheduler");
        cluster.start("kube-controller-manager");
        await cluster.ready();
        say(
          `control plane up in ${((Date.now() - started) / 1000).toFixed(1)} s, API server at ${cluster.state.server}`,
        );
        return cluster;
      } catch (error) {
        const taken = components.some((c) => cluster.log(c, 100).includes("address already in use"));
        if (!taken || attempt === upAttemptsMax) {
          // The logs stay for whoever has to find out why.
          await cluster.killAll();
          throw error;
        }
        await cluster.down();
      }
    }
  }

  /** The control plane of a directory, as another process started it. */
  static attach(dir: string): ControlPlane {
    const path = join(resolve(dir), "cluster.json");
    if (!existsSync(path)) throw new Error(`no control plane in ${dir}; start one with: scripts/cluster up`);
    return new ControlPlane(resolve(dir), JSON.parse(readFileSync(path, "utf8")) as State);
  }

  private static async prepare(dir: string, binaries: string, options: Options): Promise<ControlPlane> {
    const address = options.address ?? "127.0.0.1";
    const pki = join(dir, "pki");
    mkdirSync(pki, { recursive: true, mode: 0o700 });
    const [client, peer, secure, scheduler, manager] = await freePorts(address, 5);
    const server = `https://${address}:${secure}`;
    issue(binaries, pki, [
      {
        name: "apiserver",
        commonName: "kube-apiserver",
        hosts: [address, "127.0.0.1", "localhost", "kubernetes.default.svc"],
      },
      {
        name: "kubelet-client",
        commonName: "kube-apiserver-kubelet-client",
        organizations: ["system:masters"],
      },
      { name: "admin", commonName: "admin", organizations: ["system:masters"] },
      { name: "scheduler", commonName: "system:kube-scheduler" },
      { name: "controller-manager", commonName: "system:kube-controller-manager" },
    ]);
    const keys = generateKeyPairSync("ec", { namedCurve: "P-256" });
    const secret = { mode: 0o600 };
    writeFileSync(join(pki, "sa.key"), keys.privateKey.export({ type: "sec1", format: "pem" }), secret);
    writeFileSync(join(pki, "sa.pub"), keys.publicKey.export({ type: "spki", format: "pem" }), secret);
    writeFileSync(join(dir, "audit.yaml"), auditPolicy);
    for (const name of ["admin", "scheduler", "controller-manager"])
      writeKubeconfig(dir, name, credentialsOf(dir, server, name));

    const ca = join(pki, "ca.crt");
    const kubeconfig = (name: string) => join(dir, `${name}.kubeconfig`);
    const commands: Record<Component, string[]> = {
      etcd: [
        join(binaries, "etcd"),
        `--data-dir=${join(dir, "etcd")}`,
        `--listen-client-urls=http://${address}:${client}`,
        `--advertise-client-urls=http://${address}:${client}`,
        `--listen-peer-urls=http://${address}:${peer}`,
        `--initial-advertise-peer-urls=http://${address}:${peer}`,
        `--initial-cluster=default=http://${address}:${peer}`,
        "--log-level=warn",
        // The data lives as long as the run.
        "--unsafe-no-fsync",
      ],
      "kube-apiserver": [
        join(binaries, "kube-apiserver"),
        `--etcd-servers=http://${address}:${client}`,
        `--bind-address=${address}`,
        `--advertise-address=${address}`,
        // It would write the address above into an Endpoints object, where loopback is not allowed.
        "--endpoint-reconciler-type=none",
        `--secure-port=${secure}`,
        `--tls-cert-file=${join(pki, "apiserver.crt")}`,
        `--tls-private-key-file=${join(pki, "apiserver.key")}`,
        `--client-ca-file=${ca}`,
        `--kubelet-client-certificate=${join(pki, "kubelet-client.crt")}`,
        `--kubelet-client-key=${join(pki, "kubelet-client.key")}`,
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc",
        `--service-account-key-file=${join(pki, "sa.pub")}`,
        `--service-account-signing-key-file=${join(pki, "sa.key")}`,
        "--service-cluster-ip-range=10.0.0.0/24",
        `--audit-policy-file=${join(dir, "audit.yaml")}`,
        `--audit-log-path=${join(dir, "audit.log")}`,
        "--audit-log-maxsize=1000",
        ...(options.apiserverArgs ?? []),
      ],
      "kube-scheduler": [
        join(binaries, "kube-scheduler"),
        `--kubeconfig=${kubeconfig("scheduler")}`,
        `--authentication-kubeconfig=${kubeconfig("scheduler")}`,
        `--authorization-kubeconfig=${kubeconfig("scheduler")}`,
        `--bind-address=${address}`,
        `--secure-port=${scheduler}`,
        "--leader-elect=false",
        // Its own limit of 50 requests a second would be what a burst of Pods measures.
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
      ],
      "kube-controller-manager": [
        join(binaries, "kube-controller-manager"),
        `--kubeconfig=${kubeconfig("controller-manager")}`,
        `--authentication-kubeconfig=${kubeconfig("controller-manager")}`,
        `--authorization-kubeconfig=${kubeconfig("controller-manager")}`,
        `--bind-address=${address}`,
        `--secure-port=${manager}`,
        "--leader-elect=false",
        "--use-service-account-credentials",
        `--service-account-private-key-file=${join(pki, "sa.key")}`,
        `--root-ca-file=${ca}`,
        "--kube-api-qps=300",
        "--kube-api-burst=600",
        ...(options.controllerManagerArgs ?? []),
      ],
    };
    const health: Record<Component, string> = {
      etcd: `http://${address}:${client}/health`,
      "kube-apiserver": `${server}/readyz`,
      "kube-scheduler": `https://${address}:${scheduler}/healthz`,
      "kube-controller-manager": `https://${address}:${manager}/healthz`,
    };
    const cluster = new ControlPlane(dir, { binaries, server, commands, health, pids: {} });
    cluster.save();
    return cluster;
  }

  /** URL of the API server. */
  get server(): string {
    return this.state.server;
  }

  /** Path of a kubeconfig: `admin`, or one that `identity` or `serviceAccount` made. */
  kubeconfig(name: string): string {
    return join(this.dir, `${name}.kubeconfig`);
  }

  /** Where the API server records each request of the provider's identities, as JSON lines. */
  get auditLog(): string {
    return join(this.dir, "audit.log");
  }

  /**
   * Makes a client certificate for an identity and a kubeconfig with it in it; returns the kubeconfig's path.
   * The files carry `name`.
   */
  identity(name: string, identity: Identity): string {
    issue(this.state.binaries, join(this.dir, "pki"), [
      { name, commonName: identity.user, organizations: identity.groups },
    ]);
    return writeKubeconfig(this.dir, name, this.credentials(name));
  }

  /** Asks for a token of a service account and writes a kubeconfig with it; returns the kubeconfig's path. */
  async serviceAccount(namespace: string, name: string): Promise<string> {
    const answer = await this.api.create<{ status: { token: string } }>(
      `/api/v1/namespaces/${namespace}/serviceaccounts/${name}/token`,
      {
        apiVersion: "authentication.k8s.io/v1",
        kind: "TokenRequest",
        spec: { expirationSeconds: 24 * 3600 },
      },
    );
    const ca = readFileSync(join(this.dir, "pki", "ca.crt"), "utf8");
    return writeKubeconfig(this.dir, name, { server: this.state.server, ca, token: answer.status.token });
  }

  /** Certificate, key and authority of an identity, or of `admin`. */
  credentials(name: string): Credentials {
    return credentialsOf(this.dir, this.state.server, name);
  }

  /** CRDs (the real ones of ../shared/crds when present, the project's own fixtures otherwise) and manifests/rbac.yaml. */
  async applyManifests(): Promise<void> {
    for (const file of customResourceDefinitions()) await this.api.applyFile(file);
    await this.api.applyFile(join(root, "manifests", "rbac.yaml"));
    await this.authorized();
  }

  /** Waits until the authorizer knows the provider's rights: its caches trail what was just written. */
  private async authorized(): Promise<void> {
    const rights = [
      { verb: "create", resource: "nodes" },
      { verb: "patch", resource: "leases", group: "coordination.k8s.io", namespace: "kube-node-lease" },
      { verb: "patch", resource: "pods", subresource: "status", namespace: "default" },
      { verb: "get", resource: "sandboxes", group: "agents.x-k8s.io", namespace: "default" },
      { verb: "patch", resource: "nodeinventories", group: "sandbox.cocoonstack.io" },
    ];
    for (const resourceAttributes of rights) {
      const body = {
        apiVersion: "authorization.k8s.io/v1",
        kind: "SubjectAccessReview",
        spec: { user: "system:serviceaccount:vk-sandbox:vk-sandbox", resourceAttributes },
      };
      const allowed = async () => {
        const path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        const review = await this.api.create<{ status: { allowed: boolean } }>(path, body);
        return review.status.allowed;
      };
      const what = `the provider may not ${resourceAttributes.verb} ${resourceAttributes.resource}`;
      await until(allowed, upTimeoutMs, what);
    }
  }

  /** Starts one component; its log goes on where it was. */
  start(component: Component): void {
    const log = openSync(join(this.dir, `${component}.log`), "a", 0o600);
    const child = Bun.spawn(this.state.commands[component], {
      cwd: this.dir,
      stdin: "ignore",
      stdout: log,
      stderr: log,
      // A session of its own: Ctrl-C on whoever started it is not meant for the control plane.
      detached: true,
    });
    closeSync(log);
    child.unref();
    this.state.pids[component] = child.pid;
    this.save();
  }

  /** Kills one component and waits until it is gone. */
  async stop(component: Component): Promise<void> {
    const pid = this.pid(component);
    if (pid === undefined) return;
    process.kill(pid, "SIGKILL");
    await until(() => this.pid(component) === undefined, stopTimeoutMs, `${component} (${pid}) does not die`);
    delete this.state.pids[component];
    this.save();
  }

  /** Sends a signal to a component, such as SIGSTOP to make it hang. */
  signal(component: Component, signal: NodeJS.Signals): void {
    const pid = this.pid(component);
    if (pid === undefined) throw new Error(`${component} does not run`);
    process.kill(pid, signal);
  }

  /** The pid of a component that runs. */
  pid(component: Component): number | undefined {
    const pid = this.state.pids[component];
    return pid !== undefined && processesOf(this.dir).includes(pid) ? pid : undefined;
  }

  /** Per component: whether it says that it is healthy. */
  async healthy(component: Component): Promise<boolean> {
    const { ca, cert, key } = this.credentials("admin");
    // Scheduler and controller-manager make a certificate of their own that nobody signed.
    const tls = component === "kube-apiserver" ? { ca, cert, key } : { rejectUnauthorized: false };
    return await fetch(this.state.health[component], { tls, signal: AbortSignal.timeout(2_000) })
      .then((response) => response.ok)
      .catch(() => false);
  }

  /**
   * Waits until the named components (all without names) are healthy, and with kube-controller-manager until
   * the first service account exists. A component that died is an error.
   */
  async ready(...names: Component[]): Promise<void> {
    const waited = names.length === 0 ? components : names;
    for (const component of waited)
      await until(
        async () => {
          if (this.pid(component) === undefined)
            throw new Error(
              `${component} died:\n${this.log(component, 20)}\nall of it: ${this.dir}/${component}.log`,
            );
          return await this.healthy(component);
        },
        upTimeoutMs,
        `${component} is not healthy; its log: ${this.dir}/${component}.log`,
      );
    if (!waited.includes("kube-controller-manager")) return;
    await until(
      async () =>
        (await this.api.find("/api/v1/namespaces/default/serviceaccounts/default").catch(notYet)) !==
        undefined,
      upTimeoutMs,
      "kube-controller-manager made no default service account",
    );
  }

  /** The last lines of a component's log. */
  log(component: Component, lines: number): string {
    const path = join(this.dir, `${component}.log`);
    return existsSync(path) ? readFileSync(path, "utf8").trimEnd().split("\n").slice(-lines).join("\n") : "";
  }

  /** Kills what runs here and removes the directory; works on what a crash left too. */
  async down(): Promise<void> {
    await this.killAll();
    remove(this.dir);
  }

  private async killAll(): Promise<void> {
    for (const pid of processesOf(this.dir)) process.kill(pid, "SIGKILL");
    await until(
      () => processesOf(this.dir).length === 0,
      stopTimeoutMs,
      `processes of ${this.dir} do not die`,
    );
  }

  private save(): void {
    const path = join(this.dir, "cluster.json");
    writeFileSync(`${path}.new`, `${JSON.stringify(this.state, null, 2)}\n`, { mode: 0o600 });
    renameSync(`${path}.new`, path);
  }
}

/**
 * Every file with the CRDs that the provider and its tests meet: the real ones when they are there, and
 * scripts/fixtures/crds otherwise or with VK_E2E_CRDS=fixtures.
 */
export function customResourceDefinitions(): string[] {
  const real = resolve(root, "..", "shared", "crds");
  const fixtures = join(root, "scripts", "fixtures", "crds");
  const dir = process.env.VK_E2E_CRDS !== "fixtures" && existsSync(real) ? real : fixtures;
  return readdirSync(dir)
    .filter((file) => file.endsWith(".yaml"))
    .sort()
    .map((file) => join(dir, file));
}

/** Ports that nothing listens on, below those the kernel hands out to clients. */
export async function freePorts(address: string, count: number): Promise<number[]> {
  const ports: number[] = [];
  for (let attempt = 0; ports.length < count; attempt++) {
    if (attempt > 1000) throw new Error(`no ${count} free ports on ${address}`);
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    if (!ports.includes(port) && (await isFree(address, port))) ports.push(port);
  }
  return ports;
}

/** Whether nothing listens on a port. */
export function isFree(address: string, port: number): Promise<boolean> {
  return new Promise((settle) => {
    const server = createServer();
    server.once("error", () => settle(false));
    server.listen({ host: address, port, exclusive: true }, () => server.close(() => settle(true)));
  });
}

/** Who asked what and what it got: of the provider's identities only, the control plane's own traffic is no concern. */
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
  users: ["system:serviceaccount:vk-sandbox:vk-sandbox"]
- level: Metadata
  userGroups: ["system:nodes"]
- level: None
`;

interface CertificateRequest {
  name: string;
  commonName: string;
  organizations?: string[];
  hosts?: string[];
}

function issue(binaries: string, pki: string, requests: CertificateRequest[]): void {
  const { success, stderr } = Bun.spawnSync([join(binaries, "issuecert"), pki], {
    stdin: Buffer.from(JSON.stringify(requests)),
    stdout: "ignore",
    stderr: "pipe",
  });
  if (!success) throw new Error(stderr.toString().trim());
}

function credentialsOf(dir: string, server: string, name: string): Credentials {
  const file = (base: string) => readFileSync(join(dir, "pki", base), "utf8");
  return { server, ca: file("ca.crt"), cert: file(`${name}.crt`), key: file(`${name}.key`) };
}

function writeKubeconfig(dir: string, name: string, { server, ca, cert, key, token }: Credentials): string {
  const data = (pem: string) => Buffer.from(pem).toString("base64");
  const user =
    cert === undefined || key === undefined
      ? { token }
      : { "client-certificate-data": data(cert), "client-key-data": data(key) };
  const path = join(dir, `${name}.kubeconfig`);
  const config = {
    apiVersion: "v1",
    kind: "Config",
    clusters: [{ name: "test", cluster: { server, "certificate-authority-data": data(ca) } }],
    users: [{ name, user }],
    contexts: [{ name: "test", context: { cluster: "test", user: name } }],
    "current-context": "test",
  };
  // JSON is YAML.
  writeFileSync(`${path}.new`, `${JSON.stringify(config, null, 2)}\n`, { mode: 0o600 });
  renameSync(`${path}.new`, path);
  return path;
}

/**
 * Pids of the control plane that lives in `dir`: one of its programs with a path of that directory on its
 * command line, or running in it (etcd's command line is enough, the API server's too). Read from /proc, so
 * that a run whose cluster.json was never finished is found as well.
 */
function processesOf(dir: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        const program = (readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0")[0] ?? "").split("/").pop();
        return components.some((c) => c === program) && readlinkSync(`/proc/${pid}/cwd`) === dir;
      } catch {
        return false;
      }
    });
}

function remove(dir: string): void {
  // Never a directory that is not a control plane's, whatever --dir said.
  if (existsSync(join(dir, "cluster.json"))) rmSync(dir, { recursive: true, force: true });
}

function notYet(error: unknown): undefined {
  if (error instanceof ApiError) return undefined;
  throw error;
}

async function until(
  condition: () => boolean | Promise<boolean>,
  timeoutMs: number,
  what: string,
): Promise<void> {
  const giveUpAt = Date.now() + timeoutMs;
  while (!(await condition())) {
    if (Date.now() > giveUpAt) throw new Error(`after ${timeoutMs / 1000} s: ${what}`);
    await Bun.sleep(100);
  }
}

/** The compiled binary as a process: started with flags, watched, killed, started again. */
import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { isFree } from "../controlplane/controlplane.ts";

/** What is tested: the binary that scripts/build made, or another version of it. */
const binary = resolve(process.env.VK_E2E_BINARY ?? join(import.meta.dir, "../../dist/vk-sandbox"));

/** Of the node: one that kube-apiserver proxies to, where scripts/e2e/run could make one. */
export const defaultAddress = process.env.VK_E2E_ADDRESS ?? "127.0.0.1";

const stopTimeoutMs = 20_000;
const logLinesMax = 20_000;

/** Below the ports of control planes. One after the other: daemons that start side by side must not draw the same. */
const portMin = 10_300;
const portMax = 19_999;
let nextPort = portMin + Math.floor(Math.random() * (portMax - portMin));

async function freePort(address: string): Promise<number> {
  for (let tries = portMin; tries < portMax; tries++) {
    const port = nextPort;
    nextPort = nextPort === portMax ? portMin : nextPort + 1;
    if (await isFree(address, port)) return port;
  }
  throw new Error(`no free port on ${address}`);
}

export interface DaemonOptions {
  nodeName: string;
  kubeconfig: string;
  sandboxdUrl: string;
  tokenFile: string;
  /** Holds the state directory, and is the process's home and working directory. */
  dir: string;
  /** After the flags above, so that they win. */
  flags?: string[];
  /** Another binary than the one under test. */
  binary?: string;
  /** Where the kubelet port listens and what the Node says is its address. */
  address?: string;
  /** Environment beside PATH, HOME and KUBECONFIG. */
  env?: Record<string, string>;
}

export class Daemon {
  readonly stateDir: string;
  /** Everything every process of this daemon wrote to stdout and stderr, line by line. */
  readonly log: string[] = [];
  private process: Bun.Subprocess | undefined;
  private port: number | undefined;

  constructor(private readonly options: DaemonOptions) {
    this.stateDir = join(options.dir, "state");
  }

  get statePath(): string {
    return join(this.stateDir, "claims.json");
  }

  get running(): boolean {
    return this.process !== undefined && this.process.exitCode === null && this.process.signalCode === null;
  }

  get pid(): number {
    if (this.process === undefined) throw new Error("the daemon was never started");
    return this.process.pid;
  }

  /** URL of the kubelet port. */
  get kubeletUrl(): string {
    return `https://${this.options.address ?? defaultAddress}:${this.port}`;
  }

  /** Starts the process; `flags` are added for this start only. Returns at once. */
  async start(flags: string[] = []): Promise<void> {
    if (this.running) throw new Error("the daemon runs already");
    const { nodeName, kubeconfig, sandboxdUrl, tokenFile, dir, address = defaultAddress } = this.options;
    this.port ??= await freePort(address);
    mkdirSync(dir, { recursive: true });
    this.process = Bun.spawn(
      [
        this.options.binary ?? binary,
        `--node-name=${nodeName}`,
        `--node-ip=${address}`,
        `--listen-addr=${address}:${this.port}`,
        `--sandboxd-url=${sandboxdUrl}`,
        `--sandboxd-token-file=${tokenFile}`,
        `--state-path=${this.statePath}`,
        // All that is logged is searched for credentials.
        "--log-level=debug",
        ...(this.options.flags ?? []),
        ...flags,
      ],
      {
        cwd: dir,
        // Nothing of the caller's environment: no variable of this machine may change what is tested.
        env: { PATH: process.env.PATH ?? "", HOME: dir, KUBECONFIG: kubeconfig, ...this.options.env },
        stdin: "ignore",
        stdout: "pipe",
        stderr: "pipe",
      },
    );
    const { stdout, stderr } = this.process;
    for (const stream of [stdout, stderr]) if (stream instanceof ReadableStream) void this.collect(stream);
  }

  /** kill -9, and waits until the process is gone. */
  async kill(): Promise<void> {
    if (!this.running) return;
    this.process?.kill("SIGKILL");
    await this.exited();
  }

  /** SIGTERM; returns the exit code. Kills the process and throws when it does not stop. */
  async stop(): Promise<number> {
    this.process?.kill("SIGTERM");
    return await this.exited();
  }

  /** SIGSTOP: alive, and doing nothing. */
  pause(): void {
    this.process?.kill("SIGSTOP");
  }

  /** SIGCONT. */
  resume(): void {
    this.process?.kill("SIGCONT");
  }

  /** Waits for the process's own end and returns its exit code. */
  async exited(timeoutMs = stopTimeoutMs): Promise<number> {
    if (this.process === undefined) throw new Error("the daemon was never started");
    const process = this.process;
    const timer = setTimeout(() => process.kill("SIGKILL"), timeoutMs);
    const code = await process.exited;
    clearTimeout(timer);
    if (process.signalCode === "SIGKILL") return 137;
    return code;
  }

  /** The last lines of the log, for a failure's message. */
  tail(lines = 30): string {
    const state = this.running
      ? `runs (pid ${this.pid})`
      : `does not run (exit code ${this.process?.exitCode}, signal ${this.process?.signalCode})`;
    return `daemon ${this.options.nodeName} ${state}; its last lines:\n${this.log.slice(-lines).join("\n")}`;
  }

  private async collect(stream: ReadableStream<Uint8Array<ArrayBuffer>>): Promise<void> {
    let rest = "";
    for await (const chunk of stream.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop() ?? "";
      this.log.push(...lines);
      if (this.log.length > logLinesMax) this.log.splice(0, this.log.length - logLinesMax);
    }
    if (rest !== "") this.log.push(rest);
  }
}

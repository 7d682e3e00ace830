/**
 * What the checks may look at. Every probe only reads: no file is made, no object written, no lock taken.
 * Tests put plain objects in their place; machine.ts has the real ones.
 */
import type { HostPort } from "../config/index.ts";
import type { KubeClient } from "../kube/index.ts";
import type { Sandboxd } from "../sandboxd/index.ts";
import type { Holder, ReadOnlyTable, Refused } from "../state/index.ts";

/** A process as /proc shows it. */
export interface ProcessInfo {
  pid: number;
  /** Name of the executable, without its path. */
  name: string;
}

/** vk-cocoon on the same host. */
export interface CocoonProcess extends ProcessInfo {
  /** VK_NODE_NAME of its environment; undefined when it may not be read. */
  nodeName?: string;
}

export interface HostProbe {
  platform: string;
  /** As Node names it: x64, arm64. */
  arch: string;
  /** `uname -r`. */
  kernel: string;
  hostname: string;
  /** `version` is empty when the library does not tell. */
  libc(): { kind: "glibc" | "musl" | "unknown"; version: string };
  /** Open-file limit of a process; of this one without `pid`. Undefined: not to be read. */
  openFiles(pid?: number): { soft: number; hard: number } | undefined;
  /** Tries to listen and stops at once. `code` is the system's: EADDRINUSE, EADDRNOTAVAIL, EACCES. */
  tryListen(at: HostPort): Promise<{ ok: true } | { ok: false; code: string }>;
  /** Who listens on a TCP port. Undefined: nobody. A `pid` of 0: somebody, but /proc does not say who. */
  listener(port: number): ProcessInfo | undefined;
  cocoon(): CocoonProcess[];
  /** Addresses of this host's interfaces. */
  addresses(): string[];
  /** The text of a file of at most `bytesMax`, or the system's error code. */
  readText(path: string, bytesMax: number): { ok: true; text: string } | { ok: false; code: string };
}

export interface PathInfo {
  kind: "file" | "directory" | "other";
  /** Permission bits. */
  mode: number;
  uid: number;
  bytes: number;
  modifiedAtMs: number;
}

export interface FileSystemInfo {
  /** statfs(2) f_type. */
  magic: number;
  /** For an unprivileged process. */
  freeBytes: number;
  /** 0: the file system does not count them. */
  inodes: number;
  freeInodes: number;
}

export interface StateProbe {
  /** Effective user of this process. */
  uid: number;
  /** Follows links. Undefined: nothing there. */
  stat(path: string): PathInfo | undefined | { code: string };
  /** Whether this process may make files in a directory. */
  writable(directory: string): boolean;
  list(directory: string): string[] | undefined;
  statfs(path: string): FileSystemInfo | { code: string };
  /** Who wrote the lock file last. */
  recordedHolder(): Holder | undefined;
  /** The process that holds the kernel lock now; `pid` 0 when it is in another PID namespace. "unknown": /proc does not tell. */
  lockHolder(): { pid: number } | undefined | "unknown";
  /** Undefined: no such process. */
  process(pid: number): ProcessInfo | undefined;
  table(): ReadOnlyTable | Refused;
}

/** sandboxd's client, narrowed to reads. */
export interface SandboxdProbe {
  /** Reads the token file; the token itself stays with the probe. */
  token(): { kind: "none" } | { kind: "read"; warning?: string } | { kind: "bad"; reason: string };
  healthz: Sandboxd["healthz"];
  /** @param withToken sends the token of the token file, when there is one */
  info(withToken: boolean): ReturnType<Sandboxd["info"]>;
  /** The whole index. */
  list: Sandboxd["list"];
  /** Undefined: sandboxd does not tell. */
  version(): Promise<string | undefined>;
}

export interface Cluster {
  /** URL of the API server. */
  server: string;
  /** Where the credential came from: `kubeconfig /etc/…, context x`, `in-cluster`. */
  from: string;
  request: KubeClient["request"];
  /** The Date header of one reply, against our own clock in the middle of the call. */
  date(): Promise<
    { ok: true; serverMs: number; localMs: number; roundTripMs: number } | { ok: false; why: string }
  >;
}

export interface ClusterProbe {
  /** Finds kubeconfig or in-cluster credential; talks to nobody but an exec plugin. */
  connect(): Promise<{ ok: true; cluster: Cluster } | { ok: false; why: string }>;
}

export interface Probes {
  host: HostProbe;
  state: StateProbe;
  sandboxd: SandboxdProbe;
  cluster: ClusterProbe;
  /** An operator's own identity, for what the provider's may not see. */
  admin?: ClusterProbe;
  /** Whether a lease holder identity is this provider, in this run or an earlier one. */
  isOurs(holder: string): boolean;
  /** Milliseconds since the epoch, with fractions. */
  now(): number;
}

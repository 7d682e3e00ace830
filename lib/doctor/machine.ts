/** The probes of a real machine. All of them read; the one that listens stops at once. */
import { accessSync, constants, readdirSync, readFileSync, statfsSync, statSync } from "node:fs";
import { createServer } from "node:net";
import { hostname, networkInterfaces, release } from "node:os";
import { resolve } from "node:path";
import { type Environment, type HostPort, type RunConfig, readTokenFile } from "../config/index.ts";
import { createKubeClient, type KubeClient, loadCluster } from "../kube/index.ts";
import { holderIdentity, identityParts, readNodeInfo } from "../node/index.ts";
import { createSandboxd, type Sandboxd } from "../sandboxd/index.ts";
import { readTableReadOnly, realFs, recordedHolder } from "../state/index.ts";
import type {
  Cluster,
  ClusterProbe,
  HostProbe,
  PathInfo,
  Probes,
  SandboxdProbe,
  StateProbe,
} from "./probes.ts";
import {
  deviceOf,
  environValue,
  libcIn,
  listeningInodes,
  ownerOf,
  parseLocks,
  parseOpenFiles,
  processIds,
  processInfo,
  readProc,
} from "./proc.ts";

const dateTimeoutMs = 5_000;

export interface MachineOptions {
  config: RunConfig;
  env: Environment;
  /** Of this build, as the Node tells it: part of who we are to the lease. */
  version: string;
  /** A kubeconfig of the operator's own. */
  adminKubeconfig?: string;
}

/** The real probes, and how to let go of their connections. */
export function machineProbes(options: MachineOptions): { probes: Probes; close(): void } {
  const { config, env, version, adminKubeconfig } = options;
  const clients: KubeClient[] = [];
  const open = (client: KubeClient) => {
    clients.push(client);
    return client;
  };
  const { kubeconfig, context } = config.kube;
  const ours = holderIdentity({
    nodeName: config.node.name,
    parts: identityParts(readNodeInfo(version), resolve(config.statePath)),
    pid: 0,
  });
  const probes: Probes = {
    host: hostProbe(),
    state: stateProbe(resolve(config.statePath)),
    sandboxd: sandboxdProbe(config),
    cluster: clusterProbe({ env, kubeconfig, context }, open),
    admin:
      adminKubeconfig === undefined ? undefined : clusterProbe({ env, kubeconfig: adminKubeconfig }, open),
    // All but the process id, which ends the identity.
    isOurs: (holder) =>
      holder.slice(0, holder.lastIndexOf("_") + 1) === ours.slice(0, ours.lastIndexOf("_") + 1),
    now: () => performance.timeOrigin + performance.now(),
  };
  return {
    probes,
    close() {
      for (const client of clients) client.close();
    },
  };
}

function codeOf(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "unknown error";
}

function hostProbe(): HostProbe {
  return {
    platform: process.platform,
    arch: process.arch,
    kernel: release(),
    hostname: hostname(),
    libc() {
      const kind = libcIn(readProc("self/maps") ?? "");
      return { kind, version: kind === "glibc" ? glibcVersion() : "" };
    },
    openFiles: (pid) => parseOpenFiles(readProc(`${pid ?? "self"}/limits`) ?? ""),
    tryListen,
    listener(port) {
      const inodes = [readProc("net/tcp"), readProc("net/tcp6")].flatMap((text) =>
        listeningInodes(text ?? "", port),
      );
      return inodes.length === 0 ? undefined : ownerOf(inodes);
    },
    cocoon() {
      return processIds().flatMap((pid) => {
        const info = processInfo(pid);
        if (info?.name !== "vk-cocoon") return [];
        const environ = readProc(`${pid}/environ`);
        return [
          { ...info, nodeName: environ === undefined ? undefined : environValue(environ, "VK_NODE_NAME") },
        ];
      });
    },
    addresses: () =>
      Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address)),
    readText(path, bytesMax) {
      try {
        if (statSync(path).size > bytesMax) return { ok: false, code: "EFBIG" };
        return { ok: true, text: readFileSync(path, "utf8") };
      } catch (error) {
        return { ok: false, code: codeOf(error) };
      }
    },
  };
}

function glibcVersion(): string {
  try {
    const { dlopen, FFIType } = require("bun:ffi") as typeof import("bun:ffi");
    const library = dlopen("libc.so.6", { gnu_get_libc_version: { args: [], returns: FFIType.cstring } });
    return String(library.symbols.gnu_get_libc_version());
  } catch {
    return "";
  }
}

function tryListen({ host, port }: HostPort): Promise<{ ok: true } | { ok: false; code: string }> {
  return new Promise((done) => {
    const server = createServer();
    server.once("error", (error) => done({ ok: false, code: codeOf(error) }));
    server.listen({ port, host: host === "" ? undefined : host, exclusive: true }, () =>
      server.close(() => done({ ok: true })),
    );
  });
}

function stateProbe(statePath: string): StateProbe {
  const lockPath = `${statePath}.lock`;
  return {
    uid: process.geteuid?.() ?? 0,
    stat(path) {
      try {
        const stats = statSync(path, { throwIfNoEntry: false });
        if (stats === undefined) return undefined;
        const kind: PathInfo["kind"] = stats.isFile() ? "file" : stats.isDirectory() ? "directory" : "other";
        return {
          kind,
          mode: stats.mode & 0o7777,
          uid: stats.uid,
          bytes: stats.size,
          modifiedAtMs: stats.mtimeMs,
        };
      } catch (error) {
        return { code: codeOf(error) };
      }
    },
    writable(directory) {
      try {
        accessSync(directory, constants.W_OK | constants.X_OK);
        return true;
      } catch {
        return false;
      }
    },
    list(directory) {
      try {
        return readdirSync(directory);
      } catch {
        return undefined;
      }
    },
    statfs(path) {
      try {
        const { type, bavail, bsize, files, ffree } = statfsSync(path);
        return { magic: type >>> 0, freeBytes: bavail * bsize, inodes: files, freeInodes: ffree };
      } catch (error) {
        return { code: codeOf(error) };
      }
    },
    recordedHolder: () => recordedHolder(realFs, statePath),
    lockHolder() {
      const stats = statSync(lockPath, { throwIfNoEntry: false });
      if (stats === undefined) return undefined;
      const text = readProc("locks");
      if (text === undefined) return "unknown";
      const { major, minor } = deviceOf(stats.dev);
      const recorded = recordedHolder(realFs, statePath);
      // Btrfs and overlayfs report another device to stat than to the lock table: there the process tells.
      const held = parseLocks(text).find(
        (lock) =>
          lock.type === "FLOCK" &&
          lock.inode === stats.ino &&
          ((lock.major === major && lock.minor === minor) || lock.pid === recorded?.pid),
      );
      return held === undefined ? undefined : { pid: held.pid };
    },
    process: processInfo,
    table: () => readTableReadOnly(statePath),
  };
}

function sandboxdProbe(config: RunConfig): SandboxdProbe {
  const { url, tokenFile } = config.sandboxd;
  const read = tokenFile === undefined ? undefined : readTokenFile(tokenFile);
  const token = read?.ok === true ? read.token : undefined;
  let told: string | undefined;
  const withToken = createSandboxd({
    url,
    token: () => token,
    // The client's shape of /v1/info leaves out what the provider does not use; a version may be among it.
    async fetch(input, init) {
      const response = await fetch(input, init);
      if (input.endsWith("/v1/info") && response.ok) {
        const body: unknown = await response
          .clone()
          .json()
          .catch(() => undefined);
        const { version } = (body ?? {}) as { version?: unknown };
        if (typeof version === "string") told = version.slice(0, versionCharsMax);
      }
      return response;
    },
  });
  const without: Sandboxd = createSandboxd({ url });
  return {
    token() {
      if (read === undefined) return { kind: "none" };
      return read.ok ? { kind: "read", warning: read.warning } : { kind: "bad", reason: read.reason };
    },
    // Asked without the token, and told of failures by the client that knows which words are one.
    healthz: withToken.healthz,
    info: (authorized) => (authorized ? withToken : without).info(),
    list: withToken.list,
    async version() {
      if (told === undefined) await withToken.info();
      if (told !== undefined) return told;
      const metrics = await withToken.metricsText();
      if (!metrics.ok) return undefined;
      return /^[a-z_]*build_info\{[^}\n]*version="([^"\n]+)"/m
        .exec(metrics.text)?.[1]
        ?.slice(0, versionCharsMax);
    },
  };
}

const versionCharsMax = 64;

function clusterProbe(
  where: { env: Environment; kubeconfig?: string; context?: string },
  open: (client: KubeClient) => KubeClient,
): ClusterProbe {
  return {
    async connect() {
      const found = await loadCluster(where);
      if (!found.ok) return { ok: false, why: found.message };
      const { server, source, context, credentials, proxy } = found.cluster;
      const client = open(createKubeClient({ ...found.cluster, userAgent: "vk-sandbox-doctor" }));
      const cluster: Cluster = {
        server,
        from: source === "in-cluster" ? "the Pod's service account" : `${source}, context ${context}`,
        request: client.request,
        async date() {
          const credential = await credentials.current();
          if (!("authorization" in credential)) return { ok: false, why: credential.why };
          const { authorization, tls } = credential;
          const startedMs = Date.now();
          try {
            const response = await fetch(`${server}/version`, {
              tls: { ...tls },
              // Bun takes false for no proxy at all, which its types do not know.
              proxy: proxy as string,
              headers: authorization === "" ? {} : { authorization },
              redirect: "manual",
              signal: AbortSignal.timeout(dateTimeoutMs),
            });
            const endedMs = Date.now();
            const serverMs = Date.parse(response.headers.get("date") ?? "");
            if (Number.isNaN(serverMs)) return { ok: false, why: "its reply carries no Date" };
            // The header is cut to whole seconds: its true value lies half a second later on average.
            return {
              ok: true,
              serverMs: serverMs + 500,
              localMs: (startedMs + endedMs) / 2,
              roundTripMs: endedMs - startedMs,
            };
          } catch (error) {
            return { ok: false, why: `it cannot be called (${codeOf(error)})` };
          }
        },
      };
      return { ok: true, cluster };
    },
  };
}

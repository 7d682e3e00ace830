/**
 * The control plane's binaries: built once per version from the Go module proxy and kept outside the tree.
 */
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

const moduleDir = import.meta.dir;

/** Kubernetes version the control plane is built from; the API server reports it at /version. */
export const kubernetesVersion = versionOf("k8s.io/kubernetes");
const etcdVersion = versionOf("go.etcd.io/etcd/server/v3");

const kubernetesPrograms = ["kube-apiserver", "kube-scheduler", "kube-controller-manager"] as const;

/** The programs `ensureBinaries` leaves in its directory. */
export type Program = "etcd" | (typeof kubernetesPrograms)[number] | "issuecert";

const stampedVersion = [
  `-X k8s.io/component-base/version.gitVersion=${kubernetesVersion}`,
  `-X k8s.io/component-base/version.gitMajor=${kubernetesVersion.split(".")[0]?.slice(1)}`,
  `-X k8s.io/component-base/version.gitMinor=${kubernetesVersion.split(".")[1]}`,
  "-X k8s.io/component-base/version.gitTreeState=clean",
].join(" ");

const progressEveryMs = 15_000;
/** Longer than any cold build seen (8 minutes on two cores). */
const lockWaitMsMax = 30 * 60_000;

function versionOf(module: string): string {
  const line = readFileSync(join(moduleDir, "go.mod"), "utf8")
    .split("\n")
    .find((l) => l.trim().startsWith(`${module} v`));
  const version = line?.trim().split(/\s+/)[1];
  if (version === undefined) throw new Error(`scripts/controlplane/go.mod does not require ${module}`);
  return version;
}

/** True when a Go toolchain is on the PATH; without one nothing here can be built. */
export function goPresent(): boolean {
  return Bun.which("go") !== null;
}

/** Where the binaries of these versions are, or will be: keyed by version and by everything else that shapes them. */
export function binariesDir(): string {
  const hash = createHash("sha256");
  for (const file of ["go.mod", "go.sum", "issuecert/main.go"])
    hash.update(readFileSync(join(moduleDir, file)));
  hash.update(stampedVersion);
  const key = `kubernetes-${kubernetesVersion}_etcd-${etcdVersion}_${process.platform}-${process.arch}_${hash.digest("hex").slice(0, 8)}`;
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), ".cache");
  return join(cache, "vk-sandbox", "controlplane", key);
}

/**
 * Builds what is missing and returns the directory that holds every `Program`.
 * Cold, that is minutes of compiling; `say` gets a line at least every 15 s then, and none when all is there.
 * Throws an Error with the compiler's last lines when a build fails.
 */
export async function ensureBinaries(say: (line: string) => void): Promise<string> {
  const dir = binariesDir();
  if (missing(dir).length === 0) return dir;
  if (!goPresent())
    throw new Error(
      "go is not on the PATH: the control plane is built from Go modules; install Go 1.26 or later",
    );
  mkdirSync(dir, { recursive: true });
  const unlock = await lock(join(dir, "lock"), say);
  try {
    const wanted = missing(dir);
    const kubernetes = kubernetesPrograms.filter((p) => wanted.includes(p));
    if (wanted.includes("issuecert")) await build(dir, ["./issuecert"], ["issuecert"], "-s -w", say);
    if (wanted.includes("etcd")) await build(dir, ["go.etcd.io/etcd/server/v3"], ["etcd"], "-s -w", say);
    if (kubernetes.length > 0) {
      const packages = kubernetes.map((p) => `k8s.io/kubernetes/cmd/${p}`);
      await build(dir, packages, kubernetes, `-s -w ${stampedVersion}`, say);
    }
  } finally {
    unlock();
  }
  return dir;
}

function missing(dir: string): Program[] {
  return (["issuecert", "etcd", ...kubernetesPrograms] as const).filter((p) => !isFile(join(dir, p)));
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
}

async function build(
  dir: string,
  packages: string[],
  programs: readonly Program[],
  ldflags: string,
  say: (line: string) => void,
): Promise<void> {
  const started = Date.now();
  const seconds = () => Math.round((Date.now() - started) / 1000);
  const what = programs.join(", ");
  const out = join(dir, `building-${process.pid}`);
  mkdirSync(out, { recursive: true });
  say(`building ${what} …`);
  const target = programs.length === 1 ? join(out, programs[0] ?? "") : `${out}/`;
  const args = ["build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", ldflags];
  const child = Bun.spawn(["go", ...args, "-o", target, ...packages], {
    cwd: moduleDir,
    env: { ...process.env, CGO_ENABLED: "0", GOWORK: "off" },
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
  });
  // `go build -v` prints a line for each package it compiles (none when the Go build cache has it).
  let compiled = 0;
  let last: string[] = [];
  const timer = setInterval(
    () => say(`building ${what} … ${compiled} packages compiled, ${seconds()} s`),
    progressEveryMs,
  );
  try {
    for await (const chunk of child.stderr.pipeThrough(new TextDecoderStream())) {
      const lines = chunk.split("\n").filter((l) => l !== "");
      compiled += lines.length;
      last = [...last, ...lines].slice(-20);
    }
    if ((await child.exited) !== 0) throw new Error(`go build of ${what} failed:\n${last.join("\n")}`);
    for (const program of programs) renameSync(join(out, program), join(dir, program));
  } finally {
    clearInterval(timer);
    rmSync(out, { recursive: true, force: true });
  }
  say(`built ${what} in ${seconds()} s`);
}

/** A lock file with the holder's pid in it: two builds in one directory would compile everything twice. */
async function lock(path: string, say: (line: string) => void): Promise<() => void> {
  const giveUpAt = Date.now() + lockWaitMsMax;
  for (let said = false; ; ) {
    try {
      writeFileSync(path, `${process.pid}\n`, { flag: "wx" });
      return () => rmSync(path, { force: true });
    } catch (error) {
      if (!(error instanceof Error && "code" in error && error.code === "EEXIST")) throw error;
    }
    const holder = holderOf(path);
    if (holder !== undefined && !alive(holder)) {
      rmSync(path, { force: true });
      continue;
    }
    if (Date.now() > giveUpAt) throw new Error(`${path} is held by process ${holder}; waited half an hour`);
    if (!said) say(`process ${holder ?? "?"} is building the control plane; waiting for it …`);
    said = true;
    await Bun.sleep(500);
  }
}

/** The pid in the lock file; undefined while its holder has created but not yet written it, or has just left. */
function holderOf(path: string): number | undefined {
  try {
    const pid = Number(readFileSync(path, "utf8").trim());
    return pid > 0 ? pid : undefined;
  } catch {
    return undefined;
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

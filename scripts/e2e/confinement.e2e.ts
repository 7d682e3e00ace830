/**
 * What other users of the host can reach of a daemon that runs as an unprivileged user, on real accounts: its files,
 * its memory, its verbs. Needs root to become the two users; being root itself would prove nothing, so every refusal
 * is seen by a user who can reach the place.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { Daemon } from "./daemon.ts";
import { controlPlane, World } from "./world.ts";

/** Neither is anybody on a usual host; the kernel needs no names. */
const provider = 64_801;
const stranger = 64_802;
const built = resolve(process.env.VK_E2E_BINARY ?? join(import.meta.dir, "../../dist/vk-sandbox"));

const identityOf = (user: number) => [
  "setpriv",
  `--reuid=${user}`,
  `--regid=${user}`,
  "--clear-groups",
  "--bounding-set=-all",
];

/** In a user namespace of one user there is nobody else to be. */
const possible =
  Bun.which("setpriv") !== null && Bun.spawnSync([...identityOf(provider), "true"], { cwd: "/" }).success;

/** Runs a command as another user, with no groups and no capability. */
async function as(user: number, ...command: string[]): Promise<{ code: number; text: string }> {
  const child = Bun.spawn([...identityOf(user), ...command], {
    cwd: "/",
    env: { PATH: process.env.PATH ?? "" },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, text: stdout + stderr };
}

describe.skipIf(!possible)("a daemon of an unprivileged user", () => {
  let world: World;
  let daemon: Daemon;
  /** Open to everyone, so that what is refused inside of it is refused by itself. */
  let open: string;
  let binary: string;

  /** A daemon of `user` with a state directory below `open`. */
  function daemonOf(user: number, name: string, flags: string[] = []): Daemon {
    const dir = join(open, name);
    mkdirSync(dir, { recursive: true });
    chownSync(dir, user, user);
    const kubeconfig = join(dir, "kubeconfig");
    copyFileSync(controlPlane().kubeconfig("vk-sandbox"), kubeconfig);
    const tokenFile = join(dir, "token");
    copyFileSync(join(world.dir, "token"), tokenFile);
    for (const file of [kubeconfig, tokenFile]) {
      chmodSync(file, 0o600);
      chownSync(file, user, user);
    }
    // The worst umask there is: what is private is private by its own making.
    const start = join(dir, "start");
    writeFileSync(start, `#!/bin/sh\numask 000\nexec ${identityOf(user).join(" ")} '${binary}' "$@"\n`);
    chmodSync(start, 0o755);
    return world.daemonOf({ binary: start, dir, kubeconfig, tokenFile, flags });
  }

  beforeAll(async () => {
    world = await World.create({ idle: true, noController: true });
    open = mkdtempSync(join(tmpdir(), "vk-open-"));
    chmodSync(open, 0o755);
    binary = join(open, "vk-sandbox");
    copyFileSync(built, binary);
    chmodSync(binary, 0o755);
    daemon = daemonOf(provider, "daemon");
    await daemon.start();
    await world.nodeReady();
    await world.createPod("a");
    await world.running("a");
    await world.eventually("the ledger is there", () => statSync(join(daemon.stateDir, "audit.db")).size > 0);
  });

  afterAll(async () => {
    await world[Symbol.asyncDispose]();
    rmSync(open, { recursive: true, force: true });
  });

  test("runs without a privilege, and says nothing of a missing one", () => {
    expect(statSync(`/proc/${daemon.pid}/status`)).toBeDefined();
    const status = readFileSync(`/proc/${daemon.pid}/status`, "utf8");
    expect(status).toMatch(new RegExp(`^Uid:\\s+${provider}\\s+${provider}`, "m"));
    expect(status).toMatch(/^CapEff:\s+0{16}$/m);
    expect(daemon.log.filter((line) => /"level":"(warn|error)"/.test(line))).toEqual([]);
  });

  test("keeps table, journal, lock and ledger at 0600 in a directory of 0700, under umask 0", () => {
    expect(statSync(daemon.stateDir).mode & 0o7777).toBe(0o700);
    const files = readdirSync(daemon.stateDir);
    for (const name of ["claims.json", "claims.json.journal", "claims.json.lock", "audit.db"])
      expect(files).toContain(name);
    for (const name of files) {
      const { mode, uid } = statSync(join(daemon.stateDir, name));
      expect([name, mode & 0o7777, uid]).toEqual([name, 0o600, provider]);
    }
  });

  test("is closed to another user: directory, files and verbs, each with a reason and exit code 1", async () => {
    // Who is refused below reaches the directory above, and the program.
    expect((await as(stranger, "ls", open)).text).toContain("daemon");
    expect((await as(stranger, binary, "version")).code).toBe(0);
    expect((await as(stranger, "ls", daemon.stateDir)).text).toContain("Permission denied");
    for (const name of readdirSync(daemon.stateDir))
      expect((await as(stranger, "cat", join(daemon.stateDir, name))).text).toContain("Permission denied");
    for (const verb of ["claims", "audit"]) {
      const refused = await as(stranger, binary, verb, "--state-path", daemon.statePath);
      expect([verb, refused.code]).toEqual([verb, 1]);
      expect(refused.text).toContain(daemon.stateDir);
    }
    // And its own user sees both.
    expect((await as(provider, binary, "claims", "--state-path", daemon.statePath)).text).toContain(
      `${world.name}/a`,
    );
    expect((await as(provider, binary, "audit", "--state-path", daemon.statePath)).text).toContain(
      `${world.name}/a`,
    );
  });

  test("would be closed by its files alone, were the directory open", async () => {
    chmodSync(daemon.stateDir, 0o755);
    try {
      const names = (await as(stranger, "ls", daemon.stateDir)).text;
      expect(names).toContain("claims.json");
      for (const name of readdirSync(daemon.stateDir))
        expect((await as(stranger, "cat", join(daemon.stateDir, name))).text).toContain("Permission denied");
      const refused = await as(stranger, binary, "claims", "--state-path", daemon.statePath);
      expect([refused.code, refused.text]).toEqual([1, expect.stringContaining("permission denied")]);
    } finally {
      chmodSync(daemon.stateDir, 0o700);
    }
  });

  test("leaves no core dump and lets nobody of its own user into its memory", async () => {
    const pid = String(daemon.pid);
    const other = Bun.spawn([...identityOf(provider), "sleep", "60"]);
    await world.eventually("the other process is its own program", () =>
      readFileSync(`/proc/${other.pid}/comm`, "utf8").startsWith("sleep"),
    );
    try {
      // The same user reads another process's memory map and environment; the daemon's are closed.
      expect((await as(provider, "cat", `/proc/${other.pid}/maps`)).code).toBe(0);
      expect((await as(provider, "ls", `/proc/${other.pid}/fd`)).code).toBe(0);
      expect((await as(provider, "ls", `/proc/${pid}/fd`)).text).toContain("Permission denied");
      for (const name of ["maps", "environ", "mem"])
        expect((await as(provider, "cat", `/proc/${pid}/${name}`)).text).toMatch(
          /Permission denied|not permitted/,
        );
    } finally {
      other.kill();
    }
  });

  test("is recognised by doctor, run as its own user: lock holder, port and open-file limit", async () => {
    const flags = [
      `--node-name=${world.name}`,
      `--listen-addr=${new URL(daemon.kubeletUrl).host}`,
      `--sandboxd-url=${world.sandboxd.url}`,
      `--sandboxd-token-file=${join(open, "daemon", "token")}`,
      `--state-path=${daemon.statePath}`,
      `--kubeconfig=${join(open, "daemon", "kubeconfig")}`,
    ];
    const { text } = await as(provider, binary, "doctor", "--json", ...flags);
    const report = JSON.parse(text.slice(text.indexOf("{"))) as {
      findings: { id: string; status: string; found: string }[];
    };
    const of = (id: string) => report.findings.find((check) => check.id === id);
    expect(of("state.lock")).toMatchObject({
      status: "pass",
      found: expect.stringContaining(String(daemon.pid)),
    });
    expect(of("host.port")).toMatchObject({
      status: "pass",
      found: expect.stringContaining(String(daemon.pid)),
    });
    expect(of("host.open-files")?.found).toContain("the running daemon's");
    // It asks for more than the provider may, and says so.
    world.forgetRequests();
  });

  const refused = async (name: string, prepare: (stateDir: string) => void): Promise<string> => {
    const other = daemonOf(provider, name, [`--node-name=${world.name}-${name}`]);
    mkdirSync(other.stateDir);
    chownSync(other.stateDir, provider, provider);
    prepare(other.stateDir);
    await other.start();
    expect(await other.exited()).toBe(1);
    expect(await world.api.find(`/api/v1/nodes/${world.name}-${name}`)).toBeUndefined();
    return other.log.join("\n");
  };

  test("refuses a directory that others can write in, and registers no Node", async () => {
    const log = await refused("writable", (dir) => {
      writeFileSync(join(dir, "of-others"), "");
      chmodSync(dir, 0o777);
    });
    expect(log).toContain("others can write in it");
  });

  test("refuses a directory of another user's, though it may write in it", async () => {
    const log = await refused("foreign", (dir) => {
      chownSync(dir, stranger, provider);
      chmodSync(dir, 0o770);
    });
    expect(log).toContain(`belongs to user ${stranger}`);
  });

  test("refuses a table that another user put there while the directory was open", async () => {
    const log = await refused("planted", (dir) => {
      writeFileSync(join(dir, "claims.json"), '{"claims":{}}', { mode: 0o644 });
      chownSync(join(dir, "claims.json"), stranger, stranger);
    });
    expect(log).toContain(`belongs to user ${stranger}`);
  });

  test("refuses a link in the table's place, and writes nothing where it leads", async () => {
    const target = join(open, "target");
    writeFileSync(target, "untouched");
    const log = await refused("linked", (dir) => symlinkSync(target, join(dir, "claims.json")));
    expect(log).toContain("is not a regular file");
    expect(readFileSync(target, "utf8")).toBe("untouched");
  });

  test("refuses a directory it may not write in, and one it may not read", async () => {
    for (const [name, mode] of [
      ["closed", 0o500],
      ["blind", 0o000],
    ] as const) {
      const log = await refused(name, (dir) => chmodSync(dir, mode));
      expect(log).toContain("permission denied");
    }
  });

  test("refuses a token file that everyone may read", async () => {
    const other = daemonOf(provider, "told", [`--node-name=${world.name}-told`]);
    chmodSync(join(open, "told", "token"), 0o644);
    await other.start();
    expect(await other.exited()).toBe(1);
    expect(other.log.join("\n")).toMatch(/open to every user of this host .*change the token/);
  });

  test("leaves its files as private as they were after a clean stop", async () => {
    expect(await daemon.stop()).toBe(0);
    for (const name of readdirSync(daemon.stateDir))
      expect([name, statSync(join(daemon.stateDir, name)).mode & 0o7777]).toEqual([name, 0o600]);
    expect((await as(stranger, "cat", daemon.statePath)).text).toContain("Permission denied");
  });
});

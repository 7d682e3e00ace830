/** Runs a release's binaries where this machine can: on its own CPU, or under qemu's user-mode emulation. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { run } from "./process.ts";
import type { Target } from "./targets.ts";

const demoTimeoutMs = 300_000;
/** An x64 CPU without AVX: what the baseline build is for. */
const oldCpu = "Nehalem";

/** How a target's binary is started here: words before it and variables, or why it cannot be. */
export type Runner =
  | { how: string; prefix: string[]; env: Record<string, string>; demo: boolean }
  | { missing: string };

/** Looks what this machine has for a target. */
export function runnersOf(target: Target): Runner[] {
  const { arch, libc } = target;
  // Where musl's libstdc++ is, if not in its usual place (as on a glibc system that has musl beside it).
  const muslPath = process.env.VK_MUSL_LIBRARY_PATH;
  if (libc === "musl") {
    const needed = [
      `/lib/ld-musl-${arch === "x64" ? "x86_64" : "aarch64"}.so.1`,
      join(muslPath ?? "/usr/lib", "libstdc++.so.6"),
    ];
    const missing = needed.filter((file) => !existsSync(file));
    if (arch !== process.arch) return [{ missing: `a musl system for ${arch}` }];
    if (missing.length > 0) return [{ missing: `musl's ${missing.join(" and ")}` }];
  }
  const env: Record<string, string> =
    libc === "musl" && muslPath !== undefined ? { LD_LIBRARY_PATH: muslPath } : {};
  if (arch === process.arch) {
    const runners: Runner[] = [{ how: "natively", prefix: [], env, demo: true }];
    if (target.name.endsWith("-baseline") && libc === "glibc")
      runners.push(
        Bun.which("qemu-x86_64") === null
          ? { missing: `qemu-x86_64 (package qemu-user), for a CPU without AVX (${oldCpu})` }
          : // The demo starts the binary a second time, without the emulator.
            { how: `as ${oldCpu}`, prefix: ["qemu-x86_64", "-cpu", oldCpu], env: {}, demo: false },
      );
    return runners;
  }
  const cpu = arch === "arm64" ? "aarch64" : "x86_64";
  const root = `/usr/${cpu}-linux-gnu`;
  const qemu = Bun.which(`qemu-${cpu}`);
  if (qemu === null || !existsSync(join(root, "lib")))
    return [{ missing: `qemu-${cpu} (package qemu-user) and ${root} (package libc6-${arch}-cross)` }];
  const registered = existsSync(`/proc/sys/fs/binfmt_misc/qemu-${cpu}`);
  return [
    {
      how: registered
        ? `under qemu-${cpu}`
        : `under qemu-${cpu}, without the demo (it starts a second process: register the emulator in binfmt_misc)`,
      prefix: [qemu],
      env: { QEMU_LD_PREFIX: root },
      demo: registered,
    },
  ];
}

/**
 * Runs version and demo of a binary in each way this machine has.
 *
 * @param expected what it must name as its build
 * @returns one line for each way, passed or not possible here
 * @throws when the binary answers something else, or the demo fails
 */
export async function checkBinary(
  target: Target,
  binary: string,
  expected: { version: string; commit: string; date: string },
): Promise<string[]> {
  const lines: string[] = [];
  for (const runner of runnersOf(target)) {
    if ("missing" in runner) {
      lines.push(`${target.name}: NOT RUN, this machine lacks ${runner.missing}`);
      continue;
    }
    const { how, prefix, env, demo } = runner;
    const ask = (words: string[], timeoutMs: number) =>
      run([...prefix, binary, ...words], { env, timeoutMs });
    const told: unknown = JSON.parse(await ask(["version", "--json"], 60_000));
    const { version, commit, date } = expected;
    const wanted = { version, commit, buildDate: date, arch: target.arch, platform: "linux" };
    for (const [field, value] of Object.entries(wanted)) {
      const found = typeof told === "object" && told !== null ? Reflect.get(told, field) : undefined;
      if (found !== value) throw new Error(`${binary} says ${field} ${String(found)}, and not ${value}`);
    }
    if (!(await ask(["--version"], 60_000)).includes(expected.version))
      throw new Error(`${binary} --version does not name ${expected.version}`);
    if (demo) await ask(["demo"], demoTimeoutMs);
    lines.push(`${target.name}: ran ${how}: version${demo ? " and demo" : ""}`);
  }
  return lines;
}

/** Brings the Bun executables that releases are built upon: from npm, checked, kept in .tools/. */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { run } from "./process.ts";
import type { Target } from "./targets.ts";

/**
 * Path of a target's Bun executable, fetched when it is not there yet. `npm pack` checks the package against
 * the registry's digest; the executable is then checked against ours.
 *
 * @param toolsDir kept between runs
 * @throws when npm fails or the executable is another one than targets.ts names
 */
export async function runtimeOf(target: Target, version: string, toolsDir: string): Promise<string> {
  const dir = join(toolsDir, "runtimes", version, target.name);
  const executable = join(dir, "package/bin/bun");
  if (existsSync(executable) && sha256Of(executable) === target.sha256) return executable;
  const work = `${dir}.${process.pid}`;
  rmSync(work, { recursive: true, force: true });
  mkdirSync(work, { recursive: true });
  try {
    // Not `npm install`: it refuses packages of another machine.
    const file = (
      await run(["npm", "pack", "--silent", "--pack-destination", work, `${target.package}@${version}`])
    ).trim();
    await run(["tar", "-xzf", join(work, file), "-C", work]);
    rmSync(join(work, file));
    const found = sha256Of(join(work, "package/bin/bun"));
    if (found !== target.sha256)
      throw new Error(
        `${target.package}@${version} brings an executable with SHA-256 ${found}, and scripts/packaging/targets.ts expects ${target.sha256}. After a change of the version in scripts/bun.sh the digests there must be written anew; otherwise do not build upon it`,
      );
    rmSync(dir, { recursive: true, force: true });
    renameSync(work, dir);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
  return executable;
}

/** SHA-256 of a file, in hex. */
export function sha256Of(path: string): string {
  return createHash("sha256").update(readFileSync(path)).digest("hex");
}

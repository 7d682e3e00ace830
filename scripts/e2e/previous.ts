/** The binary that an upgrade comes from. */
import { mkdirSync, symlinkSync } from "node:fs";
import { join, resolve } from "node:path";

const root = resolve(import.meta.dir, "../..");
/** Without a tag: how many commits back. Far enough for a change of the daemon, near enough for its packages. */
const commitsBack = 25;

export interface Build {
  path: string;
  /** What its Node says as kubeletVersion. */
  version: string;
  /** What it was built from, for a reader. */
  from: string;
}

/**
 * Builds an earlier state of the repository under a version of its own: VK_E2E_PREVIOUS (a commit), else the
 * last tag before this commit, else some commits back. Where that cannot be had (a shallow clone) or cannot be
 * built with today's packages, it is this very commit: then only the swap of binaries is tested, and `from`
 * says so.
 */
export function previousBuild(dir: string): Build {
  const bun = process.env.BUN ?? process.execPath;
  const version = "0.0.1-previous";
  const path = join(dir, "previous");
  const refs = [
    process.env.VK_E2E_PREVIOUS,
    git("describe", "--tags", "--abbrev=0", "HEAD~1"),
    `HEAD~${commitsBack}`,
  ];
  const ref = refs.find(
    (name) => name !== undefined && git("rev-parse", "--verify", "--quiet", `${name}^{commit}`),
  );
  if (ref !== undefined) {
    const source = join(dir, "source");
    mkdirSync(source, { recursive: true });
    const unpacked = sh(`git -C '${root}' archive '${ref}' | tar -x -C '${source}'`);
    symlinkSync(join(root, "node_modules"), join(source, "node_modules"));
    // Not that state's own scripts/build: it would install that state's packages into today's node_modules.
    const built = Bun.spawnSync(
      [
        ...[bun, "build", "cmd/main.ts", "--compile", "--minify", "--no-compile-autoload-dotenv"],
        ...["--no-compile-autoload-bunfig", "--define", `VK_VERSION="${version}"`, "--outfile", path],
      ],
      { cwd: source, stdout: "pipe", stderr: "pipe" },
    );
    if (unpacked && built.success)
      return { path, version, from: `${ref} (${git("rev-parse", "--short", ref)})` };
  }
  const made = Bun.spawnSync([join(root, "scripts/build"), "--out", path, "--version", version], {
    stdout: "pipe",
    stderr: "pipe",
  });
  if (!made.success) throw new Error(`no binary to upgrade from could be built:\n${made.stderr.toString()}`);
  return { path, version, from: `this commit, since ${ref ?? "an earlier one"} cannot be built here` };
}

function git(...words: string[]): string | undefined {
  const { success, stdout } = Bun.spawnSync(["git", "-C", root, ...words], {
    stdout: "pipe",
    stderr: "ignore",
  });
  return success ? stdout.toString().trim() : undefined;
}

function sh(script: string): boolean {
  return Bun.spawnSync(["bash", "-o", "pipefail", "-c", script]).success;
}

/** Archives that come out the same, byte for byte, from the same content. */
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { run } from "./process.ts";

/** A file of an archive: its content, or the path of a file to copy. */
export interface Entry {
  /** Path inside, with no leading slash. */
  path: string;
  content: { text: string } | { file: string };
  executable?: boolean;
}

/**
 * Packs entries under one directory into a .tar.gz. Everything that differs from machine to machine is fixed:
 * order, times, owners, modes (whatever the umask), and the time and name in gzip's header. Compression is
 * Bun's own, whose version is pinned, and not the host's gzip.
 *
 * @param root the directory that the archive unpacks to
 * @param mtimeSeconds given to every file: the commit's
 * @param workDir an empty directory for the staged files
 */
export async function pack(
  entries: readonly Entry[],
  { root, mtimeSeconds, workDir }: { root: string; mtimeSeconds: number; workDir: string },
): Promise<Uint8Array> {
  for (const { path, content, executable } of entries) {
    const target = join(workDir, root, path);
    mkdirSync(dirname(target), { recursive: true });
    writeFileSync(target, "text" in content ? content.text : readFileSync(content.file));
    chmodSync(target, executable === true ? 0o755 : 0o644);
  }
  const tar = join(workDir, "archive.tar");
  await run(
    [
      "tar",
      "--format=ustar",
      "--sort=name",
      `--mtime=@${mtimeSeconds}`,
      "--owner=0",
      "--group=0",
      "--numeric-owner",
      // Directories come from mkdir and so from the umask.
      "--mode=u=rwX,go=rX",
      "-cf",
      tar,
      root,
    ],
    { cwd: workDir, env: { LC_ALL: "C" } },
  );
  return Bun.gzipSync(readFileSync(tar), { level: 9 });
}

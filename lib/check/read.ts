/** Manifests from files, directories and standard input. */
import { open, opendir, realpath, stat } from "node:fs/promises";
import { join } from "node:path";
import { fileBytesMax } from "./parse.ts";
import type { SourceFile, Unreadable } from "./types.ts";

/** Files below the directories of one command line. */
export const filesMax = 10_000;

export interface Sources {
  files: SourceFile[];
  unreadable: Unreadable[];
}

/**
 * Reads what a command line names: a file, a directory with all `.yaml`, `.yml` and `.json` below it (not in
 * hidden directories or node_modules), or `-` for standard input.
 *
 * @param stdin reads standard input, at most the number of bytes it is given and one more
 */
export async function readSources(
  paths: readonly string[],
  stdin: (bytesMax: number) => Promise<Uint8Array>,
): Promise<Sources> {
  const sources: Sources = { files: [], unreadable: [] };
  const names = new Set<string>();
  for (const path of paths) {
    if (path === "-") {
      if (names.has("-")) continue;
      names.add("-");
      add(sources, "-", await stdin(fileBytesMax));
      continue;
    }
    const found = await expand(path);
    if (typeof found === "string") sources.unreadable.push({ file: path, reason: found });
    else for (const name of found) names.add(name);
  }
  if (names.size > filesMax) {
    const reason = `more than ${filesMax} files; name fewer directories`;
    return { files: [], unreadable: [...sources.unreadable, { file: paths.join(" "), reason }] };
  }
  for (const name of names) if (name !== "-") await addFile(sources, name);
  return sources;
}

/** The files that a path stands for, or why there are none. */
async function expand(path: string): Promise<string[] | string> {
  try {
    const found = await stat(path);
    if (found.isFile()) return [path];
    if (!found.isDirectory()) return "is neither a file nor a directory";
    const files: string[] = [];
    await walk(path, files);
    return files.length > 0 ? files.sort() : "has no .yaml, .yml or .json file in it";
  } catch (error) {
    return because(error);
  }
}

async function walk(directory: string, files: string[]): Promise<void> {
  for await (const entry of await opendir(directory)) {
    const { name } = entry;
    const path = join(directory, name);
    if (entry.isDirectory()) {
      if (!name.startsWith(".") && name !== "node_modules") await walk(path, files);
    } else if (
      /\.(ya?ml|json)$/i.test(name) &&
      (entry.isFile() || (entry.isSymbolicLink() && (await isFile(path))))
    )
      files.push(path);
    if (files.length > filesMax) return;
  }
}

async function isFile(path: string): Promise<boolean> {
  return await stat(path).then(
    (found) => found.isFile(),
    () => false,
  );
}

async function addFile(sources: Sources, name: string): Promise<void> {
  try {
    const handle = await open(name, "r");
    try {
      const { size } = await handle.stat();
      if (size > fileBytesMax) {
        sources.unreadable.push({ file: name, reason: `is larger than ${fileBytesMax} bytes; split it` });
        return;
      }
      add(sources, name, await handle.readFile());
    } finally {
      await handle.close();
    }
  } catch (error) {
    sources.unreadable.push({ file: name, reason: because(error) });
  }
}

function add(sources: Sources, file: string, bytes: Uint8Array): void {
  const text = decode(bytes);
  if (text === undefined) {
    const reason = "is not UTF-8 text; save it as UTF-8";
    sources.unreadable.push({ file, reason });
  } else sources.files.push({ name: file, ...text });
}

function decode(bytes: Uint8Array): { text: string; bom: boolean } | undefined {
  const bom = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf;
  try {
    return {
      text: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(
        bom ? bytes.subarray(3) : bytes,
      ),
      bom,
    };
  } catch {
    return undefined;
  }
}

const reasons: Readonly<Record<string, string>> = {
  ENOENT: "does not exist; check the path",
  EACCES: "is not readable by this user",
  EPERM: "is not readable by this user",
  ELOOP: "is a symbolic link that leads in a circle",
  EMFILE: "cannot be opened: too many files are open",
};

function because(error: unknown): string {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return reasons[code] ?? `cannot be read (${code || String(error)})`;
}

/**
 * Replaces a file with a new text in one step: a reader sees the old or the new one, and a crash leaves the old
 * one. A symbolic link stays one; mode and owner are kept.
 *
 * @returns undefined when it is done, or why not; the file is untouched then
 */
export async function replaceFile(source: SourceFile, text: string): Promise<string | undefined> {
  const { rename, unlink } = await import("node:fs/promises");
  let temporary = "";
  try {
    const target = await realpath(source.name);
    const handle = await open(target, "r");
    let mode: number;
    let owner: { uid: number; gid: number };
    try {
      const found = await handle.stat();
      mode = found.mode & 0o7777;
      owner = found;
      const now = decode(await handle.readFile());
      if (now?.text !== source.text) return "was changed by someone else meanwhile; run check again";
    } finally {
      await handle.close();
    }
    temporary = `${target}.vk-sandbox-${process.pid}.tmp`;
    const out = await open(temporary, "wx", mode);
    try {
      await out.writeFile(`${source.bom ? "\ufeff" : ""}${text}`);
      await out.chmod(mode);
      // Only root may give a file away; anyone else writes their own.
      if (process.getuid?.() === 0) await out.chown(owner.uid, owner.gid);
      await out.sync();
    } finally {
      await out.close();
    }
    await rename(temporary, target);
    temporary = "";
    return undefined;
  } catch (error) {
    return `could not be written: ${because(error)}`;
  } finally {
    if (temporary !== "") await unlink(temporary).catch(() => {});
  }
}

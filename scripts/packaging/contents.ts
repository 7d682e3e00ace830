/** What lies in a release archive beside the binary. */
import { existsSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import type { Entry } from "./archive.ts";

/** Files of the checkout that every archive has, by their path inside. */
const copied: Record<string, string> = {
  LICENSE: "LICENSE",
  "README.md": "README.md",
  "CONTRIBUTING.md": "CONTRIBUTING.md",
  "SECURITY.md": "SECURITY.md",
  "systemd/vk-sandbox.service": "manifests/vk-sandbox.service",
  "systemd/vk-sandbox.sysusers.conf": "manifests/vk-sandbox.sysusers.conf",
  "systemd/vk-sandbox.env.example": "manifests/vk-sandbox.env.example",
};

/** Folders that every archive has whole: what the pages link to is there. */
const folders = ["docs", "manifests"];
const isPage = (name: string) => /\.(md|yaml|json|svg|png|service|example|conf)$|^Dockerfile$/.test(name);

/**
 * The files that are the same in every archive: units, licence, man page, completions.
 *
 * @param root the checkout
 * @param build what the man page names
 * @throws when one is missing
 */
export async function commonEntries(
  root: string,
  build: { version: string; commit: string; date: string },
): Promise<Entry[]> {
  // The man page and lib/version.ts see what a compiled binary has from --define.
  Object.assign(globalThis, {
    VK_VERSION: build.version,
    VK_COMMIT: build.commit,
    VK_BUILD_DATE: build.date,
  });
  const { renderMan } = await import("../../cmd/help.ts");
  const { renderCompletion } = await import("../../cmd/completion.ts");
  for (const name of ["VK_VERSION", "VK_COMMIT", "VK_BUILD_DATE"]) Reflect.deleteProperty(globalThis, name);
  const entries: Entry[] = [
    { path: "man/vk-sandbox.8", content: { text: await renderMan() } },
    { path: "completions/vk-sandbox.bash", content: { text: await renderCompletion("bash") } },
    { path: "completions/_vk-sandbox", content: { text: await renderCompletion("zsh") } },
    { path: "completions/vk-sandbox.fish", content: { text: await renderCompletion("fish") } },
  ];
  for (const [path, source] of Object.entries(copied)) {
    const file = join(root, source);
    if (!existsSync(file)) throw new Error(`${source} is missing, and every archive has it`);
    entries.push({ path, content: { file } });
  }
  for (const folder of folders) {
    for (const found of readdirSync(join(root, folder), { recursive: true, withFileTypes: true })) {
      if (!found.isFile() || !isPage(found.name)) continue;
      const file = join(found.parentPath, found.name);
      entries.push({ path: relative(root, file), content: { file } });
    }
  }
  return entries;
}

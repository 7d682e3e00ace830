/** What lies in a release archive beside the binary. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Entry } from "./archive.ts";

/** Files of the checkout that every archive has, by their path inside. */
const copied: Record<string, string> = {
  LICENSE: "LICENSE",
  "README.md": "README.md",
  "docs/installation.md": "docs/installation.md",
  "manifests/rbac.yaml": "manifests/rbac.yaml",
  "systemd/vk-sandbox.service": "manifests/vk-sandbox.service",
  "systemd/vk-sandbox.sysusers.conf": "manifests/vk-sandbox.sysusers.conf",
  "systemd/vk-sandbox.env.example": "manifests/vk-sandbox.env.example",
};

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
  return entries;
}

/** Which packages are really inside the binary: what the bundler read, not what is installed. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import * as v from "valibot";

/** An npm package of which at least one module was bundled. */
export interface Bundled {
  name: string;
  version: string;
  /** SPDX expression, as its package.json says. */
  license: string;
  /** Its licence file, which must travel with every copy. */
  licenseText: string;
  /** Digest of the package as bun.lock pins it: sha512 in base64. */
  integrity: string;
  homepage?: string;
}

const metafile = v.object({
  inputs: v.record(v.string(), v.unknown()),
  outputs: v.optional(v.record(v.string(), v.object({ bytes: v.number() })), {}),
});
const packageJson = v.object({
  version: v.string(),
  license: v.string(),
  homepage: v.optional(v.string()),
});

/**
 * The packages in a build, sorted by name.
 *
 * @param metafileText what `bun build --metafile` wrote
 * @param root the checkout: node_modules and bun.lock are read there
 * @throws when a package lacks a licence, a licence text or a pin: such a thing must not be shipped
 */
export function bundledPackages(metafileText: string, root: string): Bundled[] {
  const { inputs } = v.parse(metafile, JSON.parse(metafileText));
  const names = new Set<string>();
  for (const path of Object.keys(inputs)) {
    const at = path.lastIndexOf("node_modules/");
    if (at < 0) continue;
    const [first = "", second = ""] = path.slice(at + "node_modules/".length).split("/");
    names.add(first.startsWith("@") ? `${first}/${second}` : first);
  }
  const lock = readFileSync(join(root, "bun.lock"), "utf8");
  return [...names].sort().map((name) => {
    const dir = join(root, "node_modules", name);
    const { version, license, homepage } = v.parse(
      packageJson,
      JSON.parse(readFileSync(join(dir, "package.json"), "utf8")),
    );
    const integrity = pinOf(lock, name, version);
    if (integrity === undefined) throw new Error(`bun.lock does not pin ${name}@${version}`);
    const file = readdirSync(dir).find((entry) => /^licen[cs]e(\.(md|txt))?$/i.test(entry));
    if (file === undefined || !existsSync(join(dir, file)))
      throw new Error(`${name}@${version} has no licence file in ${dir}; it cannot be shipped without one`);
    return {
      name,
      version,
      license,
      licenseText: readFileSync(join(dir, file), "utf8").trim(),
      integrity,
      homepage,
    };
  });
}

/** Size of the program itself, minified, without the runtime that it is appended to. */
export function programBytes(metafileText: string): number {
  const { outputs } = v.parse(metafile, JSON.parse(metafileText));
  return Object.values(outputs).reduce((sum, { bytes }) => sum + bytes, 0);
}

/** The digest beside a package in bun.lock: `"citty": ["citty@0.2.2", "", {}, "sha512-…"]`. */
function pinOf(lock: string, name: string, version: string): string | undefined {
  const start = lock.indexOf(`["${name}@${version}"`);
  if (start < 0) return undefined;
  const line = lock.slice(start, lock.indexOf("\n", start));
  return /"sha512-([A-Za-z0-9+/=]+)"/.exec(line)?.[1];
}

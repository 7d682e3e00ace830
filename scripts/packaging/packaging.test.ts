import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Entry, pack } from "./archive.ts";
import { bundledPackages } from "./bundled.ts";
import { commonEntries } from "./contents.ts";
import { run } from "./process.ts";
import { checkSbom, notices, type SbomFacts, sbom } from "./sbom.ts";
import { targets } from "./targets.ts";

const root = join(import.meta.dir, "../..");
let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "packaging-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

describe("pack", () => {
  const options = (name: string) => ({ root: "x-1", mtimeSeconds: 1_700_000_000, workDir: join(dir, name) });
  const entries = (file: string): Entry[] => [
    { path: "b", content: { file }, executable: true },
    { path: "a/c", content: { text: "text" } },
  ];

  test("the same content makes the same bytes, whatever umask, order, times and modes it came with", async () => {
    const file = join(dir, "file");
    writeFileSync(file, "binary");
    const first = await pack(entries(file), options("one"));
    const mask = process.umask(0o077);
    chmodSync(file, 0o600);
    utimesSync(file, 1, 1);
    const second = await pack(entries(file).reverse(), options("two"));
    process.umask(mask);
    expect(Buffer.from(second).equals(first)).toBe(true);
  });

  test("files have the commit's time, root as their owner, and modes that everyone may read", async () => {
    const file = join(dir, "file");
    writeFileSync(file, "binary");
    writeFileSync(join(dir, "x.tar.gz"), await pack(entries(file), options("one")));
    const listed = await run(["tar", "--utc", "--numeric-owner", "-tvzf", join(dir, "x.tar.gz")]);
    expect(
      listed
        .trim()
        .split("\n")
        .map((line) => line.replace(/\s+/g, " ")),
    ).toEqual([
      "drwxr-xr-x 0/0 0 2023-11-14 22:13 x-1/",
      "drwxr-xr-x 0/0 0 2023-11-14 22:13 x-1/a/",
      "-rw-r--r-- 0/0 4 2023-11-14 22:13 x-1/a/c",
      "-rwxr-xr-x 0/0 6 2023-11-14 22:13 x-1/b",
    ]);
  });
});

describe("the packages in a build", () => {
  const metafile = (...paths: string[]) =>
    JSON.stringify({ inputs: Object.fromEntries(paths.map((p) => [p, {}])) });

  test("are those that the bundler read a module of, with licence and pin, each once", () => {
    const text = metafile(
      "cmd/main.ts",
      "node_modules/valibot/dist/index.mjs",
      "node_modules/yaml/dist/a.js",
      "node_modules/yaml/dist/b.js",
    );
    const found = bundledPackages(text, root);
    expect(found.map(({ name, license }) => [name, license])).toEqual([
      ["valibot", "MIT"],
      ["yaml", "ISC"],
    ]);
    for (const { licenseText, integrity } of found) {
      expect(licenseText).toContain("Copyright");
      expect(Buffer.from(integrity, "base64")).toHaveLength(64);
    }
  });

  test("a package without a licence text, or one that bun.lock does not pin, is not shipped", () => {
    mkdirSync(join(dir, "node_modules/bare"), { recursive: true });
    writeFileSync(join(dir, "node_modules/bare/package.json"), `{"version":"1.0.0","license":"MIT"}`);
    writeFileSync(join(dir, "bun.lock"), "{}");
    const text = metafile("node_modules/bare/index.js");
    expect(() => bundledPackages(text, dir)).toThrow("does not pin bare@1.0.0");
    writeFileSync(join(dir, "bun.lock"), `"bare": ["bare@1.0.0", "", {}, "sha512-${"A".repeat(86)}=="],\n`);
    expect(() => bundledPackages(text, dir)).toThrow("no licence file");
    writeFileSync(join(dir, "node_modules/bare/LICENSE"), "MIT");
    expect(bundledPackages(text, dir)).toHaveLength(1);
  });
});

describe("the bill of materials", () => {
  const target = targets[0];
  if (target === undefined) throw new Error("there is no target");
  const facts: SbomFacts = {
    version: "1.2.3",
    commit: "abc",
    date: "2026-01-02T03:04:05Z",
    binarySha256: "0".repeat(64),
    target,
    bunVersion: Bun.version,
    bunLibraries: process.versions,
    packages: bundledPackages(JSON.stringify({ inputs: { "node_modules/citty/x.js": {} } }), root),
  };

  test("keeps to CycloneDX's schema, strictly, and a document that does not is refused", async () => {
    await checkSbom(sbom(facts));
    await expect(checkSbom(sbom({ ...facts, binarySha256: "no digest" }))).rejects.toThrow(
      "not valid CycloneDX",
    );
    // Compiling the schema takes seconds on a busy machine.
  }, 60_000);

  test("names Bun, every library of process.versions that is known to be linked in, and the packages", () => {
    const { components } = JSON.parse(sbom(facts)) as {
      components: { name: string; version: string; components?: { name: string; version: string }[] }[];
    };
    expect(components.map(({ name, version }) => `${name}@${version}`)).toEqual([
      `bun@${Bun.version}`,
      "citty@0.2.2",
    ]);
    const linked = components[0]?.components ?? [];
    expect(linked.map(({ name }) => name)).toContain("JavaScriptCore (WebKit)");
    // One entry of sbom.ts that Bun no longer reports would silently leave a library out.
    expect(linked).toHaveLength(16);
  });

  test("notices carry the licence of every package", () => {
    const text = notices(Bun.version, facts.packages);
    expect(text).toContain("Copyright (c) Pooya Parsa");
    expect(text).toContain("JavaScriptCore");
  });
});

test("every archive has unit, licence, man page and completions", async () => {
  const entries = await commonEntries(root, { version: "1.2.3", commit: "c", date: "2026-01-02T03:04:05Z" });
  const text = (path: string) => {
    const content = entries.find((entry) => entry.path === path)?.content;
    if (content === undefined) throw new Error(`${path} is missing`);
    return "text" in content ? content.text : readFileSync(content.file, "utf8");
  };
  expect(text("LICENSE")).toContain("AFFERO");
  expect(text("systemd/vk-sandbox.service")).toContain("Type=notify");
  expect(text("man/vk-sandbox.8")).toStartWith(".TH VK");
  for (const file of ["vk-sandbox.bash", "_vk-sandbox", "vk-sandbox.fish"])
    expect(text(`completions/${file}`)).toContain("sandboxd-token-file");
});

test("targets have names and packages of their own", () => {
  for (const field of ["name", "package", "bunTarget"] as const)
    expect(new Set(targets.map((target) => target[field])).size).toBe(targets.length);
});

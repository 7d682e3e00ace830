/** scripts/release: every target compiled, packed, described and, where this machine can, run. */
import { mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { pack } from "./archive.ts";
import { bundledPackages, programBytes } from "./bundled.ts";
import { checkBinary } from "./check.ts";
import { commonEntries } from "./contents.ts";
import { run } from "./process.ts";
import { runtimeOf, sha256Of } from "./runtime.ts";
import { checkSbom, notices, sbom } from "./sbom.ts";
import { type Target, targets } from "./targets.ts";

const root = resolve(import.meta.dir, "../..");
const usage = `usage: scripts/release [--target NAME]… [--out DIR] [--no-check] [--allow-modified] [--reproduce]
  Makes dist/release/: for each target a .tar.gz and a CycloneDX bill of materials, and SHA256SUMS over all.
  --target          only these: ${targets.map((t) => t.name).join(", ")}
  --out DIR         instead of dist/release
  --no-check        do not run the binaries
  --allow-modified  build from a tree with changes that are not committed; the version says so
  --reproduce       make everything twice and compare`;

interface Facts {
  version: string;
  /** As the binary names it: short, with -modified where that is so. */
  commit: string;
  date: string;
  epochSeconds: number;
}

async function git(...words: string[]): Promise<string> {
  return (await run(["git", ...words], { cwd: root, env: { TZ: "UTC" } })).trim();
}

/** The same facts that scripts/build puts into the binary. */
async function facts(): Promise<Facts> {
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string };
  const modified = (await git("status", "--porcelain", "--untracked-files=no")) !== "";
  return {
    version,
    commit: `${await git("rev-parse", "--short=12", "HEAD")}${modified ? "-modified" : ""}`,
    date: await git("log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"),
    epochSeconds: Number(await git("log", "-1", "--format=%ct")),
  };
}

/** One artifact as it was made. */
interface Made {
  target: Target;
  archive: string;
  archiveBytes: number;
  binaryBytes: number;
  runtimeBytes: number;
  programBytes: number;
  sbomFile: string;
  checks: string[];
}

async function make(
  target: Target,
  build: Facts,
  common: Awaited<ReturnType<typeof commonEntries>>,
  out: string,
  check: boolean,
): Promise<Made> {
  const work = mkdtempSync(join(out, ".work-"));
  try {
    const runtime = await runtimeOf(target, Bun.version, join(root, ".tools"));
    const binary = join(work, "bin", "vk-sandbox");
    const metafile = join(work, "meta.json");
    await run([
      join(root, "scripts/build"),
      ...["--out", binary, "--metafile", metafile, "--runtime", runtime, "--target", target.bunTarget],
    ]);
    const metafileText = readFileSync(metafile, "utf8");
    const packages = bundledPackages(metafileText, root);
    const bill = sbom({
      ...build,
      binarySha256: sha256Of(binary),
      target,
      bunVersion: Bun.version,
      bunLibraries: process.versions,
      packages,
    });
    await checkSbom(bill);
    const name = `vk-sandbox-${build.version}-${target.name}`;
    const checks = check
      ? await checkBinary(target, binary, build)
      : [`${target.name}: NOT RUN (--no-check)`];
    const bytes = await pack(
      [
        ...common,
        { path: "vk-sandbox", content: { file: binary }, executable: true },
        { path: "sbom.cdx.json", content: { text: bill } },
        { path: "THIRD-PARTY.txt", content: { text: notices(Bun.version, packages) } },
      ],
      { root: name, mtimeSeconds: build.epochSeconds, workDir: join(work, "stage") },
    );
    writeFileSync(join(work, "archive"), bytes);
    const archive = `${name}.tar.gz`;
    const sbomFile = `${name}.cdx.json`;
    renameSync(join(work, "archive"), join(out, archive));
    writeFileSync(join(out, sbomFile), bill);
    return {
      target,
      archive,
      sbomFile,
      checks,
      archiveBytes: bytes.length,
      binaryBytes: statSync(binary).size,
      runtimeBytes: statSync(runtime).size,
      programBytes: programBytes(metafileText),
    };
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Makes all artifacts and SHA256SUMS in an empty directory. */
async function makeAll(
  wanted: readonly Target[],
  build: Facts,
  out: string,
  check: boolean,
): Promise<Made[]> {
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out, { recursive: true });
  const common = await commonEntries(root, build);
  const made: Made[] = [];
  const queue = [...wanted];
  const worker = async () => {
    for (let target = queue.shift(); target !== undefined; target = queue.shift())
      made.push(await make(target, build, common, out, check));
  };
  await Promise.all(Array.from({ length: Math.min(availableParallelism(), wanted.length) }, worker));
  made.sort((a, b) => wanted.indexOf(a.target) - wanted.indexOf(b.target));
  const files = made.flatMap(({ archive, sbomFile }) => [archive, sbomFile]).sort();
  const sums = files.map((file) => `${sha256Of(join(out, file))}  ${file}\n`).join("");
  writeFileSync(join(out, "SHA256SUMS"), sums);
  return made;
}

const mb = (bytes: number) => `${(bytes / 1e6).toFixed(1)} MB`;

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      target: { type: "string", multiple: true },
      out: { type: "string", default: join(root, "dist", "release") },
      "no-check": { type: "boolean", default: false },
      "allow-modified": { type: "boolean", default: false },
      reproduce: { type: "boolean", default: false },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) {
    console.log(usage);
    return 0;
  }
  const unknown = values.target?.find((name) => !targets.some((t) => t.name === name));
  if (unknown !== undefined) {
    console.error(`scripts/release: there is no target ${unknown}\n${usage}`);
    return 2;
  }
  const wanted = targets.filter((t) => values.target?.includes(t.name) ?? true);
  const build = await facts();
  if (build.commit.endsWith("-modified") && !values["allow-modified"]) {
    console.error(
      "scripts/release: the tree has changes that are not committed, so nobody could make this release again; commit them, or pass --allow-modified",
    );
    return 1;
  }
  const out = resolve(values.out);
  const made = await makeAll(wanted, build, out, !values["no-check"]);
  for (const { archive, archiveBytes, binaryBytes, ...parts } of made) {
    // Bun aligns what it appends.
    const padding = binaryBytes - parts.runtimeBytes - parts.programBytes;
    console.log(
      `${archive}: ${mb(archiveBytes)}; binary ${mb(binaryBytes)} = Bun ${mb(parts.runtimeBytes)} + program ${mb(parts.programBytes)} + padding ${mb(padding)}`,
    );
  }
  for (const line of made.flatMap((m) => m.checks)) console.log(line);
  if (values.reproduce) {
    const again = `${out}.again`;
    try {
      await makeAll(wanted, build, again, false);
      const sums = (dir: string) => readFileSync(join(dir, "SHA256SUMS"), "utf8");
      if (sums(out) !== sums(again)) {
        console.error(`scripts/release: two runs differ\n${sums(out)}${sums(again)}`);
        return 1;
      }
      console.log("reproduced: a second run made the same bytes");
    } finally {
      rmSync(again, { recursive: true, force: true });
    }
  }
  console.log(`${out}/SHA256SUMS: vk-sandbox ${build.version} (${build.commit}, ${build.date})`);
  return 0;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(`scripts/release: ${error instanceof Error ? error.message : error}`);
  process.exitCode = 1;
}

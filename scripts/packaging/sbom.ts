/** The bill of materials of one binary, as CycloneDX 1.6 JSON: Bun, what Bun has linked in, and the npm packages. */
import { Spec, Validation } from "@cyclonedx/cyclonedx-library";
import type { Bundled } from "./bundled.ts";
import type { Target } from "./targets.ts";

const SPEC_VERSION = "1.6";

/** What process.versions of Bun calls a library that is linked into it, and its licence as Bun's LICENSE.md says. */
const linked: Record<string, { name: string; license: string }> = {
  ares: { name: "c-ares", license: "MIT" },
  boringssl: { name: "boringssl", license: "Apache-2.0 AND ISC AND OpenSSL" },
  icu: { name: "icu4c", license: "Unicode-3.0" },
  libarchive: { name: "libarchive", license: "BSD-2-Clause" },
  libdeflate: { name: "libdeflate", license: "MIT" },
  lolhtml: { name: "lol-html", license: "BSD-3-Clause" },
  lshpack: { name: "ls-hpack", license: "MIT" },
  mimalloc: { name: "mimalloc", license: "MIT" },
  picohttpparser: { name: "picohttpparser", license: "MIT" },
  sqlite: { name: "sqlite", license: "blessing" },
  tinycc: { name: "tinycc", license: "LGPL-2.1-only" },
  usockets: { name: "uSockets", license: "Apache-2.0" },
  uwebsockets: { name: "uWebSockets", license: "Apache-2.0" },
  webkit: { name: "JavaScriptCore (WebKit)", license: "LGPL-2.0-or-later" },
  zlib: { name: "zlib", license: "Zlib" },
  zstd: { name: "zstd", license: "BSD-3-Clause" },
};

export interface SbomFacts {
  /** Of vk-sandbox. */
  version: string;
  commit: string;
  /** RFC 3339; the commit's date, so that two runs write the same. */
  date: string;
  binarySha256: string;
  target: Target;
  bunVersion: string;
  /** process.versions of the Bun that builds; the runtime of the target is of the same version. */
  bunLibraries: Readonly<Record<string, string | undefined>>;
  packages: readonly Bundled[];
}

/** Writes the document. It has no serial number: that would be random, and two runs would differ. */
export function sbom(facts: SbomFacts): string {
  const { version, commit, date, target, bunVersion } = facts;
  const self = `pkg:generic/vk-sandbox@${version}`;
  const bun = `pkg:npm/${target.package.replace("@", "%40")}@${bunVersion}`;
  const libraries = Object.entries(linked).flatMap(([key, { name, license }]) => {
    const found = facts.bunLibraries[key];
    if (found === undefined) return [];
    return [
      {
        type: "library",
        "bom-ref": `bun/${key}@${found}`,
        name,
        version: found,
        licenses: [{ expression: license }],
      },
    ];
  });
  const packages = facts.packages.map((p) => ({
    type: "library",
    "bom-ref": purl(p),
    name: p.name,
    version: p.version,
    hashes: [{ alg: "SHA-512", content: Buffer.from(p.integrity, "base64").toString("hex") }],
    licenses: [{ expression: p.license }],
    purl: purl(p),
    ...(p.homepage === undefined ? {} : { externalReferences: [{ type: "website", url: p.homepage }] }),
  }));
  const document = {
    $schema: `http://cyclonedx.org/schema/bom-${SPEC_VERSION}.schema.json`,
    bomFormat: "CycloneDX",
    specVersion: SPEC_VERSION,
    version: 1,
    metadata: {
      timestamp: date,
      component: {
        type: "application",
        "bom-ref": self,
        name: "vk-sandbox",
        version,
        hashes: [{ alg: "SHA-256", content: facts.binarySha256 }],
        licenses: [{ expression: "AGPL-3.0-only" }],
        purl: self,
        properties: [
          { name: "vk-sandbox:commit", value: commit },
          { name: "vk-sandbox:target", value: target.name },
        ],
      },
    },
    components: [
      {
        type: "platform",
        "bom-ref": bun,
        name: "bun",
        version: bunVersion,
        description: "JavaScript runtime; the binary is this executable with the program appended",
        hashes: [{ alg: "SHA-256", content: target.sha256 }],
        licenses: [{ expression: "MIT" }],
        purl: bun,
        components: libraries,
      },
      ...packages,
    ],
    dependencies: [
      { ref: self, dependsOn: [bun, ...packages.map((p) => p.purl)] },
      { ref: bun, dependsOn: libraries.map((l) => l["bom-ref"]) },
    ],
  };
  return `${JSON.stringify(document, null, 2)}\n`;
}

/** @throws with what is wrong when a document does not keep to CycloneDX's own schema, taken strictly. */
export async function checkSbom(text: string): Promise<void> {
  const errors = await new Validation.JsonStrictValidator(Spec.Spec1dot6.version).validate(text);
  if (errors !== null)
    throw new Error(`the bill of materials is not valid CycloneDX: ${JSON.stringify(errors)}`);
}

function purl({ name, version }: Bundled): string {
  return `pkg:npm/${name.replace("@", "%40")}@${version}`;
}

/** The licences that must travel with the binary, as one text. */
export function notices(bunVersion: string, packages: readonly Bundled[]): string {
  const rule = "-".repeat(80);
  const bun = `The binary is Bun ${bunVersion} with this program appended. Bun is MIT-licensed, Copyright (c) Oven and
contributors. It links JavaScriptCore (WebKit) and TinyCC statically, which are under the LGPL, and the libraries
that sbom.cdx.json lists. Bun's licences, its source and how to relink it with a changed JavaScriptCore:
https://github.com/oven-sh/bun/blob/bun-v${bunVersion}/LICENSE.md
The program itself can be appended to a Bun of your own: scripts/build --runtime FILE.`;
  return `${[
    "vk-sandbox is under the GNU AGPL, version 3: see LICENSE. It contains the following.",
    `${rule}\nBun ${bunVersion}\n\n${bun}`,
    ...packages.map((p) => `${rule}\n${p.name} ${p.version} (${p.license})\n\n${p.licenseText}`),
  ].join("\n\n")}\n`;
}

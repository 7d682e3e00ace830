/** Findings in SARIF 2.1.0, the form in which code hosts show them beside the lines they are about. */
import { createHash } from "node:crypto";
import { relative } from "node:path";
import type { CheckResult, FoundAt } from "./check.ts";
import { splicesFor } from "./fix.ts";
import { ruleList } from "./rules.ts";
import type { Region, Severity, Unreadable } from "./types.ts";

const levels = { error: "error", warning: "warning", info: "note" } as const satisfies Record<
  Severity,
  string
>;

/** Results in one file; code hosts refuse far more, and nobody reads them. */
export const resultsMax = 5_000;

const schema = "https://json.schemastore.org/sarif-2.1.0.json";

export interface SarifOptions {
  version: string;
  /** Directory that file names are written relative to. */
  directory: string;
  unreadable: readonly Unreadable[];
}

/** One SARIF log with one run. */
export function sarifReport({ findings }: CheckResult, options: SarifOptions): Record<string, unknown> {
  const rules = ruleList.map(({ id, severity, title, why }) => ({
    id,
    name: id.replace(/(^|[/-])([a-z])/g, (_, __, letter: string) => letter.toUpperCase()),
    shortDescription: { text: `${title}.` },
    fullDescription: { text: why },
    help: { text: `${why} See docs/check.md.`, markdown: `${why} See \`docs/check.md\`.` },
    defaultConfiguration: { level: levels[severity] },
  }));
  const index = new Map(rules.map(({ id }, at) => [id as string, at]));
  const notifications = options.unreadable.map(({ file, position, reason }) => ({
    level: "error",
    message: { text: `${file}: ${reason}` },
    locations:
      file === "cluster" || file === "-"
        ? []
        : [physical(file, options.directory, position && { start: position, end: position })],
  }));
  return {
    $schema: schema,
    version: "2.1.0",
    runs: [
      {
        tool: { driver: { name: "vk-sandbox", semanticVersion: options.version, rules } },
        columnKind: "utf16CodeUnits",
        invocations: [
          {
            executionSuccessful: options.unreadable.length === 0,
            toolExecutionNotifications: notifications,
          },
        ],
        results: findings.slice(0, resultsMax).map((finding) => result(finding, index, options)),
      },
    ],
  };
}

function result(
  finding: FoundAt,
  index: ReadonlyMap<string, number>,
  { directory }: SarifOptions,
): Record<string, unknown> {
  const { rule, severity, file, region, object, path, what, fix } = finding;
  const logicalLocations = [{ fullyQualifiedName: `${object}: ${path}`, kind: "object" }];
  const inFile = file !== "cluster" && file !== "-";
  const location = inFile ? { ...physical(file, directory, region), logicalLocations } : { logicalLocations };
  const fixes = inFile ? fixesOf(finding, directory) : [];
  return {
    ruleId: rule,
    ruleIndex: index.get(rule) ?? -1,
    level: levels[severity],
    message: { text: `${object}: ${what} ${fix}` },
    locations: [location],
    // Lines move; the object and the field do not.
    partialFingerprints: {
      "objectPath/v1": createHash("sha256")
        .update(JSON.stringify([rule, object, path]))
        .digest("hex")
        .slice(0, 32),
    },
    ...(fixes.length > 0 ? { fixes } : {}),
  };
}

function physical(file: string, directory: string, region: Region | undefined): Record<string, unknown> {
  return {
    physicalLocation: {
      artifactLocation: { uri: uriOf(file, directory) },
      ...(region === undefined ? {} : { region: sarifRegion(region) }),
    },
  };
}

function sarifRegion({ start, end }: Region): Record<string, number> {
  return { startLine: start.line, startColumn: start.column, endLine: end.line, endColumn: end.column };
}

/** A relative URI below the directory, since code hosts match it with paths of the repository. */
function uriOf(file: string, directory: string): string {
  const below = relative(directory, file);
  const path = below.startsWith("..") ? file : below;
  const encoded = path.split("/").map(encodeURIComponent).join("/");
  // A first segment with a colon would be read as a scheme.
  return path.startsWith("/") ? `file://${encoded}` : encoded;
}

function fixesOf({ source, fix, file }: FoundAt, directory: string): Record<string, unknown>[] {
  const { object, hit } = source;
  const document = object.document;
  if (document === undefined || hit.edits === undefined) return [];
  const splices = splicesFor([{ object, edits: hit.edits }]);
  if (splices.length === 0) return [];
  return [
    {
      description: { text: fix },
      artifactChanges: [
        {
          artifactLocation: { uri: uriOf(file, directory) },
          replacements: splices.map(({ start, end, text }) => ({
            deletedRegion: sarifRegion({ start: document.position(start), end: document.position(end) }),
            ...(text === "" ? {} : { insertedContent: { text } }),
          })),
        },
      ],
    },
  ];
}

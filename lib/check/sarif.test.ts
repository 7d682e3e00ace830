import { describe, expect, test } from "bun:test";
import schema from "@microsoft/jest-sarif/lib/schemas/sarif-2.1.0-rtm.5.json" with { type: "json" };
import Ajv from "ajv";
import { check } from "./check.ts";
import { parseManifests } from "./parse.ts";
import { ruleList } from "./rules.ts";
import { sarifReport } from "./sarif.ts";
import { changed, cocoonExample, nowMs, sandboxdExample, source, standardExample } from "./testing.ts";

// Its draft's own names are the only thing in it that a newer validator does not know.
const { $schema: _, id: __, ...rules } = schema;
// Formats (`uri-reference` and the like) are tried below, by example.
const validate = new Ajv({ strict: false, validateFormats: false, unicodeRegExp: false }).compile(rules);

interface Log {
  runs: {
    results: {
      ruleId: string;
      ruleIndex: number;
      level: string;
      locations: {
        physicalLocation?: { artifactLocation: { uri: string }; region?: Record<string, number> };
      }[];
      fixes?: { artifactChanges: { replacements: { insertedContent?: { text: string } }[] }[] }[];
      partialFingerprints: Record<string, string>;
    }[];
    tool: { driver: { rules: { id: string }[] } };
    invocations: { executionSuccessful: boolean; toolExecutionNotifications: unknown[] }[];
  }[];
}

function report(text: string, name = "/repo/deploy/a b#1.yaml") {
  const parsed = parseManifests(source(text, name));
  const result = check({ objects: parsed.objects, nowMs });
  const log = sarifReport(result, {
    version: "1.2.3-dev",
    directory: "/repo",
    unreadable: parsed.unreadable,
  });
  validate(log);
  expect(validate.errors ?? []).toEqual([]);
  // Exactly what a reader of the file gets.
  return (JSON.parse(JSON.stringify(log)) as Log).runs[0] as Log["runs"][number];
}

describe("SARIF", () => {
  test("is valid by the schema of 2.1.0, for clean, troubled and unreadable input", () => {
    const bad = changed(changed(sandboxdExample, "size: small", "size: Small"), /.*net: none\n/, "");
    for (const text of ["", sandboxdExample, `${bad}---\n${cocoonExample}---\n${standardExample}`, "a: [\n"])
      report(text);
  });
  test("knows every rule, and each result points at its own", () => {
    const { tool, results } = report(changed(sandboxdExample, "size: small", "size: Small"));
    expect(tool.driver.rules.map(({ id }) => id)).toEqual(ruleList.map(({ id }) => id));
    for (const { ruleId, ruleIndex } of results) expect(tool.driver.rules[ruleIndex]?.id).toBe(ruleId);
  });
  test("names files below the directory, as URIs, with the place and the fix", () => {
    const { results } = report(changed(sandboxdExample, "size: small", "size: Small"));
    expect(results.map(({ ruleId, level }) => [ruleId, level])).toEqual([["sandboxd/size-value", "error"]]);
    expect(results[0]?.locations[0]?.physicalLocation).toEqual({
      artifactLocation: { uri: "deploy/a%20b%231.yaml" },
      region: { startLine: 12, startColumn: 9, endLine: 12, endColumn: 43 },
    });
    expect(results[0]?.fixes?.[0]?.artifactChanges[0]?.replacements).toEqual([
      {
        deletedRegion: { startLine: 12, startColumn: 38, endLine: 12, endColumn: 43 },
        insertedContent: { text: "small" },
      } as never,
    ]);
  });
  test("a fingerprint stays when lines move, and differs between fields", () => {
    const text = changed(changed(sandboxdExample, "size: small", "size: Small"), "net: none", "net: None");
    const before = report(text).results.map((one) => one.partialFingerprints["objectPath/v1"]);
    const after = report(`# moved\n\n${text}`).results.map((one) => one.partialFingerprints["objectPath/v1"]);
    expect(after).toEqual(before);
    expect(new Set(before).size).toBe(2);
  });
  test("what could not be read is a notification, and the run no success", () => {
    const { invocations, results } = report("a: [\n");
    expect(results).toEqual([]);
    expect(invocations[0]?.executionSuccessful).toBe(false);
    expect(invocations[0]?.toolExecutionNotifications.length).toBe(1);
  });
  test("live objects have names instead of files", () => {
    const object = {
      file: "cluster",
      base: [],
      value: {
        apiVersion: "v1",
        kind: "Pod",
        metadata: { name: "p", annotations: { "sandbox.cocoonstack.io/size": "x" } },
        spec: { containers: [{ name: "a" }] },
      },
    };
    const log = sarifReport(check({ objects: [object], nowMs }), {
      version: "1.0.0",
      directory: "/repo",
      unreadable: [],
    });
    validate(log);
    expect(validate.errors ?? []).toEqual([]);
    for (const { locations } of (log as unknown as Log).runs[0]?.results ?? [])
      expect(locations[0]?.physicalLocation).toBeUndefined();
  });
});

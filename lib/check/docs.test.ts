import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ruleList, rulesTable } from "./index.ts";
import { parseManifests } from "./parse.ts";
import { checkText } from "./testing.ts";

const root = join(import.meta.dir, "../..");
const page = join(root, "docs", "check.md");
const begin = "<!-- rules: written by UPDATE_DOCS=1 bun test lib/check/docs.test.ts -->\n\n";
const end = "\n\n<!-- /rules -->";

describe("docs/check.md", () => {
  test("has the table of rules as they are", () => {
    const text = readFileSync(page, "utf8");
    const from = text.indexOf(begin) + begin.length;
    const to = text.indexOf(end);
    expect(from).toBeGreaterThanOrEqual(begin.length);
    expect(to).toBeGreaterThan(from);
    if (process.env.UPDATE_DOCS === "1")
      writeFileSync(page, text.slice(0, from) + rulesTable() + text.slice(to));
    else expect(text.slice(from, to)).toBe(rulesTable());
  });
  test("has no rule in its words that is not one", () => {
    const ids = new Set<string>(ruleList.map(({ id }) => id));
    const named =
      readFileSync(page, "utf8").match(/`(manifest|sandboxd|cocoon|standard|claim|pool)\/[a-z-]+`/g) ?? [];
    expect(named.length).toBeGreaterThanOrEqual(ids.size);
    for (const name of named) expect(ids).toContain(name.slice(1, -1));
  });
});

test("every rule is tried by a test of this folder", () => {
  const tests = readdirSync(import.meta.dir)
    .filter((name) => name.endsWith(".test.ts") && name !== "docs.test.ts")
    .map((name) => readFileSync(join(import.meta.dir, name), "utf8"))
    .join("");
  expect(ruleList.map(({ id }) => id).filter((id) => !tests.includes(`"${id}"`))).toEqual([]);
});

test("every Pod template in the documentation's YAML has no error", () => {
  for (const name of readdirSync(join(root, "docs")).filter((file) => file.endsWith(".md"))) {
    const text = readFileSync(join(root, "docs", name), "utf8");
    for (const [, yaml = ""] of text.matchAll(/```yaml\n([\s\S]*?)```/g)) {
      if (parseManifests({ name, text: yaml, bom: false }).unreadable.length > 0) continue;
      const errors = checkText(yaml).findings.filter(({ severity }) => severity === "error");
      expect([name, errors.map(({ rule, what }) => `${rule}: ${what}`)]).toEqual([name, []]);
    }
  }
});

test.each([
  ["check", ["cmd/check.ts", "cmd/explain.ts", "lib/explain/"]],
  ["explain", ["cmd/explain.ts"]],
])("nothing on the daemon's path imports lib/%s", (folder, allowed) => {
  const files = ["cmd", "lib"].flatMap((top) =>
    readdirSync(join(root, top), { recursive: true, encoding: "utf8" }).map((name) => `${top}/${name}`),
  );
  const imports = new RegExp(`(from |import\\()"[./]+(lib/)?${folder}/`);
  const importing = files
    .filter(
      (name) => name.endsWith(".ts") && !name.endsWith(".test.ts") && !name.startsWith(`lib/${folder}/`),
    )
    .filter((name) => imports.test(readFileSync(join(root, name), "utf8")));
  expect(importing.length).toBeGreaterThan(0);
  expect(importing.filter((name) => !allowed.some((path) => name.startsWith(path)))).toEqual([]);
});

/** docs/security.md says "cannot" only where a test says so too. */
import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dir, "../..");
const text = readFileSync(join(root, "docs/security.md"), "utf8");

/** A test's name stands in curved quotes after its file; the file is named once for all that follow. */
const named: { file: string; name: string }[] = [];
let file = "";
for (const [, path, name] of text
  .replace(/\s+/g, " ")
  .matchAll(/`((?:lib|scripts)\/[^`*]+\.ts)`|“([^”]+)”/g)) {
  if (path !== undefined) file = path;
  else if (name !== undefined) named.push({ file, name });
}

test("there are tests behind its words", () => {
  expect(named.length).toBeGreaterThan(40);
});

for (const { file: path, name } of named)
  test(`${path} has a test "${name}"`, () => {
    const code = readFileSync(join(root, path), "utf8");
    expect(code.includes(JSON.stringify(name))).toBe(true);
  });

test("every link of it leads somewhere", () => {
  for (const [, target = ""] of text.matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/g))
    expect([target, existsSync(join(root, "docs", target))]).toEqual([target, true]);
  const anchors = [...text.matchAll(/^#+ (.+)$/gm)].map(([, title = ""]) =>
    title
      .toLowerCase()
      .replace(/[^a-z0-9 -]/g, "")
      .replaceAll(" ", "-"),
  );
  for (const [, anchor = ""] of text.matchAll(/\]\(#([^)]+)\)/g)) expect(anchors).toContain(anchor);
});

import { describe, expect, test } from "bun:test";
import { aliasesMax, fileBytesMax, parseManifests } from "./parse.ts";
import { checkText, sandboxdExample, source } from "./testing.ts";

const parse = (text: string) => parseManifests(source(text));
const kinds = (text: string) => parse(text).objects.map(({ value }) => value.kind);

describe("what is read", () => {
  test("several documents, empty ones left out", () => {
    expect(kinds("---\n---\n# only a comment\n---\nkind: A\n...\n---\nkind: B\n---\n")).toEqual(["A", "B"]);
  });
  test("an empty file is no object and no fault", () => {
    for (const text of ["", "\n", "# c\n", "---\n", "null\n"])
      expect(parse(text)).toEqual({ objects: [], unreadable: [], skipped: [] });
  });
  test("JSON, also indented with tabs", () => {
    expect(kinds('{\n\t"kind": "A",\n\t"list": [1,\n\t2]\n}')).toEqual(["A"]);
  });
  test("the items of a List, with kind and version of a typed one", () => {
    const { objects } = parse(
      "kind: PodList\napiVersion: v1\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n",
    );
    expect(objects.map(({ value, base }) => [value.kind, value.apiVersion, base])).toEqual([
      ["Pod", "v1", ["items", 0]],
      ["Pod", "v1", ["items", 1]],
    ]);
    expect(
      kinds("kind: List\napiVersion: v1\nitems:\n- kind: List\n  apiVersion: v1\n  items:\n  - kind: A\n"),
    ).toEqual(["A"]);
  });
  test("values as kubectl reads them", () => {
    const [object] = parse(
      "a: yes\nb: on\nc: 010\nd: 24:04\ne: 2024-01-01\nf: '60'\ng: ~\nbase: &b {x: 1}\nh: {<<: *b, z: 2}\n",
    ).objects;
    expect(object?.value).toEqual({
      a: true,
      b: true,
      c: 8,
      d: "24:04",
      e: "2024-01-01",
      f: "60",
      g: null,
      base: { x: 1 },
      h: { x: 1, z: 2 },
    });
  });
  test("line ends of Windows", () => {
    const { findings } = checkText(sandboxdExample.replaceAll("small", "tiny").replaceAll("\n", "\r\n"));
    expect(findings.map(({ rule, region }) => [rule, region?.start.line])).toEqual([
      ["sandboxd/size-value", 12],
    ]);
  });
  test("a document that is no object is named, not judged", () => {
    expect(parse("- a\n- b\n").skipped).toEqual([
      { file: "test.yaml", line: 1, what: '["a","b"] is no object' },
    ]);
    expect(parse("just words\n").skipped.map(({ what }) => what)).toEqual(['"just words" is no object']);
  });
});

describe("what cannot be read is named with its line", () => {
  const cases: [name: string, text: string, line: number | undefined, reason: RegExp][] = [
    ["a tab as indentation", "a: 1\nb:\n\tc: 1\n", 3, /Tabs.*indent with spaces/],
    ["a bracket that is not closed", "a: [1, 2\nb: 3\n", 2, /Flow sequence/],
    ["a wrong indentation", "a:\n  b: 1\n c: 2\n", 3, /./],
    ["an alias of nothing", "a: *gone\n", 1, /gone/],
    ["an unrendered template", "{{- if .x }}\na: 1\n{{- end }}\n", 1, /Helm/],
    ["an unrendered template that happens to be YAML", "a: {{ .Values.x }}\n", 1, /Helm/],
    ["a file that is no text", "a: \0\n", undefined, /NUL/],
    ["a file that is too big", "#".repeat(fileBytesMax + 1), undefined, new RegExp(String(fileBytesMax))],
    ["a document that nests too deep", `a: ${"[".repeat(20_000)}${"]".repeat(20_000)}\n`, 1, /./],
    [
      "a document that unfolds without end",
      `a: &a [${"x,".repeat(50)}]\nb: &b [${"*a,".repeat(50)}]\nc: &c [${"*b,".repeat(50)}]\nd: [${"*c,".repeat(50)}]\n`,
      1,
      new RegExp(String(aliasesMax)),
    ],
  ];
  test.each(cases)("%s", (_, text, line, reason) => {
    const { unreadable, objects } = parse(text);
    expect(objects).toEqual([]);
    expect(unreadable.length).toBeGreaterThan(0);
    expect(unreadable[0]?.position?.line).toBe(line as number);
    expect(unreadable[0]?.reason).toMatch(reason);
  });
  test("the documents before and after it are judged all the same", () => {
    const { objects, unreadable } = parse("kind: A\n---\na: [\n---\nkind: B\n");
    expect(objects.map(({ value }) => value.kind)).toEqual(["A", "B"]);
    expect(unreadable.map(({ position }) => position?.line)).toEqual([4]);
  });
});

describe("a key that a map has twice", () => {
  test("is found wherever it is, with the place of the second", () => {
    const { objects } = parse("kind: A\na:\n  - b: 1\n    c: 2\n    b: 3\nd: 1\nd: 2\n");
    expect(objects[0]?.document?.duplicates).toEqual([["d"], ["a", 0, "b"]]);
  });
  test("is no key of a merged map", () => {
    expect(parse("x: &x {a: 1}\ny: {<<: *x, a: 2}\nz:\n  <<: *x\n").objects[0]?.document?.duplicates).toEqual(
      [],
    );
  });
  test("a map of 20,000 keys is read in a moment", () => {
    const text = `kind: A\n${Array.from({ length: 20_000 }, (_, i) => `k${i}: v\n`).join("")}`;
    expect(parse(text).objects[0]?.document?.duplicates).toEqual([]);
  });
});

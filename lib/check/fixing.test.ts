import { describe, expect, test } from "bun:test";
import { check } from "./check.ts";
import { fixText } from "./fixing.ts";
import { parseManifests } from "./parse.ts";
import { changed, cocoonExample, nowMs, sandboxdExample, source } from "./testing.ts";
import type { SourceObject } from "./types.ts";

const judge = (objects: readonly SourceObject[]) => check({ objects, nowMs });

function fix(text: string): string {
  const fixed = fixText(source(text), judge);
  if (!fixed.ok) throw new Error(fixed.reason);
  return fixed.text;
}

const good = sandboxdExample;

describe("what is mended, and how", () => {
  const cases: [name: string, before: string, after: string][] = [
    [
      "a value of another case keeps its quotes and comment",
      changed(good, "net: none", "net: 'None' # lane"),
      changed(good, "net: none", "net: 'none' # lane"),
    ],
    ["a typing mistake in a value", changed(good, "size: small", "size: smal"), good],
    ["a typing mistake in a key", changed(good, "io/template:", "io/templete:"), good],
    [
      "another spelling of a key",
      changed(good, "io/size: small", "io/ttlSeconds: '60'"),
      changed(good, "io/size: small", "io/ttl-seconds: '60'"),
    ],
    [
      "another prefix of a key",
      changed(good, "sandbox.cocoonstack.io/size", "sandboxes.cocoonstack.io/size"),
      good,
    ],
    [
      "a quoted key keeps its quotes",
      changed(good, "sandbox.cocoonstack.io/size:", '"sandbox.cocoonstack.io/sizes":'),
      changed(good, "sandbox.cocoonstack.io/size:", '"sandbox.cocoonstack.io/size":'),
    ],
    ["another runtime", changed(good, "io/runtime: sandboxd", "io/runtime: vk-cocoon"), good],
    [
      "a selector of another case",
      changed(good, /nodeSelector:\n.*/, "nodeSelector:\n        sandbox.cocoonstack.io/runtime: SandboxD"),
      good,
    ],
    [
      "the label of older nodes",
      changed(good, /nodeSelector:\n.*/, "nodeSelector:\n        cocoon-sandbox.io/runtime: sandboxd"),
      good,
    ],
    [
      "a number",
      changed(good, "size: small", "ttl-seconds: 60"),
      changed(good, "size: small", 'ttl-seconds: "60"'),
    ],
    [
      "a duration",
      changed(good, "size: small", "ttl-seconds: 1h30m"),
      changed(good, "size: small", 'ttl-seconds: "5400"'),
    ],
    [
      "a decimal",
      changed(good, "size: small", "ttl-seconds: 60.0"),
      changed(good, "size: small", 'ttl-seconds: "60"'),
    ],
    [
      "a boolean in another word",
      changed(good, "size: small", "renew: yes"),
      changed(good, "size: small", 'renew: "true"'),
    ],
    [
      "a claim id, whose comment stays",
      changed(good, "io/size: small", "io/claim-id: sb_1 # mine"),
      changed(good, "sandbox.cocoonstack.io/size: small\n", "# mine\n"),
    ],
    [
      "spaces around a template",
      changed(
        good,
        "io/template: ghcr.io/cocoonstack/sandbox/rt:24.04",
        'io/template: " ghcr.io/cocoonstack/sandbox/rt:24.04"',
      ),
      changed(
        good,
        "io/template: ghcr.io/cocoonstack/sandbox/rt:24.04",
        'io/template: "ghcr.io/cocoonstack/sandbox/rt:24.04"',
      ),
    ],
    ["managed in another word", changed(cocoonExample, '"true"', "yes"), cocoonExample],
    [
      "a mode and an OS of another case",
      changed(changed(cocoonExample, "mode: run", "mode: Run"), "os: linux", "os: Linux"),
      cocoonExample,
    ],
  ];
  test.each(cases)("%s", (_, before, after) => {
    expect(fix(before)).toBe(after);
  });

  const pod = (rest: string) =>
    `apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  annotations:\n    sandbox.cocoonstack.io/template: rt\n${rest}`;
  const added: [name: string, before: string, after: string][] = [
    [
      "selector and toleration, behind what is there, in the file's own style of lists",
      pod("spec:\n  containers:\n  - name: a\n    image: rt\n    # of the container\n\n# of the file\n"),
      pod(
        "spec:\n  containers:\n  - name: a\n    image: rt\n    # of the container\n  nodeSelector:\n    sandbox.cocoonstack.io/runtime: sandboxd\n  tolerations:\n  - key: virtual-kubelet.io/provider\n    operator: Exists\n    effect: NoSchedule\n\n# of the file\n",
      ),
    ],
    [
      "into a selector and a list that are there, four columns deep",
      pod(
        "spec:\n    nodeSelector:\n        type: virtual-kubelet # first\n    tolerations:\n        - key: other\n          operator: Exists\n        # last\n    containers:\n        - name: a\n          image: rt\n",
      ),
      pod(
        "spec:\n    nodeSelector:\n        type: virtual-kubelet # first\n        sandbox.cocoonstack.io/runtime: sandboxd\n    tolerations:\n        - key: other\n          operator: Exists\n        # last\n        - key: virtual-kubelet.io/provider\n          operator: Exists\n          effect: NoSchedule\n    containers:\n        - name: a\n          image: rt\n",
      ),
    ],
    [
      "into empty places",
      pod(
        "spec:\n  nodeSelector: # none yet\n  tolerations: []\n  containers:\n    - {name: a, image: rt}\n",
      ),
      pod(
        "spec:\n  nodeSelector: # none yet\n    sandbox.cocoonstack.io/runtime: sandboxd\n  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists, effect: NoSchedule}]\n  containers:\n    - {name: a, image: rt}\n",
      ),
    ],
    [
      "into flow style",
      pod(
        "spec: {nodeSelector: {type: virtual-kubelet}, tolerations: [{key: a, operator: Exists}], containers: [{name: a, image: rt}]}\n",
      ),
      pod(
        "spec: {nodeSelector: {type: virtual-kubelet, sandbox.cocoonstack.io/runtime: sandboxd}, tolerations: [{key: a, operator: Exists}, {key: virtual-kubelet.io/provider, operator: Exists, effect: NoSchedule}], containers: [{name: a, image: rt}]}\n",
      ),
    ],
    [
      "at the end of a file without a last line break",
      pod("spec:\n  containers:\n    - name: a\n      image: rt"),
      pod(
        "spec:\n  containers:\n    - name: a\n      image: rt\n  nodeSelector:\n    sandbox.cocoonstack.io/runtime: sandboxd\n  tolerations:\n    - key: virtual-kubelet.io/provider\n      operator: Exists\n      effect: NoSchedule",
      ),
    ],
    [
      "behind a block of text whose lines look like comments",
      pod(
        "spec:\n  nodeSelector:\n    sandbox.cocoonstack.io/runtime: sandboxd\n  containers:\n    - name: a\n      image: rt\n      args:\n        - |\n          echo\n          # no comment\n",
      ),
      pod(
        "spec:\n  nodeSelector:\n    sandbox.cocoonstack.io/runtime: sandboxd\n  containers:\n    - name: a\n      image: rt\n      args:\n        - |\n          echo\n          # no comment\n  tolerations:\n    - key: virtual-kubelet.io/provider\n      operator: Exists\n      effect: NoSchedule\n",
      ),
    ],
  ];
  test.each(added)("added: %s", (_, before, after) => {
    expect(fix(before)).toBe(after);
  });

  test("line ends of Windows stay, and new lines get them too", () => {
    const before = pod("spec:\n  containers:\n  - name: a\n    image: rt\n").replaceAll("\n", "\r\n");
    const after = fix(before);
    expect(after.replaceAll("\r\n", "")).not.toMatch(/[\r\n]/);
    expect(after).toContain("  tolerations:\r\n  - key: virtual-kubelet.io/provider\r\n");
  });

  test("JSON stays JSON, one entry a line where it was so", () => {
    const object = {
      apiVersion: "v1",
      kind: "Pod",
      metadata: {
        name: "p",
        annotations: { "sandbox.cocoonstack.io/template": "rt", "sandbox.cocoonstack.io/size": "Large" },
      },
      spec: { nodeSelector: null, containers: [{ name: "a", image: "rt" }] },
    };
    for (const indent of [0, 2, "\t"]) {
      const after = fix(JSON.stringify(object, null, indent));
      const parsed = JSON.parse(after);
      expect(parsed.metadata.annotations["sandbox.cocoonstack.io/size"]).toBe("large");
      expect(parsed.spec.nodeSelector).toEqual({ "sandbox.cocoonstack.io/runtime": "sandboxd" });
      expect(parsed.spec.tolerations).toEqual([
        { key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" },
      ]);
      if (indent !== 0)
        expect(after.split("\n").length).toBeGreaterThan(JSON.stringify(object, null, 2).split("\n").length);
    }
  });

  test("the objects in a List", () => {
    const list = {
      apiVersion: "v1",
      kind: "List",
      items: [1, 2].map((n) => ({
        apiVersion: "v1",
        kind: "Pod",
        metadata: { name: `p${n}`, annotations: { "sandbox.cocoonstack.io/template": "rt" } },
        spec: { containers: [{ name: "a", image: "rt" }] },
      })),
    };
    const { items } = JSON.parse(fix(JSON.stringify(list)));
    for (const item of items)
      expect(item.spec.nodeSelector).toEqual({ "sandbox.cocoonstack.io/runtime": "sandboxd" });
  });
});

describe("what is left alone", () => {
  const same: [name: string, text: string][] = [
    ["what is right", good],
    ["what needs a judgement", changed(good, /io\/template: .*\n/, "io/region: eu\n")],
    ["a value that could mean anything", changed(good, "size: small", "size: 2xl-plus")],
    [
      "a misspelt key beside the right one",
      changed(good, "size: small", "size: small\n        sandbox.cocoonstack.io/sizes: large"),
    ],
    [
      "a document with a duplicate key",
      changed(good, "size: small", "size: Small\n        sandbox.cocoonstack.io/net: egress"),
    ],
    ["a value in a block of text", changed(good, "size: small", "size: |\n          Small\n")],
    ["a muted line", changed(good, "size: small", "size: Small # vk-sandbox-ignore: sandboxd/size-value")],
  ];
  test.each(same)("%s", (_, text) => {
    expect(fix(text)).toBe(text);
  });
  test("a file with a document that does not parse, all of it", () => {
    const fixed = fixText(source(`${changed(good, "size: small", "size: Small")}---\na: [\n`), judge);
    expect(fixed).toEqual({ ok: false, reason: "has documents that do not parse; mend those first" });
  });
});

describe("what is written once for several places", () => {
  const two = (first: string, second: string) =>
    `${first}---\n${second.replace("sandboxd-example", "other")}`;
  const shared = changed(good, "      annotations:\n", "      annotations: &notes\n");
  test("is mended when every place asks for it", () => {
    const list = (size: string) =>
      `apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: a\n    annotations: &notes\n      sandbox.cocoonstack.io/template: rt\n      sandbox.cocoonstack.io/size: ${size}\n  spec: &spec\n    nodeSelector: {sandbox.cocoonstack.io/runtime: sandboxd}\n    tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]\n    containers: [{name: a, image: rt}]\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: b, annotations: *notes}\n  spec: *spec\n`;
    expect(fix(list("Small"))).toBe(list("small"));
  });
  test("is left alone when one place does not", () => {
    const text = `apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: a\n    annotations: &notes\n      sandbox.cocoonstack.io/template: rt\n      sandbox.cocoonstack.io/size: Small\n  spec:\n    nodeSelector: {sandbox.cocoonstack.io/runtime: sandboxd}\n    tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]\n    containers: [{name: a, image: rt}]\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: b, annotations: *notes}\n`;
    expect(fix(text)).toBe(text);
  });
  test("is found through merged maps too", () => {
    const text = changed(
      good,
      "        sandbox.cocoonstack.io/net: none\n        sandbox.cocoonstack.io/size: small\n",
      "        <<: {sandbox.cocoonstack.io/size: Small}\n",
    );
    expect(fix(text)).toBe(text.replace("Small", "small"));
  });
  test("anchors end with their document", () => {
    expect(
      fix(two(changed(shared, "net: none", "net: None"), changed(shared, "net: none", "net: NONE"))),
    ).toBe(two(shared, shared));
  });
});

/** Same numbers for the same seed. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

type Data = string | number | boolean | Data[] | { [key: string]: Data };

/** Writes data as YAML in a style of chance, with comments of chance. */
function written(data: Data, next: () => number): { text: string; comments: string[] } {
  const step = next() < 0.3 ? 4 : 2;
  const dashes = next() < 0.5 ? 0 : step;
  const comments: string[] = [];
  const lines: string[] = [];
  const comment = () => {
    const text = `# note ${comments.length}`;
    comments.push(text);
    return text;
  };
  const tail = () => (next() < 0.15 ? ` ${comment()}` : "");
  const scalar = (value: string | number | boolean) => {
    if (typeof value !== "string") return String(value);
    const style = next();
    const safe = /^[A-Za-z][\w./:-]*\w$/.test(value) && !/^(yes|no|on|off|true|false|y|n|null)$/i.test(value);
    if (safe && style < 0.6) return value;
    return style < 0.8 && !value.includes("'") ? `'${value}'` : JSON.stringify(value);
  };
  const flow = (value: Data): string => {
    if (Array.isArray(value)) return `[${value.map(flow).join(next() < 0.5 ? ", " : ",")}]`;
    if (typeof value === "object")
      return `{${Object.entries(value)
        .map(([key, entry]) => `${key}: ${flow(entry)}`)
        .join(", ")}}`;
    return scalar(value);
  };
  const block = (value: Data, indent: number, first: string) => {
    const lead = (index: number) => (index === 0 ? first : " ".repeat(indent));
    if (Array.isArray(value))
      value.forEach((item, index) => {
        if (typeof item === "object" && next() < 0.8) block(item, indent + 2, `${lead(index)}- `);
        else lines.push(`${lead(index)}- ${flow(item)}${tail()}`);
      });
    else if (typeof value === "object")
      Object.entries(value).forEach(([key, entry], index) => {
        if (next() < 0.1 && index > 0) lines.push(`${" ".repeat(indent)}${comment()}`);
        if (next() < 0.05 && index > 0) lines.push("");
        if (typeof entry !== "object" || next() < 0.15)
          lines.push(`${lead(index)}${key}: ${flow(entry)}${tail()}`);
        else {
          const inner = indent + (Array.isArray(entry) ? dashes : step);
          lines.push(`${lead(index)}${key}:${tail()}`);
          block(entry, inner, " ".repeat(inner));
        }
      });
  };
  block(data, 0, "");
  const eol = next() < 0.2 ? "\r\n" : "\n";
  return { text: lines.join(eol) + (next() < 0.9 ? eol : ""), comments };
}

/** Mistakes that can be mended, as changes to a right object; each is made by chance. */
function spoiled(next: () => number): { data: Data; right: Data } {
  const prefix = "sandbox.cocoonstack.io/";
  const maybe = () => next() < 0.4;
  const pick = <T>(...choices: T[]): T => choices[Math.floor(next() * choices.length)] as T;
  const toleration = { key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" };
  const right: Record<string, string> = { [`${prefix}template`]: "rt:24.04" };
  const wrong: Record<string, Data> = {};
  wrong[
    maybe()
      ? pick(`${prefix}templete`, `${prefix}Template`, "sandbox.cocoonstack.com/template")
      : `${prefix}template`
  ] = "rt:24.04";
  if (maybe()) {
    right[`${prefix}net`] = "egress";
    wrong[`${prefix}net`] = pick("Egress", "egres", "EGRESS", "egress");
  }
  if (maybe()) {
    right[`${prefix}size`] = "medium";
    wrong[`${prefix}size`] = pick("Medium", "midium", "medium", " medium");
  }
  if (maybe()) {
    right[`${prefix}ttl-seconds`] = "3600";
    wrong[pick(`${prefix}ttl`, `${prefix}ttl-seconds`, `${prefix}ttlSeconds`)] = pick<Data>(
      "1h",
      3600,
      "60m",
      "3600",
      "3600s",
    );
  }
  if (maybe()) {
    right[`${prefix}renew`] = "true";
    wrong[`${prefix}renew`] = pick<Data>(true, "yes", "True", "true", "on");
  }
  if (maybe()) {
    right[`${prefix}runtime`] = "sandboxd";
    wrong[`${prefix}runtime`] = pick("Sandboxd", "sandbxd", "sandboxd");
  }
  if (maybe()) wrong[`${prefix}claim-id`] = "sb_1";
  const containers = [{ name: "agent", image: "rt:24.04" }];
  const selector = { [`${prefix}runtime`]: "sandboxd" };
  const other = [{ key: "dedicated", operator: "Exists" }];
  const spec = (data: { selector?: Data; tolerations?: Data }): Record<string, Data> => ({
    ...(data.selector === undefined ? {} : { nodeSelector: data.selector }),
    containers,
    ...(data.tolerations === undefined ? {} : { tolerations: data.tolerations }),
  });
  const rightTolerations = maybe() ? [...other, toleration] : [toleration];
  const hasTolerations = maybe() || rightTolerations.length === 1;
  const wrongTolerations = hasTolerations && maybe() ? rightTolerations : rightTolerations.slice(0, -1);
  const object = (annotations: Data, podSpec: Data): Data => ({
    apiVersion: "agents.x-k8s.io/v1beta1",
    kind: "Sandbox",
    metadata: { name: "one" },
    spec: { podTemplate: { metadata: { annotations }, spec: podSpec } },
  });
  return {
    right: object(right, spec({ selector, tolerations: rightTolerations })),
    data: object(
      wrong,
      spec({
        selector: maybe() ? undefined : maybe() ? { [`${prefix}runtime`]: "SANDBOXD" } : selector,
        tolerations: wrongTolerations.length === 0 ? undefined : wrongTolerations,
      }),
    ),
  };
}

describe("any mixture of mistakes, in any style of YAML", () => {
  const seeds = Number(process.env.CHECK_SEEDS ?? 300);
  test(`over ${seeds} seeds: right afterwards, comments and neighbours kept, and nothing left for a second run`, () => {
    for (let seed = 1; seed <= seeds; seed++) {
      const next = random(seed);
      const { data, right } = spoiled(next);
      const { text, comments } = written(data, next);
      const neighbour =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x} # theirs\ndata:\n    k:   'v'\n";
      const before = `${text}${text.endsWith("\n") ? "" : "\n"}---\n${neighbour}`;
      const fixed = fixText(source(before), judge);
      const about = `seed ${seed}\n${before}\n=>\n${fixed.ok ? fixed.text : fixed.reason}`;
      if (!fixed.ok) throw new Error(about);
      const { objects, unreadable } = parseManifests(source(fixed.text));
      if (unreadable.length > 0) throw new Error(about);
      const left = judge(objects).findings.filter(({ severity }) => severity !== "info");
      if (left.length > 0) throw new Error(`${left.map(({ rule }) => rule).join(", ")} left\n${about}`);
      if (!Bun.deepEquals(objects[0]?.value, right)) throw new Error(`not what it should be\n${about}`);
      for (const comment of comments)
        if (fixed.text.split(`${comment}\n`).length + fixed.text.split(`${comment}\r\n`).length !== 3)
          throw new Error(`${comment} is lost or doubled\n${about}`);
      expect(fixed.text.endsWith(`---\n${neighbour}`)).toBe(true);
      expect(fix(fixed.text)).toBe(fixed.text);
    }
  }, 600_000);
});

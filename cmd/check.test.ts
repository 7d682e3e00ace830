import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ruleList } from "../lib/check/index.ts";
import { changed, cocoonExample, sandboxdExample } from "../lib/check/testing.ts";
import { type ApiServer, startApiServer } from "../lib/sim/apiserver.ts";
import { type Sandboxd, startSandboxd } from "../lib/sim/sandboxd.ts";

let dir = "";
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "vk-check-"));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

interface Ran {
  out: string;
  err: string;
  code: number;
}

async function vk(argv: string[], input = ""): Promise<Ran> {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "main.ts"), ...argv], {
    cwd: dir,
    env: { PATH: process.env.PATH ?? "", HOME: dir },
    stdin: Buffer.from(input),
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { out, err, code };
}

const wrong = changed(
  changed(sandboxdExample, "size: small", "size: Small # how big"),
  /.*io\/template: .*\n/,
  "",
);
const fixable = changed(sandboxdExample, "size: small", "size: Small # how big");
const write = (name: string, text: string) => writeFileSync(join(dir, name), text);

describe("exit codes", () => {
  test("0 for what is right", async () => {
    write("good.yaml", `${sandboxdExample}---\n${cocoonExample}`);
    const { out, err, code } = await vk(["check", "good.yaml"]);
    expect(out).toContain("ok  good.yaml:1  Sandbox sandboxd-example is for sandboxd");
    expect(out).toContain("2 objects judged in 1 file (1 for sandboxd, 1 for vk-cocoon): 1 note.");
    expect([err, code]).toEqual(["", 0]);
  });
  test("what is not shown does not hide the object", async () => {
    const { out } = await vk(["check", "-", "--show", "error"], cocoonExample);
    expect(out).toContain("ok  -:1  Sandbox cocoon-example is for vk-cocoon");
    expect(out).not.toContain("cocoon/webhook");
  });
  test("1 for an error, with file, line, rule, what happens and what to do", async () => {
    write("wrong.yaml", wrong);
    const { out, code } = await vk(["check", "wrong.yaml"]);
    expect(out).toContain("wrong.yaml:1  Sandbox sandboxd-example is for sandboxd (by its selector)");
    expect(out).toMatch(/ {2}8:7 +error +sandboxd\/template-missing\n +The create fails/);
    expect(out).toMatch(/ {2}11:9 +error +sandboxd\/size-value\n[\s\S]+Fix: .*\s+\[--fix\]/);
    expect(out).toContain("2 errors; --fix can mend 1.");
    expect(out).not.toContain("\x1b");
    expect(code).toBe(1);
  });
  test("warnings fail where that is asked for, and only there", async () => {
    const text = changed(sandboxdExample, "    spec:", "    spec:\n      restartPolicy: Never");
    expect((await vk(["check", "-"], text)).code).toBe(0);
    expect((await vk(["check", "-", "--fail-on", "warning"], text)).code).toBe(1);
    expect(
      (await vk(["check", "-", "--fail-on=warning", "--ignore", "sandboxd/restart-never"], text)).code,
    ).toBe(0);
  });
  test("2 for a file that does not parse, named with its line; the others are judged all the same", async () => {
    write("bad.yaml", "a: 1\nb:\n\tc: 2\n");
    write("wrong.yaml", wrong);
    const { out, err, code } = await vk(["check", "bad.yaml", "wrong.yaml"]);
    expect(err).toMatch(/^vk-sandbox: bad.yaml:3:1: Tabs are not allowed/);
    expect(out).toContain("sandboxd/template-missing");
    expect(out).toContain("1 could not be read");
    expect(code).toBe(2);
  });
  test.each([
    ["nothing to check", ["check"], /nothing to check/],
    ["a file that does not exist", ["check", "gone.yaml"], /gone.yaml: does not exist/],
    ["an unknown rule", ["check", "-", "--ignore", "sandboxd/net-vaule"], /did you mean sandboxd\/net-value/],
    ["an unknown severity", ["check", "-", "--fail-on", "fatal"], /--fail-on.*error, warning, info/],
    ["two forms", ["check", "-", "--json", "--sarif"], /one form at a time/],
    ["fixing a cluster", ["check", "--cluster", "--fix"], /--fix mends files/],
    ["labels that are none", ["check", "-", "--node-labels", "a b"], /--node-labels a b/],
    [
      "a token file that does not exist",
      ["check", "-", "--sandboxd-url", "http://127.0.0.1:1", "--sandboxd-token-file", "gone"],
      /token file gone does not exist/,
    ],
    ["no kubeconfig", ["check", "--cluster"], /cluster: .*kubeconfig/],
  ])("2 for %s", async (_, argv, reason) => {
    const { err, code } = await vk(argv);
    expect(err).toMatch(reason);
    expect(code).toBe(2);
  });
});

describe("--fix", () => {
  beforeEach(() => write("fix.yaml", fixable));
  test("mends the file in place and says what; what is left decides the exit code", async () => {
    const { out, code } = await vk(["check", "--fix", "fix.yaml"]);
    expect(readFileSync(join(dir, "fix.yaml"), "utf8")).toBe(fixable.replace("Small", "small"));
    expect(out).toStartWith("mended fix.yaml: sandboxd/size-value\n");
    expect(code).toBe(0);
    expect(readdirSync(dir).filter((name) => name.includes("tmp"))).toEqual([]);
  });
  test("--diff shows it, changes nothing, and judges what is there", async () => {
    const { out, err, code } = await vk(["check", "--fix", "--diff", "fix.yaml"]);
    expect(out).toMatch(/^--- fix.yaml\n\+\+\+ fix.yaml\n@@ .* @@\n/);
    expect(out).toContain(
      "\n-        sandbox.cocoonstack.io/size: Small # how big\n+        sandbox.cocoonstack.io/size: small # how big\n",
    );
    expect(err).toContain("would mend fix.yaml");
    expect(readFileSync(join(dir, "fix.yaml"), "utf8")).toBe(fixable);
    expect(code).toBe(1);
  });
  test("standard input comes out mended, and nothing else does", async () => {
    const { out, err, code } = await vk(["check", "--fix", "-"], fixable);
    expect(out).toBe(fixable.replace("Small", "small"));
    expect(err).toContain("1 object judged");
    expect(code).toBe(0);
  });
  test("standard input that is right, or that does not parse, comes out as it was", async () => {
    expect((await vk(["check", "--fix", "-"], sandboxdExample)).out).toBe(sandboxdExample);
    const { out, code } = await vk(["check", "--fix", "-"], `${fixable}---\na: [\n`);
    expect([out, code]).toEqual([`${fixable}---\na: [\n`, 2]);
  });
  test("a file that does not parse is not touched", async () => {
    const text = `${fixable}---\na: [\n`;
    write("fix.yaml", text);
    const { code } = await vk(["check", "--fix", "fix.yaml"]);
    expect([readFileSync(join(dir, "fix.yaml"), "utf8"), code]).toEqual([text, 2]);
  });
});

describe("for machines", () => {
  test("--json has everything, with places", async () => {
    write("wrong.yaml", wrong);
    const { out, code } = await vk(["check", "--json", "wrong.yaml"]);
    const report = JSON.parse(out);
    expect(code).toBe(1);
    expect(report).toMatchObject({
      ok: false,
      summary: { error: 2, warning: 0, info: 0, objects: 1, files: 1 },
      objects: [{ file: "wrong.yaml", line: 1, object: "Sandbox sandboxd-example", backend: "sandboxd" }],
      unreadable: [],
    });
    expect(report.findings[1]).toMatchObject({
      rule: "sandboxd/size-value",
      severity: "error",
      file: "wrong.yaml",
      region: { start: { line: 11, column: 9 } },
      path: 'spec.podTemplate.metadata.annotations["sandbox.cocoonstack.io/size"]',
      fixable: true,
    });
    expect(Object.keys(report.findings[1])).not.toContain("source");
  });
  test("--sarif names files relative to the working directory", async () => {
    write("wrong.yaml", wrong);
    const { out } = await vk(["check", "--sarif", join(dir, "wrong.yaml")]);
    const [run] = JSON.parse(out).runs;
    expect(
      run.results.map(
        (one: { locations: { physicalLocation: { artifactLocation: object } }[] }) =>
          one.locations[0]?.physicalLocation.artifactLocation,
      ),
    ).toEqual(Array(2).fill({ uri: "wrong.yaml" }));
  });
  test("--rules lists every rule", async () => {
    const { out } = await vk(["check", "--rules"]);
    for (const { id } of ruleList) expect(out).toContain(` ${id}`);
    expect(JSON.parse((await vk(["check", "--rules", "--json"])).out).length).toBe(ruleList.length);
  });
});

describe("against what runs", () => {
  let sandboxd: Sandboxd;
  let server: ApiServer;
  beforeAll(async () => {
    const template = "ghcr.io/cocoonstack/sandbox/rt:24.04";
    sandboxd = await startSandboxd({
      token: "root-of-tests",
      pools: [{ template, net: "none", size: "large", warm: 1 }],
    });
    write("token", "root-of-tests\n");
    Bun.spawnSync(["chmod", "600", join(dir, "token")]);
    server = await startApiServer({ token: "admin-of-tests" });
    const kubeconfig = {
      clusters: [{ name: "c", cluster: { server: server.url } }],
      users: [{ name: "u", user: { token: "admin-of-tests" } }],
      contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
      "current-context": "x",
    };
    write("kubeconfig", JSON.stringify(kubeconfig));
    for (const namespace of ["a", "b", "c"]) {
      server.objects.create("namespaces", { metadata: { name: namespace } });
      server.objects.create("sandboxes.agents.x-k8s.io", {
        metadata: { name: "one", namespace },
        spec: {
          podTemplate: {
            spec: { containers: [{ name: "agent", image: "x" }], restartPolicy: "Never" },
            metadata: { annotations: { "sandbox.cocoonstack.io/template": "x" } },
          },
        },
      });
    }
  });
  afterAll(async () => {
    await sandboxd.stop();
    await server.stop();
  });
  test("--sandboxd-url says whether the pool is there", async () => {
    const { out, code } = await vk(
      ["check", "--sandboxd-url", sandboxd.url, "--sandboxd-token-file", "token", "-"],
      sandboxdExample,
    );
    expect(out).toContain("sandboxd/pool-missing");
    expect(out.replace(/\s+/g, " ")).toContain(
      "has no pool ghcr.io/cocoonstack/sandbox/rt:24.04 (net none, size small)",
    );
    expect(code).toBe(1);
  });
  test("a sandboxd that cannot be asked is exit 2, and the rest is judged", async () => {
    const { out, err, code } = await vk(["check", "--sandboxd-url", sandboxd.url, "-"], sandboxdExample);
    expect(err).toContain("pools are not judged");
    expect(out).toContain("1 object judged");
    expect(code).toBe(2);
  });
  test("--cluster judges the namespaces that are named", async () => {
    const all = await vk(["check", "--cluster", "--kubeconfig", "kubeconfig", "--json"]);
    expect(JSON.parse(all.out).objects.map((one: { object: string }) => one.object)).toEqual([
      "Sandbox a/one",
      "Sandbox b/one",
      "Sandbox c/one",
    ]);
    expect(all.code).toBe(1);
    const two = await vk(["check", "--cluster", "-n", "a", "--namespace=c", "--kubeconfig", "kubeconfig"]);
    expect(two.out).toContain("cluster  Sandbox a/one is for sandboxd");
    expect(two.out).toContain("spec.podTemplate.spec.nodeSelector error   sandboxd/selector-missing");
    expect(two.out).not.toContain("b/one");
  });
});

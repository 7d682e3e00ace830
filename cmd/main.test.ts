import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { flagList } from "../lib/config/index.ts";
import { renderCompletion } from "./completion.ts";
import { renderHelp, renderMan } from "./help.ts";
import { verbs } from "./verbs.ts";

let home = "";
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "vk-main-"));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

async function vk(argv: string[], env: Record<string, string> = {}) {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "main.ts"), ...argv], {
    env: { PATH: process.env.PATH ?? "", HOME: home, ...env },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { out, err, code };
}

describe("misuse ends with exit code 2 and a next step", () => {
  const cases: [string, string[], RegExp][] = [
    ["an unknown verb", ["docter"], /docter: unknown verb/],
    ["a verb nearly right", ["verison"], /did you mean version\?/],
    [
      "an unknown flag of the provider",
      ["--node-nmae=x"],
      /did you mean --node-name\?[\s\S]*See: vk-sandbox help run/,
    ],
    [
      "an unknown flag of a verb",
      ["version", "--jsno"],
      /did you mean --json\?[\s\S]*See: vk-sandbox help version/,
    ],
    ["a provider's flag where it means nothing", ["version", "--node-name=x"], /--node-name: unknown flag/],
    ["a word too many", ["version", "now"], /now: unexpected argument/],
    ["an argument too few", ["completion"], /SHELL/],
    ["an argument that is none of the choices", ["completion", "tcsh"], /tcsh.*bash, zsh or fish/],
    ["help for what does not exist", ["help", "verison"], /did you mean version\?/],
    ["a bad value", ["run", "--node-memory", "8TiB"], /--node-memory "8TiB"/],
    ["a word after the provider's flags", ["--publish-inventory", "false"], /false: unexpected argument/],
  ];
  for (const [name, argv, pattern] of cases)
    test(name, async () => {
      const { out, err, code } = await vk(argv);
      expect(err).toMatch(pattern);
      expect(err).toMatch(/See: vk-sandbox /);
      expect([code, out]).toEqual([2, ""]);
    });

  test("a bad variable is named", async () => {
    const { err, code } = await vk([], { VK_NODE_IP: "here" });
    expect(err).toMatch(/--node-ip \(from VK_NODE_IP\) "here"/);
    expect(code).toBe(2);
  });
});

test("the version is told in every way people ask for it", async () => {
  for (const argv of [["--version"], ["-version"], ["run", "--version"], ["version"]]) {
    const { out, code } = await vk(argv);
    expect(out).toMatch(/^vk-sandbox \S+ \(commit /);
    expect(code).toBe(0);
  }
  const { out } = await vk(["version", "--json"]);
  expect(JSON.parse(out)).toMatchObject({ version: expect.any(String), commit: expect.any(String) });
});

test("help is told in every way people ask for it", async () => {
  const overview = await vk(["--help"]);
  expect(overview.code).toBe(0);
  for (const name of Object.keys(verbs)) expect(overview.out).toContain(`  ${name}`);
  for (const argv of [["-h"], ["help"]]) expect((await vk(argv)).out).toBe(overview.out);
  const run = await vk(["help", "run"]);
  for (const argv of [
    ["run", "--help"],
    ["--node-name=x", "--help"],
  ])
    expect((await vk(argv)).out).toBe(run.out);
  expect((await vk(["version", "--help"])).out).toBe((await vk(["help", "version"])).out);
});

test("the provider's help has every flag with default, variable and example", async () => {
  const text = (await renderHelp("run", 100)) ?? "";
  const flat = text.replace(/\s+/g, " ");
  for (const flag of flagList) {
    expect(flat).toContain(`--${flag.name}`);
    expect(flat).toContain(`env ${flag.env}`);
    expect(flat).toContain(flag.help);
    expect(flat).toContain(flag.example);
    if (flag.default !== undefined) expect(flat).toContain(`default ${flag.default}`);
  }
});

test("help fits the terminal", async () => {
  // A word that is longer than the room stays whole, so that it can be copied.
  for (const columns of [60, 80, 100])
    for (const verb of ["run", ...Object.keys(verbs)])
      for (const line of ((await renderHelp(verb, columns)) ?? "").split("\n"))
        if (line.length > columns) expect(line.trim().split(" ").length).toBeLessThanOrEqual(12);
});

test("every verb has a page, and is declared under the name it is listed by", async () => {
  for (const [name, entry] of Object.entries(verbs)) {
    expect(await renderHelp(name, 100)).toContain(`vk-sandbox ${name}`);
    const { command } = await entry.load();
    const { name: declared, description } = (await command.meta) as { name: string; description: string };
    expect(declared).toBe(name);
    // It may say more than the list has room for.
    expect(description).toEndWith(".");
  }
});

test("the man page has every flag", async () => {
  const man = await renderMan();
  expect(man).toStartWith(".TH VK");
  for (const flag of flagList) expect(man).toContain(`\\-\\-${flag.name.replaceAll("-", "\\-")}`);
});

test("the bash script completes verbs, flags, and values", async () => {
  const script = await renderCompletion("bash");
  const complete = async (...typed: string[]) => {
    const program = `${script}
COMP_WORDS=(vk-sandbox ${typed.map((word) => `'${word}'`).join(" ")}); COMP_CWORD=${typed.length}; _vk_sandbox; printf '%s\\n' "\${COMPREPLY[@]}"`;
    const child = Bun.spawn(["bash", "-c", program], { stdout: "pipe", stderr: "pipe" });
    const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()]);
    expect(err).toBe("");
    return out.split("\n").filter((word) => word !== "");
  };
  expect(await complete("ver")).toEqual(["version"]);
  expect(await complete("--node-n")).toEqual(["--node-name"]);
  expect(await complete("--log-format", "j")).toEqual(["json"]);
  expect(await complete("version", "--j")).toEqual(["--json"]);
  expect(await complete("completion", "z")).toEqual(["zsh"]);
});

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readSources, replaceFile } from "./read.ts";

let dir = "";
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "vk-read-"));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const stdin = (text: string) => async () => new TextEncoder().encode(text);
const file = (name: string, content: string | Uint8Array) => {
  const path = join(dir, name);
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, content);
  return path;
};

describe("what a command line names", () => {
  test("a file of any name, and standard input once", async () => {
    const path = file("one/manifest.txt", "a: 1\n");
    const { files, unreadable } = await readSources([path, "-", "-", path], stdin("b: 2\n"));
    expect(files).toEqual([
      { name: "-", text: "b: 2\n", bom: false },
      { name: path, text: "a: 1\n", bom: false },
    ]);
    expect(unreadable).toEqual([]);
  });
  test("a directory: every manifest below it in order, nothing hidden", async () => {
    for (const name of ["b.yml", "a.yaml", "sub/c.json", ".git/d.yaml", "node_modules/e.yaml", "f.txt"])
      file(join("two", name), "{}");
    symlinkSync(join(dir, "two/a.yaml"), join(dir, "two/link.yaml"));
    symlinkSync(join(dir, "two"), join(dir, "two/loop.yaml"));
    const { files } = await readSources([join(dir, "two")], stdin(""));
    expect(files.map(({ name }) => name.slice(join(dir, "two").length + 1))).toEqual([
      "a.yaml",
      "b.yml",
      "link.yaml",
      "sub/c.json",
    ]);
  });
  test("a byte order mark is no part of the text", async () => {
    const path = file("bom.yaml", "\ufeffa: 1\n");
    expect((await readSources([path], stdin(""))).files).toEqual([{ name: path, text: "a: 1\n", bom: true }]);
  });
  test.each([
    ["what does not exist", () => join(dir, "gone.yaml"), /does not exist/],
    ["a directory without manifests", () => join(file("none/readme.txt", ""), ".."), /no .yaml/],
    ["what is not UTF-8", () => file("utf16.yaml", new Uint8Array([0xff, 0xfe, 0x61, 0x00])), /UTF-8/],
    ["a device", () => "/dev/null", /neither a file nor a directory/],
  ])("%s is named with the reason", async (_, path, reason) => {
    const name = path();
    const { files, unreadable } = await readSources([name], stdin(""));
    expect(files).toEqual([]);
    expect(unreadable.map((one) => one.file)).toEqual([name]);
    expect(unreadable[0]?.reason).toMatch(reason);
  });
});

describe("a file is replaced in one step", () => {
  const read = async (path: string) => {
    const [source] = (await readSources([path], stdin(""))).files;
    if (source === undefined) throw new Error("not read");
    return source;
  };
  test("mode and byte order mark stay, and nothing lies beside it afterwards", async () => {
    const path = file("three/a.yaml", "\ufeffa: 1\n");
    chmodSync(path, 0o640);
    expect(await replaceFile(await read(path), "a: 2\n")).toBeUndefined();
    expect(readFileSync(path, "utf8")).toBe("\ufeffa: 2\n");
    expect(statSync(path).mode & 0o777).toBe(0o640);
    expect(readdirSync(join(dir, "three"))).toEqual(["a.yaml"]);
  });
  test("a symbolic link stays one", async () => {
    const path = file("four/real.yaml", "a: 1\n");
    const link = join(dir, "four/link.yaml");
    symlinkSync("real.yaml", link);
    expect(await replaceFile(await read(link), "a: 2\n")).toBeUndefined();
    expect([lstatSync(link).isSymbolicLink(), readFileSync(path, "utf8")]).toEqual([true, "a: 2\n"]);
  });
  test("a file that someone else changed meanwhile is not touched", async () => {
    const path = file("five.yaml", "a: 1\n");
    const source = await read(path);
    writeFileSync(path, "a: 3\n");
    expect(await replaceFile(source, "a: 2\n")).toMatch(/changed by someone else/);
    expect(readFileSync(path, "utf8")).toBe("a: 3\n");
  });
  test("a file that went away is an error with the reason", async () => {
    const path = file("six.yaml", "a: 1\n");
    const source = await read(path);
    rmSync(path);
    expect(await replaceFile(source, "a: 2\n")).toMatch(/could not be written: does not exist/);
  });
});

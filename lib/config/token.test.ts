import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readTokenFile, tokenFile } from "./token.ts";

let dir = "";
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "vk-token-"));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

function file(name: string, content: string, mode = 0o600): string {
  const path = join(dir, name);
  writeFileSync(path, content);
  chmodSync(path, mode);
  return path;
}
function reason(path: string): string {
  const read = readTokenFile(path);
  return read.ok ? "" : read.reason;
}

test("the token is trimmed", () => {
  expect(readTokenFile(file("good", "  root-token\r\n\n"))).toEqual({ ok: true, token: "root-token" });
});

test("a missing file, a directory, an empty file and one with two words say what to do", () => {
  expect(reason(join(dir, "absent"))).toMatch(/absent does not exist; write/);
  mkdirSync(join(dir, "directory"));
  expect(reason(join(dir, "directory"))).toMatch(/not a regular file/);
  expect(reason(file("empty", " \n"))).toMatch(/is empty; write/);
  expect(reason(file("two", "one two\n"))).toMatch(/more than one word/);
  expect(reason(file("lines", "one\ntwo\n"))).toMatch(/more than one word/);
  expect(reason(file("long", "x".repeat(5000)))).toMatch(/more than 4096 bytes/);
});

test("a reason never repeats what the file holds", () => {
  expect(reason(file("secret", "hunter2 hunter3"))).not.toContain("hunter");
});

test("a file that everyone may read is refused, a group's is used with a warning", () => {
  for (const mode of [0o604, 0o602, 0o644])
    expect(reason(file(`open${mode}`, "t", mode))).toMatch(/every user.*chmod 600/);
  const read = readTokenFile(file("group", "t", 0o640));
  expect(read).toMatchObject({ ok: true, token: "t" });
  expect(read.ok && read.warning).toMatch(/0640.*chmod 600/);
});

test("a changed file is read again; a broken one leaves the old token in use until it is whole", () => {
  const path = file("rotating", "one");
  const token = tokenFile(path, "one");
  expect(token.refresh()).toEqual({ kind: "same" });
  file("rotating", "token-two");
  expect(token.refresh()).toMatchObject({ kind: "changed", token: "token-two" });
  file("rotating", "");
  expect(token.refresh().kind).toBe("failed");
  expect(token.current()).toBe("token-two");
  rmSync(path);
  expect(token.refresh().kind).toBe("failed");
  file("rotating", "token-three");
  expect(token.refresh().kind).toBe("changed");
  expect(token.current()).toBe("token-three");
});

import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { unifiedDiff } from "./diff.ts";

const lines = (...numbers: (number | string)[]) => numbers.map((n) => `${n}\n`).join("");
const twenty = Array.from({ length: 20 }, (_, i) => i + 1);

describe("a unified diff", () => {
  test("is empty for equal texts", () => expect(unifiedDiff("f", "a\n", "a\n")).toBe(""));
  test("shows three lines around a change", () => {
    const after = lines(...twenty.map((n) => (n === 10 ? "ten" : n)));
    expect(unifiedDiff("f", lines(...twenty), after)).toBe(
      `--- f\n+++ f\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n`,
    );
  });
  test("has a hunk for each change that is far from the others", () => {
    const after = lines(...twenty.map((n) => (n === 2 || n === 19 ? `x${n}` : n)));
    expect(unifiedDiff("f", lines(...twenty), after).match(/^@@.*@@$/gm)).toEqual([
      "@@ -1,5 +1,5 @@",
      "@@ -16,5 +16,5 @@",
    ]);
  });
  test("names a last line without a line break", () => {
    expect(unifiedDiff("f", "a\nb", "a\nc")).toBe(
      "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n",
    );
  });
  test("is what patch makes the one text into the other with, for any two texts", () => {
    const dir = mkdtempSync(join(tmpdir(), "vk-diff-"));
    let state = 7;
    const next = (n: number) => {
      state = (state * 1103515245 + 12345) % 2 ** 31;
      return Math.floor((state / 2 ** 31) * n);
    };
    const text = (from: string[]) =>
      from.flatMap((line) => (next(6) === 0 ? [] : next(6) === 0 ? [line, `n${next(9)}`] : [line]));
    try {
      for (let round = 0; round < 40; round++) {
        const base = Array.from({ length: 5 + next(30) }, () => `l${next(8)}`);
        const [before, after] = [text(base), text(base)].map((all) =>
          all.map((line) => `${line}\n`).join(""),
        );
        writeFileSync(join(dir, "f"), before ?? "");
        const diff = unifiedDiff("f", before ?? "", after ?? "");
        if (diff === "") continue;
        const { stdout, success } = Bun.spawnSync(["git", "apply", "--unsafe-paths", "-p0", "-"], {
          cwd: dir,
          stdin: Buffer.from(diff),
          stderr: "pipe",
        });
        expect([success, stdout.toString()]).toEqual([true, ""]);
        expect(require("node:fs").readFileSync(join(dir, "f"), "utf8")).toBe(after);
      }
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  });
});

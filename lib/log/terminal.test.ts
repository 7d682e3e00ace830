import { expect, test } from "bun:test";
import { closeSync, openSync } from "node:fs";
import { isTerminal } from "./terminal.ts";

function opened(path: string): boolean {
  const fd = openSync(path, "r+");
  try {
    return isTerminal(fd);
  } finally {
    closeSync(fd);
  }
}

test("a pseudo-terminal is a terminal; /dev/null, a file and a closed descriptor are not", () => {
  expect(opened("/dev/ptmx")).toBe(true);
  expect(opened("/dev/null")).toBe(false);
  const fd = openSync(import.meta.path, "r");
  expect(isTerminal(fd)).toBe(false);
  closeSync(fd);
  expect(isTerminal(99_999)).toBe(false);
});

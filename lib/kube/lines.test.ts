import { expect, test } from "bun:test";
import { createLineSplitter, LineError } from "./lines.ts";

function split(chunks: Uint8Array[], bytesMax = 1024): { lines: string[]; pendingBytes: number } {
  const lines: string[] = [];
  const splitter = createLineSplitter(bytesMax, (line) => {
    lines.push(line);
    return true;
  });
  for (const chunk of chunks) splitter.push(chunk);
  return { lines, pendingBytes: splitter.pendingBytes };
}

const text = 'first\n{"name":"gröÿ 🚀 漢字"}\n\nlast line\n';
const wanted = ["first", '{"name":"gröÿ 🚀 漢字"}', "last line"];

test("lines come out whole wherever the chunks were cut, inside a character too", () => {
  const bytes = new TextEncoder().encode(text);
  for (let a = 0; a <= bytes.length; a += 1) {
    for (let b = a; b <= bytes.length; b += 1) {
      const { lines, pendingBytes } = split([bytes.subarray(0, a), bytes.subarray(a, b), bytes.subarray(b)]);
      expect(lines).toEqual(wanted);
      expect(pendingBytes).toBe(0);
    }
  }
});

test("a byte at a time gives the same lines", () => {
  const bytes = new TextEncoder().encode(text);
  expect(split(Array.from(bytes, (byte) => Uint8Array.of(byte))).lines).toEqual(wanted);
});

test("a line that has not ended is kept back", () => {
  expect(split([new TextEncoder().encode("whole\nhalf")])).toEqual({ lines: ["whole"], pendingBytes: 4 });
});

test("a line longer than the bound is an error, ended or not, in one chunk or many", () => {
  const long = new TextEncoder().encode("x".repeat(11));
  expect(() => split([long], 10)).toThrow(LineError);
  expect(() => split([new TextEncoder().encode(`${"x".repeat(11)}\n`)], 10)).toThrow(LineError);
  expect(() => split([long.subarray(0, 6), long.subarray(6)], 10)).toThrow(LineError);
  expect(split([new TextEncoder().encode(`${"x".repeat(10)}\n`)], 10).lines).toEqual(["x".repeat(10)]);
});

test("a line that is not UTF-8 is an error, not a line with replacement characters", () => {
  expect(() => split([Uint8Array.of(0x22, 0xff, 0x22, 10)])).toThrow(LineError);
});

test("a reader that has had enough gets no further line of the chunk", () => {
  const lines: string[] = [];
  const splitter = createLineSplitter(100, (line) => {
    lines.push(line);
    return false;
  });
  splitter.push(new TextEncoder().encode("one\ntwo\n"));
  expect(lines).toEqual(["one"]);
});

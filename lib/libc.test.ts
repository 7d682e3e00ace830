import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { libcNames, loadLibc } from "./libc.ts";

test("the C library is found under glibc's name or musl's, and its absence is said", () => {
  expect(libcNames("arm64")).toContain("libc.musl-aarch64.so.1");
  const missing = loadLibc(["libnothing.so.0"]);
  expect(missing).toMatchObject({ unavailable: expect.stringContaining("libnothing.so.0") });
  const glibc = existsSync("/lib64/ld-linux-x86-64.so.2") || existsSync("/lib/ld-linux-aarch64.so.1");
  if (glibc) expect(loadLibc(["libnothing.so.0", "libc.so.6"])).toHaveProperty("flock");
});

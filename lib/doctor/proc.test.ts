import { afterAll, expect, test } from "bun:test";
import { closeSync, mkdtempSync, openSync, rmSync, statSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  deviceOf,
  environValue,
  libcIn,
  listeningInodes,
  ownerOf,
  parseLocks,
  parseOpenFiles,
  processInfo,
  readProc,
} from "./proc.ts";

const dir = mkdtempSync(join(tmpdir(), "vk-doctor-proc-"));
afterAll(() => rmSync(dir, { recursive: true }));

test("locks are read, waiters are not", () => {
  const text = [
    "1: FLOCK  ADVISORY  WRITE 4711 fd:01:131090 0 EOF",
    "1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:131090 0 EOF",
    "2: POSIX  ADVISORY  READ  12 00:1a:99 128 128",
    "3: OFDLCK ADVISORY  WRITE -1 00:1a:100 0 EOF",
    "garbage",
    "",
  ].join("\n");
  expect(parseLocks(text)).toEqual([
    { type: "FLOCK", pid: 4711, major: 0xfd, minor: 1, inode: 131090 },
    { type: "POSIX", pid: 12, major: 0, minor: 0x1a, inode: 99 },
    { type: "OFDLCK", pid: 0, major: 0, minor: 0x1a, inode: 100 },
  ]);
});

test("device numbers are unpacked as Linux packs them", () => {
  expect(deviceOf(0xfd01)).toEqual({ major: 0xfd, minor: 1 });
  // Minor numbers beyond a byte go into the bits above the major.
  expect(deviceOf(0x1010301)).toEqual({ major: 259, minor: 0x1001 });
});

test("listening sockets of a port are found in either table, connected ones are not", () => {
  const text = [
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
    "   0: 0100007F:2814 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 555 1 0",
    "   1: 0100007F:2814 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 556 1 0",
    "   2: 00000000000000000000000000000000:2814 0:0 0A 0:0 00:0 0 0 0 557 1 0",
    "   3: 0100007F:2815 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 558 1 0",
  ].join("\n");
  expect(listeningInodes(text, 0x2814)).toEqual(["555", "557"]);
  expect(listeningInodes("", 1)).toEqual([]);
});

test("limits may be unlimited", () => {
  const text =
    "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 unlimited            files";
  expect(parseOpenFiles(text)).toEqual({ soft: 1024, hard: Number.POSITIVE_INFINITY });
  expect(parseOpenFiles("")).toBeUndefined();
});

test("the C library is told by what is mapped", () => {
  expect(libcIn("7f.. /usr/lib/x86_64-linux-gnu/libc.so.6\n")).toBe("glibc");
  expect(libcIn("7f.. /lib64/libc-2.17.so\n")).toBe("glibc");
  expect(libcIn("7f.. /lib/ld-musl-x86_64.so.1\n")).toBe("musl");
  expect(libcIn("7f.. /opt/vk-sandbox\n")).toBe("unknown");
});

test("a variable is found by its whole name", () => {
  const environ = "OLD_VK_NODE_NAME=no\0VK_NODE_NAME=a=b\0";
  expect(environValue(environ, "VK_NODE_NAME")).toBe("a=b");
  expect(environValue(environ, "NODE_NAME")).toBeUndefined();
});

const linux = process.platform === "linux";

test.skipIf(!linux)("this process is found by the port it listens on", async () => {
  const server = createServer();
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("no port");
  const inodes = listeningInodes(readProc("net/tcp") ?? "", address.port);
  expect(inodes).toHaveLength(1);
  expect(ownerOf(inodes).pid).toBe(process.pid);
  await new Promise((done) => server.close(done));
  expect(listeningInodes(readProc("net/tcp") ?? "", address.port)).toEqual([]);
});

test.skipIf(!linux)("this process has a name, and process 0 none", () => {
  expect(processInfo(process.pid)?.name).not.toBe("");
  expect(processInfo(0)).toBeUndefined();
});

test.skipIf(!linux)("the device of a file is what /proc/self/mountinfo says of its mount", () => {
  const fd = openSync(join(dir, "file"), "w");
  const { major, minor } = deviceOf(statSync(join(dir, "file")).dev);
  closeSync(fd);
  expect(readProc("self/mountinfo")).toContain(` ${major}:${minor} `);
});

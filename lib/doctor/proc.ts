/** Reading /proc: who holds a lock, who listens, which limits a process has. Parsers apart from the reading, for tests. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import type { ProcessInfo } from "./probes.ts";

/** One line of /proc/locks. */
export interface KernelLock {
  type: string;
  /** 0 when the holder is not in our PID namespace. */
  pid: number;
  major: number;
  minor: number;
  inode: number;
}

/** Parses /proc/locks (proc(5)). Lines of waiters (`->`) are left out: they hold nothing. */
export function parseLocks(text: string): KernelLock[] {
  const locks: KernelLock[] = [];
  for (const line of text.split("\n")) {
    const match = /^\d+:\s+(\S+)\s+\S+\s+\S+\s+(-?\d+)\s+([0-9a-f]+):([0-9a-f]+):(\d+)\s/.exec(line);
    if (match === null) continue;
    const [, type = "", pid, major = "", minor = "", inode] = match;
    locks.push({
      type,
      pid: Math.max(0, Number(pid)),
      major: Number.parseInt(major, 16),
      minor: Number.parseInt(minor, 16),
      inode: Number(inode),
    });
  }
  return locks;
}

/** Major and minor number in a stat's `dev`, as Linux packs them. */
export function deviceOf(dev: number): { major: number; minor: number } {
  const value = BigInt(dev);
  return {
    major: Number(((value >> 8n) & 0xfffn) | ((value >> 32n) & ~0xfffn)),
    minor: Number((value & 0xffn) | ((value >> 12n) & ~0xffn)),
  };
}

/** Inodes of the sockets that listen on a port, from the text of /proc/net/tcp or tcp6. */
export function listeningInodes(text: string, port: number): string[] {
  const hexPort = port.toString(16).toUpperCase().padStart(4, "0");
  const inodes: string[] = [];
  for (const line of text.split("\n")) {
    const columns = line.trim().split(/\s+/);
    // 0A is TCP_LISTEN.
    if (columns[3] === "0A" && columns[1]?.endsWith(`:${hexPort}`) === true && columns[9] !== undefined) {
      inodes.push(columns[9]);
    }
  }
  return inodes;
}

/** `Max open files` of /proc/PID/limits. */
export function parseOpenFiles(text: string): { soft: number; hard: number } | undefined {
  const match = /^Max open files\s+(\d+|unlimited)\s+(\d+|unlimited)/m.exec(text);
  if (match === null) return undefined;
  const limit = (word: string | undefined) =>
    word === "unlimited" ? Number.POSITIVE_INFINITY : Number(word);
  return { soft: limit(match[1]), hard: limit(match[2]) };
}

/** The C library among the files mapped into a process (/proc/PID/maps). */
export function libcIn(maps: string): "glibc" | "musl" | "unknown" {
  if (/ld-musl-|libc\.musl-/.test(maps)) return "musl";
  return /\/libc(-[\d.]+)?\.so/.test(maps) ? "glibc" : "unknown";
}

/** A value of /proc/PID/environ. */
export function environValue(environ: string, name: string): string | undefined {
  return environ
    .split("\0")
    .find((entry) => entry.startsWith(`${name}=`))
    ?.slice(name.length + 1);
}

/** A file of /proc; undefined when it is not there or not ours to read. */
export function readProc(path: string): string | undefined {
  try {
    return readFileSync(`/proc/${path}`, "utf8");
  } catch {
    return undefined;
  }
}

export function processIds(): number[] {
  try {
    return readdirSync("/proc")
      .map(Number)
      .filter((pid) => Number.isInteger(pid) && pid > 0);
  } catch {
    return [];
  }
}

export function processInfo(pid: number): ProcessInfo | undefined {
  const name = readProc(`${pid}/comm`)?.trim();
  return name === undefined ? undefined : { pid, name };
}

/** The process that has one of these sockets open; a `pid` of 0 when none that we may look into has. */
export function ownerOf(inodes: readonly string[]): ProcessInfo {
  const wanted = new Set(inodes.map((inode) => `socket:[${inode}]`));
  for (const pid of processIds()) {
    let descriptors: string[];
    try {
      descriptors = readdirSync(`/proc/${pid}/fd`);
    } catch {
      // Another user's process, or one that has just ended.
      continue;
    }
    for (const descriptor of descriptors) {
      try {
        if (wanted.has(readlinkSync(`/proc/${pid}/fd/${descriptor}`)))
          return processInfo(pid) ?? { pid, name: "?" };
      } catch {
        // Closed meanwhile.
      }
    }
  }
  return { pid: 0, name: "" };
}

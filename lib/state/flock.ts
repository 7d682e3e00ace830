/**
 * The kernel lock that keeps two providers off one claims table. flock(2) belongs to the open file, so the
 * kernel frees it however the process ends, and, unlike fcntl locks (which SQLite takes), opening and
 * closing the same file elsewhere in the process does not. Through bun:ffi it costs
 * 0.5 MB of RSS in a program that also opens a store (1.5 MB in an empty one), of which 0.1 MB is anonymous;
 * an SQLite lock would cost 0.2 MB beside the ledger.
 */
import { dlopen, FFIType } from "bun:ffi";

/** `unavailable`: no lock can be taken at all; running on regardless would be running unlocked. */
export type LockAnswer = "taken" | "held" | { unavailable: string };

const LOCK_EX = 2;
const LOCK_NB = 4;

type Flock = (fd: number, operation: number) => number;

let loaded: Flock | { unavailable: string } | undefined;

/** File names of the C library for an architecture of Bun's: glibc's, then musl's. */
export function libcNames(arch: string): string[] {
  const musl = arch === "arm64" ? "aarch64" : "x86_64";
  return ["libc.so.6", `libc.musl-${musl}.so.1`, `/lib/ld-musl-${musl}.so.1`];
}

/** Loads flock from the first library of `names` that has it. */
export function loadFlock(names: string[]): Flock | { unavailable: string } {
  const reasons: string[] = [];
  for (const name of names) {
    try {
      return dlopen(name, { flock: { args: [FFIType.i32, FFIType.i32], returns: FFIType.i32 } }).symbols
        .flock;
    } catch (error) {
      reasons.push((error as Error).message);
    }
  }
  return { unavailable: `flock could not be loaded from the C library: ${reasons.join("; ")}` };
}

/**
 * Takes an exclusive flock on an open descriptor without waiting. `held` also covers a file system that
 * knows no locks: flock's errno is out of reach here, and both mean that this process may not go on.
 */
export function flock(fd: number): LockAnswer {
  loaded ??= loadFlock(libcNames(process.arch));
  if (typeof loaded !== "function") return loaded;
  return loaded(fd, LOCK_EX | LOCK_NB) === 0 ? "taken" : "held";
}

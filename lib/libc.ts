/**
 * The C library through bun:ffi, for the few calls that neither Bun nor Node has. Loaded once: each load and each
 * call costs memory (docs/decisions/core-dumps.md), so callers share this one.
 */
import { dlopen, FFIType } from "bun:ffi";

/** The calls, or why there are none. */
export type Libc = LibcCalls | { unavailable: string };

export interface LibcCalls {
  /** flock(2). 0, or -1 with an errno that is out of reach here. */
  flock(fd: number, operation: number): number;
  /** prctl(2) with the operations whose arguments fit into 31 bits. */
  prctl(operation: number, a: number, b: number, c: number, d: number): number;
  /** madvise(2). 0, or -1. An address of a user's process fits into a number. */
  madvise(address: number, bytes: number, advice: number): number;
}

const { i32, u64 } = FFIType;
let loaded: Libc | undefined;

/** The C library of this machine. */
export function libc(): Libc {
  loaded ??= loadLibc(libcNames(process.arch));
  return loaded;
}

/** File names of the C library for an architecture of Bun's: glibc's, then musl's. */
export function libcNames(arch: string): string[] {
  const musl = arch === "arm64" ? "aarch64" : "x86_64";
  return ["libc.so.6", `libc.musl-${musl}.so.1`, `/lib/ld-musl-${musl}.so.1`];
}

/** Loads the calls from the first library of `names` that has them. */
export function loadLibc(names: string[]): Libc {
  const reasons: string[] = [];
  for (const name of names) {
    try {
      return dlopen(name, {
        flock: { args: [i32, i32], returns: i32 },
        prctl: { args: [i32, i32, i32, i32, i32], returns: i32 },
        madvise: { args: [u64, u64, i32], returns: i32 },
      }).symbols;
    } catch (error) {
      reasons.push(error instanceof Error ? error.message : String(error));
    }
  }
  return { unavailable: `the C library could not be loaded: ${reasons.join("; ")}` };
}

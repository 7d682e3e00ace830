/**
 * The kernel lock that keeps two providers off one claims table. flock(2) belongs to the open file, so the
 * kernel frees it however the process ends, and, unlike fcntl locks (which SQLite takes), opening and
 * closing the same file elsewhere in the process does not. Through bun:ffi this costs 1.5 MB of RSS, of
 * which 0.1 MB is not shared with the binary's pages on disk.
 */
import { libc } from "../libc.ts";

/** `unavailable`: no lock can be taken at all; running on regardless would be running unlocked. */
export type LockAnswer = "taken" | "held" | { unavailable: string };

const LOCK_EX = 2;
const LOCK_NB = 4;

/**
 * Takes an exclusive flock on an open descriptor without waiting. `held` also covers a file system that
 * knows no locks: flock's errno is out of reach here, and both mean that this process may not go on.
 */
export function flock(fd: number): LockAnswer {
  const calls = libc();
  if ("unavailable" in calls) return calls;
  return calls.flock(fd, LOCK_EX | LOCK_NB) === 0 ? "taken" : "held";
}

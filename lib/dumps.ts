/**
 * Keeps the process's memory, which holds every release credential, out of core dumps and out of reach of other
 * processes of the same user (docs/decisions/core-dumps.md).
 */
import { type Libc, libc } from "./libc.ts";

/** prctl(2), linux/prctl.h. */
const PR_GET_DUMPABLE = 3;
const PR_SET_DUMPABLE = 4;

/**
 * Makes the process undumpable: no core dump whatever the limits and the host's core_pattern say, no ptrace and no
 * reading of its memory but by root. Costs nothing that the daemon does; a child process is dumpable again.
 *
 * @returns undefined when that is so, else why it is not
 */
export function denyDumps(calls: Libc = libc()): string | undefined {
  if ("unavailable" in calls) return calls.unavailable;
  calls.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  // Asked back, since a sandbox of system calls may answer the first one without doing it.
  return calls.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) === 0
    ? undefined
    : "the kernel refused prctl(PR_SET_DUMPABLE)";
}

import { fstatSync } from "node:fs";

/** Major number of /dev/null, /dev/zero and their kin (Linux devices.txt). */
const memoryDevices = 1;

/**
 * Whether a person may be watching the file descriptor: a character device that is not /dev/null. By fstat,
 * because process.stdout costs 3 MB of RSS and node:tty's isatty nearly as much.
 */
export function isTerminal(fd: number): boolean {
  try {
    const stat = fstatSync(fd);
    return stat.isCharacterDevice() && ((stat.rdev >> 8) & 0xfff) !== memoryDevices;
  } catch {
    // Closed: nobody is watching.
    return false;
  }
}

/** What the kernel says about a process: memory, CPU, descriptors. Linux only. */
import { readdirSync, readFileSync } from "node:fs";

export interface Memory {
  /** Resident set, MB (2^20 bytes). */
  rssMb: number;
  /** Of it: heap, stacks, whatever no file backs. */
  anonMb: number;
  /** Of it: pages of files, the program's own text above all. */
  fileMb: number;
}

const kbPerMb = 1024;

/** Memory of a living process. Throws when there is none. */
export function memoryOf(pid: number): Memory {
  const text = readFileSync(`/proc/${pid}/status`, "utf8");
  const kb = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, "m").exec(text)?.[1] ?? "NaN");
  return { rssMb: kb("VmRSS") / kbPerMb, anonMb: kb("RssAnon") / kbPerMb, fileMb: kb("RssFile") / kbPerMb };
}

/** The largest resident set so far, MB. */
export function peakOf(pid: number): number {
  return Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) / kbPerMb;
}

/** CPU seconds, user and system, of all threads, ended ones too (proc(5), in ticks of 10 ms). */
export function cpuSecondsOf(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  // The name in parentheses may hold anything; after it comes field 3.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

export function descriptorsOf(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length;
}

/**
 * The sandboxd stand-in's memory across a kill: one JSON line per change of a VM, appended before the answer.
 */
import { closeSync, openSync, readFileSync, renameSync, writeFileSync, writeSync } from "node:fs";
import type { Vm } from "./vms.ts";

export interface Journal {
  /** VMs of earlier runs, ended ones included, in order of grant. */
  restored: Vm[];
  /** Appends the VM as it is now. Throws when it cannot be written. */
  persist(vm: Vm): void;
  close(): void;
}

/** Opens or creates the file (mode 0600: it holds tokens) and compacts it. Throws on a line it cannot read. */
export function openJournal(path: string): Journal {
  const vms = new Map<string, Vm>();
  let text = "";
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  // Without a newline at its end the last line was torn by the kill.
  const lines = text.split("\n").slice(0, -1);
  for (const [at, line] of lines.entries()) {
    try {
      const vm = JSON.parse(line) as Vm;
      vms.set(vm.id, vm);
    } catch {
      throw new Error(`${path}, line ${at + 1}: not a VM; remove the file to start empty`);
    }
  }
  const fresh = `${path}.new`;
  writeFileSync(fresh, [...vms.values()].map((vm) => `${JSON.stringify(vm)}\n`).join(""), { mode: 0o600 });
  renameSync(fresh, path);
  const file = openSync(path, "a", 0o600);
  return {
    restored: [...vms.values()],
    persist: (vm) => void writeSync(file, `${JSON.stringify(vm)}\n`),
    close: () => closeSync(file),
  };
}

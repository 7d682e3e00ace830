/** A small disk of its own for a state directory: it can be filled, freed, and taken away. */
import { closeSync, mkdirSync, openSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";

const ballastChunk = new Uint8Array(64 << 10);

export interface Disk extends Disposable {
  /** Leaves not a single page free. */
  fill(): void;
  /** Frees what `fill` took. */
  free(): void;
}

/** Mounts a tmpfs at `path` (made when missing). Throws where nothing may be mounted: scripts/e2e/run makes a place where it may. */
export function mountDisk(path: string, kib: number): Disk {
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const run = (...command: string[]) => {
    const { success, stderr } = Bun.spawnSync(command, { stdout: "ignore", stderr: "pipe" });
    if (!success) throw new Error(`${command.join(" ")}: ${stderr.toString().trim()}`);
  };
  run("mount", "-t", "tmpfs", "-o", `size=${kib}k,mode=0700`, "tmpfs", path);
  // A name that the provider takes for its own, or it would call the directory shared.
  const ballast = join(path, "claims.json.ballast");
  return {
    fill() {
      const fd = openSync(ballast, "a");
      try {
        for (let chunk = ballastChunk; chunk.length > 0; ) {
          try {
            if (writeSync(fd, chunk) < chunk.length) chunk = chunk.subarray(0, chunk.length >> 1);
          } catch (error) {
            if ((error as { code?: string }).code !== "ENOSPC") throw error;
            chunk = chunk.subarray(0, chunk.length >> 1);
          }
        }
      } finally {
        closeSync(fd);
      }
    },
    free: () => rmSync(ballast, { force: true }),
    // Lazily: whoever still has a file open there keeps it.
    [Symbol.dispose]: () => run("umount", "--lazy", path),
  };
}

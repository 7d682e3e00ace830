import { statSync } from "node:fs";
import { type Clock, isRecent, systemClock } from "./clock.ts";
import { fileCheckMs } from "./credential-source.ts";
import type { CredentialSource } from "./credentials.ts";

export interface FollowOptions {
  /** The kubeconfig's files. */
  files: readonly string[];
  /** What was read from them at the start. */
  first: CredentialSource;
  /** Reads them again; the reason, with the next step, where they cannot be used. Never rejects. */
  reload: () => Promise<CredentialSource | { why: string }>;
  clock?: Clock;
  /** The files changed and cannot be used; the last good ones are. */
  onProblem?: (why: string) => void;
}

/**
 * A credential that follows the kubeconfig it stands in: tools that renew one (kubeadm, cloud agents) write the
 * whole file anew. The files are looked at as often as those a kubeconfig names, one stat each; a request never
 * waits for the reading unless the API server has just refused the old credential.
 */
export function followKubeconfig(options: FollowOptions): CredentialSource {
  const { files, reload, clock = systemClock, onProblem = () => {} } = options;
  let source = options.first;
  let stamp = stampOf(files);
  let checkedAtMs = clock.now();
  let reading: Promise<void> | undefined;
  let refused = false;
  let said = "";

  async function read(seen: string): Promise<void> {
    const next = await reload();
    if ("why" in next) {
      if (next.why !== said) onProblem(`${next.why}; the last good kubeconfig is used`);
      said = next.why;
      // Half a file has no change to come that would be noticed by itself.
      stamp = "";
      return;
    }
    said = "";
    stamp = seen;
    const [old, fresh] = [source.current(), next.current()];
    // Written anew with the same content: the same credential keeps the connections.
    if (!Bun.deepEquals(old, fresh)) source = next;
  }

  function look(): void {
    checkedAtMs = clock.now();
    const seen = stampOf(files);
    if (seen === stamp || reading !== undefined) return;
    reading = read(seen).finally(() => {
      reading = undefined;
    });
  }

  return {
    current() {
      if (refused || !isRecent(clock.now(), checkedAtMs, fileCheckMs)) look();
      const waits = refused && reading !== undefined;
      refused = false;
      return waits ? (reading ?? Promise.resolve()).then(() => source.current()) : source.current();
    },
    rejected(credential) {
      refused = true;
      source.rejected(credential);
    },
  };
}

/** Changes when one of the files is written or replaced; links are followed. */
function stampOf(files: readonly string[]): string {
  return files
    .map((file) => {
      try {
        const { ino, size, mtimeMs, ctimeMs } = statSync(file);
        return `${ino}:${size}:${mtimeMs}:${ctimeMs}`;
      } catch {
        return "unreadable";
      }
    })
    .join(";");
}

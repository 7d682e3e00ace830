import type { Note } from "../provider/types.ts";

/** A Kubernetes event that a note asks for (facts: virtual-kubelet, Events). */
export interface PodEvent {
  type: "Normal" | "Warning";
  reason:
    | "ProviderCreateSuccess"
    | "ProviderCreateFailed"
    | "ProviderUpdateSuccess"
    | "ProviderUpdateFailed"
    | "ProviderDeleteSuccess"
    | "ProviderDeleteFailed";
  message: string;
}

export interface NoteStyle {
  level: "debug" | "info" | "warn" | "error";
  /** What happened, in the words of the log. */
  message: string;
  /** Whether it is about a VM's fate and belongs into the ledger. */
  audit: boolean;
  event?: PodEvent;
}

const SENTENCES: Record<Note["kind"], [NoteStyle["level"], string, boolean]> = {
  claimed: ["info", "claimed a sandbox for the Pod", true],
  adopted: ["info", "the Pod adopted the sandbox kept for its owner", true],
  refused: ["warn", "no sandbox for the Pod", true],
  recovered: ["warn", "recovered a sandbox that no row held", true],
  preserved: ["info", "preserved the sandbox: its Pod is gone, its authority is not proven gone", true],
  release_decided: ["info", "the sandbox will be released", true],
  released: ["info", "released the sandbox", true],
  release_failed: ["warn", "release failed and will be retried", true],
  displaced: ["warn", "set a claim aside: its name has a new holder", true],
  superseded: ["warn", "the sandbox serves nobody: its owner's Pod runs elsewhere", true],
  hibernated: ["info", "hibernated the sandbox", true],
  hibernate_refused: ["warn", "the sandbox cannot hibernate", true],
  woken: ["info", "woke the sandbox", true],
  renewed: ["info", "renewed the sandbox's lease", true],
  renew_refused: ["warn", "sandboxd will not renew the lease", true],
  lease_moved: ["info", "sandboxd moved the sandbox's deadline", true],
  lease_expired: ["warn", "the sandbox's lease ended", true],
  lost: ["error", "the sandbox is gone", true],
  vouched: ["info", "sandboxd vouches for the claim", true],
  dropped: ["info", "dropped a claim whose sandbox is gone", true],
  orphan: ["warn", "possible orphan: reported, never released", true],
  external: ["info", "a sandbox of another party", true],
  stale: ["warn", "sandboxd does not list a claim of ours", true],
  settled: ["info", "returned a sandbox that could not be committed", true],
  unrecoverable: ["warn", "a sandbox was left alone", true],
  uncommitted: ["error", "the claim table could not be written", true],
  rescheduled: ["info", "deleted the Pod so that it is made elsewhere", true],
  finalized: ["debug", "finalized the Pod", false],
  publish_failed: ["warn", "the Pod could not be updated and will be retried", false],
};

/**
 * How a note reads in the log, whether the ledger keeps it, and which Kubernetes event it makes. Events are
 * about a Pod, so notes without a Pod UID make none.
 */
export function styleOf(note: Note): NoteStyle {
  const [level, message, audit] = SENTENCES[note.kind];
  return { level, message, audit, event: note.podUID === "" ? undefined : eventOf(note) };
}

/** What a kind of note says, for whoever reads recorded ones; undefined for a kind of another version's. */
export function sentenceOf(kind: string): string | undefined {
  return Object.hasOwn(SENTENCES, kind) ? SENTENCES[kind as Note["kind"]][1] : undefined;
}

function eventOf(note: Note): PodEvent | undefined {
  const normal = (reason: PodEvent["reason"], message: string): PodEvent => ({
    type: "Normal",
    reason,
    message,
  });
  const warning = (reason: PodEvent["reason"], message: string): PodEvent => ({
    type: "Warning",
    reason,
    message,
  });
  switch (note.kind) {
    case "claimed":
      return normal("ProviderCreateSuccess", `claimed sandbox ${note.id} from pool ${note.reason}`);
    case "adopted":
    case "recovered":
      return normal("ProviderCreateSuccess", `${note.kind} sandbox ${note.id}: ${note.reason}`);
    case "refused":
    case "rescheduled":
      return warning("ProviderCreateFailed", note.reason);
    case "released":
      return normal("ProviderDeleteSuccess", `released sandbox ${note.id}: ${note.reason}`);
    case "preserved":
      return normal("ProviderDeleteSuccess", `preserved sandbox ${note.id}: ${note.reason}`);
    case "release_failed":
      return warning("ProviderDeleteFailed", `sandbox ${note.id} could not be released: ${note.reason}`);
    case "lost":
    case "lease_expired":
      return warning("ProviderUpdateFailed", `sandbox ${note.id}: ${note.reason}`);
    default:
      return undefined;
  }
}

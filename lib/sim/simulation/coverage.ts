import type { Event, Note } from "../../provider/types.ts";
import type { World } from "./world.ts";

/** Counts which events met which states of a Pod key. */
export interface Coverage {
  hit(world: World, event: Event): void;
  said(note: Note): void;
  readonly pairs: ReadonlyMap<string, number>;
  readonly events: ReadonlySet<string>;
  readonly states: ReadonlySet<string>;
  /** Decisions by kind, as the core told them. */
  readonly decisions: ReadonlyMap<string, number>;
}

export function createCoverage(): Coverage {
  const pairs = new Map<string, number>();
  const events = new Set<string>();
  const states = new Set<string>();
  const decisions = new Map<string, number>();
  return {
    pairs,
    events,
    states,
    decisions,
    said(note) {
      const what = note.reason.startsWith("superseded:") ? `${note.kind} (superseded)` : note.kind;
      decisions.set(what, (decisions.get(what) ?? 0) + 1);
    },
    hit(world, event) {
      const label = labelOf(event);
      const key = keyOf(event);
      const state = key === undefined ? "all" : stateOf(world, key);
      events.add(label);
      states.add(state);
      const pair = `${label} × ${state}`;
      pairs.set(pair, (pairs.get(pair) ?? 0) + 1);
    },
  };
}

function keyOf(event: Event): string | undefined {
  if (event.type === "pod") return event.pod.key;
  if (event.type === "podGone") return event.key;
  if ("effect" in event && event.effect.kind !== "list") return event.effect.key;
  return undefined;
}

/** The event's kind and outcome. */
function labelOf(event: Event): string {
  switch (event.type) {
    case "pod": {
      const { pod } = event;
      if (pod.deleting) return "pod deleting";
      return `pod ${pod.phase}`;
    }
    case "claimed":
      return event.result.ok ? "claim granted" : event.result.lost ? "claim lost" : "claim refused";
    case "found":
    case "listed":
      return `${event.type} ${event.result.ok ? (event.result.rows.length === 0 ? "nothing" : "rows") : "failed"}`;
    case "read":
      return `read ${event.result.ok ? "row" : event.result.absent ? "absent" : "failed"}`;
    case "asked": {
      const { owner } = event;
      if (owner.kind === "failed") return "asked failed";
      if (owner.kind === "not_found") return owner.named ? "asked gone" : "asked 404";
      return `asked ${owner.deleting ? "deleting" : owner.expired ? "expired" : owner.suspended ? "suspended" : "alive"}`;
    }
    case "called":
      return `${event.effect.kind} ${event.result.ok ? "ok" : event.result.kind}`;
    default:
      return event.type;
  }
}

/** What is known of a key in durable state, in the Pod the API holds, and in the call under way. */
function stateOf(world: World, key: string): string {
  const table = world.disk.durable();
  const row = table.rows.get(key);
  const pod = world.cluster.pods.get(key);
  let held = "no row";
  if (table.intents.has(key)) held = "intent";
  else if (row !== undefined) {
    if (!world.process?.vouched.has(row.id)) held = "quarantined";
    else held = row.podUID === pod?.metadata.uid ? "own row" : "other's row";
  }
  for (const entry of table.displaced.values()) if (entry.key === key) held += "+displaced";
  for (const entry of table.releasing.values()) if (entry.key === key) held += "+releasing";
  let live = "no Pod";
  if (pod !== undefined) {
    if (pod.spec.nodeName !== world.plan.options.nodeName) live = "elsewhere";
    else if (pod.metadata.deletionTimestamp !== undefined) live = "deleting";
    else live = String(pod.status.phase);
  }
  return `${live}, ${held}`;
}

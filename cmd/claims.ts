import { existsSync } from "node:fs";
import { resolve } from "node:path";
import type { Intent } from "../lib/provider/types.ts";
import { type ReadOnlyTable, readTableReadOnly, type ShownRow } from "../lib/state/index.ts";
import { count, span } from "../lib/words.ts";
import { statePathArg, statePathOf } from "./state-path.ts";
import { defineVerb, exitDone, exitFailed } from "./verb.ts";

/** `vk-sandbox claims`: the table as it is on disk, beside the running daemon, without credentials. */
export const claims = defineVerb({
  name: "claims",
  summary:
    "Show the claims table: who holds which VM until when. Tokens are never shown; the provider may run.",
  args: {
    ...statePathArg,
    json: { type: "boolean", description: "Print one JSON object, times as RFC 3339.", default: false },
    wide: { type: "boolean", description: "Print UIDs in full.", default: false },
  },
  examples: [
    "claims",
    "claims --wide --state-path /var/lib/vk-sandbox/claims.json",
    "claims --json | jq -r '.claims[].id'",
  ],
  async run(args, { env }) {
    const path = resolve(statePathOf(args["state-path"], env));
    const table = readTableReadOnly(path);
    if (!table.ok) {
      await Bun.write(Bun.stderr, `vk-sandbox: ${table.message}\n`);
      return exitFailed;
    }
    for (const warning of table.warnings) await Bun.write(Bun.stderr, `vk-sandbox: ${warning}\n`);
    const shown = claimsOf(table);
    // A provider writes its table when it starts: a path without one is a wrong path, and not a host without claims.
    if (shown.length === 0 && !existsSync(path)) {
      await Bun.write(
        Bun.stderr,
        `vk-sandbox: ${path} does not exist: no provider has started with it. Is --state-path (VK_STATE_PATH) the provider's?\n`,
      );
      return exitFailed;
    }
    const nowMs = Date.now();
    if (args.json) {
      await Bun.write(
        Bun.stdout,
        `${JSON.stringify({ state: path, claims: shown.map((claim) => jsonOf(claim, nowMs)) }, null, 2)}\n`,
      );
      return exitDone;
    }
    if (shown.length === 0) {
      await Bun.write(Bun.stdout, `No claims: ${path} holds none\n`);
      return exitDone;
    }
    await Bun.write(Bun.stdout, renderClaims(shown, nowMs, args.wide));
    return exitDone;
  },
});

/**
 * `row`: held for its key, by a running Pod or preserved for its owner; which of the two is not in the table.
 * `releasing`: on its way back to sandboxd. `displaced`: its key has another holder now, its own owner is still
 * being asked. `intent`: asked for, and sandboxd's answer is not known yet.
 */
export type ClaimState = "row" | "releasing" | "displaced" | "intent";

/** One line of the table. An intent has no id, no address and no deadline yet. */
export interface ShownClaim {
  key: string;
  state: ClaimState;
  id: string;
  podUID: string;
  authority: string;
  owner?: ShownRow["owner"];
  address: string;
  /** When it was claimed; for an intent, when it was asked for. */
  claimedAtMs: number;
  /** 0: kept for ever. Undefined: not granted yet. */
  deadlineMs?: number;
  supersededAtMs?: number;
  /** Why it is being released. */
  reason?: string;
}

/** Everything the table holds, by key; a key's row first. */
export function claimsOf(table: ReadOnlyTable): ShownClaim[] {
  const ofRow = (key: string, state: ClaimState, row: ShownRow, reason?: string): ShownClaim => ({
    key,
    state,
    ...row,
    reason,
  });
  const ofIntent = (key: string, intent: Intent): ShownClaim => ({
    key,
    state: "intent",
    id: "",
    podUID: intent.podUID,
    authority: intent.authority,
    owner: intent.owner,
    address: "",
    claimedAtMs: intent.atMs,
  });
  const all = [
    ...[...table.rows].map(([key, row]) => ofRow(key, "row", row)),
    ...[...table.intents].map(([key, intent]) => ofIntent(key, intent)),
    ...table.displaced.map(({ key, row }) => ofRow(key, "displaced", row)),
    ...table.releasing.map(({ key, row, reason }) => ofRow(key, "releasing", row, reason)),
  ];
  return all.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
}

const timeOf = (ms: number) => new Date(ms).toISOString();

/** For machines: every field by its name, and what a human would compute from it. */
export function jsonOf(claim: ShownClaim, nowMs: number): Record<string, unknown> {
  const { key, state, id, podUID, authority, owner, address, deadlineMs, supersededAtMs, reason } = claim;
  return {
    key,
    state,
    id,
    podUID,
    authority,
    owner,
    address,
    claimedAt: timeOf(claim.claimedAtMs),
    // null: kept for ever, or not granted yet.
    deadline: deadlineMs === undefined || deadlineMs === 0 ? null : timeOf(deadlineMs),
    secondsLeft:
      deadlineMs === undefined || deadlineMs === 0 ? null : Math.round((deadlineMs - nowMs) / 1000),
    supersededAt: supersededAtMs === undefined ? undefined : timeOf(supersededAtMs),
    reason,
  };
}

const uidChars = 8;

/** The table for people. UIDs are cut unless `wide`: eight characters tell them apart. */
export function renderClaims(claims: readonly ShownClaim[], nowMs: number, wide: boolean): string {
  const uid = (text: string) => (wide ? text : text.slice(0, uidChars));
  const authority = ({ owner, authority: who, podUID }: ShownClaim): string => {
    if (owner !== undefined) return `${owner.kind}/${owner.name} ${uid(who)}`;
    if (who === "") return "none (old table)";
    return who === podUID ? "the Pod itself" : uid(who);
  };
  const deadline = ({ deadlineMs }: ShownClaim): string => {
    if (deadlineMs === undefined) return "-";
    if (deadlineMs === 0) return "never";
    return deadlineMs < nowMs ? `${span(nowMs - deadlineMs)} ago` : `in ${span(deadlineMs - nowMs)}`;
  };
  const rows = claims.map((claim) => [
    claim.key,
    claim.id || "-",
    claim.supersededAtMs === undefined ? claim.state : `${claim.state}, superseded`,
    uid(claim.podUID),
    authority(claim),
    claim.address || "-",
    `${span(Math.max(0, nowMs - claim.claimedAtMs))} ago`,
    deadline(claim),
  ]);
  const lines = [
    ["POD", "CLAIM", "STATE", "POD UID", "AUTHORITY", "ADDRESS", "CLAIMED", "DEADLINE"],
    ...rows,
  ];
  const widths =
    lines[0]?.map((_, column) => Math.max(...lines.map((line) => line[column]?.length ?? 0))) ?? [];
  const text = lines.map((line) =>
    line
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join("  ")
      .trimEnd(),
  );
  return `${text.join("\n")}\n\n${totals(claims)}\n`;
}

function totals(claims: readonly ShownClaim[]): string {
  const of = (state: ClaimState) => claims.filter((claim) => claim.state === state).length;
  const parts = [count(of("row"), "claim")];
  if (of("intent") > 0) parts.push(`${of("intent")} asked for, not answered yet`);
  if (of("displaced") > 0)
    parts.push(`${of("displaced")} displaced: another Pod has the name, the owner is still asked`);
  if (of("releasing") > 0) parts.push(`${of("releasing")} on the way back to sandboxd`);
  return `${parts.join("; ")}.`;
}

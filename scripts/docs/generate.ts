/** The parts of docs/ that are made from declarations in the code: flags and metrics. */
import { flagList, groups } from "../../lib/config/index.ts";
import { createMetrics } from "../../lib/metrics/metrics.ts";
import { createTelemetry } from "../../lib/pods/telemetry.ts";
import type { Provider } from "../../lib/provider/provider.ts";

/** Pages that have a generated part, and what makes it. */
export const generated: Record<string, () => string> = {
  "docs/configuration.md": flagTables,
  "docs/metrics.md": metricTable,
};

const begin = "<!-- made by scripts/docs/write: do not edit by hand -->";
const end = "<!-- end -->";

/**
 * A page with its generated part written anew.
 *
 * @throws when the page has not exactly one place for it
 */
export function withPart(page: string, part: string): string {
  const pieces = page.split(begin);
  const [before, rest = ""] = pieces;
  const at = rest.indexOf(end);
  if (pieces.length !== 2 || at < 0) throw new Error(`the page needs one "${begin}" and "${end}" after it`);
  return `${before}${begin}\n\n${part}\n${rest.slice(at)}`;
}

/** Every flag, a table for each group of help. */
function flagTables(): string {
  return groups
    .map((group) => {
      const rows = flagList
        .filter((flag) => flag.group === group)
        .map(({ name, kind, env, default: fallback, help, example }) =>
          row([
            `\`--${name}${kind.hint === "" ? "" : ` ${kind.hint}`}\``,
            `\`${env}\``,
            fallback === undefined ? "" : `\`${fallback}\``,
            `${help} \`${example}\``,
          ]),
        );
      return `### ${group}\n\n${table(["Flag", "Variable", "Default", "Meaning and example"], rows)}`;
    })
    .join("\n");
}

export interface MetricFact {
  name: string;
  type: string;
  /** Names of its labels, without a histogram's `le`. */
  labels: string[];
  help: string;
}

/** Every metric the daemon exports at /metrics, read from an exposition in which each has a sample. */
export function metricFacts(): MetricFact[] {
  const metrics = createMetrics();
  const counts = { held: 1, preserved: 1, quarantined: 1, displaced: 1, releasing: 1 };
  const provider = { counts: () => ({ ...counts, pods: 1, intents: 1, orphans: 1, external: 1 }) };
  const telemetry = createTelemetry(
    metrics,
    {
      // All that telemetry reads of it.
      provider: () => provider as unknown as Provider,
      pools: () => [{ template: "t", net: "none", size: "small", warm: 1, target: 1 }],
      store: () => ({ journalBytes: 1, snapshotBytes: 1, unsyncedBytes: 1, compactions: 1 }),
      watch: () => ({ connects: 1, relists: 1, events: 1, garbage: 1, silences: 1 }),
      waiting: () => 1,
      inFlight: () => 1,
      ready: () => true,
      leaseRenewedAtMs: () => 1,
      build: { version: "1", commit: "c" },
    },
    () => 1,
  );
  const about = { key: "n/p", id: "sb_1", podUID: "u", reason: "r" };
  telemetry.onNote({ kind: "claimed", ...about });
  telemetry.onNote({ kind: "refused", ...about, cause: "draining" });
  telemetry.onNote({ kind: "preserved", ...about });
  telemetry.onHandover(1);
  telemetry.onCommit(1, true);
  telemetry.onCommit(1, false);
  telemetry.onEffect("claim", 1);
  telemetry.onRequest("GET", 200, 1);
  telemetry.onFault();

  const facts = new Map<string, MetricFact>();
  for (const line of metrics.text().split("\n")) {
    const [, what, name = "", rest = ""] = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line) ?? [];
    if (what === "HELP") facts.set(name, { name, help: rest, type: "", labels: [] });
    const fact = facts.get(name);
    if (what === "TYPE" && fact !== undefined) fact.type = rest;
    const [, sample = "", inner = ""] = /^([a-z_]+)\{(.*)\} /.exec(line) ?? [];
    const owner = facts.get(sample) ?? facts.get(sample.replace(/_(bucket|sum|count)$/, ""));
    if (owner !== undefined)
      owner.labels = [...inner.matchAll(/([a-z_]+)="/g)].map((m) => m[1] ?? "").filter((l) => l !== "le");
  }
  return [...facts.values()];
}

function metricTable(): string {
  const rows = metricFacts().map(({ name, type, labels, help }) =>
    row([`\`${name}\``, type, labels.map((l) => `\`${l}\``).join(" "), help]),
  );
  return table(["Metric", "Type", "Labels", "Meaning"], rows);
}

function table(head: string[], rows: string[]): string {
  return `${row(head)}|${"---|".repeat(head.length)}\n${rows.join("")}`;
}

function row(cells: string[]): string {
  return `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |\n`;
}

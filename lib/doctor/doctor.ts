/** The door of lib/doctor: a preflight that changes nothing. */
import type { RunConfig } from "../config/index.ts";
import { clusterChecks } from "./cluster.ts";
import { type Check, createContext } from "./context.ts";
import { type Finding, fail } from "./finding.ts";
import { hostChecks } from "./host.ts";
import type { Probes } from "./probes.ts";
import { sandboxdChecks } from "./sandboxd.ts";
import { stateChecks } from "./state.ts";

export { type Finding, type Group, groups, type Status, type Tally, tally } from "./finding.ts";
export { type MachineOptions, machineProbes } from "./machine.ts";
export type { Probes } from "./probes.ts";
export { renderReport } from "./report.ts";

/** Every check, in the order of the report. */
export const checks: readonly Check[] = [...hostChecks, ...stateChecks, ...sandboxdChecks, ...clusterChecks];

/** Longest time for one check; the calls it makes have shorter timeouts of their own. */
export const checkTimeoutMs = 30_000;

export interface DoctorOptions {
  config: RunConfig;
  probes: Probes;
  timeoutMs?: number;
  /** How many checks are done, and which are still under way. For a progress line. */
  onProgress?: (done: number, total: number, waitingFor: string[]) => void;
  /** For tests. */
  checks?: readonly Check[];
}

/**
 * Makes all checks side by side and returns a finding for each, in the order of the report. Never rejects: a
 * check that takes too long, or that throws, is a finding too.
 *
 * @example
 * const findings = await runDoctor({ config, probes: machineProbes({ config, env: process.env }) });
 */
export async function runDoctor(options: DoctorOptions): Promise<Finding[]> {
  const { config, probes, timeoutMs = checkTimeoutMs, onProgress = () => {} } = options;
  const all = options.checks ?? checks;
  const context = createContext(config, probes);
  const waiting = new Set(all.map((check) => check.id));
  const report = () => onProgress(all.length - waiting.size, all.length, [...waiting]);
  report();
  return Promise.all(
    all.map(async ({ id, group, why, run }): Promise<Finding> => {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const late = new Promise<ReturnType<typeof fail>>((resolve) => {
        timer = setTimeout(
          () =>
            resolve(
              fail(
                `no result within ${timeoutMs / 1000} s`,
                "Run it again; if it stays so, look at what this check calls.",
              ),
            ),
          timeoutMs,
        );
      });
      try {
        // `run` may throw before it returns a promise, so it is called inside one.
        const outcome = await Promise.race([(async () => run(context))(), late]);
        return {
          id,
          group,
          status: outcome.status,
          found: outcome.found,
          why: outcome.why ?? why,
          todo: outcome.todo ?? "",
        };
      } catch (error) {
        const found = `the check itself failed: ${error instanceof Error ? error.message : String(error)}`;
        return {
          id,
          group,
          status: "fail",
          found,
          why,
          todo: "Report this as a fault of vk-sandbox, with the line above.",
        };
      } finally {
        clearTimeout(timer);
        waiting.delete(id);
        report();
      }
    }),
  );
}

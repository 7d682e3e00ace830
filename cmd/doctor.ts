import { resolve } from "node:path";
import { formatConfigError } from "../lib/config/index.ts";
import { machineProbes, renderReport, runDoctor, tally } from "../lib/doctor/doctor.ts";
import { version } from "../lib/version.ts";
import { defineVerb, exitDone, exitFailed, Misuse } from "./verb.ts";

export const doctor = defineVerb({
  name: "doctor",
  summary:
    "Check host, state, sandboxd and cluster before the provider runs, or while it does; changes nothing.",
  takesRunFlags: true,
  args: {
    json: { type: "boolean", description: "Print one JSON object with all findings.", default: false },
    "admin-kubeconfig": {
      type: "string",
      valueHint: "FILE",
      description:
        "Your own kubeconfig, for what the provider's identity may not see (webhooks, nodes/proxy).",
    },
  },
  examples: [
    "doctor --node-name vk-sandboxd-node1",
    "doctor --json",
    "doctor --admin-kubeconfig ~/.kube/config",
  ],
  async run(args, input) {
    const loaded = input.config();
    if (!loaded.ok) throw new Misuse(loaded.errors.map(formatConfigError).join("\n"));
    const { config } = loaded;
    const { probes, close } = machineProbes({
      config,
      env: input.env,
      version,
      adminKubeconfig: args["admin-kubeconfig"],
    });
    const progress = process.stderr.isTTY && !args.json;
    const findings = await runDoctor({
      config,
      probes,
      onProgress: (done, total, waitingFor) => {
        if (!progress) return;
        const text = `${done} of ${total} checks${done === total ? "" : `, waiting for ${waitingFor[0]}`}`;
        process.stderr.write(done === total ? clearLine : `${clearLine}${text}`);
      },
    });
    close();
    const counts = tally(findings);
    const text = args.json
      ? `${JSON.stringify({ ok: counts.fail === 0, version, node: config.node.name, summary: counts, findings }, null, 2)}\n`
      : renderReport(findings, {
          columns: Math.min(process.stdout.columns ?? 100, 120),
          color: process.stdout.isTTY === true && !input.env.NO_COLOR,
          subject: [
            ["node", config.node.name],
            ["sandboxd", config.sandboxd.url],
            ["state", resolve(config.statePath)],
          ],
        });
    await Bun.write(Bun.stdout, text);
    return counts.fail === 0 ? exitDone : exitFailed;
  },
});

const clearLine = "\r\x1b[K";

/** `vk-sandbox demo`: the main job, step by step, on stand-ins or on a real cluster. */
import { runDemo } from "../lib/sim/demo.ts";
import { defineVerb } from "./verb.ts";

export const demo = defineVerb({
  name: "demo",
  summary: "Show the main job step by step on built-in stand-ins, or on a real cluster.",
  args: {
    kubeconfig: {
      type: "string",
      valueHint: "FILE",
      description:
        "Use this real cluster, with only sandboxd simulated, in a namespace of its own that is removed afterwards.",
    },
    keep: { type: "boolean", description: "Keep the demo's files and print where they are.", default: false },
  },
  examples: ["demo", "demo --kubeconfig ~/.kube/config"],
  run: (args, input) =>
    runDemo({
      kubeconfig: args.kubeconfig,
      keep: args.keep,
      env: input.env,
      // Run from source, the program is Bun and its first argument the script.
      daemon: Bun.main.startsWith("/$bunfs/") ? [process.execPath] : [process.execPath, Bun.main],
    }),
});

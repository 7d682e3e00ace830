import { accessSync, constants } from "node:fs";
import { defaultOf, flags } from "../lib/config/index.ts";
import { explain, gather, renderExplanation, type Subject } from "../lib/explain/index.ts";
import { version } from "../lib/version.ts";
import { statePathArg, statePathOf } from "./state-path.ts";
import { defineVerb, exitDone, exitFailed, Misuse, type VerbInput } from "./verb.ts";

/** `vk-sandbox explain`: the one reason why a Pod is Pending, Failed or as it is. */
export const explainVerb = defineVerb({
  name: "explain",
  summary:
    "Tell why a Pod is Pending, Failed or not Ready: the one reason, what says so, and what to do. Reads the Pod, its Sandbox, Events, Nodes and their inventories, and on the node's host the provider's ledger; changes nothing.",
  args: {
    pod: {
      type: "positional",
      required: false,
      valueHint: "pod",
      description: "NAME or NAMESPACE/NAME of the Pod.",
    },
    sandbox: {
      type: "string",
      valueHint: "NAME",
      description:
        "A Sandbox instead, as NAME or NAMESPACE/NAME: its Pod is looked for, or why there is none.",
    },
    namespace: {
      type: "string",
      alias: "n",
      valueHint: "NAME",
      description: "Namespace of a name without one (default: the kubeconfig's).",
    },
    kubeconfig: { type: "string", valueHint: "FILE", description: "Kubeconfig to use." },
    "kube-context": { type: "string", valueHint: "NAME", description: "Context of the kubeconfig." },
    ...statePathArg,
    json: { type: "boolean", default: false, description: "Print one JSON object." },
  },
  examples: [
    "explain agent-1",
    "explain team-a/agent-1 --json",
    "explain --sandbox agent-1 -n team-a",
    "explain agent-1 --state-path /var/lib/vk-sandbox/claims.json",
  ],
  async run(args, { env }) {
    const asked = args.sandbox ?? args.pod ?? "";
    if (asked === "") throw new Misuse("whose trouble? Name a Pod, or a Sandbox with --sandbox");
    if (args.sandbox !== undefined && args.pod !== undefined)
      throw new Misuse(`${args.pod}: a Pod and --sandbox ${args.sandbox} are two questions; ask one`);
    const statePath = hostPath(args["state-path"], env);
    const { createKubeClient, loadCluster } = await import("../lib/kube/index.ts");
    const loaded = await loadCluster({ env, kubeconfig: args.kubeconfig, context: args["kube-context"] });
    if (!loaded.ok) throw new Misuse(loaded.message);
    const subject = subjectOf(asked, args.namespace ?? loaded.cluster.namespace, args.sandbox !== undefined);
    const client = createKubeClient({ ...loaded.cluster, userAgent: `vk-sandbox-explain/${version}` });
    try {
      const gathered = await gather({ client, subject, statePath, nowMs: Date.now() });
      if (!gathered.ok) {
        await Bun.write(Bun.stderr, `vk-sandbox: ${gathered.why}\n`);
        return exitFailed;
      }
      const explanation = explain(gathered.evidence);
      const text = args.json
        ? `${JSON.stringify(explanation, null, 2)}\n`
        : renderExplanation(explanation, {
            columns: Math.min(process.stdout.columns ?? 100, 120),
            color: process.stdout.isTTY === true && !env.NO_COLOR,
          });
      await Bun.write(Bun.stdout, text);
      return explanation.reason === "no-such-object" ? exitFailed : exitDone;
    } finally {
      client.close();
    }
  },
});

/** `ns/name`, `pod/name` as kubectl writes it, or a name in the given namespace. */
function subjectOf(asked: string, namespace: string, sandbox: boolean): Subject {
  const parts = asked.split("/");
  const [first = "", second = ""] = parts;
  const kinds = sandbox ? ["sandbox", "sandboxes"] : ["pod", "pods", "po"];
  if (parts.length === 1 && first !== "") return { namespace, name: first, sandbox };
  if (parts.length !== 2 || first === "" || second === "")
    throw new Misuse(`"${asked}" is neither NAME nor NAMESPACE/NAME`);
  return kinds.includes(first)
    ? { namespace, name: second, sandbox }
    : { namespace: first, name: second, sandbox };
}

/** Where the provider keeps its records, when it does so on this host. */
function hostPath(given: string | undefined, env: VerbInput["env"]): string | undefined {
  const isDefault = given === undefined && !env[flags["state-path"].env];
  const path = statePathOf(given, env);
  // Anywhere but on a node's host the default is not there, and nobody asked for it.
  return isDefault && path === defaultOf("state-path") && !canRead(path) ? undefined : path;
}

function canRead(path: string): boolean {
  try {
    accessSync(path, constants.R_OK);
    return true;
  } catch {
    return false;
  }
}

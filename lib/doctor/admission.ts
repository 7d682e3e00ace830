/** Admission in the cluster that would deny our writes, or the Pods we are to serve. */

import { describeFailure } from "../kube/index.ts";
import { count, listed } from "../words.ts";
import { type Check, type Context, hasCode, type Read } from "./context.ts";
import { fail, type Outcome, pass, skipped, warn } from "./finding.ts";
import type { Cluster } from "./probes.ts";

const registrationPath = "/apis/admissionregistration.k8s.io/v1";
const withAdmin =
  "To have it checked, run this with --admin-kubeconfig and a kubeconfig that may read webhook configurations.";
/** The default of cocoon-webhook's POD_CREATORS. */
const creatorsDefault = "system:serviceaccount:cocoon-system:cocoon-operator";
/** Who creates the Pods of Sandboxes, as the agent-sandbox controller is installed. */
const sandboxCreator = "system:serviceaccount:agent-sandbox-system:agent-sandbox-controller";

export const admissionChecks: Check[] = [
  {
    id: "cluster.admission",
    group: "cluster",
    why: "A webhook with failurePolicy Fail refuses our writes while its own server is away: statuses, heartbeats and finalized Pods wait for it.",
    run: ourWrites,
  },
  {
    id: "cluster.cocoon-webhook",
    group: "cluster",
    why: "cocoon-webhook denies Pods that tolerate virtual-kubelet.io/provider, unless their creator is in its POD_CREATORS: Sandboxes would get no Pod.",
    run: cocoonWebhook,
  },
];

/** One webhook of a configuration, as far as we judge it. */
interface Webhook {
  configuration: string;
  name: string;
  failClosed: boolean;
  service?: { namespace: string; name: string };
  rules: Rule[];
}

interface Rule {
  groups: string[];
  operations: string[];
  resources: string[];
}

const texts = (value: unknown): string[] =>
  Array.isArray(value) ? value.filter((entry): entry is string => typeof entry === "string") : [];

/** Reads a list of either kind of webhook configuration; what is not as it should be is left out. */
function webhooksOf(body: unknown): Webhook[] {
  const { items } = body as { items?: unknown };
  if (!Array.isArray(items)) return [];
  return items.flatMap((item): Webhook[] => {
    const { metadata, webhooks } = (item ?? {}) as { metadata?: { name?: unknown }; webhooks?: unknown };
    if (!Array.isArray(webhooks)) return [];
    return webhooks.map((raw) => {
      const { name, failurePolicy, clientConfig, rules } = (raw ?? {}) as Record<string, unknown>;
      const { service } = (clientConfig ?? {}) as { service?: { namespace?: unknown; name?: unknown } };
      return {
        configuration: String(metadata?.name ?? ""),
        name: String(name ?? ""),
        // Fail is the API's default.
        failClosed: failurePolicy !== "Ignore",
        service:
          typeof service?.namespace === "string" && typeof service.name === "string"
            ? { namespace: service.namespace, name: service.name }
            : undefined,
        rules: (Array.isArray(rules) ? rules : []).map((rule) => ({
          groups: texts(rule?.apiGroups),
          operations: texts(rule?.operations),
          resources: texts(rule?.resources),
        })),
      };
    });
  });
}

type Webhooks = { ok: true; value: Webhook[]; cluster: Cluster } | { ok: false; outcome: Outcome };

async function readWebhooks(context: Context): Promise<Webhooks> {
  const admin: Read<Cluster> | undefined = await context.admin();
  const cluster = admin ?? (await context.cluster());
  if (!cluster.ok) {
    return {
      ok: false,
      outcome: skipped(
        admin === undefined
          ? "there is no way to the API server; see cluster.credentials"
          : `--admin-kubeconfig: ${cluster.why}`,
      ),
    };
  }
  const all: Webhook[] = [];
  for (const kind of ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"]) {
    const reply = await cluster.value.request("GET", `${registrationPath}/${kind}`);
    if (!reply.ok) {
      const outcome = hasCode(reply, 403)
        ? skipped("this identity may not read webhook configurations, and need not", withAdmin)
        : skipped(
            admin !== undefined || reply.kind === "http" || (reply.kind === "status" && reply.code !== 401)
              ? `webhook configurations: ${describeFailure(reply)}`
              : hasCode(reply, 401)
                ? "the credential is refused; see cluster.identity"
                : "the API server does not answer; see cluster.reachable",
          );
      return { ok: false, outcome };
    }
    all.push(...webhooksOf(reply.body));
  }
  return { ok: true, value: all, cluster: cluster.value };
}

/** What we write, as admission names it: a PATCH is an UPDATE. */
const writes = [
  { group: "", resource: "pods", operation: "DELETE" },
  { group: "", resource: "pods/status", operation: "UPDATE" },
  { group: "", resource: "nodes", operation: "CREATE" },
  { group: "", resource: "nodes", operation: "UPDATE" },
  { group: "", resource: "nodes/status", operation: "UPDATE" },
  { group: "coordination.k8s.io", resource: "leases", operation: "CREATE" },
  { group: "coordination.k8s.io", resource: "leases", operation: "UPDATE" },
] as const;

/** Whether a rule covers a write (Kubernetes: admissionregistration, rules). */
export function covers(rule: Rule, group: string, resource: string, operation: string): boolean {
  const [parent = "", sub] = resource.split("/");
  const matches = (pattern: string): boolean => {
    const [wantedParent = "", wantedSub] = pattern.split("/");
    if (wantedParent !== "*" && wantedParent !== parent) return false;
    // "*" and "pods" leave subresources out, "pods/*" and "*/*" take them in.
    return wantedSub === undefined ? sub === undefined : wantedSub === "*" || wantedSub === sub;
  };
  return (
    (rule.groups.includes("*") || rule.groups.includes(group)) &&
    (rule.operations.includes("*") || rule.operations.includes(operation)) &&
    rule.resources.some(matches)
  );
}

async function ourWrites(context: Context): Promise<Outcome> {
  const read = await readWebhooks(context);
  if (!read.ok) return read.outcome;
  const touching = read.value.flatMap((webhook) => {
    const hit = writes.filter(({ group, resource, operation }) =>
      webhook.rules.some((rule) => covers(rule, group, resource, operation)),
    );
    const what = [...new Set(hit.map(({ resource, operation }) => `${operation} ${resource}`))];
    return what.length === 0 ? [] : [{ webhook, what }];
  });
  if (touching.length === 0) return pass(`none of ${count(read.value.length, "webhook")} sees our writes`);
  const closed = touching.filter(({ webhook }) => webhook.failClosed);
  const shown = (entries: typeof touching) =>
    listed(
      entries.map(({ webhook, what }) => `${webhook.configuration}/${webhook.name} (${what.join(", ")})`),
    );
  if (closed.length === 0) return pass(`${shown(touching)} sees our writes, failurePolicy Ignore`);
  return warn(
    `${shown(closed)} sees our writes, failurePolicy Fail`,
    "Exclude the provider's identity there with matchConditions, or make sure that the webhook's server is as available as the API server.",
  );
}

async function cocoonWebhook(context: Context): Promise<Outcome> {
  const read = await readWebhooks(context);
  if (!read.ok) return read.outcome;
  const cocoon = read.value.find(
    (webhook) =>
      (/cocoon-webhook/.test(webhook.configuration) ||
        /\.cocoonstack\.io$/.test(webhook.name) ||
        /cocoon-webhook/.test(webhook.service?.name ?? "")) &&
      webhook.rules.some((rule) => covers(rule, "", "pods", "CREATE")),
  );
  if (cocoon === undefined) return pass("not installed for Pods");
  const found = `${cocoon.configuration} judges new Pods`;
  const { service } = cocoon;
  const setEnv = (creators: string) =>
    `kubectl -n ${service?.namespace ?? "cocoon-system"} set env deployment/${service?.name ?? "cocoon-webhook"} POD_CREATORS=${creators}`;
  const asAdded = `${creatorsDefault},${sandboxCreator}`;
  if (service === undefined) {
    return warn(
      `${found}, at a URL; its POD_CREATORS cannot be looked up`,
      `Make sure that it has ${sandboxCreator} in POD_CREATORS.`,
    );
  }
  const reply = await read.cluster.request(
    "GET",
    `/apis/apps/v1/namespaces/${encodeURIComponent(service.namespace)}/deployments`,
  );
  if (!reply.ok) {
    return warn(
      `${found}; its POD_CREATORS cannot be looked up (${describeFailure(reply)})`,
      `Make sure that it has ${sandboxCreator}: ${setEnv(asAdded)}`,
    );
  }
  const creators = creatorsOf(reply.body, service.name);
  if (creators === undefined) {
    return warn(
      `${found}; no Deployment ${service.name} in ${service.namespace} to look POD_CREATORS up in`,
      `Make sure that it has ${sandboxCreator}.`,
    );
  }
  if (creators.kind === "reference") {
    return warn(
      `${found}; its POD_CREATORS comes from a ConfigMap or Secret, which is not looked into`,
      `Make sure that it has ${sandboxCreator}.`,
    );
  }
  const names = creators.value.split(",").map((name) => name.trim());
  const sandbox = names.filter((name) => name.includes("agent-sandbox"));
  if (sandbox.length > 0) return pass(`${found}, and lets ${listed(sandbox)} create them`);
  return fail(
    `${found}, and lets only ${listed(names)} create them`,
    setEnv([...names, sandboxCreator].join(",")),
  );
}

type Creators = { kind: "value"; value: string } | { kind: "reference" };

/** POD_CREATORS of the Deployment behind the webhook's Service; its default where it is not set. */
function creatorsOf(body: unknown, serviceName: string): Creators | undefined {
  const { items } = body as { items?: unknown };
  let ours: Creators | undefined;
  for (const item of Array.isArray(items) ? items : []) {
    const containers: unknown = item?.spec?.template?.spec?.containers;
    for (const container of Array.isArray(containers) ? containers : []) {
      const env: unknown = container?.env;
      const entry = Array.isArray(env)
        ? env.find((variable) => variable?.name === "POD_CREATORS")
        : undefined;
      if (entry !== undefined) {
        return typeof entry.value === "string" && entry.value !== ""
          ? { kind: "value", value: entry.value }
          : entry.valueFrom === undefined
            ? { kind: "value", value: creatorsDefault }
            : { kind: "reference" };
      }
    }
    if (item?.metadata?.name === serviceName) ours = { kind: "value", value: creatorsDefault };
  }
  return ours;
}

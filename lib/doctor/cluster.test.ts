import { expect, test } from "bun:test";
import { covers } from "./admission.ts";
import {
  type Answers,
  type Case,
  clusterOf,
  daemonRuns,
  goodAnswers,
  noCluster,
  nowMs,
  ok,
  outcomeOf,
  reviewPath,
  type Spoilt,
  statusOf,
  testCases,
  userIs,
} from "./fixtures.ts";

const refusedConnection = {
  ok: false as const,
  kind: "network" as const,
  message: "GET https://api:6443/version: connection refused",
};
const answering = (answers: Answers): Spoilt => ({ answers });
const unreachable = answering({
  "GET /version": refusedConnection,
  "POST /apis/authentication.k8s.io/v1/selfsubjectreviews": refusedConnection,
  [reviewPath]: refusedConnection,
  "GET /api/v1/nodes/vk-1": refusedConnection,
  "GET /apis/agents.x-k8s.io": refusedConnection,
});
const unauthorized = answering({
  "GET /version": statusOf(401, "Unauthorized"),
  "POST /apis/authentication.k8s.io/v1/selfsubjectreviews": statusOf(401, "Unauthorized"),
  [reviewPath]: statusOf(401, "Unauthorized"),
  "GET /api/v1/nodes/vk-1": statusOf(401, "Unauthorized"),
});

/** Denies these, as `verb resource`. */
const denying = (...denied: string[]): Answers => ({
  [reviewPath]: ({ body }) => {
    const { resourceAttributes: it } = (
      body as { spec: { resourceAttributes: Record<string, string | undefined> } }
    ).spec;
    const name = `${it.verb} ${it.resource}${it.subresource === undefined ? "" : `/${it.subresource}`}`;
    return ok({ status: { allowed: !denied.includes(name) } }, 201);
  },
});

const leasePath = "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/vk-1";
const nodePath = "GET /api/v1/nodes/vk-1";
const virtualNode = ok({
  metadata: { name: "vk-1", labels: { type: "virtual-kubelet" } },
  spec: { taints: [{ key: "virtual-kubelet.io/provider", value: "sandboxd" }] },
});
const leaseOf = (holderIdentity: string, agoMs: number) =>
  ok({ spec: { holderIdentity, renewTime: new Date(nowMs - agoMs).toISOString() } });
const proxyPath = "GET /api/v1/nodes/vk-1/proxy/healthz";

const publish = { "publish-inventory": "true" };
const noInventory: Answers = { "GET /apis/sandbox.cocoonstack.io/v1beta1": statusOf(404, "NotFound") };

const webhooks = (...items: unknown[]): Answers => ({
  "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": ok({ items }),
});
const webhook = (name: string, failurePolicy: string | undefined, rule: unknown, service = true) => ({
  metadata: { name: `${name}-config` },
  webhooks: [
    {
      name,
      failurePolicy,
      clientConfig: service
        ? { service: { namespace: "cocoon-system", name: "cocoon-webhook" } }
        : { url: "https://elsewhere" },
      rules: [rule],
    },
  ],
});
const validating = "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const onPodCreate = { apiGroups: [""], operations: ["CREATE"], resources: ["pods"] };
const cocoon = webhooks(webhook("pods.mutate.cocoonstack.io", "Ignore", onPodCreate));
const deployments = (env: unknown): Answers => ({
  "GET /apis/apps/v1/namespaces/cocoon-system/deployments": ok({
    items: [
      {
        metadata: { name: "cocoon-webhook" },
        spec: { template: { spec: { containers: [{ name: "webhook", env }] } } },
      },
    ],
  }),
});
const forbidden = statusOf(403, "Forbidden", "is forbidden: User cannot get");

const cases: Case[] = [
  {
    id: "cluster.credentials",
    when: "there is a kubeconfig",
    status: "pass",
    says: ["https://api:6443", "/etc/vk/kubeconfig"],
  },
  {
    id: "cluster.credentials",
    when: "there is none",
    spoilt: { cluster: noCluster },
    status: "fail",
    says: ["no kubeconfig anywhere"],
  },

  { id: "cluster.reachable", when: "it answers", status: "pass" },
  {
    id: "cluster.reachable",
    when: "the connection is refused",
    spoilt: unreachable,
    status: "fail",
    says: ["connection refused", "curl -vk https://api:6443/version"],
  },
  { id: "cluster.reachable", when: "it answers 401", spoilt: unauthorized, status: "pass" },
  {
    id: "cluster.reachable",
    when: "something else answers",
    spoilt: answering({
      "GET /version": { ok: false, kind: "garbage", message: "200 with JSON that is not an object" },
    }),
    status: "fail",
    says: ["API server"],
  },
  {
    id: "cluster.reachable",
    when: "a load balancer answers",
    spoilt: answering({
      "GET /version": { ok: false, kind: "http", code: 502, message: "Bad Gateway", retryAfterMs: 0 },
    }),
    status: "fail",
    says: ["502"],
  },
  {
    id: "cluster.reachable",
    when: "the exec plugin fails",
    spoilt: answering({
      "GET /version": { ok: false, kind: "credentials", message: "exec plugin aws failed" },
    }),
    status: "fail",
    says: ["exec plugin aws"],
  },
  {
    id: "cluster.reachable",
    when: "there is no kubeconfig",
    spoilt: { cluster: noCluster },
    status: "skipped",
    says: ["cluster.credentials"],
  },

  { id: "cluster.version", when: "it is new", status: "pass", says: ["v1.36.1"] },
  {
    id: "cluster.version",
    when: "it is old",
    spoilt: answering({ "GET /version": ok({ major: "1", minor: "25+", gitVersion: "v1.25.3-gke.1" }) }),
    status: "warn",
    says: ["v1.25.3"],
  },
  {
    id: "cluster.version",
    when: "it is not understood",
    spoilt: answering({ "GET /version": ok({}) }),
    status: "warn",
  },
  {
    id: "cluster.version",
    when: "the API server is away",
    spoilt: unreachable,
    status: "skipped",
    says: ["cluster.reachable"],
  },

  {
    id: "cluster.identity",
    when: "it is the service account",
    status: "pass",
    says: ["system:serviceaccount:vk-sandbox:vk-sandbox"],
  },
  {
    id: "cluster.identity",
    when: "the credential is refused",
    spoilt: unauthorized,
    status: "fail",
    says: ["401", "/etc/vk/kubeconfig"],
  },
  {
    id: "cluster.identity",
    when: "no credential arrives",
    spoilt: answering(userIs("system:anonymous", "system:unauthenticated")),
    status: "fail",
    says: ["system:anonymous"],
  },
  {
    id: "cluster.identity",
    when: "it may do everything",
    spoilt: answering(userIs("admin", "system:masters")),
    status: "warn",
    says: ["system:masters"],
  },
  {
    id: "cluster.identity",
    when: "the server is older than the review",
    spoilt: answering({
      "POST /apis/authentication.k8s.io/v1/selfsubjectreviews": statusOf(404, "NotFound"),
    }),
    status: "skipped",
    says: ["1.28"],
  },
  { id: "cluster.identity", when: "the API server is away", spoilt: unreachable, status: "skipped" },

  { id: "cluster.rbac.pods", when: "all is allowed", status: "pass", says: ["get, list, watch and delete"] },
  {
    id: "cluster.rbac.pods",
    when: "delete is not",
    spoilt: answering(denying("delete pods")),
    status: "fail",
    says: ["may not delete pods", "kubectl apply -f manifests/rbac.yaml"],
  },
  {
    id: "cluster.rbac.pods",
    when: "a node's own identity may not get Pods without a name",
    spoilt: answering({ ...userIs("system:node:vk-1", "system:nodes"), ...denying("get pods") }),
    status: "pass",
    says: ["list, watch and delete"],
  },
  { id: "cluster.rbac.pods", when: "the API server is away", spoilt: unreachable, status: "skipped" },
  {
    id: "cluster.rbac.pods",
    when: "the credential is refused",
    spoilt: unauthorized,
    status: "skipped",
    says: ["cluster.identity"],
  },
  {
    id: "cluster.rbac.pods",
    when: "there is no kubeconfig",
    spoilt: { cluster: noCluster },
    status: "skipped",
  },
  {
    id: "cluster.rbac.pods/status",
    when: "patch is not allowed",
    spoilt: answering(denying("patch pods/status")),
    status: "fail",
  },
  {
    id: "cluster.rbac.nodes",
    when: "create is not allowed",
    spoilt: answering(denying("create nodes")),
    status: "fail",
  },
  {
    id: "cluster.rbac.nodes/status",
    when: "patch is not allowed",
    spoilt: answering(denying("patch nodes/status")),
    status: "fail",
  },
  {
    id: "cluster.rbac.leases",
    when: "update is not allowed",
    spoilt: answering(denying("update leases")),
    status: "fail",
    says: ["kube-node-lease"],
  },
  {
    id: "cluster.rbac.events",
    when: "create is not allowed",
    spoilt: answering(denying("create events")),
    status: "warn",
  },
  {
    id: "cluster.rbac.sandboxes",
    when: "get is not allowed to another service account",
    spoilt: answering({ ...userIs("system:serviceaccount:a:b"), ...denying("get sandboxes") }),
    status: "fail",
    says: ["--serviceaccount=a:b"],
  },
  {
    id: "cluster.rbac.sandboxes",
    when: "get is not allowed to a user",
    spoilt: answering({ ...userIs("jo"), ...denying("get sandboxes") }),
    status: "fail",
    says: ["--user=jo"],
  },
  {
    id: "cluster.rbac.sandboxes",
    when: "get is not allowed to a node",
    spoilt: answering({ ...userIs("system:node:vk-1", "system:nodes"), ...denying("get sandboxes") }),
    status: "fail",
    says: ["'s/vk-sandboxd-node1/vk-1/g' manifests/node-identity.yaml"],
  },
  {
    id: "cluster.rbac.leases",
    when: "a user of the operator's own may not renew one",
    spoilt: answering({ ...userIs("jo"), ...denying("patch leases") }),
    status: "fail",
    says: [
      "kubectl create rolebinding vk-sandbox-bound --namespace=kube-node-lease --role=vk-sandbox --user=jo",
    ],
  },
  {
    id: "cluster.rbac.tokenreviews",
    when: "create is not allowed",
    spoilt: answering(denying("create tokenreviews")),
    status: "warn",
  },
  {
    id: "cluster.rbac.subjectaccessreviews",
    when: "create is not allowed",
    spoilt: answering(denying("create subjectaccessreviews")),
    status: "warn",
  },
  { id: "cluster.rbac.nodeinventories", when: "nothing is published", status: "skipped" },
  {
    id: "cluster.rbac.nodeinventories",
    when: "patch is not allowed",
    flags: publish,
    spoilt: answering(denying("patch nodeinventories")),
    status: "fail",
    says: ["vk-sandbox-inventory"],
  },
  { id: "cluster.rbac.nodeinventories", when: "all is allowed", flags: publish, status: "pass" },
  {
    id: "cluster.rbac.nodeinventories",
    when: "the kind is not served",
    flags: publish,
    spoilt: answering(noInventory),
    status: "skipped",
    says: ["cluster.inventory"],
  },

  { id: "cluster.sandboxes", when: "they are served", status: "pass", says: ["v1beta1", "sandboxtemplates"] },
  {
    id: "cluster.sandboxes",
    when: "their group is not served",
    spoilt: answering({ "GET /apis/agents.x-k8s.io": statusOf(404, "NotFound") }),
    status: "warn",
    says: ["not served", "agent-sandbox"],
  },
  {
    id: "cluster.sandboxes",
    when: "an older version only",
    spoilt: answering({
      "GET /apis/agents.x-k8s.io": ok({ versions: [{ version: "v1alpha1" }] }),
      "GET /apis/agents.x-k8s.io/v1alpha1": ok({ resources: [{ name: "sandboxes" }] }),
    }),
    status: "warn",
    says: ["v1alpha1"],
  },
  {
    id: "cluster.sandboxes",
    when: "the group has other kinds only",
    spoilt: answering({ "GET /apis/agents.x-k8s.io/v1beta1": ok({ resources: [{ name: "others" }] }) }),
    status: "warn",
    says: ["without sandboxes"],
  },
  {
    id: "cluster.sandboxes",
    when: "the extensions are not served",
    spoilt: answering({ "GET /apis/extensions.agents.x-k8s.io": statusOf(404, "NotFound") }),
    status: "pass",
    says: ["warm pools"],
  },
  { id: "cluster.sandboxes", when: "the API server is away", spoilt: unreachable, status: "skipped" },

  { id: "cluster.inventory", when: "it is served and not published", status: "pass" },
  {
    id: "cluster.inventory",
    when: "it is served and published",
    flags: publish,
    status: "pass",
    says: ["sandbox.cocoonstack.io/v1beta1"],
  },
  {
    id: "cluster.inventory",
    when: "it is neither served nor published",
    spoilt: answering(noInventory),
    status: "skipped",
  },
  {
    id: "cluster.inventory",
    when: "it is published and not served",
    flags: publish,
    spoilt: answering(noInventory),
    status: "fail",
    says: ["CRD"],
  },
  {
    id: "cluster.inventory",
    when: "the older group serves it",
    flags: publish,
    spoilt: answering({
      ...noInventory,
      "GET /apis/extensions.agents.x-k8s.io/v1beta1": ok({ resources: [{ name: "nodeinventories" }] }),
    }),
    status: "pass",
    says: ["extensions.agents.x-k8s.io"],
  },
  {
    id: "cluster.inventory",
    when: "its CRD lacks publishedAt",
    flags: publish,
    spoilt: answering({
      "GET /openapi/v3/apis/sandbox.cocoonstack.io/v1beta1": ok({
        components: { schemas: { "x.NodeInventory": { properties: { node: {} } } } },
      }),
    }),
    status: "warn",
    says: ["publishedAt"],
  },
  {
    id: "cluster.inventory",
    when: "discovery fails",
    flags: publish,
    spoilt: answering({ "GET /apis/sandbox.cocoonstack.io/v1beta1": statusOf(500, "InternalError") }),
    status: "skipped",
    says: ["500"],
  },

  { id: "cluster.node", when: "the name is free", status: "pass", says: ["vk-1 is free"] },
  {
    id: "cluster.node",
    when: "nobody holds its lease",
    spoilt: answering({ [nodePath]: virtualNode }),
    status: "pass",
  },
  {
    id: "cluster.node",
    when: "the running provider serves it",
    spoilt: {
      answers: { [nodePath]: virtualNode, [leasePath]: leaseOf("vk-1_abc_1", 2000) },
      isOurs: () => true,
      state: daemonRuns,
    },
    status: "pass",
    says: ["running provider"],
  },
  {
    id: "cluster.node",
    when: "it is ours from before",
    spoilt: {
      answers: { [nodePath]: virtualNode, [leasePath]: leaseOf("vk-1_abc_1", 2000) },
      isOurs: () => true,
    },
    status: "pass",
    says: ["earlier run"],
  },
  {
    id: "cluster.node",
    when: "another provider serves it now",
    spoilt: answering({ [nodePath]: virtualNode, [leasePath]: leaseOf("vk-1_zzz_9", 3000) }),
    status: "fail",
    says: ["vk-1_zzz_9", "--node-name", "wait 37 s"],
  },
  {
    id: "cluster.node",
    when: "another provider served it once",
    spoilt: answering({ [nodePath]: virtualNode, [leasePath]: leaseOf("vk-1", 3_600_000) }),
    status: "pass",
    says: ["taken over"],
  },
  {
    id: "cluster.node",
    when: "its lease was never renewed",
    spoilt: answering({ [nodePath]: virtualNode, [leasePath]: ok({ spec: { holderIdentity: "x" } }) }),
    status: "pass",
    says: ["never renewed"],
  },
  {
    id: "cluster.node",
    when: "it is vk-cocoon's",
    spoilt: answering({
      [nodePath]: ok({
        metadata: { labels: { type: "virtual-kubelet" } },
        spec: { taints: [{ key: "virtual-kubelet.io/provider", value: "cocoon" }] },
      }),
    }),
    status: "fail",
    says: ["cocoon"],
  },
  {
    id: "cluster.node",
    when: "it is a real node",
    spoilt: answering({
      [nodePath]: ok({ metadata: { labels: {} }, status: { nodeInfo: { kubeletVersion: "v1.36.1" } } }),
    }),
    status: "fail",
    says: ["no virtual Node", "kubelet v1.36.1"],
  },
  {
    id: "cluster.node",
    when: "it is being deleted",
    spoilt: answering({
      [nodePath]: ok({
        metadata: { labels: { type: "virtual-kubelet" }, deletionTimestamp: "2026-05-01T11:00:00Z" },
        spec: {},
      }),
    }),
    status: "warn",
    says: ["finalizers"],
  },
  {
    id: "cluster.node",
    when: "it may not be read",
    spoilt: answering({ [nodePath]: forbidden }),
    status: "skipped",
  },
  {
    id: "cluster.node",
    when: "its lease may not be read",
    spoilt: answering({ [nodePath]: virtualNode, [leasePath]: forbidden }),
    status: "skipped",
  },
  { id: "cluster.node", when: "the API server is away", spoilt: unreachable, status: "skipped" },

  {
    id: "cluster.node-authorizer",
    when: "the identity is no node's",
    status: "pass",
    says: ["not in force"],
  },
  {
    id: "cluster.node-authorizer",
    when: "it is this node's",
    spoilt: answering(userIs("system:node:vk-1", "system:nodes")),
    status: "pass",
    says: ["kubernetes.io/role"],
  },
  {
    id: "cluster.node-authorizer",
    when: "it is another node's",
    spoilt: answering(userIs("system:node:vk-2", "system:nodes")),
    status: "fail",
    says: ["--node-name vk-2"],
  },
  {
    id: "cluster.node-authorizer",
    when: "it lacks the group",
    spoilt: answering(userIs("system:node:vk-1")),
    status: "fail",
    says: ["system:nodes"],
  },
  { id: "cluster.node-authorizer", when: "nobody knows who we are", spoilt: unreachable, status: "skipped" },

  { id: "cluster.admission", when: "there are no webhooks", status: "pass" },
  {
    id: "cluster.admission",
    when: "a webhook sees other things",
    spoilt: answering(
      webhooks(webhook("w", "Fail", { apiGroups: ["apps"], operations: ["*"], resources: ["*"] })),
    ),
    status: "pass",
    says: ["1 webhook"],
  },
  {
    id: "cluster.admission",
    when: "a webhook sees everything and fails open",
    spoilt: answering(
      webhooks(webhook("w", "Ignore", { apiGroups: ["*"], operations: ["*"], resources: ["*/*"] })),
    ),
    status: "pass",
    says: ["Ignore"],
  },
  {
    id: "cluster.admission",
    when: "a webhook sees everything and fails closed",
    spoilt: answering(
      webhooks(webhook("w", undefined, { apiGroups: ["*"], operations: ["*"], resources: ["*/*"] })),
    ),
    status: "warn",
    says: ["w-config/w", "UPDATE leases", "matchConditions"],
  },
  {
    id: "cluster.admission",
    when: "it may not be looked at",
    spoilt: answering({
      "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": forbidden,
    }),
    status: "skipped",
    says: ["--admin-kubeconfig"],
  },
  {
    id: "cluster.admission",
    when: "the credential is refused",
    spoilt: answering({ [validating]: statusOf(401, "Unauthorized") }),
    status: "skipped",
    says: ["cluster.identity"],
  },
  {
    id: "cluster.admission",
    when: "the API server is away",
    spoilt: answering({ [validating]: refusedConnection }),
    status: "skipped",
    says: ["cluster.reachable"],
  },
  {
    id: "cluster.admission",
    when: "only the operator may look",
    spoilt: {
      answers: { "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": forbidden },
      admin: clusterOf(goodAnswers),
    },
    status: "pass",
  },
  {
    id: "cluster.admission",
    when: "the operator's kubeconfig is missing",
    spoilt: { admin: noCluster },
    status: "skipped",
    says: ["--admin-kubeconfig: no kubeconfig anywhere"],
  },
  {
    id: "cluster.admission",
    when: "there is no kubeconfig",
    spoilt: { cluster: noCluster },
    status: "skipped",
  },

  { id: "cluster.cocoon-webhook", when: "it is not there", status: "pass" },
  {
    id: "cluster.cocoon-webhook",
    when: "it has the default creators",
    spoilt: answering({ ...cocoon, ...deployments([]) }),
    status: "fail",
    says: [
      "cocoon-operator",
      "kubectl -n cocoon-system set env deployment/cocoon-webhook POD_CREATORS=system:serviceaccount:cocoon-system:cocoon-operator,system:serviceaccount:agent-sandbox-system:agent-sandbox-controller",
    ],
  },
  {
    id: "cluster.cocoon-webhook",
    when: "it lets the Sandboxes' controller create Pods",
    spoilt: answering({
      ...cocoon,
      ...deployments([
        {
          name: "POD_CREATORS",
          value: "a, system:serviceaccount:agent-sandbox-system:agent-sandbox-controller",
        },
      ]),
    }),
    status: "pass",
    says: ["agent-sandbox-controller"],
  },
  {
    id: "cluster.cocoon-webhook",
    when: "its creators come from a ConfigMap",
    spoilt: answering({
      ...cocoon,
      ...deployments([{ name: "POD_CREATORS", valueFrom: { configMapKeyRef: {} } }]),
    }),
    status: "warn",
    says: ["ConfigMap"],
  },
  {
    id: "cluster.cocoon-webhook",
    when: "its Deployment may not be read",
    spoilt: answering({ ...cocoon, "GET /apis/apps/v1/namespaces/cocoon-system/deployments": forbidden }),
    status: "warn",
    says: ["403"],
  },
  {
    id: "cluster.cocoon-webhook",
    when: "it has no Deployment",
    spoilt: answering({
      ...cocoon,
      "GET /apis/apps/v1/namespaces/cocoon-system/deployments": ok({ items: [] }),
    }),
    status: "warn",
  },
  {
    id: "cluster.cocoon-webhook",
    when: "it is called at a URL",
    spoilt: answering(webhooks(webhook("pods.mutate.cocoonstack.io", "Ignore", onPodCreate, false))),
    status: "warn",
    says: ["URL"],
  },
  {
    id: "cluster.cocoon-webhook",
    when: "it judges CocoonSets only",
    spoilt: answering(
      webhooks(
        webhook("cocoonsets.validate.cocoonstack.io", "Fail", {
          apiGroups: ["cocoonset.cocoonstack.io"],
          operations: ["CREATE"],
          resources: ["cocoonsets"],
        }),
      ),
    ),
    status: "pass",
  },

  {
    id: "cluster.kubelet-port",
    when: "the Node does not exist",
    status: "skipped",
    says: ["does not exist yet"],
  },
  {
    id: "cluster.kubelet-port",
    when: "the provider does not run",
    spoilt: answering({ [nodePath]: virtualNode }),
    status: "skipped",
    says: ["not running"],
  },
  {
    id: "cluster.kubelet-port",
    when: "it is reached",
    spoilt: { answers: { [nodePath]: virtualNode, [proxyPath]: ok("ok") }, state: daemonRuns },
    status: "pass",
  },
  {
    id: "cluster.kubelet-port",
    when: "this identity may not ask",
    spoilt: { answers: { [nodePath]: virtualNode, [proxyPath]: forbidden }, state: daemonRuns },
    status: "skipped",
    says: ["--admin-kubeconfig"],
  },
  {
    id: "cluster.kubelet-port",
    when: "the operator may ask",
    spoilt: {
      answers: { [nodePath]: virtualNode },
      admin: clusterOf({ [proxyPath]: ok("ok") }),
      state: daemonRuns,
    },
    status: "pass",
  },
  {
    id: "cluster.kubelet-port",
    when: "the connection is refused",
    spoilt: {
      answers: {
        [nodePath]: virtualNode,
        [proxyPath]: statusOf(
          503,
          "ServiceUnavailable",
          "dial tcp 10.0.0.5:10260: connect: connection refused",
        ),
      },
      state: daemonRuns,
    },
    status: "warn",
    says: ["connection refused", "10260"],
  },
  {
    id: "cluster.kubelet-port",
    when: "the address is loopback",
    spoilt: {
      answers: {
        [nodePath]: virtualNode,
        [proxyPath]: statusOf(503, "ServiceUnavailable", "address not allowed"),
      },
      state: daemonRuns,
    },
    status: "warn",
    says: ["--node-ip"],
  },
  {
    id: "cluster.kubelet-port",
    when: "the API server is away",
    spoilt: unreachable,
    status: "skipped",
  },
];

testCases(cases);

test("a right that concerns our own Node or Lease is asked for by its name, a creation without one", async () => {
  const asked: unknown[] = [];
  const record: Answers = {
    [reviewPath]: ({ body }) => {
      asked.push((body as { spec: { resourceAttributes: unknown } }).spec.resourceAttributes);
      return ok({ status: { allowed: true } }, 201);
    },
  };
  await outcomeOf("cluster.rbac.leases", answering(record));
  expect(asked).toContainEqual({
    group: "coordination.k8s.io",
    resource: "leases",
    verb: "patch",
    namespace: "kube-node-lease",
    name: "vk-1",
  });
  expect(asked).toContainEqual({
    group: "coordination.k8s.io",
    resource: "leases",
    verb: "create",
    namespace: "kube-node-lease",
  });
});

test("rules cover what Kubernetes says they cover", () => {
  const rule = (resources: string[], operations = ["UPDATE"], groups = [""]) => ({
    resources,
    operations,
    groups,
  });
  expect(covers(rule(["pods"]), "", "pods", "UPDATE")).toBe(true);
  expect(covers(rule(["pods"]), "", "pods/status", "UPDATE")).toBe(false);
  expect(covers(rule(["pods/*"]), "", "pods/status", "UPDATE")).toBe(true);
  expect(covers(rule(["pods/status"]), "", "pods/status", "UPDATE")).toBe(true);
  expect(covers(rule(["pods/status"]), "", "pods", "UPDATE")).toBe(false);
  expect(covers(rule(["*"]), "", "pods/status", "UPDATE")).toBe(false);
  expect(covers(rule(["*/*"]), "", "pods/status", "UPDATE")).toBe(true);
  expect(covers(rule(["*/status"]), "", "nodes/status", "UPDATE")).toBe(true);
  expect(covers(rule(["pods"], ["CREATE"]), "", "pods", "UPDATE")).toBe(false);
  expect(covers(rule(["pods"], ["*"], ["apps"]), "", "pods", "UPDATE")).toBe(false);
});

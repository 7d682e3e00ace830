/** What the provider must be allowed to do: manifests/rbac.yaml as a list (rights.test.ts holds the two together). */

export interface Right {
  group: string;
  resource: string;
  subresource?: string;
  verb: string;
  /** Asked for this namespace only. */
  namespace?: string;
  /** The object is our own Node, Lease or inventory, so the question names it. */
  ours?: boolean;
}

/** Verbs on one resource, and what goes wrong without them. */
export interface Need {
  /** `pods/status`, as RBAC writes it. */
  resource: string;
  group: string;
  verbs: readonly string[];
  namespace?: string;
  ours?: boolean;
  /** Which of the two ClusterRoles grants it. */
  role: "vk-sandbox" | "vk-sandbox-inventory";
  /** Without it the provider cannot work; otherwise it works less well. */
  essential: boolean;
  without: string;
}

export const needs: readonly Need[] = [
  {
    group: "",
    resource: "pods",
    verbs: ["get", "list", "watch", "delete"],
    role: "vk-sandbox",
    essential: true,
    without:
      "Without list and watch no Pod is seen; without delete every deleted Pod stays Terminating; without get a bare Pod's VM is never released.",
  },
  {
    group: "",
    resource: "pods/status",
    verbs: ["patch"],
    role: "vk-sandbox",
    essential: true,
    without: "No Pod would become Running.",
  },
  {
    group: "",
    resource: "nodes",
    verbs: ["get", "create", "patch"],
    ours: true,
    role: "vk-sandbox",
    essential: true,
    without: "The Node is not registered, or keeps labels and taints that are wrong.",
  },
  {
    group: "",
    resource: "nodes/status",
    verbs: ["patch"],
    ours: true,
    role: "vk-sandbox",
    essential: true,
    without: "The Node never turns Ready.",
  },
  {
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: ["get", "create", "update", "patch"],
    namespace: "kube-node-lease",
    ours: true,
    role: "vk-sandbox",
    essential: true,
    without:
      "Without its heartbeat the Node turns NotReady after 40 s, and its Pods are evicted five minutes later.",
  },
  {
    group: "",
    resource: "events",
    verbs: ["create", "patch"],
    role: "vk-sandbox",
    essential: false,
    without: "kubectl describe pod does not say why a Pod stays Pending.",
  },
  {
    group: "agents.x-k8s.io",
    resource: "sandboxes",
    verbs: ["get"],
    role: "vk-sandbox",
    essential: true,
    without:
      "The owner read fails, so no VM of a deleted Sandbox is ever released: they pile up until their leases end.",
  },
  {
    group: "authentication.k8s.io",
    resource: "tokenreviews",
    verbs: ["create"],
    role: "vk-sandbox",
    essential: false,
    without: "Callers of the kubelet port with a bearer token (metrics-server, Prometheus) get 401.",
  },
  {
    group: "authorization.k8s.io",
    resource: "subjectaccessreviews",
    verbs: ["create"],
    role: "vk-sandbox",
    essential: false,
    without: "Callers of the kubelet port with a bearer token (metrics-server, Prometheus) get 403.",
  },
];

/** What --publish-inventory adds, for the group that is served. */
export function inventoryNeed(group: string): Need {
  return {
    group,
    resource: "nodeinventories",
    verbs: ["get", "create", "patch"],
    ours: true,
    role: "vk-sandbox-inventory",
    essential: true,
    without: "The inventory is not published, so the fast path does not see this node.",
  };
}

/** The single questions of a need. */
export function rightsOf(need: Need): Right[] {
  const [resource = "", subresource] = need.resource.split("/");
  return need.verbs.map((verb) => ({
    group: need.group,
    resource,
    subresource,
    verb,
    namespace: need.namespace,
    // An object that is to be created has no name to the authorizer.
    ours: need.ours === true && verb !== "create",
  }));
}

/** The body of a SelfSubjectAccessReview. */
export function reviewOf(right: Right, nodeName: string): unknown {
  const { group, resource, subresource, verb, namespace } = right;
  const onlyOurPods = resource === "pods" && (verb === "list" || verb === "watch");
  return {
    apiVersion: "authorization.k8s.io/v1",
    kind: "SelfSubjectAccessReview",
    spec: {
      resourceAttributes: {
        group,
        resource,
        subresource,
        verb,
        namespace,
        name: right.ours === true ? nodeName : undefined,
        // A node's own identity may list only the Pods bound to it, and says so (Node authorizer since 1.32).
        ...(onlyOurPods
          ? {
              fieldSelector: { requirements: [{ key: "spec.nodeName", operator: "In", values: [nodeName] }] },
            }
          : {}),
      },
    },
  };
}

/**
 * The resources the API-server stand-in serves, and how each behaves. A resource is plain data, so that a test can
 * serve one of its own; what is special about built-in kinds is in objects.ts.
 */

/** Field names of a custom resource; `true` = anything, an array = a list of such objects. */
export type Shape = true | { [field: string]: Shape } | [Shape];

export interface Resource {
  /** Empty for the core group. */
  group: string;
  version: string;
  plural: string;
  kind: string;
  namespaced: boolean;
  singular?: string;
  shortNames?: string[];
  /** Has a status subresource: writes of the object leave its status alone, and the other way round. */
  status?: boolean;
  /** A custom resource: no strategic merge, kinds in list items, text 404 for what its group does not have. */
  custom?: boolean;
  /** DELETE gives it a grace period, as Pods have. */
  graceful?: boolean;
  /** PUT of one that is not there creates it. */
  createOnUpdate?: boolean;
  /** PUT without a resourceVersion is Invalid. Always so for custom resources. */
  versionedUpdate?: boolean;
  /** Counts changes of spec in metadata.generation. */
  generation?: boolean;
  /** Field selectors beside metadata.name and metadata.namespace. */
  fields?: string[];
  /** Custom only: fields beyond these are dropped on writes, and refused by apply. */
  shape?: Shape;
  /** Custom only: filled in where absent, by path. */
  defaults?: Record<string, unknown>;
  /** Custom only: paths without which the object is Invalid. */
  required?: string[];
}

const builtIn = { custom: false } as const;

/** What every cluster has, as far as a provider touches it. */
export const coreResources: Resource[] = [
  {
    ...builtIn,
    group: "",
    version: "v1",
    plural: "pods",
    kind: "Pod",
    namespaced: true,
    shortNames: ["po"],
    status: true,
    graceful: true,
    generation: true,
    fields: ["spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"],
  },
  {
    ...builtIn,
    group: "",
    version: "v1",
    plural: "nodes",
    kind: "Node",
    namespaced: false,
    shortNames: ["no"],
    status: true,
    fields: ["spec.unschedulable"],
  },
  {
    ...builtIn,
    group: "",
    version: "v1",
    plural: "events",
    kind: "Event",
    namespaced: true,
    shortNames: ["ev"],
    createOnUpdate: true,
    fields: [
      "involvedObject.kind",
      "involvedObject.namespace",
      "involvedObject.name",
      "involvedObject.uid",
      "involvedObject.apiVersion",
      "involvedObject.resourceVersion",
      "involvedObject.fieldPath",
      "reason",
      "reportingComponent",
      "source",
      "type",
    ],
  },
  {
    ...builtIn,
    group: "",
    version: "v1",
    plural: "namespaces",
    kind: "Namespace",
    namespaced: false,
    shortNames: ["ns"],
    status: true,
    fields: ["status.phase"],
  },
  {
    ...builtIn,
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
    namespaced: true,
    createOnUpdate: true,
    versionedUpdate: true,
  },
];

/** The Sandbox of agent-sandbox. */
export const sandboxResource: Resource = {
  group: "agents.x-k8s.io",
  version: "v1beta1",
  plural: "sandboxes",
  kind: "Sandbox",
  namespaced: true,
  shortNames: ["sandbox"],
  status: true,
  custom: true,
  generation: true,
  defaults: { "spec.operatingMode": "Running", "spec.shutdownPolicy": "Retain" },
  required: ["spec.podTemplate"],
};

const pool = { template: true, net: true, size: true, warm: true, target: true } as const;

/** The NodeInventory as sandbox.cocoonstack.io serves it. */
export const inventoryResource: Resource = {
  group: "sandbox.cocoonstack.io",
  version: "v1beta1",
  plural: "nodeinventories",
  kind: "NodeInventory",
  namespaced: false,
  custom: true,
  generation: true,
  required: ["node"],
  shape: {
    node: true,
    address: true,
    publishedAt: true,
    pools: [pool],
    entries: [
      {
        name: true,
        id: true,
        phase: true,
        template: true,
        claimRef: true,
        addr: true,
        deadline: true,
        claimedAt: true,
      },
    ],
  },
};

/** The older NodeInventory of extensions.agents.x-k8s.io: no publishedAt, template or claimedAt. */
export const olderInventoryResource: Resource = {
  ...inventoryResource,
  group: "extensions.agents.x-k8s.io",
  shape: {
    node: true,
    address: true,
    pools: [pool],
    entries: [{ name: true, id: true, phase: true, claimRef: true, addr: true, deadline: true }],
  },
};

/** The other kinds of extensions.agents.x-k8s.io. */
export const extensionResources: Resource[] = [
  ["sandboxclaims", "SandboxClaim"],
  ["sandboxtemplates", "SandboxTemplate"],
  ["sandboxwarmpools", "SandboxWarmPool"],
].map(([plural = "", kind = ""]) => ({
  group: "extensions.agents.x-k8s.io",
  version: "v1beta1",
  plural,
  kind,
  namespaced: true,
  status: true,
  custom: true,
  generation: true,
}));

/** Groups that exist without any served resource in `resources`, by version. */
export const reviewGroups: Record<string, string> = {
  "authentication.k8s.io": "v1",
  "authorization.k8s.io": "v1",
};

export function groupVersion({ group, version }: { group: string; version: string }): string {
  return group === "" ? version : `${group}/${version}`;
}

/** As messages and Status details name a resource: `pods`, `sandboxes.agents.x-k8s.io`. */
export function qualified({ group, plural }: { group: string; plural: string }): string {
  return group === "" ? plural : `${plural}.${group}`;
}

/** As messages name a kind: `Pod`, `Sandbox.agents.x-k8s.io`. */
export function qualifiedKind({ group, kind }: { group: string; kind: string }): string {
  return group === "" ? kind : `${kind}.${group}`;
}

const verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/** The answer to `/apis/<group>/<version>`. */
export function resourceList(gv: string, resources: Resource[]): Record<string, unknown> {
  const entries = resources.flatMap((resource) => {
    const { plural, kind, namespaced } = resource;
    const singularName = resource.singular ?? kind.toLowerCase();
    const entry = { name: plural, singularName, namespaced, kind, verbs, shortNames: resource.shortNames };
    const sub = (name: string, of = kind, does = ["get", "patch", "update"]) => ({
      name: `${plural}/${name}`,
      singularName: "",
      namespaced,
      kind: of,
      verbs: does,
    });
    const subs = resource.status ? [sub("status")] : [];
    if (plural === "pods" && resource.group === "")
      subs.push(sub("binding", "Binding", ["create"]), sub("eviction", "Eviction", ["create"]));
    return [entry, ...subs];
  });
  return { kind: "APIResourceList", apiVersion: "v1", groupVersion: gv, resources: entries };
}

/** One entry of `/apis`, and the answer to `/apis/<group>`. */
export function apiGroup(group: string, versions: string[]): Record<string, unknown> {
  const entries = versions.map((version) => ({ groupVersion: `${group}/${version}`, version }));
  return { name: group, versions: entries, preferredVersion: entries[0] };
}

import { describe, expect, test } from "bun:test";
import { join } from "node:path";

interface Rule {
  apiGroups: string[];
  resources: string[];
  resourceNames?: string[];
  verbs: string[];
  nonResourceURLs?: string[];
}
interface Manifest {
  kind: string;
  metadata: { name: string; namespace?: string };
  rules?: Rule[];
  roleRef?: { kind: string; name: string };
  subjects?: { kind: string; name: string; namespace?: string }[];
}

const read = async (file: string) =>
  Bun.YAML.parse(await Bun.file(join(import.meta.dir, "../../manifests", file)).text()) as Manifest[];

const rbac = await read("rbac.yaml");
const ofNodes = await read("node-identity.yaml");
const isRole = ({ kind }: Manifest) => kind === "Role" || kind === "ClusterRole";
const isBinding = ({ kind }: Manifest) => kind === "RoleBinding" || kind === "ClusterRoleBinding";
const rulesOf = (manifests: Manifest[], name: string) =>
  manifests
    .filter((manifest) => isRole(manifest) && manifest.metadata.name === name)
    .flatMap((m) => m.rules ?? []);

for (const [file, manifests] of [
  ["rbac.yaml", rbac],
  ["node-identity.yaml", ofNodes],
] as const)
  describe(file, () => {
    const rules = manifests.filter(isRole).flatMap((manifest) => manifest.rules ?? []);

    test("has roles, and every role is bound and every binding has its role", () => {
      expect(rules.length).toBeGreaterThan(0);
      const roles = manifests
        .filter(isRole)
        .map((m) => `${m.kind} ${m.metadata.name} ${m.metadata.namespace}`);
      const bound = manifests
        .filter(isBinding)
        .map((m) => `${m.roleRef?.kind} ${m.roleRef?.name} ${m.metadata.namespace}`);
      expect(bound.sort()).toEqual(roles.sort());
    });

    test("has no wildcard in any place", () => {
      for (const { apiGroups, resources, resourceNames = [], verbs, nonResourceURLs } of rules) {
        expect(
          [...apiGroups, ...resources, ...resourceNames, ...verbs].filter((word) => word.includes("*")),
        ).toEqual([]);
        expect(nonResourceURLs).toBeUndefined();
        expect(verbs.length * resources.length * apiGroups.length).toBeGreaterThan(0);
      }
    });

    test("reaches no secrets, configmaps or services, and nothing by which rights are gained", () => {
      const resources = rules.flatMap((rule) => rule.resources.map((resource) => resource.split("/")[0]));
      for (const forbidden of [
        "secrets",
        "configmaps",
        "services",
        "endpoints",
        "serviceaccounts",
        "namespaces",
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
        "certificatesigningrequests",
        "validatingadmissionpolicies",
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
        "customresourcedefinitions",
      ])
        expect(resources).not.toContain(forbidden);
      const verbs = rules.flatMap((rule) => rule.verbs);
      for (const forbidden of ["impersonate", "escalate", "bind", "approve", "sign", "deletecollection"])
        expect(verbs).not.toContain(forbidden);
      const whole = rules.flatMap((rule) => rule.resources);
      for (const forbidden of [
        "pods/exec",
        "pods/attach",
        "pods/portforward",
        "pods/ephemeralcontainers",
        "nodes/proxy",
      ])
        expect(whole).not.toContain(forbidden);
    });

    test("reads Sandboxes one at a time and never writes them", () => {
      const sandboxes = rules.filter((rule) => rule.resources.includes("sandboxes"));
      expect(sandboxes.map((rule) => rule.verbs)).toEqual([["get"]]);
    });
  });

test("what every node needs and what inventory needs are apart", () => {
  const node = rulesOf(rbac, "vk-sandbox");
  const inventory = rulesOf(rbac, "vk-sandbox-inventory");
  expect(node.flatMap((rule) => rule.resources)).not.toContain("nodeinventories");
  expect(inventory.flatMap((rule) => rule.resources)).toEqual(["nodeinventories"]);
});

test("Pods can be deleted: without it every deleted Pod would stay Terminating", () => {
  const pods = rulesOf(rbac, "vk-sandbox").find((rule) => rule.resources.includes("pods"));
  expect(pods?.verbs).toContain("delete");
});

test("leases are those of kube-node-lease: elsewhere they elect the control plane's leaders", () => {
  const roles = rbac.filter((manifest) => manifest.rules?.some((rule) => rule.resources.includes("leases")));
  expect(roles.map((role) => [role.kind, role.metadata.namespace])).toEqual([["Role", "kube-node-lease"]]);
});

test("a node's identity is bound as a user, since all kubelets are in its group", () => {
  const subjects = ofNodes.flatMap((manifest) => manifest.subjects ?? []);
  expect(subjects.length).toBeGreaterThan(0);
  for (const { kind, name } of subjects)
    expect([kind, name]).toEqual(["User", "system:node:vk-sandboxd-node1"]);
});

test("a node's identity publishes its own inventory and no other node's", () => {
  const rules = rulesOf(ofNodes, "vk-sandbox-inventory:vk-sandboxd-node1");
  expect(rules.map((rule) => rule.resourceNames)).toEqual([["vk-sandboxd-node1"]]);
});

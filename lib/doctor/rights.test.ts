import { expect, test } from "bun:test";
import { join } from "node:path";
import { inventoryNeed, type Need, needs } from "./rights.ts";

interface Manifest {
  kind: string;
  metadata: { name: string };
  rules?: { apiGroups: string[]; resources: string[]; verbs: string[] }[];
}

/** `role: verb resource.group`, sorted: what manifests/rbac.yaml grants. */
async function granted(): Promise<string[]> {
  const text = await Bun.file(join(import.meta.dir, "../../manifests/rbac.yaml")).text();
  const documents = Bun.YAML.parse(text) as Manifest[];
  return documents
    .filter(({ kind }) => kind === "ClusterRole" || kind === "Role")
    .flatMap(({ metadata, rules = [] }) =>
      rules.flatMap(({ apiGroups, resources, verbs }) =>
        apiGroups.flatMap((group) =>
          resources.flatMap((resource) =>
            verbs.map((verb) => `${metadata.name}: ${verb} ${resource}.${group}`),
          ),
        ),
      ),
    )
    .sort();
}

const wordsOf = ({ role, verbs, resource, group }: Need) =>
  verbs.map((verb) => `${role}: ${verb} ${resource}.${group}`);

test("doctor asks for exactly the rights that manifests/rbac.yaml grants", async () => {
  const inventory = ["sandbox.cocoonstack.io", "extensions.agents.x-k8s.io"].map(inventoryNeed);
  expect([...needs, ...inventory].flatMap(wordsOf).sort()).toEqual(await granted());
});

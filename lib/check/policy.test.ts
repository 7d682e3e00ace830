/** What can be told of the admission policies without an API server; scripts/e2e/admission.e2e.ts has the rest. */
import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseAllDocuments } from "yaml";
import { ruleList, rules } from "./rules.ts";

interface Expression {
  expression: string;
  message?: string;
  messageExpression?: string;
}

interface Document {
  kind: string;
  metadata: { name: string };
  spec: {
    policyName?: string;
    validationActions?: string[];
    failurePolicy?: string;
    paramKind?: unknown;
    variables?: { name: string; expression: string }[];
    validations?: Expression[];
  };
}

function documents(file: string): Document[] {
  const text = readFileSync(join(import.meta.dir, "../../manifests", file), "utf8");
  return parseAllDocuments(text).map((document): Document => document.toJS());
}

const all = documents("admission-policy.yaml");
const policies = all.filter(({ kind }) => kind === "ValidatingAdmissionPolicy");
const named = (name: string) => policies.find(({ metadata }) => metadata.name === name)?.spec;
const idOf = ({ message, messageExpression }: Expression) =>
  /^'?\[([a-z]+\/[a-z-]+)\] /.exec(message ?? messageExpression ?? "")?.[1] ?? "none";

describe("the admission policies", () => {
  test("name rules that exist: faults are errors, advice is none", () => {
    for (const { metadata, spec } of policies) {
      const faults = metadata.name.endsWith("-faults");
      for (const validation of spec.validations ?? []) {
        const id = idOf(validation);
        expect(Object.keys(rules)).toContain(id);
        expect([id, ruleList.find((rule) => rule.id === id)?.severity === "error"]).toEqual([id, faults]);
      }
    }
  });
  test("say of a Pod what they say of a template", () => {
    for (const kind of ["faults", "advice"]) {
      const [template, pod] = [named(`vk-sandbox-template-${kind}`), named(`vk-sandbox-pod-${kind}`)];
      const shared = pod?.validations?.length ?? 0;
      expect(shared).toBeGreaterThan(5);
      expect(template?.validations?.slice(0, shared)).toEqual(pod?.validations ?? []);
      const derived = (spec: typeof pod) =>
        spec?.variables?.filter(({ name }) => name !== "podSpec" && name !== "annotations");
      expect(derived(template)).toEqual(derived(pod));
    }
  });
  test("take no parameters, and no fault of their own refuses anything", () => {
    for (const { spec } of policies)
      expect([spec.paramKind, spec.failurePolicy]).toEqual([undefined, "Ignore"]);
  });
  test("warn by one file, and deny faults by the other", () => {
    const actions = (file: string) =>
      documents(file)
        .filter(({ kind }) => kind === "ValidatingAdmissionPolicyBinding")
        .map(({ metadata, spec }) => [metadata.name, spec.policyName, spec.validationActions?.join()]);
    const each = (names: string[], action: string) => names.map((name) => [name, name, action]);
    const kinds = ["vk-sandbox-template", "vk-sandbox-pod"];
    expect(actions("admission-policy.yaml")).toEqual(
      each(
        kinds.flatMap((kind) => [`${kind}-faults`, `${kind}-advice`]),
        "Warn,Audit",
      ),
    );
    expect(actions("admission-policy-deny.yaml")).toEqual(
      each(
        kinds.map((kind) => `${kind}-faults`),
        "Deny,Audit",
      ),
    );
  });
  test("cover every rule of sandboxd's that one object alone can break", () => {
    const covered = new Set(policies.flatMap(({ spec }) => (spec.validations ?? []).map(idOf)));
    const elsewhere = [
      // Needs the nodes, the pools, the webhooks, or other objects.
      "sandboxd/no-node",
      "sandboxd/selector-unmatched",
      "sandboxd/pool-missing",
      "sandboxd/pool-cold",
      "sandboxd/webhook",
      "sandboxd/lease-short",
      "sandboxd/spread-selects-nothing",
      // Works as its author sees in the documentation, and would be a warning on nearly every object.
      "sandboxd/ignored-field",
      // A field of one kind only, which the API server's type checker would hold against the others.
      "sandboxd/network-policy",
    ];
    const expected = ruleList
      .map(({ id }) => id)
      .filter((id) => id.startsWith("sandboxd/") && !elsewhere.includes(id));
    expect(expected.filter((id) => !covered.has(id))).toEqual([]);
  });
});

/** Where the scheduler may put a Pod: its selectors, its tolerations, and the Nodes they fit. */
import { providerTaint } from "./contract.ts";
import { at, isMap, listOf, mapOf, textOf } from "./shape.ts";
import { textsOf } from "./subject.ts";
import type { NodeFact, Path } from "./types.ts";

/** A label that the Node must have, and the values that do. */
export interface Requirement {
  key: string;
  values: string[];
  /** Below the Pod's spec. */
  path: Path;
}

/**
 * What a Pod's spec asks of a Node's labels by equality: nodeSelector, and the `In` expressions that every
 * required node affinity term has.
 */
export function requirementsOf(spec: Record<string, unknown>): Requirement[] {
  const requirements: Requirement[] = Object.entries(textsOf(spec.nodeSelector)).map(([key, value]) => ({
    key,
    values: [value],
    path: ["nodeSelector", key],
  }));
  const [first = [], ...others] = termsOf(spec).map((term, index) =>
    listOf(term.matchExpressions).flatMap((entry, at): Requirement[] => {
      const { key, operator, values } = mapOf(entry);
      if (operator !== "In") return [];
      const path = [...affinityPath, index, "matchExpressions", at];
      return [{ key: textOf(key), values: listOf(values).map(String), path }];
    }),
  );
  for (const requirement of first) {
    const same = others.map((term) => term.find((other) => other.key === requirement.key));
    if (same.some((other) => other === undefined)) continue;
    const values = [...requirement.values, ...same.flatMap((other) => other?.values ?? [])];
    requirements.push({ ...requirement, values });
  }
  return requirements;
}

const affinityPath: Path = [
  "affinity",
  "nodeAffinity",
  "requiredDuringSchedulingIgnoredDuringExecution",
  "nodeSelectorTerms",
];

function termsOf(spec: Record<string, unknown>): Record<string, unknown>[] {
  return listOf(at(spec, ...affinityPath)).filter(isMap);
}

/** Whether a Node's labels satisfy nodeSelector and required node affinity. */
export function selects(spec: Record<string, unknown>, node: NodeFact): boolean {
  for (const [key, value] of Object.entries(textsOf(spec.nodeSelector)))
    if (node.labels[key] !== value) return false;
  const terms = termsOf(spec);
  return terms.length === 0 || terms.some((term) => termMatches(term, node));
}

function termMatches(term: Record<string, unknown>, node: NodeFact): boolean {
  const expressions = listOf(term.matchExpressions).filter(isMap);
  const fields = listOf(term.matchFields).filter(isMap);
  // A term without expressions selects nothing, as the API says.
  if (expressions.length + fields.length === 0) return false;
  return (
    expressions.every((expression) => expressionHolds(expression, node.labels)) &&
    fields.every((field) => expressionHolds(field, { "metadata.name": node.name }))
  );
}

/** One expression of a label selector or a node selector. */
export function expressionHolds(
  expression: Record<string, unknown>,
  labels: Readonly<Record<string, string>>,
): boolean {
  const key = textOf(expression.key);
  const has = Object.hasOwn(labels, key);
  const value = labels[key] ?? "";
  const values = listOf(expression.values).map(String);
  switch (expression.operator) {
    case "In":
      return has && values.includes(value);
    case "NotIn":
      return !has || !values.includes(value);
    case "Exists":
      return has;
    case "DoesNotExist":
      return !has;
    case "Gt":
      return has && Number(value) > Number(values[0]);
    case "Lt":
      return has && Number(value) < Number(values[0]);
    default:
      return false;
  }
}

/** Whether a label selector selects an object with these labels; an absent selector selects nothing. */
export function labelsSelected(selector: unknown, labels: Readonly<Record<string, string>>): boolean {
  if (!isMap(selector)) return false;
  return (
    Object.entries(textsOf(selector.matchLabels)).every(([key, value]) => labels[key] === value) &&
    listOf(selector.matchExpressions)
      .filter(isMap)
      .every((expression) => expressionHolds(expression, labels))
  );
}

/** How a toleration meets a virtual node's taint of the given value and effect NoSchedule. */
export function tolerates(
  toleration: unknown,
  taint: { key: string; value: string; effect: string },
): boolean {
  const { key, operator, value, effect } = mapOf(toleration);
  if (textOf(effect) !== "" && effect !== taint.effect) return false;
  if (textOf(key) === "") return operator === "Exists";
  if (key !== taint.key) return false;
  return operator === "Exists" || ((operator ?? "Equal") === "Equal" && textOf(value) === taint.value);
}

/** Whether the Pod's tolerations let it onto a virtual node with this taint value. */
export function toleratesProvider(spec: Record<string, unknown>, value: string): boolean {
  const taint = { key: providerTaint, value, effect: "NoSchedule" };
  return listOf(spec.tolerations).some((toleration) => tolerates(toleration, taint));
}

/** The taints of a Node that keep this Pod off it. */
export function untolerated(spec: Record<string, unknown>, node: NodeFact): NodeFact["taints"] {
  const tolerations = listOf(spec.tolerations);
  return node.taints.filter(
    (taint) => taint.effect !== "PreferNoSchedule" && !tolerations.some((entry) => tolerates(entry, taint)),
  );
}

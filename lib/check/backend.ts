/**
 * For whom a Pod is. Its selector decides where it lands; where that says nothing, what its author meant is
 * told from annotations and tolerations, because the commonest mistake is a selector that is missing.
 */
import {
  isCocoonKey,
  isSandboxKey,
  poolLabel,
  providerTaint,
  runtimeKey,
  runtimeSandboxd,
  taintCocoon,
  taintSandboxd,
  templateKey,
  vmNameKey,
} from "./contract.ts";
import { type Requirement, requirementsOf } from "./scheduling.ts";
import { listOf, mapOf, textOf } from "./shape.ts";
import { meantValue, misspeltKey } from "./spelling.ts";
import type { Subject } from "./subject.ts";
import type { Backend, NodeFact } from "./types.ts";

export interface Verdict {
  backend: Backend;
  /** What says so, in words. */
  because: string;
  requirements: Requirement[];
  /** The requirement that chooses sandboxd nodes, whether or not its value is right. */
  sandboxd?: Requirement;
  /** The requirement that chooses a vk-cocoon pool. */
  pool?: Requirement;
}

/**
 * Decides which backend a Pod is for.
 *
 * @param nodeLabels labels by which the operator's sandboxd nodes are chosen
 * @param nodes live Nodes, to tell where a pinned Pod goes
 */
export function backendOf(
  subject: Subject,
  nodeLabels: Readonly<Record<string, string>>,
  nodes: readonly NodeFact[] = [],
): Verdict {
  const requirements = requirementsOf(subject.spec);
  const sandboxd = requirements.find((r) => isSandboxdRequirement(r, nodeLabels));
  const pool = requirements.find((r) => r.key === poolLabel);
  const found = (backend: Backend, because: string): Verdict => ({
    backend,
    because,
    requirements,
    sandboxd,
    pool,
  });
  const keys = Object.keys(subject.annotations).map((key) => misspeltKey(key)?.meant ?? key);
  const forSandboxd = keys.some(isSandboxKey);
  const forCocoon = keys.some(isCocoonKey);
  if (sandboxd !== undefined && pool !== undefined)
    return forCocoon && !forSandboxd
      ? found("vk-cocoon", "its annotations, since its selector asks for both providers")
      : found("sandboxd", "its selector");
  if (sandboxd !== undefined) return found("sandboxd", "its selector");
  if (pool !== undefined) return found("vk-cocoon", "its selector");

  const pinned = nodes.find((node) => node.name === subject.spec.nodeName);
  const pinnedTaint = pinned?.taints.find((taint) => taint.key === providerTaint)?.value;
  if (pinnedTaint === taintSandboxd) return found("sandboxd", `spec.nodeName, which is a vk-sandbox node`);
  if (pinnedTaint === taintCocoon) return found("vk-cocoon", `spec.nodeName, which is a vk-cocoon node`);

  const runtime = subject.annotations[runtimeKey] ?? "";
  if (meantValue(runtime, [runtimeSandboxd]) !== undefined)
    return found("sandboxd", "its runtime annotation");
  // Values of the mutator that used to fill in selector and toleration.
  if (runtime === "standard") return found("standard kubelet", "its runtime annotation");
  if (runtime === "vk-cocoon" || runtime === "cocoon") return found("vk-cocoon", "its runtime annotation");

  const tolerated = listOf(subject.spec.tolerations)
    .map(mapOf)
    .filter((t) => t.key === providerTaint);
  if (tolerated.length === 0) {
    if (textOf(subject.spec.runtimeClassName) !== "")
      return found("standard kubelet", "its runtimeClassName");
    // Whoever names a pool template or a VM wants one, whatever else the selector asks for.
    const named = keys.includes(templateKey) || keys.includes(vmNameKey);
    if (requirements.length > 0 && !named) return found("standard kubelet", "its selector");
  }
  if (forSandboxd) return found("sandboxd", "its annotations");
  if (forCocoon) return found("vk-cocoon", "its annotations");
  const values = tolerated.map((toleration) => toleration.value);
  if (values.includes(taintSandboxd)) return found("sandboxd", "its toleration");
  if (values.includes(taintCocoon)) return found("vk-cocoon", "its toleration");
  return found("standard kubelet", "no selector, annotation or toleration of a virtual node");
}

/** The label is one of the operator's sandboxd labels, or the contract's, or the contract's under another prefix. */
function isSandboxdRequirement(
  { key, values }: Requirement,
  nodeLabels: Readonly<Record<string, string>>,
): boolean {
  if (Object.hasOwn(nodeLabels, key) && values.includes(nodeLabels[key] ?? "")) return true;
  return key === runtimeKey || isMisplacedRuntime(key, values);
}

/** `cocoon-sandbox.io/runtime: sandboxd` of older templates, and misspelt prefixes. */
export function isMisplacedRuntime(key: string, values: readonly string[]): boolean {
  return key !== runtimeKey && key.endsWith("/runtime") && values.includes(runtimeSandboxd);
}

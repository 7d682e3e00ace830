/** What can go wrong with a Pod for an ordinary Node, as far as virtual nodes are about. */
import { annotationPath, type Case, specPath } from "./context.ts";
import { isContractKey, providerTaint, taintCocoon, taintSandboxd, virtualNodeLabels } from "./contract.ts";
import { toleratesProvider } from "./scheduling.ts";
import { shown, textOf } from "./shape.ts";
import type { Hit } from "./types.ts";

/** Judges a Pod that is for the standard kubelet. */
export function judgeStandard({ subject, verdict }: Case): Hit[] {
  const hits: Hit[] = [];
  // Bound already: where it might have landed is no question any more.
  const bound = subject.live && subject.kind === "Pod" && textOf(subject.spec.nodeName) !== "";
  const virtual = verdict.requirements.find(
    ({ key, values }) => key === "type" && values.includes(virtualNodeLabels.type ?? ""),
  );
  if (virtual !== undefined) {
    hits.push({
      rule: "standard/lands-elsewhere",
      path: specPath(subject, ...virtual.path),
      what: `${virtual.key}=${virtual.values.join(", ")} is a label of virtual nodes only: their taint keeps the Pod Pending, or, tolerated, the create fails for want of annotations.`,
      fix: "Remove it for an ordinary Node, or write the annotations, selector and toleration of one provider.",
    });
  } else if (!bound && toleratesAny(subject.spec)) {
    hits.push({
      rule: "standard/tolerates-virtual-nodes",
      path: specPath(subject, "tolerations"),
      what: "The Pod may land on a virtual node, where the create fails for want of annotations; it stays Pending there while ordinary Nodes are free.",
      fix: `Do not tolerate ${providerTaint}, or keep the Pod away with a node affinity: type NotIn virtual-kubelet.`,
    });
  }
  for (const key of Object.keys(subject.annotations))
    if (isContractKey(key))
      hits.push({
        rule: "standard/annotation-unread",
        path: annotationPath(subject, key),
        what: `A kubelet does not read ${key}; the Pod is a plain container workload.`,
        fix: "Remove it, or write the selector and toleration of the provider that reads it.",
      });
  if (subject.kind !== "Pod" && textOf(subject.spec.runtimeClassName) === "")
    hits.push({
      rule: "standard/no-isolation",
      path: specPath(subject, "runtimeClassName"),
      what: `${shown(subject.name)} runs as an ordinary container that shares the Node's kernel.`,
      fix: "Set runtimeClassName to a sandbox runtime of the cluster (Kata Containers, gVisor), or use a microVM backend.",
    });
  return hits;
}

function toleratesAny(spec: Record<string, unknown>): boolean {
  return toleratesProvider(spec, taintSandboxd) || toleratesProvider(spec, taintCocoon);
}

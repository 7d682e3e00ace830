/** The check: objects in, findings out. No I/O and no clock. */
import { backendOf, type Verdict } from "./backend.ts";
import { judgeCocoon } from "./cocoon.ts";
import type { Case, Context } from "./context.ts";
import { poolLabel, providerTaint, runtimeKey, runtimeSandboxd } from "./contract.ts";
import { regionOf } from "./locate.ts";
import { judgeObject, judgeTemplate } from "./manifest.ts";
import { judgeRelations, pooledTemplates } from "./relations.ts";
import { rules } from "./rules.ts";
import { judgeSandboxd } from "./sandboxd.ts";
import { at, isMap, listOf, pathText } from "./shape.ts";
import { judgeStandard } from "./standard.ts";
import { isServed, isTemplated, type Known, recognise, type Subject, subjectOf } from "./subject.ts";
import type { ClusterFacts, Finding, Hit, Judged, Pools, Severity, Skipped, SourceObject } from "./types.ts";

export interface CheckInput {
  objects: readonly SourceObject[];
  /** Labels by which sandboxd nodes are chosen. Default: the contract's. */
  nodeLabels?: Readonly<Record<string, string>>;
  pools?: Pools;
  cluster?: ClusterFacts;
  /** The objects are all that their namespaces hold, so that what they refer to is there or missing. Default false. */
  complete?: boolean;
  /** Rules that are not applied. */
  ignore?: ReadonlySet<string>;
  /** Milliseconds since the epoch. */
  nowMs: number;
}

export interface CheckResult {
  /** By file and place; worst first where the place is the same. */
  findings: FoundAt[];
  /** Every object with a Pod, and for whom it is. */
  judged: Judged[];
  skipped: Skipped[];
}

/** A finding with what a fix needs of it. */
export interface FoundAt extends Finding {
  source: { object: SourceObject; hit: Hit };
}

export const contractLabels: Readonly<Record<string, string>> = { [runtimeKey]: runtimeSandboxd };

/**
 * Judges manifests and live objects against the pod-template contract.
 *
 * @example
 * const { objects } = parseManifests({ name: "sandbox.yaml", text, bom: false });
 * const { findings } = check({ objects, nowMs: Date.now() });
 */
export function check(input: CheckInput): CheckResult {
  const skipped: Skipped[] = [];
  const judged: Judged[] = [];
  const known: Known[] = [];
  const found: FoundAt[] = [];
  const context: Context = {
    nodeLabels: input.nodeLabels ?? contractLabels,
    pools: input.pools,
    cluster: input.cluster,
    nowMs: input.nowMs,
  };
  const lineOf = (object: SourceObject) => regionOf(object, [])?.start.line;
  const report = (one: Known, hits: readonly Hit[]) => {
    for (const hit of hits) if (!input.ignore?.has(hit.rule)) found.push(findingOf(one, hit));
  };

  for (const object of input.objects) {
    const one = recognise(object);
    if (typeof one === "string") skipped.push({ file: object.file, line: lineOf(object), what: one });
    else known.push(one);
  }
  const pooled = pooledTemplates(known);
  const subjects: { subject: Subject; backend: Verdict["backend"] }[] = [];
  for (const one of known) {
    report(one, judgeObject(one));
    if (!isTemplated(one) || !isServed(one)) continue;
    const subject = subjectOf(one);
    const owner = ownerOf(one, known);
    if (owner !== undefined) {
      subjects.push({ subject, backend: backendOf(subject, context.nodeLabels).backend });
      skipped.push({
        file: one.object.file,
        line: lineOf(one.object),
        what: `${one.title} is judged at its owner, ${owner}`,
      });
      continue;
    }
    const verdict = backendOf(subject, context.nodeLabels, context.cluster?.nodes);
    if (isNotOurs(subject, verdict)) {
      skipped.push({
        file: one.object.file,
        line: lineOf(one.object),
        what: `${one.title} has nothing to do with virtual nodes`,
      });
      continue;
    }
    subjects.push({ subject, backend: verdict.backend });
    judged.push({
      file: one.object.file,
      line: lineOf(one.object),
      object: one.title,
      backend: verdict.backend,
      because: verdict.because,
    });
    const isPooled = one.kind === "SandboxTemplate" && pooled.has(`${one.namespace}/${one.name}`);
    const c: Case = { subject, verdict, context, pooled: isPooled };
    report(one, judgeTemplate(subject));
    report(one, judgesOf[verdict.backend](c));
  }
  for (const { known: one, hit } of judgeRelations({ known, subjects, complete: input.complete ?? false }))
    report(one, [hit]);
  return { findings: sorted(found.filter(isNotMuted)), judged, skipped };
}

const judgesOf: Readonly<Record<Verdict["backend"], (c: Case) => Hit[]>> = {
  sandboxd: judgeSandboxd,
  "vk-cocoon": judgeCocoon,
  "standard kubelet": judgeStandard,
};

/** The title of the Sandbox that a live Pod was made from, when that is judged too. */
function ownerOf(one: Known, known: readonly Known[]): string | undefined {
  if (one.kind !== "Pod" || !one.live) return undefined;
  for (const ref of listOf(at(one.object.value, "metadata", "ownerReferences"))) {
    if (!isMap(ref) || ref.controller !== true || ref.kind !== "Sandbox") continue;
    const owner = known.find(
      (o) => o.kind === "Sandbox" && o.namespace === one.namespace && o.name === ref.name,
    );
    if (owner !== undefined) return owner.title;
  }
  return undefined;
}

/** A live Pod of something else than a Sandbox, for an ordinary Node: nobody asked about it. */
function isNotOurs(subject: Subject, { backend, requirements }: Verdict): boolean {
  if (subject.kind !== "Pod" || !subject.live || backend !== "standard kubelet") return false;
  const named = Object.keys(subject.annotations).some((key) => key.includes("cocoonstack.io/"));
  const owned = listOf(at(subject.object.value, "metadata", "ownerReferences")).length > 0;
  const asks = requirements.some(
    ({ key, values }) => key === poolLabel || values.includes("virtual-kubelet"),
  );
  const tolerated = listOf(subject.spec.tolerations).some((t) => isMap(t) && t.key === providerTaint);
  return !named && !asks && (owned || !tolerated);
}

function findingOf(one: Known, hit: Hit): FoundAt {
  const region = regionOf(one.object, hit.path);
  const rule = rules[hit.rule as keyof typeof rules];
  return {
    rule: hit.rule,
    severity: hit.severity ?? rule.severity,
    file: one.object.file,
    region,
    object: one.title,
    path: pathText(hit.path.filter((step) => step !== Number.POSITIVE_INFINITY)),
    what: hit.what,
    fix: hit.fix,
    fixable: hit.edits !== undefined && one.object.document?.duplicates.length === 0,
    source: { object: one.object, hit },
  };
}

const mute = /#.*\bvk-sandbox-ignore:\s*([\w/,\s-]+)/;

/** A comment on the finding's line, or alone on the line above, that names the rule. */
function isNotMuted({ region, rule, source }: FoundAt): boolean {
  const text = source.object.document?.source.text;
  if (region === undefined || text === undefined || !text.includes("vk-sandbox-ignore")) return true;
  const lines = text.split("\n", region.start.line);
  const own = lines[region.start.line - 1] ?? "";
  const above = lines[region.start.line - 2] ?? "";
  const named = [own, above.trim().startsWith("#") ? above : ""].flatMap(
    (line) => mute.exec(line)?.[1]?.split(/[,\s]+/) ?? [],
  );
  return !named.includes(rule);
}

const rank: Readonly<Record<Severity, number>> = { error: 0, warning: 1, info: 2 };

function sorted(findings: FoundAt[]): FoundAt[] {
  const order = new Map<string, number>();
  const objects = new Map<SourceObject, number>();
  for (const { file, source } of findings) {
    if (!order.has(file)) order.set(file, order.size);
    if (!objects.has(source.object)) objects.set(source.object, objects.size);
  }
  return findings.sort(
    (a, b) =>
      (order.get(a.file) ?? 0) - (order.get(b.file) ?? 0) ||
      (a.region?.start.line ?? 0) - (b.region?.start.line ?? 0) ||
      (a.region?.start.column ?? 0) - (b.region?.start.column ?? 0) ||
      // Objects of the API have no lines, and are told one after the other.
      (objects.get(a.source.object) ?? 0) - (objects.get(b.source.object) ?? 0) ||
      rank[a.severity] - rank[b.severity],
  );
}

/**
 * The door of lib/check: judging manifests against the pod-template contract of the three backends. For the
 * verbs only; the daemon must not pay for it.
 */
export { type CheckInput, type CheckResult, check, contractLabels, type FoundAt } from "./check.ts";
export { type ClusterRead, freshInventories, inventoryPaths, nodeFact, readCluster } from "./cluster.ts";
export { unifiedDiff } from "./diff.ts";
export { type FixResult, fixText } from "./fixing.ts";
export { fileBytesMax, type Parsed, parseManifests } from "./parse.ts";
export { poolName } from "./pools.ts";
export { readSources, replaceFile, type Sources } from "./read.ts";
export {
  countFindings,
  isAtLeast,
  type JsonReport,
  jsonReport,
  type ReportOptions,
  renderFindings,
  renderRules,
  renderUnreadable,
  rulesTable,
  severities,
} from "./report.ts";
export { isRule, type Rule, type RuleId, ruleList, rules } from "./rules.ts";
export { sarifReport } from "./sarif.ts";
export { selects, untolerated } from "./scheduling.ts";
export type {
  Backend,
  ClusterFacts,
  Finding,
  Judged,
  NodeFact,
  PoolFact,
  Pools,
  Severity,
  Skipped,
  SourceFile,
  SourceObject,
  Unreadable,
} from "./types.ts";

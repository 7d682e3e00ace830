/** The door of lib/explain: why a Pod does not run. For the verb only; the daemon must not pay for it. */
export type { Evidence } from "./evidence.ts";
export { type Explanation, explain, type ReasonId } from "./explain.ts";
export { type Gathered, type GatherOptions, gather, type Subject } from "./gather.ts";
export { renderExplanation } from "./render.ts";

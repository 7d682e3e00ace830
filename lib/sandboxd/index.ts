/** The client of the node's sandboxd. */
export { hostOf } from "./address.ts";
export type { ClaimSpec } from "./claim.ts";
export type { Failed, Sandboxd, SandboxdOptions } from "./client.ts";
export { createSandboxd } from "./client.ts";
export { isId, isToken, timeouts } from "./limits.ts";
export type { Info, Pool, SandboxStats } from "./replies.ts";
export { parseTime } from "./time.ts";

/** Every verb by name. Each is loaded when it is called: what a verb needs costs the daemon nothing. */
import type { Verb } from "./verb.ts";

export interface VerbEntry {
  /** One sentence for the list of verbs. */
  summary: string;
  load: () => Promise<Verb>;
}

/** All verbs but `run` and `help`, which main.ts knows itself. In the order of help. */
export const verbs: Readonly<Record<string, VerbEntry>> = {
  doctor: {
    summary: "Check host, state, sandboxd and cluster; changes nothing.",
    load: () => import("./doctor.ts").then((m) => m.doctor),
  },
  claims: {
    summary: "Show the claims table: who holds which VM until when.",
    load: () => import("./claims.ts").then((m) => m.claims),
  },
  audit: {
    summary: "Tell what happened to a VM, when, and on what evidence.",
    load: () => import("./audit.ts").then((m) => m.audit),
  },
  demo: {
    summary: "Show the main job step by step on built-in stand-ins, or on a real cluster.",
    load: () => import("./demo.ts").then((m) => m.demo),
  },
  check: {
    summary: "Judge Pod templates against the contract: who serves them, and every way they can fail.",
    load: () => import("./check.ts").then((m) => m.checkVerb),
  },
  explain: {
    summary: "Tell the one reason why a Pod is Pending, Failed or not Ready, and what to do.",
    load: () => import("./explain.ts").then((m) => m.explainVerb),
  },
  version: {
    summary: "Print version, commit and build date.",
    load: () => import("./version.ts").then((m) => m.version),
  },
  completion: {
    summary: "Print a completion script for bash, zsh or fish.",
    load: () => import("./completion.ts").then((m) => m.completion),
  },
};

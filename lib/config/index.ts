/** The provider's configuration: from command line and environment to one typed object, or all that is wrong with it. */
import { type Flag, type FlagName, type FlagValues, flagList, flags } from "./flags.ts";
import { type Scannable, scan } from "./scan.ts";
import type { HostPort, Quantity } from "./values.ts";

export { type Flag, type FlagName, type FlagValues, flagList, flags, groups } from "./flags.ts";
export { nearest, type Scannable, type Scanned, type ScanResult, scan } from "./scan.ts";
export { readTokenFile, type TokenFile, tokenFile } from "./token.ts";
export {
  type HostPort,
  ipVersion,
  parseDuration,
  parseLabels,
  parseQuantity,
  type Quantity,
} from "./values.ts";

/** One thing that is wrong with the configuration, and what to do about it. */
export interface ConfigError {
  /** `--node-memory`, or the argument itself when it is no flag. */
  flag: string;
  /** The variable the value came from, when it did not come from the command line. */
  env?: string;
  value?: string;
  /** Half a sentence that ends in the next step. */
  reason: string;
}

export interface RunConfig {
  node: {
    name: string;
    ip?: string;
    cpu: Quantity;
    memory: Quantity;
    pods: Quantity;
    labels: Record<string, string>;
    /** How long sandboxd must be unreachable before Ready turns False. */
    notReadyAfterMs: number;
  };
  sandboxd: {
    url: string;
    tokenFile?: string;
    /** host:port for the inventory: the flag, else host and port of the URL. */
    advertiseAddr: string;
  };
  kube: { kubeconfig?: string; context?: string; qps: number; burst: number };
  kubelet: { listen: HostPort; certFile?: string; keyFile?: string; clientCaFile?: string };
  statePath: string;
  audit: { enabled: boolean; ageMaxMs: number; bytesMax: number };
  /** 0 is off. */
  orphanScanIntervalMs: number;
  inventory: { publish: boolean; intervalMs: number };
  /** Send Normal events beside Warnings. */
  normalEvents: boolean;
  /** 0 is off. */
  rescheduleAfterMs: number;
  renewLeases: boolean;
  /** 0 is off. */
  releaseSupersededAfterMs: number;
  log: { format: "auto" | "text" | "json"; level: "debug" | "info" | "warn" | "error" };
}

export type ConfigResult = { ok: true; config: RunConfig } | { ok: false; errors: ConfigError[] };

/** The environment as a parameter: variable to value. An empty value counts as unset, as in the reference. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** The provider's flags as the scanner needs them. */
export const scannable: ReadonlyMap<string, Scannable> = new Map(
  flagList.map((flag) => [flag.name, { boolean: flag.kind.hint === "" }]),
);

/**
 * The configuration that command line and environment describe. `argv` holds flags only: no program, no verb.
 * Nothing on the machine is looked at; files are opened by those who need them.
 * Returns every error at once, because starting a daemon again for each typing mistake is a waste of a day.
 */
export function loadConfig(argv: readonly string[], env: Environment): ConfigResult {
  const scanned = scan(argv, scannable);
  if (!scanned.ok) return { ok: false, errors: [{ flag: scanned.flag, reason: scanned.reason }] };
  const [extra] = scanned.rest;
  if (extra !== undefined) {
    const reason = "unexpected argument; flags begin with --, and a boolean's value follows an equals sign";
    return { ok: false, errors: [{ flag: extra, reason }] };
  }
  return configFrom(scanned.values, env);
}

/**
 * The same from flags already scanned: for verbs that take the provider's flags beside their own.
 * `texts` may hold other flags too; they are ignored.
 */
export function configFrom(texts: ReadonlyMap<string, string>, env: Environment): ConfigResult {
  const errors: ConfigError[] = [];
  const values: Partial<Record<FlagName, unknown>> = {};
  for (const flag of flagList) {
    const { text, fromEnv } = textOf(flag, texts, env);
    if (text === undefined || (text === "" && flag.default === undefined)) continue;
    const parsed = flag.kind.parse(text);
    if (parsed.ok) values[flag.name] = parsed.value;
    else errors.push(errorAbout(flag, fromEnv, text, parsed.reason));
  }
  if (errors.length > 0) return { ok: false, errors };
  // Each value was parsed by its own flag's parser just above, which is what FlagValues says.
  const config = assemble(values as FlagValues);
  errors.push(...contradictions(config));
  return errors.length > 0 ? { ok: false, errors } : { ok: true, config };
}

function textOf(
  flag: Flag<unknown> & { name: string },
  texts: ReadonlyMap<string, string>,
  env: Environment,
) {
  const given = texts.get(flag.name);
  if (given !== undefined) return { text: given, fromEnv: false };
  const variable = env[flag.env];
  if (variable !== undefined && variable !== "") return { text: variable, fromEnv: true };
  return { text: flag.default, fromEnv: false };
}

function errorAbout(flag: Flag<unknown> & { name: string }, fromEnv: boolean, text: string, reason: string) {
  const error: ConfigError = { flag: `--${flag.name}`, value: withoutCredentials(text), reason };
  if (fromEnv) error.env = flag.env;
  return error;
}

const valueCharsMax = 200;

/** A URL's user and password never reach an error, a log or a screen; a very long value is cut. */
function withoutCredentials(text: string): string {
  const clean = text.replace(/\/\/[^/@]*@/, "//…@");
  return clean.length > valueCharsMax ? `${clean.slice(0, valueCharsMax)}…` : clean;
}

function assemble(v: FlagValues): RunConfig {
  return {
    node: {
      name: v["node-name"],
      ip: v["node-ip"],
      cpu: v["node-cpu"],
      memory: v["node-memory"],
      pods: v["node-pods"],
      labels: v["node-labels"],
      notReadyAfterMs: v["not-ready-after"],
    },
    sandboxd: {
      url: v["sandboxd-url"],
      tokenFile: v["sandboxd-token-file"],
      advertiseAddr: v["sandboxd-advertise-addr"] ?? hostPortOf(v["sandboxd-url"]),
    },
    kube: {
      kubeconfig: v.kubeconfig,
      context: v["kube-context"],
      qps: v["kube-api-qps"],
      burst: v["kube-api-burst"],
    },
    kubelet: {
      listen: v["listen-addr"],
      certFile: v["tls-cert"],
      keyFile: v["tls-key"],
      clientCaFile: v["client-ca-file"],
    },
    statePath: v["state-path"],
    audit: { enabled: v.audit, ageMaxMs: v["audit-max-age"], bytesMax: v["audit-max-size"].value },
    orphanScanIntervalMs: v["orphan-scan-interval"],
    inventory: { publish: v["publish-inventory"], intervalMs: v["publish-interval"] },
    normalEvents: !v["disable-pod-events"],
    rescheduleAfterMs: v["reschedule-after"],
    renewLeases: v["renew-leases"],
    releaseSupersededAfterMs: v["release-superseded-after"],
    log: { format: v["log-format"], level: v["log-level"] },
  };
}

function hostPortOf(url: string): string {
  const { hostname, port, protocol } = new URL(url);
  return `${hostname}:${port || (protocol === "https:" ? "443" : "80")}`;
}

/** Labels the Node carries whatever --node-labels says (contract: Node). */
export function ownLabels(nodeName: string): Record<string, string> {
  return {
    type: "virtual-kubelet",
    "kubernetes.io/hostname": nodeName,
    "kubernetes.io/role": "agent",
    "node.kubernetes.io/exclude-from-external-load-balancers": "true",
  };
}

/** Values that are right by themselves and wrong together. */
function contradictions(config: RunConfig): ConfigError[] {
  const errors: ConfigError[] = [];
  const { certFile, keyFile } = config.kubelet;
  if (certFile !== undefined && keyFile === undefined)
    errors.push({
      flag: "--tls-cert",
      value: certFile,
      reason: "has no --tls-key beside it; give both, or neither for a self-signed certificate",
    });
  if (keyFile !== undefined && certFile === undefined)
    errors.push({
      flag: "--tls-key",
      value: keyFile,
      reason: "has no --tls-cert beside it; give both, or neither for a self-signed certificate",
    });
  for (const [key, value] of Object.entries(ownLabels(config.node.name)))
    if (config.node.labels[key] !== undefined && config.node.labels[key] !== value)
      errors.push({
        flag: "--node-labels",
        value: `${key}=${config.node.labels[key]}`,
        reason: `names a label that vk-sandbox sets itself (to "${value}"); leave it out`,
      });
  return errors;
}

/** The error as one sentence: flag, where the value came from, value, reason, next step. */
export function formatConfigError(error: ConfigError): string {
  const from = error.env === undefined ? "" : ` (from ${error.env})`;
  const value = error.value === undefined ? "" : ` "${error.value}"`;
  const colon = value === "" ? ":" : "";
  return `${error.flag}${from}${value}${colon} ${error.reason}`;
}

/** The text a flag falls back to, for help; undefined when unset. */
export function defaultOf(name: FlagName): string | undefined {
  return (flags[name] as Flag<unknown>).default;
}

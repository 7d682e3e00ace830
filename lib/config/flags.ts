/**
 * The one declaration of every flag of the provider: parser, help, completion, man page and types come from
 * it. Names, environment and defaults of the first twenty are the reference provider's (contract: Flags).
 */
import {
  numberUpTo,
  oneOf,
  type Parsed,
  parseAdvertise,
  parseBool,
  parseCount,
  parseDuration,
  parseIP,
  parseLabels,
  parseListen,
  parseNodeName,
  parseOrigin,
  parsePath,
  parseQuantity,
  parseText,
} from "./values.ts";

/** How one kind of value is parsed and named in help. */
export interface FlagKind<T> {
  /** The word after the flag in help: DURATION, FILE. Empty for a boolean. */
  hint: string;
  parse: (text: string) => Parsed<T>;
}

/** One flag. `default` is text, parsed like any other; undefined means: not set. */
export interface Flag<T> {
  kind: FlagKind<T>;
  env: string;
  default?: string;
  group: Group;
  /** One line. */
  help: string;
  example: string;
}

/** The headings of help, in order. */
export const groups = [
  "Node",
  "sandboxd",
  "Kubernetes",
  "Kubelet API",
  "State",
  "Behaviour",
  "Logging",
] as const;
export type Group = (typeof groups)[number];

/** setInterval wraps around above 2^31 ms and then fires at once, so every period stays far below. */
const periodMsMax = 24 * 3_600_000;
const periodMsMin = 100;

function period(zeroIsOff: boolean): FlagKind<number> {
  return {
    hint: "DURATION",
    parse: (text) => {
      const parsed = parseDuration(text);
      if (!parsed.ok || (zeroIsOff && parsed.value === 0)) return parsed;
      const off = zeroIsOff ? ", or 0 for off" : "";
      if (parsed.value < periodMsMin || parsed.value > periodMsMax)
        return { ok: false, reason: `is out of range; write a duration from 100ms to 24h${off}` };
      return parsed;
    },
  };
}

const kinds = {
  bool: { hint: "", parse: parseBool },
  duration: { hint: "DURATION", parse: parseDuration },
  period: period(false),
  periodOrOff: period(true),
  quantity: { hint: "QUANTITY", parse: parseQuantity },
  count: { hint: "COUNT", parse: parseCount },
  labels: { hint: "LABELS", parse: parseLabels },
  nodeName: { hint: "NAME", parse: parseNodeName },
  ip: { hint: "IP", parse: parseIP },
  listen: { hint: "ADDRESS", parse: parseListen },
  advertise: { hint: "HOST:PORT", parse: parseAdvertise },
  origin: { hint: "URL", parse: parseOrigin },
  path: { hint: "FILE", parse: parsePath },
  text: { hint: "NAME", parse: parseText },
  rate: { hint: "NUMBER", parse: numberUpTo(100_000, false) },
  burst: { hint: "NUMBER", parse: numberUpTo(100_000, true) },
} satisfies Record<string, FlagKind<unknown>>;

/** Text that is required or has a default. */
function flag<T>(
  kind: FlagKind<T>,
  rest: Omit<Flag<T>, "kind"> & { default: string },
): Flag<T> & { default: string } {
  return { kind, ...rest };
}

/** A flag that may stay unset. */
function optional<T>(
  kind: FlagKind<T>,
  rest: Omit<Flag<T>, "kind" | "default">,
): Flag<T> & { default?: undefined } {
  return { kind, ...rest };
}

export const flags = {
  "node-name": flag(kinds.nodeName, {
    env: "VK_NODE_NAME",
    default: "vk-sandboxd",
    group: "Node",
    help: "Name of the virtual Node; one per sandboxd, unique in the cluster.",
    example: "--node-name vk-sandboxd-node1",
  }),
  "node-ip": optional(kinds.ip, {
    env: "VK_NODE_IP",
    group: "Node",
    help: "The Node's InternalIP; the API server reaches the kubelet API there.",
    example: "--node-ip 10.0.0.5",
  }),
  "node-cpu": flag(kinds.quantity, {
    env: "VK_NODE_CPU",
    default: "4000",
    group: "Node",
    help: "CPU the scheduler may spend here: a budget for requests, not a measure of the host.",
    example: "--node-cpu 4000",
  }),
  "node-memory": flag(kinds.quantity, {
    env: "VK_NODE_MEMORY",
    default: "8Ti",
    group: "Node",
    help: "Memory the scheduler may spend here.",
    example: "--node-memory 8Ti",
  }),
  "node-pods": flag(kinds.count, {
    env: "VK_NODE_PODS",
    default: "2000",
    group: "Node",
    help: "Pods the scheduler may place here.",
    example: "--node-pods 2000",
  }),
  "node-labels": flag(kinds.labels, {
    env: "VK_NODE_LABELS",
    default: "sandbox.cocoonstack.io/runtime=sandboxd",
    group: "Node",
    help: "Labels of the Node beside its own; the default is what Pod templates select.",
    example: "--node-labels sandbox.cocoonstack.io/runtime=sandboxd,zone=a",
  }),
  "not-ready-after": flag(kinds.period, {
    env: "VK_NOT_READY_AFTER",
    default: "40s",
    group: "Node",
    help: "How long sandboxd must be unreachable before the Node turns NotReady.",
    example: "--not-ready-after 2m",
  }),
  "sandboxd-url": flag(kinds.origin, {
    env: "SANDBOXD_URL",
    default: "http://127.0.0.1:7777",
    group: "sandboxd",
    help: "Where sandboxd answers.",
    example: "--sandboxd-url http://127.0.0.1:7777",
  }),
  "sandboxd-token-file": optional(kinds.path, {
    env: "SANDBOXD_TOKEN_FILE",
    group: "sandboxd",
    help: "File with sandboxd's root token, readable by its owner only; read again when it changes.",
    example: "--sandboxd-token-file /etc/sandboxd/api-token",
  }),
  "sandboxd-advertise-addr": optional(kinds.advertise, {
    env: "SANDBOXD_ADVERTISE_ADDR",
    group: "sandboxd",
    help: "sandboxd's address as others reach it, for the inventory (default: host and port of the URL).",
    example: "--sandboxd-advertise-addr 10.0.0.5:7777",
  }),
  kubeconfig: optional(kinds.path, {
    env: "VK_KUBECONFIG",
    group: "Kubernetes",
    help: "Kubeconfig to use (default: in-cluster, then KUBECONFIG, then ~/.kube/config).",
    example: "--kubeconfig /etc/vk-sandbox/kubeconfig",
  }),
  "kube-context": optional(kinds.text, {
    env: "VK_KUBE_CONTEXT",
    group: "Kubernetes",
    help: "Context of the kubeconfig (default: its current context).",
    example: "--kube-context admin@prod",
  }),
  "kube-api-qps": flag(kinds.rate, {
    env: "VK_KUBE_API_QPS",
    default: "200",
    group: "Kubernetes",
    help: "API requests a second, on average; heartbeats are exempt.",
    example: "--kube-api-qps 200",
  }),
  "kube-api-burst": flag(kinds.burst, {
    env: "VK_KUBE_API_BURST",
    default: "400",
    group: "Kubernetes",
    help: "API requests that may go out at once above the average.",
    example: "--kube-api-burst 400",
  }),
  "listen-addr": flag(kinds.listen, {
    env: "VK_LISTEN_ADDR",
    default: ":10260",
    group: "Kubelet API",
    help: "Address of the kubelet API (HTTPS); its port is published on the Node.",
    example: "--listen-addr 10.0.0.5:10260",
  }),
  "tls-cert": optional(kinds.path, {
    env: "VK_TLS_CERT",
    group: "Kubelet API",
    help: "Serving certificate, PEM, read again when it changes (default: a self-signed one).",
    example: "--tls-cert /etc/vk-sandbox/tls.crt",
  }),
  "tls-key": optional(kinds.path, {
    env: "VK_TLS_KEY",
    group: "Kubelet API",
    help: "Private key of --tls-cert, PEM.",
    example: "--tls-key /etc/vk-sandbox/tls.key",
  }),
  "client-ca-file": optional(kinds.path, {
    env: "VK_CLIENT_CA_FILE",
    group: "Kubelet API",
    help: "CA that vouches for client certificates, PEM; usually the API server's kubelet-client CA.",
    example: "--client-ca-file /etc/kubernetes/pki/ca.crt",
  }),
  "state-path": flag(kinds.path, {
    env: "VK_STATE_PATH",
    default: "/var/lib/vk-sandbox/claims.json",
    group: "State",
    help: "Table of claims and their release credentials; journal and ledger lie beside it.",
    example: "--state-path /var/lib/vk-sandbox/claims.json",
  }),
  audit: flag(kinds.bool, {
    env: "VK_AUDIT",
    default: "true",
    group: "State",
    help: "Keep a ledger of every decision about a VM beside the state file (audit.db).",
    example: "--audit=false",
  }),
  "audit-max-age": flag(kinds.duration, {
    env: "VK_AUDIT_MAX_AGE",
    default: "720h",
    group: "State",
    help: "Ledger entries older than this are dropped.",
    example: "--audit-max-age 2160h",
  }),
  "audit-max-size": flag(kinds.quantity, {
    env: "VK_AUDIT_MAX_SIZE",
    default: "64Mi",
    group: "State",
    help: "The ledger's oldest entries are dropped above this size in bytes.",
    example: "--audit-max-size 256Mi",
  }),
  "orphan-scan-interval": flag(kinds.periodOrOff, {
    env: "VK_ORPHAN_SCAN_INTERVAL",
    default: "60s",
    group: "Behaviour",
    help: "How often sandboxd's index is compared with ours; the scan only reports. 0 is off.",
    example: "--orphan-scan-interval 5m",
  }),
  "publish-inventory": flag(kinds.bool, {
    env: "VK_PUBLISH_INVENTORY",
    default: "false",
    group: "Behaviour",
    help: "Publish this node's pools and sandboxes as a NodeInventory object.",
    example: "--publish-inventory",
  }),
  "publish-interval": flag(kinds.period, {
    env: "VK_PUBLISH_INTERVAL",
    default: "30s",
    group: "Behaviour",
    help: "How often the inventory is published; readers drop a node that is 90 s behind.",
    example: "--publish-interval 15s",
  }),
  "disable-pod-events": flag(kinds.bool, {
    env: "VK_DISABLE_POD_EVENTS",
    default: "false",
    group: "Behaviour",
    help: "Drop Normal events; Warning events are still sent.",
    example: "--disable-pod-events",
  }),
  "reschedule-after": flag(kinds.duration, {
    env: "VK_RESCHEDULE_AFTER",
    default: "0",
    group: "Behaviour",
    help: "Delete an owned Pod that got no VM here for want of capacity for this long, so that its owner makes another elsewhere. 0 is off.",
    example: "--reschedule-after 30s",
  }),
  "renew-leases": flag(kinds.bool, {
    env: "VK_RENEW_LEASES",
    default: "false",
    group: "Behaviour",
    help: "Renew the VM's lease at half-life while its Pod runs.",
    example: "--renew-leases",
  }),
  "release-superseded-after": flag(kinds.duration, {
    env: "VK_RELEASE_SUPERSEDED_AFTER",
    default: "0",
    group: "Behaviour",
    help: "Release a preserved VM whose owner's Pod has run on another node for this long. 0 is off: it is only reported.",
    example: "--release-superseded-after 1h",
  }),
  "log-format": flag(
    { hint: "auto|text|json", parse: oneOf("auto", "text", "json") },
    {
      env: "VK_LOG_FORMAT",
      default: "auto",
      group: "Logging",
      help: "auto is text on a terminal and JSON lines elsewhere.",
      example: "--log-format json",
    },
  ),
  "log-level": flag(
    { hint: "debug|info|warn|error", parse: oneOf("debug", "info", "warn", "error") },
    {
      env: "VK_LOG_LEVEL",
      default: "info",
      group: "Logging",
      help: "Least important level that is logged.",
      example: "--log-level debug",
    },
  ),
} as const;

export type FlagName = keyof typeof flags;

type ValueOf<F> = F extends Flag<infer T> ? (F extends { default: string } ? T : T | undefined) : never;

/** Every flag's parsed value by its name. */
export type FlagValues = { [N in FlagName]: ValueOf<(typeof flags)[N]> };

/** All flags with their names, in declaration order. */
export const flagList: readonly (Flag<unknown> & { name: FlagName })[] = Object.entries(flags).map(
  ([name, f]) => ({
    name: name as FlagName,
    ...(f as Flag<unknown>),
  }),
);

/** The names of the pod-template contract: what the three backends select, tolerate and read. */
import { ownLabels } from "../config/index.ts";

export const sandboxPrefix = "sandbox.cocoonstack.io/";

/** Label of a vk-sandbox Node (its `--node-labels` default), and the annotation of the same name. */
export const runtimeKey = `${sandboxPrefix}runtime`;
export const runtimeSandboxd = "sandboxd";
export const templateKey = `${sandboxPrefix}template`;
export const netKey = `${sandboxPrefix}net`;
export const sizeKey = `${sandboxPrefix}size`;
export const ttlKey = `${sandboxPrefix}ttl-seconds`;
export const renewKey = `${sandboxPrefix}renew`;
export const claimIdKey = `${sandboxPrefix}claim-id`;

/** Every annotation that vk-sandbox reads or writes. */
export const sandboxKeys: readonly string[] = [
  runtimeKey,
  templateKey,
  netKey,
  sizeKey,
  ttlKey,
  renewKey,
  claimIdKey,
];

export const nets: readonly string[] = ["none", "egress"];
export const sizes: readonly string[] = ["small", "medium", "large"];

/** What an absent ttl-seconds means, and sandboxd's maximum for an ordinary claim. */
export const ttlDefaultSeconds = 86_400;
/** What sandboxd makes of ttl-seconds 0. */
export const ttlZeroMeansSeconds = 300;

/** Taint of every virtual node of both providers. */
export const providerTaint = "virtual-kubelet.io/provider";
export const taintSandboxd = "sandboxd";
export const taintCocoon = "cocoon";

/** Labels that every vk-sandbox Node carries beside `--node-labels`; an empty value stands for any (its own name). */
export const virtualNodeLabels: Readonly<Record<string, string>> = ownLabels("");

export const poolLabel = "cocoonstack.io/pool";
export const vmPrefix = "vm.cocoonstack.io/";
export const cocoonSetPrefix = "cocoonset.cocoonstack.io/";
export const vmNameKey = `${vmPrefix}name`;
export const vmIdKey = `${vmPrefix}id`;
export const vmIpKey = `${vmPrefix}ip`;
export const forkFromKey = `${vmPrefix}fork-from`;
export const cloneFromDirKey = `${vmPrefix}clone-from-dir`;
export const managedKey = `${cocoonSetPrefix}managed`;
export const modeKey = `${cocoonSetPrefix}mode`;
export const imageKey = `${cocoonSetPrefix}image`;
export const osKey = `${cocoonSetPrefix}os`;

export const modes: readonly string[] = ["run", "clone"];
export const guestSystems: readonly string[] = ["linux", "windows", "macos"];

/** Every annotation that vk-cocoon reads or writes, so that a misspelt one can be told from another one. */
export const cocoonKeys: readonly string[] = [
  vmNameKey,
  vmIdKey,
  vmIpKey,
  forkFromKey,
  cloneFromDirKey,
  managedKey,
  modeKey,
  imageKey,
  osKey,
  ...[
    "vnc-port",
    "hibernate",
    "restore-from-hibernate",
    "keep-snapshot-on-delete",
    "conn-type",
    "backend",
    "no-direct-io",
    "probe-port",
    "lifecycle-state",
    "lifecycle-observed-generation",
    "lifecycle-state-message",
  ].map((name) => vmPrefix + name),
  ...["storage", "snapshot-policy", "network", "force-pull", "generation", "hibernated-on-node"].map(
    (name) => cocoonSetPrefix + name,
  ),
];

export const coreGroup = "agents.x-k8s.io";
export const extensionsGroup = "extensions.agents.x-k8s.io";
/** Versions that the CRDs serve; the second is deprecated. */
export const servedVersions: readonly string[] = ["v1beta1", "v1alpha1"];
export const deprecatedVersions: readonly string[] = ["v1alpha1"];

/** The annotation belongs to a virtual node's contract. */
export function isContractKey(key: string): boolean {
  return isSandboxKey(key) || isCocoonKey(key);
}

export function isSandboxKey(key: string): boolean {
  return key.startsWith(sandboxPrefix);
}

export function isCocoonKey(key: string): boolean {
  return key.startsWith(vmPrefix) || key.startsWith(cocoonSetPrefix);
}

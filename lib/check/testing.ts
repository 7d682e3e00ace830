/** What the tests of the check share: manifests that are right, and changing one thing about them. */
import { type CheckInput, type CheckResult, check } from "./check.ts";
import { parseManifests } from "./parse.ts";
import type { SourceFile } from "./types.ts";

export const nowMs = Date.parse("2026-05-01T12:00:00Z");

/** The sandboxd example of the contract. */
export const sandboxdExample = `apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: sandboxd-example
spec:
  podTemplate:
    metadata:
      annotations:
        sandbox.cocoonstack.io/runtime: sandboxd
        sandbox.cocoonstack.io/template: ghcr.io/cocoonstack/sandbox/rt:24.04
        sandbox.cocoonstack.io/net: none
        sandbox.cocoonstack.io/size: small
    spec:
      nodeSelector:
        sandbox.cocoonstack.io/runtime: sandboxd
      tolerations:
        - key: virtual-kubelet.io/provider
          operator: Exists
          effect: NoSchedule
      containers:
        - name: agent
          image: ghcr.io/cocoonstack/sandbox/rt:24.04
`;

/** The vk-cocoon example of the contract. */
export const cocoonExample = `apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: cocoon-example
spec:
  podTemplate:
    metadata:
      annotations:
        vm.cocoonstack.io/name: sandbox-default-cocoon-example
        cocoonset.cocoonstack.io/managed: "true"
        cocoonset.cocoonstack.io/mode: run
        cocoonset.cocoonstack.io/image: ubuntu-dev-base
        cocoonset.cocoonstack.io/os: linux
    spec:
      nodeSelector:
        cocoonstack.io/pool: default
      tolerations:
        - key: virtual-kubelet.io/provider
          operator: Exists
          effect: NoSchedule
      containers:
        - name: agent
          image: ubuntu-dev-base
`;

/** An ordinary Node's sandbox. */
export const standardExample = `apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata:
  name: plain-example
spec:
  podTemplate:
    spec:
      runtimeClassName: kata
      containers:
        - name: agent
          image: ubuntu
`;

/** A pool of sandboxd's as it should be. */
export const pooledExample = `apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata:
  name: agent
spec:
  podTemplate:
    metadata:
      labels:
        pool: agent
      annotations:
        sandbox.cocoonstack.io/template: rt:24.04
    spec:
      topologySpreadConstraints:
        - topologyKey: kubernetes.io/hostname
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              pool: agent
      nodeSelector:
        sandbox.cocoonstack.io/runtime: sandboxd
      tolerations:
        - key: virtual-kubelet.io/provider
          operator: Exists
          effect: NoSchedule
      containers:
        - name: agent
          image: rt:24.04
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata:
  name: agent
spec:
  replicas: 2
  sandboxTemplateRef:
    name: agent
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata:
  name: one
spec:
  warmPoolRef:
    name: agent
`;

export function source(text: string, name = "test.yaml"): SourceFile {
  return { name, text, bom: false };
}

/** Judges a text; throws when it does not parse, since no test of a rule means that. */
export function checkText(text: string, options: Partial<CheckInput> = {}): CheckResult {
  const { objects, unreadable } = parseManifests(source(text));
  const [bad] = unreadable;
  if (bad !== undefined) throw new Error(`${bad.file}:${bad.position?.line}: ${bad.reason}`);
  return check({ objects, nowMs, ...options });
}

/** Replaces one thing in a text; throws when it is not there, so that no row tests nothing. */
export function changed(text: string, from: string | RegExp, to: string): string {
  const after = text.replace(from, () => to);
  if (after === text) throw new Error(`${from} is not in the text`);
  return after;
}

/** Adds lines behind the line that contains `after`, indented as that line is. */
export function inserted(text: string, after: string, ...lines: string[]): string {
  const all = text.split("\n");
  const at = all.findIndex((line) => line.includes(after));
  if (at < 0) throw new Error(`${after} is not in the text`);
  const indent = /^[\s-]*/.exec(all[at] ?? "")?.[0].replace("-", " ") ?? "";
  all.splice(at + 1, 0, ...lines.map((line) => indent + line));
  return all.join("\n");
}

import { describe, expect, test } from "bun:test";
import type { CheckInput } from "./check.ts";
import {
  changed,
  checkText,
  cocoonExample,
  inserted,
  nowMs,
  pooledExample,
  sandboxdExample,
  standardExample,
} from "./testing.ts";
import type { NodeFact, Pools, Severity } from "./types.ts";

/** A rule that must be found, and a part of the line it must point at. */
type Expected = readonly [rule: string, line: string, severity?: Severity];

interface Row {
  /** The mistake, as a sentence. */
  name: string;
  text: string;
  found: readonly Expected[];
  options?: Partial<CheckInput>;
  /** Also expect notes; otherwise only errors and warnings are compared. */
  notes?: true;
}

/** Each row has exactly these findings, at these lines. */
function rows(list: readonly Row[]): void {
  for (const { name, text, found, options, notes } of list)
    test(name, () => {
      const lines = text.split("\n");
      const { findings } = checkText(text, options);
      const seen = findings.filter(({ severity }) => notes || severity !== "info");
      expect(seen.map(({ rule }) => rule)).toEqual(found.map(([rule]) => rule));
      seen.forEach((finding, index) => {
        const [, line, severity] = found[index] ?? ["", "", undefined];
        expect(lines[(finding.region?.start.line ?? 0) - 1]).toContain(line);
        if (severity !== undefined) expect(finding.severity).toBe(severity);
        expect(finding.what).toMatch(/^\S.*[.]$/);
        expect(finding.fix).toMatch(/^\S.*[.?]$/);
        for (const part of [finding.what, finding.fix]) expect(part).not.toMatch(/undefined|NaN|\[object/);
      });
    });
}

const good = sandboxdExample;
const annotation = (key: string, value: string) =>
  inserted(good, "size: small", `sandbox.cocoonstack.io/${key}: ${value}`);
const podSpec = (...lines: string[]) => inserted(good, "    spec:", ...lines.map((line) => `  ${line}`));
const container = (...lines: string[]) => inserted(good, "- name: agent", ...lines);
const withoutTolerations = changed(good, / {6}tolerations:\n( {8}.*\n)+?(?= {6}containers)/, "");
const withoutSelector = changed(good, / {6}nodeSelector:\n.*\n/, "");
const bare = (text: string) =>
  `apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n${text}spec:\n  containers:\n    - name: agent\n      image: rt:24.04\n`;

describe("the contract's own examples are right", () => {
  test.each([
    ["sandboxd", sandboxdExample, "sandboxd"],
    ["vk-cocoon", cocoonExample, "vk-cocoon"],
    ["the standard kubelet", standardExample, "standard kubelet"],
    ["a warm pool", pooledExample, "sandboxd"],
  ])("%s", (_, text, backend) => {
    const { findings, judged } = checkText(text);
    expect(findings.filter(({ severity }) => severity !== "info")).toEqual([]);
    expect(judged.map((one) => one.backend)).toEqual([backend as (typeof judged)[number]["backend"]]);
  });
});

describe("sandboxd: where the Pod goes", () => {
  rows([
    { name: "no selector", text: withoutSelector, found: [["sandboxd/selector-missing", "    spec:"]] },
    {
      name: "no selector, with another label selected, is still meant for a pool",
      text: changed(
        good,
        "sandbox.cocoonstack.io/runtime: sandboxd\n      tol",
        "kubernetes.io/hostname: a\n      tol",
      ),
      found: [["sandboxd/selector-missing", "nodeSelector:"]],
    },
    {
      name: "a selector value of another case",
      text: changed(
        good,
        /(nodeSelector:\n.*runtime:) sandboxd/,
        "nodeSelector:\n        sandbox.cocoonstack.io/runtime: Sandboxd",
      ),
      found: [["sandboxd/selector-value", "runtime: Sandboxd"]],
    },
    {
      name: "a selector for another runtime",
      text: changed(good, /nodeSelector:\n.*/, "nodeSelector:\n        sandbox.cocoonstack.io/runtime: kata"),
      found: [["sandboxd/selector-value", "runtime: kata"]],
    },
    {
      name: "the label of older nodes",
      text: changed(good, /nodeSelector:\n.*/, "nodeSelector:\n        cocoon-sandbox.io/runtime: sandboxd"),
      found: [["sandboxd/selector-value", "cocoon-sandbox.io"]],
    },
    {
      name: "a node affinity selects as well as a nodeSelector",
      text: changed(
        good,
        /nodeSelector:\n.*/,
        "affinity:\n        nodeAffinity:\n          requiredDuringSchedulingIgnoredDuringExecution:\n            nodeSelectorTerms:\n              - matchExpressions:\n                  - {key: sandbox.cocoonstack.io/runtime, operator: In, values: [sandboxd]}",
      ),
      found: [],
    },
    {
      name: "an affinity with an alternative does not select",
      text: changed(
        good,
        /nodeSelector:\n.*/,
        "affinity:\n        nodeAffinity:\n          requiredDuringSchedulingIgnoredDuringExecution:\n            nodeSelectorTerms:\n              - matchExpressions:\n                  - {key: sandbox.cocoonstack.io/runtime, operator: In, values: [sandboxd]}\n              - matchExpressions:\n                  - {key: other, operator: Exists}",
      ),
      found: [["sandboxd/selector-missing", "    spec:"]],
    },
    {
      name: "a label that a virtual node does not have by itself",
      text: inserted(good, "      nodeSelector:", "  kubernetes.io/arch: amd64"),
      found: [["sandboxd/selector-unmatched", "arch", "warning"]],
    },
    {
      name: "a label that a virtual node has with another value",
      text: inserted(good, "      nodeSelector:", "  type: metal"),
      found: [["sandboxd/selector-unmatched", "metal", "error"]],
    },
    {
      name: "a label that the operator's nodes were started with",
      text: inserted(good, "      nodeSelector:", "  zone: a"),
      found: [],
      options: { nodeLabels: { "sandbox.cocoonstack.io/runtime": "sandboxd", zone: "a" } },
    },
    {
      name: "labels of the operator's own choice select sandboxd",
      text: changed(good, /nodeSelector:\n.*/, "nodeSelector:\n        tier: hot"),
      found: [],
      options: { nodeLabels: { tier: "hot" } },
    },
    {
      name: "both providers selected",
      text: inserted(good, "      nodeSelector:", "  cocoonstack.io/pool: default"),
      found: [["sandboxd/selectors-conflict", "pool: default"]],
    },
    {
      name: "no toleration",
      text: withoutTolerations,
      found: [["sandboxd/toleration-missing", "    spec:"]],
    },
    {
      name: "a toleration of the other provider's taint only",
      text: changed(good, "operator: Exists", "value: cocoon"),
      found: [["sandboxd/toleration-missing", "virtual-kubelet.io/provider"]],
    },
    {
      name: "a toleration with another effect",
      text: changed(good, "effect: NoSchedule", "effect: NoExecute"),
      found: [["sandboxd/toleration-missing", "virtual-kubelet.io/provider"]],
    },
    {
      name: "a toleration by value sandboxd is enough",
      text: changed(good, "operator: Exists", "value: sandboxd"),
      found: [],
    },
    {
      name: "a toleration of every taint is enough",
      text: changed(good, /- key: virtual.*\n.*\n.*NoSchedule/, "- operator: Exists"),
      found: [],
    },
    {
      name: "nodeName pins the Pod, so that selector and toleration do not matter",
      text: changed(withoutTolerations, "    spec:", "    spec:\n      nodeName: node-1"),
      found: [["sandboxd/node-name", "nodeName", "warning"]],
    },
  ]);
});

describe("sandboxd: what the claim asks for", () => {
  rows([
    {
      name: "no template",
      text: changed(good, /.*io\/template: .*\n/, ""),
      found: [["sandboxd/template-missing", "annotations:"]],
    },
    {
      name: "an empty template",
      text: changed(good, /io\/template: .*/, 'io/template: ""'),
      found: [["sandboxd/template-missing", "io/template"]],
    },
    {
      name: "a template of null, which the API reads as empty",
      text: changed(good, /io\/template: .*/, "io/template:"),
      found: [["sandboxd/template-missing", "io/template"]],
    },
    {
      name: "a template with a space",
      text: changed(good, /io\/template: .*/, 'io/template: "rt:24.04 "'),
      found: [["sandboxd/template-value", "io/template"]],
    },
    {
      name: "a misspelt template is one mistake, not two",
      text: changed(good, "io/template:", "io/templete:"),
      found: [["manifest/misspelt-annotation", "templete"]],
    },
    {
      name: "another runtime",
      text: changed(good, "io/runtime: sandboxd", "io/runtime: vk-cocoon"),
      found: [["sandboxd/runtime-value", "vk-cocoon"]],
    },
    { name: "no runtime", text: changed(good, /.*io\/runtime: sandboxd\n/, ""), found: [] },
    {
      name: "an unknown lane",
      text: changed(good, "net: none", "net: internet"),
      found: [["sandboxd/net-value", "internet"]],
    },
    { name: "no lane", text: changed(good, /.*net: none\n/, ""), found: [] },
    {
      name: "an unknown size",
      text: changed(good, "size: small", "size: huge"),
      found: [["sandboxd/size-value", "huge"]],
    },
    {
      name: "an image that is not the template",
      text: changed(good, "image: ghcr.io/cocoonstack/sandbox/rt:24.04", "image: ubuntu"),
      found: [["sandboxd/image-differs", "image: ubuntu", "warning"]],
    },
    {
      name: "an image that is another on purpose",
      text: changed(
        good,
        "image: ghcr.io/cocoonstack/sandbox/rt:24.04",
        "image: ubuntu # vk-sandbox-ignore: sandboxd/image-differs",
      ),
      found: [],
    },
    {
      name: "a comment for another rule mutes nothing",
      text: changed(
        good,
        "image: ghcr.io/cocoonstack/sandbox/rt:24.04",
        "image: ubuntu # vk-sandbox-ignore: sandboxd/net-value",
      ),
      found: [["sandboxd/image-differs", "image: ubuntu"]],
    },
    {
      name: "a claim id of the author's",
      text: annotation("claim-id", "sb_1"),
      found: [["sandboxd/claim-id-written", "claim-id"]],
    },
    {
      name: "vk-cocoon's annotations",
      text: inserted(good, "size: small", "cocoonset.cocoonstack.io/os: linux"),
      found: [["sandboxd/cocoon-annotation", "io/os"]],
    },
  ]);
  test("several rules can be ignored at once", () => {
    const text = changed(good, "image: ghcr.io/cocoonstack/sandbox/rt:24.04", "image: ubuntu");
    expect(checkText(text, { ignore: new Set(["sandboxd/image-differs"]) }).findings).toEqual([]);
  });
});

describe("sandboxd: the lease", () => {
  for (const value of ["-1", "1.5", "1h", "abc", "1e3", "12345678901", "+60"])
    rows([
      {
        name: `ttl-seconds ${value} fails the create`,
        text: annotation("ttl-seconds", `"${value}"`),
        found: [["sandboxd/ttl-value", "ttl-seconds"]],
      },
    ]);
  rows([
    {
      name: "ttl-seconds 0 is five minutes",
      text: annotation("ttl-seconds", '"0"'),
      found: [["sandboxd/ttl-zero", "ttl-seconds"]],
    },
    {
      name: "ttl-seconds above 24 hours is shortened",
      text: annotation("ttl-seconds", '"90000"'),
      found: [["sandboxd/ttl-clamped", "ttl-seconds"]],
    },
    { name: "ttl-seconds of 24 hours", text: annotation("ttl-seconds", '"86400"'), found: [] },
    {
      name: "ttl-seconds as a number is refused by the API server",
      text: annotation("ttl-seconds", "60"),
      found: [["manifest/not-a-string", "ttl-seconds"]],
    },
    { name: "renew", text: annotation("renew", '"true"'), found: [] },
    {
      name: "renew in another word",
      text: annotation("renew", '"yes"'),
      found: [["sandboxd/renew-value", "renew"]],
    },
    {
      name: "renew as a boolean is refused by the API server",
      text: annotation("renew", "true"),
      found: [["manifest/not-a-string", "renew"]],
    },
    {
      name: "on is a boolean for kubectl",
      text: annotation("renew", "on"),
      found: [["manifest/not-a-string", "renew"]],
    },
    {
      name: "a shutdownTime behind the lease",
      text: changed(
        good,
        "spec:\n",
        `spec:\n  shutdownTime: "${new Date(nowMs + 48 * 3_600_000).toISOString()}"\n`,
      ),
      found: [["sandboxd/lease-short", "shutdownTime"]],
    },
    {
      name: "a pool with a lease of five minutes",
      text: inserted(pooledExample, "template: rt", 'sandbox.cocoonstack.io/ttl-seconds: "300"'),
      found: [["sandboxd/lease-short", "ttl-seconds"]],
    },
    {
      name: "a pool with a short lease that is renewed",
      text: inserted(
        pooledExample,
        "template: rt",
        'sandbox.cocoonstack.io/ttl-seconds: "300"',
        'sandbox.cocoonstack.io/renew: "true"',
      ),
      found: [],
    },
  ]);
});

describe("sandboxd: what a virtual node does not do", () => {
  rows([
    {
      name: "restartPolicy Never",
      text: podSpec("restartPolicy: Never"),
      found: [["sandboxd/restart-never", "Never"]],
    },
    {
      name: "runtimeClassName",
      text: podSpec("runtimeClassName: gvisor"),
      found: [["sandboxd/runtime-class", "gvisor"]],
    },
    {
      name: "a PersistentVolumeClaim",
      text: podSpec("volumes:", "  - name: data", "    persistentVolumeClaim: {claimName: d}"),
      found: [["sandboxd/volume-claim", "name: data"]],
    },
    {
      name: "volumeClaimTemplates",
      text: changed(good, "spec:\n", "spec:\n  volumeClaimTemplates: [{metadata: {name: d}, spec: {}}]\n"),
      found: [["sandboxd/volume-claim", "volumeClaimTemplates"]],
    },
    {
      name: "a host port",
      text: container("ports: [{containerPort: 80, hostPort: 80}]"),
      found: [["sandboxd/host-port", "hostPort"]],
    },
    {
      name: "a network policy",
      text: changed(pooledExample, "spec:\n", "spec:\n  networkPolicy: {egress: []}\n"),
      found: [["sandboxd/network-policy", "networkPolicy"]],
    },
  ]);
  const ignored: [field: string, text: string][] = [
    ["initContainers", podSpec("initContainers: [{name: i, image: x}]")],
    ["volumes", podSpec("volumes: [{name: v, emptyDir: {}}]")],
    ["securityContext", podSpec("securityContext: {runAsUser: 1}")],
    ["hostNetwork", podSpec("hostNetwork: true")],
    ["hostPID", podSpec("hostPID: true")],
    ["dnsConfig", podSpec("dnsConfig: {nameservers: [1.1.1.1]}")],
    ["serviceAccountName", podSpec("serviceAccountName: other")],
    ["imagePullSecrets", podSpec("imagePullSecrets: [{name: s}]")],
    ["activeDeadlineSeconds", podSpec("activeDeadlineSeconds: 5")],
    ["terminationGracePeriodSeconds", podSpec("terminationGracePeriodSeconds: 5")],
    ["command", container("command: [sh]")],
    ["args", container("args: [x]")],
    ["env", container("env: [{name: A, value: b}]")],
    ["resources", container("resources: {requests: {cpu: 1}}")],
    ["volumeMounts", container("volumeMounts: [{name: v, mountPath: /v}]")],
    ["livenessProbe", container("livenessProbe: {exec: {command: [x]}}")],
    ["readinessProbe", container("readinessProbe: {exec: {command: [x]}}")],
    ["lifecycle", container("lifecycle: {preStop: {exec: {command: [x]}}}")],
    ["securityContext", container("securityContext: {privileged: true}")],
  ];
  rows(
    ignored.map(([field, text]) => ({
      name: `${field} is ignored, which is a note`,
      text,
      found: [["sandboxd/ignored-field", `${field}:`, "info"]],
      notes: true,
    })),
  );
  test("what the API server fills in by itself is no note", () => {
    const text = podSpec(
      "dnsPolicy: ClusterFirst",
      "terminationGracePeriodSeconds: 30",
      "securityContext: {}",
    );
    expect(checkText(text).findings).toEqual([]);
  });
});

describe("pools, templates and claims", () => {
  rows([
    {
      name: "a pool whose template is not spread",
      text: changed(pooledExample, / {6}topologySpreadConstraints:\n( {8}.*\n)+?(?= {6}nodeS)/, ""),
      found: [["sandboxd/spread-missing", "    spec:", "warning"]],
    },
    {
      name: "a spread constraint over zones only",
      text: changed(
        pooledExample,
        "topologyKey: kubernetes.io/hostname",
        "topologyKey: topology.kubernetes.io/zone",
      ),
      found: [["sandboxd/spread-missing", "topologySpreadConstraints"]],
    },
    {
      name: "a spread constraint that counts other Pods",
      text: changed(pooledExample, "              pool: agent", "              pool: other"),
      found: [["sandboxd/spread-selects-nothing", "labelSelector"]],
    },
    {
      name: "a pool whose template is not there",
      text: changed(
        pooledExample,
        "sandboxTemplateRef:\n    name: agent",
        "sandboxTemplateRef:\n    name: agnet",
      ),
      found: [["pool/template-missing", "agnet", "warning"]],
    },
    {
      name: "a pool whose template is not in the cluster",
      text: changed(
        pooledExample,
        "sandboxTemplateRef:\n    name: agent",
        "sandboxTemplateRef:\n    name: agnet",
      ),
      found: [["pool/template-missing", "agnet", "error"]],
      options: { complete: true },
    },
    {
      name: "a claim whose pool is not there",
      text: changed(pooledExample, "warmPoolRef:\n    name: agent", "warmPoolRef:\n    name: gone"),
      found: [["claim/pool-missing", "gone", "warning"]],
    },
    {
      name: "a claim of the older version whose template is not there",
      text: changed(
        changed(pooledExample, /v1beta1\nkind: SandboxClaim/, "v1alpha1\nkind: SandboxClaim"),
        "warmPoolRef:\n    name: agent",
        "sandboxTemplateRef:\n    name: gone",
      ),
      found: [["claim/template-missing", "gone"]],
    },
    {
      name: "a pool in another namespace is another pool",
      text: changed(
        pooledExample,
        "kind: SandboxClaim\nmetadata:",
        "kind: SandboxClaim\nmetadata:\n  namespace: b",
      ),
      found: [["claim/pool-missing", "name: agent"]],
    },
    {
      name: "a claim that sets annotations",
      text: `${pooledExample}  additionalPodMetadata:\n    annotations:\n      sandbox.cocoonstack.io/size: large\n`,
      found: [["claim/annotation-late", "size"]],
    },
    {
      name: "a claim with environment for sandboxd",
      text: `${pooledExample}  env:\n    - {name: A, value: b}\n`,
      found: [["claim/ignored-field", "env", "info"]],
      notes: true,
    },
  ]);
  test("a template that no pool names is only told about spreading", () => {
    const [template = ""] = pooledExample.split("---");
    const text = changed(template, / {6}topologySpreadConstraints:\n( {8}.*\n)+?(?= {6}nodeS)/, "");
    expect(checkText(text).findings.map(({ rule, severity }) => [rule, severity])).toEqual([
      ["sandboxd/spread-missing", "info"],
    ]);
  });
});

describe("vk-cocoon", () => {
  const edit = (from: string | RegExp, to: string) => changed(cocoonExample, from, to);
  const template = edit(
    "agents.x-k8s.io/v1beta1\nkind: Sandbox",
    "extensions.agents.x-k8s.io/v1beta1\nkind: SandboxTemplate",
  );
  rows([
    {
      name: "no pool selector",
      text: edit(/ {6}nodeSelector:\n.*\n/, ""),
      found: [["cocoon/selector-missing", "    spec:"]],
    },
    {
      name: "an empty pool",
      text: edit("pool: default", 'pool: ""'),
      found: [["cocoon/selector-missing", "pool"]],
    },
    {
      name: "no toleration",
      text: edit(/ {6}tolerations:\n( {8}.*\n)+?(?= {6}containers)/, ""),
      found: [["cocoon/toleration-missing", "    spec:"]],
    },
    {
      name: "a toleration of the other provider's taint",
      text: edit("operator: Exists", "value: sandboxd"),
      found: [["cocoon/toleration-missing", "tolerations"]],
    },
    {
      name: "no VM name",
      text: edit(/.*io\/name: .*\n/, ""),
      found: [["cocoon/name-missing", "annotations"]],
    },
    {
      name: "a VM name in a template, which every Sandbox would share",
      text: template,
      found: [["cocoon/name-in-template", "io/name"]],
    },
    {
      name: "a template without a VM name has none to give",
      text: changed(template, /.*io\/name: .*\n/, ""),
      found: [["cocoon/name-in-template", "annotations"]],
    },
    {
      name: "two Sandboxes with one VM name",
      text: `${cocoonExample}---\n${edit("name: cocoon-example", "name: another")}`,
      found: [["cocoon/name-shared", "vm.cocoonstack.io/name"]],
    },
    {
      name: 'managed as a boolean, and not the string "true"',
      text: edit('managed: "true"', "managed: true"),
      found: [["manifest/not-a-string", "managed"]],
    },
    {
      name: "managed in another word makes the Pod unmanaged",
      text: edit('managed: "true"', 'managed: "True"'),
      found: [["cocoon/managed-value", "managed"]],
    },
    {
      name: "unmanaged without id and IP",
      text: edit('managed: "true"', 'managed: "false"'),
      found: [["cocoon/unmanaged-identity", "managed"]],
    },
    {
      name: "unmanaged because nothing is said",
      text: edit(/.*managed: "true"\n/, ""),
      found: [["cocoon/unmanaged-identity", "annotations"]],
    },
    {
      name: "unmanaged with id and IP",
      text: edit(
        'managed: "true"',
        'managed: "false"\n        vm.cocoonstack.io/id: vm-1\n        vm.cocoonstack.io/ip: 10.0.0.7',
      ),
      found: [],
    },
    {
      name: "unmanaged with an IP that is none",
      text: edit(
        'managed: "true"',
        'managed: "false"\n        vm.cocoonstack.io/id: vm-1\n        vm.cocoonstack.io/ip: 10.0.0.7/24',
      ),
      found: [["cocoon/ip-value", "10.0.0.7/24"]],
    },
    {
      name: "an IPv6 address",
      text: edit(
        'managed: "true"',
        'managed: "false"\n        vm.cocoonstack.io/id: vm-1\n        vm.cocoonstack.io/ip: "fd00::7"',
      ),
      found: [],
    },
    {
      name: "managed with an id of the author's",
      text: edit('managed: "true"', 'managed: "true"\n        vm.cocoonstack.io/id: vm-1'),
      found: [["cocoon/identity-written", "vm-1"]],
    },
    {
      name: "an unknown mode",
      text: edit("mode: run", "mode: boot"),
      found: [["cocoon/mode-value", "boot"]],
    },
    { name: "clone", text: edit("mode: run", "mode: clone"), found: [] },
    {
      name: "no image",
      text: edit(/.*io\/image: .*\n/, ""),
      found: [["cocoon/image-missing", "annotations"]],
    },
    { name: "an unknown OS", text: edit("os: linux", "os: beos"), found: [["cocoon/os-value", "beos"]] },
    {
      name: "restartPolicy Never",
      text: edit("    spec:", "    spec:\n      restartPolicy: Never"),
      found: [["cocoon/restart-never", "Never"]],
    },
    {
      name: "runtimeClassName",
      text: edit("    spec:", "    spec:\n      runtimeClassName: kata"),
      found: [["cocoon/runtime-class", "kata"]],
    },
    {
      name: "nodeName",
      text: edit("    spec:", "    spec:\n      nodeName: a"),
      found: [["cocoon/node-name", "nodeName"]],
    },
    {
      name: "vk-sandbox's annotations",
      text: inserted(cocoonExample, "os: linux", "sandbox.cocoonstack.io/size: small"),
      found: [["cocoon/sandboxd-annotation", "size"]],
    },
    {
      name: "the webhook is a note where it is not known",
      text: cocoonExample,
      found: [["cocoon/webhook", "tolerations", "info"]],
      notes: true,
    },
    {
      name: "the webhook is a warning where it runs",
      text: cocoonExample,
      found: [["cocoon/webhook", "tolerations", "warning"]],
      options: { cluster: { cocoonWebhook: "ValidatingWebhookConfiguration cocoon-webhook" } },
    },
    { name: "no webhook runs here", text: cocoonExample, found: [], options: { cluster: {} }, notes: true },
  ]);
});

describe("the standard kubelet", () => {
  const edit = (from: string | RegExp, to: string) => changed(standardExample, from, to);
  rows([
    {
      name: "a selector for virtual nodes",
      text: edit(
        "      runtimeClassName: kata",
        "      runtimeClassName: kata\n      nodeSelector:\n        type: virtual-kubelet",
      ),
      found: [["standard/lands-elsewhere", "virtual-kubelet"]],
    },
    {
      name: "a toleration that lets it onto virtual nodes",
      text: edit(
        "      runtimeClassName: kata",
        "      runtimeClassName: kata\n      tolerations: [{operator: Exists}]",
      ),
      found: [["standard/tolerates-virtual-nodes", "tolerations"]],
    },
    {
      name: "annotations that nothing will read",
      text: edit(
        "podTemplate:",
        "podTemplate:\n    metadata:\n      annotations:\n        sandbox.cocoonstack.io/size: small",
      ),
      found: [["standard/annotation-unread", "size"]],
    },
    {
      name: "vk-cocoon's annotations, which nothing will read",
      text: edit(
        "podTemplate:",
        "podTemplate:\n    metadata:\n      annotations:\n        cocoonset.cocoonstack.io/os: linux",
      ),
      found: [["standard/annotation-unread", "os"]],
    },
    {
      name: "no RuntimeClass is a note",
      text: edit(/.*kata\n/, ""),
      found: [["standard/no-isolation", "    spec:", "info"]],
      notes: true,
    },
    { name: "a bare Pod without anything", text: bare(""), found: [], notes: true },
  ]);
});

describe("for whom a Pod is", () => {
  const cases: [name: string, text: string, backend: string][] = [
    [
      "the selector decides against annotations",
      changed(cocoonExample, "cocoonstack.io/pool: default", "sandbox.cocoonstack.io/runtime: sandboxd"),
      "sandboxd",
    ],
    ["annotations decide where there is no selector", withoutSelector, "sandboxd"],
    [
      "a toleration by value decides where there is nothing else",
      changed(
        bare(""),
        "spec:\n",
        "spec:\n  tolerations: [{key: virtual-kubelet.io/provider, value: cocoon}]\n",
      ),
      "vk-cocoon",
    ],
    [
      "the runtime annotation of older templates",
      bare("  annotations: {sandbox.cocoonstack.io/runtime: vk-cocoon}\n"),
      "vk-cocoon",
    ],
    [
      "the runtime annotation standard",
      bare("  annotations: {sandbox.cocoonstack.io/runtime: standard}\n"),
      "standard kubelet",
    ],
    [
      "a RuntimeClass without a selector is the standard kubelet's",
      changed(withoutTolerations, /nodeSelector:\n.*sandboxd/, "runtimeClassName: gvisor").replace(
        /.*io\/runtime: sandboxd\n/,
        "",
      ),
      "standard kubelet",
    ],
    ["nothing at all", bare(""), "standard kubelet"],
  ];
  test.each(cases)("%s", (_, text, backend) => {
    expect(checkText(text).judged.map((one): string => one.backend)).toEqual([backend]);
  });
});

describe("the manifest itself", () => {
  rows([
    {
      name: "a duplicate key",
      text: changed(good, "size: small", "size: small\n        sandbox.cocoonstack.io/size: large"),
      found: [["manifest/duplicate-key", "size: large"]],
    },
    {
      name: "numbers and booleans in selector and labels",
      text: changed(
        changed(good, "      nodeSelector:", "      nodeSelector:\n        type: virtual-kubelet"),
        "    metadata:\n      annotations:",
        "    metadata:\n      labels: {a: 1, b: true}\n      annotations:",
      ),
      found: [
        ["manifest/not-a-string", "labels"],
        ["manifest/not-a-string", "labels"],
      ],
    },
    {
      name: "a version that is not served",
      text: changed(good, "v1beta1", "v1"),
      found: [["manifest/unserved-version", "apiVersion"]],
    },
    {
      name: "a version that is deprecated is a note",
      text: changed(good, "v1beta1", "v1alpha1"),
      found: [["manifest/deprecated-version", "apiVersion", "info"]],
      notes: true,
    },
    {
      name: "no Pod template",
      text: "apiVersion: agents.x-k8s.io/v1beta1\nkind: Sandbox\nmetadata: {name: a}\nspec: {}\n",
      found: [["manifest/no-pod-template", "spec"]],
    },
    {
      name: "no containers",
      text: changed(good, / {6}containers:\n(.*\n)+/, "      containers: []\n"),
      found: [["manifest/no-pod-template", "containers"]],
    },
    {
      name: "annotations on the Sandbox itself",
      text: changed(
        changed(good, /.*io\/size: small\n/, ""),
        "  name: sandboxd-example",
        "  name: sandboxd-example\n  annotations:\n    sandbox.cocoonstack.io/size: small",
      ),
      found: [["manifest/misplaced-annotation", "size", "error"]],
    },
    {
      name: "annotations on the Sandbox and on its Pod",
      text: changed(
        good,
        "  name: sandboxd-example",
        "  name: sandboxd-example\n  annotations:\n    sandbox.cocoonstack.io/size: small",
      ),
      found: [["manifest/misplaced-annotation", "size", "warning"]],
    },
    {
      name: "an annotation as a label",
      text: changed(
        good,
        "    metadata:\n      annotations:",
        "    metadata:\n      labels:\n        sandbox.cocoonstack.io/template: rt\n      annotations:",
      ),
      found: [["manifest/misplaced-annotation", "io/template: rt", "warning"]],
    },
    {
      name: "an unknown key under the contract's prefix",
      text: annotation("flavour-of-the-month", "x"),
      found: [["manifest/unknown-annotation", "flavour"]],
    },
  ]);
});

describe("with the cluster at hand", () => {
  const node = (name: string, more: Partial<NodeFact> = {}): NodeFact => ({
    name,
    labels: { "sandbox.cocoonstack.io/runtime": "sandboxd", type: "virtual-kubelet" },
    taints: [{ key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" }],
    ready: true,
    ...more,
  });
  const metal: NodeFact = { name: "metal", labels: {}, taints: [], ready: true };
  rows([
    { name: "a node that fits", text: good, found: [], options: { cluster: { nodes: [metal, node("a")] } } },
    {
      name: "no vk-sandbox node at all",
      text: good,
      found: [["sandboxd/no-node", "nodeSelector"]],
      options: { cluster: { nodes: [metal] } },
    },
    {
      name: "nodes with other labels",
      text: good,
      found: [["sandboxd/no-node", "nodeSelector"]],
      options: { cluster: { nodes: [node("a", { labels: { tier: "hot" } })] } },
    },
    {
      name: "a node that is tainted besides",
      text: good,
      found: [["sandboxd/no-node", "tolerations"]],
      options: {
        cluster: {
          nodes: [
            node("a", {
              taints: [
                ...node("a").taints,
                { key: "node.kubernetes.io/unschedulable", value: "", effect: "NoSchedule" },
              ],
            }),
          ],
        },
      },
    },
    {
      name: "a soft taint keeps nobody away",
      text: good,
      found: [],
      options: {
        cluster: {
          nodes: [
            node("a", {
              taints: [
                ...node("a").taints,
                { key: "sandbox.cocoonstack.io/capacity", value: "exhausted", effect: "PreferNoSchedule" },
              ],
            }),
          ],
        },
      },
    },
    {
      name: "a label that the live nodes have is none to warn of",
      text: inserted(good, "      nodeSelector:", "  kubernetes.io/arch: amd64"),
      found: [],
      options: {
        cluster: { nodes: [node("a", { labels: { ...node("a").labels, "kubernetes.io/arch": "amd64" } })] },
      },
    },
    {
      name: "pinned to a node that does not exist",
      text: podSpec("nodeName: gone"),
      found: [["sandboxd/node-name", "nodeName", "error"]],
      options: { cluster: { nodes: [node("a")] } },
    },
    {
      name: "pinned to an ordinary node",
      text: podSpec("nodeName: metal"),
      found: [["sandboxd/node-name", "nodeName", "error"]],
      options: { cluster: { nodes: [metal] } },
    },
    {
      name: "cocoon-webhook gates the toleration",
      text: good,
      found: [["sandboxd/webhook", "tolerations"]],
      options: { cluster: { cocoonWebhook: "ValidatingWebhookConfiguration cocoon-webhook" } },
    },
  ]);
});

describe("with the pools at hand", () => {
  const template = "ghcr.io/cocoonstack/sandbox/rt:24.04";
  const pools = (
    ...list: [template: string, net: string, size: string, warm: number, target: number][]
  ): Pools => ({
    source: "sandboxd at http://127.0.0.1:7777",
    pools: list.map(([template, net, size, warm, target]) => ({
      template,
      net,
      size,
      warm,
      target,
      where: "a",
    })),
  });
  rows([
    {
      name: "a pool that is warm",
      text: good,
      found: [],
      options: { pools: pools([template, "none", "small", 1, 2]) },
    },
    {
      name: "one warm node among cold ones is enough",
      text: good,
      found: [],
      options: { pools: pools([template, "none", "small", 0, 2], [template, "none", "small", 3, 4]) },
    },
    {
      name: "no pool of that template",
      text: good,
      found: [["sandboxd/pool-missing", "io/template"]],
      options: { pools: pools(["other", "none", "small", 1, 2]) },
    },
    {
      name: "no pool at all",
      text: good,
      found: [["sandboxd/pool-missing", "io/template"]],
      options: { pools: pools() },
    },
    {
      name: "no pool of that size",
      text: good,
      found: [["sandboxd/pool-missing", "io/template"]],
      options: { pools: pools([template, "none", "large", 1, 2]) },
    },
    {
      name: "a pool that is cold",
      text: good,
      found: [["sandboxd/pool-cold", "io/template"]],
      options: { pools: pools([template, "none", "small", 0, 2]) },
    },
    {
      name: "an axis that is left out may be any",
      text: changed(good, /.*net: none\n/, ""),
      found: [],
      options: { pools: pools([template, "egress", "small", 1, 2]) },
    },
  ]);
  test("a template with a typing mistake is told which pool there is", () => {
    const text = good.replaceAll("rt:24.04", "rt:24.40");
    const { findings } = checkText(text, { pools: pools([template, "none", "small", 1, 2]) });
    expect(findings.map(({ fix }) => fix)).toEqual([`Write ${template}, or provision the pool in sandboxd.`]);
  });
});

describe("live objects", () => {
  const live = (value: Record<string, unknown>) => ({ file: "cluster", value, base: [] });
  const pod = {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      name: "agent",
      namespace: "a",
      annotations: { "sandbox.cocoonstack.io/template": "rt", "sandbox.cocoonstack.io/claim-id": "sb_1" },
      ownerReferences: [{ kind: "Sandbox", name: "agent", controller: true }],
    },
    spec: {
      nodeName: "vk",
      nodeSelector: { "sandbox.cocoonstack.io/runtime": "sandboxd" },
      tolerations: [{ operator: "Exists" }],
      containers: [{ name: "a", image: "rt" }],
    },
  };
  const judge = async (...values: Record<string, unknown>[]) => {
    const { check } = await import("./check.ts");
    return check({ objects: values.map(live), nowMs, complete: true });
  };
  test("the claim id and the node of a Pod are the provider's and the scheduler's work", async () => {
    const { findings } = await judge(pod);
    expect(findings).toEqual([]);
  });
  test("a Pod is judged at its Sandbox", async () => {
    const sandbox = {
      apiVersion: "agents.x-k8s.io/v1beta1",
      kind: "Sandbox",
      metadata: { name: "agent", namespace: "a" },
      spec: { podTemplate: { spec: { containers: [{ name: "a", image: "rt" }] }, metadata: pod.metadata } },
    };
    const { findings, judged, skipped } = await judge(sandbox, pod);
    expect(judged.map(({ object }) => object)).toEqual(["Sandbox a/agent"]);
    expect(skipped.map(({ what }) => what)).toEqual(["Pod a/agent is judged at its owner, Sandbox a/agent"]);
    // In a template the claim id is the author's.
    expect(findings.map(({ rule }) => rule)).toContain("sandboxd/claim-id-written");
    for (const { region } of findings) expect(region).toBeUndefined();
  });
  test("the Pods of a DaemonSet that tolerates everything are nobody's business", async () => {
    const daemon = {
      apiVersion: "v1",
      kind: "Pod",
      metadata: {
        name: "proxy",
        namespace: "kube-system",
        ownerReferences: [{ kind: "DaemonSet", name: "proxy" }],
      },
      spec: { nodeName: "n", tolerations: [{ operator: "Exists" }], containers: [{ name: "a", image: "x" }] },
    };
    const { findings, judged } = await judge(daemon);
    expect([findings, judged]).toEqual([[], []]);
  });
});

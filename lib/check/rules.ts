/**
 * Every rule by its id: the one list that findings, help, SARIF and docs/check.md are made from. Ids never
 * change their meaning; a rule that goes leaves its id unused.
 */
import type { Severity } from "./types.ts";

export interface Rule {
  severity: Severity;
  /** `--fix` can mend it, at least where what was meant is plain. */
  fixable?: boolean;
  /** The mistake, in a few words. */
  title: string;
  /** What comes of it, for help and documentation. */
  why: string;
}

export const rules = {
  "manifest/duplicate-key": {
    severity: "error",
    title: "A map has the same key twice",
    why: "YAML readers disagree: some keep the last one silently, others refuse the file. A document with such a map is judged by its last one and not fixed.",
  },
  "manifest/not-a-string": {
    severity: "error",
    fixable: true,
    title: "An annotation, a label or a selector is not a string",
    why: "Unquoted 60, true, yes or on are numbers and booleans in YAML, and the API server refuses the object: these maps hold strings only.",
  },
  "manifest/unserved-version": {
    severity: "error",
    title: "The kind has no such API version",
    why: "The API server does not know the object and refuses it.",
  },
  "manifest/deprecated-version": {
    severity: "info",
    title: "The API version is deprecated",
    why: "It is served by conversion for now; v1beta1 is the one that is stored.",
  },
  "manifest/no-pod-template": {
    severity: "error",
    title: "There is no Pod template, or none with containers",
    why: "The API server refuses the object, or the controller's Pod: there is nothing to run.",
  },
  "manifest/misplaced-annotation": {
    severity: "error",
    title: "A contract annotation is where nothing reads it",
    why: "The controller copies spec.podTemplate.metadata to the Pod and nothing else. On the Sandbox's or template's own metadata, or as a label, the annotation never reaches the node.",
  },
  "manifest/misspelt-annotation": {
    severity: "error",
    fixable: true,
    title: "An annotation key is nearly one of the contract's",
    why: "Nothing reads the misspelt key; the node sees a Pod without it.",
  },
  "manifest/unknown-annotation": {
    severity: "warning",
    title: "An annotation under a contract prefix that nobody reads",
    why: "The key has a provider's prefix, and no provider reads it.",
  },
  "sandboxd/selector-missing": {
    severity: "error",
    fixable: true,
    title: "No node selector for the sandboxd nodes",
    why: "Nothing leads the Pod to a microVM: an ordinary Node takes it and runs it as a plain container, or, where none fits, it stays Pending.",
  },
  "sandboxd/selector-value": {
    severity: "error",
    fixable: true,
    title: "The node selector matches no sandboxd node",
    why: "No Node carries the label, so the scheduler never binds the Pod; it stays Pending.",
  },
  "sandboxd/selector-unmatched": {
    severity: "warning",
    title: "The selector asks for a label that virtual nodes do not have by themselves",
    why: "A vk-sandbox Node carries its own labels and those of --node-labels, nothing that a kubelet would set; unless it was started with this one the Pod stays Pending.",
  },
  "sandboxd/selectors-conflict": {
    severity: "error",
    title: "The selector asks for a sandboxd node and for a vk-cocoon node at once",
    why: "No Node is both, so the scheduler never binds the Pod; it stays Pending.",
  },
  "sandboxd/no-node": {
    severity: "error",
    title: "No Node of the cluster matches",
    why: "Only with --cluster: selector and tolerations fit no Node that exists, so the Pod stays Pending.",
  },
  "sandboxd/toleration-missing": {
    severity: "error",
    fixable: true,
    title: "The virtual node's taint is not tolerated",
    why: "The Node's taint virtual-kubelet.io/provider=sandboxd:NoSchedule keeps the Pod off it; it stays Pending.",
  },
  "sandboxd/template-missing": {
    severity: "error",
    title: "The annotation sandbox.cocoonstack.io/template is missing or empty",
    why: "The claim has no pool to come from: the create fails, the Pod stays Pending with the reason on it (Failed for good under restartPolicy Never).",
  },
  "sandboxd/template-value": {
    severity: "error",
    fixable: true,
    title: "The pool template has spaces in it",
    why: "The value is compared as it is; no pool has that name, so the claim is refused and the Pod stays Pending.",
  },
  "sandboxd/runtime-value": {
    severity: "error",
    fixable: true,
    title: "The annotation sandbox.cocoonstack.io/runtime is not sandboxd",
    why: "A vk-sandbox node serves one runtime and fails the create of any other.",
  },
  "sandboxd/net-value": {
    severity: "error",
    fixable: true,
    title: "The network lane is neither none nor egress",
    why: "sandboxd has no such pool axis; the create fails and the Pod stays Pending.",
  },
  "sandboxd/size-value": {
    severity: "error",
    fixable: true,
    title: "The size is none of small, medium, large",
    why: "sandboxd has no such pool axis; the create fails and the Pod stays Pending.",
  },
  "sandboxd/ttl-value": {
    severity: "error",
    fixable: true,
    title: "ttl-seconds is negative or no whole number",
    why: "The create fails and the Pod stays Pending.",
  },
  "sandboxd/ttl-zero": {
    severity: "warning",
    title: "ttl-seconds is 0",
    why: "It does not mean for ever: sandboxd reads 0 as five minutes, after which the VM is destroyed and the Pod is Failed with SandboxLeaseExpired.",
  },
  "sandboxd/ttl-clamped": {
    severity: "warning",
    title: "ttl-seconds is above 24 hours",
    why: "sandboxd shortens it to 86400; the VM is destroyed then unless the lease is renewed.",
  },
  "sandboxd/renew-value": {
    severity: "warning",
    fixable: true,
    title: 'The annotation sandbox.cocoonstack.io/renew is neither "true" nor "false"',
    why: 'Only "true" renews; any other value is read as no, and the VM ends with its lease.',
  },
  "sandboxd/lease-short": {
    severity: "warning",
    title: "The lease ends before the sandbox is meant to",
    why: "The lease runs from the claim: in a warm pool it runs while nobody uses the sandbox, and a shutdownTime after it is never reached. At its end the VM is destroyed and the Pod is Failed.",
  },
  "sandboxd/claim-id-written": {
    severity: "error",
    fixable: true,
    title: "The author wrote the annotation sandbox.cocoonstack.io/claim-id",
    why: "The provider writes it. A new Pod that carries one looks like a Pod that already ran: its VM is not found, and it is published Failed with SandboxLost instead of getting a VM.",
  },
  "sandboxd/image-differs": {
    severity: "warning",
    title: "The container image is not the pool template",
    why: "The image is not what the claim asks for, the template annotation is. Unless the pool was built from another reference on purpose, the Pod claims from a pool that nobody provisioned.",
  },
  "sandboxd/node-name": {
    severity: "warning",
    title: "spec.nodeName pins the Pod to a Node",
    why: "The scheduler is bypassed: selector, toleration and capacity taint have no say, the Pod waits on that node however full it is, and replacements go there even when it is gone.",
  },
  "sandboxd/restart-never": {
    severity: "warning",
    title: "restartPolicy Never",
    why: "One refused claim, a pool that is cold for a second say, makes the Pod Failed for good instead of being tried again.",
  },
  "sandboxd/runtime-class": {
    severity: "warning",
    title: "runtimeClassName is set",
    why: "It names a CRI handler and a virtual node has none, so it isolates nothing here. The RuntimeClass must still exist, and its own node selector and tolerations are merged into the Pod.",
  },
  "sandboxd/spread-missing": {
    severity: "warning",
    title: "A pool's Pods are not spread over the nodes",
    why: "vk-sandbox nodes look identical to the scheduler, which then packs one of them: its sandboxd runs dry while the others stay warm.",
  },
  "sandboxd/spread-selects-nothing": {
    severity: "warning",
    title: "The spread constraint counts none of these Pods",
    why: "A topologySpreadConstraint counts the Pods its labelSelector selects; when that does not select the template's own labels it spreads nothing.",
  },
  "sandboxd/volume-claim": {
    severity: "warning",
    title: "A PersistentVolumeClaim",
    why: "Nothing mounts it into the VM, and the scheduler still waits for it to be bound: the Pod may stay Pending for a disk it never sees.",
  },
  "sandboxd/host-port": {
    severity: "warning",
    title: "A container asks for a host port",
    why: "Nothing opens it, and the scheduler still lets only one such Pod onto each Node.",
  },
  "sandboxd/network-policy": {
    severity: "warning",
    title: "The template's network policy does not reach a microVM",
    why: "A NetworkPolicy is enforced by the Node's network plugin, and a virtual node has none: what it forbids is not forbidden. The lane is chosen by sandbox.cocoonstack.io/net.",
  },
  "sandboxd/ignored-field": {
    severity: "info",
    title: "A field that a virtual node ignores",
    why: "The workload is what the pool's template runs in the VM, not containers made from this spec.",
  },
  "sandboxd/cocoon-annotation": {
    severity: "warning",
    title: "vk-cocoon's annotations on a Pod for sandboxd",
    why: "vk-sandbox does not read them; where cocoon-webhook runs, vm.cocoonstack.io/name alone gets the Pod denied.",
  },
  "sandboxd/pool-missing": {
    severity: "error",
    title: "No node has the pool",
    why: "Only with --sandboxd-url or --cluster: no sandboxd has a pool with this template, net and size, so every claim is refused and the Pod stays Pending.",
  },
  "sandboxd/pool-cold": {
    severity: "warning",
    title: "The pool has no warm VM now",
    why: "Only with --sandboxd-url or --cluster: the claim is refused until sandboxd has refilled the pool; the Pod stays Pending that long.",
  },
  "sandboxd/webhook": {
    severity: "warning",
    title: "cocoon-webhook runs here and gates the toleration",
    why: "Only with --cluster: that webhook denies a Pod with the virtual-kubelet.io/provider toleration unless a CocoonSet owns it and its creator is in POD_CREATORS.",
  },
  "cocoon/selector-missing": {
    severity: "error",
    title: "No node selector for a vk-cocoon pool",
    why: "Nothing leads the Pod to a vk-cocoon node: an ordinary Node takes it and runs it as a plain container, or, where none fits, it stays Pending.",
  },
  "cocoon/toleration-missing": {
    severity: "error",
    fixable: true,
    title: "The virtual node's taint is not tolerated",
    why: "The Node's taint virtual-kubelet.io/provider=cocoon:NoSchedule keeps the Pod off it; it stays Pending.",
  },
  "cocoon/name-missing": {
    severity: "error",
    title: "The annotation vm.cocoonstack.io/name is missing or empty",
    why: "The create fails without the VM's name; the Pod stays Pending.",
  },
  "cocoon/name-in-template": {
    severity: "error",
    title: "A SandboxTemplate names a VM",
    why: "The template is copied verbatim, so every Sandbox made from it carries one VM name: the second Pod adopts the first one's VM instead of booting its own.",
  },
  "cocoon/name-shared": {
    severity: "error",
    title: "Two objects name the same VM",
    why: "A Pod that reuses the name of a live VM adopts that VM: two sandboxes would share one.",
  },
  "cocoon/managed-value": {
    severity: "error",
    fixable: true,
    title: 'cocoonset.cocoonstack.io/managed is neither "true" nor "false"',
    why: 'Only "true" lets vk-cocoon create the VM; anything else is an unmanaged Pod, which must bring the id and IP of a VM that exists.',
  },
  "cocoon/unmanaged-identity": {
    severity: "error",
    title: "An unmanaged Pod without VM id and IP",
    why: 'Without cocoonset.cocoonstack.io/managed: "true" the VM must exist already, and vm.cocoonstack.io/id and vm.cocoonstack.io/ip say which it is; without them the create fails.',
  },
  "cocoon/identity-written": {
    severity: "warning",
    title: "A managed Pod with a VM id or IP",
    why: "vk-cocoon writes both for a VM that it creates; what the author wrote is wrong until then.",
  },
  "cocoon/ip-value": {
    severity: "error",
    title: "vm.cocoonstack.io/ip is no IP address",
    why: "It becomes the Pod's IP, which the API server refuses, so the Pod never shows as Running.",
  },
  "cocoon/mode-value": {
    severity: "error",
    fixable: true,
    title: "The mode is neither run nor clone",
    why: "Only run boots the image; anything else is treated as clone and looks for a snapshot of that name.",
  },
  "cocoon/image-missing": {
    severity: "error",
    title: "A managed Pod without an image",
    why: "There is nothing to boot or clone the VM from, so the create fails.",
  },
  "cocoon/os-value": {
    severity: "error",
    fixable: true,
    title: "The guest OS is none of linux, windows, macos",
    why: "vk-cocoon prepares the VM by the OS family; it does not know this one.",
  },
  "cocoon/node-name": {
    severity: "warning",
    title: "spec.nodeName pins the Pod to a Node",
    why: "The scheduler is bypassed: selector and toleration have no say, and replacements go to that Node even when it is gone.",
  },
  "cocoon/restart-never": {
    severity: "warning",
    title: "restartPolicy Never",
    why: "One failed create makes the Pod Failed for good instead of being tried again.",
  },
  "cocoon/runtime-class": {
    severity: "warning",
    title: "runtimeClassName is set",
    why: "It names a CRI handler and a virtual node has none. The RuntimeClass must still exist, and its own node selector and tolerations are merged into the Pod.",
  },
  "cocoon/sandboxd-annotation": {
    severity: "warning",
    title: "vk-sandbox's annotations on a Pod for vk-cocoon",
    why: "vk-cocoon does not read them.",
  },
  "cocoon/webhook": {
    severity: "info",
    title: "cocoon-webhook denies such Pods unless told otherwise",
    why: "Where it runs, a Pod with the virtual-kubelet.io/provider toleration or vm.cocoonstack.io/name is denied unless a CocoonSet owns it and its creator is in POD_CREATORS. A Sandbox's Pod is neither: add the agent-sandbox controller's service account to POD_CREATORS. A warning with --cluster where the webhook is found.",
  },
  "standard/lands-elsewhere": {
    severity: "error",
    title: "The selector leads to virtual nodes, the rest to an ordinary one",
    why: "Only virtual nodes carry the label. Their taint keeps the Pod Pending, or, tolerated, the provider fails it for want of annotations.",
  },
  "standard/tolerates-virtual-nodes": {
    severity: "warning",
    title: "The Pod may land on a virtual node",
    why: "It tolerates the virtual nodes' taint and no selector keeps it away; there the create fails for want of the annotations.",
  },
  "standard/annotation-unread": {
    severity: "warning",
    title: "Annotations of a microVM provider on a Pod for an ordinary Node",
    why: "A kubelet reads none of them: the Pod is a plain container workload.",
  },
  "standard/no-isolation": {
    severity: "info",
    title: "No RuntimeClass",
    why: "On an ordinary Node a sandbox is isolated by its RuntimeClass (Kata Containers, gVisor); without one it shares the Node's kernel.",
  },
  "claim/pool-missing": {
    severity: "warning",
    title: "The SandboxClaim's warm pool is not there",
    why: "The claim waits until a SandboxWarmPool of that name exists in its namespace. An error with --cluster, a warning where only files are known.",
  },
  "claim/template-missing": {
    severity: "warning",
    title: "The SandboxClaim's template is not there",
    why: "The claim waits until a SandboxTemplate of that name exists in its namespace. An error with --cluster, a warning where only files are known.",
  },
  "claim/annotation-late": {
    severity: "warning",
    title: "A claim sets annotations that were read before it came",
    why: "A pooled sandbox has its VM already when it is claimed; template, net, size and lease cannot change any more.",
  },
  "claim/ignored-field": {
    severity: "info",
    title: "A field of the claim that a virtual node ignores",
    why: "env and volumeClaimTemplates go into the Pod's containers and volumes, which a VM does not get.",
  },
  "pool/template-missing": {
    severity: "warning",
    title: "The SandboxWarmPool's template is not there",
    why: "The pool stays empty until a SandboxTemplate of that name exists in its namespace. An error with --cluster, a warning where only files are known.",
  },
} as const satisfies Record<string, Rule>;

export type RuleId = keyof typeof rules;

/** Every rule with its id, in the order of documentation. */
export const ruleList: readonly (Rule & { id: RuleId })[] = Object.entries(rules).map(([id, rule]) => ({
  id: id as RuleId,
  ...(rule as Rule),
}));

export function isRule(id: string): id is RuleId {
  return Object.hasOwn(rules, id);
}

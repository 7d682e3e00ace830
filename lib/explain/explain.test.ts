import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Evidence, NodeState, PodFact, SandboxFact } from "./evidence.ts";
import { eventFact, podFact, sandboxFact } from "./evidence.ts";
import { explain, type ReasonId } from "./explain.ts";
import { renderExplanation } from "./render.ts";

const nowMs = Date.parse("2026-05-01T12:00:00Z");
const ago = (seconds: number) => new Date(nowMs - seconds * 1000).toISOString();

interface PodChanges {
  annotations?: Record<string, string>;
  spec?: Record<string, unknown>;
  status?: Record<string, unknown>;
  metadata?: Record<string, unknown>;
}

const right = {
  nodeSelector: { "sandbox.cocoonstack.io/runtime": "sandboxd" },
  tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" }],
  containers: [{ name: "agent", image: "rt" }],
};

function pod({ annotations, spec, status, metadata }: PodChanges = {}): PodFact {
  const fact = podFact({
    metadata: {
      name: "one",
      namespace: "a",
      uid: "pod-uid",
      creationTimestamp: ago(300),
      annotations: { "sandbox.cocoonstack.io/template": "rt", ...annotations },
      ...metadata,
    },
    spec: { ...right, ...spec },
    status: { phase: "Pending", ...status },
  });
  if (fact === undefined) throw new Error("no Pod");
  return fact;
}

const unschedulable = (message: string) => ({
  conditions: [
    { type: "PodScheduled", status: "False", reason: "Unschedulable", message, lastTransitionTime: ago(290) },
  ],
});
const bound = (seconds = 200) => ({
  conditions: [{ type: "PodScheduled", status: "True", lastTransitionTime: ago(seconds) }],
});

function node(name: string, changes: Partial<NodeState> = {}): NodeState {
  return {
    name,
    labels: { "sandbox.cocoonstack.io/runtime": "sandboxd", type: "virtual-kubelet" },
    taints: [{ key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" }],
    ready: true,
    unschedulable: false,
    conditions: [
      { type: "Ready", status: "True", reason: "KubeletReady", message: "", lastTransitionTime: "" },
    ],
    allocatable: { cpu: "4000", pods: "2000" },
    ...changes,
  };
}

const metal = node("metal", { labels: { "kubernetes.io/arch": "amd64" }, taints: [] });
const notReady = (status: string, reason: string, message: string) => ({
  ready: false,
  conditions: [{ type: "Ready", status, reason, message, lastTransitionTime: "" }],
});
const tainted = (key: string) => ({
  taints: [...node("x").taints, { key, value: "", effect: "NoSchedule" }],
});

function sandbox(changes: { spec?: object; status?: object; metadata?: object } = {}): SandboxFact {
  const fact = sandboxFact({
    metadata: { name: "one", namespace: "a", uid: "s", creationTimestamp: ago(300), ...changes.metadata },
    spec: { podTemplate: {}, ...changes.spec },
    status: changes.status,
  });
  if (fact === undefined) throw new Error("no Sandbox");
  return fact;
}

const event = (about: string, reason: string, message: string, count = 1) => {
  const fact = eventFact({
    type: "Warning",
    reason,
    message,
    count,
    lastTimestamp: ago(20),
    involvedObject: { kind: about },
    source: { component: "vk-1/pod-controller" },
  });
  if (fact === undefined) throw new Error("no Event");
  return fact;
};

const base: Evidence = { key: "a/one", nowMs, askedForSandbox: false, events: [], entries: [], unseen: [] };

const pool = (where: string, warm: number, target = 2, template = "rt") => ({
  template,
  net: "none",
  size: "small",
  warm,
  target,
  where,
});
const message =
  "no warm sandbox of template rt on this node: pool is empty. Raise the pool's target or add nodes; the claim is tried again";
const refused = (text = message) => ({
  phase: "Pending",
  reason: "ProviderFailed",
  message: text,
  ...bound(),
});

interface Row {
  name: string;
  evidence: Partial<Evidence>;
  reason: ReasonId;
  because: RegExp;
  shows?: RegExp[];
  next: RegExp;
  fine?: true;
}

const rows: Row[] = [
  {
    name: "it runs",
    evidence: {
      pod: pod({
        annotations: { "sandbox.cocoonstack.io/claim-id": "sb_1" },
        spec: { nodeName: "vk-1" },
        status: { phase: "Running", podIP: "10.0.0.7", conditions: [{ type: "Ready", status: "True" }] },
      }),
      nodes: [node("vk-1")],
      entries: [
        { node: "vk-1", id: "sb_1", phase: "Running", claimRef: "a/one", deadlineMs: nowMs + 3_600_000 },
      ],
    },
    reason: "runs",
    because: /in VM sb_1 on Node vk-1, at 10.0.0.7/,
    shows: [/lists VM sb_1 for it, Running, for another 60 min/],
    next: /Nothing/,
    fine: true,
  },
  {
    name: "no such Pod",
    evidence: {},
    reason: "no-such-object",
    because: /no Pod a\/one/,
    next: /get pods/,
  },
  {
    name: "no such Pod, but the ledger knows one",
    evidence: {
      host: {
        decisions: [{ atMs: nowMs - 60_000, kind: "released", id: "sb_1", reason: "Sandbox one is gone" }],
      },
    },
    reason: "no-such-object",
    because: /no Pod/,
    shows: [/released, Sandbox one is gone/],
    next: /get pods/,
  },
  {
    name: "no such Sandbox",
    evidence: { askedForSandbox: true },
    reason: "no-such-object",
    because: /no Sandbox a\/one/,
    next: /get sandboxes/,
  },
  {
    name: "a suspended Sandbox has no Pod",
    evidence: { sandbox: sandbox({ spec: { operatingMode: "Suspended" } }) },
    reason: "sandbox-suspended",
    because: /suspended/,
    next: /operatingMode/,
  },
  {
    name: "a suspended Sandbox of the older version",
    evidence: { sandbox: sandbox({ spec: { replicas: 0 } }) },
    reason: "sandbox-suspended",
    because: /suspended/,
    next: /operatingMode/,
  },
  {
    name: "an expired Sandbox has no Pod",
    evidence: {
      sandbox: sandbox({
        status: {
          conditions: [
            { type: "Ready", status: "False", reason: "SandboxExpired", message: "shutdown time reached" },
          ],
        },
      }),
    },
    reason: "sandbox-expired",
    because: /expired: shutdown time reached/,
    next: /new Sandbox/,
  },
  {
    name: "a Sandbox on its way out",
    evidence: { sandbox: sandbox({ metadata: { deletionTimestamp: ago(5) } }) },
    reason: "sandbox-deleting",
    because: /being deleted/,
    next: /finalizer/,
  },
  {
    name: "admission refused the Pod",
    evidence: {
      sandbox: sandbox(),
      events: [
        event(
          "Sandbox",
          "FailedCreate",
          "pods \"one\" is forbidden: ValidatingAdmissionPolicy 'vk-sandbox-pod-faults' denied request: [sandboxd/net-value] …",
        ),
      ],
    },
    reason: "pod-not-made",
    because: /could not make the Pod: pods "one" is forbidden/,
    next: /admission message/,
  },
  {
    name: "the sandbox controller does nothing",
    evidence: { sandbox: sandbox() },
    reason: "pod-not-made",
    because: /made no Pod for the Sandbox in 5 min/,
    next: /controller/,
  },
  {
    name: "a scheduling gate",
    evidence: { pod: pod({ spec: { schedulingGates: [{ name: "quota" }] } }) },
    reason: "gated",
    because: /gate quota/,
    next: /remove/,
  },
  {
    name: "no scheduler has looked",
    evidence: { pod: pod(), nodes: [node("vk-1")] },
    reason: "scheduler-silent",
    because: /no scheduler has looked at it in 5 min/,
    next: /kube-scheduler/,
  },
  {
    name: "another scheduler has not looked",
    evidence: { pod: pod({ spec: { schedulerName: "volcano" } }) },
    reason: "scheduler-silent",
    because: /asks for volcano/,
    next: /volcano runs/,
  },
  {
    name: "a selector that fits no node",
    evidence: {
      pod: pod({
        spec: { nodeSelector: { "sandbox.cocoonstack.io/runtime": "sandboxed" } },
        status: unschedulable(
          "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
        ),
      }),
      nodes: [metal, node("vk-1")],
    },
    reason: "selector-fits-none",
    because: /fits none of the cluster's 2 Nodes$/,
    shows: [
      /asks for sandbox.cocoonstack.io\/runtime=sandboxed/,
      /vk-sandbox node vk-1 has sandbox.cocoonstack.io\/runtime=sandboxd/,
    ],
    next: /Select sandbox.cocoonstack.io\/runtime: sandboxd/,
  },
  {
    name: "no vk-sandbox node at all",
    evidence: { pod: pod({ status: unschedulable("0/1 nodes are available") }), nodes: [metal] },
    reason: "selector-fits-none",
    because: /no vk-sandbox node is among them/,
    next: /doctor/,
  },
  {
    name: "the toleration is missing",
    evidence: {
      pod: pod({
        spec: { tolerations: [] },
        status: unschedulable("0/2 nodes are available: 1 node(s) had untolerated taint(s)"),
      }),
      nodes: [metal, node("vk-1")],
    },
    reason: "taint-not-tolerated",
    because: /does not tolerate the taint virtual-kubelet.io\/provider/,
    shows: [/Node vk-1 fits the selector and has virtual-kubelet.io\/provider=sandboxd:NoSchedule/],
    next: /operator Exists/,
  },
  {
    name: "another taint",
    evidence: {
      pod: pod({ status: unschedulable("untolerated taint") }),
      nodes: [node("vk-1", tainted("dedicated"))],
    },
    reason: "taint-not-tolerated",
    because: /has a taint that it does not tolerate/,
    shows: [/dedicated:NoSchedule/],
    next: /./,
  },
  {
    name: "the only node is not Ready",
    evidence: {
      pod: pod({ status: unschedulable("untolerated taint") }),
      nodes: [
        node("vk-1", {
          ...tainted("node.kubernetes.io/not-ready"),
          ...notReady("False", "SandboxdUnreachable", "sandboxd has not answered for 2 min."),
        }),
      ],
    },
    reason: "nodes-not-ready",
    because: /the only node that would take it is not Ready/,
    shows: [/Ready is False, SandboxdUnreachable: sandboxd has not answered for 2 min\.$/],
    next: /doctor/,
  },
  {
    name: "the node is cordoned",
    evidence: {
      pod: pod({ status: unschedulable("unschedulable") }),
      nodes: [node("vk-1", tainted("node.kubernetes.io/unschedulable"))],
    },
    reason: "nodes-cordoned",
    because: /cordoned/,
    next: /uncordon vk-1/,
  },
  {
    name: "the nodes are full",
    evidence: {
      pod: pod({ status: unschedulable("0/1 nodes are available: 1 Insufficient cpu, 1 Too many pods.") }),
      nodes: [node("vk-1")],
    },
    reason: "nodes-full",
    because: /the 1 Node that would take it is full: Insufficient cpu and Too many pods/,
    shows: [/cpu 4000, pods 2000/],
    next: /--node-cpu/,
  },
  {
    name: "a volume that is not bound",
    evidence: {
      pod: pod({ status: unschedulable("pod has unbound immediate PersistentVolumeClaims") }),
      nodes: [node("vk-1")],
    },
    reason: "volume-unbound",
    because: /waits for a PersistentVolumeClaim/,
    next: /Remove the volume/,
  },
  {
    name: "the scheduler has another reason",
    evidence: {
      pod: pod({ status: unschedulable("node(s) didn't satisfy existing pods anti-affinity rules") }),
      nodes: [node("vk-1")],
    },
    reason: "unschedulable",
    because: /anti-affinity/,
    next: /describe/,
  },
  {
    name: "Nodes may not be looked at: the scheduler's words",
    evidence: {
      pod: pod({ status: unschedulable("0/3 nodes are available") }),
      unseen: ["Nodes: 403 Forbidden"],
    },
    reason: "unschedulable",
    because: /0\/3 nodes are available/,
    next: /describe/,
  },
  {
    name: "the node is gone",
    evidence: { pod: pod({ spec: { nodeName: "vk-9" }, status: bound() }), nodes: [node("vk-1")] },
    reason: "node-gone",
    because: /Node vk-9, which does not exist/,
    next: /delete the Pod/,
  },
  {
    name: "it landed on an ordinary node",
    evidence: {
      pod: pod({
        spec: { nodeName: "metal", nodeSelector: {}, tolerations: [] },
        status: {
          ...bound(),
          containerStatuses: [
            { name: "agent", state: { waiting: { reason: "ImagePullBackOff", message: "no such image" } } },
          ],
        },
      }),
      nodes: [metal, node("vk-1")],
    },
    reason: "ordinary-node",
    because:
      /an ordinary kubelet: it is a plain container there, without a VM.*agent: ImagePullBackOff, no such image/,
    next: /nodeSelector/,
  },
  {
    name: "the provider has stopped",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: bound() }),
      nodes: [node("vk-1", notReady("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))],
      heartbeatMs: nowMs - 180_000,
    },
    reason: "node-not-ready",
    because: /the provider of Node vk-1 has stopped: its last heartbeat was 3 min ago/,
    next: /Start vk-sandbox/,
  },
  {
    name: "the provider has stopped, and the Node still says Ready",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: bound() }),
      nodes: [node("vk-1")],
      heartbeatMs: nowMs - 45_000,
    },
    reason: "node-not-ready",
    because: /last heartbeat was 45 s ago/,
    next: /Start vk-sandbox/,
  },
  {
    name: "the node's sandboxd is away",
    evidence: {
      pod: pod({
        spec: { nodeName: "vk-1" },
        status: refused("sandboxd at http://127.0.0.1:7777 cannot be reached: refused"),
      }),
      nodes: [node("vk-1", notReady("False", "SandboxdUnreachable", "sandboxd has not answered for 2 min"))],
      heartbeatMs: nowMs - 2_000,
    },
    reason: "node-not-ready",
    because: /Node vk-1 is not Ready: sandboxd has not answered for 2 min/,
    shows: [/The Pod's status says: sandboxd at .* cannot be reached/],
    next: /doctor on the host of vk-1/,
  },
  {
    name: "no warm VM here, while another node has some",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: refused() }),
      nodes: [node("vk-1"), node("vk-2")],
      pools: [pool("vk-1", 0), pool("vk-2", 3), pool("vk-2", 9, 9, "other")],
      events: [event("Pod", "ProviderCreateFailed", message, 7)],
    },
    reason: "refused",
    because: /no warm sandbox of template rt/,
    shows: [/Refused for this reason for 20 s/, /Node vk-1 has 0 warm of 2/, /Node vk-2 has 3 warm of 2/],
    next: /vk-2 \(3 warm\) can take it/,
  },
  {
    name: "no warm VM anywhere",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: refused() }),
      nodes: [node("vk-1")],
      pools: [pool("vk-1", 0)],
    },
    reason: "refused",
    because: /no warm/,
    next: /Raise the pool's target/,
  },
  {
    name: "no node has the pool",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: refused() }),
      nodes: [node("vk-1")],
      pools: [pool("vk-1", 1, 1, "other")],
    },
    reason: "refused",
    because: /no warm/,
    shows: [/No node's inventory has the pool rt/],
    next: /Raise/,
  },
  {
    name: "an annotation at fault",
    evidence: {
      pod: pod({
        annotations: { "sandbox.cocoonstack.io/size": "Small" },
        spec: { nodeName: "vk-1" },
        status: refused(
          'annotation sandbox.cocoonstack.io/size is "Small": use small, medium or large, or leave it out',
        ),
      }),
      nodes: [node("vk-1")],
    },
    reason: "refused",
    because: /size is "Small"/,
    next: /small was meant/,
  },
  {
    name: "the ledger knows the cause better than the words",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: refused("HTTP 429") }),
      nodes: [node("vk-1")],
      host: {
        decisions: [{ atMs: nowMs - 1000, kind: "refused", id: "", reason: "HTTP 429", cause: "max_claims" }],
      },
    },
    reason: "refused",
    because: /HTTP 429/,
    next: /add nodes/,
  },
  {
    name: "it was only just bound",
    evidence: { pod: pod({ spec: { nodeName: "vk-1" }, status: bound(3) }), nodes: [node("vk-1")] },
    reason: "asked",
    because: /bound to Node vk-1 3 s ago/,
    next: /again in a moment/,
  },
  {
    name: "sandboxd has not answered yet",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: bound(60) }),
      nodes: [node("vk-1")],
      host: { decisions: [], claim: { id: "", state: "asked for", deadlineMs: 0, podUID: "pod-uid" } },
    },
    reason: "asked",
    because: /has asked sandboxd for a VM/,
    next: /sandboxd's log/,
  },
  {
    name: "the provider says nothing",
    evidence: {
      pod: pod({ spec: { nodeName: "vk-1" }, status: bound() }),
      nodes: [node("vk-1")],
      heartbeatMs: nowMs - 4_000,
    },
    reason: "provider-silent",
    because: /said nothing about the Pod in 3 min/,
    shows: [/heartbeat was 4 s ago/],
    next: /log on the host of vk-1/,
  },
  {
    name: "it runs and is not Ready",
    evidence: {
      pod: pod({
        spec: { nodeName: "vk-1" },
        status: {
          phase: "Running",
          conditions: [{ type: "Ready", status: "False", reason: "NodeNotReady" }],
        },
      }),
      nodes: [node("vk-1")],
    },
    reason: "not-ready",
    because: /NodeNotReady/,
    next: /log/,
  },
  {
    name: "its lease ended",
    evidence: {
      pod: pod({
        status: {
          phase: "Failed",
          reason: "SandboxLeaseExpired",
          message: "the lease of sandbox sb_1 ended",
        },
      }),
    },
    reason: "lease-expired",
    because: /lease of its VM ended/,
    shows: [/status says: the lease of sandbox sb_1 ended/],
    next: /renew: "true"/,
  },
  {
    name: "its VM is lost",
    evidence: {
      pod: pod({ status: { phase: "Failed", reason: "SandboxLost" } }),
      sandbox: sandbox(),
      host: { decisions: [{ atMs: nowMs - 60_000, kind: "lost", id: "sb_1", reason: "not listed twice" }] },
    },
    reason: "lost",
    because: /VM is gone though its lease had not ended/,
    shows: [/recorded 60 s ago: not listed twice/],
    next: /sandboxd's log/,
  },
  {
    name: "its template carries a claim id",
    evidence: {
      pod: pod({ status: { phase: "Failed", reason: "SandboxLost" } }),
      sandbox: sandbox({
        spec: { podTemplate: { metadata: { annotations: { "sandbox.cocoonstack.io/claim-id": "sb_9" } } } },
      }),
    },
    reason: "claim-id-written",
    because: /claim-id: sb_9/,
    next: /Remove the annotation/,
  },
  {
    name: "refused once under restartPolicy Never",
    evidence: {
      pod: pod({
        spec: { restartPolicy: "Never" },
        status: { phase: "Failed", reason: "ProviderFailed", message },
      }),
    },
    reason: "failed-for-good",
    because: /restartPolicy Never it is not tried again: no warm/,
    next: /Leave restartPolicy out/,
  },
  {
    name: "it failed for another reason",
    evidence: {
      pod: pod({ status: { phase: "Failed", reason: "Evicted", message: "The node was low on memory." } }),
    },
    reason: "failed",
    because: /Evicted: The node was low on memory$/,
    next: /describe/,
  },
  {
    name: "it succeeded",
    evidence: { pod: pod({ status: { phase: "Succeeded" } }) },
    reason: "succeeded",
    because: /ended well/,
    next: /Nothing/,
    fine: true,
  },
  {
    name: "a finalizer holds it",
    evidence: { pod: pod({ metadata: { deletionTimestamp: ago(60), finalizers: ["example.com/hold"] } }) },
    reason: "deleting",
    because: /finalizer example.com\/hold/,
    next: /example.com\/hold/,
  },
  {
    name: "its provider is away and cannot finalize it",
    evidence: {
      pod: pod({ metadata: { deletionTimestamp: ago(60) }, spec: { nodeName: "vk-1" } }),
      nodes: [node("vk-1", notReady("Unknown", "NodeStatusUnknown", ""))],
    },
    reason: "deleting",
    because: /asked for 60 s ago.*Node vk-1.*is not there/,
    next: /Start vk-sandbox/,
  },
  {
    name: "its VM's fate is being settled",
    evidence: {
      pod: pod({ metadata: { deletionTimestamp: ago(1) }, spec: { nodeName: "vk-1" } }),
      nodes: [node("vk-1")],
    },
    reason: "deleting",
    because: /fate is being settled/,
    next: /audit/,
  },
];

describe("the one reason", () => {
  for (const { name, evidence, reason, because, shows = [], next, fine } of rows)
    test(name, () => {
      const explanation = explain({ ...base, ...evidence });
      expect(explanation.reason).toBe(reason);
      expect(explanation.because).toMatch(because);
      for (const line of shows) expect(explanation.evidence.some((one) => line.test(one))).toBe(true);
      expect(explanation.next.join("\n")).toMatch(next);
      expect(explanation.fine).toBe(fine ?? false);
      const text = renderExplanation(explanation, { columns: 100, color: false });
      expect(text).not.toMatch(/undefined|NaN|\[object|\.\.$| {2,}[.,:]/m);
      for (const line of text.split("\n")) expect(line.length).toBeLessThanOrEqual(110);
      // The reason is a clause of one sentence; what to do and what says so are sentences.
      expect(explanation.because).not.toMatch(/\.$/);
      for (const sentence of [...explanation.evidence, ...explanation.next])
        expect(sentence).toMatch(/[.?:]$|[.?]$/);
    });
});

test("what could not be looked at is named, not taken for nothing", () => {
  const explanation = explain({
    ...base,
    pod: pod({ status: unschedulable("0/3") }),
    unseen: ["Nodes: 403 Forbidden"],
  });
  expect(renderExplanation(explanation, { columns: 80, color: false })).toContain(
    "Not looked at\n  - Nodes: 403 Forbidden",
  );
});

test("a message of another program cannot move the cursor", () => {
  const explanation = explain({
    ...base,
    pod: pod({ status: { phase: "Failed", reason: "x", message: "a\u001b[2Jb\r\nc" } }),
  });
  expect(explanation.because).toBe("x: ab c");
});

test("every reason is tried above, and named in docs/check.md", () => {
  const source = readFileSync(join(import.meta.dir, "explain.ts"), "utf8");
  const union = source.slice(
    source.indexOf("export type ReasonId"),
    source.indexOf("export interface Explanation"),
  );
  const ids = [...union.matchAll(/"([a-z-]+)"/g)].map(([, id = ""]) => id);
  const docs = readFileSync(join(import.meta.dir, "../../docs/check.md"), "utf8");
  expect(ids.length).toBeGreaterThan(20);
  expect([...new Set(rows.map(({ reason }) => reason as string))].sort()).toEqual(ids.sort());
  expect(ids.filter((id) => !docs.includes(`\`${id}\``))).toEqual([]);
});

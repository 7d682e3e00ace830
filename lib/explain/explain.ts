/** The one reason why a Pod is as it is, with the evidence for it and the next step. */
import { check, type Finding, selects, untolerated } from "../check/index.ts";
import { count, listed, span } from "../words.ts";
import {
  type Condition,
  conditionOf,
  type Evidence,
  type NodeState,
  type PodFact,
  timeOf,
} from "./evidence.ts";

/** Reasons by id; they keep their meaning. */
export type ReasonId =
  | "runs"
  | "not-ready"
  | "no-such-object"
  | "sandbox-suspended"
  | "sandbox-expired"
  | "sandbox-deleting"
  | "pod-not-made"
  | "deleting"
  | "gated"
  | "scheduler-silent"
  | "selector-fits-none"
  | "taint-not-tolerated"
  | "nodes-not-ready"
  | "nodes-cordoned"
  | "nodes-full"
  | "volume-unbound"
  | "unschedulable"
  | "node-gone"
  | "node-not-ready"
  | "ordinary-node"
  | "refused"
  | "asked"
  | "provider-silent"
  | "lease-expired"
  | "lost"
  | "claim-id-written"
  | "failed-for-good"
  | "failed"
  | "succeeded";

export interface Explanation {
  /** `Pod default/agent-1` */
  subject: string;
  /** Pending, Running, …; empty when there is no Pod. */
  phase: string;
  /** Nothing is wrong. */
  fine: boolean;
  reason: ReasonId;
  /** The reason as one sentence. */
  because: string;
  evidence: string[];
  next: string[];
  /** What `check` says of the Pod's template. */
  findings: Omit<Finding, "file" | "region" | "fixable">[];
  unseen: string[];
}

type Reason = Pick<Explanation, "reason" | "because" | "next"> & { fine?: boolean; evidence?: string[] };

const providerTaint = "virtual-kubelet.io/provider";
/** A Pod that was just bound gets an answer within this. */
const answerMsMax = 15_000;
/** A lease that is older than this is missed: it is renewed each 10 s and lasts 40 s. */
const heartbeatMsMax = 40_000;

/** Finds the reason. Pure: everything it knows is in the evidence. */
export function explain(evidence: Evidence): Explanation {
  const { pod, key, sandbox, askedForSandbox } = evidence;
  const findings = judge(evidence);
  const found = pod === undefined ? explainAbsence(evidence) : explainPod(evidence, pod, findings);
  const subject =
    pod === undefined && (askedForSandbox || sandbox !== undefined)
      ? `Sandbox ${sandbox === undefined ? key : `${sandbox.metadata.namespace}/${sandbox.metadata.name}`}`
      : `Pod ${key}`;
  return {
    subject,
    phase: pod?.status?.phase ?? "",
    fine: found.fine ?? false,
    reason: found.reason,
    because: found.because,
    evidence: [...(found.evidence ?? []), ...commonEvidence(evidence)],
    next: found.next,
    findings: findings.map(({ rule, severity, object, path, what, fix }) => ({
      rule,
      severity,
      object,
      path,
      what,
      fix,
    })),
    unseen: evidence.unseen,
  };
}

/** What the check says of the Pod, errors and warnings only. */
function judge({ pod, nodes, nowMs }: Evidence): Finding[] {
  if (pod === undefined) return [];
  const landed = nodes?.find(({ name }) => name === pod.spec.nodeName);
  // On an ordinary Node the question is why it came there, which nodeName would answer with itself.
  const spec = landed === undefined || isVirtual(landed) ? pod.spec : { ...pod.spec, nodeName: undefined };
  const value = { apiVersion: "v1", kind: "Pod", ...pod.raw, spec };
  const { findings } = check({ objects: [{ file: "cluster", value, base: [] }], cluster: { nodes }, nowMs });
  return findings.filter(({ severity }) => severity !== "info");
}

function explainAbsence({ key, sandbox, askedForSandbox, events, host, nowMs }: Evidence): Reason {
  if (sandbox === undefined) {
    const last = host?.decisions.at(-1);
    return {
      reason: "no-such-object",
      because: askedForSandbox ? `there is no Sandbox ${key}` : `there is no Pod ${key}`,
      evidence:
        last === undefined ? [] : [`The provider's last decision about it: ${last.kind}, ${last.reason}.`],
      next: [
        askedForSandbox
          ? "Look at the namespace's Sandboxes: kubectl get sandboxes -A."
          : "Look at the namespace's Pods: kubectl get pods -A. A Sandbox is asked about with --sandbox.",
      ],
    };
  }
  const ready = conditionOf(sandbox.status?.conditions, "Ready");
  if (sandbox.metadata.deletionTimestamp !== "")
    return {
      reason: "sandbox-deleting",
      because: "the Sandbox is being deleted, and its Pod is gone already",
      next: ["Wait; if it stays, a finalizer holds it: kubectl get sandbox -o yaml shows which."],
    };
  if (sandbox.spec.operatingMode === "Suspended" || sandbox.spec.replicas === 0)
    return {
      reason: "sandbox-suspended",
      because: "the Sandbox is suspended, so it has no Pod; a preserved VM is hibernated and waits for it",
      next: ["Set spec.operatingMode to Running to have the Pod back; it adopts the same VM."],
    };
  if (ready?.reason === "SandboxExpired")
    return {
      reason: "sandbox-expired",
      because: `the Sandbox has expired${ready.message ? `: ${sentence(ready.message)}` : ""}`,
      next: ["Make a new Sandbox; an expired one does not come back."],
    };
  const refused = events.find(({ about, type }) => about === "Sandbox" && type === "Warning");
  const age = span(nowMs - timeOf(sandbox.metadata.creationTimestamp ?? ""));
  const why = refused?.message || ready?.message || "";
  return {
    reason: "pod-not-made",
    because:
      why === ""
        ? `the sandbox controller has made no Pod for the Sandbox in ${age}`
        : `the sandbox controller could not make the Pod: ${sentence(why)}`,
    next: /webhook|admission|denied|ValidatingAdmissionPolicy/i.test(why)
      ? ["Correct the Sandbox's Pod template as the admission message says; vk-sandbox check finds the same."]
      : ["Look at the controller: kubectl -n agent-sandbox-system logs deployment/agent-sandbox-controller."],
  };
}

function explainPod(evidence: Evidence, pod: PodFact, findings: readonly Finding[]): Reason {
  const phase = pod.status?.phase ?? "";
  if (pod.metadata.deletionTimestamp !== "") return explainDeleting(evidence, pod);
  if (phase === "Failed") return explainFailed(evidence, pod);
  if (phase === "Succeeded")
    return {
      reason: "succeeded",
      because: "its containers have ended well",
      next: ["Nothing is to be done."],
      fine: true,
    };
  const nodeName = textOf(pod.spec.nodeName);
  if (nodeName === "") return explainUnbound(evidence, pod, findings);
  return explainBound(evidence, pod, nodeName, findings);
}

function explainDeleting({ nodes, nowMs, heartbeatMs }: Evidence, pod: PodFact): Reason {
  const since = span(nowMs - timeOf(pod.metadata.deletionTimestamp ?? ""));
  const finalizers = pod.metadata.finalizers ?? [];
  const nodeName = textOf(pod.spec.nodeName);
  const node = nodes?.find(({ name }) => name === nodeName);
  if (finalizers.length > 0)
    return {
      reason: "deleting",
      because: `it is being deleted, and the finalizer ${listed(finalizers)} holds it`,
      next: [`Look at whoever set ${finalizers[0]}.`],
    };
  const quiet = heartbeatMs !== undefined && nowMs - heartbeatMs > heartbeatMsMax;
  if (nodeName !== "" && (node === undefined || !node.ready || quiet))
    return {
      reason: "deleting",
      because: `it is being deleted (asked for ${since} ago), and the provider of Node ${nodeName}, which has to settle its VM first, is not there`,
      evidence: node === undefined ? [`Node ${nodeName} does not exist.`] : nodeEvidence(node),
      next: [
        `Start vk-sandbox on the host of ${nodeName} again; it settles the VM and removes the Pod at once.`,
      ],
    };
  return {
    reason: "deleting",
    because: `it is being deleted (asked for ${since} ago): its VM's fate is being settled`,
    next: [
      "Wait a moment. On the node's host, vk-sandbox audit POD tells what keeps it; a release that fails is tried again.",
    ],
  };
}

function explainFailed({ sandbox, host, nowMs }: Evidence, pod: PodFact): Reason {
  const { reason = "", message = "" } = pod.status ?? {};
  const said = message ? [`The Pod's status says: ${sentence(message)}.`] : [];
  const renew =
    'Give the template the annotation sandbox.cocoonstack.io/renew: "true" if it must live longer than its lease.';
  const again =
    sandbox === undefined
      ? "Make the Pod again."
      : "Make the Sandbox again: one whose Pod failed is finished.";
  if (reason === "SandboxLeaseExpired")
    return {
      reason: "lease-expired",
      because: "the lease of its VM ended, and sandboxd destroyed the VM",
      evidence: said,
      next: [again, renew],
    };
  if (reason === "SandboxLost") {
    const written = sandbox?.spec.podTemplate?.metadata?.annotations?.["sandbox.cocoonstack.io/claim-id"];
    if (written)
      return {
        reason: "claim-id-written",
        because: `its template carries the annotation sandbox.cocoonstack.io/claim-id: ${written}, so it was taken for a Pod whose VM is gone`,
        evidence: said,
        next: [
          "Remove the annotation from the template, and make the Sandbox again; the provider writes it.",
        ],
      };
    const last = host?.decisions.findLast(({ kind }) => kind === "lost");
    return {
      reason: "lost",
      because: "its VM is gone though its lease had not ended: sandboxd does not list it any more",
      evidence: [
        ...said,
        ...(last === undefined
          ? []
          : [`The provider recorded ${span(nowMs - last.atMs)} ago: ${last.reason}.`]),
      ],
      next: ["Ask sandboxd's log and whoever may release VMs there what ended it.", again],
    };
  }
  if (reason === "ProviderFailed")
    return {
      reason: "failed-for-good",
      because: `a claim was refused once, and under restartPolicy Never it is not tried again: ${sentence(message)}`,
      next: ["Leave restartPolicy out of the template, so that refused claims are tried again.", again],
    };
  const ended = (pod.status?.containerStatuses ?? []).find((c) => c.state?.terminated != null)?.state
    ?.terminated;
  return {
    reason: "failed",
    because:
      reason || message
        ? `${reason || "it failed"}${message ? `: ${sentence(message)}` : ""}`
        : `a container ended: ${ended?.reason || "no reason given"}`,
    next: ["kubectl describe pod shows the containers and their ends."],
  };
}

function explainUnbound(evidence: Evidence, pod: PodFact, findings: readonly Finding[]): Reason {
  const { nodes, nowMs } = evidence;
  const gates = listOf(pod.spec.schedulingGates).map((gate) => String((gate as { name?: unknown }).name));
  if (gates.length > 0)
    return {
      reason: "gated",
      because: `the scheduling gate ${listed(gates)} keeps the scheduler from looking at it`,
      next: ["Whoever set the gate has to remove it."],
    };
  const scheduled = conditionOf(pod.status?.conditions, "PodScheduled");
  const said = scheduled?.message ? [`The scheduler says: ${sentence(scheduled.message)}.`] : [];
  if (scheduled === undefined) {
    const age = nowMs - timeOf(pod.metadata.creationTimestamp ?? "");
    const by = textOf(pod.spec.schedulerName) || "default-scheduler";
    return {
      reason: "scheduler-silent",
      because: `no scheduler has looked at it in ${span(age)}; it asks for ${by}`,
      next: [
        by === "default-scheduler"
          ? "Look whether kube-scheduler runs."
          : `Look whether the scheduler ${by} runs.`,
      ],
    };
  }
  const message = scheduled.message ?? "";
  const reason = nodes === undefined ? undefined : judgeNodes(pod, nodes, message, findings);
  if (reason !== undefined) return { ...reason, evidence: [...said, ...(reason.evidence ?? [])] };
  if (/persistentvolumeclaim|volume/i.test(message))
    return {
      reason: "volume-unbound",
      because: "the scheduler waits for a PersistentVolumeClaim, which a microVM would never see",
      evidence: said,
      next: ["Remove the volume from the template; the VM has the disks of its pool template."],
    };
  return {
    reason: "unschedulable",
    because: message === "" ? "the scheduler could not place it" : sentence(message),
    evidence: [],
    next: fixesOf(findings, "kubectl describe pod shows what the scheduler tried."),
  };
}

/** What keeps the Pod off every Node, told from the Nodes themselves rather than from the scheduler's words. */
function judgeNodes(
  pod: PodFact,
  nodes: readonly NodeState[],
  message: string,
  findings: readonly Finding[],
): Reason | undefined {
  const virtual = nodes.filter(isVirtual);
  const fitting = nodes.filter((node) => selects(pod.spec, node));
  if (fitting.length === 0)
    return {
      reason: "selector-fits-none",
      because:
        virtual.length === 0
          ? `its selector fits none of the cluster's ${count(nodes.length, "Node")}, and no vk-sandbox node is among them`
          : `its selector fits none of the cluster's ${count(nodes.length, "Node")}`,
      evidence: [
        ...selectorEvidence(pod),
        ...virtual
          .slice(0, nodesShownMax)
          .map((node) => `vk-sandbox node ${node.name} has ${labelsOf(node)}.`),
      ],
      next:
        virtual.length === 0
          ? ["Start vk-sandbox on a host with sandboxd; vk-sandbox doctor helps there."]
          : fixesOf(findings, "Select labels that a Node has."),
    };
  const open = fitting.filter((node) => untolerated(pod.spec, node).length === 0);
  if (open.length === 0) return judgeTaints(pod, fitting, findings);
  if (/insufficient|too many pods/i.test(message)) {
    const lacking = [...new Set(message.match(/Insufficient [\w./-]+|Too many pods/g) ?? [])];
    return {
      reason: "nodes-full",
      because: `the ${count(open.length, "Node")} that would take it ${open.length === 1 ? "is" : "are"} full: ${listed(lacking)}`,
      evidence: open.slice(0, nodesShownMax).map(
        (node) =>
          `Node ${node.name} has ${Object.entries(node.allocatable)
            .map(([what, n]) => `${what} ${n}`)
            .join(", ")} to give.`,
      ),
      next: [
        "Ask for less in the containers' requests (they do not size the VM), raise --node-cpu, --node-memory or --node-pods, or add nodes.",
      ],
    };
  }
  return undefined;
}

function judgeTaints(pod: PodFact, fitting: readonly NodeState[], findings: readonly Finding[]): Reason {
  const kept = fitting.map((node) => ({ node, taints: untolerated(pod.spec, node) }));
  const evidence = kept
    .slice(0, nodesShownMax)
    .map(
      ({ node, taints }) =>
        `Node ${node.name} fits the selector and has ${listed(taints.map((t) => `${t.key}${t.value === "" ? "" : `=${t.value}`}:${t.effect}`))}, which the Pod does not tolerate.`,
    );
  const every = (test: (key: string) => boolean) =>
    kept.every(({ taints }) => taints.some(({ key }) => test(key)));
  if (every((key) => key === providerTaint))
    return {
      reason: "taint-not-tolerated",
      because: `it does not tolerate the taint ${providerTaint}, which keeps it off ${fitting.length === 1 ? "the node" : "every node"} that its selector fits`,
      evidence,
      next: fixesOf(findings, `Tolerate ${providerTaint} with operator Exists and effect NoSchedule.`),
    };
  if (every((key) => key === "node.kubernetes.io/not-ready" || key === "node.kubernetes.io/unreachable"))
    return {
      reason: "nodes-not-ready",
      because: `${fitting.length === 1 ? "the only node" : `each of the ${fitting.length} nodes`} that would take it is not Ready`,
      evidence: [...evidence, ...fitting.slice(0, nodesShownMax).flatMap(nodeEvidence)],
      next: [
        "Look at that node's vk-sandbox: does it run, and does its sandboxd answer? vk-sandbox doctor on its host tells.",
      ],
    };
  if (every((key) => key === "node.kubernetes.io/unschedulable"))
    return {
      reason: "nodes-cordoned",
      because: `${fitting.length === 1 ? "the only node" : `each of the ${fitting.length} nodes`} that would take it is cordoned`,
      evidence,
      next: [`kubectl uncordon ${fitting[0]?.name}, when its maintenance is over.`],
    };
  return {
    reason: "taint-not-tolerated",
    because: "every node that its selector fits has a taint that it does not tolerate",
    evidence,
    next: fixesOf(findings, "Tolerate the taint, or have it removed."),
  };
}

function explainBound(
  evidence: Evidence,
  pod: PodFact,
  nodeName: string,
  findings: readonly Finding[],
): Reason {
  const { nodes, nowMs, heartbeatMs } = evidence;
  const { reason = "", message = "", phase = "" } = pod.status ?? {};
  const node = nodes?.find(({ name }) => name === nodeName);
  const ready = conditionOf(pod.status?.conditions, "Ready");
  if (phase === "Running" && ready?.status === "True") {
    const claim = pod.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"] ?? "";
    const what = claim === "" ? `on Node ${nodeName}` : `in VM ${claim} on Node ${nodeName}`;
    return {
      reason: "runs",
      fine: true,
      because: `it runs ${what}, at ${pod.status?.podIP || "no IP"}`,
      next: ["Nothing is to be done."],
    };
  }
  if (nodes !== undefined && node === undefined)
    return {
      reason: "node-gone",
      because: `it is bound to Node ${nodeName}, which does not exist`,
      next: ["Start that node's vk-sandbox, or delete the Pod: its Sandbox makes another."],
    };
  if (node !== undefined && !isVirtual(node)) return explainOrdinary(pod, node, findings);
  // The provider's own word is nearer to the cause than the state of its Node.
  if (reason === "ProviderFailed" && (node === undefined || node.ready))
    return explainRefused(evidence, pod, message, findings);
  const quietMs = heartbeatMs === undefined ? 0 : nowMs - heartbeatMs;
  if (node !== undefined && (!node.ready || quietMs > heartbeatMsMax)) {
    const condition = conditionOf(node.conditions, "Ready");
    const stopped = condition?.status === "Unknown" || quietMs > heartbeatMsMax;
    return {
      reason: "node-not-ready",
      because: stopped
        ? `the provider of Node ${nodeName} has stopped: its last heartbeat was ${heartbeatMs === undefined ? "missed" : `${span(quietMs)} ago`}`
        : `Node ${nodeName} is not Ready: ${sentence(condition?.message || condition?.reason || "no reason given")}`,
      evidence: [...nodeEvidence(node), ...(message ? [`The Pod's status says: ${sentence(message)}.`] : [])],
      next: [
        stopped
          ? `Start vk-sandbox on the host of ${nodeName} again; the VM, if there is one, has lived on.`
          : `Run vk-sandbox doctor on the host of ${nodeName}.`,
      ],
    };
  }
  if (reason === "ProviderFailed") return explainRefused(evidence, pod, message, findings);
  if (phase === "Running")
    return {
      reason: "not-ready",
      because: `it runs and is not Ready: ${sentence(ready?.message || ready?.reason || "no reason given")}`,
      next: ["vk-sandbox sets it Ready again at once when its node is; if it stays so, see the node's log."],
    };
  return explainSilence(evidence, pod, nodeName);
}

function explainOrdinary(pod: PodFact, node: NodeState, findings: readonly Finding[]): Reason {
  const waiting = (pod.status?.containerStatuses ?? []).find((c) => c.state?.waiting != null);
  const why = waiting?.state?.waiting;
  const meant = Object.keys(pod.metadata.annotations ?? {}).some((key) =>
    key.startsWith("sandbox.cocoonstack.io/"),
  );
  const trouble = why?.reason
    ? `; container ${waiting?.name}: ${why.reason}${why.message ? `, ${sentence(why.message)}` : ""}`
    : "";
  return {
    reason: "ordinary-node",
    because: meant
      ? `it landed on Node ${node.name}, an ordinary kubelet: it is a plain container there, without a VM, and its sandboxd annotations are not read${trouble}`
      : `it is on Node ${node.name}, an ordinary kubelet${trouble || ", which is starting it"}`,
    evidence: selectorEvidence(pod),
    next: meant
      ? [
          ...fixesOf(findings, "Select the sandboxd nodes and tolerate their taint in the template."),
          "Then delete the Pod; its Sandbox makes another.",
        ]
      : ["kubectl describe pod shows what the kubelet is doing."],
  };
}

/** What the provider's message speaks of, when its ledger is not at hand. */
const causes: readonly [pattern: RegExp, cause: string][] = [
  [/limit of claims|max_claims/i, "max_claims"],
  [/draining/i, "draining"],
  [/no warm|warm capacity/i, "no_warm_capacity"],
  [/annotation/i, "bad_annotation"],
  [/egress/i, "egress_unavailable"],
  [/token/i, "bad_token"],
  [/sandboxd refuses/i, "unknown_template"],
  [/could not provision/i, "provisioning_failed"],
  [/cannot be reached/i, "unreachable"],
  [/did not answer/i, "timeout"],
];

function explainRefused(
  evidence: Evidence,
  pod: PodFact,
  message: string,
  findings: readonly Finding[],
): Reason {
  const { events, host, nowMs } = evidence;
  const last = host?.decisions.findLast(({ kind }) => kind === "refused");
  const cause = last?.cause ?? causes.find(([pattern]) => pattern.test(message))?.[1] ?? "";
  const failures = events.find(({ reason }) => reason === "ProviderCreateFailed");
  const tried =
    failures === undefined
      ? []
      : // The provider sends an Event when the reason changes, not at each try.
        [`Refused for this reason for ${span(nowMs - failures.lastMs)}.`];
  const capacity = cause === "no_warm_capacity" || cause === "max_claims" || cause === "draining";
  return {
    reason: "refused",
    because: sentence(message) || "the provider could not get a VM for it",
    evidence: [...tried, ...poolEvidence(evidence, pod)],
    next: capacity
      ? [...elsewhere(evidence, pod), "Or wait: the claim is tried again with backoff, up to every 30 s."]
      : fixesOf(
          findings,
          cause === "unknown_template"
            ? "Correct the template, net and size annotations, or add the pool to sandboxd; vk-sandbox check --sandboxd-url names the pools that there are."
            : "Mend what the message names; the claim is tried again by itself.",
        ),
  };
}

/** Where there is room: the nodes whose inventories show a warm VM of the Pod's pool. */
function elsewhere(evidence: Evidence, pod: PodFact): string[] {
  const nodeName = textOf(pod.spec.nodeName);
  const warm = poolsOf(evidence, pod).filter(({ where, warm }) => where !== nodeName && warm > 0);
  if (warm.length === 0) return ["Raise the pool's target in sandboxd, or add nodes."];
  const nodes = listed(warm.slice(0, nodesShownMax).map(({ where, warm }) => `${where} (${warm} warm)`));
  return [
    `Delete the Pod, so that its Sandbox makes another and the scheduler places it anew: ${nodes} can take it. --reschedule-after does that by itself.`,
  ];
}

function explainSilence(
  { host, nowMs, heartbeatMs, events }: Evidence,
  pod: PodFact,
  nodeName: string,
): Reason {
  const scheduled = conditionOf(pod.status?.conditions, "PodScheduled");
  const boundMs = timeOf(scheduled?.lastTransitionTime ?? "") || timeOf(pod.metadata.creationTimestamp ?? "");
  const age = nowMs - boundMs;
  const claim = host?.claim;
  if (claim?.state === "asked for")
    return {
      reason: "asked",
      because: `Node ${nodeName}'s provider has asked sandboxd for a VM and has no answer yet`,
      next: ["A claim that has to be provisioned takes some seconds; if it stays, look at sandboxd's log."],
    };
  if (age < answerMsMax)
    return {
      reason: "asked",
      because: `it was bound to Node ${nodeName} ${span(age)} ago, and the provider has not said anything yet`,
      next: ["Ask again in a moment."],
    };
  const last = events.find(({ type }) => type === "Warning");
  return {
    reason: "provider-silent",
    because: `Node ${nodeName} is Ready, and its provider has said nothing about the Pod in ${span(age)}`,
    evidence: [
      ...(heartbeatMs === undefined
        ? []
        : [`The node's last heartbeat was ${span(nowMs - heartbeatMs)} ago.`]),
      ...(last === undefined ? [] : [`The last Warning Event: ${last.reason}, ${sentence(last.message)}.`]),
    ],
    next: [
      `Look at vk-sandbox's log on the host of ${nodeName}, and run vk-sandbox explain there: it then has the ledger too.`,
    ],
  };
}

const nodesShownMax = 5;
const eventsShownMax = 5;

function commonEvidence({ entries, host, events, nowMs, pod }: Evidence): string[] {
  const lines: string[] = [];
  const claim = host?.claim;
  const until = (ms: number) =>
    ms <= 0
      ? "without an end"
      : ms < nowMs
        ? `whose lease ended ${span(nowMs - ms)} ago`
        : `for another ${span(ms - nowMs)}`;
  if (claim !== undefined && claim.state !== "asked for")
    lines.push(
      `This host's table has VM ${claim.id} for it, ${claim.state === "held" ? `held ${until(claim.deadlineMs)}` : "on its way back to sandboxd"}.`,
    );
  for (const entry of entries)
    lines.push(
      `Node ${entry.node}'s inventory lists VM ${entry.id} for it, ${entry.phase}, ${until(entry.deadlineMs)}.`,
    );
  if (entries.length > 1)
    lines.push(
      "More than one VM is listed for it: the older ones wait for their owner, and may be superseded.",
    );
  const decision = host?.decisions.at(-1);
  if (decision !== undefined)
    lines.push(
      `The provider's last decision about it, ${span(nowMs - decision.atMs)} ago: ${decision.kind}${decision.id === "" ? "" : ` ${decision.id}`}, ${sentence(decision.reason)}.`,
    );
  // What the status says already is not said once more.
  const known = pod?.status?.message ?? "";
  for (const event of events
    .filter(({ type, message }) => type === "Warning" && (known === "" || !message.includes(known)))
    .slice(0, eventsShownMax))
    lines.push(
      `${event.about} Event ${span(nowMs - event.lastMs)} ago${event.count > 1 ? `, ${event.count} times` : ""}: ${event.reason}, ${sentence(event.message)}.`,
    );
  return lines;
}

function nodeEvidence(node: NodeState): string[] {
  const ready = conditionOf(node.conditions, "Ready");
  if (ready === undefined) return [`Node ${node.name} has no Ready condition.`];
  return [describeReady(node.name, ready)];
}

function describeReady(name: string, { status, reason, message }: Condition): string {
  return `Node ${name}: Ready is ${status}${reason ? `, ${reason}` : ""}${message ? `: ${sentence(message)}` : ""}.`;
}

function selectorEvidence(pod: PodFact): string[] {
  const selector = Object.entries((pod.spec.nodeSelector ?? {}) as Record<string, unknown>).map(
    ([key, value]) => `${key}=${String(value)}`,
  );
  const affinity = pod.spec.affinity === undefined ? "" : " and an affinity";
  return [
    selector.length === 0 && affinity === ""
      ? "The Pod selects no Node in particular."
      : `The Pod asks for ${selector.length === 0 ? "no label" : listed(selector)}${affinity}.`,
  ];
}

function labelsOf(node: NodeState): string {
  const own = Object.entries(node.labels).filter(
    ([key]) => !key.includes("kubernetes.io/") && key !== "type",
  );
  return own.length === 0 ? "no label of its own" : listed(own.map(([key, value]) => `${key}=${value}`));
}

function poolsOf({ pools = [] }: Evidence, pod: PodFact) {
  const axis = (name: string) => pod.metadata.annotations?.[`sandbox.cocoonstack.io/${name}`] ?? "";
  return pools.filter(
    (pool) =>
      pool.template === axis("template") &&
      (axis("net") === "" || pool.net === axis("net")) &&
      (axis("size") === "" || pool.size === axis("size")),
  );
}

function poolEvidence(evidence: Evidence, pod: PodFact): string[] {
  if (evidence.pools === undefined) return [];
  const pools = poolsOf(evidence, pod);
  const template = pod.metadata.annotations?.["sandbox.cocoonstack.io/template"] ?? "";
  if (template === "") return [];
  if (pools.length === 0) return [`No node's inventory has the pool ${template} that it asks for.`];
  return pools
    .slice(0, nodesShownMax)
    .map(
      ({ where, net, size, warm, target }) =>
        `Node ${where} has ${warm} warm of ${target} in the pool ${template}, net ${net || "default"}, size ${size || "default"}.`,
    );
}

/** The fixes of the check's errors, or something to do in any case. */
function fixesOf(findings: readonly Finding[], otherwise: string): string[] {
  const fixes = [...new Set(findings.filter(({ severity }) => severity === "error").map(({ fix }) => fix))];
  return fixes.length > 0 ? fixes : [otherwise];
}

function isVirtual(node: NodeState): boolean {
  return node.taints.some(({ key, value }) => key === providerTaint && value === "sandboxd");
}

const textOf = (value: unknown): string => (typeof value === "string" ? value : "");
const listOf = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);

/** A message of another program inside a sentence: one line, without its full stop, nothing that moves a cursor. */
function sentence(text: string): string {
  return Bun.stripANSI(text)
    .replace(/[\p{Cc}\p{Cf}]+/gu, " ")
    .trim()
    .replace(/\.$/, "");
}

/** Every way a Pod that is meant for sandboxd can fail there, or turn out otherwise than its author thinks. */
import { isMisplacedRuntime } from "./backend.ts";
import { annotationPath, type Case, specPath, tolerationEdit } from "./context.ts";
import {
  claimIdKey,
  isCocoonKey,
  netKey,
  nets,
  poolLabel,
  providerTaint,
  renewKey,
  runtimeKey,
  runtimeSandboxd,
  sizeKey,
  sizes,
  taintSandboxd,
  templateKey,
  ttlDefaultSeconds,
  ttlKey,
  ttlZeroMeansSeconds,
  virtualNodeLabels,
  vmNameKey,
} from "./contract.ts";
import { ignoredFields } from "./ignored.ts";
import { judgePools } from "./pools.ts";
import { labelsSelected, selects, toleratesProvider, untolerated } from "./scheduling.ts";
import { at, isMap, listOf, mapOf, shown, textOf } from "./shape.ts";
import { meantBoolean, meantSeconds, meantValue } from "./spelling.ts";
import type { Hit, Path } from "./types.ts";

/** A pool whose sandboxes live shorter than this replaces them all the time. */
const pooledLeaseSecondsMin = 3_600;

/** Judges a Pod that is for sandboxd. */
export function judgeSandboxd(c: Case): Hit[] {
  return [
    ...scheduling(c),
    ...axes(c),
    ...lease(c),
    ...claimId(c),
    ...spec(c),
    ...spread(c),
    ...strangers(c),
    ...ignoredFields(c.subject),
    ...judgePools(c),
  ];
}

function scheduling(c: Case): Hit[] {
  const { subject, verdict, context } = c;
  const hits: Hit[] = [];
  const nodeName = textOf(subject.spec.nodeName);
  // A live Pod's nodeName is the scheduler's work.
  if (nodeName !== "" && !(subject.live && subject.kind === "Pod")) {
    const pinned = context.cluster?.nodes?.find((node) => node.name === nodeName);
    const virtual = pinned?.taints.some((taint) => taint.key === providerTaint);
    const gone = context.cluster?.nodes !== undefined && pinned === undefined;
    hits.push({
      rule: "sandboxd/node-name",
      severity: gone || virtual === false ? "error" : undefined,
      path: specPath(subject, "nodeName"),
      what: gone
        ? `The Pod goes to Node ${nodeName}, which does not exist: it stays Pending and is then garbage-collected.`
        : virtual === false
          ? `The Pod goes to Node ${nodeName}, which is no virtual node: it runs there as a plain container.`
          : `The Pod goes to Node ${nodeName} without the scheduler, succeeds or fails there on its annotations alone, and waits there however full that node is.`,
      fix: "Remove nodeName; the selector finds a node.",
    });
    return hits;
  }
  if (subject.live && nodeName !== "") return hits;
  const selected = selector(c);
  hits.push(...selected);
  if (!toleratesProvider(subject.spec, taintSandboxd)) {
    const ours = listOf(subject.spec.tolerations).findIndex((t) => mapOf(t).key === providerTaint);
    hits.push({
      rule: "sandboxd/toleration-missing",
      path: specPath(subject, "tolerations", ...(ours < 0 ? [] : [ours])),
      what: `${ours < 0 ? "The" : "The toleration does not fit, so the"} node's taint ${providerTaint}=${taintSandboxd}:NoSchedule keeps the Pod off it; it stays Pending.`,
      fix: `Tolerate ${providerTaint} with operator Exists and effect NoSchedule.`,
      edits: [tolerationEdit(subject)],
    });
  }
  // A selector that is wrong by the contract fits no node either; that is one mistake.
  if (verdict.sandboxd !== undefined && selected.length === 0) hits.push(...liveNodes(c));
  return hits;
}

function selector({ subject, verdict, context }: Case): Hit[] {
  const hits: Hit[] = [];
  const { sandboxd, pool } = verdict;
  const [wantedKey = runtimeKey, wanted = runtimeSandboxd] = Object.entries(context.nodeLabels)[0] ?? [];
  if (sandboxd === undefined) {
    hits.push({
      rule: "sandboxd/selector-missing",
      path: specPath(subject, "nodeSelector"),
      what: "Nothing leads the Pod to a sandboxd node: an ordinary Node runs it as a plain container, without a VM and with its annotations unread; where no Node fits it stays Pending.",
      fix: `Set nodeSelector ${wantedKey}: ${wanted}.`,
      edits: [{ kind: "add", path: specPath(subject, "nodeSelector", wantedKey), value: wanted }],
    });
  } else if (!sandboxd.values.includes(context.nodeLabels[sandboxd.key] ?? runtimeSandboxd)) {
    const value = sandboxd.values.join(", ");
    const right = context.nodeLabels[sandboxd.key] ?? runtimeSandboxd;
    const path = specPath(subject, ...sandboxd.path);
    const plain = sandboxd.path[0] === "nodeSelector" && meantValue(value, [right]) !== undefined;
    hits.push({
      rule: "sandboxd/selector-value",
      path,
      what: `No sandboxd node carries ${sandboxd.key}=${value}; the Pod stays Pending.`,
      fix: `Select ${sandboxd.key}: ${right}.`,
      edits: plain ? [{ kind: "set", path, value: right }] : undefined,
    });
  } else if (isMisplacedRuntime(sandboxd.key, sandboxd.values) && !(sandboxd.key in context.nodeLabels)) {
    const path = specPath(subject, ...sandboxd.path);
    const plain =
      sandboxd.path[0] === "nodeSelector" && at(subject.spec, "nodeSelector", runtimeKey) === undefined;
    hits.push({
      rule: "sandboxd/selector-value",
      path,
      what: `No sandboxd node carries the label ${sandboxd.key}; the Pod stays Pending.`,
      fix: `Select ${wantedKey}: ${wanted}.`,
      edits: plain ? [{ kind: "rename", path, key: wantedKey }] : undefined,
    });
  }
  if (sandboxd !== undefined && pool !== undefined)
    hits.push({
      rule: "sandboxd/selectors-conflict",
      path: specPath(subject, ...pool.path),
      what: `No Node has both ${sandboxd.key} and ${poolLabel}; the Pod stays Pending.`,
      fix: `Remove ${poolLabel} for sandboxd, or ${sandboxd.key} for vk-cocoon.`,
    });
  if (context.cluster?.nodes !== undefined) return hits;
  for (const { key, values, path } of verdict.requirements) {
    if (key === sandboxd?.key || key === poolLabel || Object.hasOwn(context.nodeLabels, key)) continue;
    const own = virtualNodeLabels[key];
    if (own === "" || (own !== undefined && values.includes(own))) continue;
    hits.push({
      rule: "sandboxd/selector-unmatched",
      severity: own === undefined ? undefined : "error",
      path: specPath(subject, ...path),
      what:
        own === undefined
          ? `A vk-sandbox Node has the label ${key} only when it was started with it; otherwise the Pod stays Pending.`
          : `A vk-sandbox Node carries ${key}=${own}, not ${values.join(", ")}; the Pod stays Pending.`,
      fix:
        own === undefined
          ? `Remove it, or start the nodes with --node-labels …,${key}=${values[0] ?? ""}; tell check so with the same flag.`
          : `Remove it, or write ${own}.`,
    });
  }
  return hits;
}

/** With the cluster at hand: whether any Node fits. */
function liveNodes({ subject, context }: Case): Hit[] {
  const nodes = context.cluster?.nodes;
  if (nodes === undefined) return [];
  const path = specPath(subject, "nodeSelector");
  const virtual = nodes.filter((node) =>
    node.taints.some((t) => t.key === providerTaint && t.value === taintSandboxd),
  );
  if (virtual.length === 0)
    return [
      {
        rule: "sandboxd/no-node",
        path,
        what: "The cluster has no vk-sandbox node at all; the Pod stays Pending.",
        fix: "Start vk-sandbox on a host with sandboxd; vk-sandbox doctor helps there.",
      },
    ];
  const selected = virtual.filter((node) => selects(subject.spec, node));
  if (selected.length === 0)
    return [
      {
        rule: "sandboxd/no-node",
        path,
        what: `The selector fits none of the cluster's ${virtual.length} vk-sandbox node(s); the Pod stays Pending.`,
        fix: `Select labels that they carry: ${labelsInCommon(virtual)}.`,
      },
    ];
  const others = selected.map((node) =>
    untolerated(subject.spec, node).filter((t) => t.key !== providerTaint),
  );
  if (others.every((taints) => taints.length > 0)) {
    const taint = others[0]?.[0];
    return [
      {
        rule: "sandboxd/no-node",
        path: specPath(subject, "tolerations"),
        what: `Every vk-sandbox node that the selector fits is tainted besides: ${taint?.key}=${taint?.value}:${taint?.effect}. The Pod stays Pending until that goes.`,
        fix: "Wait for the node to be Ready, uncordon it, or tolerate the taint.",
      },
    ];
  }
  return [];
}

function labelsInCommon(nodes: readonly { labels: Record<string, string> }[]): string {
  const [first, ...rest] = nodes;
  const common = Object.entries(first?.labels ?? {}).filter(
    ([key, value]) =>
      !key.startsWith("kubernetes.io/hostname") && rest.every((node) => node.labels[key] === value),
  );
  return common.map(([key, value]) => `${key}=${value}`).join(", ") || "they have none in common";
}

function axes({ subject, verdict }: Case): Hit[] {
  const hits: Hit[] = [];
  const { annotations } = subject;
  const image = textOf(subject.containers[0]?.image);

  const runtime = annotations[runtimeKey] ?? "";
  if (runtime !== "" && runtime !== runtimeSandboxd) {
    const path = annotationPath(subject, runtimeKey);
    const plain = verdict.sandboxd !== undefined || meantValue(runtime, [runtimeSandboxd]) !== undefined;
    hits.push({
      rule: "sandboxd/runtime-value",
      path,
      what: `A vk-sandbox node serves only "${runtimeSandboxd}" and fails the create of ${shown(runtime)}; the Pod stays Pending.`,
      fix: `Write ${runtimeSandboxd}, or select another backend's nodes.`,
      edits: plain ? [{ kind: "set", path, value: runtimeSandboxd }] : undefined,
    });
  }

  const template = annotations[templateKey] ?? "";
  const templatePath = annotationPath(subject, templateKey);
  if (template.trim() === "") {
    if (!subject.meant.has(templateKey))
      hits.push({
        rule: "sandboxd/template-missing",
        path: templatePath,
        what: `The create fails without ${templateKey}: there is no pool to claim from. ${endOf(subject.spec)}`,
        fix: `Set ${templateKey} to a pool template of sandboxd${image === "" ? "" : `; by convention the container image, ${image}`}.`,
      });
  } else if (/\s/.test(template)) {
    const trimmed = template.trim();
    hits.push({
      rule: "sandboxd/template-value",
      path: templatePath,
      what: `${shown(template)} is compared as it is, spaces included; no pool has that name.`,
      fix: "Write it without spaces.",
      edits: /\s/.test(trimmed) ? undefined : [{ kind: "set", path: templatePath, value: trimmed }],
    });
  } else if (image !== "" && image !== template) {
    hits.push({
      rule: "sandboxd/image-differs",
      path: specPath(subject, "containers", 0, "image"),
      what: `The Pod claims from the pool of ${template}, not of its image ${image}; unless that pool was built from another reference, nobody provisioned it.`,
      fix: `Make image and ${templateKey} equal, or mark the line with a comment: vk-sandbox-ignore: sandboxd/image-differs.`,
    });
  }

  hits.push(...choice(subject, "sandboxd/net-value", netKey, nets));
  hits.push(...choice(subject, "sandboxd/size-value", sizeKey, sizes));
  return hits;
}

function choice(
  subject: Case["subject"],
  rule: "sandboxd/net-value" | "sandboxd/size-value",
  key: string,
  choices: readonly string[],
): Hit[] {
  const value = subject.annotations[key] ?? "";
  if (value === "" || choices.includes(value)) return [];
  const meant = meantValue(value, choices);
  const path = annotationPath(subject, key);
  return [
    {
      rule,
      path,
      what: `sandboxd knows no ${key.slice(key.indexOf("/") + 1)} ${shown(value)}; the create fails. ${endOf(subject.spec)}`,
      fix: `Use ${choices.join(", ")}, or leave it out for sandboxd's default${meant === undefined ? "." : `; ${meant} was meant?`}`,
      edits: meant === undefined ? undefined : [{ kind: "set", path, value: meant }],
    },
  ];
}

/** How a failed create ends. */
function endOf(spec: Record<string, unknown>): string {
  return spec.restartPolicy === "Never"
    ? "Under restartPolicy Never the Pod is Failed for good."
    : "The Pod stays Pending with the reason on it.";
}

/** The lease in seconds that a Pod's annotations ask for; undefined when they are wrong. */
export function leaseSeconds(annotations: Readonly<Record<string, string>>): number | undefined {
  const text = annotations[ttlKey] ?? "";
  if (text === "") return ttlDefaultSeconds;
  if (!/^\d{1,10}$/.test(text)) return undefined;
  return Number(text) === 0 ? ttlZeroMeansSeconds : Math.min(Number(text), ttlDefaultSeconds);
}

function lease({ subject, context, pooled }: Case): Hit[] {
  const hits: Hit[] = [];
  const { annotations } = subject;
  const path = annotationPath(subject, ttlKey);
  const text = annotations[ttlKey] ?? "";
  const seconds = leaseSeconds(annotations);
  const renewed = meantBoolean(annotations[renewKey] ?? "") === "true";
  if (seconds === undefined) {
    const meant = meantSeconds(text);
    hits.push({
      rule: "sandboxd/ttl-value",
      path,
      what: `${ttlKey} is ${shown(text)}, no whole number of seconds from 0; the create fails. ${endOf(subject.spec)}`,
      fix:
        meant === undefined
          ? "Write seconds as digits, or leave it out for 24 hours."
          : `Write seconds: "${meant}".`,
      edits: meant === undefined ? undefined : [{ kind: "set", path, value: String(meant) }],
    });
  } else if (text !== "" && Number(text) === 0) {
    hits.push({
      rule: "sandboxd/ttl-zero",
      path,
      what: "0 is not for ever: sandboxd destroys the VM after five minutes, and the Pod is Failed with SandboxLeaseExpired.",
      fix: `Write the seconds that it should live, or leave it out for 24 hours${renewed ? "" : `; ${renewKey}: "true" keeps it longer`}.`,
    });
  } else if (text !== "" && Number(text) > ttlDefaultSeconds) {
    hits.push({
      rule: "sandboxd/ttl-clamped",
      severity: renewed ? "info" : undefined,
      path,
      what: `sandboxd grants at most ${ttlDefaultSeconds} seconds: ${renewed ? "the lease is renewed, so the VM goes on" : "the VM is destroyed after 24 hours, not later"}.`,
      fix: renewed
        ? `Write "${ttlDefaultSeconds}".`
        : `Write "${ttlDefaultSeconds}", and ${renewKey}: "true" if it must live longer.`,
    });
  }

  const renew = annotations[renewKey];
  if (renew !== undefined && renew !== "true" && renew !== "false") {
    const meant = meantBoolean(renew);
    const renewPath = annotationPath(subject, renewKey);
    hits.push({
      rule: "sandboxd/renew-value",
      path: renewPath,
      what: `Only "true" renews the lease; ${shown(renew)} is read as no.`,
      fix: meant === undefined ? 'Write "true" or "false".' : `Write "${meant}".`,
      edits: meant === undefined ? undefined : [{ kind: "set", path: renewPath, value: meant }],
    });
  }

  if (seconds === undefined || renewed) return hits;
  if (pooled && seconds < pooledLeaseSecondsMin)
    hits.push({
      rule: "sandboxd/lease-short",
      path,
      what: `In a warm pool the lease of ${seconds} seconds runs from the moment the sandbox waits there; it dies in the pool, or soon after someone took it.`,
      fix: `Leave ${ttlKey} out, or renew: ${renewKey}: "true".`,
    });
  const shutdown = subject.kind === "Sandbox" ? textOf(at(subject.object.value, "spec", "shutdownTime")) : "";
  const shutdownMs = Date.parse(shutdown);
  // A live Sandbox has its VM already; its deadline is on the node, not in the manifest.
  if (!subject.live && shutdownMs > context.nowMs + seconds * 1000)
    hits.push({
      rule: "sandboxd/lease-short",
      path: ["spec", "shutdownTime"],
      what: `The VM's lease of ${seconds} seconds ends before ${shutdown}; the Pod is Failed then and the Sandbox does not come back.`,
      fix: `Renew the lease with ${renewKey}: "true", or shorten shutdownTime.`,
    });
  return hits;
}

function claimId({ subject }: Case): Hit[] {
  if (!Object.hasOwn(subject.annotations, claimIdKey)) return [];
  // On a Pod of the API, or one that was read from it with its status, the provider wrote it.
  if (subject.kind === "Pod" && (subject.live || isMap(subject.object.value.status))) return [];
  const path = annotationPath(subject, claimIdKey);
  return [
    {
      rule: "sandboxd/claim-id-written",
      path,
      what: "The provider writes the claim id. A new Pod that has one looks as if it had run before: its VM is not found, and it is published Failed (SandboxLost) instead of getting one.",
      fix: "Remove it.",
      edits: [{ kind: "remove", path }],
    },
  ];
}

function spec({ subject }: Case): Hit[] {
  const hits: Hit[] = [];
  if (subject.spec.restartPolicy === "Never")
    hits.push({
      rule: "sandboxd/restart-never",
      path: specPath(subject, "restartPolicy"),
      what: "The first refused claim (a pool that is cold for a moment) makes the Pod Failed for good, and with it its Sandbox.",
      fix: "Leave restartPolicy out: refused claims are then tried again.",
    });
  const runtimeClass = textOf(subject.spec.runtimeClassName);
  if (runtimeClass !== "")
    hits.push({
      rule: "sandboxd/runtime-class",
      path: specPath(subject, "runtimeClassName"),
      what: `A virtual node has no CRI handler, so ${shown(runtimeClass)} isolates nothing here; the RuntimeClass must exist all the same, and what it says of nodes is merged into the Pod.`,
      fix: "Remove runtimeClassName; the microVM is the isolation.",
    });
  listOf(subject.spec.volumes).forEach((volume, index) => {
    if (!isMap(volume) || (volume.persistentVolumeClaim === undefined && volume.ephemeral === undefined))
      return;
    hits.push({
      rule: "sandboxd/volume-claim",
      path: specPath(subject, "volumes", index),
      what: `The VM never sees volume ${shown(volume.name)}, and the scheduler waits until its claim is bound.`,
      fix: "Remove the volume; the VM has the disks of its pool template.",
    });
  });
  if (subject.kind !== "Pod" && listOf(at(subject.object.value, "spec", "volumeClaimTemplates")).length > 0)
    hits.push({
      rule: "sandboxd/volume-claim",
      path: ["spec", "volumeClaimTemplates"],
      what: "A claim is made for each Sandbox and nothing mounts it; the scheduler waits until it is bound.",
      fix: "Remove volumeClaimTemplates; the VM has the disks of its pool template.",
    });
  subject.containers.forEach((container, index) => {
    const port = listOf(container.ports).findIndex((entry) => Number(mapOf(entry).hostPort ?? 0) > 0);
    if (port >= 0)
      hits.push({
        rule: "sandboxd/host-port",
        path: specPath(subject, "containers", index, "ports", port, "hostPort"),
        what: "Nothing opens the host port, and the scheduler puts only one such Pod on each Node.",
        fix: "Remove hostPort; the VM is reached at the Pod's IP.",
      });
  });
  if (subject.kind === "SandboxTemplate" && isMap(at(subject.object.value, "spec", "networkPolicy")))
    hits.push({
      rule: "sandboxd/network-policy",
      path: ["spec", "networkPolicy"],
      what: "No network plugin sees the VM's traffic, so the policy forbids nothing there.",
      fix: `Choose the lane with ${netKey}, and set networkPolicyManagement: Unmanaged.`,
    });
  return hits;
}

const hostname = "kubernetes.io/hostname";

function spread({ subject, pooled }: Case): Hit[] {
  if (subject.kind !== "SandboxTemplate") return [];
  const base: Path = specPath(subject, "topologySpreadConstraints");
  const constraints = listOf(subject.spec.topologySpreadConstraints);
  const byHost = constraints.findIndex((entry) => mapOf(entry).topologyKey === hostname);
  if (byHost < 0) {
    return [
      {
        rule: "sandboxd/spread-missing",
        severity: pooled ? undefined : "info",
        path: base,
        what: "vk-sandbox nodes look identical to the scheduler, which packs one of them: its sandboxd runs dry while the others are warm.",
        fix: `Label the template's Pods and add a topologySpreadConstraint with topologyKey ${hostname}, maxSkew 1, whenUnsatisfiable ScheduleAnyway and a labelSelector for that label.`,
      },
    ];
  }
  if (labelsSelected(mapOf(constraints[byHost]).labelSelector, subject.labels)) return [];
  return [
    {
      rule: "sandboxd/spread-selects-nothing",
      path: [...base, byHost, "labelSelector"],
      what: "The constraint's labelSelector does not select the Pods of this template, so they are not spread.",
      fix: "Select a label of podTemplate.metadata.labels.",
    },
  ];
}

function strangers({ subject, context }: Case): Hit[] {
  const hits: Hit[] = [];
  for (const key of Object.keys(subject.annotations)) {
    if (!isCocoonKey(key)) continue;
    const gated = key === vmNameKey;
    hits.push({
      rule: "sandboxd/cocoon-annotation",
      path: annotationPath(subject, key),
      what: `vk-sandbox does not read ${key}${gated ? "; where cocoon-webhook runs it gets the Pod denied" : ""}.`,
      fix: "Remove it, or select a vk-cocoon pool.",
    });
  }
  const webhook = context.cluster?.cocoonWebhook;
  if (webhook !== undefined && toleratesProvider(subject.spec, taintSandboxd))
    hits.push({
      rule: "sandboxd/webhook",
      path: specPath(subject, "tolerations"),
      what: `${webhook} denies a Pod that tolerates ${providerTaint} unless a CocoonSet owns it and its creator is in POD_CREATORS; a Sandbox's Pod is neither.`,
      fix: "Add the agent-sandbox controller's service account to POD_CREATORS of cocoon-webhook.",
    });
  return hits;
}

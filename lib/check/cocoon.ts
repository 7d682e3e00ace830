/** Every way a Pod that is meant for vk-cocoon can fail there. */
import { annotationPath, type Case, specPath, tolerationEdit } from "./context.ts";
import {
  cloneFromDirKey,
  forkFromKey,
  guestSystems,
  imageKey,
  isSandboxKey,
  managedKey,
  modeKey,
  modes,
  osKey,
  poolLabel,
  providerTaint,
  taintCocoon,
  vmIdKey,
  vmIpKey,
  vmNameKey,
} from "./contract.ts";
import { toleratesProvider } from "./scheduling.ts";
import { shown, textOf } from "./shape.ts";
import { meantBoolean, meantValue } from "./spelling.ts";
import type { Hit } from "./types.ts";

/** Judges a Pod that is for vk-cocoon, except for names shared with another object (relations.ts). */
export function judgeCocoon(c: Case): Hit[] {
  return [...scheduling(c), ...identity(c), ...image(c), ...spec(c), ...strangers(c)];
}

function scheduling({ subject, verdict }: Case): Hit[] {
  const hits: Hit[] = [];
  const nodeName = textOf(subject.spec.nodeName);
  if (nodeName !== "" && !(subject.live && subject.kind === "Pod")) {
    hits.push({
      rule: "cocoon/node-name",
      path: specPath(subject, "nodeName"),
      what: `The Pod goes to Node ${nodeName} without the scheduler, and succeeds or fails there on its annotations alone.`,
      fix: "Remove nodeName; the selector finds a node.",
    });
    return hits;
  }
  if (subject.live && nodeName !== "") return hits;
  if (verdict.pool === undefined || verdict.pool.values.every((value) => value === ""))
    hits.push({
      rule: "cocoon/selector-missing",
      path: specPath(subject, "nodeSelector", ...(verdict.pool === undefined ? [] : [poolLabel])),
      what: "Nothing leads the Pod to a vk-cocoon node: an ordinary Node runs it as a plain container, without a VM; where no Node fits it stays Pending.",
      fix: `Set nodeSelector ${poolLabel} to the pool of your nodes (VK_NODE_POOL, by default "default").`,
    });
  if (!toleratesProvider(subject.spec, taintCocoon))
    hits.push({
      rule: "cocoon/toleration-missing",
      path: specPath(subject, "tolerations"),
      what: `The node's taint ${providerTaint}=${taintCocoon}:NoSchedule keeps the Pod off it; it stays Pending.`,
      fix: `Tolerate ${providerTaint} with operator Exists and effect NoSchedule.`,
      edits: [tolerationEdit(subject)],
    });
  return hits;
}

function identity({ subject }: Case): Hit[] {
  const hits: Hit[] = [];
  const { annotations } = subject;
  const namePath = annotationPath(subject, vmNameKey);
  const name = annotations[vmNameKey] ?? "";
  if (subject.kind === "SandboxTemplate") {
    if (name !== "")
      hits.push({
        rule: "cocoon/name-in-template",
        path: namePath,
        what: `Every Sandbox made from this template names the VM ${shown(name)}: the second Pod adopts the first one's VM instead of booting its own.`,
        fix: "Take it out, and write each Sandbox with a VM name of its own; a warm pool cannot be had on vk-cocoon.",
      });
    else if (!subject.meant.has(vmNameKey))
      hits.push({
        rule: "cocoon/name-in-template",
        path: namePath,
        what: "A Pod for vk-cocoon needs a VM name of its own, and a template has no way to give one: every create fails.",
        fix: "Write a Sandbox with vm.cocoonstack.io/name for each VM instead of a template.",
      });
  } else if (name.trim() === "" && !subject.meant.has(vmNameKey)) {
    hits.push({
      rule: "cocoon/name-missing",
      path: namePath,
      what: `The create fails without ${vmNameKey}; the Pod stays Pending with the reason on its events.`,
      fix: `Set ${vmNameKey} to a name that no other sandbox uses, for example sandbox-<namespace>-<name>.`,
    });
  }

  const managed = annotations[managedKey];
  if (managed !== undefined && managed !== "true" && managed !== "false") {
    const meant = meantBoolean(managed);
    const path = annotationPath(subject, managedKey);
    hits.push({
      rule: "cocoon/managed-value",
      path,
      what: `Only "true" lets vk-cocoon create the VM; ${shown(managed)} makes the Pod unmanaged.`,
      fix: meant === undefined ? 'Write "true" or "false".' : `Write "${meant}".`,
      edits: meant === undefined ? undefined : [{ kind: "set", path, value: meant }],
    });
  }
  const id = annotations[vmIdKey] ?? "";
  const ip = annotations[vmIpKey] ?? "";
  if (ip !== "" && !isAddress(ip))
    hits.push({
      rule: "cocoon/ip-value",
      path: annotationPath(subject, vmIpKey),
      what: `${shown(ip)} is no IP address; it cannot become the Pod's.`,
      fix: "Write the VM's IP address, without port or prefix length.",
    });
  // The mistyped word above is reported as such, not once more as an unmanaged Pod.
  if (isManaged(annotations) || subject.meant.has(managedKey)) {
    // What vk-cocoon wrote is read back from a live Pod.
    if ((id !== "" || ip !== "") && !(subject.live && subject.kind === "Pod"))
      hits.push({
        rule: "cocoon/identity-written",
        path: annotationPath(subject, id === "" ? vmIpKey : vmIdKey),
        what: "vk-cocoon writes id and IP of a VM that it creates; what is written here is wrong until then.",
        fix: `Remove ${vmIdKey} and ${vmIpKey}, or set ${managedKey}: "false" for a VM that exists.`,
      });
  } else if (id === "" || ip === "") {
    const missing = [id === "" ? vmIdKey : "", ip === "" ? vmIpKey : ""].filter((key) => key !== "");
    hits.push({
      rule: "cocoon/unmanaged-identity",
      path: annotationPath(subject, managed === undefined ? (missing[0] ?? managedKey) : managedKey),
      what: `Without ${managedKey}: "true" the VM must exist already, and ${missing.join(" and ")} ${missing.length > 1 ? "are" : "is"} missing: the create fails.`,
      fix: `Set ${managedKey}: "true" to have the VM created, or name the VM's id and IP.`,
    });
  }
  return hits;
}

function isManaged(annotations: Readonly<Record<string, string>>): boolean {
  return meantBoolean(annotations[managedKey] ?? "") === "true";
}

function isAddress(text: string): boolean {
  const octet = "(25[0-5]|2[0-4]\\d|1?\\d?\\d)";
  if (new RegExp(`^${octet}(\\.${octet}){3}$`).test(text)) return true;
  // The URL parser is the one of the platform that knows every form of IPv6.
  return /^[0-9a-fA-F:.]+$/.test(text) && text.includes(":") && URL.canParse(`http://[${text}]/`);
}

function image({ subject }: Case): Hit[] {
  const hits: Hit[] = [];
  const { annotations } = subject;
  const managed = isManaged(annotations);
  const mode = annotations[modeKey] ?? "";
  const modePath = annotationPath(subject, modeKey);
  if (mode !== "" && !modes.includes(mode) && !(mode === "static" && !managed)) {
    const meant = meantValue(mode, modes);
    hits.push({
      rule: "cocoon/mode-value",
      path: modePath,
      what: `${shown(mode)} is no mode: anything but run is treated as clone, which looks for a snapshot named like the image.`,
      fix: `Use run to boot the image, or clone for a snapshot${meant === undefined ? "." : `; ${meant} was meant?`}`,
      edits: meant === undefined ? undefined : [{ kind: "set", path: modePath, value: meant }],
    });
  }
  const sources = [imageKey, forkFromKey, cloneFromDirKey];
  if (managed && sources.every((key) => (annotations[key] ?? "") === "" && !subject.meant.has(key)))
    hits.push({
      rule: "cocoon/image-missing",
      path: annotationPath(subject, imageKey),
      what: "There is nothing to boot or clone the VM from; the create fails.",
      fix: `Set ${imageKey} to an image of the Cocoon image library.`,
    });
  const os = annotations[osKey] ?? "";
  if (os !== "" && !guestSystems.includes(os)) {
    const meant = meantValue(os, guestSystems);
    const path = annotationPath(subject, osKey);
    hits.push({
      rule: "cocoon/os-value",
      path,
      what: `vk-cocoon knows no guest OS ${shown(os)}.`,
      fix: `Use ${guestSystems.join(", ")}, or leave it out for linux.`,
      edits: meant === undefined ? undefined : [{ kind: "set", path, value: meant }],
    });
  }
  return hits;
}

function spec({ subject }: Case): Hit[] {
  const hits: Hit[] = [];
  if (subject.spec.restartPolicy === "Never")
    hits.push({
      rule: "cocoon/restart-never",
      path: specPath(subject, "restartPolicy"),
      what: "The first failed create makes the Pod Failed for good, and with it its Sandbox.",
      fix: "Leave restartPolicy out: failed creates are then tried again.",
    });
  const runtimeClass = textOf(subject.spec.runtimeClassName);
  if (runtimeClass !== "")
    hits.push({
      rule: "cocoon/runtime-class",
      path: specPath(subject, "runtimeClassName"),
      what: `A virtual node has no CRI handler, so ${shown(runtimeClass)} isolates nothing here; the RuntimeClass must exist all the same, and what it says of nodes is merged into the Pod.`,
      fix: "Remove runtimeClassName; the microVM is the isolation.",
    });
  return hits;
}

function strangers({ subject, context }: Case): Hit[] {
  const hits: Hit[] = [];
  for (const key of Object.keys(subject.annotations))
    if (isSandboxKey(key))
      hits.push({
        rule: "cocoon/sandboxd-annotation",
        path: annotationPath(subject, key),
        what: `vk-cocoon does not read ${key}.`,
        fix: "Remove it, or select the sandboxd nodes.",
      });
  if (subject.kind === "Pod") return hits;
  const webhook = context.cluster?.cocoonWebhook;
  if (context.cluster !== undefined && webhook === undefined) return hits;
  hits.push({
    rule: "cocoon/webhook",
    severity: webhook === undefined ? undefined : "warning",
    path: specPath(subject, "tolerations"),
    what: `${webhook ?? "Where cocoon-webhook runs, it"} denies this Sandbox's Pod: no CocoonSet owns it, and its creator is not in POD_CREATORS.`,
    fix: "Add the agent-sandbox controller's service account to POD_CREATORS of cocoon-webhook.",
  });
  return hits;
}

/** The fields of a Pod's spec that a sandboxd node ignores, each with what its author might have expected. */
import { specPath } from "./context.ts";
import { isMap, listOf, mapOf } from "./shape.ts";
import type { Subject } from "./subject.ts";
import type { Hit } from "./types.ts";

const notRun = "is not run: the VM runs what its pool template runs";
const noProbe = "is not run: the Pod is Ready as soon as it has its VM";
const ownNetwork = "has no effect: the VM has its own network, chosen by sandbox.cocoonstack.io/net";
const notApplied = "is not applied: the VM is the boundary";
const ownTime = "is not obeyed: a deleted Pod is gone at once, and the VM's life is its lease";

const podFields: Readonly<Record<string, string>> = {
  initContainers: "are never run",
  volumes: "are not mounted: the VM has the disks of its pool template",
  securityContext: notApplied,
  hostNetwork: ownNetwork,
  hostPID: notApplied,
  hostIPC: notApplied,
  hostUsers: notApplied,
  hostname: ownNetwork,
  subdomain: ownNetwork,
  hostAliases: ownNetwork,
  dnsPolicy: ownNetwork,
  dnsConfig: ownNetwork,
  serviceAccountName: "gives no token to the VM, and the account must still exist",
  imagePullSecrets: "are not used: no image is pulled",
  shareProcessNamespace: notApplied,
  readinessGates: "are not waited for: the Pod is Ready as soon as it has its VM",
  activeDeadlineSeconds: ownTime,
  terminationGracePeriodSeconds: ownTime,
  os: "says nothing about the VM: the template does",
  resources:
    "do not size the VM (sandbox.cocoonstack.io/size does); requests are still counted against the Node",
  resourceClaims: "give no device to the VM, and the scheduler still waits for them",
};

const containerFields: Readonly<Record<string, string>> = {
  command: notRun,
  args: notRun,
  workingDir: notRun,
  env: "does not reach the VM",
  envFrom: "does not reach the VM",
  resources: podFields.resources ?? "",
  volumeMounts: podFields.volumes ?? "",
  volumeDevices: podFields.volumes ?? "",
  livenessProbe: noProbe,
  readinessProbe: noProbe,
  startupProbe: noProbe,
  lifecycle: "hooks are not run",
  securityContext: notApplied,
  stdin: "has nothing to attach to: interactive access is the sandbox SDK's",
  tty: "has nothing to attach to: interactive access is the sandbox SDK's",
};

/** What the API server fills in by itself; nobody expects anything of it. */
const defaults: Readonly<Record<string, unknown>> = {
  dnsPolicy: "ClusterFirst",
  serviceAccountName: "default",
  terminationGracePeriodSeconds: 30,
  hostUsers: true,
};

/** One finding for each ignored field, the first container's standing for all that have it. */
export function ignoredFields(subject: Subject): Hit[] {
  const hits: Hit[] = [];
  const say = (path: Hit["path"], field: string, text: string) =>
    hits.push({
      rule: "sandboxd/ignored-field",
      path,
      what: `${field} ${text}.`,
      fix: "Nothing has to be done; remove it so that nobody counts on it.",
    });
  for (const [field, text] of Object.entries(podFields)) {
    const value = subject.spec[field];
    if (isEmpty(value) || value === defaults[field]) continue;
    if (field === "volumes" && !listOf(value).some(isPlainVolume)) continue;
    say(specPath(subject, field), field, text);
  }
  for (const [field, text] of Object.entries(containerFields)) {
    const index = subject.containers.findIndex((container) => {
      const value = container[field];
      return field === "volumeMounts" ? listOf(value).some(isOwnMount) : !isEmpty(value);
    });
    if (index >= 0) say(specPath(subject, "containers", index, field), field, text);
  }
  return hits;
}

function isEmpty(value: unknown): boolean {
  if (value === undefined || value === null || value === false) return true;
  if (Array.isArray(value)) return value.length === 0;
  return isMap(value) && Object.keys(value).length === 0;
}

/** Neither a claim, which has a rule of its own, nor the service account's token, which the API server adds. */
function isPlainVolume(volume: unknown): boolean {
  const { persistentVolumeClaim, ephemeral, name } = mapOf(volume);
  if (persistentVolumeClaim !== undefined || ephemeral !== undefined) return false;
  return !String(name).startsWith("kube-api-access-");
}

function isOwnMount(mount: unknown): boolean {
  return mapOf(mount).mountPath !== "/var/run/secrets/kubernetes.io/serviceaccount";
}

/**
 * The floor: what the runtime allows. A loop that watches, claims, appends, patches and deletes, with none of
 * the contracts: no verdicts, no retries, no recovery, no events, no limits. Benchmarks run it beside the daemon,
 * compiled the same way. Never use it for anything else: it loses VMs.
 *
 * usage: floor SERVER CA-FILE KUBE-TOKEN-FILE NODE SANDBOXD-URL SANDBOXD-TOKEN-FILE JOURNAL
 */
import { openSync, readFileSync, writeSync } from "node:fs";

const [server = "", caFile = "", kubeToken = "", node = "", sandboxd = "", sandboxdToken = "", journal = ""] =
  process.argv.slice(2);
const read = (file: string) => readFileSync(file, "utf8").trim();
const tls = { ca: read(caFile) };
const kubeHeaders = { authorization: `Bearer ${read(kubeToken)}`, "user-agent": "floor" };
const vmHeaders = { authorization: `Bearer ${read(sandboxdToken)}`, "content-type": "application/json" };
const log = openSync(journal, "a");
const held = new Map<string, { id: string; token: string }>();
const prefix = "sandbox.cocoonstack.io/";

function kube(method: string, path: string, body?: unknown, type = "application/json"): Promise<Response> {
  const headers = { ...kubeHeaders, "content-type": type };
  return fetch(server + path, { method, headers, tls, body: JSON.stringify(body) });
}

interface Pod {
  metadata: {
    namespace: string;
    name: string;
    uid: string;
    resourceVersion: string;
    annotations: Record<string, string>;
    deletionTimestamp?: string;
  };
  spec: { containers: { name: string; image: string }[] };
  status: { phase: string };
}

async function serve(pod: Pod): Promise<void> {
  const { namespace, name, uid, annotations } = pod.metadata;
  const key = `${namespace}/${name}`;
  const path = `/api/v1/namespaces/${namespace}/pods/${name}`;
  const vm = held.get(uid);
  if (pod.metadata.deletionTimestamp !== undefined) {
    if (vm === undefined) return;
    held.delete(uid);
    const released = await fetch(`${sandboxd}/v1/sandboxes/${vm.id}/release`, {
      method: "POST",
      headers: { ...vmHeaders, authorization: `Bearer ${vm.token}` },
    });
    await released.text();
    await (await kube("DELETE", path, { gracePeriodSeconds: 0, preconditions: { uid } })).text();
    return;
  }
  if (vm !== undefined || pod.status.phase !== "Pending") return;
  held.set(uid, { id: "", token: "" });
  const spec = { template: annotations[`${prefix}template`], ttl_seconds: 86400, claim_ref: key };
  const claimed = await fetch(`${sandboxd}/v1/claim`, {
    method: "POST",
    headers: vmHeaders,
    body: JSON.stringify(spec),
  });
  const grant = (await claimed.json()) as { id: string; token: string; owner_addr: string };
  held.set(uid, grant);
  writeSync(log, `${JSON.stringify({ key, ...grant })}\n`);
  const podIP = grant.owner_addr.split(":")[0];
  const since = `${new Date().toISOString().slice(0, 19)}Z`;
  const conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map((type) => ({
    type,
    status: "True",
    lastTransitionTime: since,
  }));
  const containerStatuses = pod.spec.containers.map((container) => ({
    ...container,
    imageID: `sandboxd://${grant.id}`,
    ready: true,
    started: true,
    restartCount: 0,
    state: { running: { startedAt: since } },
  }));
  const status = {
    phase: "Running",
    podIP,
    podIPs: [{ ip: podIP }],
    startTime: since,
    conditions,
    containerStatuses,
  };
  const metadata = { uid, annotations: { [`${prefix}claim-id`]: grant.id } };
  const patch = { metadata, status };
  await (await kube("PATCH", `${path}/status`, patch, "application/strategic-merge-patch+json")).text();
}

/** The API server drops a watcher that falls behind, so it is taken up again where it ended. */
async function watch(): Promise<void> {
  for (let from = ""; ; ) from = await watchFrom(from);
}

async function watchFrom(from: string): Promise<string> {
  const query = `fieldSelector=spec.nodeName%3D${node}&watch=true&resourceVersion=${from}`;
  const init = { headers: kubeHeaders, tls, timeout: false };
  const response = await fetch(`${server}/api/v1/pods?${query}`, init);
  const decoder = new TextDecoder();
  let rest = "";
  let last = from;
  for await (const chunk of response.body ?? []) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const { type, object } = JSON.parse(line) as { type: string; object: Pod };
      last = object.metadata.resourceVersion;
      if (type === "ADDED" || type === "MODIFIED") void serve(object);
    }
  }
  return last;
}

async function register(): Promise<void> {
  const quantity = { cpu: "4000", memory: "8Ti", pods: "5000" };
  const since = `${new Date().toISOString().slice(0, 19)}Z`;
  const conditions = [{ type: "Ready", status: "True", reason: "Floor", lastHeartbeatTime: since }];
  const taints = [{ key: "virtual-kubelet.io/provider", value: "sandboxd", effect: "NoSchedule" }];
  const labels = { type: "virtual-kubelet", "kubernetes.io/hostname": node };
  const status = { capacity: quantity, allocatable: quantity, conditions };
  await (await kube("POST", "/api/v1/nodes", { metadata: { name: node, labels }, spec: { taints } })).text();
  const type = "application/strategic-merge-patch+json";
  await (await kube("PATCH", `/api/v1/nodes/${node}/status`, { status }, type)).text();
  const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
  const lease = () => ({
    metadata: { name: node },
    spec: {
      holderIdentity: node,
      leaseDurationSeconds: 40,
      renewTime: new Date().toISOString().replace("Z", "000Z"),
    },
  });
  await (await kube("POST", leases, lease())).text();
  setInterval(async () => {
    const renewed = await kube("PATCH", `${leases}/${node}`, lease(), "application/merge-patch+json");
    await renewed.text();
  }, 10_000);
}

register().then(watch);

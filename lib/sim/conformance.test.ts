/**
 * What the API-server stand-in must have in common with the real one. Runs against the stand-in; with APISERVER_URL
 * and APISERVER_TOKEN set it runs the same tests against a kube-apiserver that has the Sandbox and NodeInventory CRDs
 * (both groups of the latter) and no controllers. Passed there against 1.36.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { type ApiServer, startApiServer } from "./apiserver.ts";
import {
  extensionResources,
  inventoryResource,
  olderInventoryResource,
  sandboxResource,
} from "./resources.ts";

const real = process.env.APISERVER_URL;
const token = process.env.APISERVER_TOKEN ?? "root";
let standIn: ApiServer | undefined;
let base = real ?? "";

beforeAll(async () => {
  if (real) return;
  standIn = await startApiServer({
    token,
    resources: [sandboxResource, inventoryResource, olderInventoryResource, ...extensionResources],
  });
  base = standIn.url;
});
afterAll(async () => standIn?.stop());

interface Body {
  kind?: string;
  message?: string;
  reason?: string;
  code?: number;
  details?: Record<string, unknown>;
  metadata: Record<string, unknown> & { name: string; uid: string; resourceVersion: string };
  spec: Record<string, unknown>;
  status: Record<string, unknown> & { conditions: { type: string; status: string }[] };
  items: Body[];
  [field: string]: unknown;
}
interface Answer {
  status: number;
  type: string;
  text: string;
  body: Body;
}

const strategic = "application/strategic-merge-patch+json";
const merge = "application/merge-patch+json";
const apply = "application/apply-patch+yaml";

async function call(
  method: string,
  path: string,
  body?: unknown,
  contentType = "application/json",
): Promise<Answer> {
  const response = await fetch(base + path, {
    method,
    headers: {
      authorization: `Bearer ${token}`,
      "content-type": contentType,
    },
    body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
    tls: { rejectUnauthorized: false },
  });
  const text = await response.text();
  return {
    status: response.status,
    type: response.headers.get("content-type") ?? "",
    text,
    body: (text.startsWith("{") ? JSON.parse(text) : {}) as Body,
  };
}

/** Reads watch events until one satisfies `last`, or the stream ends. */
async function watch(
  path: string,
  last: (event: WatchEvent) => boolean,
  meanwhile?: () => Promise<unknown>,
): Promise<WatchEvent[]> {
  const stop = new AbortController();
  const response = await fetch(base + path, {
    headers: { authorization: `Bearer ${token}` },
    tls: { rejectUnauthorized: false },
    signal: stop.signal,
  });
  expect(response.status).toBe(200);
  expect(response.headers.get("content-type")).toBe("application/json");
  const acting = meanwhile?.();
  const events: WatchEvent[] = [];
  let rest = "";
  const decoder = new TextDecoder();
  reading: for await (const chunk of response.body ?? []) {
    rest += decoder.decode(chunk, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const event = JSON.parse(line) as WatchEvent;
      events.push(event);
      if (last(event)) break reading;
    }
  }
  await acting;
  stop.abort();
  return events;
}
interface WatchEvent {
  type: string;
  object: Body;
}

let serial = 0;
const unique = (prefix: string) => `${prefix}-${process.pid}-${Date.now().toString(36)}-${serial++}`;
const pods = "/api/v1/namespaces/default/pods";
const sandboxes = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
const inventories = "/apis/sandbox.cocoonstack.io/v1beta1/nodeinventories";
const podSpec = { containers: [{ name: "c", image: "i" }] };

async function createPod(
  spec: object = {},
  metadata: object = {},
): Promise<{ name: string; path: string; pod: Body }> {
  const name = unique("p");
  const answer = await call("POST", pods, { metadata: { name, ...metadata }, spec: { ...podSpec, ...spec } });
  expect(answer.status).toBe(201);
  return { name, path: `${pods}/${name}`, pod: answer.body };
}

describe("what is not there", () => {
  test("an object that is not there is a Status that names it", async () => {
    expect((await call("GET", `${pods}/none`)).body).toEqual({
      kind: "Status",
      apiVersion: "v1",
      metadata: {},
      status: "Failure",
      message: 'pods "none" not found',
      reason: "NotFound",
      details: { name: "none", kind: "pods" },
      code: 404,
    } as never);
    expect((await call("GET", `${sandboxes}/none`)).body.details).toEqual({
      name: "none",
      group: "agents.x-k8s.io",
      kind: "sandboxes",
    });
  });

  test.each([
    ["a group that is not served", "/apis/nope.example.com/v1/foos/x"],
    ["a version that is not served", "/apis/agents.x-k8s.io/v7/namespaces/default/sandboxes/x"],
    [
      "a resource that a custom group does not have",
      "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxs/x",
    ],
    ["a path that is nothing", "/nope"],
  ])("%s is plain text without any name", async (_, path) => {
    const answer = await call("GET", path);
    expect([answer.status, answer.type, answer.text]).toEqual([
      404,
      "text/plain; charset=utf-8",
      "404 page not found\n",
    ]);
  });

  test("a resource that a built-in group does not have is a Status without a name", async () => {
    for (const path of ["/api/v1/foos/x", "/apis/coordination.k8s.io/v1/namespaces/default/foos/x"]) {
      const { status, body } = await call("GET", path);
      expect([status, body.reason, body.details]).toEqual([404, "NotFound", {}]);
    }
  });

  test("discovery answers groups, versions and resources with their plurals", async () => {
    const groups = (await call("GET", "/apis")).body.groups as { name: string; preferredVersion: object }[];
    expect(groups.find((group) => group.name === "sandbox.cocoonstack.io")?.preferredVersion).toEqual({
      groupVersion: "sandbox.cocoonstack.io/v1beta1",
      version: "v1beta1",
    });
    const list = (await call("GET", "/apis/agents.x-k8s.io/v1beta1")).body;
    expect([list.kind, list.groupVersion]).toEqual(["APIResourceList", "agents.x-k8s.io/v1beta1"]);
    const resources = list.resources as { name: string; kind: string; namespaced: boolean }[];
    expect(resources.map(({ name, kind, namespaced }) => [name, kind, namespaced])).toEqual([
      ["sandboxes", "Sandbox", true],
      ["sandboxes/status", "Sandbox", true],
    ]);
    expect((await call("GET", "/apis/coordination.k8s.io")).body.preferredVersion).toEqual({
      groupVersion: "coordination.k8s.io/v1",
      version: "v1",
    });
    const core = (await call("GET", "/api/v1")).body.resources as { name: string }[];
    for (const name of ["pods", "pods/status", "nodes", "nodes/status", "events", "namespaces"])
      expect(core.map((each) => each.name)).toContain(name);
    expect((await call("GET", "/version")).body.minor).toStartWith("36");
    expect((await call("GET", "/apis/nope.example.com/v1")).text).toBe("404 page not found\n");
  });
});

describe("writes", () => {
  test("a new Pod is Pending with defaults, and a name that is taken is AlreadyExists", async () => {
    const { name, pod } = await createPod();
    expect(pod.status).toEqual({ phase: "Pending", qosClass: "BestEffort" } as never);
    expect(pod.metadata.generation).toBe(1);
    expect(pod.spec).toMatchObject({ restartPolicy: "Always", terminationGracePeriodSeconds: 30 });
    expect(pod.spec.tolerations).toEqual(
      ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].map((key) => ({
        key,
        operator: "Exists",
        effect: "NoExecute",
        tolerationSeconds: 300,
      })),
    );
    const again = await call("POST", pods, { metadata: { name }, spec: podSpec });
    expect([again.status, again.body.reason, again.body.details]).toEqual([
      409,
      "AlreadyExists",
      { name, kind: "pods" },
    ]);
  });

  test("generateName makes a name", async () => {
    const { body } = await call("POST", pods, { metadata: { generateName: "made-" }, spec: podSpec });
    expect(body.metadata.name).toMatch(/^made-[a-z0-9]{5}$/);
  });

  test("what cannot be is refused: a bad name, no containers, another namespace, a namespace that is not there", async () => {
    const bad = await call("POST", pods, { metadata: { name: "Bad_Name" }, spec: podSpec });
    expect([bad.status, bad.body.reason]).toEqual([422, "Invalid"]);
    const empty = await call("POST", pods, { metadata: { name: unique("p") }, spec: { containers: [] } });
    expect([empty.status, empty.body.reason]).toEqual([422, "Invalid"]);
    const other = await call("POST", pods, { metadata: { name: "x", namespace: "other" }, spec: podSpec });
    expect([other.status, other.body.reason]).toEqual([400, "BadRequest"]);
    const nowhere = await call("POST", "/api/v1/namespaces/nowhere/pods", {
      metadata: { name: "x" },
      spec: podSpec,
    });
    expect([nowhere.status, nowhere.body.details]).toEqual([404, { name: "nowhere", kind: "namespaces" }]);
    const event = await call("POST", "/api/v1/namespaces/default/events", {
      metadata: { name: unique("e") },
      involvedObject: { kind: "Pod", namespace: "other", name: "p" },
    });
    expect([event.status, event.body.reason]).toEqual([422, "Invalid"]);
  });

  test("a status PATCH merges conditions by type, takes annotations, and leaves spec alone", async () => {
    const { path } = await createPod({ nodeName: "n1" });
    const first = await call(
      "PATCH",
      `${path}/status`,
      {
        metadata: { annotations: { "x/claim-id": "sb_1" } },
        spec: { nodeName: "elsewhere" },
        status: {
          phase: "Running",
          conditions: [{ type: "Ready", status: "True" }],
          containerStatuses: [{ name: "c", ready: true, restartCount: 0, image: "i", imageID: "x" }],
        },
      },
      strategic,
    );
    expect(first.status).toBe(200);
    expect(first.body.spec.nodeName).toBe("n1");
    expect(first.body.metadata.annotations).toEqual({ "x/claim-id": "sb_1" });
    const second = await call(
      "PATCH",
      `${path}/status`,
      {
        status: {
          conditions: [
            { type: "Initialized", status: "True" },
            { type: "Ready", status: "False" },
          ],
        },
      },
      strategic,
    );
    expect(second.body.status.conditions.map(({ type, status }) => [type, status])).toEqual([
      ["Initialized", "True"],
      ["Ready", "False"],
    ]);
    const third = await call(
      "PATCH",
      `${path}/status`,
      { status: { conditions: [{ type: "PodScheduled", status: "True" }] } },
      strategic,
    );
    expect(third.body.status.conditions.map(({ type }) => type)).toEqual([
      "PodScheduled",
      "Initialized",
      "Ready",
    ]);
    const replaced = await call(
      "PATCH",
      `${path}/status`,
      {
        status: {
          conditions: [
            { $patch: "delete", type: "Initialized" },
            { type: "Ready", status: "True" },
          ],
          containerStatuses: [{ name: "d", ready: false, restartCount: 0, image: "i", imageID: "y" }],
        },
      },
      strategic,
    );
    expect(replaced.body.status.conditions.map(({ type }) => type)).toEqual(["PodScheduled", "Ready"]);
    const statuses = replaced.body.status.containerStatuses as { name: string }[];
    expect(statuses.map(({ name }) => name)).toEqual(["d"]);
  });

  test("podIPs merge by ip, so another address of the same family needs $patch: replace", async () => {
    const { path } = await createPod({ nodeName: "n1" });
    const set = (status: object) => call("PATCH", `${path}/status`, { status }, strategic);
    expect((await set({ podIP: "10.0.0.1", podIPs: [{ ip: "10.0.0.1" }] })).status).toBe(200);
    const second = await set({ podIP: "10.0.0.2", podIPs: [{ ip: "10.0.0.2" }] });
    expect([second.status, second.body.reason, second.body.message]).toEqual([
      422,
      "Invalid",
      expect.stringContaining("may specify no more than one IP for each IP family"),
    ]);
    const replaced = await set({ podIP: "10.0.0.2", podIPs: [{ $patch: "replace" }, { ip: "10.0.0.2" }] });
    expect(replaced.body.status.podIPs).toEqual([{ ip: "10.0.0.2" }]);
    const alone = await set({ podIP: "10.0.0.3" });
    expect(alone.body.status.podIPs).toEqual([{ ip: "10.0.0.3" }]);
  });

  test("maps are replaced, and plain values taken out of a list, by directive", async () => {
    const { path } = await createPod(
      { nodeName: "n1" },
      { labels: { a: "1", b: "2" }, finalizers: ["x.example.com/a", "x.example.com/b"] },
    );
    const patched = await call(
      "PATCH",
      path,
      {
        metadata: {
          labels: { $patch: "replace", c: "3" },
          finalizers: ["x.example.com/c"],
          "$deleteFromPrimitiveList/finalizers": ["x.example.com/a"],
        },
      },
      strategic,
    );
    expect(patched.body.metadata.labels).toEqual({ c: "3" });
    expect([...(patched.body.metadata.finalizers as string[])].sort()).toEqual([
      "x.example.com/b",
      "x.example.com/c",
    ]);
    await call("PATCH", path, { metadata: { finalizers: null } }, merge);
    await call("DELETE", path, { gracePeriodSeconds: 0 });
  });

  test("a PATCH that carries another UID is 422 Invalid, a PUT that does is 409", async () => {
    const { name, path, pod } = await createPod({ nodeName: "n1" });
    const patched = await call(
      "PATCH",
      `${path}/status`,
      { metadata: { uid: "another" }, status: { phase: "Failed" } },
      strategic,
    );
    expect([patched.status, patched.body.reason, patched.body.message]).toEqual([
      422,
      "Invalid",
      `Pod "${name}" is invalid: metadata.uid: Invalid value: "another": field is immutable`,
    ]);
    const put = await call("PUT", `${path}/status`, {
      metadata: { name, uid: "another" },
      spec: podSpec,
      status: { phase: "Failed" },
    });
    expect([put.status, put.body.reason]).toEqual([409, "Conflict"]);
    const right = await call("PATCH", `${path}/status`, { metadata: { uid: pod.metadata.uid } }, strategic);
    expect(right.status).toBe(200);
  });

  test("an old resourceVersion is 409, and a write that changes nothing makes no new one", async () => {
    const { path, pod } = await createPod({ nodeName: "n1" });
    const set = (body: object) => call("PATCH", `${path}/status`, body, strategic);
    const { body } = await set({ status: { phase: "Running" } });
    const old = await set({
      metadata: { resourceVersion: pod.metadata.resourceVersion },
      status: { phase: "Failed" },
    });
    expect([old.status, old.body.reason]).toEqual([409, "Conflict"]);
    const same = await set({ status: { phase: "Running" } });
    expect(same.body.metadata.resourceVersion).toBe(body.metadata.resourceVersion);
  });

  test("a PATCH of what is not there is NotFound, a broken body BadRequest, an unknown patch 415", async () => {
    expect((await call("PATCH", `${pods}/none/status`, {}, strategic)).body.reason).toBe("NotFound");
    const { path } = await createPod();
    expect((await call("PATCH", path, '{"metadata":', strategic)).body.reason).toBe("BadRequest");
    expect((await call("PATCH", path, {}, "text/plain")).status).toBe(415);
    const name = unique("s");
    await call("POST", sandboxes, sandbox(name));
    expect((await call("PATCH", `${sandboxes}/${name}`, {}, strategic)).status).toBe(415);
  });

  test("a Node is tainted not-ready at creation, its taints are replaced as a whole, its addresses merge by type", async () => {
    const name = unique("n");
    const created = await call("POST", "/api/v1/nodes", {
      metadata: { name },
      spec: { taints: [{ key: "a", value: "1", effect: "NoSchedule" }] },
      status: { capacity: { cpu: "4" }, addresses: [{ type: "Hostname", address: name }] },
    });
    expect(created.body.spec.taints).toEqual([
      { key: "a", value: "1", effect: "NoSchedule" },
      { key: "node.kubernetes.io/not-ready", effect: "NoSchedule" },
    ]);
    expect(created.body.status.allocatable).toEqual({ cpu: "4" });
    const path = `/api/v1/nodes/${name}`;
    const tainted = await call(
      "PATCH",
      path,
      { spec: { taints: [{ key: "b", effect: "NoSchedule" }] }, status: { capacity: { cpu: "9" } } },
      strategic,
    );
    expect(tainted.body.spec.taints).toEqual([{ key: "b", effect: "NoSchedule" }]);
    expect(tainted.body.status.capacity).toEqual({ cpu: "4" });
    const addressed = await call(
      "PATCH",
      `${path}/status`,
      { status: { addresses: [{ type: "InternalIP", address: "10.1.1.1" }] } },
      strategic,
    );
    expect(addressed.body.status.addresses).toEqual([
      { type: "InternalIP", address: "10.1.1.1" },
      { type: "Hostname", address: name },
    ]);
    const gone = await call("DELETE", path);
    expect([gone.status, gone.body.status, gone.body.details]).toEqual([
      200,
      "Success" as never,
      { name, kind: "nodes", uid: created.body.metadata.uid },
    ]);
  });

  test("PUT creates a Lease that is not there, and no Node", async () => {
    const name = unique("l");
    const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    const lease = {
      apiVersion: "coordination.k8s.io/v1",
      kind: "Lease",
      metadata: { name },
      spec: { holderIdentity: "x" },
    };
    const created = await call("PUT", `${leases}/${name}`, lease);
    expect(created.status).toBe(201);
    const unversioned = await call("PUT", `${leases}/${name}`, lease);
    expect([unversioned.status, unversioned.body.message]).toEqual([
      422,
      `leases.coordination.k8s.io "${name}" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`,
    ]);
    const { resourceVersion } = created.body.metadata;
    const versioned = { ...lease, metadata: { name, resourceVersion }, spec: { holderIdentity: "y" } };
    expect((await call("PUT", `${leases}/${name}`, versioned)).status).toBe(200);
    expect((await call("PUT", `${leases}/${name}`, versioned)).status).toBe(409);
    const node = { apiVersion: "v1", kind: "Node", metadata: { name } };
    expect((await call("PUT", `/api/v1/nodes/${name}`, node)).body.reason).toBe("NotFound");
  });

  test("a Pod's spec.nodeName does not change but through a binding, which happens once", async () => {
    const { name, path } = await createPod();
    const put = await call("PUT", path, { metadata: { name }, spec: { ...podSpec, nodeName: "n9" } });
    expect([put.status, put.body.reason]).toEqual([422, "Invalid"]);
    const bind = (node: string) =>
      call("POST", `${path}/binding`, {
        apiVersion: "v1",
        kind: "Binding",
        metadata: { name },
        target: { kind: "Node", name: node },
      });
    expect((await bind("n1")).body).toMatchObject({ status: "Success", code: 201 });
    expect((await bind("n2")).body).toMatchObject({
      reason: "Conflict",
      details: { name, kind: "pods/binding" },
    });
    const bound = (await call("GET", path)).body;
    expect(bound.spec.nodeName).toBe("n1");
    expect(bound.status.conditions[0]).toMatchObject({ type: "PodScheduled", status: "True" });
  });

  test("an unknown method on a known resource is 405", async () => {
    const { path } = await createPod();
    expect((await call("PATCH", `${path}/binding`, {}, merge)).status).toBe(405);
  });
});

const sandbox = (name: string, metadata: object = {}) => ({
  apiVersion: "agents.x-k8s.io/v1beta1",
  kind: "Sandbox",
  metadata: { name, ...metadata },
  spec: { podTemplate: { spec: podSpec } },
});

describe("custom resources", () => {
  test("spec gets its defaults, status is written through its subresource alone and changes no metadata", async () => {
    const name = unique("s");
    const created = await call("POST", sandboxes, { ...sandbox(name), status: { selector: "x" } });
    expect(created.status).toBe(201);
    expect(created.body.spec).toMatchObject({ operatingMode: "Running", shutdownPolicy: "Retain" });
    expect(created.body.status).toBeUndefined();
    const path = `${sandboxes}/${name}`;
    const status = await call(
      "PATCH",
      `${path}/status`,
      { metadata: { labels: { a: "b" } }, spec: { operatingMode: "Suspended" }, status: { selector: "y" } },
      merge,
    );
    expect(status.body.status).toEqual({ selector: "y" } as never);
    expect(status.body.metadata.labels).toBeUndefined();
    expect(status.body.spec.operatingMode).toBe("Running");
    expect(status.body.metadata.generation).toBe(1);
    const spec = await call(
      "PATCH",
      path,
      { spec: { operatingMode: "Suspended" }, status: { selector: "z" } },
      merge,
    );
    expect(spec.body.metadata.generation).toBe(2);
    expect(spec.body.status).toEqual({ selector: "y" } as never);
  });

  test("what its schema requires is required, and its kind and version must be right", async () => {
    const without = await call("POST", sandboxes, { ...sandbox(unique("s")), spec: {} });
    expect([without.status, without.body.details?.kind]).toEqual([422, "Sandbox"]);
    const version = await call("POST", sandboxes, { ...sandbox("x"), apiVersion: "agents.x-k8s.io/v1" });
    expect([version.status, version.body.message]).toEqual([
      400,
      "the API version in the data (agents.x-k8s.io/v1) does not match the expected API version (agents.x-k8s.io/v1beta1)",
    ]);
    const { apiVersion: _, kind: __, ...bare } = sandbox("x");
    expect((await call("POST", sandboxes, bare)).status).toBe(400);
  });

  test("apply creates, then merges, and removes what this manager no longer says", async () => {
    const name = unique("i");
    const send = (fields: object, query = "?fieldManager=vk-sandbox&force=true") =>
      call(
        "PATCH",
        `${inventories}/${name}${query}`,
        {
          apiVersion: "sandbox.cocoonstack.io/v1beta1",
          kind: "NodeInventory",
          metadata: { name },
          node: name,
          ...fields,
        },
        apply,
      );
    const first = await send({ address: "a:1", entries: [{ name: "x", phase: "Running" }] });
    expect([first.status, first.body.address]).toEqual([201, "a:1"]);
    const second = await send({ entries: [{ name: "y", phase: "Running" }] });
    expect([second.status, second.body.address, second.body.entries]).toEqual([
      200,
      undefined,
      [{ name: "y", phase: "Running" }],
    ]);
    const same = await send({ entries: [{ name: "y", phase: "Running" }] });
    expect(same.body.metadata.resourceVersion).toBe(second.body.metadata.resourceVersion);
    const nobody = await send({}, "?force=true");
    expect([nobody.status, nobody.body.message]).toEqual([
      422,
      'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
    ]);
    const other = await send({ metadata: { name, uid: "another" } });
    expect([other.status, other.body.reason]).toEqual([422, "Invalid"]);
  });

  test("apply takes YAML", async () => {
    const name = unique("i");
    const yaml = `apiVersion: sandbox.cocoonstack.io/v1beta1\nkind: NodeInventory\nmetadata:\n  name: ${name}\nnode: ${name}\n`;
    const answer = await call("PATCH", `${inventories}/${name}?fieldManager=m`, yaml, apply);
    expect([answer.status, answer.body.node]).toEqual([201, name]);
    expect((await call("PATCH", `${inventories}/${name}?fieldManager=m`, "node: [", apply)).status).toBe(400);
  });

  test("apply of a field the schema lacks is a 500 that names it; other writes drop it", async () => {
    const older = "/apis/extensions.agents.x-k8s.io/v1beta1/nodeinventories";
    const name = unique("i");
    const object = {
      apiVersion: "extensions.agents.x-k8s.io/v1beta1",
      kind: "NodeInventory",
      metadata: { name },
      node: name,
      publishedAt: "2026-01-01T00:00:00Z",
      entries: [{ name: "y", phase: "Running", claimRef: "a/b" }],
    };
    const answer = await call("PATCH", `${older}/${name}?fieldManager=m&force=true`, object, apply);
    expect([answer.status, answer.body.reason, answer.body.message]).toEqual([
      500,
      undefined,
      `failed to create typed patch object (/${name}; extensions.agents.x-k8s.io/v1beta1, Kind=NodeInventory): .publishedAt: field not declared in schema`,
    ]);
    const created = await call("POST", older, object);
    expect([created.status, created.body.publishedAt, created.body.node]).toEqual([201, undefined, name]);
  });
});

describe("deletes", () => {
  test("a bound Pod stays with a deletionTimestamp until it is deleted with grace 0", async () => {
    const { path, pod } = await createPod({ nodeName: "n1" });
    const marked = await call("DELETE", path);
    expect([marked.status, marked.body.kind, marked.body.metadata.deletionGracePeriodSeconds]).toEqual([
      200,
      "Pod",
      30,
    ]);
    expect(marked.body.metadata.generation).toBe(2);
    const sooner = await call("DELETE", path, { gracePeriodSeconds: 5 });
    expect(sooner.body.metadata.deletionGracePeriodSeconds).toBe(5);
    const later = await call("DELETE", path, { gracePeriodSeconds: 30 });
    expect(later.body.metadata.deletionGracePeriodSeconds).toBe(5);
    const gone = await call("DELETE", path, {
      gracePeriodSeconds: 0,
      preconditions: { uid: pod.metadata.uid },
    });
    expect([gone.status, gone.body.kind]).toEqual([200, "Pod"]);
    expect((await call("GET", path)).status).toBe(404);
    expect((await call("DELETE", path)).body.details).toEqual({ name: pod.metadata.name, kind: "pods" });
  });

  test("a Pod without a node, and one that has ended, go at once", async () => {
    const unbound = await createPod();
    await call("DELETE", unbound.path);
    expect((await call("GET", unbound.path)).status).toBe(404);
    const ended = await createPod({ nodeName: "n1" });
    await call("PATCH", `${ended.path}/status`, { status: { phase: "Failed" } }, strategic);
    await call("DELETE", ended.path);
    expect((await call("GET", ended.path)).status).toBe(404);
  });

  test("a precondition that does not hold is 409 and deletes nothing", async () => {
    const { name, path, pod } = await createPod({ nodeName: "n1" });
    const other = await call("DELETE", path, { gracePeriodSeconds: 0, preconditions: { uid: "another" } });
    expect([other.status, other.body.reason, other.body.details]).toEqual([
      409,
      "Conflict",
      { name, kind: "Pod" },
    ]);
    expect(other.body.message).toContain(
      `the UID in the precondition (another) does not match the UID in record (${pod.metadata.uid})`,
    );
    const version = await call("DELETE", path, { preconditions: { resourceVersion: "1" } });
    expect(version.status).toBe(409);
    expect((await call("GET", path)).body.metadata.deletionTimestamp).toBeUndefined();
  });

  test("finalizers hold an object until the last one goes", async () => {
    const name = unique("s");
    await call("POST", sandboxes, sandbox(name, { finalizers: ["a.example.com/b"] }));
    const path = `${sandboxes}/${name}`;
    const marked = await call("DELETE", path);
    expect([marked.status, marked.body.kind]).toEqual([200, "Sandbox"]);
    expect(marked.body.metadata.deletionTimestamp).toBeString();
    await call("PATCH", path, { metadata: { finalizers: null } }, merge);
    expect((await call("GET", path)).status).toBe(404);
    const pod = await createPod({ nodeName: "n1" }, { finalizers: ["a.example.com/b"] });
    await call("DELETE", pod.path, { gracePeriodSeconds: 0 });
    expect((await call("GET", pod.path)).body.metadata.deletionGracePeriodSeconds).toBe(0);
    await call("PATCH", pod.path, { metadata: { finalizers: null } }, merge);
    expect((await call("GET", pod.path)).status).toBe(404);
  });

  test("Foreground and Orphan leave the object with a finalizer of the garbage collector", async () => {
    for (const [policy, finalizer] of [
      ["Foreground", "foregroundDeletion"],
      ["Orphan", "orphan"],
    ]) {
      const name = unique("s");
      await call("POST", sandboxes, sandbox(name));
      const path = `${sandboxes}/${name}`;
      const { body } = await call("DELETE", `${path}?propagationPolicy=${policy}`);
      expect(body.metadata.finalizers).toEqual([finalizer]);
      expect((await call("GET", path)).body.metadata.deletionTimestamp).toBeString();
      await call("PATCH", path, { metadata: { finalizers: null } }, merge);
    }
  });

  test("an eviction marks the Pod and deletes it with its grace", async () => {
    const { name, path } = await createPod({ nodeName: "n1" });
    const answer = await call("POST", `${path}/eviction`, {
      apiVersion: "policy/v1",
      kind: "Eviction",
      metadata: { name },
    });
    expect(answer.status).toBe(201);
    const { body } = await call("GET", path);
    expect(body.metadata.deletionGracePeriodSeconds).toBe(30);
    expect(body.status.conditions.map(({ type }) => type)).toContain("DisruptionTarget");
  });
});

describe("lists and watches", () => {
  const node = unique("watched");
  const mine = `fieldSelector=spec.nodeName%3D${node}`;
  const streaming =
    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

  test("items of a list of a built-in kind carry no kind, those of a custom one do", async () => {
    await createPod({ nodeName: node });
    const list = (await call("GET", `/api/v1/pods?${mine}`)).body;
    expect(list.kind).toBe("PodList");
    expect(list.items.map((item) => item.kind)).toEqual([undefined]);
    const name = unique("s");
    await call("POST", sandboxes, sandbox(name));
    const custom = (await call("GET", `${sandboxes}?fieldSelector=metadata.name%3D${name}`)).body;
    expect([custom.kind, custom.items.map((item) => item.kind)]).toEqual(["SandboxList", ["Sandbox"]]);
  });

  test("a list comes in pages of one resourceVersion that later writes do not touch", async () => {
    const on = unique("paged");
    const names = (await Promise.all([1, 2, 3].map(() => createPod({ nodeName: on })))).map(
      ({ name }) => name,
    );
    const path = `/api/v1/pods?fieldSelector=spec.nodeName%3D${on}&limit=2`;
    const first = (await call("GET", path)).body;
    await createPod({ nodeName: on });
    const rest = (await call("GET", `${path}&continue=${first.metadata.continue}`)).body;
    const listed = [...first.items, ...rest.items].map((item) => item.metadata.name);
    expect(listed).toEqual(names.sort());
    expect(rest.metadata.resourceVersion).toBe(first.metadata.resourceVersion);
    expect(rest.metadata.continue).toBeUndefined();
    expect((await call("GET", `${path}&continue=nonsense`)).status).toBe(400);
  });

  test("labels select too, and a DELETE of a collection takes what is selected", async () => {
    const set = unique("set");
    for (const tier of ["a", "b"]) await createPod({}, { labels: { set, tier } });
    const names = async (selector: string): Promise<unknown[]> => {
      const { body } = await call("GET", `${pods}?labelSelector=${encodeURIComponent(selector)}`);
      return body.items.map((item) => (item.metadata.labels as { tier: string }).tier);
    };
    expect((await names(`set=${set}`)).sort()).toEqual(["a", "b"]);
    expect(await names(`set=${set},tier!=a`)).toEqual(["b"]);
    expect(await names(`set==${set},tier,tier=a`)).toEqual(["a"]);
    expect(await names(`set=${set},!tier`)).toEqual([]);
    const gone = await call("DELETE", `${pods}?labelSelector=${encodeURIComponent(`set=${set},tier=a`)}`);
    expect(gone.status).toBe(200);
    expect(await names(`set=${set}`)).toEqual(["b"]);
  });

  test("a field a resource is not selected by is BadRequest", async () => {
    for (const path of ["/api/v1/pods", sandboxes]) {
      const { status, body } = await call("GET", `${path}?fieldSelector=spec.foo%3Dbar`);
      expect([status, body.message]).toEqual([400, "field label not supported: spec.foo"]);
    }
  });

  test("a streaming list is ADDED events and a bookmark that says the list has ended", async () => {
    const events = await watch(`/api/v1/pods?${streaming}&${mine}`, ({ type }) => type === "BOOKMARK");
    expect(events.map(({ type, object }) => [type, object.kind])).toEqual([
      ["ADDED", "Pod"],
      ["BOOKMARK", "Pod"],
    ]);
    const bookmark = events.at(-1)?.object;
    expect(bookmark).toEqual({
      kind: "Pod",
      apiVersion: "v1",
      metadata: {
        resourceVersion: expect.stringMatching(/^\d+$/),
        annotations: { "k8s.io/initial-events-end": "true" },
      },
      spec: { containers: null },
      status: {},
    } as never);
    const custom = await watch(
      `/apis/agents.x-k8s.io/v1beta1/sandboxes?${streaming}&fieldSelector=metadata.name%3Dnone`,
      ({ type }) => type === "BOOKMARK",
    );
    expect(custom.map(({ object }) => object)).toEqual([
      {
        apiVersion: "agents.x-k8s.io/v1beta1",
        kind: "Sandbox",
        metadata: {
          resourceVersion: expect.stringMatching(/^\d+$/),
          annotations: { "k8s.io/initial-events-end": "true" },
        },
      } as never,
    ]);
  });

  test("sendInitialEvents without resourceVersionMatch=NotOlderThan is 422", async () => {
    const { status, body } = await call("GET", "/api/v1/pods?watch=1&sendInitialEvents=true");
    expect([status, body.message]).toEqual([
      422,
      'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan',
    ]);
  });

  test("a watch resumes after its resourceVersion and shows a deletion as it happens", async () => {
    const { path, pod } = await createPod({ nodeName: node });
    await call("PATCH", `${path}/status`, { status: { phase: "Running" } }, strategic);
    const events = await watch(
      `/api/v1/pods?watch=1&resourceVersion=${pod.metadata.resourceVersion}&${mine}`,
      ({ type }) => type === "DELETED",
      async () => {
        await call("DELETE", path);
        await call("DELETE", path, { gracePeriodSeconds: 0 });
      },
    );
    expect(
      events.map(({ type, object }) => [
        type,
        object.status.phase,
        object.metadata.deletionGracePeriodSeconds,
      ]),
    ).toEqual([
      ["MODIFIED", "Running", undefined],
      ["MODIFIED", "Running", 30],
      ["MODIFIED", "Running", 0],
      ["DELETED", "Running", 0],
    ]);
    const versions = events.map(({ object }) => Number(object.metadata.resourceVersion));
    expect(versions).toEqual([...versions].sort((a, b) => a - b));
    expect(new Set(versions).size).toBe(versions.length);
  });

  test("what enters a watch's selection is ADDED, what leaves it is DELETED as it was inside", async () => {
    const { name, path, pod } = await createPod();
    const version = pod.metadata.resourceVersion;
    const bound = unique("binding");
    const events = await watch(
      `/api/v1/pods?watch=1&resourceVersion=${version}&fieldSelector=spec.nodeName%3D${bound}`,
      () => true,
      () =>
        call("POST", `${path}/binding`, {
          apiVersion: "v1",
          kind: "Binding",
          metadata: { name },
          target: { kind: "Node", name: bound },
        }),
    );
    expect(events.map(({ type, object }) => [type, object.spec.nodeName])).toEqual([["ADDED", bound]]);
    const pending = `fieldSelector=${encodeURIComponent(`metadata.name=${name},status.phase=Pending`)}`;
    const left = await watch(
      `${pods}?watch=1&resourceVersion=0&${pending}`,
      ({ type }) => type === "DELETED",
      () => call("PATCH", `${path}/status`, { status: { phase: "Running" } }, strategic),
    );
    const now = (await call("GET", path)).body;
    expect(left.map(({ type, object }) => [type, object.status.phase])).toEqual([
      ["ADDED", "Pending"],
      ["DELETED", "Pending"],
    ]);
    expect(left.at(-1)?.object.metadata.resourceVersion).toBe(now.metadata.resourceVersion);
  });

  test("a watch ends cleanly after its timeoutSeconds", async () => {
    const events = await watch(
      `/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion=0&fieldSelector=spec.nodeName%3Dnobody`,
      () => false,
    );
    expect(events).toEqual([]);
  });
});

test("a namespace that is going takes nothing new and ends when it is finalized", async () => {
  const name = unique("ns");
  await call("POST", "/api/v1/namespaces", { metadata: { name } });
  const path = `/api/v1/namespaces/${name}`;
  const going = await call("DELETE", path);
  expect([going.status, going.body.status.phase]).toEqual([200, "Terminating"] as never);
  const late = await call("POST", `${path}/pods`, { metadata: { name: "p" }, spec: podSpec });
  expect([late.status, late.body.reason, late.body.details?.causes]).toEqual([
    403,
    "Forbidden",
    [
      {
        reason: "NamespaceTerminating",
        message: `namespace ${name} is being terminated`,
        field: "metadata.namespace",
      },
    ],
  ]);
  await call("PUT", `${path}/finalize`, {
    apiVersion: "v1",
    kind: "Namespace",
    metadata: { name },
    spec: {},
  });
  expect((await call("GET", path)).status).toBe(404);
});

describe("reviews", () => {
  test("a TokenReview tells who a token is, or that it is nobody's", async () => {
    const post = (given: string) =>
      call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {
        apiVersion: "authentication.k8s.io/v1",
        kind: "TokenReview",
        spec: { token: given },
      });
    const known = await post(token);
    expect([known.status, known.body.status]).toMatchObject([
      201,
      {
        authenticated: true,
        user: { username: "admin", groups: ["system:masters", "system:authenticated"] },
      },
    ]);
    expect((await post("nobody's")).body.status as object).toEqual({
      user: {},
      error: "invalid bearer token",
    });
  });

  test("a SelfSubjectAccessReview answers for the caller", async () => {
    const { status, body } = await call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {
      apiVersion: "authorization.k8s.io/v1",
      kind: "SelfSubjectAccessReview",
      spec: { resourceAttributes: { verb: "get", resource: "nodes" } },
    });
    expect([status, body.status.allowed]).toEqual([201, true]);
  });

  test("a caller without a right token is 401", async () => {
    const response = await fetch(`${base}/api/v1/pods`, {
      headers: { authorization: "Bearer wrong" },
      tls: { rejectUnauthorized: false },
    });
    expect([response.status, await response.json()]).toEqual([
      401,
      {
        kind: "Status",
        apiVersion: "v1",
        metadata: {},
        status: "Failure",
        message: "Unauthorized",
        reason: "Unauthorized",
        code: 401,
      },
    ]);
  });
});

import { afterEach, expect, test } from "bun:test";
import type { OwnerRef } from "../provider/types.ts";
import { createDiscovery } from "./discovery.ts";
import { fakeClock } from "./fake-clock.ts";
import { readBarePod, readOwner, readPod } from "./owner.ts";
import { type Answer, statusResponse, type TestServer, testServer } from "./test-server.ts";

const owner: OwnerRef = { apiVersion: "agents.x-k8s.io/v1beta1", kind: "Sandbox", name: "box", uid: "u1" };
const resources = {
  kind: "APIResourceList",
  groupVersion: "agents.x-k8s.io/v1beta1",
  resources: [
    { name: "sandboxes/status", kind: "Sandbox", namespaced: true },
    { name: "sandboxes", kind: "Sandbox", namespaced: true },
  ],
};
function sandbox(extra: Record<string, unknown> = {}, metadata: Record<string, unknown> = {}) {
  return {
    apiVersion: "agents.x-k8s.io/v1beta1",
    kind: "Sandbox",
    metadata: { name: "box", namespace: "ns", uid: "u1", ...metadata },
    ...extra,
  };
}

let server: TestServer | undefined;
afterEach(() => server?.stop());

/** Serves discovery, and `answer` for everything else. */
function serve(answer: Answer): TestServer {
  server = testServer((seen) =>
    seen.path === "/apis/agents.x-k8s.io/v1beta1" ? Response.json(resources) : answer(seen),
  );
  return server;
}

async function ask(answer: Answer, ref: OwnerRef = owner) {
  const { client } = serve(answer);
  return readOwner(client, createDiscovery(client), "ns", ref);
}

test("an owner that lives is found by one quorum GET", async () => {
  expect(await ask(() => Response.json(sandbox()))).toEqual({
    kind: "found",
    uid: "u1",
    deleting: false,
    expired: false,
    suspended: false,
  });
  expect(server?.asked()).toEqual([
    "GET /apis/agents.x-k8s.io/v1beta1",
    "GET /apis/agents.x-k8s.io/v1beta1/namespaces/ns/sandboxes/box",
  ]);
  expect(server?.seen[1]?.query).toEqual({});
});

test("a deletionTimestamp, an expired Ready condition and a suspended spec are read", async () => {
  const dying = sandbox({}, { deletionTimestamp: "2026-01-01T00:00:00Z" });
  expect(await ask(() => Response.json(dying))).toMatchObject({ deleting: true, expired: false });
  const conditions = [
    { type: "Other", status: "True", reason: "SandboxExpired" },
    { type: "Ready", status: "False", reason: "SandboxExpired" },
  ];
  expect(await ask(() => Response.json(sandbox({ status: { conditions } })))).toMatchObject({
    expired: true,
  });
  expect(
    await ask(() => Response.json(sandbox({ status: { conditions: conditions.slice(0, 1) } }))),
  ).toMatchObject({
    expired: false,
  });
  const suspended = sandbox({ spec: { operatingMode: "Suspended" } });
  expect(await ask(() => Response.json(suspended))).toMatchObject({ kind: "found", suspended: true });
});

test("another UID is reported as it is", async () => {
  expect(await ask(() => Response.json(sandbox({}, { uid: "u2" })))).toMatchObject({
    kind: "found",
    uid: "u2",
  });
});

test("a structured NotFound that names the owner is the only proof of absence", async () => {
  const named = () => statusResponse(404, "NotFound", { name: "box", kind: "sandboxes" });
  expect(await ask(named)).toEqual({ kind: "not_found", named: true });
});

for (const [what, answer] of [
  ["names another object", () => statusResponse(404, "NotFound", { name: "other", kind: "sandboxes" })],
  ["has no details.name", () => statusResponse(404, "NotFound", { kind: "sandboxes" })],
  [
    "is about another resource of that name",
    () => statusResponse(404, "NotFound", { name: "box", kind: "namespaces" }),
  ],
  ["has another reason", () => statusResponse(404, "Gone", { name: "box", kind: "sandboxes" })],
  ["is a plain text page", () => new Response("404 page not found", { status: 404 })],
  [
    "is JSON of someone else",
    () => Response.json({ error: "NotFound", details: { name: "box" } }, { status: 404 }),
  ],
  ["is empty", () => new Response("", { status: 404 })],
] as const) {
  test(`a 404 that ${what} proves nothing`, async () => {
    expect(await ask(answer)).toEqual({ kind: "not_found", named: false });
  });
}

for (const [what, answer] of [
  ["403", () => statusResponse(403, "Forbidden", { name: "box", kind: "sandboxes" })],
  ["500", () => statusResponse(500, "InternalError")],
  [
    "a NotFound under another code",
    () => statusResponse(410, "NotFound", { name: "box", kind: "sandboxes" }),
  ],
  ["502 of a proxy", () => new Response("<html>bad gateway</html>", { status: 502 })],
  ["200 with a page", () => new Response("<html>welcome</html>")],
  ["200 and nothing", () => new Response("")],
  ["200 and null", () => new Response("null")],
  ["200 cut short", () => new Response(JSON.stringify(sandbox()).slice(0, -3))],
  [
    "200 with a NotFound Status in it",
    () => Response.json({ kind: "Status", reason: "NotFound", details: { name: "box" } }),
  ],
  ["another object", () => Response.json(sandbox({}, { name: "other" }))],
  ["an object of another namespace", () => Response.json(sandbox({}, { namespace: "other" }))],
  ["another kind", () => Response.json(sandbox({ kind: "Pod" }))],
  ["another group", () => Response.json(sandbox({ apiVersion: "other/v1" }))],
  ["no uid", () => Response.json(sandbox({}, { uid: "" }))],
  ["conditions that are no list", () => Response.json(sandbox({ status: { conditions: "Ready" } }))],
] as const) {
  test(`an answer that is ${what} is a failure, never an absence`, async () => {
    const state = await ask(answer);
    expect(state.kind).toBe("failed");
    expect(state.kind === "failed" && state.why).toContain("Sandbox ns/box");
  });
}

test("without discovery the plural comes from the rules, and a named NotFound under it is proof", async () => {
  server = testServer((seen) =>
    seen.path.includes("/namespaces/")
      ? statusResponse(404, "NotFound", { name: "box", kind: "sandboxes" })
      : new Response("", { status: 503 }),
  );
  const { client } = server;
  expect(await readOwner(client, createDiscovery(client), "ns", owner)).toEqual({
    kind: "not_found",
    named: true,
  });
  expect(server.asked()[1]).toBe("GET /apis/agents.x-k8s.io/v1beta1/namespaces/ns/sandboxes/box");
});

test("an owner's name that is a path stays one segment", async () => {
  const path = "x/../../../../../api/v1/namespaces/kube-system/secrets/s?a=b#c";
  await ask(() => statusResponse(404, "NotFound", {}), { ...owner, name: path });
  expect(server?.asked()[1]).toBe(
    `GET /apis/agents.x-k8s.io/v1beta1/namespaces/ns/sandboxes/${encodeURIComponent(path)}`,
  );
});

for (const ref of [
  { ...owner, name: ".." },
  { ...owner, name: "" },
  { ...owner, apiVersion: "../../v1" },
  { ...owner, apiVersion: "v1/pods?x=" },
  { ...owner, kind: "Sand/box" },
  { ...owner, kind: "" },
]) {
  test(`an ownerReference that no API could serve is not asked for: ${JSON.stringify(ref)}`, async () => {
    const state = await ask(() => statusResponse(404, "NotFound", { name: ref.name }), ref);
    expect(state.kind).toBe("failed");
    expect(server?.asked().filter((line) => line.includes("namespaces"))).toEqual([]);
  });
}

test("a kind served cluster-wide is asked for without a namespace", async () => {
  server = testServer((seen) =>
    seen.path === "/api/v1"
      ? Response.json({
          kind: "APIResourceList",
          groupVersion: "v1",
          resources: [{ name: "nodes", kind: "Node", namespaced: false }],
        })
      : Response.json({ apiVersion: "v1", kind: "Node", metadata: { name: "n1", uid: "u9" } }),
  );
  const { client } = server;
  const ref = { apiVersion: "v1", kind: "Node", name: "n1", uid: "u9" };
  expect(await readOwner(client, createDiscovery(client), "ns", ref)).toMatchObject({
    kind: "found",
    uid: "u9",
  });
  expect(server.asked()[1]).toBe("GET /api/v1/nodes/n1");
});

test("an unnamed 404 makes the next question ask discovery again", async () => {
  const { client, asked } = serve(() => new Response("404 page not found", { status: 404 }));
  const discovery = createDiscovery(client, { clock: fakeClock() });
  await readOwner(client, discovery, "ns", owner);
  await readOwner(client, discovery, "ns", owner);
  expect(asked().filter((line) => line === "GET /apis/agents.x-k8s.io/v1beta1")).toHaveLength(2);
});

const pod = {
  apiVersion: "v1",
  kind: "Pod",
  metadata: {
    name: "box",
    namespace: "ns",
    uid: "p1",
    annotations: { "sandbox.cocoonstack.io/claim-id": "c1" },
  },
  spec: { nodeName: "other-node" },
  status: { phase: "Running" },
};

test("the Pod under a name now: its UID, node, claim id, and whether it runs", async () => {
  const { client, asked } = serve(() => Response.json(pod));
  expect(await readPod(client, "ns", "box")).toEqual({
    kind: "found",
    uid: "p1",
    ownerUid: "",
    nodeName: "other-node",
    running: true,
    claimId: "c1",
  });
  expect(asked()).toEqual(["GET /api/v1/namespaces/ns/pods/box"]);
});

test("a Pod without node, annotations or status is found with empty words", async () => {
  const { client } = serve(() =>
    Response.json({ apiVersion: "v1", kind: "Pod", metadata: { name: "box", namespace: "ns", uid: "p1" } }),
  );
  expect(await readPod(client, "ns", "box")).toEqual({
    kind: "found",
    uid: "p1",
    ownerUid: "",
    nodeName: "",
    running: false,
    claimId: "",
  });
});

test("the Pod under a name now: of its owners only the controller is named", async () => {
  const ownerReferences = [
    { apiVersion: "v1", kind: "ConfigMap", name: "other", uid: "u0" },
    { ...owner, controller: true },
  ];
  const { client } = serve(() => Response.json({ ...pod, metadata: { ...pod.metadata, ownerReferences } }));
  expect(await readPod(client, "ns", "box")).toMatchObject({ ownerUid: "u1" });
});

test("only a named NotFound says that there is no Pod", async () => {
  const { client } = serve(() => statusResponse(404, "NotFound", { name: "box", kind: "pods" }));
  expect(await readPod(client, "ns", "box")).toEqual({ kind: "not_found" });
  expect(await readBarePod(client, "ns", "box")).toEqual({ kind: "not_found", named: true });
  const other = serve(() => new Response("404 page not found", { status: 404 }));
  expect((await readPod(other.client, "ns", "box")).kind).toBe("failed");
  expect(await readBarePod(other.client, "ns", "box")).toEqual({ kind: "not_found", named: false });
  other.stop();
});

test("a bare Pod is its own authority", async () => {
  const { client } = serve(() =>
    Response.json({ ...pod, metadata: { ...pod.metadata, deletionTimestamp: "2026-01-01T00:00:00Z" } }),
  );
  expect(await readBarePod(client, "ns", "box")).toEqual({
    kind: "found",
    uid: "p1",
    deleting: true,
    expired: false,
    suspended: false,
  });
});

test("an answer about another Pod is a failure", async () => {
  const { client } = serve(() => Response.json({ ...pod, metadata: { ...pod.metadata, name: "other" } }));
  expect((await readBarePod(client, "ns", "box")).kind).toBe("failed");
  expect((await readPod(client, "ns", "box")).kind).toBe("failed");
});

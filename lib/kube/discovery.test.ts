import { afterEach, expect, test } from "bun:test";
import { createDiscovery, groupVersionPath, groupVersionsMax, pluralByRules } from "./discovery.ts";
import { fakeClock } from "./fake-clock.ts";
import { type Answer, statusResponse, type TestServer, testServer } from "./test-server.ts";

let server: TestServer | undefined;
afterEach(() => server?.stop());

function setup(answer: Answer) {
  server = testServer(answer);
  const clock = fakeClock();
  return { server, clock, discovery: createDiscovery(server.client, { clock }) };
}

const odd = {
  kind: "APIResourceList",
  groupVersion: "example.io/v1",
  resources: [
    { name: "oxen", kind: "Ox", namespaced: false },
    { name: "oxen/status", kind: "Ox", namespaced: false },
  ],
};

test("the plural is what the API serves, not what a rule would make of the kind", async () => {
  const { discovery } = setup(() => Response.json(odd));
  expect(await discovery.pluralOf("example.io/v1", "Ox")).toEqual({
    plural: "oxen",
    namespaced: false,
    from: "discovery",
    why: "",
  });
});

test("the core group is asked at /api/v1", async () => {
  const { discovery, server } = setup(() =>
    Response.json({
      kind: "APIResourceList",
      groupVersion: "v1",
      resources: [{ name: "pods", kind: "Pod", namespaced: true }],
    }),
  );
  expect(await discovery.pluralOf("v1", "Pod")).toMatchObject({ plural: "pods", from: "discovery" });
  expect(server.asked()).toEqual(["GET /api/v1"]);
});

test("an answer is kept for its time and asked again afterwards", async () => {
  const { discovery, server, clock } = setup(() => Response.json(odd));
  await Promise.all([discovery.lookup("example.io/v1", "Ox"), discovery.lookup("example.io/v1", "Ox")]);
  clock.advance(599_999);
  await discovery.lookup("example.io/v1", "Ox");
  expect(server.seen).toHaveLength(1);
  clock.advance(2);
  await discovery.lookup("example.io/v1", "Ox");
  expect(server.seen).toHaveLength(2);
});

test("forget makes the next question go to the server", async () => {
  const { discovery, server } = setup(() => Response.json(odd));
  await discovery.lookup("example.io/v1", "Ox");
  discovery.forget("example.io/v1");
  await discovery.lookup("example.io/v1", "Ox");
  expect(server.seen).toHaveLength(2);
});

test("a group that is not served is absent, and looked for again half a minute later", async () => {
  const { discovery, server, clock } = setup(() => new Response("404 page not found", { status: 404 }));
  expect(await discovery.lookup("example.io/v1", "Ox")).toMatchObject({ kind: "absent" });
  expect(await discovery.pluralOf("example.io/v1", "Policy")).toMatchObject({
    plural: "policies",
    namespaced: true,
    from: "rules",
  });
  clock.advance(30_001);
  server.answer = () => Response.json(odd);
  expect(await discovery.lookup("example.io/v1", "Ox")).toMatchObject({ kind: "served" });
});

test("a clock set back by a day does not make an answer hold for a day", async () => {
  server = testServer(() => new Response("404 page not found", { status: 404 }));
  const clock = fakeClock(200_000_000);
  let stepMs = 0;
  const discovery = createDiscovery(server.client, {
    clock: { now: () => clock.now() + stepMs, after: clock.after },
  });
  await discovery.lookup("example.io/v1", "Ox");
  stepMs = -86_400_000;
  server.answer = () => Response.json(odd);
  expect(await discovery.lookup("example.io/v1", "Ox")).toMatchObject({ kind: "served" });
});

test("a kind that its group does not have is absent", async () => {
  const { discovery } = setup(() => Response.json(odd));
  const found = await discovery.lookup("example.io/v1", "Cow");
  expect(found).toEqual({ kind: "absent", why: "example.io/v1 is served, but no Cow in it" });
});

for (const [what, answer] of [
  ["down", () => statusResponse(503, "ServiceUnavailable")],
  ["forbidden", () => statusResponse(403, "Forbidden")],
  ["a page", () => new Response("<html>")],
  ["another list", () => Response.json({ ...odd, groupVersion: "other.io/v1" })],
  [
    "a list without resources",
    () => Response.json({ kind: "APIResourceList", groupVersion: "example.io/v1" }),
  ],
] as const) {
  test(`discovery that is ${what} is unknown, not absent, and the rules stand in`, async () => {
    const { discovery } = setup(answer);
    expect((await discovery.lookup("example.io/v1", "Sandbox")).kind).toBe("unknown");
    const plural = await discovery.pluralOf("example.io/v1", "Sandbox");
    expect(plural).toMatchObject({ plural: "sandboxes", from: "rules" });
    expect(plural.why).not.toBe("");
  });
}

test("what is no apiVersion is not asked for", async () => {
  const { discovery, server } = setup(() => Response.json(odd));
  expect((await discovery.lookup("../v1", "Ox")).kind).toBe("unknown");
  expect(server.seen).toEqual([]);
});

test("group-versions that tenants make up do not grow the memory without bound", async () => {
  const { discovery, server } = setup(() => new Response("", { status: 404 }));
  for (let n = 0; n <= groupVersionsMax; n += 1) await discovery.lookup(`g${n}.io/v1`, "X");
  const before = server.seen.length;
  await discovery.lookup(`g${groupVersionsMax}.io/v1`, "X");
  expect(server.seen).toHaveLength(before);
  await discovery.lookup("g0.io/v1", "X");
  expect(server.seen).toHaveLength(before + 1);
});

test("plurals by the rules of English", () => {
  const wanted = {
    Sandbox: "sandboxes",
    Policy: "policies",
    NetworkPolicy: "networkpolicies",
    Class: "classes",
    Gateway: "gateways",
    Batch: "batches",
    Mesh: "meshes",
    Pod: "pods",
    ReplicaSet: "replicasets",
    Endpoints: "endpoints",
  };
  for (const [kind, plural] of Object.entries(wanted)) expect(pluralByRules(kind)).toBe(plural);
});

test("an apiVersion is a version, or a group and a version, and nothing that leads elsewhere", () => {
  expect(groupVersionPath("v1")).toBe("/api/v1");
  expect(groupVersionPath("agents.x-k8s.io/v1beta1")).toBe("/apis/agents.x-k8s.io/v1beta1");
  for (const bad of ["", "v2", "a/b/c", "../v1", "a../v1", "a/..", "a/v1?x", "A/v1", "a/v1/", "a /v1"]) {
    expect(groupVersionPath(bad)).toBeUndefined();
  }
});

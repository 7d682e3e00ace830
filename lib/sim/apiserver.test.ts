import { afterEach, describe, expect, test } from "bun:test";
import { issue, selfSigned } from "../kubelet/certificate.ts";
import { type ApiServer, type ApiServerOptions, startApiServer } from "./apiserver.ts";

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

async function start(options: ApiServerOptions = {}): Promise<ApiServer> {
  const server = await startApiServer(options);
  cleanups.push(() => server.stop());
  return server;
}

const podSpec = { containers: [{ name: "c", image: "i" }] };
const pod = (name: string, nodeName?: string) => ({ metadata: { name }, spec: { ...podSpec, nodeName } });
const pods = "/api/v1/namespaces/default/pods";

interface Lines {
  /** The next line, or undefined when the stream has ended; rejects when it broke. */
  next(): Promise<string | undefined>;
  event(): Promise<{ type: string; object: { code?: number; metadata: { name?: string } } }>;
}

/** A watch, read line by line. */
async function watch(url: string, init?: RequestInit): Promise<Lines> {
  const stop = new AbortController();
  const response = await fetch(url, { signal: stop.signal, ...init });
  cleanups.push(() => stop.abort());
  expect(response.status).toBe(200);
  const reader = response.body?.pipeThrough(new TextDecoderStream() as never).getReader();
  if (!reader) throw new Error("no body");
  let rest = "";
  async function next(): Promise<string | undefined> {
    for (;;) {
      const end = rest.indexOf("\n");
      if (end >= 0) {
        const line = rest.slice(0, end);
        rest = rest.slice(end + 1);
        return line;
      }
      const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
      if (done) return undefined;
      rest += value;
    }
  }
  return { next, event: async () => JSON.parse((await next()) ?? "null") };
}

describe("watches that go wrong", () => {
  test("a watch from before the history is 410 in an ERROR event, a list's continue token is 410 too", async () => {
    const server = await start({ historyMax: 2 });
    const { objects, control, url } = server;
    objects.create("pods", pod("a"));
    const version = control.resourceVersion();
    objects.create("pods", pod("b"));
    const resumed = await watch(`${url}/api/v1/pods?watch=1&resourceVersion=${version}`);
    expect((await resumed.event()).object.metadata.name).toBe("b");
    const page = (await (await fetch(`${url}/api/v1/pods?limit=1`)).json()) as {
      metadata: { continue: string };
    };

    control.expireHistory();
    const late = await watch(`${url}/api/v1/pods?watch=1&resourceVersion=${version}`);
    expect(await late.event()).toMatchObject({ type: "ERROR", object: { code: 410, reason: "Expired" } });
    expect(await late.next()).toBeUndefined();
    const more = await fetch(`${url}/api/v1/pods?limit=1&continue=${page.metadata.continue}`);
    expect([more.status, await more.json()]).toMatchObject([410, { reason: "Expired" }]);
    objects.create("pods", pod("c"));
    expect((await resumed.event()).object.metadata.name).toBe("c");
  });

  test("history is bounded: a watch may resume from what is kept, not from what was dropped", async () => {
    const { objects, control, url } = await start({ historyMax: 10 });
    const first = control.resourceVersion();
    for (let i = 0; i < 50; i++) objects.create("pods", pod(`p${i}`));
    const old = await watch(`${url}/api/v1/pods?watch=1&resourceVersion=${first}`);
    expect((await old.event()).type).toBe("ERROR");
    const recent = await watch(
      `${url}/api/v1/pods?watch=1&resourceVersion=${control.resourceVersion() - 10}`,
    );
    expect((await recent.event()).object.metadata.name).toBe("p40");
  });

  test("watches are dropped cleanly or by a reset, and resume on the same port", async () => {
    const { objects, control, url } = await start();
    const path = `${url}/api/v1/pods?watch=1&resourceVersion=${control.resourceVersion()}`;
    const first = await watch(path);
    expect(control.dropWatches({ resource: "nodes" })).toBe(0);
    expect(control.dropWatches({ resource: "pods" })).toBe(1);
    expect(await first.next()).toBeUndefined();
    const second = await watch(path);
    control.dropWatches({ how: "reset" });
    await expect(second.next()).rejects.toThrow();
    objects.create("pods", pod("a"));
    const third = await watch(path);
    expect((await third.event()).object.metadata.name).toBe("a");
    expect(control.watches()).toBe(1);
  });

  test("a stalled watch says nothing, bookmarks included, until it is let go", async () => {
    const { objects, control, url } = await start();
    const open = `${url}/api/v1/pods?watch=1&allowWatchBookmarks=true&resourceVersion=${control.resourceVersion()}`;
    const stalled = await watch(open);
    control.stallWatches();
    objects.create("pods", pod("a"));
    control.bookmark();
    const other = await watch(`${url}/api/v1/pods?watch=1`);
    expect((await other.event()).object.metadata.name).toBe("a");
    let said = false;
    const next = stalled.event().then((event) => {
      said = true;
      return event;
    });
    objects.create("pods", pod("b"));
    expect((await other.event()).object.metadata.name).toBe("b");
    expect(said).toBe(false);
    control.stallWatches({ stalled: false });
    expect((await next).object.metadata.name).toBe("a");
    expect((await stalled.event()).type).toBe("BOOKMARK");
    expect((await stalled.event()).object.metadata.name).toBe("b");
  });

  test("garbage and ERROR events are sent on command", async () => {
    const { control, url } = await start();
    const broken = await watch(`${url}/api/v1/pods?watch=1`);
    control.sendToWatches({ line: '{"type":"ADD' });
    expect(await broken.next()).toBe('{"type":"ADD');
    control.failWatches({ code: 500, reason: "InternalError", message: "etcd is away" });
    expect(await broken.event()).toMatchObject({
      type: "ERROR",
      object: { kind: "Status", code: 500, message: "etcd is away" },
    });
    expect(await broken.next()).toBeUndefined();
  });

  test("bookmarks come at their interval to those who allow them", async () => {
    const { url, control } = await start({ bookmarkIntervalMs: 5 });
    const bookmarked = await watch(`${url}/api/v1/nodes?watch=1&allowWatchBookmarks=true`);
    expect(await bookmarked.event()).toMatchObject({
      type: "BOOKMARK",
      object: { kind: "Node", metadata: { resourceVersion: String(control.resourceVersion()) } },
    });
  });

  test("a server without streaming lists refuses them, an older one knows nothing of them", async () => {
    const { url, control, objects } = await start({ streamingLists: "forbidden" });
    objects.create("pods", pod("a"));
    const streaming = `${url}/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true`;
    const refused = await fetch(streaming);
    // Word for word what kube-apiserver 1.36 says with the feature gate off.
    expect([refused.status, await refused.json()]).toMatchObject([
      422,
      {
        reason: "Invalid",
        message:
          'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled',
      },
    ]);
    control.streamingLists("ignored");
    const ignored = await watch(streaming);
    expect((await ignored.event()).object.metadata.name).toBe("a");
    objects.create("pods", pod("b"));
    expect((await ignored.event()).object.metadata.name).toBe("b");
  });
});

describe("faults", () => {
  test("a faulted request is answered as the fault says, and carried out only with `after`", async () => {
    const { url, control, objects } = await start();
    const create = (name: string) => fetch(url + pods, { method: "POST", body: JSON.stringify(pod(name)) });
    control.fault({ match: "^POST .*/pods", effect: "status", status: 429, headers: { "retry-after": "1" } });
    const limited = await create("a");
    expect([limited.status, limited.headers.get("retry-after")]).toEqual([429, "1"]);
    expect(objects.get("pods", "default/a")).toBeUndefined();
    control.fault({ match: "^POST .*/pods", effect: "reset", after: true });
    await expect(create("a")).rejects.toThrow();
    expect(objects.get("pods", "default/a")).toBeDefined();
    control.fault({ match: "^GET", effect: "garbage" });
    expect(await (await fetch(`${url + pods}/a`)).text()).toStartWith("<html>");
  });

  test("down refuses and kills watches; up serves the same objects on the same port", async () => {
    const { url, control, objects } = await start();
    const { metadata } = objects.create("pods", pod("a"));
    const broken = await watch(`${url}/api/v1/pods?watch=1&resourceVersion=${metadata.resourceVersion}`);
    await control.down();
    await expect(broken.next()).rejects.toThrow();
    await expect(fetch(`${url}/version`)).rejects.toThrow();
    objects.create("pods", pod("b"));
    await control.up();
    const resumed = await watch(`${url}/api/v1/pods?watch=1&resourceVersion=${metadata.resourceVersion}`);
    expect((await resumed.event()).object.metadata.name).toBe("b");
  });

  test("requests are counted by verb and resource", async () => {
    const { url, control } = await start();
    await fetch(`${url}/apis`);
    await fetch(url + pods, { method: "POST", body: JSON.stringify(pod("a", "n")) });
    await fetch(`${url + pods}/a/status`, {
      method: "PATCH",
      headers: { "content-type": "application/strategic-merge-patch+json" },
      body: '{"status":{"phase":"Running"}}',
    });
    await fetch(`${url}/api/v1/pods`);
    await watch(`${url}/api/v1/pods?watch=1`);
    await fetch(`${url}/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes/s`);
    await fetch(`${url}/apis/nope/v1/foos/x`);
    expect(control.counts()).toEqual({
      discovery: 1,
      "create pods": 1,
      "patch pods/status": 1,
      "list pods": 1,
      "watch pods": 1,
      "get sandboxes.agents.x-k8s.io": 1,
      other: 1,
    });
    control.resetCounts();
    expect(control.counts()).toEqual({});
  });

  test("the remote control does what the control does, where it was asked for", async () => {
    const { url, objects } = await start({ control: true });
    const remote = async (name: string, argument?: unknown): Promise<unknown> => {
      const response = await fetch(`${url}/_sim/${name}`, { method: "POST", body: JSON.stringify(argument) });
      return ((await response.json()) as { result: unknown }).result;
    };
    await remote("fault", { match: "/version", effect: "status", status: 503 });
    expect((await fetch(`${url}/version`)).status).toBe(503);
    await remote("unserve", "nodeinventories.sandbox.cocoonstack.io");
    expect((await fetch(`${url}/apis/sandbox.cocoonstack.io`)).status).toBe(404);
    await remote("serve", {
      group: "x.io",
      version: "v1",
      plural: "policies",
      kind: "Policy",
      namespaced: true,
      custom: true,
    });
    objects.create("policies.x.io", { metadata: { name: "p" } });
    expect((await fetch(`${url}/apis/x.io/v1/namespaces/default/policies/p`)).status).toBe(200);
    await remote("down", { ms: 1 });
    while (!(await fetch(`${url}/version`).catch(() => undefined))) await Bun.sleep(1);
    expect(await remote("")).toContain("down");
    const plain = await start();
    expect((await fetch(`${plain.url}/_sim/counts`, { method: "POST" })).status).toBe(404);
  });
});

describe("who may", () => {
  const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });

  test("the first rule that fits decides, for requests and for reviews alike", async () => {
    const { url, control } = await start({ token: "root" });
    control.setUsers({
      "t-node": { username: "node", groups: ["system:nodes"] },
      "t-prom": { username: "prom" },
    });
    control.setRules([
      { allow: true, user: "prom", resource: "nodes", subresource: "metrics" },
      { allow: false, user: "prom" },
      { allow: false, user: "system:nodes", verb: "list", resource: "pods" },
    ]);
    const listed = await fetch(`${url}/api/v1/pods`, bearer("t-node"));
    // Word for word as kube-apiserver 1.36 with RBAC.
    expect([listed.status, await listed.json()]).toMatchObject([
      403,
      {
        reason: "Forbidden",
        message:
          'pods is forbidden: User "node" cannot list resource "pods" in API group "" at the cluster scope',
        details: { kind: "pods" },
      },
    ]);
    expect((await fetch(`${url}/api/v1/nodes`, bearer("t-node"))).status).toBe(200);
    const ask = async (kind: string, spec: object, token: string) => {
      const response = await fetch(`${url}/apis/authorization.k8s.io/v1/${kind}`, {
        method: "POST",
        ...bearer(token),
        body: JSON.stringify({ spec }),
      });
      return ((await response.json()) as { status: { allowed: boolean } }).status.allowed;
    };
    const metrics = { verb: "get", resource: "nodes", subresource: "metrics" };
    const sar = (user: string, resourceAttributes: object, groups?: string[]) =>
      ask("subjectaccessreviews", { user, groups, resourceAttributes }, "root");
    expect(await sar("prom", metrics)).toBe(true);
    expect(await sar("prom", { ...metrics, subresource: "proxy" })).toBe(false);
    expect(await sar("x", { verb: "list", resource: "pods" }, ["system:nodes"])).toBe(false);
    expect(
      await ask(
        "selfsubjectaccessreviews",
        { resourceAttributes: { verb: "list", resource: "pods" } },
        "t-node",
      ),
    ).toBe(false);
    expect(
      await ask(
        "selfsubjectaccessreviews",
        { resourceAttributes: { verb: "list", resource: "pods" } },
        "root",
      ),
    ).toBe(true);
  });

  test("over TLS a client certificate of the CA is let in, another or none is not", async () => {
    const year = 365 * 86_400_000;
    const validity = { fromMs: Date.now() - year, untilMs: Date.now() + year, organizations: [], names: [] };
    const ca = await issue({ ...validity, commonName: "ca", usage: "ca" });
    const stranger = await issue({ ...validity, commonName: "other ca", usage: "ca" });
    const client = await issue({ ...validity, commonName: "node", usage: "client" }, ca);
    const impostor = await issue({ ...validity, commonName: "node", usage: "client" }, stranger);
    const serving = await selfSigned(["localhost", "127.0.0.1"], Date.now());
    const server = await start({ tls: { ...serving, ca: ca.cert } });
    expect(server.url).toStartWith("https://");
    const get = (tls: object) =>
      fetch(`${server.url}/api/v1/pods`, { tls: { ca: serving.cert, ...tls } }).then(({ status }) => status);
    expect(await get({ cert: client.cert, key: client.key })).toBe(200);
    expect(await get({ cert: impostor.cert, key: impostor.key })).toBe(401);
    expect(await get({})).toBe(401);
    await expect(fetch(`${server.url}/version`)).rejects.toThrow();

    server.control.fault({ match: "/version", effect: "reset", count: 0 });
    await expect(fetch(`${server.url}/version`, { tls: { ca: serving.cert } })).rejects.toThrow();
    await server.control.down();
    await server.control.up();
    expect(await get({ cert: client.cert, key: client.key })).toBe(200);
  });
});

test("a kind of the test's own is served, with its plural in discovery", async () => {
  const { url, control, objects } = await start({ resources: [] });
  control.serve({ group: "x.io", version: "v2", plural: "oxen", kind: "Ox", namespaced: true, custom: true });
  const list = (await (await fetch(`${url}/apis/x.io/v2`)).json()) as { resources: { name: string }[] };
  expect(list.resources.map(({ name }) => name)).toEqual(["oxen"]);
  objects.create("oxen.x.io", { metadata: { name: "bob", namespace: "default" } });
  const ox = (await (await fetch(`${url}/apis/x.io/v2/namespaces/default/oxen/bob`)).json()) as object;
  expect(ox).toMatchObject({ apiVersion: "x.io/v2", kind: "Ox", metadata: { name: "bob" } });
  expect(() => objects.list("sandboxes.agents.x-k8s.io")).toThrow("not served");
});

test("a thousand Pods reach a watcher and a field selector keeps the rest away", async () => {
  const { url, objects } = await start();
  const mine = await watch(`${url}/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dmine`);
  for (let i = 0; i < 1000; i++) objects.create("pods", pod(`p${i}`, i % 2 ? "mine" : "yours"));
  const seen = new Set<string | undefined>();
  for (let i = 0; i < 500; i++) seen.add((await mine.event()).object.metadata.name);
  expect(seen.size).toBe(500);
  const list = (await (await fetch(`${url}/api/v1/pods`)).json()) as { items: unknown[] };
  expect(list.items).toHaveLength(1000);
});

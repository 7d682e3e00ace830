/** The kubelet port as the API server and others meet it. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { request } from "node:https";
import { issue } from "../../lib/kubelet/certificate.ts";
import { controlPlane, World } from "./world.ts";

const rbac = "/apis/rbac.authorization.k8s.io/v1";
/** Roles and bindings of this run's subjects. */
const granted: string[] = [];
let world: World;

beforeAll(async () => {
  world = await World.create({ flags: [`--client-ca-file=${controlPlane().dir}/pki/ca.crt`] });
  await world.createPod("a");
  await world.running("a");
});

afterAll(async () => {
  for (const path of granted) await world.api.delete(path);
  await world[Symbol.asyncDispose]();
});

/** Asks the kubelet port directly; its certificate is its own. */
function ask(
  path: string,
  init: { method?: string; token?: string; certificate?: { cert?: string; key?: string } } = {},
): Promise<Response> {
  return fetch(world.daemon.kubeletUrl + path, {
    method: init.method,
    headers: init.token === undefined ? {} : { authorization: `Bearer ${init.token}` },
    tls: { rejectUnauthorized: false, cert: init.certificate?.cert, key: init.certificate?.key },
    // A connection that another certificate opened must not be used again.
    keepalive: false,
    signal: AbortSignal.timeout(10_000),
  });
}

const guarded: Record<string, string> = {
  "/pods": "nodes/proxy",
  "/runningpods/": "nodes/proxy",
  "/stats/summary": "nodes/stats",
  "/metrics": "nodes/metrics",
  "/metrics/resource": "nodes/metrics",
};

test("anyone may ask /healthz, over TLS only", async () => {
  const response = await ask("/healthz");
  expect([response.status, await response.text()]).toEqual([200, "ok"]);
  const plain = world.daemon.kubeletUrl.replace("https:", "http:");
  const answer = await fetch(`${plain}/healthz`, { signal: AbortSignal.timeout(10_000) }).catch(
    () => undefined,
  );
  expect(answer?.ok ?? false).toBe(false);
});

test("nothing but /healthz is told to a stranger, or to a service account without the right", async () => {
  const stranger = await serviceAccount("stranger");
  for (const [path, resource] of Object.entries(guarded)) {
    expect((await ask(path)).status).toBe(401);
    expect((await ask(path, { token: "not-a-token" })).status).toBe(401);
    const refused = await ask(path, { token: stranger });
    expect([path, refused.status]).toEqual([path, 403]);
    expect(await refused.text()).toContain(`may not get ${resource} of ${world.name}`);
  }
});

test("a service account that may read nodes/metrics reads metrics, and nothing else", async () => {
  const token = await serviceAccount("scraper", ["nodes/metrics"]);
  for (const [path, resource] of Object.entries(guarded)) {
    const answer = await ask(path, { token });
    expect([path, answer.status]).toEqual([path, resource === "nodes/metrics" ? 200 : 403]);
  }
  expect((await ask("/metrics", { token, method: "POST" })).status).toBe(405);
});

test("a client certificate of --client-ca-file is the user and the groups that it names, with their rights", async () => {
  const name = `${world.name}-scrapers`;
  await allow(name, ["nodes/stats"], { kind: "Group", name, apiGroup: "rbac.authorization.k8s.io" });
  controlPlane().identity(name, { user: "prometheus", groups: [name] });
  const certificate = controlPlane().credentials(name);
  expect((await ask("/stats/summary", { certificate })).status).toBe(200);
  expect((await ask("/pods", { certificate })).status).toBe(403);
});

test("a client certificate whose user has no rights is 403, and a token beside it adds none", async () => {
  const name = `${world.name}-nobody`;
  controlPlane().identity(name, { user: "nobody", groups: [] });
  const certificate = controlPlane().credentials(name);
  const token = await serviceAccount("beside", ["nodes/proxy"]);
  for (const path of Object.keys(guarded)) {
    expect((await ask(path, { certificate })).status).toBe(403);
    const both = await ask(path, { certificate, token });
    expect(await both.text()).toContain('user "nobody" may not');
  }
});

test("a client certificate of another authority is nobody's: 401, whatever it names", async () => {
  const span = { fromMs: Date.now() - 3_600_000, untilMs: Date.now() + 3_600_000 };
  const certificate = await issue({
    commonName: "admin",
    organizations: ["system:masters"],
    names: [],
    usage: "client",
    ...span,
  });
  expect((await ask("/pods", { certificate })).status).toBe(401);
  // And does not stand in the way of a good token.
  const token = await serviceAccount("reader", ["nodes/proxy"]);
  expect((await ask("/pods", { certificate, token })).status).toBe(200);
});

// kube-apiserver does not proxy to loopback; scripts/e2e/run gives the node another address where it can.
describe.skipIf(process.env.VK_E2E_ADDRESS === undefined)("through the API server", () => {
  test("its node proxy reads Pods, stats and metrics, with the kubelet-client certificate of the API server", async () => {
    const proxy = `${world.nodePath}/proxy`;
    const { items } = await world.api.get<{ items: { metadata: { name: string } }[] }>(`${proxy}/pods`);
    expect(items.map((p) => p.metadata.name)).toEqual(["a"]);
    expect(await world.api.get(`${proxy}/stats/summary`)).toMatchObject({ node: { nodeName: world.name } });
    expect(await world.api.get<string>(`${proxy}/metrics`)).toContain("# TYPE");
  });

  test("without --client-ca-file the API server is a stranger: its node proxy is told 401", async () => {
    await using other = await World.create();
    const refused = await other.api.get(`${other.nodePath}/proxy/pods`).catch((error: unknown) => error);
    expect(String(refused)).toMatch(/401|Unauthorized|--client-ca-file/);
    expect(await other.api.get<string>(`${other.nodePath}/proxy/healthz`)).toBe("ok");
  });

  const interactive = [
    { verb: "logs", path: "log" },
    { verb: "exec", path: "exec?command=sh&stdout=true" },
    { verb: "attach", path: "attach?stdout=true" },
    { verb: "port-forward", path: "portforward?ports=80" },
  ];
  for (const { verb, path } of interactive)
    test(`kubectl ${verb} is told that it is not served here, and where to go`, async () => {
      const answer = await upgrade(`${world.podPath("a")}/${path}`);
      // For exec and attach the API server speaks WebSocket itself, and passes on what the node said as its error.
      expect(answer.status === 101 || answer.status === 501).toBe(true);
      expect(answer.body).toMatch(/SDK|preview/i);
    });
});

/** Asks the API server for a stream, as kubectl does; the answer's body is all that came, stream or not. */
function upgrade(path: string): Promise<{ status: number | undefined; body: string }> {
  const { server, ca, cert, key } = controlPlane().credentials("admin");
  const headers = {
    connection: "Upgrade",
    upgrade: "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": Buffer.alloc(16).toString("base64"),
    "sec-websocket-protocol": "v5.channel.k8s.io",
  };
  return new Promise((settle, fail) => {
    const asked = request(server + path, { ca, cert, key, headers, timeout: 10_000 }, (response) => {
      let body = "";
      response.on("data", (chunk) => {
        body += chunk;
      });
      response.on("end", () => settle({ status: response.statusCode, body }));
    });
    asked.on("upgrade", (response, socket, head) => {
      let body = head.toString("latin1");
      socket.on("data", (chunk) => {
        body += chunk.toString("latin1");
      });
      socket.on("close", () => settle({ status: response.statusCode, body }));
      socket.on("end", () => socket.destroy());
    });
    asked.on("timeout", () => asked.destroy(new Error(`no answer to ${path}`)));
    asked.on("error", fail);
    asked.end();
  });
}

/** Makes a service account that may get the named subresources of nodes, and returns a token of it. */
async function serviceAccount(name: string, resources: string[] = []): Promise<string> {
  await world.api.create(`${world.path}/serviceaccounts`, { metadata: { name } });
  if (resources.length > 0)
    await allow(`${world.name}-${name}`, resources, { kind: "ServiceAccount", name, namespace: world.name });
  const request = { apiVersion: "authentication.k8s.io/v1", kind: "TokenRequest", spec: {} };
  const answer = await world.api.create<{ status: { token: string } }>(
    `${world.path}/serviceaccounts/${name}/token`,
    request,
  );
  return answer.status.token;
}

/** Lets a subject get the named subresources of nodes, until the tests of this file are over. */
async function allow(role: string, resources: string[], subject: Record<string, string>): Promise<void> {
  const rules = [{ apiGroups: [""], resources, verbs: ["get"] }];
  await world.api.create(`${rbac}/clusterroles`, { metadata: { name: role }, rules });
  granted.push(`${rbac}/clusterroles/${role}`, `${rbac}/clusterrolebindings/${role}`);
  await world.api.create(`${rbac}/clusterrolebindings`, {
    metadata: { name: role },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: role },
    subjects: [subject],
  });
}

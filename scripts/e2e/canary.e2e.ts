/**
 * Credentials as canaries: sandboxd and the API server put those that they were shown into every answer they can,
 * errors, bodies, headers, redirects, half a JSON, and none may come out of the daemon anywhere but in the claims
 * table. Stand-ins on both sides, since no real server does this.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { type ApiServer, startApiServer } from "../../lib/sim/apiserver.ts";
import { startControllers } from "../../lib/sim/controllers.ts";
import type { Fault } from "../../lib/sim/faults.ts";
import { type Sandboxd, startSandboxd } from "../../lib/sim/sandboxd.ts";
import { Daemon } from "./daemon.ts";
import { eventually } from "./eventually.ts";
import { annotation, template } from "./world.ts";

const binary = resolve(process.env.VK_E2E_BINARY ?? join(import.meta.dir, "../../dist/vk-sandbox"));
const some = () => crypto.randomUUID().replaceAll("-", "");
const root = `canary-root-${some()}`;
const api = `canary-api-${some()}`;
/** Of somebody who asks the kubelet port. */
const caller = `canary-caller-${some()}`;
/** Every VM's credential; the stand-in draws them. */
const vms: string[] = [];

let dir: string;
let server: ApiServer;
let stopControllers = () => {};
let sandboxd: Sandboxd;
let daemon: Daemon;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vk-canary-"));
  server = await startApiServer({ token: api });
  server.control.setUsers({ [caller]: { username: "caller" } });
  stopControllers = startControllers(server.objects);
  sandboxd = await startSandboxd({
    token: root,
    pools: [{ template, warm: 50, target: 50 }],
    random: () => {
      const drawn = crypto.randomUUID();
      vms.push(drawn.replaceAll("-", ""));
      return drawn;
    },
  });
  writeFileSync(join(dir, "token"), root, { mode: 0o600 });
  writeFileSync(
    join(dir, "kubeconfig"),
    JSON.stringify({
      clusters: [{ name: "c", cluster: { server: server.url } }],
      users: [{ name: "u", user: { token: api } }],
      contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
      "current-context": "x",
    }),
    { mode: 0o600 },
  );
  daemon = new Daemon({
    nodeName: "canary",
    kubeconfig: join(dir, "kubeconfig"),
    sandboxdUrl: sandboxd.url,
    tokenFile: join(dir, "token"),
    dir: join(dir, "daemon"),
    address: "127.0.0.1",
    flags: ["--publish-inventory", "--publish-interval=1s", "--orphan-scan-interval=1s", "--renew-leases"],
  });
  await daemon.start();
  await until("the Node is registered", () => server.objects.get("nodes", "canary") !== undefined);
});

afterAll(async () => {
  await daemon.kill();
  stopControllers();
  await server.stop();
  await sandboxd.stop();
  rmSync(dir, { recursive: true, force: true });
});

const until = (what: string, holds: () => boolean | Promise<boolean>) =>
  eventually(what, holds, Boolean, { context: () => daemon.tail() });

/** Every credential there is, as it is and as encodings would write it. */
function credentials(withVms = true): string[] {
  const plain = [root, api, caller, ...(withVms ? vms : [])];
  return plain.flatMap((secret) => [secret, btoa(secret).replace(/=+$/, "")]);
}

/** Fails when a credential is in the text; `text` must not be empty, or nothing was looked at. */
function search(where: string, text: string, withVms = true): void {
  expect([where, text.length > 0]).toEqual([where, true]);
  for (const secret of credentials(withVms)) {
    const at = text.indexOf(secret);
    if (at >= 0)
      throw new Error(
        `${where} shows a credential: …${text.slice(Math.max(0, at - 200), at + secret.length + 50)}…`,
      );
  }
}

function createPod(name: string, owner?: { name: string; uid: string }): void {
  const ownerReferences = owner && [
    { apiVersion: "agents.x-k8s.io/v1beta1", kind: "Sandbox", controller: true, ...owner },
  ];
  server.objects.create("pods", {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      name,
      namespace: "default",
      annotations: { [annotation("template")]: template },
      ...(ownerReferences ? { ownerReferences } : {}),
    },
    spec: { nodeName: "canary", containers: [{ name: "agent", image: template }] },
  });
}

const pod = (name: string) => server.objects.get("pods", `default/${name}`);
const runs = (name: string) => pod(name)?.status?.phase === "Running";

/** Each says what it was shown, in every way it can. */
const gossip = (secret: string) => `${secret} Bearer ${secret} token=${secret}, "${secret}"`;
const everywhere = (secret: string): Pick<Fault, "headers"> => ({
  headers: {
    "content-type": "application/json",
    "www-authenticate": `Bearer realm="${secret}", error="${secret}"`,
    location: `http://127.0.0.1:1/?token=${secret}`,
    "x-token": gossip(secret),
  },
});

/** sandboxd's answers to a claim: status, and body by the words it carries. */
const answers: [name: string, status: number, body: (words: string) => string | object][] = [
  ["bad-request", 400, (words) => ({ error: `unknown template ${words}` })],
  ["unauthorized", 401, (words) => ({ error: `invalid api token ${words}` })],
  ["forbidden", 403, (words) => ({ error: `forbidden for ${words}` })],
  ["conflict", 409, (words) => ({ error: `no egress attachment ${words}` })],
  ["too-many", 429, (words) => ({ error: `at max_claims ${words}` })],
  ["draining", 429, (words) => ({ error: `draining ${words}` })],
  ["provisioning", 500, (words) => ({ error: `boot failed: ${words}` })],
  ["teapot", 418, (words) => ({ error: words })],
  ["page", 502, (words) => `<html><body>${words}</body></html>`],
  ["plain", 500, (words) => words],
  ["redirected", 302, (words) => words],
  ["gone-elsewhere", 307, (words) => ({ error: words })],
  ["peers", 200, (words) => ({ redirect: [words.split(" ")[0] ?? "", `${words.split(" ")[0]}:7777`] })],
  ["half", 200, (words) => `{"id":"sb_half","token":"${words.split(" ")[0]}","owner_`],
  ["no-id", 200, (words) => ({ token: words.split(" ")[0], owner_addr: "10.0.0.9:1" })],
  ["strange-id", 200, (words) => ({ id: words, token: "t", owner_addr: "10.0.0.9:1" })],
  [
    "strange-deadline",
    200,
    (words) => ({ id: "sb_d", token: "t", owner_addr: "10.0.0.9:1", deadline: words }),
  ],
  ["strange-address", 200, (words) => ({ id: "sb_a", token: "t", owner_addr: words })],
];

for (const [name, status, body] of answers)
  test(`a claim answered ${status}, ${name}, with credentials in headers and body`, async () => {
    const id = sandboxd.control.fault({
      match: "POST /v1/claim",
      effect: "status",
      status,
      body: body(gossip(root)),
      count: 1,
      ...everywhere(root),
    });
    createPod(name);
    await until("the fault was met", () =>
      sandboxd.control.faults().some((f) => f.id === id && f.hits === 1),
    );
    await until(
      "the Pod runs in the end, or says why not",
      () => runs(name) || pod(name)?.status?.reason === "ProviderFailed",
    );
    search(`status of ${name}`, JSON.stringify(pod(name)));
    if (runs(name)) return;
    // A Pod that waits would claim again one day, and meet the fault of another test.
    server.objects.remove("pods", `default/${name}`);
    await until("the Pod is forgotten", async () => !(await kubelet("/pods")).includes(`"${name}"`));
  });

test("a grant whose address carries credentials is published and kept without them", async () => {
  createPod("first");
  await until("there is a VM, and so a credential of one", () => runs("first"));
  expect(vms[0]).toBeDefined();
  sandboxd.control.fault({
    match: "POST /v1/claim",
    effect: "status",
    status: 200,
    body: {
      id: "sb_canary",
      token: vms[0],
      deadline: new Date(Date.now() + 3_600_000).toISOString(),
      owner_addr: `http://10.0.0.9:80/?token=${root}&vm=${vms[0]}#${vms[0]}`,
    },
  });
  createPod("addressed");
  await until("the Pod runs", () => pod("addressed")?.status?.podIP === "10.0.0.9");
  search("status of addressed", JSON.stringify(pod("addressed")));
});

test("releases that fail with credentials in their words, and are done in the end", async () => {
  createPod("released");
  await until("the Pod runs", () => runs("released"));
  // The last one drawn is its VM's.
  const own = vms.at(-1) ?? "";
  for (const status of [401, 403, 500, 503])
    sandboxd.control.fault({
      match: "POST /v1/sandboxes/.*/release",
      effect: "status",
      status,
      body: { error: `release refused: ${gossip(root)} ${gossip(own)}` },
      count: 1,
      ...everywhere(own),
    });
  server.objects.remove("pods", "default/released");
  await until("the VM is released", () =>
    sandboxd.control.history().some((vm) => vm.claimRef === "default/released" && vm.endedBy !== undefined),
  );
});

test("listings, info, reads and stats with credentials in every field", async () => {
  const vm = sandboxd.control.index().find(({ claimRef }) => claimRef !== "");
  const rows = [
    { id: "sb_orphan", key: { template: root, net: root, size: root }, claim_ref: "", deadline: null },
    { id: "sb_external", key: { template }, claim_ref: `default/${root}`, deadline: null },
  ];
  const said = { error: gossip(root) };
  const faults: Omit<Fault, "effect">[] = [
    { match: "GET /v1/sandboxes$", status: 500, body: said },
    { match: "GET /v1/sandboxes$", status: 200, body: `{"sandboxes":[{"id":"${root}","key":` },
    { match: "GET /v1/sandboxes$", status: 200, body: { sandboxes: [{ id: gossip(root) }] } },
    { match: "GET /v1/sandboxes$", status: 200, body: { sandboxes: rows } },
    { match: "GET /v1/sandboxes/", status: 403, body: said },
    { match: "GET /v1/sandboxes/", status: 500, body: said },
    {
      match: "GET /v1/info",
      status: 200,
      body: {
        pools: [{ key: { template: root }, warm: 1, target: 1 }],
        claimed: 0,
        at_capacity: true,
        at_capacity_reason: root,
      },
    },
    { match: "GET /v1/info", status: 200, body: { pools: gossip(root) } },
    { match: "GET /healthz", status: 500, body: gossip(root) },
  ];
  for (const fault of faults)
    sandboxd.control.fault({ count: 2, effect: "status", ...everywhere(root), ...fault });
  expect(vm).toBeDefined();
  await until(
    "listings were met",
    () =>
      sandboxd.control
        .faults()
        .filter(({ match, hits }) => match.startsWith("GET /v1/sandboxes$") && hits > 0).length > 3,
  );
  search("stats", await kubelet("/stats/summary"));
  sandboxd.control.clearFaults();
});

test("an API server that repeats the credential in its errors", async () => {
  const status = (code: number, reason: string) => ({
    kind: "Status",
    apiVersion: "v1",
    status: "Failure",
    code,
    reason,
    message: `credential ${gossip(api)} is not welcome`,
    details: { name: api },
  });
  const matches = [
    "PATCH /api/v1/namespaces/default/pods/.*/status",
    "DELETE /api/v1/namespaces/default/pods/",
    "GET /apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes/",
    "POST /api/v1/namespaces/default/events",
    "PATCH /apis/coordination.k8s.io/",
    "PATCH /api/v1/nodes/",
    "PATCH /apis/sandbox.cocoonstack.io/",
    "POST /apis/authentication.k8s.io/",
  ];
  for (const match of matches) {
    for (const [code, reason] of [
      [500, "InternalError"],
      [403, "Forbidden"],
      [401, "Unauthorized"],
    ] as const)
      server.control.fault({
        match,
        effect: "status",
        status: code,
        body: status(code, reason),
        ...everywhere(api),
      });
    server.control.fault({
      match,
      effect: "status",
      status: 502,
      body: `<html>${gossip(api)}</html>`,
      ...everywhere(api),
    });
    server.control.fault({ match, effect: "status", status: 302, body: gossip(api), ...everywhere(api) });
    server.control.fault({ match, effect: "garbage", body: gossip(api) });
  }
  const sandbox = server.objects.create("sandboxes.agents.x-k8s.io", {
    apiVersion: "agents.x-k8s.io/v1beta1",
    kind: "Sandbox",
    metadata: { name: "owner", namespace: "default" },
    // Nobody makes its Pod but this test.
    spec: { operatingMode: "Suspended", podTemplate: { spec: { containers: [] } } },
  });
  const owner = { name: "owner", uid: sandbox.metadata.uid };
  createPod("owned", owner);
  await until("the Pod runs after all", () => runs("owned"));
  server.objects.remove("pods", "default/owned");
  await until("the Pod is finalized after all", () => pod("owned") === undefined);
  await kubelet("/pods", caller).catch(() => "");
  await until(
    "most faults were met",
    () => server.control.faults().filter(({ hits }) => hits > 0).length > matches.length * 3,
  );
  server.control.clearFaults();
});

test("a watch that speaks in credentials", async () => {
  const watching = () => server.control.watches({ resource: "pods" }) > 0;
  const interrupted = () =>
    daemon.log.filter((line) => line.includes("the Pod watch was interrupted")).length;
  for (const speak of [
    () => server.control.sendToWatches({ line: gossip(api) }),
    () =>
      server.control.sendToWatches({
        line: JSON.stringify({ type: "ADDED", object: { metadata: gossip(api) } }),
      }),
    () => server.control.failWatches({ code: 500, reason: "InternalError", message: gossip(api) }),
  ]) {
    await until("there is a watch", watching);
    const before = interrupted();
    speak();
    await until("what it said was met", () => interrupted() > before);
  }
  createPod("after-the-watch");
  await until("Pods are served again", () => runs("after-the-watch"));
});

/** A page of the kubelet port, asked with the API's own token, which may everything. */
async function kubelet(path: string, token = api): Promise<string> {
  const response = await fetch(daemon.kubeletUrl + path, {
    headers: { authorization: `Bearer ${token}` },
    tls: { rejectUnauthorized: false },
  });
  return `${JSON.stringify([...response.headers])}${await response.text()}`;
}

/** A verb of the same binary beside the daemon; both of its outputs. */
async function verb(...command: string[]): Promise<string> {
  const child = Bun.spawn([binary, ...command], {
    cwd: dir,
    env: { PATH: process.env.PATH ?? "", HOME: dir, KUBECONFIG: join(dir, "kubeconfig") },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  await child.exited;
  return stdout + stderr;
}

test("verbs for people show none, faults or not", async () => {
  const state = ["--state-path", daemon.statePath];
  for (const words of [
    ["claims", ...state],
    ["claims", "--json", "--wide", ...state],
    ["audit", ...state],
    ["audit", "--json", ...state],
  ])
    search(words.slice(0, 2).join(" "), await verb(...words));
  for (const match of ["GET /v1/info", "GET /v1/sandboxes", "GET /metrics", "GET /healthz"])
    sandboxd.control.fault({
      match,
      effect: "status",
      status: 401,
      body: { error: gossip(root) },
      count: 0,
      ...everywhere(root),
    });
  const flags = [
    "--node-name",
    "canary",
    "--sandboxd-url",
    sandboxd.url,
    "--sandboxd-token-file",
    join(dir, "token"),
  ];
  for (const form of [[], ["--json"]]) search("doctor", await verb("doctor", ...form, ...flags, ...state));
  sandboxd.control.clearFaults();
});

test("starts that fail over a file full of credentials say where it is wrong, and none of them", async () => {
  const fresh = join(dir, "fresh");
  mkdirSync(fresh, { mode: 0o700 });
  const file = (name: string, text: string) => {
    writeFileSync(join(fresh, name), text, { mode: 0o600 });
    return join(fresh, name);
  };
  const claims = (row: object) => JSON.stringify({ claims: { "default/a": row } });
  const good = { id: "sb_1", token: vms[0], address: "10.0.0.9:1", podUID: "u", authority: "u" };
  const common = [
    "--node-name",
    "failing",
    "--log-level",
    "debug",
    "--sandboxd-url",
    sandboxd.url,
    "--listen-addr",
    "127.0.0.1:0",
  ];
  const starts: [what: string, flags: string[]][] = [
    ["a table that is cut off", ["--state-path", file("cut.json", claims(good).slice(0, -9))]],
    [
      "a table with a token of the wrong type",
      ["--state-path", file("type.json", claims({ ...good, token: [vms[0]] }))],
    ],
    [
      "a table with a wrong field",
      ["--state-path", file("field.json", claims({ ...good, deadline: vms[0] }))],
    ],
    ["a token file of two words", ["--sandboxd-token-file", file("words", `${root} ${api}`)]],
    [
      "a kubeconfig that is no YAML",
      ["--kubeconfig", file("k1", `users:\n- name: u\n  user: {token: ${api}\n`)],
    ],
    ["a kubeconfig of the wrong shape", ["--kubeconfig", file("k2", `users: ["${api}"]`)]],
    [
      "a kubeconfig with a broken key",
      [
        "--kubeconfig",
        file(
          "k3",
          JSON.stringify({
            clusters: [{ name: "c", cluster: { server: server.url } }],
            users: [
              { name: "u", user: { "client-certificate-data": btoa(api), "client-key-data": btoa(root) } },
            ],
            contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
            "current-context": "x",
          }),
        ),
      ],
    ],
    ["an address with credentials", ["--sandboxd-url", `http://${api}:${root}@127.0.0.1:1`]],
    ["a key that is a token", ["--tls-cert", file("crt", api), "--tls-key", file("key", root)]],
  ];
  for (const [what, flags] of starts) {
    const said = await verb("run", ...common, "--state-path", join(fresh, "state.json"), ...flags);
    search(`start with ${what}`, said);
    expect([what, said]).toEqual([what, expect.stringMatching(/"level":"error"|^vk-sandbox: /)]);
  }
});

test("log, events, statuses, inventory, metrics, ledger and process show none", async () => {
  const { pid } = daemon;
  search("cmdline", readFileSync(`/proc/${pid}/cmdline`, "latin1"));
  search("environ", readFileSync(`/proc/${pid}/environ`, "latin1"));
  for (const path of ["/metrics", "/metrics/resource", "/pods", "/runningpods/", "/stats/summary"])
    search(path, await kubelet(path));
  const names = [
    "events",
    "pods",
    "nodes",
    "leases.coordination.k8s.io",
    "nodeinventories.sandbox.cocoonstack.io",
  ];
  for (const resource of names) search(resource, JSON.stringify(server.objects.list(resource)));

  expect(await daemon.stop()).toBe(0);
  search("stdout and stderr", daemon.log.join("\n"));
  const files = readdirSync(daemon.stateDir);
  expect(files).toEqual(expect.arrayContaining(["audit.db", "claims.json"]));
  for (const name of files) {
    const text = readFileSync(join(daemon.stateDir, name), "latin1");
    // The table holds the VMs' credentials, which is what it is for; no other, and no other file any.
    if (text !== "") search(`file ${name}`, text, !name.startsWith("claims.json"));
  }
  // The search itself: it finds what is there.
  const table = readFileSync(daemon.statePath, "utf8");
  expect(() => search("the table", table)).toThrow("the table shows a credential");
});

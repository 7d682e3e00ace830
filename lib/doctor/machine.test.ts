import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { holderIdentity, identityParts, readNodeInfo } from "../node/index.ts";
import { type ApiServer, startApiServer } from "../sim/apiserver.ts";
import { type Sandboxd, startSandboxd } from "../sim/sandboxd.ts";
import { openStore, type Store } from "../state/index.ts";
import { runDoctor } from "./doctor.ts";
import { type Finding, tally } from "./finding.ts";
import { configOf } from "./fixtures.ts";
import { machineProbes } from "./machine.ts";

const version = "0.0.0-test";
const rootToken = "root-of-the-test";
const providerToken = "provider-of-the-test";
const linux = process.platform === "linux";

let dir: string;
let sandboxd: Sandboxd;
let api: ApiServer;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vk-doctor-"));
  [sandboxd, api] = await Promise.all([
    startSandboxd({
      token: rootToken,
      tenants: { "tenant-of-the-test": "team-a" },
      pools: [{ template: "img:1", net: "none", size: "small", warm: 2 }],
      random: () => crypto.randomUUID(),
    }),
    startApiServer({ token: "admin-of-the-test" }),
  ]);
  api.control.setUsers({
    [providerToken]: {
      username: "system:serviceaccount:vk-sandbox:vk-sandbox",
      groups: ["system:authenticated"],
    },
  });
  file("token", rootToken);
  file("tenant-token", "tenant-of-the-test");
  file("kubeconfig", kubeconfig(providerToken));
  file("admin.kubeconfig", kubeconfig("admin-of-the-test"));
});

afterAll(async () => {
  await Promise.all([sandboxd.stop(), api.stop()]);
  rmSync(dir, { recursive: true });
});

function file(name: string, text: string): void {
  writeFileSync(join(dir, name), text, { mode: 0o600 });
}

function kubeconfig(token: string): string {
  return JSON.stringify({
    "current-context": "sim",
    contexts: [{ name: "sim", context: { cluster: "sim", user: "sim" } }],
    clusters: [{ name: "sim", cluster: { server: api.url } }],
    users: [{ name: "sim", user: { token } }],
  });
}

interface Run {
  flags?: Record<string, string>;
  env?: Record<string, string>;
  admin?: boolean;
}

/** A doctor with the real probes: findings by id. */
async function examine({ flags = {}, env = {}, admin = false }: Run = {}): Promise<Map<string, Finding>> {
  const config = configOf({
    "node-name": "vk-doctor",
    "node-ip": "127.0.0.1",
    "listen-addr": "127.0.0.1:0",
    "sandboxd-url": sandboxd.url,
    "sandboxd-token-file": join(dir, "token"),
    "state-path": join(dir, "state", "claims.json"),
    kubeconfig: join(dir, "kubeconfig"),
    ...flags,
  });
  const { probes, close } = machineProbes({
    config,
    env,
    version,
    adminKubeconfig: admin ? join(dir, "admin.kubeconfig") : undefined,
  });
  try {
    return new Map((await runDoctor({ config, probes })).map((finding) => [finding.id, finding]));
  } finally {
    close();
  }
}

function statuses(findings: Map<string, Finding>, ...ids: string[]): Record<string, string | undefined> {
  return Object.fromEntries(ids.map((id) => [id, findings.get(id)?.status]));
}

/** Every path below the directory with what changes when something is written. */
function snapshot(of: string): string[] {
  return readdirSync(of, { recursive: true, encoding: "utf8" })
    .sort()
    .map((name) => {
      const stats = statSync(join(of, name));
      return `${name} ${stats.mode} ${stats.size} ${stats.mtimeMs} ${stats.isFile() ? readFileSync(join(of, name), "utf8") : ""}`;
    });
}

describe("doctor with the probes of this machine, against the stand-ins", () => {
  test("fails in nothing, and leaves files and objects as they were", async () => {
    const files = snapshot(dir);
    const objects = ["nodes", "leases.coordination.k8s.io", "pods", "events"].map((name) =>
      api.objects.list(name),
    );
    const findings = await examine({ admin: true });
    expect([...findings.values()].filter(({ status }) => status === "fail")).toEqual([]);
    expect(tally([...findings.values()]).pass).toBeGreaterThan(30);
    expect(snapshot(dir)).toEqual(files);
    expect(
      ["nodes", "leases.coordination.k8s.io", "pods", "events"].map((name) => api.objects.list(name)),
    ).toEqual(objects);
    expect(Object.keys(sandboxd.control.counts()).filter((call) => !call.startsWith("GET "))).toEqual([]);
  });

  test("no finding carries a token", async () => {
    const text = JSON.stringify([...(await examine({ admin: true })).values()]);
    for (const secret of [rootToken, providerToken, "admin-of-the-test"]) expect(text).not.toContain(secret);
  });

  test("tells root from tenant, and a token that sandboxd does not know from both", async () => {
    expect((await examine()).get("sandboxd.token")?.status).toBe("pass");
    const tenant = await examine({ flags: { "sandboxd-token-file": join(dir, "tenant-token") } });
    expect(tenant.get("sandboxd.token")?.found).toContain("tenant");
    file("other-token", "nobody");
    const other = await examine({ flags: { "sandboxd-token-file": join(dir, "other-token") } });
    expect(other.get("sandboxd.token")?.found).toContain("401");
    expect(statuses(other, "sandboxd.pools", "sandboxd.index")).toEqual({
      "sandboxd.pools": "skipped",
      "sandboxd.index": "skipped",
    });
  });

  test("sees pools, drain and capacity as sandboxd has them", async () => {
    const { draining, atCapacity } = sandboxd.control.settings();
    sandboxd.control.set({ draining: true, atCapacity: "memory" });
    sandboxd.control.setPool({ template: "empty:1", net: "none", size: "small", warm: 0, target: 2 });
    const findings = await examine();
    sandboxd.control.set({ draining, atCapacity });
    expect(findings.get("sandboxd.draining")?.status).toBe("warn");
    expect(findings.get("sandboxd.capacity")?.found).toContain("memory");
    expect(findings.get("sandboxd.pools")?.found).toContain("empty:1/none/small (0/2)");
  });

  test("says which right is missing", async () => {
    api.control.setRules([
      { resource: "pods", subresource: "", verb: "delete", allow: false },
      { resource: "sandboxes", allow: false },
    ]);
    const findings = await examine();
    api.control.setRules([]);
    expect(findings.get("cluster.rbac.pods")?.found).toBe("this identity may not delete pods");
    expect(findings.get("cluster.rbac.sandboxes")?.status).toBe("fail");
    expect(findings.get("cluster.rbac.nodes")?.status).toBe("pass");
  });

  test("knows its own lease from another provider's", async () => {
    const node = { metadata: { name: "vk-doctor", labels: { type: "virtual-kubelet" } } };
    api.objects.create("nodes", { apiVersion: "v1", kind: "Node", ...node });
    const lease = (holder: string) => ({
      apiVersion: "coordination.k8s.io/v1",
      kind: "Lease",
      metadata: { name: "vk-doctor", namespace: "kube-node-lease" },
      spec: {
        holderIdentity: holder,
        leaseDurationSeconds: 40,
        renewTime: new Date().toISOString().replace("Z", "000Z"),
      },
    });
    const parts = identityParts(readNodeInfo(version), join(dir, "state", "claims.json"));
    const { name: resource, key } = { name: "leases.coordination.k8s.io", key: "kube-node-lease/vk-doctor" };
    api.objects.create(resource, lease(holderIdentity({ nodeName: "vk-doctor", parts, pid: 1 })));
    expect((await examine()).get("cluster.node")?.found).toContain("ours");
    api.objects.remove(resource, key);
    api.objects.create(
      resource,
      lease(holderIdentity({ nodeName: "vk-doctor", parts: ["another host"], pid: 1 })),
    );
    expect((await examine()).get("cluster.node")?.status).toBe("fail");
    api.objects.remove(resource, key);
    api.objects.remove("nodes", "vk-doctor");
  });

  test("says what it cannot reach when sandboxd and API server are down", async () => {
    await Promise.all([sandboxd.control.down(), api.control.down()]);
    const findings = await examine();
    await Promise.all([sandboxd.control.up(), api.control.up()]);
    expect(statuses(findings, "sandboxd.reachable", "cluster.reachable")).toEqual({
      "sandboxd.reachable": "fail",
      "cluster.reachable": "fail",
    });
    expect(
      statuses(findings, "sandboxd.token", "cluster.identity", "cluster.rbac.pods", "host.clock"),
    ).toEqual({
      "sandboxd.token": "skipped",
      "cluster.identity": "skipped",
      "cluster.rbac.pods": "skipped",
      "host.clock": "skipped",
    });
  });

  test("fails where there is no kubeconfig at all", async () => {
    const findings = await examine({ flags: { kubeconfig: "" }, env: { HOME: join(dir, "nobody") } });
    expect(findings.get("cluster.credentials")?.status).toBe("fail");
    expect(findings.get("cluster.credentials")?.found).toContain(join(dir, "nobody", ".kube", "config"));
  });
});

describe("doctor beside a running provider", () => {
  let store: Store;

  beforeAll(() => {
    const opened = openStore({ path: join(dir, "state", "claims.json"), schedule: () => {} });
    if (!opened.ok) throw new Error(opened.message);
    store = opened.store;
    const row = {
      id: "sb_gone",
      token: "secret-of-the-row",
      address: "10.0.0.1:1",
      podUID: "u",
      authority: "u",
      claimedAtMs: 1_700_000_000_000,
      deadlineMs: 0,
    };
    expect(store.commit([{ kind: "row", key: "default/a", value: row }])).toEqual({ ok: true });
  });

  afterAll(() => {
    store.close();
    rmSync(join(dir, "state"), { recursive: true });
  });

  test.skipIf(!linux)(
    "sees who holds the lock, reads the table and its journal, and disturbs neither",
    async () => {
      const files = snapshot(join(dir, "state"));
      const findings = await examine();
      expect(findings.get("state.lock")?.found).toContain(
        `held by the running provider, process ${process.pid}`,
      );
      expect(findings.get("state.table")?.status).toBe("pass");
      expect(findings.get("state.rows")?.found).toContain("1 claim,");
      expect(findings.get("sandboxd.index")?.found).toContain("default/a (sb_gone)");
      expect(JSON.stringify([...findings.values()])).not.toContain("secret-of-the-row");
      expect(snapshot(join(dir, "state"))).toEqual(files);
      const row = {
        id: "sb_2",
        token: "t",
        address: "",
        podUID: "u",
        authority: "u",
        claimedAtMs: 1,
        deadlineMs: 0,
      };
      expect(store.commit([{ kind: "row", key: "default/b", value: row }])).toEqual({ ok: true });
      expect(store.commit([{ kind: "row", key: "default/b", value: null }])).toEqual({ ok: true });
    },
  );

  test.skipIf(!linux)("knows the port as the provider's when the lock's holder has it", async () => {
    const server = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
    const findings = await examine({ flags: { "listen-addr": `127.0.0.1:${server.port}` } });
    server.stop(true);
    expect(findings.get("host.port")?.found).toContain(
      `served by the running provider, process ${process.pid}`,
    );
  });
});

test.skipIf(!linux)("without a daemon a taken port is a failure that names who has it", async () => {
  const server = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
  const findings = await examine({ flags: { "listen-addr": `127.0.0.1:${server.port}` } });
  server.stop(true);
  expect(findings.get("host.port")?.status).toBe("fail");
  expect(findings.get("host.port")?.found).toContain(`process ${process.pid}`);
});

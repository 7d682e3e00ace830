import { afterAll, expect } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { anyJson, damaged, fuzz, jsonTexts, mutated, SECRET, withoutSecret } from "../fuzzing.ts";
import type { OwnerState } from "../provider/types.ts";
import { verdict } from "../provider/verdict.ts";
import { createKubeClient, describeFailure, type KubeClient, type KubeReply } from "./client.ts";
import { fixedCredential, isCredential } from "./credentials.ts";
import { createDiscovery, groupVersionPath, pluralByRules } from "./discovery.ts";
import { fakeClock } from "./fake-clock.ts";
import { loadCluster } from "./kubeconfig.ts";
import { createLineSplitter, LineError } from "./lines.ts";
import { readBarePod, readOwner, readPod } from "./owner.ts";
import { parseStatus } from "./status.ts";
import { materialFault } from "./tls-material.ts";
import { type WatchEvent, watch } from "./watch.ts";

const dir = mkdtempSync(join(tmpdir(), "kube-fuzz-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

// ---- metav1.Status --------------------------------------------------------------------------------

const status = fc.record({
  kind: fc.constant("Status"),
  status: fc.constant("Failure"),
  code: fc.integer({ min: 400, max: 599 }),
  reason: fc.constantFrom("NotFound", "Conflict", "Forbidden", "Expired", ""),
  message: fc.string(),
  details: fc.option(
    fc.record({ name: fc.constantFrom("a", "b", ""), kind: fc.constantFrom("sandboxes", "pods", "") }),
    { nil: undefined },
  ),
});

fuzz("any value is a Status or none", fc.oneof(anyJson, mutated(status)), (value) => {
  const parsed = parseStatus(value);
  if (parsed === undefined) return;
  expect(Number.isInteger(parsed.code)).toBe(true);
  expect(parsed.retryAfterMs).toBeGreaterThanOrEqual(0);
});

fuzz("a Status comes through as it was given", status, (given) => {
  expect(parseStatus(given)).toEqual({
    code: given.code,
    reason: given.reason,
    message: given.message,
    detailsName: given.details?.name ?? "",
    detailsKind: given.details?.kind ?? "",
    retryAfterMs: 0,
  });
});

// ---- what decides about VMs -----------------------------------------------------------------------

const owner = { apiVersion: "agents.x-k8s.io/v1beta1", kind: "Sandbox", name: "a", uid: "uid-a" };
const sandbox = fc.record({
  apiVersion: fc.constantFrom(owner.apiVersion, "agents.x-k8s.io/v1alpha1", "v1"),
  kind: fc.constantFrom("Sandbox", "Pod"),
  metadata: fc.record({
    name: fc.constantFrom("a", "b"),
    namespace: fc.constantFrom("ns", "other"),
    uid: fc.constantFrom("uid-a", "uid-b"),
    deletionTimestamp: fc.option(fc.constant("2026-01-01T00:00:00Z"), { nil: undefined }),
  }),
  spec: fc.record({ operatingMode: fc.constantFrom("Running", "Suspended") }),
  status: fc.record({
    conditions: fc.array(
      fc.record({ type: fc.constantFrom("Ready", "Other"), reason: fc.constantFrom("SandboxExpired", "x") }),
    ),
  }),
});

/** A client whose owner read is answered with this HTTP status and text, through the real client's own reading. */
async function answering(code: number, text: string): Promise<KubeClient> {
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch: (request) =>
      request.url.endsWith("/apis/agents.x-k8s.io/v1beta1")
        ? Response.json({
            kind: "APIResourceList",
            groupVersion: "agents.x-k8s.io/v1beta1",
            resources: [{ name: "sandboxes", kind: "Sandbox", namespaced: true }],
          })
        : new Response(text, { status: code }),
  });
  const client = createKubeClient({
    server: `http://127.0.0.1:${server.port}`,
    credentials: fixedCredential(),
  });
  return {
    ...client,
    waiting: 0,
    close() {
      client.close();
      void server.stop(true);
    },
  };
}

/** Whether this text, under this code, proves the owner's end as the contract's table says; written apart from lib/kube. */
function provesEnd(code: number, text: string): boolean {
  let value: Record<string, unknown>;
  try {
    value = JSON.parse(text) as Record<string, unknown>;
  } catch {
    return false;
  }
  const at = (object: unknown, ...path: string[]): unknown =>
    path.reduce<unknown>(
      (inner, name) => (inner as Record<string, unknown> | null | undefined)?.[name],
      object,
    );
  if (code === 404)
    return (
      at(value, "kind") === "Status" &&
      at(value, "reason") === "NotFound" &&
      at(value, "details", "name") === "a"
    );
  if (code !== 200 || at(value, "metadata", "name") !== "a" || at(value, "metadata", "namespace") !== "ns")
    return false;
  if (at(value, "apiVersion") !== owner.apiVersion || at(value, "kind") !== "Sandbox") return false;
  if (at(value, "metadata", "uid") !== owner.uid || at(value, "metadata", "deletionTimestamp") != null)
    return true;
  const conditions = at(value, "status", "conditions");
  return (
    Array.isArray(conditions) &&
    conditions.find((c: unknown) => at(c, "type") === "Ready") !== undefined &&
    at(
      conditions.find((c: unknown) => at(c, "type") === "Ready"),
      "reason",
    ) === "SandboxExpired"
  );
}

fuzz(
  "whatever answers an owner read, a VM is released only on a reply that proves the owner's end",
  fc.tuple(
    fc.constantFrom(200, 200, 404, 404, 403, 410, 500),
    jsonTexts(fc.oneof<fc.Arbitrary<unknown>[]>(sandbox, status)).filter((text) => text.isWellFormed()),
  ),
  async ([code, text]) => {
    const client = await answering(code, text);
    try {
      const state = await readOwner(client, createDiscovery(client), "ns", owner);
      if (verdict(owner.uid, "Sandbox a", state).release)
        expect([code, text, provesEnd(code, text)]).toEqual([code, text, true]);
    } finally {
      client.close();
    }
  },
);

const ownerText = fc.oneof(
  fc.string(),
  fc.constantFrom("..", ".", "a/b", "a?x=1", "%2e%2e", "a#b", "\\", SECRET),
);
fuzz(
  "a forged ownerReference asks for nothing but one object of its own namespace",
  fc.record({
    apiVersion: fc.oneof(ownerText, fc.constantFrom("v1", "a/v1", "x.io/v1")),
    kind: ownerText,
    name: ownerText,
    uid: ownerText,
  }),
  async (forged) => {
    const asked: string[] = [];
    const failure: KubeReply = { ok: false, kind: "network", message: "none" };
    const client: KubeClient = {
      async request(_method, path) {
        asked.push(path);
        return failure;
      },
      stream: () => Promise.reject(new Error("no stream")),
      close() {},
      waiting: 0,
    };
    const state: OwnerState = await readOwner(client, createDiscovery(client), "ns", forged);
    expect(state.kind).toBe("failed");
    for (const path of asked) {
      const { pathname, search, hash } = new URL(`http://h${path}`);
      expect([pathname, search, hash]).toEqual([path, "", ""]);
      // Discovery, or one object below the namespace.
      expect(path).toMatch(
        /^\/apis?\/[^/]+(\/[^/]+)?$|^\/apis?\/[^/]+(\/[^/]+)?\/namespaces\/ns\/[^/]+\/[^/]+$/,
      );
    }
    expect(groupVersionPath(forged.apiVersion) ?? "/apis/").toMatch(/^\/api/);
    expect(pluralByRules(forged.kind)).toBeString();
  },
);

fuzz(
  "any answer about a Pod is a Pod, its absence, or a failure",
  jsonTexts(fc.oneof<fc.Arbitrary<unknown>[]>(sandbox, status)),
  async (text) => {
    let body: unknown;
    try {
      body = JSON.parse(text);
    } catch {
      body = undefined;
    }
    const reply: KubeReply = { ok: true, status: 200, body };
    const client = { request: async () => reply } as unknown as KubeClient;
    for (const read of [await readPod(client, "ns", "a"), await readBarePod(client, "ns", "a")])
      expect(["found", "not_found", "failed"]).toContain(read.kind);
  },
);

fuzz(
  "any error of a server becomes a failure in few words",
  fc.tuple(fc.integer({ min: 200, max: 599 }), fc.uint8Array({ maxLength: 2_000 }), fc.boolean()),
  async ([code, bytes, withSecret]) => {
    const body = withSecret ? Buffer.concat([bytes, Buffer.from(` ${SECRET} `), bytes]) : bytes;
    const server = Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      fetch: () => new Response([204, 205, 304].includes(code) ? null : Buffer.from(body), { status: code }),
    });
    const credentials = fixedCredential({ authorization: `Bearer ${SECRET}` });
    const client = createKubeClient({ server: `http://127.0.0.1:${server.port}`, credentials });
    const reply = await client.request("POST", "/x", { timeoutMs: 5_000 });
    client.close();
    void server.stop(true);
    if (reply.ok) return;
    const told = describeFailure(reply);
    expect(told.length).toBeLessThan(3_000);
    withoutSecret(told);
  },
);

// ---- lines and watches ----------------------------------------------------------------------------

const line = fc
  .oneof(fc.string({ maxLength: 60 }), fc.string({ unit: "binary", maxLength: 60 }))
  .map((text) => text.replaceAll("\n", " "));

/** The bytes of lines, cut anywhere. */
const chunked = fc
  .tuple(fc.array(line, { maxLength: 12 }), fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 40 }))
  .map(([lines, sizes]) => {
    const bytes = Buffer.from(lines.map((each) => `${each}\n`).join(""));
    const chunks: Uint8Array[] = [];
    let from = 0;
    for (const size of sizes) {
      chunks.push(bytes.subarray(from, from + size));
      from += size;
    }
    chunks.push(bytes.subarray(from));
    return { lines, chunks };
  });

fuzz("lines are the same however their bytes are cut", chunked, ({ lines, chunks }) => {
  const seen: string[] = [];
  const splitter = createLineSplitter(1_000, (one) => {
    seen.push(one);
    return true;
  });
  for (const chunk of chunks) splitter.push(chunk);
  const wellFormed = lines.map((one) => new TextDecoder().decode(new TextEncoder().encode(one)));
  // A byte order mark at the start of a line is the decoder's, as it is JSON.parse's error.
  expect(seen).toEqual(wellFormed.filter((one) => one !== ""));
  expect(splitter.pendingBytes).toBe(0);
});

fuzz(
  "bytes of any kind end in lines or in a LineError, and never more is held than a line may have",
  fc.array(fc.uint8Array({ maxLength: 300 }), { maxLength: 30 }),
  (chunks) => {
    const splitter = createLineSplitter(500, () => true);
    try {
      for (const chunk of chunks) {
        splitter.push(chunk);
        expect(splitter.pendingBytes).toBeLessThanOrEqual(500);
      }
    } catch (error) {
      expect(error).toBeInstanceOf(LineError);
    }
  },
);

const event = fc.record({
  type: fc.constantFrom("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"),
  object: fc.record({
    kind: fc.constantFrom("Pod", "Status"),
    code: fc.constantFrom(410, 500),
    metadata: fc.record({
      name: fc.string(),
      uid: fc.string(),
      resourceVersion: fc.nat().map(String),
      annotations: fc.constantFrom<Record<string, string>>({}, { "k8s.io/initial-events-end": "true" }),
    }),
  }),
});

fuzz(
  "a watch stream of anything, in chunks of any size, hands on objects with names and versions, and can be stopped",
  fc.tuple(
    fc.array(jsonTexts(event), { maxLength: 12 }),
    fc.array(fc.integer({ min: 1, max: 200 }), { maxLength: 30 }),
  ),
  async ([lines, sizes]) => {
    const bytes = Buffer.from(lines.map((one) => `${one}\n`).join(""));
    const clock = fakeClock(1_000);
    let served = false;
    const client = {
      waiting: 0,
      close() {},
      request: async (): Promise<KubeReply> => ({ ok: false, kind: "network", message: "none" }),
      async stream() {
        if (served) return { ok: false, kind: "network", message: "none" } as const;
        served = true;
        const body = new ReadableStream<Uint8Array>({
          start(controller) {
            let from = 0;
            for (const size of sizes) {
              controller.enqueue(bytes.subarray(from, from + size));
              from += size;
            }
            controller.enqueue(bytes.subarray(from));
            controller.close();
          },
        });
        return { ok: true, status: 200, body } as const;
      },
    } satisfies KubeClient;
    const events: WatchEvent[] = [];
    const problems: string[] = [];
    const watching = watch({
      client,
      path: "/api/v1/pods",
      clock,
      random: () => 0.5,
      onEvent: (one) => events.push(one),
      onProblem: ({ message }) => problems.push(message),
    });
    for (let turn = 0; turn < 20 && problems.length === 0; turn++)
      await new Promise<void>((resolve) => setImmediate(resolve));
    watching.stop();
    await watching.done;
    for (const one of events)
      if (one.type === "object" || one.type === "gone") {
        expect(one.object.metadata.name).toBeString();
        expect(one.object.metadata.resourceVersion).toMatch(/./);
      }
    for (const message of problems) expect(message.length).toBeLessThan(3_000);
  },
);

// ---- kubeconfig -----------------------------------------------------------------------------------

const kubeconfig = fc
  .record({
    server: fc.constantFrom(
      "https://127.0.0.1:6443",
      "http://h",
      "ftp://h",
      `https://u:${SECRET}@h`,
      "",
      "x",
    ),
    user: fc.constantFrom<Record<string, unknown>>(
      { token: SECRET },
      { username: "u", password: SECRET },
      { "client-certificate-data": btoa(SECRET), "client-key-data": btoa(SECRET) },
      { tokenFile: "missing" },
      { exec: { apiVersion: "client.authentication.k8s.io/v1", command: "no-such-plugin", args: [SECRET] } },
      { as: "somebody", token: SECRET },
    ),
    context: fc.constantFrom("x", "y", ""),
    proxy: fc.constantFrom(
      "",
      "http://proxy:3128",
      `http://u:${SECRET}@proxy:3128`,
      `socks5://u:${SECRET}@p`,
    ),
  })
  .map(({ server, user, context, proxy }) => ({
    clusters: [{ name: "c", cluster: { server, "proxy-url": proxy } }],
    users: [{ name: "u", user }],
    contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
    "current-context": context,
  }));
const asText = fc.oneof(
  jsonTexts(kubeconfig),
  kubeconfig.map((value) => Bun.YAML.stringify(value, null, 2) ?? ""),
  damaged(kubeconfig.map((value) => Bun.YAML.stringify(value, null, 2) ?? "")),
);
let files = 0;

fuzz(
  "any kubeconfig is a cluster or an error with a kind, and no error repeats what is secret in it",
  asText,
  async (text) => {
    // A name each: what YAML makes of a file is remembered nowhere, but errors name it.
    const path = join(dir, `config-${files++ % 8}`);
    writeFileSync(path, text);
    const problems: string[] = [];
    const found = await loadCluster({
      env: { PATH: "" },
      kubeconfig: path,
      onProblem: (why) => problems.push(why),
    });
    if (!found.ok) {
      expect(found.kind).toMatch(/^[a-z_]+$/);
      // A damaged name is a name: what is secret is what stands where secrets stand.
      if (!/name"?: ?"?[^"\n]*fuzz-secret|server"?: ?"?[^"\n]*fuzz-secret/.test(text))
        withoutSecret(found.message);
      return;
    }
    expect(new URL(found.cluster.server).protocol).toMatch(/^https?:$/);
    const credential = await found.cluster.credentials.current();
    expect(isCredential(credential)).toBe(true);
  },
);

const pem = fc
  .tuple(fc.constantFrom("CERTIFICATE", "PRIVATE KEY", "EC PRIVATE KEY"), fc.base64String({ maxLength: 200 }))
  .map(([kind, body]) => `-----BEGIN ${kind}-----\n${body}\n-----END ${kind}-----\n`);
const maybePem = fc.option(fc.oneof(pem, damaged(pem), fc.string()), { nil: undefined });
fuzz(
  "any TLS material can be used or is said not to be",
  fc.record({ ca: maybePem, cert: maybePem, key: maybePem }),
  (material) => {
    const fault = materialFault(material);
    if (fault !== undefined) expect(fault).toMatch(/^[A-Zat]/);
  },
);

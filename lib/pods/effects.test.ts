import { expect, test } from "bun:test";
import type { KubeClient } from "../kube/index.ts";
import { createSandboxd, hostOf } from "../sandboxd/index.ts";
import { createEffects } from "./effects.ts";

/** The status that a publish of a Running Pod with this owner_addr sends. */
async function published(address: string, resolve?: (host: string) => Promise<string>) {
  const bodies: unknown[] = [];
  const kube = {
    async request(_method: string, _path: string, options?: { body?: unknown }) {
      bodies.push(options?.body);
      return { ok: true, code: 200, body: { metadata: { resourceVersion: "2" } } };
    },
  } as unknown as KubeClient;
  const never = () => Promise.reject(new Error("not asked for here"));
  const run = createEffects({
    kube,
    sandboxd: { ...createSandboxd({ url: "http://127.0.0.1:1" }), hostOf },
    reads: { owner: never, barePod: never, pod: never },
    resolve,
  });
  const status = { phase: "Running" };
  await run({ kind: "publish", seq: 1, key: "a/b", uid: "u", status, claimId: "sb_1", address });
  return (bodies[0] as { status: Record<string, unknown> }).status;
}

test("each list of addresses replaces what someone else wrote: merged by ip, the API server refuses the sum", async () => {
  const replace = { $patch: "replace" };
  expect(await published("10.0.0.5:80")).toEqual({
    phase: "Running",
    podIP: "10.0.0.5",
    podIPs: [replace, { ip: "10.0.0.5" }],
    hostIP: "10.0.0.5",
    hostIPs: [replace, { ip: "10.0.0.5" }],
  });
});

test("a host name is resolved, and one that is not leaves the addresses out", async () => {
  expect(await published("vm.example:80", async () => "10.0.0.6")).toMatchObject({ podIP: "10.0.0.6" });
  expect(await published("vm.example:80", async () => "")).toEqual({ phase: "Running" });
});

test("a zone, or IPv4 in IPv6 clothes, never reaches a Pod's status", async () => {
  expect(await published("[fe80::1%eth0]:80")).toMatchObject({ podIP: "fe80::1" });
  expect(await published("[::ffff:10.0.0.5]:80")).toMatchObject({ podIP: "10.0.0.5" });
});

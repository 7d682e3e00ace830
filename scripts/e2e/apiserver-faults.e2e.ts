/**
 * An API server that answers badly: with errors, garbage, half answers, or not at all. The daemon stays up, takes no
 * bad answer for evidence, loses nothing and catches up. Outages of the whole server: outage.e2e.ts.
 */
import { expect, test } from "bun:test";
import type { Fault } from "../../lib/sim/faults.ts";
import { startApiProxy } from "./apiproxy.ts";
import { sandboxApi } from "./controller.ts";
import { World } from "./world.ts";

const status = (code: number, reason: string, details?: object) => ({
  kind: "Status",
  apiVersion: "v1",
  status: "Failure",
  reason,
  message: reason,
  code,
  details,
});

/** Answers to the owner read that prove nothing, by the name of the Sandbox they are given about. */
const noEvidence: Record<string, Omit<Fault, "match">> = {
  "too-many": {
    effect: "status",
    status: 429,
    body: status(429, "TooManyRequests"),
    headers: { "retry-after": "1" },
  },
  "server-error": { effect: "status", status: 500, body: status(500, "InternalError") },
  forbidden: { effect: "status", status: 403, body: status(403, "Forbidden") },
  unauthorized: { effect: "status", status: 401, body: status(401, "Unauthorized") },
  "path-not-found": { effect: "status", status: 404, body: "404 page not found\n" },
  "unnamed-not-found": { effect: "status", status: 404, body: status(404, "NotFound") },
  "other-not-found": {
    effect: "status",
    status: 404,
    body: status(404, "NotFound", { name: "another", kind: "sandboxes" }),
  },
  "other-kind-not-found": {
    effect: "status",
    status: 404,
    body: status(404, "NotFound", { name: "other-kind-not-found", kind: "namespaces" }),
  },
  gone: { effect: "status", status: 410, body: status(410, "Gone", { name: "gone", kind: "sandboxes" }) },
  html: { effect: "garbage" },
  empty: { effect: "empty" },
  half: { effect: "truncate" },
  "half-json": { effect: "cut" },
  "empty-object": { effect: "garbage", body: "{}" },
  "another-object": {
    effect: "garbage",
    body: {
      apiVersion: sandboxApi,
      kind: "Sandbox",
      metadata: { name: "elsewhere", namespace: "elsewhere", uid: "00000000-0000-0000-0000-000000000000" },
    },
  },
  reset: { effect: "reset" },
  hang: { effect: "hang" },
};

test.concurrent("no answer to the owner read but a NotFound that names it, or the owner itself, costs a VM", async () => {
  await using proxy = await startApiProxy();
  await using world = await World.create({ identity: () => proxy.kubeconfig, noController: true });
  const names = Object.keys(noEvidence);
  const owners = await Promise.all(names.map((name) => world.createSandbox(name)));
  for (const [i, name] of names.entries()) await world.createPod(name, { owner: owners[i] });
  for (const name of names) await world.running(name);

  for (const [name, fault] of Object.entries(noEvidence))
    proxy.faults.add({ ...fault, count: 0, match: `^GET /apis/[^?]*/sandboxes/${name}(\\?|$)` });
  for (const name of names) await world.api.delete(world.podPath(name));
  // Each is asked about, nothing is learned, and the Pods do not wait for it.
  await world.eventually(
    "every Pod object is gone",
    () => world.pods(),
    (pods) => pods.length === 0,
    { timeoutMs: 60_000 },
  );
  expect(world.living()).toHaveLength(names.length);
  // The owners end, and the answers stay what they are: the VMs stay, too, at the next question as well.
  for (const name of names) await world.api.delete(world.sandboxPath(name));
  await world.eventually(
    "every owner was asked about twice",
    () => proxy.faults.list(),
    (faults) => faults.every((fault) => fault.hits >= 2),
    { timeoutMs: 60_000 },
  );
  expect(world.living()).toHaveLength(names.length);

  proxy.faults.clear();
  await world.eventually(
    "the true answers release every VM",
    () => world.living(),
    (vms) => vms.length === 0,
    { timeoutMs: 60_000 },
  );
  expect(world.sandboxd.control.history().every((vm) => vm.endedBy === "sandbox")).toBe(true);
}, 240_000);

const spoiled: { what: string; fault: Omit<Fault, "match"> }[] = [
  {
    what: "429 with Retry-After",
    fault: { effect: "status", status: 429, body: "", headers: { "retry-after": "1" } },
  },
  { what: "500", fault: { effect: "status", status: 500, body: status(500, "InternalError") } },
  { what: "a proxy's HTML", fault: { effect: "garbage" } },
  { what: "nothing but a reset", fault: { effect: "reset" } },
];

for (const { what, fault } of spoiled)
  test.concurrent(`while every request is answered with ${what} the daemon stays up, and catches up afterwards`, async () => {
    await using proxy = await startApiProxy();
    await using world = await World.create({ identity: () => proxy.kubeconfig });
    for (const name of ["stays", "leaves"]) await world.createSandbox(name);
    await world.createPod("bare");
    for (const name of ["stays", "leaves", "bare"]) await world.running(name);

    const id = proxy.faults.add({ ...fault, match: ".", count: 0 });
    await proxy.down();
    await proxy.up();
    await world.createSandbox("new");
    await world.api.delete(world.sandboxPath("leaves"));
    await world.api.delete(world.podPath("bare"));
    await world.eventually(
      "the daemon has asked often enough to have met it in every loop",
      () => proxy.faults.list(),
      ([state]) => (state?.hits ?? 0) > 5,
    );
    expect(world.daemon.running).toBe(true);
    expect(world.living()).toHaveLength(3);

    proxy.faults.clear(id);
    await world.running("new", undefined, { timeoutMs: 90_000 });
    await world.released(world.granted("leaves")[0]?.id ?? "");
    await world.released(world.granted("bare")[0]?.id ?? "");
    await world.gone(world.podPath("leaves"));
    await world.gone(world.podPath("bare"));
    expect(world.fates("stays")).toEqual(["lives"]);
    expect(world.fates("new")).toEqual(["lives"]);
    await world.nodeReady();
  }, 180_000);

test.concurrent("writes that fail, or succeed without our hearing of it, are done once: one VM, right status, Pod gone", async () => {
  await using proxy = await startApiProxy();
  await using world = await World.create({ identity: () => proxy.kubeconfig, noController: true });
  const failing: Omit<Fault, "match">[] = [
    { effect: "status", status: 500, body: status(500, "InternalError") },
    { effect: "status", status: 409, body: status(409, "Conflict") },
    { effect: "status", status: 504, body: status(504, "Timeout"), after: true },
    { effect: "reset", after: true },
    { effect: "garbage" },
  ];
  for (const [i, fault] of failing.entries()) {
    const pod = `^(PATCH|DELETE) /api/v1/namespaces/${world.name}/pods/p${i}(/status)?(\\?|$)`;
    proxy.faults.add({ ...fault, match: pod, count: 2 });
    // Two more later: what is left of it then hits the delete.
    proxy.faults.add({ ...fault, match: pod.replace("PATCH|DELETE", "DELETE"), count: 2 });
    await world.createPod(`p${i}`);
  }
  for (const i of failing.keys()) {
    const pod = await world.running(`p${i}`);
    expect(world.granted(`p${i}`)).toHaveLength(1);
    expect(pod.metadata.annotations?.["sandbox.cocoonstack.io/claim-id"]).toBe(
      world.granted(`p${i}`)[0]?.id ?? "",
    );
  }
  for (const i of failing.keys()) await world.api.delete(world.podPath(`p${i}`));
  for (const i of failing.keys()) {
    await world.gone(world.podPath(`p${i}`));
    await world.released(world.granted(`p${i}`)[0]?.id ?? "");
  }
}, 120_000);

/** The watch's first answer: an empty cluster, complete. */
const emptyList = {
  type: "BOOKMARK",
  object: {
    kind: "Pod",
    apiVersion: "v1",
    metadata: { resourceVersion: "1", annotations: { "k8s.io/initial-events-end": "true" } },
  },
};

test.concurrent("a Pod list that is empty, wrongly, destroys nothing: not at a restart, not in between, bare Pods neither", async () => {
  await using proxy = await startApiProxy();
  await using world = await World.create({ identity: () => proxy.kubeconfig });
  await world.createSandbox("owned");
  await world.createPod("bare");
  for (const name of ["owned", "bare"]) await world.running(name);

  const match = "^GET /api/v1/pods\\?";
  for (const restart of [true, false]) {
    if (restart) await world.daemon.kill();
    const id = proxy.faults.add({
      effect: "status",
      status: 200,
      body: `${JSON.stringify(emptyList)}\n`,
      match,
      count: 2,
    });
    if (restart) await world.startDaemon();
    else {
      await proxy.down();
      await proxy.up();
    }
    await world.eventually(
      "the daemon was told twice that it has no Pods",
      () => proxy.faults.list().find((f) => f.id === id),
      (fault) => fault?.hits === 2,
      { timeoutMs: 60_000 },
    );
    proxy.faults.clear(id);
    // It holds them again: a status that someone overwrites is put back.
    for (const name of ["owned", "bare"]) await world.disturb(name);
    expect(world.living()).toHaveLength(2);
  }
  expect(world.sandboxd.control.history()).toHaveLength(2);
}, 180_000);

const brokenWatches: { what: string; fault: Omit<Fault, "match"> }[] = [
  {
    what: "410 Expired in the stream",
    fault: {
      effect: "status",
      status: 200,
      body: `${JSON.stringify({ type: "ERROR", object: status(410, "Expired") })}\n`,
    },
  },
  { what: "410 as the answer", fault: { effect: "status", status: 410, body: status(410, "Expired") } },
  {
    what: "lines that are no events",
    fault: { effect: "garbage", body: '<html>\n{}\n{"type":"ADDED"}\n[]\n' },
  },
  { what: "an end at once", fault: { effect: "empty" } },
  { what: "500", fault: { effect: "status", status: 500, body: status(500, "InternalError") } },
];

for (const { what, fault } of brokenWatches)
  test.concurrent(`a watch answered with ${what} forgets no claim and misses no Pod`, async () => {
    await using proxy = await startApiProxy();
    await using world = await World.create({ identity: () => proxy.kubeconfig });
    for (const name of ["stays", "leaves"]) await world.createSandbox(name);
    for (const name of ["stays", "leaves"]) await world.running(name);

    const id = proxy.faults.add({ ...fault, match: "^GET /api/v1/pods\\?", count: 4 });
    await proxy.down();
    await proxy.up();
    await world.createSandbox("new");
    await world.api.delete(world.sandboxPath("leaves"));
    await world.eventually(
      "the watch was spoiled four times",
      () => proxy.faults.list().find((f) => f.id === id),
      (state) => state?.hits === 4,
      { timeoutMs: 60_000 },
    );
    await world.running("new", undefined, { timeoutMs: 60_000 });
    await world.gone(world.podPath("leaves"));
    await world.released(world.granted("leaves")[0]?.id ?? "");
    expect(world.fates("stays")).toEqual(["lives"]);
    expect(world.granted("new")).toHaveLength(1);
  }, 150_000);

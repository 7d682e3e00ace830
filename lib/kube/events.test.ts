import { afterEach, expect, test } from "bun:test";
import {
  cacheEntriesMax,
  createEventRecorder,
  type EventRecorder,
  type EventRecorderOptions,
  queueMax,
  spamBurst,
  spamRefillMs,
} from "./events.ts";
import { fakeClock } from "./fake-clock.ts";
import { type Answer, type Seen, statusResponse, type TestServer, testServer } from "./test-server.ts";

const pod = { apiVersion: "v1", kind: "Pod", namespace: "ns", name: "box", uid: "u1" };

let server: TestServer | undefined;
let recorder: EventRecorder | undefined;
afterEach(() => {
  recorder?.stop();
  server?.stop();
});

function setup(answer: Answer = () => Response.json({}), options: Partial<EventRecorderOptions> = {}) {
  server = testServer(answer, { qps: 100_000, burst: 100_000 });
  const clock = fakeClock(Date.parse("2026-01-02T03:04:05.678Z"));
  recorder = createEventRecorder({
    client: server.client,
    component: "n1/pod-controller",
    clock,
    random: () => 0,
    ...options,
  });
  return { server, clock, recorder };
}

/** A request in short: create or patch, count, message. */
function short(seen: Seen): string {
  const body = JSON.parse(seen.body);
  return `${seen.method === "POST" ? "create" : "patch"} ${body.count} ${body.message}`;
}

/** Runs what waits for no time at all (random is 0) until nothing is queued. */
async function idleWithRetries(recorder: EventRecorder, clock: ReturnType<typeof fakeClock>): Promise<void> {
  let done = false;
  void recorder.idle().then(() => {
    done = true;
  });
  while (!done) {
    clock.advance(0);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

test("the first time is an Event object as kubectl describe shows it", async () => {
  const { server, recorder } = setup();
  recorder.record(pod, "Warning", "ProviderCreateFailed", "no warm capacity");
  await recorder.idle();
  expect(server.asked()).toEqual(["POST /api/v1/namespaces/ns/events"]);
  const body = JSON.parse(server.seen[0]?.body ?? "");
  expect(body.metadata.name).toMatch(/^box\.[0-9a-f]+$/);
  expect(body).toEqual({
    apiVersion: "v1",
    kind: "Event",
    metadata: { name: body.metadata.name, namespace: "ns" },
    involvedObject: pod,
    reason: "ProviderCreateFailed",
    message: "no warm capacity",
    type: "Warning",
    source: { component: "n1/pod-controller" },
    reportingComponent: "n1/pod-controller",
    reportingInstance: "",
    firstTimestamp: "2026-01-02T03:04:05Z",
    lastTimestamp: "2026-01-02T03:04:05Z",
    count: 1,
  });
});

test("the same again counts up the first one", async () => {
  const { server, recorder, clock } = setup();
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  clock.advance(60_000);
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  const name = JSON.parse(server.seen[0]?.body ?? "").metadata.name;
  expect(server.asked()[1]).toBe(`PATCH /api/v1/namespaces/ns/events/${name}`);
  expect(server.seen[1]?.headers.get("content-type")).toBe("application/strategic-merge-patch+json");
  expect(JSON.parse(server.seen[1]?.body ?? "")).toEqual({
    count: 2,
    lastTimestamp: "2026-01-02T03:05:05Z",
    message: "m",
  });
});

test("another reason, message, type or Pod generation is another event", async () => {
  const { server, recorder } = setup();
  recorder.record(pod, "Warning", "R", "m");
  recorder.record(pod, "Warning", "R", "m2");
  recorder.record(pod, "Warning", "R2", "m");
  recorder.record(pod, "Normal", "R", "m");
  recorder.record({ ...pod, uid: "u2" }, "Warning", "R", "m");
  await recorder.idle();
  expect(server.seen.map((seen) => seen.method)).toEqual(["POST", "POST", "POST", "POST", "POST"]);
});

test("what happens again while it waits costs one request, with the whole count", async () => {
  const gate = Promise.withResolvers<void>();
  const { server, recorder } = setup(async () => {
    await gate.promise;
    return Response.json({});
  });
  for (let n = 0; n < 5; n += 1) recorder.record(pod, "Warning", "R", "m");
  gate.resolve();
  await recorder.idle();
  expect(server.seen.map(short)).toEqual(["create 1 m", "patch 5 m"]);
  expect(recorder.stats).toMatchObject({ sent: 2, folded: 4 });
});

test("many messages of one reason become one event", async () => {
  const { server, recorder } = setup();
  for (let n = 1; n <= 12; n += 1) {
    recorder.record(pod, "Warning", "R", `message ${n}`);
    await recorder.idle();
  }
  expect(server.seen.map(short).slice(8)).toEqual([
    "create 1 message 9",
    "create 1 (combined from similar events): message 10",
    "patch 2 (combined from similar events): message 11",
    "patch 3 (combined from similar events): message 12",
  ]);
});

test("ten minutes of quiet end the combining", async () => {
  const { server, recorder, clock } = setup();
  for (let n = 1; n <= 10; n += 1) recorder.record(pod, "Warning", "R", `message ${n}`);
  await recorder.idle();
  clock.advance(600_001);
  recorder.record(pod, "Warning", "R", "message 11");
  await recorder.idle();
  expect(server.seen.map(short).at(-1)).toBe("create 1 message 11");
});

test("an object that never stops is cut off after its burst, others are not, and it gets a token back in time", async () => {
  const { server, recorder, clock } = setup();
  for (let n = 0; n < spamBurst + 10; n += 1) {
    recorder.record(pod, "Warning", "R", "m");
    await recorder.idle();
  }
  expect(server.seen).toHaveLength(spamBurst);
  expect(recorder.stats.spam).toBe(10);
  recorder.record({ ...pod, name: "other", uid: "u2" }, "Warning", "R", "m");
  await recorder.idle();
  expect(server.seen).toHaveLength(spamBurst + 1);
  clock.advance(spamRefillMs);
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  // What was cut off is in the count.
  expect(server.seen.map(short).at(-1)).toBe(`patch ${spamBurst + 11} m`);
});

test("an event that expired in the API begins again as a new one", async () => {
  const { server, recorder } = setup((seen) =>
    seen.method === "PATCH"
      ? statusResponse(404, "NotFound", { name: "x", kind: "events" })
      : Response.json({}),
  );
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  expect(server.seen.map(short)).toEqual(["create 1 m", "patch 2 m", "create 2 m"]);
  const names = server.seen
    .filter((seen) => seen.method === "POST")
    .map((seen) => JSON.parse(seen.body).metadata.name);
  expect(names[0]).not.toBe(names[1]);
});

test("a refusal is given up at once and reported, and the next time begins anew", async () => {
  const problems: string[] = [];
  const { server, recorder } = setup(() => statusResponse(403, "Forbidden", { kind: "events" }), {
    onProblem: (why) => problems.push(why),
  });
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  expect(server.seen.map(short)).toEqual(["create 1 m", "create 1 m"]);
  expect(recorder.stats.failed).toBe(2);
  expect(problems[0]).toContain("event R of Pod ns/box was not recorded: 403 Forbidden");
});

test("a server in trouble is tried again", async () => {
  let answers = 0;
  const { server, recorder, clock } = setup(() => {
    answers += 1;
    return answers < 3 ? new Response("", { status: 503 }) : Response.json({});
  });
  recorder.record(pod, "Warning", "R", "m");
  await idleWithRetries(recorder, clock);
  expect(server.seen.map(short)).toEqual(["create 1 m", "create 1 m", "create 1 m"]);
  expect(recorder.stats).toMatchObject({ sent: 1, failed: 0 });
});

test("an answer that was lost on its way is not an event given up", async () => {
  const { server, recorder, clock } = setup();
  server.answer = () =>
    server.seen.length === 1
      ? new Response("", { status: 502 })
      : statusResponse(409, "AlreadyExists", { kind: "events" });
  recorder.record(pod, "Warning", "R", "m");
  await idleWithRetries(recorder, clock);
  server.answer = () => Response.json({});
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  expect(server.seen.map(short)).toEqual(["create 1 m", "create 1 m", "patch 2 m"]);
  expect(recorder.stats.failed).toBe(0);
});

test("what is remembered is bounded: an object long out of sight begins anew", async () => {
  const { server, recorder } = setup();
  recorder.record(pod, "Warning", "R", "m");
  for (let n = 0; n < cacheEntriesMax; n += 1) {
    recorder.record({ ...pod, name: `p${n}`, uid: `u${n}` }, "Warning", "R", "m");
    if (n % 500 === 0) await recorder.idle();
  }
  await recorder.idle();
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  expect(server.seen.at(-1)?.method).toBe("POST");
});

test("recording never waits: a full queue drops what is new and counts it", async () => {
  const { recorder } = setup(() => new Promise<Response>(() => {}));
  for (let n = 0; n < queueMax + 10; n += 1) {
    recorder.record({ ...pod, name: `p${n}`, uid: `u${n}` }, "Warning", "R", "m");
  }
  // Two are on their way.
  expect(recorder.stats.overflow).toBe(8);
});

test("Normal events can be switched off, Warnings cannot", async () => {
  const { server, recorder } = setup(() => Response.json({}), { disableNormal: true });
  recorder.record(pod, "Normal", "ProviderCreateSuccess", "m");
  recorder.record(pod, "Warning", "ProviderCreateFailed", "m");
  await recorder.idle();
  expect(server.seen).toHaveLength(1);
});

test("an event about a Node goes to the default namespace", async () => {
  const { server, recorder } = setup();
  recorder.record(
    { apiVersion: "v1", kind: "Node", namespace: "", name: "n1", uid: "u" },
    "Normal",
    "R",
    "m",
  );
  await recorder.idle();
  expect(server.asked()).toEqual(["POST /api/v1/namespaces/default/events"]);
  expect(JSON.parse(server.seen[0]?.body ?? "").involvedObject).toEqual({
    apiVersion: "v1",
    kind: "Node",
    name: "n1",
    uid: "u",
  });
});

test("a long message is cut, a long Pod name leaves room for the suffix", async () => {
  const { server, recorder } = setup();
  recorder.record(
    { ...pod, name: `${"a".repeat(229)}.${"b".repeat(20)}` },
    "Warning",
    "R",
    "x".repeat(5_000),
  );
  await recorder.idle();
  const body = JSON.parse(server.seen[0]?.body ?? "");
  expect(body.message).toHaveLength(1_024);
  expect(body.metadata.name).toMatch(/^a{229}\.[0-9a-f]+$/);
});

test("after stop nothing is recorded and idle resolves", async () => {
  const { server, recorder } = setup(() => new Promise<Response>(() => {}));
  recorder.record(pod, "Warning", "R", "m");
  recorder.stop();
  await recorder.idle();
  recorder.record(pod, "Warning", "R", "m2");
  await recorder.idle();
  expect(server.seen.length).toBeLessThanOrEqual(1);
});

test.each(["is on its way", "waits to be tried again"])("stop ends a count that %s", async (state) => {
  const { server, recorder, clock } = setup();
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  const waits = state === "waits to be tried again";
  server.answer = () => (waits ? new Response("", { status: 503 }) : new Promise<Response>(() => {}));
  recorder.record(pod, "Warning", "R", "m");
  while (server.seen.length < 2 || (waits && clock.timers === 0))
    await new Promise((resolve) => setImmediate(resolve));
  recorder.stop();
  await recorder.idle();
  expect(server.seen).toHaveLength(2);
});

test("what happened while an answer was lost is counted up after it", async () => {
  const { server, recorder, clock } = setup();
  server.answer = (seen) => {
    if (seen.method === "PATCH") return Response.json({});
    if (server.seen.length > 1) return statusResponse(409, "AlreadyExists", { kind: "events" });
    recorder.record(pod, "Warning", "R", "m");
    recorder.record(pod, "Warning", "R", "m");
    return new Response("", { status: 502 });
  };
  recorder.record(pod, "Warning", "R", "m");
  await idleWithRetries(recorder, clock);
  // The API server has the first POST's count until it is told another.
  expect(server.seen.map(short)).toEqual(["create 1 m", "create 3 m", "patch 3 m"]);
});

test("after an event was given up, the next one has another name and begins now", async () => {
  const { server, recorder, clock } = setup(() => new Response("", { status: 502 }));
  recorder.record(pod, "Warning", "R", "m");
  await idleWithRetries(recorder, clock);
  expect(recorder.stats.failed).toBe(1);
  const lost = JSON.parse(server.seen[0]?.body ?? "").metadata.name;
  // One of the answers was lost, and the event is there.
  server.answer = (seen) =>
    JSON.parse(seen.body).metadata.name === lost
      ? statusResponse(409, "AlreadyExists", { kind: "events" })
      : Response.json({});
  clock.advance(3_600_000);
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  expect(JSON.parse(server.seen.at(-1)?.body ?? "")).toMatchObject({
    count: 1,
    firstTimestamp: "2026-01-02T04:04:05Z",
  });
  expect(recorder.stats).toMatchObject({ sent: 1, failed: 1 });
});

test("an object that never stops is cut off also while its event is on its way", async () => {
  const { server, recorder } = setup();
  let rounds = 0;
  server.answer = () => {
    rounds += 1;
    if (rounds < 100) recorder.record(pod, "Warning", "R", "m");
    return Response.json({});
  };
  recorder.record(pod, "Warning", "R", "m");
  await recorder.idle();
  expect(server.seen).toHaveLength(spamBurst);
});

test("what is recorded because an event was refused is cut off as well", async () => {
  const again = () => recorder.record(pod, "Warning", "R", "m");
  const { server, recorder } = setup(() => statusResponse(403, "Forbidden", { kind: "events" }), {
    onProblem: () => again(),
  });
  again();
  await recorder.idle();
  expect(server.seen.length).toBeLessThanOrEqual(spamBurst);
  expect(server.seen.map(short)).toContain("create 1 m");
});

test("a reason and a message are not told apart by where one ends", async () => {
  const { server, recorder } = setup();
  recorder.record(pod, "Warning", "A/b", "c");
  recorder.record(pod, "Warning", "A", "b/c");
  await recorder.idle();
  expect(server.seen.map((seen) => seen.method)).toEqual(["POST", "POST"]);
});

import { beforeEach, expect, test } from "bun:test";
import { type FakeClock, fakeClock } from "../kube/fake-clock.ts";
import type { KubeReply, RequestOptions } from "../kube/index.ts";
import { type Authorizer, authorizer, certificateUser } from "./auth.ts";

let clock: FakeClock;
let asked: { path: string; spec: Record<string, unknown>; options: RequestOptions }[];
let answer: (path: string, spec: Record<string, unknown>) => KubeReply;
let auth: Authorizer;

const reply = (body: unknown): KubeReply => ({ ok: true, status: 201, body });
const user = (username: string) =>
  reply({ kind: "TokenReview", status: { authenticated: true, user: { username, groups: ["g"] } } });
const access = (allowed: boolean) => reply({ kind: "SubjectAccessReview", status: { allowed } });
const away: KubeReply = { ok: false, kind: "network", message: "connection refused" };

beforeEach(() => {
  clock = fakeClock();
  asked = [];
  answer = (path, spec) => (path.endsWith("tokenreviews") ? user(`user-of-${spec.token}`) : access(true));
  auth = authorizer({
    kube: {
      request(_method, path, options = {}) {
        const { spec } = options.body as { spec: Record<string, unknown> };
        asked.push({ path, spec, options });
        return Promise.resolve(answer(path, spec));
      },
    },
    nodeName: "vk-1",
    clock,
  });
});

const decide = (authorization: string | undefined, subresource: "proxy" | "stats" | "metrics" = "metrics") =>
  auth.decide(undefined, authorization, "get", subresource);

test("a bearer token is reviewed, then its user's access to the node's subresource", async () => {
  expect(await decide("Bearer t")).toEqual({
    ok: true,
    user: { username: "user-of-t", groups: ["g"], uid: undefined, extra: undefined },
  });
  expect(asked.map(({ path }) => path.split("/").at(-1))).toEqual(["tokenreviews", "subjectaccessreviews"]);
  expect(asked[1]?.spec).toMatchObject({
    user: "user-of-t",
    groups: ["g"],
    resourceAttributes: {
      verb: "get",
      version: "v1",
      resource: "nodes",
      subresource: "metrics",
      name: "vk-1",
    },
  });
  for (const { options } of asked) expect(options.exempt).toBe(true);
});

test("a client certificate's user is asked for access only", async () => {
  const kubelet = { username: "kube-apiserver", groups: ["system:masters"] };
  expect(await auth.decide(kubelet, undefined, "get", "proxy")).toEqual({ ok: true, user: kubelet });
  expect(asked.map(({ path }) => path.split("/").at(-1))).toEqual(["subjectaccessreviews"]);
});

test("no credentials, or ones of another kind, are 401 without a question to the API server", async () => {
  for (const header of [undefined, "", "Bearer", "Bearer ", "Basic dTpw", "Bearer a b", "Token t"])
    expect(await decide(header)).toMatchObject({ ok: false, status: 401 });
  expect(asked).toEqual([]);
});

test("a token that the API server does not know is 401, and is remembered for a moment", async () => {
  answer = () => reply({ kind: "TokenReview", status: {} });
  expect(await decide("Bearer t")).toMatchObject({ ok: false, status: 401 });
  expect(await decide("Bearer t")).toMatchObject({ ok: false, status: 401 });
  expect(asked.length).toBe(1);
  clock.advance(10_001);
  await decide("Bearer t");
  expect(asked.length).toBe(2);
});

test("a user without the permission is 403 with the permission's name", async () => {
  answer = (path) => (path.endsWith("tokenreviews") ? user("eve") : access(false));
  expect(await decide("Bearer t", "stats")).toMatchObject({
    ok: false,
    status: 403,
    message: expect.stringMatching(/"eve".*nodes\/stats/),
  });
});

test("denied outweighs allowed", async () => {
  answer = (path) =>
    path.endsWith("tokenreviews")
      ? user("eve")
      : reply({ kind: "SubjectAccessReview", status: { allowed: true, denied: true } });
  expect(await decide("Bearer t")).toMatchObject({ ok: false, status: 403 });
});

test("an API server that is away, or answers nonsense, lets nobody in and is asked again", async () => {
  for (const nonsense of [away, reply({}), reply({ kind: "Status" }), reply(null)]) {
    answer = () => nonsense;
    expect(await decide("Bearer t")).toMatchObject({ ok: false, status: 503 });
  }
  answer = (path) =>
    path.endsWith("tokenreviews")
      ? user("a")
      : reply({ kind: "SubjectAccessReview", status: { allowed: "true" } });
  expect(await decide("Bearer t")).toMatchObject({ ok: false, status: 503 });
  answer = (path) => (path.endsWith("tokenreviews") ? user("a") : access(true));
  expect(await decide("Bearer t")).toMatchObject({ ok: true });
});

test("a user without a name is nobody", async () => {
  answer = () => reply({ kind: "TokenReview", status: { authenticated: true, user: { username: "" } } });
  expect(await decide("Bearer t")).toMatchObject({ ok: false, status: 401 });
});

test("a yes is remembered for a minute, for that token and that subresource only", async () => {
  await decide("Bearer t");
  await decide("Bearer t");
  expect(asked.length).toBe(2);
  await decide("Bearer t", "stats");
  expect(asked.length).toBe(3);
  await decide("Bearer u");
  expect(asked.length).toBe(5);
  clock.advance(60_001);
  await decide("Bearer t");
  expect(asked.length).toBe(7);
});

test("a yes is forgotten, not kept for a day, when the clock is set back by a day", async () => {
  await decide("Bearer t");
  clock.advance(-86_400_000);
  answer = () => reply({ kind: "TokenReview", status: { authenticated: false } });
  expect(await decide("Bearer t")).toMatchObject({ ok: false, status: 401 });
});

test("the same question at once is asked once", async () => {
  await Promise.all(Array.from({ length: 50 }, () => decide("Bearer t")));
  expect(asked.length).toBe(2);
});

test("a stranger with random tokens cannot flood the API server", async () => {
  answer = () => reply({ kind: "TokenReview", status: {} });
  const results = [];
  for (let i = 0; i < 1000; i++) results.push(await decide(`Bearer t${i}`));
  expect(asked.length).toBe(20);
  expect(results.at(-1)).toMatchObject({ ok: false, status: 429 });
  clock.advance(1000);
  for (let i = 0; i < 100; i++) await decide(`Bearer u${i}`);
  expect(asked.length).toBe(30);
});

test("a token is not kept: neither in the answer nor in a message", async () => {
  answer = () => away;
  expect(JSON.stringify(await decide("Bearer very-secret"))).not.toContain("very-secret");
});

test("a certificate's user is its common name, its groups the organizations", () => {
  expect(certificateUser("O=a\nO=b\nCN=x")).toEqual({
    username: "x",
    groups: ["a", "b", "system:authenticated"],
  });
  expect(certificateUser("O=a")).toBeUndefined();
  expect(certificateUser("CN=")).toBeUndefined();
  expect(certificateUser("CN=a\nCN=b")).toBeUndefined();
});

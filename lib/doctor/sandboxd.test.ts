import { type Case, goodInfo, nowMs, type Spoilt, tableOf, testCases } from "./fixtures.ts";
import type { SandboxdProbe } from "./probes.ts";

const refused = {
  ok: false as const,
  why: "healthz at http://127.0.0.1:7777: connection refused (ECONNREFUSED)",
};
const away: Spoilt = {
  sandboxd: {
    healthz: async () => refused,
    info: async () => refused,
    list: async () => refused,
    version: async () => undefined,
  },
};
const withSandboxd = (sandboxd: Partial<SandboxdProbe>): Spoilt => ({ sandboxd });
const withInfo = (change: Partial<typeof goodInfo>): Spoilt =>
  withSandboxd({ info: async () => ({ ok: true, info: { ...goodInfo, ...change } }) });
const code = (status: number) => async () => ({ ok: false as const, why: `HTTP ${status}`, status });
const pool = (template: string, warm: number, target: number) => ({
  template,
  net: "none",
  size: "small",
  warm,
  target,
});
const row = (id: string) => ({
  id,
  template: "img:1",
  net: "none",
  size: "small",
  deadlineMs: 0,
  hibernated: false,
  claimRef: "",
});

/** A sandboxd whose calls take so long: the clock moves by it at each look. */
function slow(ms: number): Spoilt {
  let at = nowMs;
  return {
    clock: () => {
      at += ms;
      return at;
    },
  };
}

const cases: Case[] = [
  { id: "sandboxd.url", when: "it is loopback", status: "pass" },
  {
    id: "sandboxd.url",
    when: "it is TLS elsewhere",
    flags: { "sandboxd-url": "https://10.0.0.9:7777", "sandboxd-token-file": "/t" },
    status: "pass",
  },
  {
    id: "sandboxd.url",
    when: "the token would cross the network in the clear",
    flags: { "sandboxd-url": "http://10.0.0.9:7777", "sandboxd-token-file": "/t" },
    status: "warn",
    says: ["10.0.0.9", "https://"],
  },
  {
    id: "sandboxd.url",
    when: "there is no token to read on the way",
    flags: { "sandboxd-url": "http://10.0.0.9:7777" },
    status: "pass",
  },
  {
    id: "sandboxd.url",
    when: "it is IPv6 loopback",
    flags: { "sandboxd-url": "http://[::1]:7777", "sandboxd-token-file": "/t" },
    status: "pass",
  },

  {
    id: "sandboxd.token-file",
    when: "it can be used",
    flags: { "sandboxd-token-file": "/etc/sandboxd/api-token" },
    status: "pass",
    says: ["/etc/sandboxd/api-token"],
  },
  {
    id: "sandboxd.token-file",
    when: "none is given",
    spoilt: withSandboxd({ token: () => ({ kind: "none" }) }),
    status: "skipped",
  },
  {
    id: "sandboxd.token-file",
    when: "its group can read it",
    flags: { "sandboxd-token-file": "/t" },
    spoilt: withSandboxd({ token: () => ({ kind: "read", warning: "token file /t is open to its group" }) }),
    status: "warn",
    says: ["chmod 600 /t"],
  },
  {
    id: "sandboxd.token-file",
    when: "it is empty",
    flags: { "sandboxd-token-file": "/t" },
    spoilt: withSandboxd({ token: () => ({ kind: "bad", reason: "token file /t is empty" }) }),
    status: "fail",
    says: ["empty", "0600"],
  },

  { id: "sandboxd.reachable", when: "it answers", status: "pass" },
  {
    id: "sandboxd.reachable",
    when: "nobody listens",
    spoilt: away,
    status: "fail",
    says: ["ECONNREFUSED", "systemctl status sandboxd"],
  },
  {
    id: "sandboxd.reachable",
    when: "something else answers",
    spoilt: withSandboxd({ healthz: code(404) }),
    status: "fail",
    says: ["404"],
  },

  { id: "sandboxd.version", when: "it tells", status: "pass", says: ["1.4.0"] },
  {
    id: "sandboxd.version",
    when: "it does not tell",
    spoilt: withSandboxd({ version: async () => undefined }),
    status: "skipped",
    says: ["does not tell"],
  },
  {
    id: "sandboxd.version",
    when: "it is away",
    spoilt: away,
    status: "skipped",
    says: ["sandboxd.reachable"],
  },

  { id: "sandboxd.token", when: "it is root's", status: "pass", says: ["root"] },
  {
    id: "sandboxd.token",
    when: "it is a tenant's",
    flags: { "sandboxd-token-file": "/t" },
    spoilt: withSandboxd({ info: code(403) }),
    status: "fail",
    says: ["tenant", "403", "/t"],
  },
  {
    id: "sandboxd.token",
    when: "sandboxd does not know it",
    flags: { "sandboxd-token-file": "/t" },
    spoilt: withSandboxd({ info: code(401) }),
    status: "fail",
    says: ["401", "/t"],
  },
  {
    id: "sandboxd.token",
    when: "one is asked for and none is given",
    spoilt: withSandboxd({ token: () => ({ kind: "none" }), info: code(401) }),
    status: "fail",
    says: ["--sandboxd-token-file"],
  },
  {
    id: "sandboxd.token",
    when: "sandboxd asks for none",
    spoilt: withInfo({}),
    status: "warn",
    says: ["asks for no token", "means nothing"],
  },
  {
    id: "sandboxd.token",
    when: "sandboxd asks for none and none is given",
    spoilt: withSandboxd({
      token: () => ({ kind: "none" }),
      info: async () => ({ ok: true, info: goodInfo }),
    }),
    status: "warn",
    says: ["api_token"],
  },
  {
    id: "sandboxd.token",
    when: "the token file cannot be used",
    spoilt: withSandboxd({ token: () => ({ kind: "bad", reason: "x" }) }),
    status: "skipped",
    says: ["sandboxd.token-file"],
  },
  {
    id: "sandboxd.token",
    when: "sandboxd is away",
    spoilt: away,
    status: "skipped",
    says: ["sandboxd.reachable"],
  },
  {
    id: "sandboxd.token",
    when: "the answer is no info",
    spoilt: withSandboxd({ info: code(500) }),
    status: "fail",
    says: ["500"],
  },

  { id: "sandboxd.latency", when: "calls are quick", status: "pass" },
  {
    id: "sandboxd.latency",
    when: "a call takes 300 ms",
    spoilt: slow(300),
    status: "warn",
    says: ["300 ms"],
  },
  { id: "sandboxd.latency", when: "a call takes 3 s", spoilt: slow(3000), status: "fail", says: ["3 s"] },
  { id: "sandboxd.latency", when: "sandboxd is away", spoilt: away, status: "skipped" },

  { id: "sandboxd.pools", when: "all are warm", status: "pass", says: ["img:1/none/small 3/4"] },
  {
    id: "sandboxd.pools",
    when: "there are none",
    spoilt: withInfo({ pools: [] }),
    status: "warn",
    says: ["no pool"],
  },
  {
    id: "sandboxd.pools",
    when: "one is empty",
    spoilt: withInfo({ pools: [pool("a", 2, 2), pool("b", 0, 3)] }),
    status: "warn",
    says: ["b/none/small (0/3)", "refill"],
  },
  {
    id: "sandboxd.pools",
    when: "one is meant to be empty",
    spoilt: withInfo({ pools: [pool("b", 0, 0)] }),
    status: "warn",
    says: ["target is 0"],
  },
  {
    id: "sandboxd.pools",
    when: "many are empty",
    spoilt: withInfo({ pools: Array.from({ length: 9 }, (_, i) => pool(`t${i}`, 0, 1)) }),
    status: "warn",
    says: ["and 5 more"],
  },
  {
    id: "sandboxd.pools",
    when: "the token may not ask",
    spoilt: withSandboxd({ info: code(403) }),
    status: "skipped",
    says: ["sandboxd.token"],
  },

  { id: "sandboxd.draining", when: "it is not", status: "pass" },
  {
    id: "sandboxd.draining",
    when: "it is",
    spoilt: withInfo({ draining: true }),
    status: "warn",
    says: ["DELETE /v1/drain"],
  },

  { id: "sandboxd.capacity", when: "room is left", status: "pass", says: ["2 claims"] },
  {
    id: "sandboxd.capacity",
    when: "it is used up",
    spoilt: withInfo({ atCapacity: true, atCapacityReason: "memory" }),
    status: "warn",
    says: ["memory"],
  },
  {
    id: "sandboxd.capacity",
    when: "it is used up and does not say why",
    spoilt: withInfo({ atCapacity: true }),
    status: "warn",
    says: ["does not say why"],
  },
  { id: "sandboxd.capacity", when: "sandboxd is away", spoilt: away, status: "skipped" },

  { id: "sandboxd.index", when: "nothing is held", status: "pass", says: ["no claim"] },
  {
    id: "sandboxd.index",
    when: "every claim is listed",
    spoilt: {
      sandboxd: { list: async () => ({ ok: true, rows: [row("sb_1"), row("sb_x")] }) },
      state: { table: () => tableOf(["a/b", {}]) },
    },
    status: "pass",
    says: ["2 sandboxes"],
  },
  {
    id: "sandboxd.index",
    when: "a claim is not listed",
    spoilt: {
      sandboxd: { list: async () => ({ ok: true, rows: [row("sb_1")] }) },
      state: { table: () => tableOf(["a/b", {}], ["a/c", { id: "sb_2" }]) },
    },
    status: "warn",
    says: ["a/c (sb_2)", "vk-sandbox audit sb_2"],
  },
  {
    id: "sandboxd.index",
    when: "no claim at all is listed",
    spoilt: { state: { table: () => tableOf(["a/b", {}], ["a/c", { id: "sb_2" }]) } },
    status: "fail",
    says: ["none of the table's 2 claims", "--sandboxd-url"],
  },
  {
    id: "sandboxd.index",
    when: "a claim was made just now",
    spoilt: { state: { table: () => tableOf(["a/b", { claimedAtMs: nowMs - 500 }]) } },
    status: "pass",
  },
  {
    id: "sandboxd.index",
    when: "the table cannot be read",
    spoilt: { state: { table: () => ({ ok: false, kind: "malformed", message: "x" }) } },
    status: "pass",
    says: ["state.table"],
  },
  {
    id: "sandboxd.index",
    when: "the token may not list",
    spoilt: withSandboxd({ list: code(403) }),
    status: "skipped",
  },
  {
    id: "sandboxd.index",
    when: "the answer is no listing",
    spoilt: withSandboxd({ list: code(200) }),
    status: "fail",
  },
  { id: "sandboxd.index", when: "sandboxd is away", spoilt: away, status: "skipped" },

  { id: "sandboxd.advertise", when: "nothing is published", status: "skipped" },
  {
    id: "sandboxd.advertise",
    when: "the URL's loopback address would be published",
    flags: { "publish-inventory": "true" },
    status: "warn",
    says: ["127.0.0.1:7777", "10.0.0.5:7777"],
  },
  {
    id: "sandboxd.advertise",
    when: "IPv6 loopback would be published",
    flags: { "publish-inventory": "true", "sandboxd-advertise-addr": "[::1]:7777" },
    status: "warn",
    says: ["10.0.0.5:7777"],
  },
  {
    id: "sandboxd.advertise",
    when: "an address of the network is published",
    flags: { "publish-inventory": "true", "sandboxd-advertise-addr": "10.0.0.5:7777" },
    status: "pass",
  },
];

testCases(cases);

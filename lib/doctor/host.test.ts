import { describe, expect, test } from "bun:test";
import { X509Certificate } from "node:crypto";
import { certificates } from "./fixture-certificates.ts";
import {
  type Case,
  clusterOf,
  daemonRuns,
  goodAnswers,
  noCluster,
  nowMs,
  outcomeOf,
  testCases,
} from "./fixtures.ts";

const taken = async () => ({ ok: false as const, code: "EADDRINUSE" });
const skew = (ms: number) =>
  clusterOf(goodAnswers, { ok: true, serverMs: nowMs, localMs: nowMs + ms, roundTripMs: 10 });

const cases: Case[] = [
  { id: "host.architecture", when: "the host is arm64", spoilt: { host: { arch: "arm64" } }, status: "pass" },
  {
    id: "host.architecture",
    when: "the host is s390x",
    spoilt: { host: { arch: "s390x" } },
    status: "fail",
    says: ["s390x"],
  },
  {
    id: "host.architecture",
    when: "it is no Linux",
    spoilt: { host: { platform: "darwin" } },
    status: "fail",
    says: ["darwin"],
  },
  { id: "host.kernel", when: "the kernel is 5.6", spoilt: { host: { kernel: "5.6.0" } }, status: "pass" },
  {
    id: "host.kernel",
    when: "the kernel is 5.4",
    spoilt: { host: { kernel: "5.4.0-150-generic" } },
    status: "warn",
    says: ["5.4.0", "5.6"],
  },
  {
    id: "host.kernel",
    when: "the kernel is 4.18",
    spoilt: { host: { kernel: "4.18.0-553" } },
    status: "fail",
  },
  {
    id: "host.kernel",
    when: "the kernel's release is no version",
    spoilt: { host: { kernel: "custom" } },
    status: "warn",
  },
  {
    id: "host.libc",
    when: "it is musl",
    spoilt: { host: { libc: () => ({ kind: "musl", version: "" }) } },
    status: "pass",
    says: ["musl"],
  },
  {
    id: "host.libc",
    when: "it is neither",
    spoilt: { host: { libc: () => ({ kind: "unknown", version: "" }) } },
    status: "warn",
    says: ["Alpine"],
  },
  {
    id: "host.open-files",
    when: "the hard limit is 1024",
    spoilt: { host: { openFiles: () => ({ soft: 256, hard: 1024 }) } },
    status: "warn",
    says: ["1024", "LimitNOFILE"],
  },
  {
    id: "host.open-files",
    when: "the hard limit is 256",
    spoilt: { host: { openFiles: () => ({ soft: 256, hard: 256 }) } },
    status: "fail",
  },
  {
    id: "host.open-files",
    when: "the running daemon has fewer than this shell",
    spoilt: {
      state: daemonRuns,
      host: { openFiles: (pid) => (pid === 4711 ? { soft: 300, hard: 300 } : { soft: 9999, hard: 9999 }) },
    },
    status: "fail",
    says: ["300", "running daemon"],
  },
  {
    id: "host.open-files",
    when: "/proc does not tell",
    spoilt: { host: { openFiles: () => undefined } },
    status: "skipped",
  },
  { id: "host.clock", when: "the clocks agree", status: "pass" },
  {
    id: "host.clock",
    when: "the clock is 20 s ahead",
    spoilt: { cluster: skew(20_000) },
    status: "warn",
    says: ["20 s ahead", "timedatectl"],
  },
  {
    id: "host.clock",
    when: "the clock is 2 min behind",
    spoilt: { cluster: skew(-120_000) },
    status: "fail",
    says: ["behind"],
  },
  {
    id: "host.clock",
    when: "the difference is within what a Date header can tell",
    spoilt: { cluster: skew(900) },
    status: "pass",
  },
  {
    id: "host.clock",
    when: "there is no cluster",
    spoilt: { cluster: noCluster },
    status: "skipped",
    says: ["cluster.credentials"],
  },
  {
    id: "host.clock",
    when: "the reply has no Date",
    spoilt: { cluster: clusterOf(goodAnswers, { ok: false, why: "its reply carries no Date" }) },
    status: "skipped",
  },
  { id: "host.port", when: "the port is free", status: "pass" },
  { id: "host.port", when: "the kernel chooses it", flags: { "listen-addr": ":0" }, status: "pass" },
  {
    id: "host.port",
    when: "the running provider has it",
    spoilt: {
      state: daemonRuns,
      host: { tryListen: taken, listener: () => ({ pid: 4711, name: "vk-sandbox" }) },
    },
    status: "pass",
    says: ["4711"],
  },
  {
    id: "host.port",
    when: "another program has it",
    spoilt: { host: { tryListen: taken, listener: () => ({ pid: 12, name: "nginx" }) } },
    status: "fail",
    says: ["nginx", "12", ":10261"],
  },
  {
    id: "host.port",
    when: "another program has it while our daemon runs",
    spoilt: { state: daemonRuns, host: { tryListen: taken, listener: () => ({ pid: 12, name: "nginx" }) } },
    status: "fail",
  },
  {
    id: "host.port",
    when: "nobody may see who has it",
    spoilt: { host: { tryListen: taken, listener: () => ({ pid: 0, name: "" }) } },
    status: "fail",
    says: ["ss -ltnp"],
  },
  {
    id: "host.port",
    when: "nobody may see who has it while our daemon runs",
    spoilt: { state: daemonRuns, host: { tryListen: taken, listener: () => ({ pid: 0, name: "" }) } },
    status: "pass",
  },
  {
    id: "host.port",
    when: "the daemon runs and does not listen there",
    spoilt: { state: daemonRuns },
    status: "warn",
    says: ["4711"],
  },
  {
    id: "host.port",
    when: "the address is not this host's",
    flags: { "listen-addr": "10.9.9.9:10260" },
    spoilt: { host: { tryListen: async () => ({ ok: false, code: "EADDRNOTAVAIL" }) } },
    status: "fail",
    says: ["10.9.9.9", "10.0.0.5"],
  },
  {
    id: "host.port",
    when: "the port is privileged",
    flags: { "listen-addr": ":443" },
    spoilt: { host: { tryListen: async () => ({ ok: false, code: "EACCES" }) } },
    status: "fail",
    says: ["CAP_NET_BIND_SERVICE"],
  },
  {
    id: "host.port",
    when: "listening fails otherwise",
    spoilt: { host: { tryListen: async () => ({ ok: false, code: "EINVAL" }) } },
    status: "fail",
    says: ["EINVAL"],
  },
  { id: "host.address", when: "the address is this host's", status: "pass" },
  {
    id: "host.address",
    when: "an IPv6 address is written in another form",
    flags: { "node-ip": "fd00:0:0:0:0:0:0:5" },
    status: "pass",
  },
  {
    id: "host.address",
    when: "there is none",
    flags: { "node-ip": "" },
    status: "warn",
    says: ["--node-ip"],
  },
  {
    id: "host.address",
    when: "it is a loopback address",
    flags: { "node-ip": "127.0.0.1" },
    status: "warn",
    says: ["loopback"],
  },
  {
    id: "host.address",
    when: "it is nobody's here",
    flags: { "node-ip": "10.0.0.77" },
    status: "warn",
    says: ["10.0.0.77", "NAT"],
  },
  {
    id: "host.address",
    when: "the kubelet API listens elsewhere",
    flags: { "listen-addr": "127.0.0.1:10260" },
    status: "warn",
    says: ["127.0.0.1"],
  },
  {
    id: "host.address",
    when: "the kubelet API listens on all IPv6 addresses",
    flags: { "listen-addr": "[::]:10260" },
    status: "pass",
  },
  { id: "host.certificate", when: "none is given", status: "pass", says: ["self-signed"] },
  {
    id: "host.certificate",
    when: "the file is missing",
    flags: { "tls-cert": "/c", "tls-key": "/k" },
    status: "fail",
    says: ["/c does not exist"],
  },
  {
    id: "host.certificate",
    when: "the file may not be read",
    flags: { "tls-cert": "/c", "tls-key": "/k" },
    spoilt: { host: { readText: () => ({ ok: false, code: "EACCES" }) } },
    status: "fail",
    says: ["EACCES"],
  },
  {
    id: "host.certificate",
    when: "the file is no certificate",
    flags: { "tls-cert": "/c", "tls-key": "/k" },
    spoilt: { host: { readText: () => ({ ok: true, text: "hello" }) } },
    status: "fail",
    says: ["PEM"],
  },
  {
    id: "host.certificate",
    when: "the client CA is no certificate",
    flags: { "client-ca-file": "/ca" },
    spoilt: { host: { readText: () => ({ ok: true, text: "hello" }) } },
    status: "fail",
    says: ["/ca"],
  },
  { id: "host.cocoon", when: "there is none", status: "pass" },
  {
    id: "host.cocoon",
    when: "it lives here under another name",
    spoilt: { host: { cocoon: () => [{ pid: 7, name: "vk-cocoon", nodeName: "cocoon-pool" }] } },
    status: "pass",
    says: ["cocoon-pool"],
  },
  {
    id: "host.cocoon",
    when: "it has our node name",
    spoilt: { host: { cocoon: () => [{ pid: 7, name: "vk-cocoon", nodeName: "vk-1" }] } },
    status: "fail",
    says: ["VK_NODE_NAME", "vk-1"],
  },
  {
    id: "host.cocoon",
    when: "its node name may not be read",
    spoilt: { host: { cocoon: () => [{ pid: 7, name: "vk-cocoon" }] } },
    status: "warn",
    says: ["vk-1"],
  },
  {
    id: "host.cocoon",
    when: "we are to listen on the kubelet's port",
    flags: { "listen-addr": ":10250" },
    spoilt: { host: { listener: () => ({ pid: 9, name: "kubelet" }) } },
    status: "warn",
    says: ["10250", "kubelet", ":10260"],
  },
  { id: "host.node-name", when: "it is no host's name", status: "pass" },
  {
    id: "host.node-name",
    when: "it is this host's name",
    flags: { "node-name": "host-1" },
    status: "warn",
    says: ["host-1"],
  },
  {
    id: "host.node-name",
    when: "it is this host's short name",
    flags: { "node-name": "host-1" },
    spoilt: { host: { hostname: "HOST-1.example.com" } },
    status: "warn",
  },
  { id: "host.labels", when: "they are the default", status: "pass" },
  {
    id: "host.labels",
    when: "the runtime label is missing",
    flags: { "node-labels": "zone=a" },
    status: "warn",
    says: ["sandbox.cocoonstack.io/runtime=sandboxd"],
  },
  {
    id: "host.labels",
    when: "the runtime label says something else",
    flags: { "node-labels": "sandbox.cocoonstack.io/runtime=kata" },
    status: "warn",
    says: ["kata"],
  },
  {
    id: "host.labels",
    when: "they take vk-cocoon's Pods",
    flags: { "node-labels": "sandbox.cocoonstack.io/runtime=sandboxd,cocoonstack.io/pool=default" },
    status: "fail",
    says: ["cocoonstack.io/pool"],
  },
];

testCases(cases);

describe("host.certificate, with certificates", () => {
  const madeAt = Date.parse(new X509Certificate(certificates.good).validFrom);
  const dayMs = 24 * 3_600_000;
  type Name = keyof typeof certificates;
  const run = (cert: Name, key: Name, now = madeAt + dayMs) =>
    outcomeOf(
      "host.certificate",
      { host: { readText: (path) => ({ ok: true, text: certificates[path as Name] }) }, now },
      { "tls-cert": cert, "tls-key": key },
    );

  test("passes with a certificate that names the Node's address, and its key", async () => {
    expect((await run("good", "key")).status).toBe("pass");
  });

  test("fails with another certificate's key", async () => {
    const outcome = await run("good", "other");
    expect(outcome.status).toBe("fail");
    expect(outcome.found).toContain("not the private key");
  });

  test("fails when the key is no key at all", async () => {
    expect((await run("good", "elsewhere")).status).toBe("fail");
  });

  test("warns of a certificate for another address", async () => {
    const outcome = await run("elsewhere", "key");
    expect(outcome.status).toBe("warn");
    expect(outcome.found).toContain("does not name 10.0.0.5");
  });

  test("warns of a certificate that is about to expire, and fails with one that has", async () => {
    expect((await run("good", "key", madeAt + 95 * dayMs)).status).toBe("warn");
    const expired = await run("good", "key", madeAt + 110 * dayMs);
    expect(expired.status).toBe("fail");
    expect(expired.found).toContain("expired");
  });

  test("fails with a certificate that is not valid yet", async () => {
    const early = await run("good", "key", madeAt - 10 * dayMs);
    expect(early.status).toBe("fail");
    expect(early.found).toContain("valid only from");
  });
});

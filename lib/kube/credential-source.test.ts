import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, rmSync, unlinkSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createCredentialSource, execRetryMs, fileCheckMs } from "./credential-source.ts";
import { type ExecPlugin, type ExecResult, execTimeoutMs, runExecPlugin } from "./exec-plugin.ts";
import { fakeClock } from "./fake-clock.ts";
import * as pki from "./test-pki.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "credential-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

let writes = 0;
function write(name: string, content: string): string {
  const path = join(dir, name);
  writeFileSync(path, content);
  // Tests write faster than some file systems tell times apart.
  writes += 1;
  utimesSync(path, 1_700_000_000 + writes, 1_700_000_000 + writes);
  return path;
}
const before = { cert: pki.clientCert, key: pki.clientKey };
const after = { cert: pki.renewedCert, key: pki.renewedKey };
const pem = (kind: string, body: string) => `-----BEGIN ${kind}-----\n${body}\n-----END ${kind}-----\n`;

test("files are looked at now and then, and a file that did not change keeps the very same credential", () => {
  const clock = fakeClock();
  const source = createCredentialSource({ token: { file: write("token", "t1") } }, { clock });
  const first = source.current();
  expect(first).toEqual({ authorization: "Bearer t1", tls: {} });
  clock.advance(fileCheckMs);
  expect(source.current()).toBe(first);
});

test("a file that was written anew with the same content keeps the very same credential", () => {
  const clock = fakeClock();
  const source = createCredentialSource({ token: { file: write("token", "t1") } }, { clock });
  const first = source.current();
  write("token", "t1\n");
  clock.advance(fileCheckMs);
  expect(source.current()).toBe(first);
});

test("a token that rotates leaves the TLS material, and with it the connections, alone", () => {
  const clock = fakeClock();
  const ca = write("ca", pem("CERTIFICATE", "a"));
  const token = write("token", "t1");
  const source = createCredentialSource({ token: { file: token }, ca: { file: ca } }, { clock });
  const first = source.current();
  write("token", "t2\n");
  clock.advance(fileCheckMs - 1);
  expect(source.current()).toBe(first);
  clock.advance(1);
  const second = source.current();
  expect(second).toMatchObject({ authorization: "Bearer t2" });
  if (first instanceof Promise || second instanceof Promise || !("tls" in first) || !("tls" in second)) {
    throw new Error("files need no promise");
  }
  expect(second.tls).toBe(first.tls);
});

test("a client certificate that was renewed is read again", () => {
  const clock = fakeClock();
  const cert = write("both.pem", before.cert + before.key);
  const source = createCredentialSource({ cert: { file: cert }, key: { file: cert } }, { clock });
  source.current();
  const renewed = after.cert + after.key;
  write("both.pem", renewed);
  clock.advance(fileCheckMs);
  expect(source.current()).toEqual({ authorization: "", tls: { cert: renewed, key: renewed } });
});

describe("half a rotation keeps the whole last credential, and is said once", () => {
  /** Old certificate and key in files, both read; `tell` has what was said. */
  function renewing() {
    const clock = fakeClock();
    const paths = { cert: write("cert.pem", before.cert), key: write("key.pem", before.key) };
    const ca = write("ca.pem", pki.ca);
    const said: string[] = [];
    const source = createCredentialSource(
      { cert: { file: paths.cert }, key: { file: paths.key }, ca: { file: ca } },
      { clock, onProblem: (why) => said.push(why) },
    );
    const first = source.current();
    const later = () => {
      clock.advance(fileCheckMs);
      return source.current();
    };
    return { first, later, said };
  }

  test("a certificate whose key has not come yet", () => {
    const { first, later, said } = renewing();
    write("cert.pem", after.cert);
    expect(later()).toBe(first);
    expect(later()).toBe(first);
    expect(said).toEqual([
      "the client key does not belong to the client certificate; the last good one is kept",
    ]);
    write("key.pem", after.key);
    expect(later()).toMatchObject({ tls: { cert: after.cert, key: after.key } });
    expect(said.length).toBe(1);
  });

  for (const name of ["cert", "key", "ca"] as const)
    test(`a ${name} file of which a part is written`, () => {
      const { first, later, said } = renewing();
      const whole = name === "key" ? after.key : pki.ca + after.cert;
      for (const share of [0, 0.3, 0.6, 0.95]) {
        write(`${name}.pem`, whole.slice(0, Math.floor(whole.length * share)));
        expect([share, later()]).toEqual([share, first]);
      }
      expect(said.length).toBeGreaterThan(0);
      for (const why of said) expect(why).toContain("the last good one is kept");
    });

  test("a file that cannot be read is tried again although nothing about it changes", () => {
    const { first, later, said } = renewing();
    write("key.pem", "");
    expect(later()).toBe(first);
    write("cert.pem", after.cert);
    write("key.pem", after.key);
    expect(later()).toMatchObject({ tls: { cert: after.cert } });
    expect(said.join()).not.toContain(before.key.slice(40, 60));
  });
});

test("a plugin's certificate and key that do not belong together are not used", async () => {
  const { source } = execSource({ ...good(""), ok: true, cert: before.cert, key: after.key } as ExecResult);
  expect(await source.current()).toMatchObject({ why: expect.stringContaining("does not belong") });
});

test("a 401 makes it look at once", () => {
  const clock = fakeClock();
  const source = createCredentialSource({ token: { file: write("token", "t1") } }, { clock });
  const first = source.current();
  write("token", "t2");
  if (first instanceof Promise || !("tls" in first)) throw new Error("files need no promise");
  source.rejected(first);
  expect(source.current()).toMatchObject({ authorization: "Bearer t2" });
});

test("a token file that is gone or empty for a moment keeps the last good token, and is reported", () => {
  const clock = fakeClock();
  const problems: string[] = [];
  const token = write("token", "t1");
  const source = createCredentialSource(
    { token: { file: token } },
    { clock, onProblem: (why) => problems.push(why) },
  );
  const first = source.current();
  unlinkSync(token);
  clock.advance(fileCheckMs);
  expect(source.current()).toBe(first);
  write("token", " \n");
  clock.advance(fileCheckMs);
  expect(source.current()).toBe(first);
  write("token", "t2");
  clock.advance(fileCheckMs);
  expect(source.current()).toMatchObject({ authorization: "Bearer t2" });
  expect(problems).toHaveLength(2);
  expect(problems[0]).toContain("token does not exist");
  expect(problems[1]).toContain("is empty");
});

test("a file that appears later is found", () => {
  const clock = fakeClock();
  const source = createCredentialSource({ token: { file: join(dir, "token") } }, { clock });
  expect(source.current()).toMatchObject({ why: expect.stringContaining("does not exist") });
  write("token", "t1");
  clock.advance(fileCheckMs);
  expect(source.current()).toMatchObject({ authorization: "Bearer t1" });
});

const plugin: ExecPlugin = {
  apiVersion: "client.authentication.k8s.io/v1",
  command: "plugin",
  args: [],
  env: {},
  installHint: "",
};

/** A plugin whose results the test gives; `runs` counts. */
function execSource(...results: ExecResult[]) {
  const clock = fakeClock();
  const problems: string[] = [];
  const state = { runs: 0 };
  const source = createCredentialSource(
    { exec: plugin },
    {
      clock,
      onProblem: (why) => problems.push(why),
      run: async () => {
        const result = results[Math.min(state.runs, results.length - 1)];
        state.runs += 1;
        return result ?? { ok: false, why: "none" };
      },
    },
  );
  return { clock, source, problems, state };
}
function good(token: string, expiresAtMs = Number.POSITIVE_INFINITY): ExecResult {
  return { ok: true, token, cert: "", key: "", expiresAtMs };
}

test("a plugin is run once for many requests, and its credential is then at hand without a promise", async () => {
  const { source, state } = execSource(good("t1"));
  const all = await Promise.all([source.current(), source.current(), source.current()]);
  expect(all.map((one) => "authorization" in one && one.authorization)).toEqual(Array(3).fill("Bearer t1"));
  expect(source.current()).toEqual({ authorization: "Bearer t1", tls: {} });
  expect(state.runs).toBe(1);
});

test("a plugin's certificate becomes the client certificate", async () => {
  const { cert, key } = before;
  const { source } = execSource({ ...good(""), ok: true, cert, key } as ExecResult);
  expect(await source.current()).toEqual({ authorization: "", tls: { cert, key } });
});

test("a credential is renewed before it expires, without anyone waiting", async () => {
  const start = fakeClock().now();
  const { source, clock, state } = execSource(good("t1", start + 3_600_000), good("t2", start + 7_200_000));
  await source.current();
  clock.advance(3_600_000 - 60_001);
  expect(source.current()).toMatchObject({ authorization: "Bearer t1" });
  expect(state.runs).toBe(1);
  clock.advance(2);
  expect(source.current()).toMatchObject({ authorization: "Bearer t1" });
  await Promise.resolve();
  await Promise.resolve();
  await Promise.resolve();
  expect(state.runs).toBe(2);
  expect(await source.current()).toMatchObject({ authorization: "Bearer t2" });
});

test("an expired credential is never used: requests wait for the plugin, and fail as it fails", async () => {
  const start = fakeClock().now();
  const { source, clock, state, problems } = execSource(
    good("t1", start + 60_000),
    { ok: false, why: "plugin failed" },
    good("t3"),
  );
  await source.current();
  clock.advance(60_001);
  expect(await source.current()).toEqual({ why: "plugin failed" });
  expect(problems[0]).toContain("plugin failed");
  // Not run again for each request …
  expect(await source.current()).toEqual({ why: "plugin failed" });
  expect(state.runs).toBe(2);
  // … but again after a while.
  clock.advance(execRetryMs);
  expect(await source.current()).toMatchObject({ authorization: "Bearer t3" });
});

test("a plugin whose credential has expired already is a failure", async () => {
  const { source } = execSource(good("t1", 5));
  expect(await source.current()).toMatchObject({ why: expect.stringContaining("expired already") });
});

test("after a 401 the plugin is run again, but not again and again", async () => {
  const { source, state, clock } = execSource(good("t1"), good("t2"), good("t3"));
  const first = await source.current();
  if (!("authorization" in first)) throw new Error(first.why);
  source.rejected(first);
  expect(await source.current()).toBe(first);
  clock.advance(execRetryMs);
  source.rejected(first);
  expect(await source.current()).toMatchObject({ authorization: "Bearer t2" });
  expect(state.runs).toBe(2);
  // A late 401 to the old credential says nothing about the new one.
  clock.advance(execRetryMs);
  source.rejected(first);
  expect(source.current()).toMatchObject({ authorization: "Bearer t2" });
  expect(state.runs).toBe(2);
});

function script(body: string): ExecPlugin {
  const path = join(dir, "plugin");
  writeFileSync(path, `#!/bin/sh\n${body}\n`);
  chmodSync(path, 0o755);
  return { ...plugin, command: path };
}
const env = { PATH: process.env.PATH };
const answer = (status: Record<string, unknown>, apiVersion = plugin.apiVersion) =>
  `echo '${JSON.stringify({ apiVersion, kind: "ExecCredential", status })}'`;

test("a plugin's token and expiry are read", async () => {
  const run = script(answer({ token: "t", expirationTimestamp: "2026-01-02T03:04:05Z" }));
  expect(await runExecPlugin(run, env)).toEqual({
    ok: true,
    token: "t",
    cert: "",
    key: "",
    expiresAtMs: Date.parse("2026-01-02T03:04:05Z"),
  });
});

for (const [what, body, word] of [
  ["fails", 'echo "no region" >&2; exit 3', "exit code 3: no region"],
  ["writes nothing", "true", "not JSON"],
  ["writes text", "echo hello", "not JSON"],
  ["writes another kind", `echo '{"kind":"Secret"}'`, "no ExecCredential"],
  [
    "answers in another version",
    answer({ token: "t" }, "client.authentication.k8s.io/v1beta1"),
    "make them agree",
  ],
  ["gives nothing", answer({}), "neither token nor certificate"],
  ["gives a certificate without its key", answer({ clientCertificateData: "c" }), "without its key"],
  ["gives a time that is none", answer({ token: "t", expirationTimestamp: "soon" }), "no time"],
  ["writes without end", "yes", "wrote more than"],
] as const) {
  test(`a plugin that ${what} is an error`, async () => {
    const result = await runExecPlugin(script(body), env);
    expect(result.ok).toBe(false);
    expect(!result.ok && result.why).toContain(word);
  });
}

test("a plugin's complaint is repeated without what could be a secret", async () => {
  const secret = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJ4In0";
  const result = await runExecPlugin(script(`echo "token ${secret} was refused" >&2; exit 1`), env);
  expect(!result.ok && result.why).toContain("token … was refused");
  expect(JSON.stringify(result)).not.toContain(secret.slice(0, 20));
});

test("a plugin that does not end is ended", async () => {
  const clock = fakeClock();
  // The script is its own process, without a child that would keep its output open.
  const running = runExecPlugin(script(`touch "${dir}/started"; exec sleep 1000`), env, clock);
  while (!(await Bun.file(join(dir, "started")).exists()))
    await new Promise((resolve) => setImmediate(resolve));
  clock.advance(execTimeoutMs);
  const result = await running;
  expect(!result.ok && result.why).toContain("did not end within 60000 ms");
});

test("a plugin that is not there, or is no program, is an error with the install hint", async () => {
  const missing = await runExecPlugin({ ...plugin, command: "no-such-thing", installHint: "see docs" }, env);
  expect(!missing.ok && missing.why).toBe(
    "exec plugin no-such-thing of the kubeconfig is not in PATH: install it, or give its path; see docs",
  );
  const path = await runExecPlugin({ ...plugin, command: join(dir, "nothing") }, env);
  expect(!path.ok && path.why).toContain("cannot be run");
});

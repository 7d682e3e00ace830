import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileCheckMs } from "./credential-source.ts";
import { type FakeClock, fakeClock } from "./fake-clock.ts";
import { loadCluster } from "./kubeconfig.ts";
import * as pki from "./test-pki.ts";

let dir: string;
let clock: FakeClock;
let said: string[];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "kubeconfig-"));
  clock = fakeClock(Date.now());
  said = [];
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const data = (pem: string) => Buffer.from(pem).toString("base64");
const before = { "client-certificate-data": data(pki.clientCert), "client-key-data": data(pki.clientKey) };
const after = { "client-certificate-data": data(pki.renewedCert), "client-key-data": data(pki.renewedKey) };

function textOf(user: Record<string, unknown>, server = "https://127.0.0.1:6443"): string {
  return JSON.stringify({
    clusters: [{ name: "c", cluster: { server, "certificate-authority-data": data(pki.ca) } }],
    users: [{ name: "u", user }],
    contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
    "current-context": "x",
  });
}
const yamlOf = (user: Record<string, unknown>) => Bun.YAML.stringify(JSON.parse(textOf(user)), null, 2);

/** As tools do it: another file, renamed into place. */
function replace(text: string) {
  writeFileSync(join(dir, "next"), text);
  renameSync(join(dir, "next"), join(dir, "config"));
}

async function load(text: string) {
  writeFileSync(join(dir, "config"), text);
  const found = await loadCluster({
    env: {},
    kubeconfig: join(dir, "config"),
    clock,
    onProblem: (why) => said.push(why),
  });
  if (!found.ok) throw new Error(found.message);
  const { credentials } = found.cluster;
  return {
    credentials,
    /** After the time of a check: it is begun by one use and seen by a later one. */
    async later() {
      clock.advance(fileCheckMs);
      await credentials.current();
      for (let turn = 0; turn < 20; turn++) await new Promise<void>((resolve) => setImmediate(resolve));
      return credentials.current();
    },
  };
}

test("a kubeconfig that is written anew is used from then on: certificate, key and token in it", async () => {
  const { credentials, later } = await load(textOf(before));
  expect(await credentials.current()).toMatchObject({ tls: { cert: pki.clientCert } });
  replace(textOf(after));
  expect(await later()).toMatchObject({ tls: { cert: pki.renewedCert, key: pki.renewedKey } });
  replace(textOf({ token: "the-next-token" }));
  expect(await later()).toMatchObject({ authorization: "Bearer the-next-token" });
  expect(said).toEqual([]);
});

test("what did not change keeps the very same credential, and with it the connections", async () => {
  const { credentials, later } = await load(textOf(before));
  const first = await credentials.current();
  expect(await later()).toBe(first);
  replace(textOf(before));
  expect(await later()).toBe(first);
});

test("no request waits for the file to be read, unless the old credential was just refused", async () => {
  const { credentials } = await load(textOf({ token: "first-token" }));
  const first = await credentials.current();
  replace(textOf({ token: "second-token" }));
  clock.advance(fileCheckMs);
  expect(credentials.current()).toBe(first);

  const other = await load(textOf({ token: "first-token" }));
  const refused = await other.credentials.current();
  replace(textOf({ token: "second-token" }));
  if (!("tls" in refused)) throw new Error("no credential");
  other.credentials.rejected(refused);
  expect(await other.credentials.current()).toMatchObject({ authorization: "Bearer second-token" });
});

describe("half a kubeconfig keeps the last whole one, until it is whole itself", () => {
  for (const [format, text] of [
    ["JSON", textOf(after)],
    ["YAML", yamlOf(after)],
  ] as const)
    test(format, async () => {
      const { credentials, later } = await load(textOf(before));
      const first = await credentials.current();
      for (let cut = 0; cut < text.length - 2; cut += 97) {
        writeFileSync(join(dir, "config"), text.slice(0, cut));
        expect([cut, await later()]).toEqual([cut, first]);
      }
      expect(said.length).toBeGreaterThan(0);
      for (const why of said) expect(why).toContain("the last good kubeconfig is used");
      expect(said.join()).not.toContain(after["client-key-data"].slice(40, 80));
      writeFileSync(join(dir, "config"), text);
      expect(await later()).toMatchObject({ tls: { cert: pki.renewedCert } });
    });

  test("a file that is gone for a moment", async () => {
    const { credentials, later } = await load(textOf(before));
    const first = await credentials.current();
    rmSync(join(dir, "config"));
    expect(await later()).toBe(first);
    replace(textOf(after));
    expect(await later()).toMatchObject({ tls: { cert: pki.renewedCert } });
  });
});

test("another API server is not changed to under way: that is said, with what to do", async () => {
  const { credentials, later } = await load(textOf(before));
  const first = await credentials.current();
  replace(textOf(after, "https://10.0.0.1:6443"));
  expect(await later()).toBe(first);
  expect(await later()).toBe(first);
  expect(said).toEqual([expect.stringMatching(/another API server .*restart to use it/)]);
});

/**
 * Credentials that are replaced while the compiled daemon serves: each is read again without a restart, half a
 * rotation keeps what works, and nothing that was in use is refused in between.
 */
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { issue } from "../../lib/kubelet/certificate.ts";
import { type AuditEntry, controlPlane, World } from "./world.ts";

const serviceAccount = {
  user: "system:serviceaccount:vk-sandbox:vk-sandbox",
  groups: ["system:serviceaccounts", "system:serviceaccounts:vk-sandbox"],
};
const dir = mkdtempSync(join(tmpdir(), "vk-rotation-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** As careful tools do it. */
function replace(path: string, text: string): void {
  writeFileSync(`${path}.next`, text, { mode: 0o600 });
  renameSync(`${path}.next`, path);
}

/** As careless ones do it, seen in the middle. */
function halfWrite(path: string, text: string): void {
  writeFileSync(path, text.slice(0, text.length / 2), { mode: 0o600 });
}

/** How the API server names the credential of a request in its audit log. */
const credentialOf = (entry: AuditEntry) =>
  entry.user.extra?.["authentication.kubernetes.io/credential-id"]?.[0];
const idOfCertificate = (pem: string) => {
  const der = Buffer.from(pem.replace(/-----[^-]+-----|\s/g, ""), "base64");
  return `X509SHA256=${new Bun.CryptoHasher("sha256").update(der).digest("hex")}`;
};
const idOfToken = (token: string) => {
  const payload = Buffer.from(token.split(".")[1] ?? "", "base64url").toString();
  return `JTI=${(JSON.parse(payload) as { jti: string }).jti}`;
};

/** Requests of this world's daemon, which alone writes its Node's lease and its Pods. */
const ofDaemon = (world: World) => world.requests().filter((entry) => entry.requestURI.includes(world.name));

async function usesCredential(world: World, id: string): Promise<void> {
  await world.eventually("the daemon's requests carry the new credential", () =>
    ofDaemon(world).some((entry) => credentialOf(entry) === id),
  );
}

const said = (world: World, words: RegExp) => world.daemon.log.filter((line) => words.test(line));

/** A Pod runs and is gone again: watch, claim, status, delete, release all work. */
async function serves(world: World, name: string): Promise<void> {
  await world.createPod(name);
  await world.running(name);
  await world.api.delete(world.podPath(name));
  await world.gone(world.podPath(name));
}

function noneRefused(world: World): void {
  const refused = ofDaemon(world).filter((entry) => [401, 403].includes(entry.responseStatus?.code ?? 0));
  expect(refused.map((entry) => `${entry.verb} ${entry.requestURI}`)).toEqual([]);
}

test.concurrent("sandboxd's token, rotated while Pods come and go: every Pod runs, and no VM is left over", async () => {
  await using world = await World.create({ noController: true, warm: 5_000 });
  const tokenFile = join(world.dir, "token");
  const tokens = [1, 2].map((n) => `rotated-${n}-${crypto.randomUUID()}`);
  let made = 0;
  let churning = true;
  const churn = (async () => {
    while (churning) {
      await world.createPod(`churn-${made++}`);
      // Twenty live at a time.
      if (made > 20) await world.api.delete(world.podPath(`churn-${made - 21}`));
      await Bun.sleep(100);
    }
  })();

  try {
    for (const token of tokens) {
      halfWrite(tokenFile, "");
      const lines = said(world, /token could not be read/).length;
      await world.eventually(
        "half a rotation is said",
        () => said(world, /token could not be read; the last one is kept/).length > lines,
      );
      await serves(world, `between-${made}`);
      world.sandboxd.control.setToken(token);
      replace(tokenFile, `${token}\n`);
      const at = made;
      await world.eventually("Pods are made after the rotation", () => made > at + 5);
    }
  } finally {
    churning = false;
    await churn;
  }
  const pods = await world.eventually(
    "every Pod runs",
    () => world.pods(),
    (all) =>
      all.every((pod) => pod.metadata.deletionTimestamp !== undefined || pod.status.phase === "Running"),
  );
  expect(pods.length).toBeGreaterThan(10);
  await world.eventually(
    "there are as many VMs as Pods",
    async () => [(await world.pods()).length, world.living().length],
    ([podCount, vmCount]) => podCount === vmCount,
  );
  expect(said(world, /sandboxd's token was read again/).length).toBe(tokens.length);
  for (const token of tokens) expect(said(world, new RegExp(token))).toEqual([]);
}, 120_000);

test.concurrent("serving certificate, key and client CA: new callers meet the new ones, half a pair changes nothing", async () => {
  const now = Date.now();
  const span = { fromMs: now - 3_600_000, untilMs: now + 86_400_000, organizations: [] };
  const address = process.env.VK_E2E_ADDRESS ?? "127.0.0.1";
  const serving = (commonName: string) => issue({ ...span, commonName, names: [address], usage: "server" });
  const [one, two] = [await serving("one"), await serving("two")];
  const authorities = [
    await issue({ ...span, commonName: "first CA", names: [], usage: "ca" }),
    await issue({ ...span, commonName: "second CA", names: [], usage: "ca" }),
  ] as const;
  const client = (by: (typeof authorities)[number]) =>
    issue(
      { ...span, organizations: ["system:masters"], commonName: "caller", names: [], usage: "client" },
      by,
    );
  const [oldCaller, newCaller] = [await client(authorities[0]), await client(authorities[1])];
  const files = { cert: join(dir, "tls.crt"), key: join(dir, "tls.key"), ca: join(dir, "client-ca.crt") };
  replace(files.cert, one.cert);
  replace(files.key, one.key);
  replace(files.ca, authorities[0].cert);
  await using world = await World.create({
    flags: [`--tls-cert=${files.cert}`, `--tls-key=${files.key}`, `--client-ca-file=${files.ca}`],
  });

  const ask = (server: { cert: string }, caller: { cert: string; key: string }) =>
    fetch(`${world.daemon.kubeletUrl}/pods`, {
      keepalive: false,
      tls: { ca: server.cert, cert: caller.cert, key: caller.key },
      signal: AbortSignal.timeout(10_000),
    }).then(
      (response) => response.status,
      () => "not trusted",
    );
  expect([await ask(one, oldCaller), await ask(two, oldCaller)]).toEqual([200, "not trusted"]);
  expect(await ask(one, newCaller)).toBe(401);

  replace(files.cert, two.cert);
  halfWrite(files.ca, authorities[1].cert);
  await world.eventually(
    "half the rotation is said",
    () => said(world, /new certificates are not used yet/).length > 0,
    Boolean,
    { timeoutMs: 60_000 },
  );
  expect([await ask(one, oldCaller), await ask(one, newCaller)]).toEqual([200, 401]);

  replace(files.key, two.key);
  replace(files.ca, authorities[1].cert);
  await world.eventually(
    "the new certificate is served",
    () => ask(two, newCaller),
    (answer) => answer === 200,
    { timeoutMs: 60_000 },
  );
  expect([await ask(two, oldCaller), await ask(one, newCaller)]).toEqual([401, "not trusted"]);
}, 150_000);

/** A kubeconfig of one user, and the files that it names beside it. */
function kubeconfig(name: string, user: Record<string, string>): string {
  const { server, ca } = controlPlane().credentials("admin");
  const path = join(dir, `${name}.kubeconfig`);
  replace(
    path,
    JSON.stringify({
      apiVersion: "v1",
      kind: "Config",
      clusters: [{ name: "c", cluster: { server, "certificate-authority-data": btoa(ca) } }],
      users: [{ name: "u", user }],
      contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
      "current-context": "x",
    }),
  );
  return path;
}

/** A new client certificate of the provider's own name. */
function clientCertificate(name: string): { cert: string; key: string } {
  controlPlane().identity(name, serviceAccount);
  const { cert, key } = controlPlane().credentials(name);
  if (cert === undefined || key === undefined) throw new Error("unreachable: an identity has both");
  return { cert, key };
}

test.concurrent("the client certificate that a kubeconfig names: no request is refused on the way to the new one", async () => {
  const [one, two] = [clientCertificate("rotated-one"), clientCertificate("rotated-two")];
  const files = { cert: join(dir, "client.crt"), key: join(dir, "client.key") };
  replace(files.cert, one.cert);
  replace(files.key, one.key);
  await using world = await World.create({
    identity: (name) => kubeconfig(name, { "client-certificate": "client.crt", "client-key": "client.key" }),
  });
  expect(ofDaemon(world).map(credentialOf)).toContain(idOfCertificate(one.cert));

  replace(files.cert, two.cert);
  await world.eventually(
    "half the rotation is said",
    () => said(world, /client key does not belong to the client certificate; the last good one/).length > 0,
  );
  await serves(world, "between");
  halfWrite(files.key, two.key);
  await serves(world, "half");
  replace(files.key, two.key);
  await usesCredential(world, idOfCertificate(two.cert));
  await serves(world, "after");
  noneRefused(world);
  expect(said(world, /interrupted|cannot be posted|not renewed/)).toEqual([]);
}, 120_000);

test.concurrent("the token file that a kubeconfig names: the old token may end as soon as the new one is there", async () => {
  const file = join(dir, "kube-token");
  const secrets = "/api/v1/namespaces/vk-sandbox/secrets";
  const { api } = controlPlane();
  const bound = async (secret: string) => {
    const made = await api.create(secrets, { metadata: { name: secret } });
    const { status } = await api.create<{ status: { token: string } }>(
      "/api/v1/namespaces/vk-sandbox/serviceaccounts/vk-sandbox/token",
      {
        apiVersion: "authentication.k8s.io/v1",
        kind: "TokenRequest",
        spec: {
          expirationSeconds: 3600,
          boundObjectRef: { apiVersion: "v1", kind: "Secret", name: secret, uid: made.metadata.uid },
        },
      },
    );
    return status.token;
  };
  const names = ["one", "two"].map((n) => `rotation-${n}-${crypto.randomUUID().slice(0, 8)}`);
  const [one = "", two = ""] = [await bound(names[0] ?? ""), await bound(names[1] ?? "")];
  replace(file, one);
  try {
    await using world = await World.create({
      identity: (name) => kubeconfig(name, { tokenFile: "kube-token" }),
    });
    expect(ofDaemon(world).map(credentialOf)).toContain(idOfToken(one));
    halfWrite(file, "");
    await world.eventually(
      "half the rotation is said",
      () => said(world, /is empty, a token was expected/).length > 0,
    );
    await serves(world, "between");
    replace(file, two);
    await usesCredential(world, idOfToken(two));
    await api.delete(`${secrets}/${names[0]}`);
    await serves(world, "after");
    noneRefused(world);
    for (const token of [one, two])
      expect(world.daemon.log.filter((line) => line.includes(token))).toEqual([]);
  } finally {
    for (const name of names) await api.delete(`${secrets}/${name}`);
  }
}, 120_000);

test.concurrent("a kubeconfig that is written anew, with another certificate in it", async () => {
  const [one, two] = [clientCertificate("embedded-one"), clientCertificate("embedded-two")];
  const user = ({ cert, key }: typeof one) => ({
    "client-certificate-data": btoa(cert),
    "client-key-data": btoa(key),
  });
  let path = "";
  await using world = await World.create({
    identity: (name) => {
      path = kubeconfig(name, user(one));
      return path;
    },
  });
  const whole = readFileSync(path, "utf8");
  halfWrite(path, whole);
  await world.eventually(
    "half the rotation is said",
    () => said(world, /the last good kubeconfig is used/).length > 0,
  );
  await serves(world, "between");
  kubeconfig(world.name, user(two));
  await usesCredential(world, idOfCertificate(two.cert));
  await serves(world, "after");
  noneRefused(world);
}, 120_000);

import { afterEach, beforeEach, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fakeClock } from "./fake-clock.ts";
import { type LoadClusterOptions, loadCluster } from "./kubeconfig.ts";

const certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const privateKey = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";
const base64 = (text: string) => Buffer.from(text).toString("base64");
const secret = "s3cret-t0ken-that-must-never-be-shown-anywhere";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "kubeconfig-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

function file(name: string, content: string): string {
  const path = join(dir, name);
  writeFileSync(path, content);
  return path;
}

interface Parts {
  cluster?: Record<string, unknown>;
  user?: Record<string, unknown>;
  rest?: Record<string, unknown>;
}
function config({ cluster = {}, user = {}, rest = {} }: Parts = {}): string {
  return JSON.stringify({
    apiVersion: "v1",
    kind: "Config",
    "current-context": "here",
    clusters: [{ name: "c", cluster: { server: "https://kube.example:6443", ...cluster } }],
    users: [{ name: "u", user: { token: secret, ...user } }],
    contexts: [{ name: "here", context: { cluster: "c", user: "u", namespace: "ns" } }],
    ...rest,
  });
}

async function load(content: string, options: Partial<LoadClusterOptions> = {}) {
  const path = file("config", content);
  return loadCluster({ env: { KUBECONFIG: path, PATH: process.env.PATH, HOME: dir }, ...options });
}

async function good(content: string, options: Partial<LoadClusterOptions> = {}) {
  const result = await load(content, options);
  if (!result.ok) throw new Error(result.message);
  return result.cluster;
}

async function bad(content: string, options: Partial<LoadClusterOptions> = {}) {
  const result = await load(content, options);
  if (result.ok) throw new Error("this kubeconfig was taken");
  expect(result.message).not.toContain(secret);
  return result;
}

test("what is no regular file is told as that, and nothing waits for a pipe or a device", async () => {
  const pipe = join(dir, "pipe");
  Bun.spawnSync(["mkfifo", pipe]);
  for (const path of [pipe, "/dev/null", "/dev/zero"]) {
    expect(await loadCluster({ env: { KUBECONFIG: path } })).toMatchObject({
      ok: false,
      kind: "unreadable",
      message: `kubeconfig ${path} is not a regular file: it is read again when it changes, so give a file`,
    });
  }
  const directory = await loadCluster({ env: { KUBECONFIG: dir } });
  expect(directory).toMatchObject({ ok: false, message: expect.stringContaining("EISDIR") });
  const large = await loadCluster({ env: { KUBECONFIG: file("large", " ".repeat(4 * 1024 * 1024 + 1)) } });
  expect(large).toMatchObject({ ok: false, message: expect.stringContaining("larger than 4194304 bytes") });
});

const token = secret;

test("a kubeconfig with a token and data", async () => {
  const cluster = await good(config({ cluster: { "certificate-authority-data": base64(certificate) } }));
  expect(cluster).toMatchObject({
    server: "https://kube.example:6443",
    namespace: "ns",
    context: "here",
    proxy: false,
    source: join(dir, "config"),
  });
  expect(await cluster.credentials.current()).toEqual({
    authorization: `Bearer ${token}`,
    tls: { ca: certificate },
  });
});

test("certificates in files beside the kubeconfig, by relative path", async () => {
  file("ca.crt", certificate);
  mkdirSync(join(dir, "pki"));
  file("pki/client.crt", certificate);
  file("pki/client.key", privateKey);
  const cluster = await good(
    config({
      cluster: { "certificate-authority": "ca.crt", "tls-server-name": "kube.internal" },
      user: { token: "", "client-certificate": "pki/client.crt", "client-key": "./pki/client.key" },
    }),
  );
  expect(await cluster.credentials.current()).toEqual({
    authorization: "",
    tls: { ca: certificate, cert: certificate, key: privateKey, serverName: "kube.internal" },
  });
});

test("data wins over a file, and insecure-skip-tls-verify is passed on", async () => {
  const cluster = await good(
    config({
      cluster: { "insecure-skip-tls-verify": true },
      user: {
        token: "",
        "client-certificate": "/nowhere",
        "client-certificate-data": base64(certificate),
        "client-key-data": base64(privateKey),
      },
    }),
  );
  expect(await cluster.credentials.current()).toMatchObject({
    tls: { cert: certificate, rejectUnauthorized: false },
  });
});

test("user name and password become Basic authorization", async () => {
  const cluster = await good(config({ user: { token: "", username: "u", password: "p:w" } }));
  expect(await cluster.credentials.current()).toMatchObject({ authorization: `Basic ${base64("u:p:w")}` });
});

test("YAML as kubectl writes it", async () => {
  const cluster = await good(`apiVersion: v1
kind: Config
preferences: {}
current-context: here
clusters:
- name: c
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority-data: ${base64(certificate)}
users:
- name: u
  user:
    token: "${secret}"
contexts:
- context:
    cluster: c
    user: u
  name: here
`);
  expect(cluster).toMatchObject({ server: "https://10.0.0.1:6443", namespace: "default" });
});

test("KUBECONFIG with several files: the first to say something wins, missing files are skipped", async () => {
  const a = file("a", config({ rest: { "current-context": "", contexts: null } }));
  mkdirSync(join(dir, "sub"));
  const b = file(
    "sub/b",
    JSON.stringify({
      "current-context": "there",
      clusters: [
        { name: "c", cluster: { server: "https://loses" } },
        { name: "d", cluster: { server: "https://d", "certificate-authority": "d.crt" } },
      ],
      contexts: [
        { name: "there", context: { cluster: "c", user: "u" } },
        { name: "other", context: { cluster: "d", user: "u" } },
      ],
    }),
  );
  file("sub/d.crt", certificate);
  const c = file("c", JSON.stringify({ "current-context": "elsewhere" }));
  const env = { KUBECONFIG: `${join(dir, "missing")}::${a}:${b}:${c}` };
  const first = await loadCluster({ env });
  expect(first).toMatchObject({
    ok: true,
    cluster: { context: "there", server: "https://kube.example:6443", source: `${a}:${b}:${c}` },
  });
  // A relative path is relative to the file that has it.
  expect(await loadCluster({ env, context: "other" })).toMatchObject({
    ok: true,
    cluster: { context: "other", server: "https://d" },
  });
});

test("without KUBECONFIG it is ~/.kube/config", async () => {
  mkdirSync(join(dir, ".kube"));
  const path = file(".kube/config", config());
  expect(await loadCluster({ env: { HOME: dir } })).toMatchObject({ ok: true, cluster: { source: path } });
});

test("a kubeconfig named by the caller beats the cluster and KUBECONFIG", async () => {
  const env = { KUBERNETES_SERVICE_HOST: "10.0.0.1", KUBERNETES_SERVICE_PORT: "443", KUBECONFIG: "/nowhere" };
  const path = file("mine", config());
  const inClusterDir = serviceAccount();
  expect(await loadCluster({ env, kubeconfig: path, inClusterDir })).toMatchObject({
    ok: true,
    cluster: { source: path },
  });
});

function serviceAccount(): string {
  const mounted = join(dir, "serviceaccount");
  mkdirSync(mounted);
  // As Kubernetes mounts it: files are links into a directory that is swapped as a whole.
  mkdirSync(join(mounted, "v1"));
  symlinkSync("v1", join(mounted, "..data"));
  for (const [name, content] of Object.entries({ token: "t1\n", "ca.crt": certificate, namespace: "mine" })) {
    writeFileSync(join(mounted, "v1", name), content);
    symlinkSync(join("..data", name), join(mounted, name));
  }
  return mounted;
}

test("in a Pod the service account comes first, and its token is read again as it rotates", async () => {
  const clock = fakeClock();
  const inClusterDir = serviceAccount();
  const result = await loadCluster({
    env: {
      KUBERNETES_SERVICE_HOST: "fd00::1",
      KUBERNETES_SERVICE_PORT: "443",
      KUBECONFIG: file("config", config()),
    },
    inClusterDir,
    clock,
  });
  if (!result.ok) throw new Error(result.message);
  const { cluster } = result;
  expect(cluster).toMatchObject({ server: "https://[fd00::1]:443", source: "in-cluster", namespace: "mine" });
  const first = await cluster.credentials.current();
  expect(first).toEqual({ authorization: "Bearer t1", tls: { ca: certificate } });
  mkdirSync(join(inClusterDir, "v2"));
  for (const [name, content] of Object.entries({ token: "t2", "ca.crt": certificate, namespace: "mine" })) {
    writeFileSync(join(inClusterDir, "v2", name), content);
  }
  unlinkSync(join(inClusterDir, "..data"));
  symlinkSync("v2", join(inClusterDir, "..data"));
  expect(cluster.credentials.current()).toBe(first);
  clock.advance(10_000);
  expect(cluster.credentials.current()).toMatchObject({ authorization: "Bearer t2" });
});

test("a Pod without a service account token falls back to the kubeconfig", async () => {
  const env = {
    KUBERNETES_SERVICE_HOST: "10.0.0.1",
    KUBERNETES_SERVICE_PORT: "443",
    KUBECONFIG: file("config", config()),
  };
  expect(await loadCluster({ env, inClusterDir: join(dir, "none") })).toMatchObject({
    ok: true,
    cluster: { source: join(dir, "config") },
  });
});

test("no kubeconfig anywhere: the error lists the places that were tried", async () => {
  const result = await loadCluster({ env: { KUBECONFIG: `${dir}/a:${dir}/b` } });
  expect(result).toMatchObject({ ok: false, kind: "no_kubeconfig" });
  expect(!result.ok && result.message).toBe(
    `no way to the API server was found; tried in-cluster (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set), ${dir}/a (does not exist), ${dir}/b (does not exist). Set KUBECONFIG to a kubeconfig, or run in a Pod with a service account`,
  );
  const homeless = await loadCluster({ env: {} });
  expect(!homeless.ok && homeless.message).toContain("~/.kube/config (HOME is not set)");
});

for (const [what, content, kind, ...words] of [
  [
    "a context that is missing",
    config({ rest: { "current-context": "gone" } }),
    "no_context",
    '"gone"',
    'contexts: "here"',
  ],
  [
    "no current context",
    config({ rest: { "current-context": "" } }),
    "no_context",
    "current-context",
    "use-context",
  ],
  ["an empty file", "", "no_context", "current-context"],
  [
    "a cluster that is missing",
    config({ rest: { clusters: [] } }),
    "no_cluster",
    'cluster "c"',
    "clusters: none",
  ],
  ["a user that is missing", config({ rest: { users: [] } }), "no_user", 'user "u"', "users: none"],
  ["no server", config({ cluster: { server: "" } }), "bad_cluster", "has no server"],
  [
    "a server without scheme",
    config({ cluster: { server: "kube:6443" } }),
    "bad_cluster",
    "kube:6443",
    "https://",
  ],
  [
    "a CA that is not there",
    config({ cluster: { "certificate-authority": "ca.crt" } }),
    "bad_credential",
    "CA file",
    "ca.crt does not exist",
  ],
  [
    "a CA that is no PEM",
    config({ cluster: { "certificate-authority-data": base64("hello") } }),
    "bad_credential",
    "no PEM certificate",
  ],
  [
    "a certificate without its key",
    config({ user: { "client-certificate-data": base64(certificate) } }),
    "bad_user",
    "without a client-key",
  ],
  [
    "a key without its certificate",
    config({ user: { "client-key": "k" } }),
    "bad_user",
    "without a client-certificate",
  ],
  [
    "key and certificate exchanged",
    config({
      user: { "client-certificate-data": base64(privateKey), "client-key-data": base64(certificate) },
    }),
    "bad_credential",
    "no PEM certificate",
  ],
  [
    "a token file that is not there",
    config({ user: { tokenFile: "tok" } }),
    "bad_credential",
    "tok does not exist",
  ],
  ["a token and a user name", config({ user: { username: "x" } }), "bad_user", "both"],
  [
    "CA and insecure",
    config({ cluster: { "insecure-skip-tls-verify": true, "certificate-authority": "x" } }),
    "bad_cluster",
    "remove one",
  ],
  ["impersonation", config({ user: { as: "admin" } }), "bad_user", "impersonation"],
  ["auth-provider", config({ user: { "auth-provider": { name: "gcp" } } }), "bad_user", "auth-provider"],
  ["a SOCKS proxy", config({ cluster: { "proxy-url": "socks5://x:1" } }), "bad_cluster", "socks5"],
  [
    "a token with a line break",
    config({ user: { token: `${secret}\nX-Evil: 1` } }),
    "bad_credential",
    "holds no token",
  ],
  ["YAML with a tab", "clusters:\n\t- name: c\n", "malformed", "line 2"],
  ["YAML cut short", `users:\n- name: u\n  user: {token: "${secret}`, "malformed", "line 3"],
  ["a wrong type", config({ rest: { clusters: "c" } }), "malformed", "clusters should be Array"],
  [
    "a wrong type where a secret is",
    config({ user: { token: { x: secret } } }),
    "malformed",
    "users.0.user.token should be string",
  ],
  ["a list", "- a\n- b\n", "malformed", "kubeconfig"],
  [
    "a plugin that is not in PATH",
    config({
      user: {
        token: "",
        exec: {
          apiVersion: "client.authentication.k8s.io/v1",
          command: "no-such-plugin-here",
          installHint: "get it at example.com",
        },
      },
    }),
    "bad_credential",
    "no-such-plugin-here",
    "PATH",
    "get it at example.com",
  ],
  [
    "a plugin of an old version",
    config({
      user: { token: "", exec: { apiVersion: "client.authentication.k8s.io/v1alpha1", command: "x" } },
    }),
    "bad_user",
    "v1alpha1",
  ],
  [
    "a plugin that wants a terminal",
    config({
      user: {
        token: "",
        exec: { apiVersion: "client.authentication.k8s.io/v1", command: "x", interactiveMode: "Always" },
      },
    }),
    "bad_user",
    "terminal",
  ],
] as const) {
  test(`a kubeconfig with ${what} is an error that names the file and what to do`, async () => {
    const result = await bad(content);
    expect(result.kind).toBe(kind);
    for (const word of words) expect(result.message).toContain(word);
    expect(result.message).toContain(dir);
  });
}

test("a kubeconfig that may not be read is not a missing one", async () => {
  mkdirSync(join(dir, "config"));
  const result = await loadCluster({ env: { KUBECONFIG: join(dir, "config") } });
  expect(result).toMatchObject({ ok: false, kind: "unreadable" });
});

test("an exec plugin's token is the credential, and the plugin is told of the cluster when it asks", async () => {
  mkdirSync(join(dir, "bin"));
  const plugin = file(
    "bin/plugin",
    `#!/bin/sh
printf '%s\\n%s\\n%s' "$KUBERNETES_EXEC_INFO" "$1" "$EXTRA" > "${dir}/told"
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}'
`,
  );
  chmodSync(plugin, 0o755);
  const cluster = await good(
    config({
      cluster: {
        "certificate-authority-data": base64(certificate),
        extensions: [{ name: "client.authentication.k8s.io/exec", extension: { audience: "a" } }],
      },
      user: {
        token: "",
        exec: {
          apiVersion: "client.authentication.k8s.io/v1",
          command: "./bin/plugin",
          args: ["arg one"],
          env: [{ name: "EXTRA", value: "e" }],
          provideClusterInfo: true,
          interactiveMode: "IfAvailable",
        },
      },
    }),
  );
  expect(await cluster.credentials.current()).toEqual({
    authorization: "Bearer from-plugin",
    tls: { ca: certificate },
  });
  const [info = "", argument, extra] = (await Bun.file(join(dir, "told")).text()).split("\n");
  expect(JSON.parse(info)).toEqual({
    apiVersion: "client.authentication.k8s.io/v1",
    kind: "ExecCredential",
    spec: {
      interactive: false,
      cluster: {
        server: "https://kube.example:6443",
        "certificate-authority-data": base64(certificate),
        config: { audience: "a" },
      },
    },
  });
  expect([argument, extra]).toEqual(["arg one", "e"]);
});

test("a token beats an exec plugin, which is not run then", async () => {
  const exec = { apiVersion: "client.authentication.k8s.io/v1", command: "no-such-plugin-here" };
  const cluster = await good(config({ user: { exec } }));
  expect(await cluster.credentials.current()).toMatchObject({ authorization: `Bearer ${token}` });
});

test("proxy-url beats the proxy variables", async () => {
  const path = file("config", config({ cluster: { "proxy-url": "http://proxy:3128" } }));
  const env = { KUBECONFIG: path, HTTPS_PROXY: "http://other:1" };
  expect(await loadCluster({ env })).toMatchObject({ ok: true, cluster: { proxy: "http://proxy:3128" } });
  const plain = { KUBECONFIG: file("plain", config()), HTTPS_PROXY: "http://other:1" };
  expect(await loadCluster({ env: plain })).toMatchObject({ ok: true, cluster: { proxy: "http://other:1" } });
});

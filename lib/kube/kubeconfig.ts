import { readFileSync, statSync } from "node:fs";
import { dirname, isAbsolute, join } from "node:path";
import * as v from "valibot";
import type { Clock } from "./clock.ts";
import { type CredentialParts, createCredentialSource, type Material } from "./credential-source.ts";
import { type CredentialSource, isCredential } from "./credentials.ts";
import type { ExecPlugin } from "./exec-plugin.ts";
import { followKubeconfig } from "./kubeconfig-follow.ts";
import { proxyFor } from "./proxy.ts";
import { materialFault } from "./tls-material.ts";

/** Where the API server is and who we are to it: what `createKubeClient` needs. The credential follows its files. */
export interface ClusterConfig {
  server: string;
  credentials: CredentialSource;
  proxy: string | false;
  /** What it was read from, for the log: `in-cluster`, or the kubeconfig's files. */
  source: string;
  /** Name of the kubeconfig's context; empty in a cluster. */
  context: string;
  /** The context's namespace; "default" when it names none. */
  namespace: string;
}

export type ClusterErrorKind =
  | "no_kubeconfig"
  | "unreadable"
  | "malformed"
  | "no_context"
  | "no_cluster"
  | "no_user"
  | "bad_cluster"
  | "bad_user"
  | "bad_credential";

/** `message` names the file, the thing in it and the next step, and carries no secret. */
export type ClusterResult =
  | { ok: true; cluster: ClusterConfig }
  | { ok: false; kind: ClusterErrorKind; message: string };

export interface LoadClusterOptions {
  /** KUBERNETES_SERVICE_HOST/PORT, KUBECONFIG, HOME, PATH and the proxy variables are read from it. */
  env: Readonly<Record<string, string | undefined>>;
  /** A kubeconfig the caller names itself; then neither the cluster nor KUBECONFIG is looked at. */
  kubeconfig?: string;
  /** Another context than the current one. */
  context?: string;
  /** Where Kubernetes mounts the service account. */
  inClusterDir?: string;
  clock?: Clock;
  /** A credential could not be renewed and the last good one is kept. */
  onProblem?: (why: string) => void;
}

const name = v.pipe(v.string(), v.nonEmpty());
const optionalText = v.nullish(v.string(), "");

const clusterSchema = v.object({
  server: optionalText,
  "certificate-authority": optionalText,
  "certificate-authority-data": optionalText,
  "insecure-skip-tls-verify": v.nullish(v.boolean(), false),
  "tls-server-name": optionalText,
  "proxy-url": optionalText,
  extensions: v.nullish(v.array(v.object({ name, extension: v.unknown() }))),
});

const execSchema = v.object({
  apiVersion: optionalText,
  command: optionalText,
  args: v.nullish(v.array(v.string())),
  env: v.nullish(v.array(v.object({ name, value: v.string() }))),
  installHint: optionalText,
  provideClusterInfo: v.nullish(v.boolean(), false),
  interactiveMode: optionalText,
});

const userSchema = v.object({
  "client-certificate": optionalText,
  "client-certificate-data": optionalText,
  "client-key": optionalText,
  "client-key-data": optionalText,
  token: optionalText,
  tokenFile: optionalText,
  username: optionalText,
  password: optionalText,
  exec: v.nullish(execSchema),
  as: optionalText,
  "auth-provider": v.nullish(v.unknown()),
});

const contextSchema = v.object({ cluster: optionalText, user: optionalText, namespace: optionalText });

const configSchema = v.object({
  "current-context": optionalText,
  clusters: v.nullish(v.array(v.object({ name, cluster: v.nullish(clusterSchema) })), []),
  users: v.nullish(v.array(v.object({ name, user: v.nullish(userSchema) })), []),
  contexts: v.nullish(v.array(v.object({ name, context: v.nullish(contextSchema) })), []),
});

type Cluster = v.InferOutput<typeof clusterSchema>;
type User = v.InferOutput<typeof userSchema>;
type Context = v.InferOutput<typeof contextSchema>;

/** An entry, and the file it came from: relative paths in it are relative to that file. */
interface From<T> {
  value: T;
  file: string;
}

interface Merged {
  files: string[];
  currentContext: string;
  clusters: Map<string, From<Cluster>>;
  users: Map<string, From<User>>;
  contexts: Map<string, From<Context>>;
}

/** A reason to give up, on its way out of the functions below. Never leaves this file. */
class ClusterError extends Error {
  constructor(
    readonly kind: ClusterErrorKind,
    message: string,
  ) {
    super(message);
  }
}

/** Largest kubeconfig read. */
const kubeconfigBytesMax = 4 * 1024 * 1024;

/**
 * Finds the cluster: the service account's when we run in a Pod, else the files of KUBECONFIG merged as
 * kubectl merges them, else ~/.kube/config. Every bad input is an error of its own.
 *
 * @example
 * const found = await loadCluster({ env: process.env });
 * if (!found.ok) fail(found.message);
 * const client = createKubeClient(found.cluster);
 */
export async function loadCluster(options: LoadClusterOptions): Promise<ClusterResult> {
  try {
    const { cluster, files } = await find(options);
    return {
      ok: true,
      cluster: files.length === 0 ? cluster : { ...cluster, credentials: follow(cluster, files, options) },
    };
  } catch (error) {
    if (!(error instanceof ClusterError)) throw error;
    return { ok: false, kind: error.kind, message: error.message };
  }
}

/** The kubeconfig's credential as it is now, whenever that is: see `followKubeconfig`. */
function follow(cluster: ClusterConfig, files: string[], options: LoadClusterOptions): CredentialSource {
  const reload = async () => {
    try {
      const { cluster: next } = await find(options);
      if (next.server !== cluster.server || next.proxy !== cluster.proxy)
        return { why: `kubeconfig ${next.source} names another API server or proxy now: restart to use it` };
      const credential = await next.credentials.current();
      // A file that is being written may read as a whole one with a part of a certificate in it.
      const fault = isCredential(credential) ? materialFault(credential.tls) : credential.why;
      return fault === undefined ? next.credentials : { why: `kubeconfig ${next.source}: ${fault}` };
    } catch (error) {
      return { why: error instanceof Error ? error.message : String(error) };
    }
  };
  const { clock, onProblem } = options;
  return followKubeconfig({ files, first: cluster.credentials, reload, clock, onProblem });
}

/** `files`: those that the cluster was read from; none in a cluster. */
async function find(options: LoadClusterOptions): Promise<{ cluster: ClusterConfig; files: string[] }> {
  const { env } = options;
  const tried: string[] = [];
  if (options.kubeconfig === undefined) {
    const inCluster = await findInCluster(options, tried);
    if (inCluster !== undefined) return { cluster: inCluster, files: [] };
  }
  const list = options.kubeconfig ?? env.KUBECONFIG ?? "";
  let paths: string[];
  if (list !== "") {
    paths = options.kubeconfig === undefined ? list.split(":").filter((path) => path !== "") : [list];
  } else if (env.HOME) {
    paths = [join(env.HOME, ".kube", "config")];
  } else {
    paths = [];
    tried.push("~/.kube/config (HOME is not set)");
  }
  const merged = await merge(paths, tried);
  if (merged.files.length === 0) {
    throw new ClusterError(
      "no_kubeconfig",
      `no way to the API server was found; tried ${tried.join(", ")}. ${
        options.kubeconfig === undefined
          ? "Set KUBECONFIG to a kubeconfig, or run in a Pod with a service account"
          : "Correct --kubeconfig (VK_KUBECONFIG)"
      }`,
    );
  }
  return { cluster: await fromKubeconfig(merged, options), files: merged.files };
}

async function findInCluster(
  options: LoadClusterOptions,
  tried: string[],
): Promise<ClusterConfig | undefined> {
  const { env, inClusterDir = "/var/run/secrets/kubernetes.io/serviceaccount" } = options;
  const host = env.KUBERNETES_SERVICE_HOST ?? "";
  const port = env.KUBERNETES_SERVICE_PORT ?? "";
  if (host === "" || port === "") {
    tried.push("in-cluster (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set)");
    return undefined;
  }
  const token = join(inClusterDir, "token");
  if (!(await Bun.file(token).exists())) {
    tried.push(`in-cluster (${token} does not exist)`);
    return undefined;
  }
  const server = `https://${host.includes(":") ? `[${host}]` : host}:${port}`;
  checkServer(server, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT", "bad_cluster");
  const parts: CredentialParts = { token: { file: token }, ca: { file: join(inClusterDir, "ca.crt") } };
  const namespace = await Bun.file(join(inClusterDir, "namespace"))
    .text()
    .catch(() => "");
  return {
    server,
    credentials: await sourceOf(parts, options, "the service account"),
    proxy: proxyFor(server, env),
    source: "in-cluster",
    context: "",
    namespace: namespace.trim() || "default",
  };
}

/** Reads the files in order. The first to say something wins, entry by entry; a file that is not there is skipped. */
async function merge(paths: string[], tried: string[]): Promise<Merged> {
  const merged: Merged = {
    files: [],
    currentContext: "",
    clusters: new Map(),
    users: new Map(),
    contexts: new Map(),
  };
  for (const file of paths) {
    let content: string;
    try {
      const stats = statSync(file);
      // A pipe could not be read a second time, and a device need not end.
      if (!stats.isFile() && !stats.isDirectory()) {
        throw new ClusterError(
          "unreadable",
          `kubeconfig ${file} is not a regular file: it is read again when it changes, so give a file`,
        );
      }
      if (stats.size > kubeconfigBytesMax) {
        throw new ClusterError("malformed", `kubeconfig ${file} is larger than ${kubeconfigBytesMax} bytes`);
      }
      content = readFileSync(file, "utf8");
    } catch (error) {
      if (error instanceof ClusterError) throw error;
      const code = error instanceof Error && "code" in error ? String(error.code) : "unknown error";
      if (code === "ENOENT") {
        tried.push(`${file} (does not exist)`);
        continue;
      }
      throw new ClusterError(
        "unreadable",
        `kubeconfig ${file} cannot be read (${code}): check its permissions and that it is a file`,
      );
    }
    const config = parseConfig(file, await parseText(file, content));
    merged.files.push(file);
    merged.currentContext ||= config["current-context"];
    for (const entry of config.clusters) add(merged.clusters, entry.name, entry.cluster, clusterSchema, file);
    for (const entry of config.users) add(merged.users, entry.name, entry.user, userSchema, file);
    for (const entry of config.contexts) add(merged.contexts, entry.name, entry.context, contextSchema, file);
  }
  return merged;
}

function add<S extends v.GenericSchema>(
  to: Map<string, From<v.InferOutput<S>>>,
  entry: string,
  value: v.InferOutput<S> | null | undefined,
  schema: S,
  file: string,
): void {
  if (!to.has(entry)) to.set(entry, { value: value ?? v.parse(schema, {}), file });
}

/** JSON or YAML. Bun's own YAML costs no memory; the yaml package is loaded only to say in which line a fault is. */
async function parseText(file: string, content: string): Promise<unknown> {
  if (content.trim() === "") return {};
  try {
    if (content.trimStart().startsWith("{")) return JSON.parse(content);
  } catch {
    // Perhaps YAML in flow style.
  }
  try {
    return Bun.YAML.parse(content) ?? {};
  } catch {
    const { parse } = await import("yaml");
    try {
      return parse(content);
    } catch (error) {
      // The message's first line has place and reason; what follows quotes the file, secrets included.
      const what = error instanceof Error ? (error.message.split("\n")[0] ?? "") : "";
      throw new ClusterError(
        "malformed",
        `kubeconfig ${file} is not YAML: ${what.replace(/:$/, "")}. Correct the file, or name another in KUBECONFIG`,
      );
    }
  }
}

function parseConfig(file: string, value: unknown): v.InferOutput<typeof configSchema> {
  if (Array.isArray(value)) {
    throw new ClusterError(
      "malformed",
      `kubeconfig ${file} is no kubeconfig: it is a list, or several documents, and should be one mapping`,
    );
  }
  const parsed = v.safeParse(configSchema, value);
  if (parsed.success) return parsed.output;
  const issue = parsed.issues[0];
  const path = v.getDotPath(issue) ?? "";
  // The issue's own message would quote what was received, which may be a secret.
  throw new ClusterError(
    "malformed",
    `kubeconfig ${file} is no kubeconfig: ${path === "" ? "the document" : path} should be ${issue.expected ?? "something else"}`,
  );
}

async function fromKubeconfig(merged: Merged, options: LoadClusterOptions): Promise<ClusterConfig> {
  const files = merged.files.join(":");
  const contextName = options.context || merged.currentContext;
  const known = (what: Map<string, unknown>) =>
    [...what.keys()].map((key) => `"${key}"`).join(", ") || "none";
  if (contextName === "") {
    throw new ClusterError(
      "no_context",
      `kubeconfig ${files} has no current-context; contexts: ${known(merged.contexts)}. Choose one with kubectl config use-context`,
    );
  }
  const context = merged.contexts.get(contextName);
  if (context === undefined) {
    throw new ClusterError(
      "no_context",
      `kubeconfig ${files} has no context "${contextName}"; contexts: ${known(merged.contexts)}`,
    );
  }
  const clusterName = context.value.cluster;
  const cluster = merged.clusters.get(clusterName);
  if (cluster === undefined) {
    throw new ClusterError(
      "no_cluster",
      `context "${contextName}" of ${context.file} names cluster "${clusterName}", which is not in kubeconfig ${files}; clusters: ${known(merged.clusters)}`,
    );
  }
  const userName = context.value.user;
  const user = userName === "" ? undefined : merged.users.get(userName);
  if (userName !== "" && user === undefined) {
    throw new ClusterError(
      "no_user",
      `context "${contextName}" of ${context.file} names user "${userName}", which is not in kubeconfig ${files}; users: ${known(merged.users)}`,
    );
  }
  const where = `cluster "${clusterName}" of ${cluster.file}`;
  const server = checkServer(cluster.value.server, where, "bad_cluster");
  const parts: CredentialParts = {
    ...clusterParts(cluster, where),
    ...(user === undefined ? {} : userParts(user, `user "${userName}" of ${user.file}`, cluster)),
  };
  const proxy = cluster.value["proxy-url"];
  if (proxy !== "") checkProxy(proxy, `proxy-url of ${where}`);
  return {
    server,
    credentials: await sourceOf(
      parts,
      options,
      user === undefined ? where : `user "${userName}" of ${user.file}`,
    ),
    proxy: proxy === "" ? proxyFor(server, options.env) : proxy,
    source: files,
    context: contextName,
    namespace: context.value.namespace || "default",
  };
}

function clusterParts({ value, file }: From<Cluster>, where: string): CredentialParts {
  const ca = material(
    value["certificate-authority-data"],
    value["certificate-authority"],
    file,
    `${where}: certificate-authority-data`,
  );
  const insecure = value["insecure-skip-tls-verify"] === true;
  if (insecure && ca !== undefined) {
    throw new ClusterError(
      "bad_cluster",
      `${where} has both a certificate-authority and insecure-skip-tls-verify: remove one of them`,
    );
  }
  return {
    ca,
    rejectUnauthorized: insecure ? false : undefined,
    serverName: value["tls-server-name"] || undefined,
  };
}

function userParts({ value, file }: From<User>, where: string, cluster: From<Cluster>): CredentialParts {
  const bad = (what: string) => new ClusterError("bad_user", `${where} ${what}`);
  if (value.as !== "")
    throw bad("asks for impersonation (as), which is not supported: use its own credential");
  if (value["auth-provider"] != null) {
    throw bad("uses auth-provider, which Kubernetes removed in 1.26: use an exec plugin or a token");
  }
  const cert = material(
    value["client-certificate-data"],
    value["client-certificate"],
    file,
    `${where}: client-certificate-data`,
  );
  const key = material(value["client-key-data"], value["client-key"], file, `${where}: client-key-data`);
  if (cert !== undefined && key === undefined) {
    throw bad("has a client-certificate without a client-key: add client-key or client-key-data");
  }
  if (key !== undefined && cert === undefined) {
    throw bad(
      "has a client-key without a client-certificate: add client-certificate or client-certificate-data",
    );
  }
  const token =
    material("", value.tokenFile, file, "") ?? (value.token === "" ? undefined : { text: value.token });
  const basic = value.username === "" ? undefined : `${value.username}:${value.password}`;
  if (token !== undefined && basic !== undefined)
    throw bad("has both a token and a username: remove one of them");
  if (value.username === "" && value.password !== "") throw bad("has a password without a username");
  // A token beats the plugin, as in kubectl.
  const exec =
    value.exec == null || token !== undefined ? undefined : pluginOf(value.exec, where, file, cluster);
  return { cert, key, token, basic, exec };
}

function pluginOf(
  exec: v.InferOutput<typeof execSchema>,
  where: string,
  file: string,
  cluster: From<Cluster>,
): ExecPlugin {
  const bad = (what: string) => new ClusterError("bad_user", `exec plugin of ${where} ${what}`);
  const { apiVersion, command } = exec;
  if (
    apiVersion !== "client.authentication.k8s.io/v1" &&
    apiVersion !== "client.authentication.k8s.io/v1beta1"
  ) {
    throw bad(
      `has apiVersion "${apiVersion}"; client.authentication.k8s.io/v1 and v1beta1 are supported: update the plugin and this line`,
    );
  }
  if (command === "") throw bad("has no command");
  if (exec.interactiveMode === "Always") {
    throw bad("wants a terminal (interactiveMode: Always), and a daemon has none: use another credential");
  }
  return {
    apiVersion,
    command: command.includes("/") ? relativeTo(file, command) : command,
    args: exec.args ?? [],
    env: Object.fromEntries((exec.env ?? []).map((entry) => [entry.name, entry.value])),
    installHint: exec.installHint,
    cluster: exec.provideClusterInfo ? clusterInfo(cluster) : undefined,
  };
}

/** The cluster as client.authentication.k8s.io describes it to a plugin. */
function clusterInfo({ value, file }: From<Cluster>): Record<string, unknown> {
  const ca = material(value["certificate-authority-data"], value["certificate-authority"], file, "");
  let data = "";
  if (ca !== undefined) {
    data = value["certificate-authority-data"];
    if ("file" in ca) {
      try {
        data = readFileSync(ca.file).toString("base64");
      } catch {
        data = "";
      }
    }
  }
  const config = value.extensions?.find((entry) => entry.name === "client.authentication.k8s.io/exec");
  return {
    server: value.server,
    ...(value["tls-server-name"] === "" ? {} : { "tls-server-name": value["tls-server-name"] }),
    ...(value["insecure-skip-tls-verify"] === true ? { "insecure-skip-tls-verify": true } : {}),
    ...(data === "" ? {} : { "certificate-authority-data": data }),
    ...(value["proxy-url"] === "" ? {} : { "proxy-url": value["proxy-url"] }),
    ...(config === undefined ? {} : { config: config.extension }),
  };
}

/** Data wins over a file, as in kubectl. */
function material(data: string, path: string, file: string, what: string): Material | undefined {
  if (data !== "") {
    const text = Buffer.from(data, "base64").toString("utf8");
    if (text === "") throw new ClusterError("malformed", `${what} is not base64`);
    return { text };
  }
  return path === "" ? undefined : { file: relativeTo(file, path) };
}

function relativeTo(file: string, path: string): string {
  return isAbsolute(path) ? path : join(dirname(file), path);
}

function checkServer(server: string, where: string, kind: ClusterErrorKind): string {
  if (server === "") throw new ClusterError(kind, `${where} has no server`);
  const url = URL.canParse(server) ? new URL(server) : undefined;
  if (url === undefined || (url.protocol !== "https:" && url.protocol !== "http:") || url.hostname === "") {
    throw new ClusterError(kind, `${where} has server "${server}", which is not https://HOST:PORT`);
  }
  if (url.username !== "" || url.password !== "") {
    throw new ClusterError(
      kind,
      `${where} has a user name or password in its server's URL: use a user entry`,
    );
  }
  return server;
}

function checkProxy(proxy: string, where: string): void {
  const url = URL.canParse(proxy) ? new URL(proxy) : undefined;
  if (url === undefined || (url.protocol !== "https:" && url.protocol !== "http:")) {
    throw new ClusterError(
      "bad_cluster",
      `${where} is not http://HOST:PORT or https://HOST:PORT; other proxies (socks5) are not supported`,
    );
  }
}

/** Makes the source and fetches from it once, so that a missing file is said now and not at the first request. */
async function sourceOf(
  parts: CredentialParts,
  options: LoadClusterOptions,
  where: string,
): Promise<CredentialSource> {
  const source = createCredentialSource(parts, {
    clock: options.clock,
    env: options.env,
    onProblem: options.onProblem,
  });
  const first = await source.current();
  if (!isCredential(first)) throw new ClusterError("bad_credential", `credential of ${where}: ${first.why}`);
  return source;
}

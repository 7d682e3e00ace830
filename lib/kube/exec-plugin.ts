import { basename } from "node:path";
import * as v from "valibot";
import { type Clock, systemClock } from "./clock.ts";

/** An exec credential plugin as a kubeconfig describes it (client.authentication.k8s.io). */
export interface ExecPlugin {
  apiVersion: "client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1";
  /** A path, or a name looked up in PATH. */
  command: string;
  args: string[];
  env: Record<string, string>;
  installHint: string;
  /** The cluster as the plugin is told of it (provideClusterInfo); absent: it is not told. */
  cluster?: Record<string, unknown>;
}

/** What a plugin brought. */
export type ExecResult =
  | {
      ok: true;
      token: string;
      cert: string;
      key: string;
      /** Milliseconds since the epoch; Infinity when it does not say. */
      expiresAtMs: number;
    }
  | { ok: false; why: string };

/** Longest a plugin may take: it may talk to a cloud. */
export const execTimeoutMs = 60_000;
/** Largest output read. */
export const execOutputBytesMax = 1024 * 1024;

const credentialSchema = v.object({
  apiVersion: v.string(),
  kind: v.literal("ExecCredential"),
  status: v.object({
    expirationTimestamp: v.nullish(v.string()),
    token: v.nullish(v.string()),
    clientCertificateData: v.nullish(v.string()),
    clientKeyData: v.nullish(v.string()),
  }),
});

/**
 * Runs a credential plugin, never interactively. What it writes to standard error is repeated in an error
 * only as far as it cannot be a secret.
 *
 * @param env the environment it inherits
 */
export async function runExecPlugin(
  plugin: ExecPlugin,
  env: Readonly<Record<string, string | undefined>>,
  clock: Clock = systemClock,
): Promise<ExecResult> {
  const name = `exec plugin ${plugin.command}`;
  const spec: Record<string, unknown> = { interactive: false };
  if (plugin.cluster !== undefined) spec.cluster = plugin.cluster;
  const info = JSON.stringify({ apiVersion: plugin.apiVersion, kind: "ExecCredential", spec });
  const command = plugin.command.includes("/")
    ? plugin.command
    : Bun.which(plugin.command, { PATH: env.PATH ?? "" });
  const install = plugin.installHint === "" ? "" : `; ${plugin.installHint.trim()}`;
  if (command === null) {
    return {
      ok: false,
      why: `${name} of the kubeconfig is not in PATH: install it, or give its path${install}`,
    };
  }
  let child: Bun.Subprocess<"ignore", "pipe", "pipe">;
  try {
    child = Bun.spawn([command, ...plugin.args], {
      env: { ...env, ...plugin.env, KUBERNETES_EXEC_INFO: info },
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
    });
  } catch (error) {
    const what = error instanceof Error ? error.message : String(error);
    return { ok: false, why: `${name} of the kubeconfig cannot be run: ${what}${install}` };
  }
  let late = false;
  const cancel = clock.after(execTimeoutMs, () => {
    late = true;
    child.kill("SIGKILL");
  });
  const stop = () => child.kill("SIGKILL");
  const [output, complaint, code] = await Promise.all([
    readBounded(child.stdout, stop),
    readBounded(child.stderr, stop),
    child.exited,
  ]);
  cancel();
  if (late) return { ok: false, why: `${name} did not end within ${execTimeoutMs} ms; run it by hand` };
  if (output === undefined || complaint === undefined) {
    return { ok: false, why: `${name} wrote more than ${execOutputBytesMax} bytes` };
  }
  if (code !== 0) {
    const said = withoutSecrets(complaint);
    return { ok: false, why: `${name} failed with exit code ${code}${said === "" ? "" : `: ${said}`}` };
  }
  let value: unknown;
  try {
    value = JSON.parse(output);
  } catch {
    return { ok: false, why: `${name} wrote ${output.length} characters that are not JSON` };
  }
  const parsed = v.safeParse(credentialSchema, value);
  if (!parsed.success) return { ok: false, why: `${name} wrote no ExecCredential with a status` };
  const { apiVersion, status } = parsed.output;
  if (apiVersion !== plugin.apiVersion) {
    return {
      ok: false,
      why: `${name} answered in ${apiVersion}, the kubeconfig says ${plugin.apiVersion}: make them agree`,
    };
  }
  const token = status.token ?? "";
  const cert = status.clientCertificateData ?? "";
  const key = status.clientKeyData ?? "";
  if ((cert === "") !== (key === "")) {
    return { ok: false, why: `${name} gave a certificate without its key, or a key without its certificate` };
  }
  if (token === "" && cert === "") return { ok: false, why: `${name} gave neither token nor certificate` };
  let expiresAtMs = Number.POSITIVE_INFINITY;
  if (status.expirationTimestamp != null) {
    expiresAtMs = Date.parse(status.expirationTimestamp);
    if (Number.isNaN(expiresAtMs)) {
      return { ok: false, why: `${name} gave an expirationTimestamp that is no time` };
    }
  }
  return { ok: true, token, cert, key, expiresAtMs };
}

/** The last line of a complaint, with whatever could be a secret (long runs without spaces) taken out. */
function withoutSecrets(text: string): string {
  const line = text.trim().split("\n").at(-1) ?? "";
  return line
    .slice(0, 300)
    .replace(/[A-Za-z0-9+/_=.-]{24,}/g, (run) => (run.startsWith("/") ? basename(run).slice(0, 24) : "…"))
    .trim();
}

async function readBounded(
  stream: ReadableStream<Uint8Array>,
  tooMuch: () => void,
): Promise<string | undefined> {
  const chunks: Uint8Array[] = [];
  let total = 0;
  for await (const chunk of stream) {
    total += chunk.byteLength;
    if (total > execOutputBytesMax) {
      tooMuch();
      return undefined;
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks, total).toString("utf8");
}

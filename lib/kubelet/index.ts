/** The kubelet API: HTTPS for the API server, metrics-server and Prometheus; nothing of it without a verdict but /healthz. */
import { readFileSync, statSync } from "node:fs";
import type { HostPort } from "../config/index.ts";
import type { Clock, KubeClient } from "../kube/index.ts";
import { type Log, silent } from "../log/index.ts";
import { isWholePem } from "../pem.ts";
import { authorizer } from "./auth.ts";
import { selfSigned } from "./certificate.ts";
import { type Content, router } from "./routes.ts";
import { type Listening, server, type TlsFiles } from "./server.ts";

export type { Content } from "./routes.ts";
export type { Listening } from "./server.ts";

/** How often certificate, key and client CA are looked at for changes. */
export const reloadMs = 30_000;
const fileBytesMax = 1024 * 1024;

export interface KubeletOptions {
  listen: HostPort;
  /** Both or neither; neither means self-signed. */
  certFile?: string | undefined;
  keyFile?: string | undefined;
  clientCaFile?: string | undefined;
  nodeName: string;
  nodeIP?: string | undefined;
  kube: Pick<KubeClient, "request">;
  content: Content;
  clock: Clock;
  log?: Log;
}

export interface KubeletApi {
  /** Listens. A failure is one sentence with the next step; fatal at start. */
  start(): Promise<Listening>;
  stop(): void;
  readonly connections: number;
}

/** Makes the kubelet API. @example const listening = await createKubelet({ … }).start() */
export function createKubelet(options: KubeletOptions): KubeletApi {
  const { listen, certFile, keyFile, clientCaFile, nodeName, nodeIP, kube, content, clock } = options;
  const log = options.log ?? silent;
  const answer = router({
    content,
    authorizer: authorizer({ kube, nodeName, clock }),
    onFault: (path, error) => log.error("the kubelet API failed to answer", { path, error }),
  });
  const serving = server({ clock, answer });
  const files = [certFile, keyFile, clientCaFile].filter((file) => file !== undefined);
  let generated: Awaited<ReturnType<typeof selfSigned>> | undefined;
  let port = listen.port;
  let seen = "";
  let stopped = false;
  let cancel = () => {};

  const load = async (): Promise<{ ok: true; tls: TlsFiles } | { ok: false; message: string }> => {
    const clientCa = clientCaFile === undefined ? undefined : readPem(clientCaFile, "--client-ca-file");
    if (clientCa?.ok === false) return clientCa;
    if (certFile === undefined || keyFile === undefined) {
      const names = [nodeName, ...(nodeIP === undefined ? [] : [nodeIP]), "127.0.0.1"];
      generated ??= await selfSigned(names, clock.now());
      return { ok: true, tls: { ...generated, clientCa: clientCa?.text } };
    }
    const cert = readPem(certFile, "--tls-cert");
    if (!cert.ok) return cert;
    const key = readPem(keyFile, "--tls-key");
    if (!key.ok) return key;
    return { ok: true, tls: { cert: cert.text, key: key.text, clientCa: clientCa?.text } };
  };

  const open = async (): Promise<Listening> => {
    const loaded = await load();
    if (!loaded.ok) return loaded;
    if (stopped) return { ok: false, message: "the kubelet API was stopped" };
    return serving.listen(listen.host, port, loaded.tls);
  };

  const look = async () => {
    const now = fingerprint(files);
    if (now !== seen) {
      const listening = await open();
      if (listening.ok) {
        seen = now;
        log.info("the kubelet API's certificates were read again", { files: files.join(",") });
      } else if (!stopped)
        log.warn("the kubelet API's new certificates are not used yet", { why: listening.message });
    }
    if (!stopped) cancel = clock.after(reloadMs, () => void look());
  };

  return {
    async start() {
      seen = fingerprint(files);
      const listening = await open();
      if (!listening.ok) return listening;
      port = listening.port;
      if (files.length > 0) cancel = clock.after(reloadMs, () => void look());
      return listening;
    },
    stop() {
      stopped = true;
      cancel();
      serving.stop();
    },
    get connections() {
      return serving.connections;
    },
  };
}

function readPem(path: string, flag: string): { ok: true; text: string } | { ok: false; message: string } {
  try {
    const { size } = statSync(path);
    if (size > fileBytesMax)
      return { ok: false, message: `${flag} ${path} is larger than ${fileBytesMax} bytes; give a PEM file` };
    const text = readFileSync(path, "utf8");
    if (!isWholePem(text))
      return {
        ok: false,
        message: `${flag} ${path} is not PEM, or cut off; give a file of whole PEM blocks`,
      };
    return { ok: true, text };
  } catch (error) {
    const code = error instanceof Error && "code" in error ? String(error.code) : String(error);
    return { ok: false, message: `${flag} ${path} cannot be read (${code}); check path and permissions` };
  }
}

/** Changes when one of the files is written or replaced. */
function fingerprint(files: readonly string[]): string {
  return files
    .map((file) => {
      try {
        const { ino, size, mtimeMs, ctimeMs } = statSync(file);
        return `${ino}:${size}:${mtimeMs}:${ctimeMs}`;
      } catch {
        return "unreadable";
      }
    })
    .join("|");
}

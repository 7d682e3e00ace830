import { readFileSync, type Stats, statSync } from "node:fs";
import { type Clock, isRecent, systemClock } from "./clock.ts";
import type { ClientTls, Credential, CredentialFailure, CredentialSource } from "./credentials.ts";
import { type ExecPlugin, type ExecResult, runExecPlugin } from "./exec-plugin.ts";
import { materialFault } from "./tls-material.ts";

/** PEM or a token, as it stands in the configuration or in a file that may be replaced. */
export type Material = { text: string } | { file: string };

/** What a credential is made of. */
export interface CredentialParts {
  ca?: Material;
  cert?: Material;
  key?: Material;
  token?: Material;
  /** user:password for Basic authorization. */
  basic?: string;
  exec?: ExecPlugin;
  rejectUnauthorized?: boolean;
  serverName?: string;
}

export interface CredentialSourceOptions {
  clock?: Clock;
  /** What an exec plugin inherits. */
  env?: Readonly<Record<string, string | undefined>>;
  /** A credential could not be renewed and the last good one is kept. */
  onProblem?: (why: string) => void;
  /** For tests. */
  run?: typeof runExecPlugin;
  /** For tests, whose PEM need not be any. */
  faultOf?: typeof materialFault;
}

/** How often files are looked at (one stat each). */
export const fileCheckMs = 10_000;
/** An exec credential is renewed this long before it expires, or a tenth of its life if that is less. */
export const renewAheadMs = 60_000;
/** Least time between two runs of a plugin, so that a plugin that fails is not run for each request. */
export const execRetryMs = 5_000;
/** Largest file read. */
const fileBytesMax = 1024 * 1024;

/**
 * Makes a credential of files, data and an exec plugin, and keeps it current: files are re-read when they
 * changed, the plugin is run again before its credential expires, and both after a 401.
 */
export function createCredentialSource(
  parts: CredentialParts,
  options: CredentialSourceOptions = {},
): CredentialSource {
  const {
    clock = systemClock,
    env = {},
    onProblem = () => {},
    run = runExecPlugin,
    faultOf = materialFault,
  } = options;
  const files = [parts.ca, parts.cert, parts.key, parts.token].flatMap((part) =>
    part !== undefined && "file" in part ? [part.file] : [],
  );
  const { exec } = parts;

  let credential: Credential | undefined;
  let failure: CredentialFailure = { why: "no credential was read yet" };
  let stamp = "";
  let checkedAtMs = Number.NEGATIVE_INFINITY;

  let execResult: Extract<ExecResult, { ok: true }> | undefined;
  let execFailure: CredentialFailure | undefined;
  let execRanAtMs = Number.NEGATIVE_INFINITY;
  let execRenewAtMs = 0;
  let running: Promise<void> | undefined;

  /** Reads all parts anew. Keeps the last good credential when one cannot be read. Returns whether all could be. */
  function read(): boolean {
    try {
      const tls: ClientTls = {
        ca: parts.ca && text("CA file", parts.ca, "CERTIFICATE"),
        cert: execResult?.cert || (parts.cert && text("client certificate", parts.cert, "CERTIFICATE")),
        key: execResult?.key || (parts.key && text("client key", parts.key, "PRIVATE KEY")),
        rejectUnauthorized: parts.rejectUnauthorized,
        serverName: parts.serverName,
      };
      const token =
        parts.token === undefined ? (execResult?.token ?? "") : text("token file", parts.token, "");
      let authorization = "";
      if (token !== "") authorization = `Bearer ${token}`;
      else if (parts.basic !== undefined) {
        authorization = `Basic ${Buffer.from(parts.basic).toString("base64")}`;
      }
      const last = credential;
      if (last !== undefined && sameTls(last.tls, tls)) {
        // The same TLS object keeps the connections; the same credential keeps the headers.
        if (last.authorization !== authorization) credential = { authorization, tls: last.tls };
      } else {
        // Half a rotation must not cost us the half that works.
        const fault = last === undefined ? undefined : faultOf(tls);
        if (fault !== undefined) throw new Error(fault);
        credential = { authorization, tls };
      }
      return true;
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      if (credential !== undefined && why !== failure.why) onProblem(`${why}; the last good one is kept`);
      failure = { why };
      return false;
    }
  }

  /** What tells whether a file was replaced: symlinks are followed, as Kubernetes swaps a directory under them. */
  function stampOf(): string {
    let all = "";
    for (const file of files) {
      const stat = statOf(file);
      all +=
        typeof stat === "string" ? `${stat};` : `${stat.ino}:${stat.size}:${stat.mtimeMs}:${stat.ctimeMs};`;
    }
    return all;
  }

  function checkFiles(nowMs: number): void {
    checkedAtMs = nowMs;
    const found = stampOf();
    if (found === stamp && credential !== undefined) return;
    // What could not be read is read again next time, whatever the files' times say.
    stamp = read() ? found : "";
  }

  async function runPlugin(plugin: ExecPlugin): Promise<void> {
    execRanAtMs = clock.now();
    const result = await run(plugin, env, clock);
    const nowMs = clock.now();
    const fault = result.ok && result.cert ? faultOf({ cert: result.cert, key: result.key }) : undefined;
    if (result.ok && result.expiresAtMs > nowMs && fault === undefined) {
      execResult = result;
      execFailure = undefined;
      const ahead = Math.min(renewAheadMs, (result.expiresAtMs - nowMs) / 10);
      execRenewAtMs =
        result.expiresAtMs === Number.POSITIVE_INFINITY ? result.expiresAtMs : result.expiresAtMs - ahead;
      read();
      return;
    }
    const why = result.ok
      ? `exec plugin ${plugin.command} gave a credential that ${fault === undefined ? "has expired already" : `cannot be used: ${fault}`}`
      : result.why;
    execFailure = { why };
    if (execResult !== undefined) onProblem(`${why}; the last good credential is used while it lasts`);
  }

  function startPlugin(plugin: ExecPlugin): Promise<void> {
    running ??= runPlugin(plugin).finally(() => {
      running = undefined;
    });
    return running;
  }

  function usable(nowMs: number): Credential | CredentialFailure {
    if (exec !== undefined && (execResult === undefined || nowMs >= execResult.expiresAtMs)) {
      return execFailure ?? { why: `the credential of exec plugin ${exec.command} has expired` };
    }
    return credential ?? failure;
  }

  return {
    current() {
      const nowMs = clock.now();
      if ((files.length > 0 || credential === undefined) && !isRecent(nowMs, checkedAtMs, fileCheckMs))
        checkFiles(nowMs);
      if (exec === undefined) return credential ?? failure;
      const valid = execResult !== undefined && nowMs < execResult.expiresAtMs;
      if (valid && nowMs < execRenewAtMs) return usable(nowMs);
      const mayRun = running !== undefined || Math.abs(nowMs - execRanAtMs) >= execRetryMs;
      if (!mayRun) return usable(nowMs);
      const renewal = startPlugin(exec);
      return valid ? usable(nowMs) : renewal.then(() => usable(clock.now()));
    },
    rejected(refused) {
      if (refused !== credential) return;
      checkedAtMs = Number.NEGATIVE_INFINITY;
      // As if expired: the next request waits for the plugin, unless it has just been run.
      if (
        exec !== undefined &&
        execResult !== undefined &&
        Math.abs(clock.now() - execRanAtMs) >= execRetryMs
      ) {
        execResult = undefined;
      }
    },
  };
}

function text(what: string, material: Material, pem: string): string {
  let found: string;
  let where: string;
  if ("text" in material) {
    found = material.text;
    where = `the kubeconfig's own ${what.replace(" file", "")}`;
  } else {
    where = `${what} ${material.file}`;
    const stat = statOf(material.file);
    if (stat === "ENOENT") {
      throw new Error(`${where} does not exist: put it there, or correct its path`);
    }
    if (typeof stat === "string") throw new Error(`${where} cannot be read (${stat}): check its permissions`);
    if (stat.size > fileBytesMax) throw new Error(`${where} is larger than ${fileBytesMax} bytes`);
    try {
      found = readFileSync(material.file, "utf8");
    } catch (error) {
      throw new Error(`${where} cannot be read (${errorCode(error)}): check its permissions`);
    }
  }
  if (pem === "") {
    found = found.trim();
    if (found === "") throw new Error(`${where} is empty, a token was expected`);
    // A header cannot carry these; fetch would say so with the token in its message.
    if (/[^\x21-\x7e]/.test(found)) throw new Error(`${where} holds no token: it has spaces or line breaks`);
  } else if (!new RegExp(`-----BEGIN [A-Z ]*${pem}-----`).test(found)) {
    throw new Error(`${where} holds no PEM ${pem.toLowerCase()}`);
  }
  return found;
}

function statOf(file: string): Stats | string {
  try {
    return statSync(file);
  } catch (error) {
    return errorCode(error);
  }
}

function errorCode(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "unknown error";
}

function sameTls(a: ClientTls, b: ClientTls): boolean {
  return (
    a.ca === b.ca &&
    a.cert === b.cert &&
    a.key === b.key &&
    a.rejectUnauthorized === b.rejectUnauthorized &&
    a.serverName === b.serverName
  );
}

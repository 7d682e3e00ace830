/** A credential kept in a file: read with care for who else may read it, and read again when it changes. */
import { closeSync, fstatSync, openSync, readSync, statSync } from "node:fs";

/** What a token file holds, or why it is not used. A warning does not keep it from being used. */
export type TokenRead = { ok: true; token: string; warning?: string } | { ok: false; reason: string };

const tokenBytesMax = 4096;

/**
 * Reads a token file: a regular file of at most 4 KiB, not readable by everyone, holding one word of visible
 * ASCII between optional white space. Group-readable is used with a warning, since a group is how many hosts
 * share a secret with one service. Returns a reason naming the path and the next step instead of throwing.
 */
export function readTokenFile(path: string): TokenRead {
  const bad = (reason: string): TokenRead => ({ ok: false, reason: `token file ${path} ${reason}` });
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch (error) {
    const code = codeOf(error);
    if (code === "ENOENT")
      return bad("does not exist; write sandboxd's api_token into it, or correct the path");
    if (code === "EACCES" || code === "EPERM")
      return bad("is not readable by this user; chown it to the user that runs vk-sandbox");
    return bad(`cannot be opened (${code}); check the path`);
  }
  try {
    const stat = fstatSync(fd);
    if (!stat.isFile()) return bad("is not a regular file; give the file that holds the token");
    if ((stat.mode & 0o007) !== 0)
      return bad(
        `is open to every user of this host (mode ${modeText(stat.mode)}); chmod 600 it, and change the token`,
      );
    const buffer = Buffer.alloc(tokenBytesMax + 1);
    const bytes = readSync(fd, buffer, 0, buffer.length, 0);
    if (bytes > tokenBytesMax)
      return bad(`holds more than ${tokenBytesMax} bytes; it should hold the token alone`);
    const token = buffer.toString("latin1", 0, bytes).trim();
    if (token === "") return bad("is empty; write sandboxd's api_token into it");
    // A line break or a control byte inside would end up in an HTTP header.
    if (!/^[\x21-\x7e]+$/.test(token))
      return bad("holds more than one word of visible ASCII; it should hold the token alone");
    if ((stat.mode & 0o070) === 0) return { ok: true, token };
    return {
      ok: true,
      token,
      warning: `token file ${path} is open to its group (mode ${modeText(stat.mode)}); chmod 600 is safer`,
    };
  } catch (error) {
    return bad(`cannot be read (${codeOf(error)}); check the file system it lies on`);
  } finally {
    closeSync(fd);
  }
}

function modeText(mode: number): string {
  return (mode & 0o777).toString(8).padStart(4, "0");
}

function codeOf(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "unknown error";
}

/** A token that follows its file. */
export interface TokenFile {
  /** The newest token that could be read. */
  current(): string;
  /**
   * Looks whether the file changed and reads it again. `changed` carries the new token, for redaction; a
   * fault keeps the old token in use, because a half-written rotation must not cut us off.
   */
  refresh():
    | { kind: "same" }
    | { kind: "changed"; token: string; warning?: string }
    | { kind: "failed"; reason: string };
}

/** Follows a token file that was read as `first`. One stat per refresh while nothing changes. */
export function tokenFile(path: string, first: string): TokenFile {
  let token = first;
  // Empty: the file may have changed since `first` was read, so the first refresh reads it again.
  let seen = "";
  return {
    current: () => token,
    refresh() {
      const now = fingerprint(path);
      if (now === seen) return { kind: "same" };
      const read = readTokenFile(path);
      // `seen` moves only on success: a failed read is tried again next time, whatever the file's times say.
      if (!read.ok) return { kind: "failed", reason: read.reason };
      seen = now;
      if (read.token === token) return { kind: "same" };
      token = read.token;
      return { kind: "changed", token, warning: read.warning };
    },
  };
}

/** Changes when a file is written or replaced; Kubernetes replaces the symlinked directory, so stat follows links. */
function fingerprint(path: string): string {
  try {
    const stat = statSync(path);
    return `${stat.ino}:${stat.size}:${stat.mtimeMs}:${stat.ctimeMs}`;
  } catch (error) {
    return codeOf(error);
  }
}

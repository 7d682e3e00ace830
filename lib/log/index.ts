/**
 * The daemon's log: text for people on a terminal, one JSON object a line elsewhere. A call costs a string and
 * an append; writing happens behind it, in batches, into a buffer with a bound, so that a reader that is slow,
 * stuck or gone costs lines and never the daemon.
 */
import { fdSink, type Sink } from "./sink.ts";

export { fdSink, type Sink } from "./sink.ts";
export { isTerminal } from "./terminal.ts";

export const levels = ["debug", "info", "warn", "error"] as const;
export type Level = (typeof levels)[number];

/** What a line may carry beside its message. Errors give their message, objects their JSON. */
export type Fields = Readonly<Record<string, unknown>>;

export interface Log {
  debug(message: string, fields?: Fields): void;
  info(message: string, fields?: Fields): void;
  warn(message: string, fields?: Fields): void;
  error(message: string, fields?: Fields): void;
  /** The same log with fields that every line carries. */
  with(fields: Fields): Log;
  /**
   * From now on this text is replaced wherever it occurs in a line. For the few long-lived credentials (the
   * root token, the API's): at most 64 are kept, the oldest goes. Texts under 8 characters are not taken,
   * since replacing them would damage every other line.
   */
  redact(secret: string): void;
  /** Whether a line of this level would be written: for fields that cost something to make. */
  enabled(level: Level): boolean;
  /** Waits until what was logged is written, at most `timeoutMs`. Returns whether it was. */
  flush(timeoutMs: number): Promise<boolean>;
  /** Writes what is left at once, blocking: for the last words before the process ends. */
  flushSync(): void;
}

export interface LogOptions {
  /** auto: text when `terminal`, JSON otherwise. Default auto. */
  format?: "auto" | "text" | "json";
  /** Default info. */
  level?: Level;
  /** Whether a person watches; also turns on colours. Default false. */
  terminal?: boolean;
  /** Default: file descriptor 1. */
  sink?: Sink;
  /** Milliseconds since the epoch. Default Date.now. */
  now?: () => number;
}

/** Longest line in characters; what is above is cut and marked. */
export const lineCharsMax = 8192;
/** Longest field value in characters. */
export const valueCharsMax = 2048;
/** Fields of one line; more are counted and left out. */
export const fieldsMax = 32;
const secretsMax = 64;
const secretCharsMin = 8;

/** Names of fields whose value is a credential, whatever it is: token, releaseToken, Authorization, api_token. */
const secretName =
  /(^|[^a-z])(token|authorization|password|secret|credentials?|bearer)$|(Token|Authorization|Password|Secret)$/i;
/** Field names that were asked about already: they come from code, so they are few. */
const knownNames = new Map<string, boolean>();
const knownNamesMax = 512;

function isSecretName(name: string): boolean {
  const known = knownNames.get(name);
  if (known !== undefined) return known;
  const secret = secretName.test(name);
  if (knownNames.size < knownNamesMax) knownNames.set(name, secret);
  return secret;
}

const bearer = /\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}/g;
export const redacted = "[redacted]";
const unprintable = /[\p{Cc}\u2028\u2029]/gu;

const tags: Record<Level, string> = { debug: "DBG", info: "INF", warn: "WRN", error: "ERR" };
const colours: Record<Level, number> = { debug: 90, info: 36, warn: 33, error: 31 };

/** Makes a log. @example createLog({ terminal: isTerminal(1) }).info("claimed", { pod: "ns/a", claim: "sb_1" }) */
export function createLog(options: LogOptions = {}): Log {
  const { format = "auto", level = "info", terminal = false, sink = fdSink(1), now = Date.now } = options;
  const text = format === "text" || (format === "auto" && terminal);
  const lowest = levels.indexOf(level);
  const secrets: string[] = [];

  const scrub = (line: string): string => {
    let clean =
      line.includes("earer ") || line.includes("asic ") ? line.replace(bearer, `$1 ${redacted}`) : line;
    for (const secret of secrets) if (clean.includes(secret)) clean = clean.replaceAll(secret, redacted);
    return clean;
  };

  const write = (at: Level, message: string, inherited: Fields, fields: Fields | undefined) => {
    if (levels.indexOf(at) < lowest) return;
    const atMs = now();
    const all = plain(fields === undefined ? inherited : { ...inherited, ...fields });
    const line = text ? textLine(at, atMs, message, all, terminal) : jsonLine(at, atMs, message, all);
    sink.write(`${scrub(line)}\n`);
  };

  const make = (inherited: Fields): Log => ({
    debug: (message, fields) => write("debug", message, inherited, fields),
    info: (message, fields) => write("info", message, inherited, fields),
    warn: (message, fields) => write("warn", message, inherited, fields),
    error: (message, fields) => write("error", message, inherited, fields),
    with: (fields) => make({ ...inherited, ...fields }),
    redact(secret) {
      if (secret.length < secretCharsMin || secrets.includes(secret)) return;
      if (secrets.length === secretsMax) secrets.shift();
      secrets.push(secret);
    },
    enabled: (at) => levels.indexOf(at) >= lowest,
    flush: (timeoutMs) => sink.flush(timeoutMs),
    flushSync: () => sink.flushSync(),
  });
  return make({});
}

/** A log that says nothing: for tests and for callers that were given none. */
export const silent: Log = {
  debug() {},
  info() {},
  warn() {},
  error() {},
  with: () => silent,
  redact() {},
  enabled: () => false,
  flush: () => Promise.resolve(true),
  flushSync() {},
};

type Plain = [name: string, value: string | number | boolean | null][];

function plain(fields: Fields): Plain {
  const out: Plain = [];
  let left = 0;
  for (const name in fields) {
    const value = fields[name];
    if (value === undefined) continue;
    if (out.length === fieldsMax) left++;
    else out.push([name, isSecretName(name) ? redacted : scalar(value)]);
  }
  if (left > 0) out.push(["fieldsLeftOut", left]);
  return out;
}

function scalar(value: unknown): string | number | boolean | null {
  switch (typeof value) {
    case "string":
      return cut(value);
    case "number":
    case "boolean":
      return value;
    case "object":
      if (value === null) return null;
      if (value instanceof Error) return cut(value.message === "" ? value.name : value.message);
      return cut(json(value));
    default:
      return cut(String(value));
  }
}

function json(value: object): string {
  try {
    return (
      JSON.stringify(value, (key, inner: unknown) => (key !== "" && isSecretName(key) ? redacted : inner)) ??
      ""
    );
  } catch {
    // A cycle or a BigInt: a log line is no reason to fail.
    return "[unprintable]";
  }
}

function cut(text: string): string {
  return text.length <= valueCharsMax ? text : `${text.slice(0, valueCharsMax)}…(${text.length} characters)`;
}

function jsonLine(level: Level, atMs: number, message: string, fields: Plain): string {
  let line = `{"time":"${new Date(atMs).toISOString()}","level":"${level}","msg":${JSON.stringify(cut(message))}`;
  for (const [name, value] of fields) {
    // A field may not take the place of the line's own three.
    const key = name === "time" || name === "level" || name === "msg" ? `_${name}` : name;
    const part = `,${JSON.stringify(key)}:${JSON.stringify(value)}`;
    // A cut JSON line would be unreadable to machines: whole fields are left out instead.
    if (line.length + part.length > lineCharsMax - 20) return `${line},"cut":true}`;
    line += part;
  }
  return `${line}}`;
}

function textLine(level: Level, atMs: number, message: string, fields: Plain, colour: boolean): string {
  const time = new Date(atMs).toISOString();
  const tag = colour ? `\x1b[${colours[level]}m${tags[level]}\x1b[0m` : tags[level];
  let line = `${time} ${tag} ${printable(cut(message))}`;
  for (const [name, value] of fields) {
    const shown =
      typeof value === "string" && /[\s"=]/.test(value) ? JSON.stringify(value) : printable(String(value));
    line += colour ? ` \x1b[90m${name}=\x1b[0m${shown}` : ` ${name}=${shown}`;
  }
  return line.length <= lineCharsMax ? line : `${line.slice(0, lineCharsMax)}…`;
}

/** Control characters from outside (a Pod name is safe, a server's error text is not) must not drive a terminal or fake a line. */
function printable(text: string): string {
  return text.replace(unprintable, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

/** Which known word a misspelt one was meant to be. */
import { nearest } from "../config/index.ts";
import {
  cocoonKeys,
  cocoonSetPrefix,
  isContractKey,
  sandboxKeys,
  sandboxPrefix,
  vmPrefix,
} from "./contract.ts";

const knownKeys: readonly string[] = [...sandboxKeys, ...cocoonKeys];
const prefixes: readonly string[] = [sandboxPrefix, vmPrefix, cocoonSetPrefix];

/** Keys under our prefix that others write: labels of the operator's aggregated API. */
const foreignKeys = new Set(["node", "phase", "claim"].map((name) => sandboxPrefix + name));

/** An annotation key that nobody reads but that looks like one of the contract's. */
export interface Misspelt {
  /** The key that was meant; absent when none is near. */
  meant?: string;
}

/** Whether `key` is a misspelt key of the contract; undefined when it is right, or nothing to do with it. */
export function misspeltKey(key: string): Misspelt | undefined {
  if (knownKeys.includes(key) || foreignKeys.has(key)) return undefined;
  const slash = key.indexOf("/");
  if (slash < 0) return undefined;
  const prefix = key.slice(0, slash + 1);
  const name = key.slice(slash + 1);
  if (isContractKey(key)) {
    // vk-cocoon's two prefixes are easily taken for each other.
    const swapped = prefix === sandboxPrefix ? undefined : exactName(name, [vmPrefix, cocoonSetPrefix]);
    const meant = swapped ?? nearestName(name, [prefix]);
    return meant === undefined ? {} : { meant };
  }
  const near = nearPrefix(prefix.toLowerCase());
  if (near === undefined) return undefined;
  const meant = nearestName(name, [near]);
  return meant === undefined ? undefined : { meant };
}

/** `sandboxes.`, `.com`, a letter lost: more than this is another organisation's prefix. */
const prefixCharsMax = 3;

function nearPrefix(prefix: string): string | undefined {
  if (prefix === "cocoonstack.io/") return sandboxPrefix;
  if (!prefix.includes("cocoon")) return undefined;
  return prefixes.find((known) => differingChars(prefix, known) <= prefixCharsMax);
}

/** Length of the middle in which two words differ. */
function differingChars(a: string, b: string): number {
  const shorter = Math.min(a.length, b.length);
  let head = 0;
  while (head < shorter && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < shorter - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  return Math.max(a.length, b.length) - head - tail;
}

function namesOf(prefix: string): string[] {
  return knownKeys.filter((key) => key.startsWith(prefix)).map((key) => key.slice(prefix.length));
}

function exactName(name: string, among: readonly string[]): string | undefined {
  const prefix = among.find((candidate) => namesOf(candidate).includes(bare(name)));
  return prefix === undefined ? undefined : prefix + bare(name);
}

function nearestName(name: string, among: readonly string[]): string | undefined {
  for (const prefix of among) {
    const names = namesOf(prefix);
    const meant =
      names.find((known) => squeezed(known) === squeezed(name)) ??
      (name.length >= 3 ? names.find((known) => known.startsWith(`${bare(name)}-`)) : undefined) ??
      nearest(bare(name), names);
    if (meant !== undefined) return prefix + meant;
  }
  return undefined;
}

/** `ttlSeconds`, `TTL_seconds` and `ttl-seconds` are one word. */
function squeezed(name: string): string {
  return name.toLowerCase().replace(/[^a-z0-9]/g, "");
}

function bare(name: string): string {
  return name.trim().toLowerCase();
}

/** The choice that a value was meant to be: another case, spaces around it, or a typing mistake away. */
export function meantValue(value: string, choices: readonly string[]): string | undefined {
  const plain = bare(value);
  return (
    choices.find((choice) => choice === plain) ?? (plain.length < 2 ? undefined : nearest(plain, choices))
  );
}

const trueWords = new Set(["true", "yes", "y", "on", "1", "t", "enabled"]);
const falseWords = new Set(["false", "no", "n", "off", "0", "f", "disabled", ""]);

/** The boolean that a value was meant to be, as the contract writes it. */
export function meantBoolean(value: string): "true" | "false" | undefined {
  const plain = bare(value);
  if (trueWords.has(plain)) return "true";
  return falseWords.has(plain) ? "false" : undefined;
}

const unitSeconds: Readonly<Record<string, number>> = { d: 86_400, h: 3_600, m: 60, s: 1 };

/** The whole seconds that a ttl was meant to be: `1h`, `90m`, `3600s`, `3600.0`, ` 60 `; undefined when it cannot be told. */
export function meantSeconds(value: string): number | undefined {
  const plain = bare(value).replaceAll("_", "");
  const decimal = /^\+?(\d{1,10})(\.0*)?$/.exec(plain);
  if (decimal !== null) return Number(decimal[1]);
  if (!/^(\d{1,7}\s*(d|h|m|s|sec|secs|seconds|min|mins|minutes|hours?|days?)\s*)+$/.test(plain))
    return undefined;
  let seconds = 0;
  for (const [, amount, unit] of plain.matchAll(/(\d+)\s*([a-z])[a-z]*/g))
    seconds += Number(amount) * (unitSeconds[unit ?? ""] ?? 0);
  return seconds;
}

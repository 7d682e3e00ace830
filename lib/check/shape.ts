/** Reading untyped data: each function takes anything and answers with its type, empty when it is something else. */

export function isMap(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The value as a map; an empty one when it is none. */
export function mapOf(value: unknown): Record<string, unknown> {
  return isMap(value) ? value : {};
}

/** The value as a list; an empty one when it is none. */
export function listOf(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

/** The value as a string; empty when it is none. */
export function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** The value at a path of maps and lists; undefined when something on the way is missing. */
export function at(value: unknown, ...path: readonly (string | number)[]): unknown {
  let current = value;
  for (const step of path) {
    if (typeof step === "number") current = listOf(current)[step];
    else if (isMap(current) && Object.hasOwn(current, step)) current = current[step];
    else return undefined;
  }
  return current;
}

/** Entries of a map whose values are strings: labels, annotations, selectors. */
export function stringsOf(value: unknown): Record<string, string> {
  const strings: Record<string, string> = {};
  for (const [key, entry] of Object.entries(mapOf(value)))
    if (typeof entry === "string") strings[key] = entry;
  return strings;
}

/** A path as people write it: `spec.containers[0].image`, `metadata.annotations["a.b/c"]`. */
export function pathText(path: readonly (string | number)[]): string {
  let text = "";
  for (const step of path) {
    if (typeof step === "number") text += `[${step}]`;
    else if (/^[A-Za-z_][\w-]*$/.test(step)) text += text === "" ? step : `.${step}`;
    else text += `[${JSON.stringify(step)}]`;
  }
  return text;
}

const shownCharsMax = 80;

/** A value of a manifest inside a message: quoted, on one line, cut when it is long. */
export function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? "nothing";
  return text.length > shownCharsMax ? `${text.slice(0, shownCharsMax)}…` : text;
}

/**
 * Field and label selectors of lists and watches, as far as the API server has them for the served resources.
 */
import type { KubeObject } from "./kubestore.ts";
import { isObject, type Json } from "./patch.ts";
import type { Resource } from "./resources.ts";
import { badRequest } from "./status.ts";

/** Whether an object is selected. */
export type Selector = (object: KubeObject) => boolean;

/**
 * Reads `fieldSelector` and `labelSelector`. Throws BadRequest for a field the resource is not selected by, and for
 * label selectors beyond `name=value`, `name!=value`, `name` and `!name`.
 */
export function parseSelector(resource: Resource, fields: string, labels: string): Selector {
  const tests: Selector[] = [];
  for (const term of terms(fields)) {
    const [, path = "", operator = "", value = ""] = /^([^=!]+)(==?|!=)(.*)$/.exec(term) ?? [];
    const known =
      path === "metadata.name" || path === "metadata.namespace" || resource.fields?.includes(path);
    if (!known) throw badRequest(`field label not supported: ${path || term}`);
    const steps = path.split(".");
    const equal = operator !== "!=";
    tests.push((object) => (valueAt(object, steps) === value) === equal);
  }
  for (const term of terms(labels)) {
    const [, not, name = "", operator, value = ""] =
      /^(!?)([^=!\s]+)(?:\s*(==?|!=)\s*(.*))?$/.exec(term) ?? [];
    if (name === "" || /[()]/.test(term)) throw badRequest(`unable to parse label selector: ${term}`);
    tests.push((object) => {
      const label = object.metadata.labels?.[name];
      if (operator === undefined) return (label === undefined) === (not === "!");
      return (label === value) === (operator !== "!=");
    });
  }
  const [only] = tests;
  if (!only) return () => true;
  return tests.length === 1 ? only : (object) => tests.every((test) => test(object));
}

function terms(selector: string): string[] {
  return selector
    .split(",")
    .map((term) => term.trim())
    .filter((term) => term !== "");
}

function valueAt(object: KubeObject, steps: string[]): string {
  let value: Json | undefined = object;
  for (const step of steps) value = isObject(value) ? value[step] : undefined;
  return value === undefined || value === null ? "" : String(value);
}

/**
 * The API server's patches: strategic merge, JSON merge, and apply reduced to a merge. Values are never changed in
 * place; what a patch does not touch is shared with the original.
 */

export type Json = null | boolean | number | string | Json[] | JsonObject;
/** `undefined` is a field that is not there, as JSON.stringify has it. */
export interface JsonObject {
  [field: string]: Json | undefined;
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** RFC 7386: null removes, objects merge, everything else replaces. */
export function mergePatch(original: JsonObject, patch: JsonObject): JsonObject {
  const result: JsonObject = { ...original };
  for (const [field, value] of Object.entries(patch)) {
    if (value === null) delete result[field];
    else if (isObject(value)) {
      const old = result[field];
      result[field] = mergePatch(isObject(old) ? old : {}, value);
    } else result[field] = value;
  }
  return result;
}

/**
 * Merge keys of core/v1 lists (patchMergeKey), by the field's name or, where the name alone does not tell, by
 * `parent.field`. Lists that are not here are replaced whole: containerStatuses, tolerations, and node taints too.
 */
const mergeKeys: Record<string, string> = {
  conditions: "type",
  addresses: "type",
  podIPs: "ip",
  hostIPs: "ip",
  ownerReferences: "uid",
  containers: "name",
  initContainers: "name",
  ephemeralContainers: "name",
  env: "name",
  volumes: "name",
  imagePullSecrets: "name",
  schedulingGates: "name",
  resourceClaims: "name",
  resourceClaimStatuses: "name",
  volumeMounts: "mountPath",
  volumeDevices: "devicePath",
  hostAliases: "ip",
  topologySpreadConstraints: "topologyKey",
  "containers.ports": "containerPort",
  "initContainers.ports": "containerPort",
};

/** Lists of plain values that merge as sets. */
const mergedSets = new Set(["finalizers", "podCIDRs"]);

/**
 * Kubernetes' strategic merge patch, with `$patch: replace | delete | merge`, `$retainKeys`,
 * `$deleteFromPrimitiveList/…` and `$setElementOrder/…` (taken and ignored). Order of merged lists as in
 * kube-apiserver 1.36: the patch's items first, those only the server has where they stood among them.
 */
export function strategicMerge(original: JsonObject, patch: JsonObject, parent = ""): JsonObject {
  if (patch.$patch === "replace") {
    const { $patch: _, ...rest } = patch;
    return rest;
  }
  if (patch.$patch === "delete") return {};
  let result: JsonObject = { ...original };
  const retained = patch.$retainKeys;
  if (Array.isArray(retained))
    result = Object.fromEntries(Object.entries(result).filter(([field]) => retained.includes(field)));
  for (const [field, value] of Object.entries(patch)) {
    if (field.startsWith("$deleteFromPrimitiveList/")) {
      const of = field.slice("$deleteFromPrimitiveList/".length);
      const old = result[of];
      if (Array.isArray(old) && Array.isArray(value))
        result[of] = old.filter((item) => !value.includes(item));
    } else if (field.startsWith("$")) continue;
    else if (value === null) delete result[field];
    else if (isObject(value)) {
      const old = result[field];
      result[field] = strategicMerge(isObject(old) ? old : {}, value, field);
    } else if (Array.isArray(value)) {
      const old = result[field];
      result[field] = mergeList(Array.isArray(old) ? old : [], value, field, parent);
    } else result[field] = value;
  }
  return result;
}

function mergeList(original: Json[], patch: Json[], field: string, parent: string): Json[] {
  if (mergedSets.has(field)) return [...new Set([...original, ...patch])];
  const items = patch.filter((item) => !(isObject(item) && item.$patch === "replace" && onlyDirective(item)));
  const replaces = items.length < patch.length;
  const key = mergeKeys[`${parent}.${field}`] ?? mergeKeys[field];
  if (key === undefined || replaces) return items;

  const keyOf = (item: Json): Json | undefined => (isObject(item) ? item[key] : undefined);
  const rank = new Map(original.map((item, at) => [keyOf(item), at]));
  const removed = new Set<Json | undefined>();
  const patched: Json[] = [];
  for (const item of items) {
    if (!isObject(item)) continue;
    if (item.$patch === "delete") {
      removed.add(item[key]);
      continue;
    }
    const at = rank.get(item[key]);
    const old = at === undefined ? {} : original[at];
    patched.push(strategicMerge(isObject(old) ? old : {}, item, field));
  }
  const named = new Set(patched.map(keyOf));
  const serverOnly = original.filter((item) => !named.has(keyOf(item)) && !removed.has(keyOf(item)));

  const result: Json[] = [];
  let next = 0;
  for (const item of patched) {
    const at = rank.get(keyOf(item));
    while (at !== undefined && next < serverOnly.length) {
      const other = serverOnly[next];
      if (other === undefined || (rank.get(keyOf(other)) ?? 0) > at) break;
      result.push(other);
      next++;
    }
    result.push(item);
  }
  return [...result, ...serverOnly.slice(next)];
}

function onlyDirective(item: JsonObject): boolean {
  return Object.keys(item).length === 1;
}

/**
 * Server-side apply, reduced: what this manager applied before and leaves out now is removed, the rest is merged;
 * lists are replaced, but those of objects with a merge key merge by it. Conflicts between managers are not found.
 */
export function applyPatch(
  live: JsonObject,
  previous: JsonObject | undefined,
  applied: JsonObject,
  keyed: boolean,
): JsonObject {
  const kept = previous ? withoutDropped(live, previous, applied) : live;
  return keyed ? strategicMerge(kept, applied) : mergePatch(kept, applied);
}

function withoutDropped(live: JsonObject, previous: JsonObject, applied: JsonObject): JsonObject {
  const result: JsonObject = { ...live };
  for (const [field, was] of Object.entries(previous)) {
    const is = applied[field];
    const now = result[field];
    if (is === undefined) delete result[field];
    else if (isObject(was) && isObject(is) && isObject(now)) result[field] = withoutDropped(now, was, is);
  }
  return result;
}

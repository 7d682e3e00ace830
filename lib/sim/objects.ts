/**
 * What the API server does to an object on its way into the store: defaults, what a client may not write, and the
 * few validations a provider can run into. Each rule was checked against kube-apiserver 1.36.
 */
import type { KubeObject, Metadata } from "./kubestore.ts";
import { isObject, type Json, type JsonObject } from "./patch.ts";
import { groupVersion, type Resource, type Shape } from "./resources.ts";
import { ApiError, badRequest, conflict, invalid, modified, versionRequired } from "./status.ts";

const nameRule = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
const nameMessage =
  "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/** RFC 3339 in whole seconds, as object metadata has it. */
export function kubeTime(atMs: number): string {
  return `${new Date(atMs).toISOString().slice(0, 19)}Z`;
}

/** A request body as an object of this resource. Throws BadRequest for anything else. */
export function parseObject(resource: Resource, body: string): JsonObject {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch (error) {
    throw badRequest(
      `the object provided is unrecognized (must be of type ${resource.kind}): couldn't get version/kind; json parse error: ${error instanceof Error ? error.message : error}`,
    );
  }
  if (!isObject(value))
    throw badRequest(`the object provided is unrecognized (must be of type ${resource.kind})`);
  if (resource.custom && value.kind === undefined)
    throw badRequest(
      `the object provided is unrecognized (must be of type ${resource.kind}): Object 'Kind' is missing`,
    );
  const expected = groupVersion(resource);
  if (value.apiVersion !== undefined && value.apiVersion !== expected)
    throw badRequest(
      `the API version in the data (${value.apiVersion}) does not match the expected API version (${expected})`,
    );
  if (value.kind !== undefined && value.kind !== resource.kind)
    throw badRequest(
      `${value.kind} in version "${resource.version}" cannot be handled as a ${resource.kind}`,
    );
  return value;
}

/** Name and namespace as the URL has them; the body may leave them out but not differ. */
export function checkNames(metadata: JsonObject, namespace: string, name: string): void {
  if (metadata.namespace !== undefined && metadata.namespace !== "" && metadata.namespace !== namespace)
    throw badRequest("the namespace of the provided object does not match the namespace sent on the request");
  if (name !== "" && metadata.name !== undefined && metadata.name !== name)
    throw badRequest(
      `the name of the object (${metadata.name}) does not match the name on the URL (${name})`,
    );
}

/** The object a POST stores. */
export function prepareCreate(
  resource: Resource,
  body: JsonObject,
  given: { namespace: string; name: string; uid: string; nowMs: number; suffix: string },
): KubeObject {
  const sent = isObject(body.metadata) ? body.metadata : {};
  const generateName = typeof sent.generateName === "string" ? sent.generateName : undefined;
  const name = given.name || String(sent.name ?? "") || (generateName ? generateName + given.suffix : "");
  if (name === "")
    throw invalid(resource, "", [["metadata.name", "Required value: name or generateName is required"]]);
  if (!nameRule.test(name))
    throw invalid(resource, name, [
      ["metadata.name", `Invalid value: ${JSON.stringify(name)}: ${nameMessage}`],
    ]);
  const metadata = {
    ...sent,
    name,
    namespace: resource.namespaced ? given.namespace : undefined,
    uid: given.uid,
    resourceVersion: "",
    generation: resource.generation ? 1 : undefined,
    creationTimestamp: kubeTime(given.nowMs),
    deletionTimestamp: undefined,
    deletionGracePeriodSeconds: undefined,
  } as Metadata;
  const object: KubeObject = { ...body, apiVersion: groupVersion(resource), kind: resource.kind, metadata };
  const { spec, status } = object;
  switch (resource.custom ? "" : resource.kind) {
    case "Pod":
      object.spec = podSpec(resource, name, spec);
      object.status = { phase: "Pending", qosClass: "BestEffort" };
      break;
    case "Node":
      // Admission taints every new Node; kube-controller-manager lifts it once the Node is Ready.
      object.spec = { ...spec, taints: [...taints(spec), { key: notReadyTaint, effect: "NoSchedule" }] };
      object.status = { ...status, allocatable: status?.allocatable ?? status?.capacity };
      break;
    case "Namespace":
      object.metadata.labels = { ...metadata.labels, "kubernetes.io/metadata.name": name };
      object.spec = { finalizers: ["kubernetes"] };
      object.status = { phase: "Active" };
      break;
    case "Event":
      checkEvent(resource, name, given.namespace, object);
      break;
    default:
      if (resource.custom && resource.status) object.status = undefined;
  }
  return resource.custom ? customRules(resource, object) : object;
}

export const notReadyTaint = "node.kubernetes.io/not-ready";

/** Where a write goes: the object, or its status alone. */
export type Target = "object" | "status";

/**
 * The object a PUT or PATCH stores: what the client sent, less what it may not write there.
 * @param how a PUT and a PATCH fail differently over a UID
 */
export function prepareUpdate(
  resource: Resource,
  old: KubeObject,
  sent: JsonObject,
  target: Target,
  how: "put" | "patch",
): KubeObject {
  const name = old.metadata.name;
  const wanted = isObject(sent.metadata) ? sent.metadata : {};
  checkNames(wanted, old.metadata.namespace ?? "", name);
  if (wanted.uid !== undefined && wanted.uid !== "" && wanted.uid !== old.metadata.uid) {
    if (how === "put")
      throw conflict(
        resource,
        name,
        `StorageError: invalid object, Code: 4, Key: /registry/${resource.plural}/${name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: ${wanted.uid}, UID in object meta: ${old.metadata.uid}`,
      );
    const immutable = `Invalid value: ${JSON.stringify(wanted.uid)}: field is immutable`;
    throw invalid(resource, name, [["metadata.uid", immutable]]);
  }
  const version = wanted.resourceVersion;
  if (how === "put" && !version && (resource.custom || resource.versionedUpdate))
    throw versionRequired(resource, name);
  if (version !== undefined && version !== "" && version !== old.metadata.resourceVersion)
    throw conflict(resource, name, modified);

  const metadata: Metadata = {
    ...(wanted as Metadata),
    name,
    namespace: old.metadata.namespace,
    uid: old.metadata.uid,
    resourceVersion: old.metadata.resourceVersion,
    generation: old.metadata.generation,
    creationTimestamp: old.metadata.creationTimestamp,
    deletionTimestamp: old.metadata.deletionTimestamp,
    deletionGracePeriodSeconds: old.metadata.deletionGracePeriodSeconds,
  };
  const identity = { apiVersion: old.apiVersion, kind: old.kind };
  const status = isObject(sent.status) ? sent.status : undefined;
  if (target === "status") {
    // A custom resource keeps all its metadata there; built-in kinds take labels, annotations and finalizers.
    const kept = resource.custom
      ? old.metadata
      : { ...metadata, ownerReferences: old.metadata.ownerReferences };
    const object: KubeObject = { ...old, ...identity, metadata: kept, status };
    if (resource.kind === "Pod" && !resource.custom) object.status = podStatus(resource, name, status ?? {});
    return object;
  }
  const object: KubeObject = { ...(sent as KubeObject), ...identity, metadata };
  if (resource.status) object.status = old.status;
  if (!resource.custom && resource.kind === "Pod") {
    object.spec = podSpec(resource, name, object.spec);
    if (object.spec.nodeName !== old.spec?.nodeName)
      throw invalid(resource, name, [["spec", podSpecMessage]]);
  }
  if (!resource.custom && resource.kind === "Event")
    checkEvent(resource, name, old.metadata.namespace ?? "", object);
  const result = resource.custom ? customRules(resource, object) : object;
  if (resource.generation && !Bun.deepEquals(content(result), content(old)))
    result.metadata = { ...result.metadata, generation: (old.metadata.generation ?? 0) + 1 };
  return result;
}

/** What metadata.generation counts the changes of. */
function content({ metadata: _, status: __, ...rest }: KubeObject): JsonObject {
  return rest;
}

const podSpecMessage =
  "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

function podSpec(resource: Resource, name: string, spec: JsonObject | undefined): JsonObject {
  if (!Array.isArray(spec?.containers) || spec.containers.length === 0)
    throw invalid(resource, name, [["spec.containers", "Required value"]]);
  const tolerations = Array.isArray(spec.tolerations) ? spec.tolerations : [];
  const added = [notReadyTaint, "node.kubernetes.io/unreachable"]
    .filter(
      (key) =>
        !tolerations.some(
          (each) =>
            isObject(each) && (each.key === key || (!each.key && each.operator === "Exists" && !each.effect)),
        ),
    )
    .map((key) => ({ key, operator: "Exists", effect: "NoExecute", tolerationSeconds: 300 }));
  return {
    restartPolicy: "Always",
    terminationGracePeriodSeconds: 30,
    dnsPolicy: "ClusterFirst",
    schedulerName: "default-scheduler",
    securityContext: {},
    priority: 0,
    enableServiceLinks: true,
    preemptionPolicy: "PreemptLowerPriority",
    ...spec,
    tolerations: [...tolerations, ...added],
  };
}

/** podIPs follow podIP, and each address family has one address at most. */
function podStatus(resource: Resource, name: string, status: JsonObject): JsonObject {
  const { podIP } = status;
  const podIPs = Array.isArray(status.podIPs) ? status.podIPs : [];
  if (typeof podIP !== "string" || podIP === "") return status;
  const [first] = podIPs;
  if (!isObject(first) || first.ip !== podIP) return { ...status, podIPs: [{ ip: podIP }] };
  const families = podIPs.map((each) => isObject(each) && String(each.ip).includes(":"));
  if (new Set(families).size < families.length) {
    const value = `[${podIPs.map((each) => `{"IP":${JSON.stringify(isObject(each) ? each.ip : each)}}`).join(",")}]`;
    throw invalid(resource, name, [
      ["status.podIPs", `Invalid value: ${value}: may specify no more than one IP for each IP family`],
    ]);
  }
  return status;
}

function taints(spec: JsonObject | undefined): Json[] {
  const sent = Array.isArray(spec?.taints) ? spec.taints : [];
  return sent.filter((taint) => !(isObject(taint) && taint.key === notReadyTaint));
}

function checkEvent(resource: Resource, name: string, namespace: string, object: KubeObject): void {
  const { involvedObject } = object;
  const of = isObject(involvedObject) ? involvedObject.namespace : undefined;
  // What is said of a cluster-scoped object goes into the default namespace.
  if (typeof of === "string" && of !== "" ? of !== namespace : namespace !== "default" && namespace !== "")
    throw invalid(resource, name, [
      [
        "involvedObject.namespace",
        `Invalid value: ${JSON.stringify(of ?? "")}: does not match event.namespace`,
      ],
    ]);
}

function customRules(resource: Resource, object: KubeObject): KubeObject {
  const result = resource.shape ? prune(object, resource.shape) : { ...object };
  for (const [path, value] of Object.entries(resource.defaults ?? {}))
    setDefault(result, path.split("."), value);
  for (const path of resource.required ?? []) {
    let value: Json | undefined = result;
    for (const step of path.split(".")) value = isObject(value) ? value[step] : undefined;
    if (value === undefined || value === null)
      throw invalid(resource, object.metadata.name, [[path, "Required value"]]);
  }
  return result;
}

function setDefault(object: JsonObject, steps: string[], value: unknown): void {
  const [step = "", ...rest] = steps;
  if (rest.length === 0) {
    object[step] ??= value as Json;
    return;
  }
  const inner = object[step];
  if (!isObject(inner)) return;
  const copy = { ...inner };
  setDefault(copy, rest, value);
  object[step] = copy;
}

const always = ["apiVersion", "kind", "metadata"];

function prune(object: KubeObject, shape: Shape): KubeObject {
  const { apiVersion, kind, metadata } = object;
  const rest = keepKnown(object, shape);
  return { ...(isObject(rest) ? rest : {}), apiVersion, kind, metadata };
}

function keepKnown(value: Json, shape: Shape): Json {
  if (shape === true) return value;
  if (Array.isArray(shape))
    return Array.isArray(value) ? value.map((item) => keepKnown(item, shape[0])) : value;
  if (!isObject(value)) return value;
  const known = Object.entries(value).flatMap(([field, inner]) => {
    const of = shape[field];
    return of === undefined || inner === undefined ? [] : [[field, keepKnown(inner, of)] as const];
  });
  return Object.fromEntries(known);
}

/** Apply refuses what the schema does not declare, whatever fieldValidation says; with 500. */
export function checkDeclared(resource: Resource, name: string, applied: JsonObject): void {
  if (!resource.shape) return;
  const unknown: string[] = [];
  for (const [field, value] of Object.entries(applied)) {
    if (!always.includes(field)) findUnknown({ [field]: value }, resource.shape, "", unknown);
  }
  if (unknown.length === 0) return;
  const each = unknown.sort().map((path) => `${path}: field not declared in schema`);
  const list = each.length === 1 ? each[0] : `errors:\n  ${each.join("\n  ")}`;
  const kind = `${groupVersion(resource)}, Kind=${resource.kind}`;
  throw new ApiError(500, "", `failed to create typed patch object (/${name}; ${kind}): ${list}`);
}

function findUnknown(value: Json | undefined, shape: Shape, path: string, unknown: string[]): void {
  if (shape === true) return;
  if (Array.isArray(shape)) {
    if (Array.isArray(value))
      for (const [at, item] of value.entries()) findUnknown(item, shape[0], `${path}[${at}]`, unknown);
    return;
  }
  if (!isObject(value)) return;
  for (const [field, inner] of Object.entries(value)) {
    const of = shape[field];
    if (of === undefined) unknown.push(`${path}.${field}`);
    else findUnknown(inner, of, `${path}.${field}`, unknown);
  }
}

/**
 * The API server's verbs on objects, without HTTP: create, update, patch, delete, bind, evict. Failures are thrown as
 * ApiError. Rules checked against kube-apiserver 1.36.
 */
import {
  type Collection,
  type Entry,
  entryOf,
  type KubeObject,
  type Metadata,
  type Store,
} from "./kubestore.ts";
import { checkDeclared, checkNames, kubeTime, prepareCreate, prepareUpdate, type Target } from "./objects.ts";
import { applyPatch, isObject, type Json, type JsonObject, mergePatch, strategicMerge } from "./patch.ts";
import { coreResources, groupVersion, qualified, type Resource } from "./resources.ts";
import {
  ApiError,
  alreadyExists,
  badOptions,
  badRequest,
  conflict,
  deleted,
  modified,
  notFound,
  preconditionFailed,
  type StatusBody,
} from "./status.ts";

export interface DeleteOptions {
  gracePeriodSeconds?: number;
  propagationPolicy?: string;
  preconditions?: { uid?: string; resourceVersion?: string };
}

export type PatchKind = "strategic" | "merge" | "apply";

/** An object by resource, namespace (empty where there is none) and name. */
export interface Ref {
  resource: Resource;
  namespace: string;
  name: string;
}

export interface Api {
  /** The entry. Throws NotFound. */
  get(ref: Ref): Entry;
  create(ref: Ref, body: JsonObject, dryRun?: boolean): Entry;
  /** @returns whether it was created, which PUT does for some resources */
  update(ref: Ref, body: JsonObject, target: Target): { entry: Entry; created: boolean };
  patch(
    ref: Ref,
    patch: JsonObject,
    target: Target,
    kind: PatchKind,
    fieldManager?: string,
  ): { entry: Entry; created: boolean };
  /** The object where one is left or was shown, else a Status. */
  remove(ref: Ref, options: DeleteOptions): Entry | StatusBody;
  bind(ref: Ref, nodeName: string): void;
  evict(ref: Ref, options: DeleteOptions): void;
  /** Takes the `kubernetes` finalizer off a namespace, which ends it when it is going. */
  finalizeNamespace(name: string): void;
}

const namespaces = coreResources.find((resource) => resource.plural === "namespaces") as Resource;
const podsBinding: Resource = {
  group: "",
  version: "v1",
  plural: "pods/binding",
  kind: "Binding",
  namespaced: true,
};
/** Applied configurations remembered, by manager; beyond, the oldest is forgotten and nothing of it is removed. */
const appliedMax = 10_000;

export function createApi(options: { store: Store; now: () => number; random: () => string }): Api {
  const { store, now, random } = options;
  const applied = new Map<string, JsonObject>();
  const of = ({ resource }: Ref): Collection => store.collection(resource);

  function get(ref: Ref): Entry {
    const entry = of(ref).get(ref.namespace, ref.name);
    if (!entry) throw notFound(ref.resource, ref.name);
    return entry;
  }

  function create(ref: Ref, body: JsonObject, dryRun = false): Entry {
    const { resource, namespace } = ref;
    const sent = isObject(body.metadata) ? body.metadata : {};
    checkNames(sent, resource.namespaced ? namespace : "", ref.name);
    const object = prepareCreate(resource, body, {
      namespace,
      name: ref.name,
      uid: random(),
      nowMs: now(),
      suffix: random().replaceAll("-", "").slice(0, 5),
    });
    if (resource.namespaced) checkNamespace(resource, namespace, object.metadata.name);
    if (of(ref).get(namespace, object.metadata.name)) throw alreadyExists(resource, object.metadata.name);
    return dryRun ? entryOf(object, 0) : of(ref).write(object);
  }

  function checkNamespace(resource: Resource, namespace: string, name: string): void {
    const entry = store.collection(namespaces).get("", namespace);
    if (!entry) throw notFound(namespaces, namespace);
    if (entry.object.metadata.deletionTimestamp === undefined) return;
    const message = `${qualified(resource)} "${name}" is forbidden: unable to create new content in namespace ${namespace} because it is being terminated`;
    throw new ApiError(403, "Forbidden", message, {
      name,
      group: resource.group || undefined,
      kind: resource.plural,
      causes: [
        {
          reason: "NamespaceTerminating",
          message: `namespace ${namespace} is being terminated`,
          field: "metadata.namespace",
        },
      ],
    });
  }

  /** Stores a changed object; one that is the same is not written, one whose last finalizer went is removed. */
  function save(ref: Ref, old: Entry, object: KubeObject): Entry {
    const { deletionTimestamp, deletionGracePeriodSeconds, finalizers = [] } = object.metadata;
    const hadFinalizers = (old.object.metadata.finalizers ?? []).length > 0;
    if (deletionTimestamp && hadFinalizers && finalizers.length === 0 && !deletionGracePeriodSeconds)
      return of(ref).remove({ ...old, object });
    if (Bun.deepEquals(object, old.object)) return old;
    return of(ref).write(object);
  }

  function update(ref: Ref, body: JsonObject, target: Target): { entry: Entry; created: boolean } {
    const entry = of(ref).get(ref.namespace, ref.name);
    if (!entry) {
      if (!ref.resource.createOnUpdate || target !== "object") throw notFound(ref.resource, ref.name);
      return { entry: create(ref, body), created: true };
    }
    const object = prepareUpdate(ref.resource, entry.object, body, target, "put");
    return { entry: save(ref, entry, object), created: false };
  }

  function patch(
    ref: Ref,
    given: JsonObject,
    target: Target,
    kind: PatchKind,
    fieldManager = "",
  ): { entry: Entry; created: boolean } {
    const { resource } = ref;
    const applies = `${fieldManager}|${target}|${qualified(resource)}|${ref.namespace}/${ref.name}`;
    if (kind === "apply") checkApply(ref, given, fieldManager);
    const entry = of(ref).get(ref.namespace, ref.name);
    let result: { entry: Entry; created: boolean };
    if (!entry) {
      if (kind !== "apply" || target !== "object") throw notFound(resource, ref.name);
      result = { entry: create(ref, given), created: true };
    } else {
      const live: JsonObject = entry.object;
      const patched =
        kind === "apply"
          ? applyPatch(live, applied.get(applies), given, !resource.custom)
          : kind === "merge"
            ? mergePatch(live, given)
            : strategicMerge(live, given);
      result = {
        entry: save(ref, entry, prepareUpdate(resource, entry.object, patched, target, "patch")),
        created: false,
      };
    }
    if (kind === "apply") remember(applies, given);
    return result;
  }

  function checkApply({ resource, name }: Ref, given: JsonObject, fieldManager: string): void {
    if (fieldManager === "")
      throw badOptions("PatchOptions", "fieldManager", "Required value: is required for apply patch");
    if (given.apiVersion !== groupVersion(resource) || given.kind !== resource.kind)
      throw badRequest(
        `apply patch of ${qualified(resource)} must carry apiVersion ${groupVersion(resource)} and kind ${resource.kind}`,
      );
    checkDeclared(resource, name, given);
  }

  function remember(key: string, given: JsonObject): void {
    applied.delete(key);
    applied.set(key, given);
    const [oldest] = applied.keys();
    if (applied.size > appliedMax && oldest !== undefined) applied.delete(oldest);
  }

  function remove(ref: Ref, wanted: DeleteOptions): Entry | StatusBody {
    const { resource, name } = ref;
    const entry = get(ref);
    const { metadata } = entry.object;
    const { uid, resourceVersion } = wanted.preconditions ?? {};
    if (uid !== undefined && uid !== metadata.uid)
      throw preconditionFailed(
        resource,
        name,
        `the UID in the precondition (${uid}) does not match the UID in record (${metadata.uid}). The object might have been deleted and then recreated`,
      );
    if (resourceVersion !== undefined && resourceVersion !== metadata.resourceVersion)
      throw preconditionFailed(
        resource,
        name,
        `the ResourceVersion in the precondition (${resourceVersion}) does not match the ResourceVersion in record (${metadata.resourceVersion}). The object might have been modified`,
      );
    const finalizers = [...(metadata.finalizers ?? [])];
    if (wanted.propagationPolicy === "Foreground" && !finalizers.includes("foregroundDeletion"))
      finalizers.push("foregroundDeletion");
    if (wanted.propagationPolicy === "Orphan" && !finalizers.includes("orphan")) finalizers.push("orphan");

    if (resource.graceful) return removeGracefully(ref, entry, finalizers, wanted.gracePeriodSeconds);
    const isNamespace = resource.kind === "Namespace" && !resource.custom;
    if (finalizers.length === 0 && !isNamespace) {
      of(ref).remove(entry);
      return deleted(resource, name, metadata.uid);
    }
    if (metadata.deletionTimestamp !== undefined) return entry;
    const object: KubeObject = { ...entry.object, metadata: going(metadata, finalizers, 0) };
    if (isNamespace) {
      object.metadata.deletionGracePeriodSeconds = undefined;
      object.status = { ...object.status, phase: "Terminating" };
    }
    return of(ref).write(object);
  }

  /** A bound Pod stays, with a deletionTimestamp, until someone deletes it with grace 0: its kubelet. */
  function removeGracefully(ref: Ref, entry: Entry, finalizers: string[], wanted?: number): Entry {
    const { spec, status, metadata } = entry.object;
    const { phase } = status ?? {};
    const ended = phase === "Failed" || phase === "Succeeded";
    const own = Number(spec?.terminationGracePeriodSeconds ?? 30);
    const grace = !spec?.nodeName || ended ? 0 : Math.max(0, wanted ?? own);
    const before = metadata.deletionGracePeriodSeconds;
    const sooner = metadata.deletionTimestamp === undefined || grace < (before ?? 0);
    const marked = sooner
      ? of(ref).write({ ...entry.object, metadata: going(metadata, finalizers, grace) })
      : entry;
    if (grace > 0 || finalizers.length > 0) return marked;
    return of(ref).remove(marked);
  }

  function going(metadata: Metadata, finalizers: string[], graceSeconds: number): Metadata {
    const first = metadata.deletionTimestamp === undefined;
    return {
      ...metadata,
      finalizers,
      generation: metadata.generation === undefined || !first ? metadata.generation : metadata.generation + 1,
      deletionTimestamp: kubeTime(now() + graceSeconds * 1000),
      deletionGracePeriodSeconds: graceSeconds,
    };
  }

  function withCondition(object: KubeObject, condition: { [field: string]: Json }): KubeObject {
    const added = { ...condition, lastProbeTime: null, lastTransitionTime: kubeTime(now()) };
    return { ...object, status: strategicMerge(object.status ?? {}, { conditions: [added] }) };
  }

  return {
    get,
    create,
    update,
    patch,
    remove,
    bind(ref, nodeName) {
      const { object } = get(ref);
      const bound = object.spec?.nodeName;
      if (bound)
        throw conflict(podsBinding, ref.name, `pod ${ref.name} is already assigned to node "${bound}"`);
      if (object.metadata.deletionTimestamp)
        throw conflict(
          podsBinding,
          ref.name,
          `pod ${ref.name} is being deleted, cannot be assigned to a host`,
        );
      const scheduled = withCondition(object, { type: "PodScheduled", status: "True" });
      of(ref).write({ ...scheduled, spec: { ...object.spec, nodeName } });
    },
    evict(ref, wanted) {
      const { object } = get(ref);
      const { uid } = wanted.preconditions ?? {};
      if (uid === undefined || uid === object.metadata.uid)
        of(ref).write(
          withCondition(object, {
            type: "DisruptionTarget",
            status: "True",
            reason: "EvictionByEvictionAPI",
            message: "Eviction API: evicting",
          }),
        );
      remove(ref, wanted);
    },
    finalizeNamespace(name) {
      const entry = store.collection(namespaces).get("", name);
      if (!entry) throw notFound(namespaces, name);
      if (entry.object.metadata.deletionTimestamp === undefined) throw conflict(namespaces, name, modified);
      store.collection(namespaces).remove(entry);
    },
  };
}

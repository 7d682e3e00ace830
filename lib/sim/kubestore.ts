/**
 * What the API-server stand-in keeps: objects, one resourceVersion for all, and a bounded history of changes per
 * resource, from which watches resume. Objects are never changed in place: a write replaces them.
 */
import type { Json, JsonObject } from "./patch.ts";
import type { Resource } from "./resources.ts";

export interface OwnerReference extends JsonObject {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

export interface Metadata extends JsonObject {
  name: string;
  generateName?: string;
  namespace?: string;
  uid: string;
  resourceVersion: string;
  generation?: number;
  creationTimestamp: string;
  deletionTimestamp?: string;
  deletionGracePeriodSeconds?: number;
  labels?: { [name: string]: string };
  annotations?: { [name: string]: string };
  ownerReferences?: OwnerReference[];
  finalizers?: string[];
}

export interface KubeObject extends JsonObject {
  apiVersion: string;
  kind: string;
  metadata: Metadata;
  spec?: JsonObject;
  status?: JsonObject;
}

export interface Entry {
  /** Empty for a cluster-scoped object. */
  namespace: string;
  name: string;
  object: KubeObject;
  /** resourceVersion as a number. */
  version: number;
  /** The object as JSON without kind and apiVersion: written once, sent to everyone. */
  json: string;
}

export type ChangeType = "ADDED" | "MODIFIED" | "DELETED";

export interface Change {
  version: number;
  type: ChangeType;
  /** The object after the change; of a deletion, as it was last, with the deletion's version. */
  entry: Entry;
  /** The object before it, unless it was added. */
  before?: Entry;
  /** Watch lines of this change, by what else they depend on. */
  lines: Map<string, string>;
}

export interface Collection {
  get(namespace: string, name: string): Entry | undefined;
  size(): number;
  /** Every entry in key order. The array is never changed afterwards. */
  all(): readonly Entry[];
  /** Stores the object as a new one or in the place of the one under its name, with a new resourceVersion. */
  write(object: KubeObject): Entry;
  /** Removes what is under the name; answers it with the deletion's resourceVersion. */
  remove(entry: Entry): Entry;
  /** Changes after this version, or undefined when the history does not reach back so far. */
  since(version: number): readonly Change[] | undefined;
  /** Called for each change, in order, in the turn of the write. Returns the way to stop. */
  subscribe(listener: (change: Change) => void): () => void;
}

export interface Store {
  version(): number;
  collection(resource: { group: string; plural: string }): Collection;
  /** Forgets all history: every resume from an older version has expired. */
  expire(): void;
}

/** @param historyMax changes kept per resource */
export function createStore(historyMax: number): Store {
  let version = 0;
  const collections = new Map<string, Collection & { expire(): void }>();

  function collect(): Collection & { expire(): void } {
    const entries = new Map<string, Entry>();
    const listeners = new Set<(change: Change) => void>();
    let sorted: readonly Entry[] | undefined;
    let history: Change[] = [];
    /** The newest version the history cannot answer for. */
    let floor = 0;

    function publish(type: ChangeType, entry: Entry, before?: Entry): void {
      sorted = undefined;
      const change: Change = { version, type, entry, before, lines: new Map() };
      history.push(change);
      // Cut in bulk: shifting one by one would cost every write the length of the history.
      if (history.length > historyMax * 2) {
        const cut = history.length - historyMax;
        floor = history[cut - 1]?.version ?? floor;
        history = history.slice(cut);
      }
      for (const listener of listeners) listener(change);
    }

    function stamped(object: KubeObject): Entry {
      version++;
      const metadata = orderedMetadata({ ...object.metadata, resourceVersion: String(version) });
      const stored = { ...object, metadata };
      return entryOf(stored, version);
    }

    return {
      get: (namespace, name) => entries.get(`${namespace}/${name}`),
      size: () => entries.size,
      all() {
        sorted ??= [...entries.keys()].sort().flatMap((key) => entries.get(key) ?? []);
        return sorted;
      },
      write(object) {
        const entry = stamped(object);
        const key = `${entry.namespace}/${entry.name}`;
        const before = entries.get(key);
        entries.set(key, entry);
        publish(before ? "MODIFIED" : "ADDED", entry, before);
        return entry;
      },
      remove(old) {
        entries.delete(`${old.namespace}/${old.name}`);
        const last = stamped(old.object);
        publish("DELETED", last, old);
        return last;
      },
      since(after) {
        if (after < floor) return undefined;
        const first = history.findLastIndex((change) => change.version <= after) + 1;
        return history.slice(first);
      },
      subscribe(listener) {
        listeners.add(listener);
        return () => void listeners.delete(listener);
      },
      expire() {
        history = [];
        floor = version;
      },
    };
  }

  return {
    version: () => version,
    collection({ group, plural }) {
      const name = `${group}/${plural}`;
      const there = collections.get(name);
      if (there) return there;
      const made = collect();
      collections.set(name, made);
      return made;
    },
    expire() {
      version++;
      for (const collection of collections.values()) collection.expire();
    },
  };
}

/** An object as the store keeps it. */
export function entryOf(object: KubeObject, version: number): Entry {
  const { apiVersion: _, kind: __, metadata, spec, status, ...rest } = object;
  return {
    namespace: metadata.namespace ?? "",
    name: metadata.name,
    object,
    version,
    json: JSON.stringify({ metadata, spec, status, ...rest }),
  };
}

/** The object as the API server sends it in this version. */
export function render({ json }: Entry, head: string): string {
  return head + json.slice(1);
}

/** The start of an object's JSON, in the order the server writes it: built-in kinds say kind first. */
export function headOf(resource: Resource, apiVersion: string): string {
  return resource.custom
    ? `{"apiVersion":"${apiVersion}","kind":"${resource.kind}",`
    : `{"kind":"${resource.kind}","apiVersion":"${apiVersion}",`;
}

const metadataOrder = [
  "name",
  "generateName",
  "namespace",
  "uid",
  "resourceVersion",
  "generation",
  "creationTimestamp",
  "deletionTimestamp",
  "deletionGracePeriodSeconds",
  "labels",
  "annotations",
  "ownerReferences",
  "finalizers",
] as const;

/** Fields in the server's order; what it does not know is dropped, as are empty maps and lists. */
function orderedMetadata(metadata: Metadata): Metadata {
  const result: JsonObject = {};
  for (const field of metadataOrder) {
    const value: Json | undefined = metadata[field];
    if (value === undefined || value === null) continue;
    if (typeof value === "object" && Object.keys(value).length === 0) continue;
    result[field] = value;
  }
  return result as Metadata;
}

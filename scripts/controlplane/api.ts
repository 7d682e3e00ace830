/**
 * A small REST client for the harness. It shares nothing with lib/kube on purpose: what observes the daemon
 * must not have the daemon's bugs.
 */
import { readFileSync } from "node:fs";
import { parseAllDocuments } from "yaml";

/** A Kubernetes object as the tests read it: metadata typed, the rest looked into where a test needs it. */
export interface KubeObject {
  apiVersion?: string;
  kind?: string;
  metadata: {
    name: string;
    namespace?: string;
    uid?: string;
    resourceVersion?: string;
    generation?: number;
    creationTimestamp?: string;
    deletionTimestamp?: string;
    labels?: Record<string, string>;
    annotations?: Record<string, string>;
    finalizers?: string[];
    ownerReferences?: OwnerReference[];
  };
  spec?: Record<string, unknown>;
  status?: Record<string, unknown>;
}

export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

export interface List<T = KubeObject> {
  metadata: { resourceVersion: string };
  items: T[];
}

export interface WatchEvent<T = KubeObject> {
  type: "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR";
  object: T;
}

/** What the API server answered when it was not a success. `code` 0: no answer came. */
export class ApiError extends Error {
  constructor(
    readonly code: number,
    readonly reason: string,
    message: string,
  ) {
    super(message);
  }
}

/** How a caller reaches the API server: as a kubeconfig says it. */
export interface Credentials {
  server: string;
  ca: string;
  cert?: string;
  key?: string;
  token?: string;
}

const requestTimeoutMs = 30_000;

export class Api {
  constructor(private readonly credentials: Credentials) {}

  private fetch(
    method: string,
    path: string,
    body?: unknown,
    contentType = "application/json",
    signal?: AbortSignal,
  ): Promise<Response> {
    const { server, ca, cert, key, token } = this.credentials;
    const init: BunFetchRequestInit & { timeout?: boolean } = {
      method,
      headers: {
        accept: "application/json",
        ...(body === undefined ? {} : { "content-type": contentType }),
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      },
      tls: { ca, ...(cert === undefined ? {} : { cert, key }) },
      signal: signal ?? AbortSignal.timeout(requestTimeoutMs),
      // A watch may be silent for longer than fetch's own idle limit.
      ...(signal === undefined ? {} : { timeout: false }),
    };
    if (body !== undefined) init.body = typeof body === "string" ? body : JSON.stringify(body);
    return fetch(server + path, init).catch((error: unknown) => {
      throw new ApiError(
        0,
        "NoAnswer",
        `${method} ${path}: ${error instanceof Error ? error.message : error}`,
      );
    });
  }

  /** One request; throws ApiError for anything but a success. The type is the caller's word for what it asked. */
  async request<T>(method: string, path: string, body?: unknown, contentType?: string): Promise<T> {
    const response = await this.fetch(method, path, body, contentType);
    const text = await response.text();
    if (!response.ok) throw failure(method, path, response.status, text);
    return (text.startsWith("{") ? JSON.parse(text) : text) as T;
  }

  get<T = KubeObject>(path: string): Promise<T> {
    return this.request<T>("GET", path);
  }

  /** The object, or undefined when the API server says 404. */
  async find<T = KubeObject>(path: string): Promise<T | undefined> {
    try {
      return await this.get<T>(path);
    } catch (error) {
      if (error instanceof ApiError && error.code === 404) return undefined;
      throw error;
    }
  }

  list<T = KubeObject>(path: string): Promise<List<T>> {
    return this.get<List<T>>(path);
  }

  create<T = KubeObject>(collection: string, object: unknown): Promise<T> {
    return this.request<T>("POST", collection, object);
  }

  /** JSON merge patch. */
  patch<T = KubeObject>(path: string, change: unknown): Promise<T> {
    return this.request<T>("PATCH", path, change, "application/merge-patch+json");
  }

  /** Server-side apply, forced. */
  apply<T = KubeObject>(path: string, object: unknown): Promise<T> {
    const query = "?fieldManager=vk-sandbox-scripts&force=true";
    return this.request<T>("PATCH", path + query, object, "application/apply-patch+yaml");
  }

  /** Deletes; a 404 counts as deleted. */
  async delete(path: string, options: Record<string, unknown> = {}): Promise<void> {
    try {
      await this.request("DELETE", path, { kind: "DeleteOptions", apiVersion: "v1", ...options });
    } catch (error) {
      if (!(error instanceof ApiError && error.code === 404)) throw error;
    }
  }

  /** One watch request: yields events until the server ends it, the signal aborts, or the connection breaks. */
  async *watch<T = KubeObject>(
    collection: string,
    resourceVersion: string,
    signal: AbortSignal,
  ): AsyncGenerator<WatchEvent<T>> {
    const separator = collection.includes("?") ? "&" : "?";
    const path = `${collection}${separator}watch=true&allowWatchBookmarks=true&resourceVersion=${resourceVersion}`;
    const response = await this.fetch("GET", path, undefined, undefined, signal);
    if (!response.ok || response.body === null)
      throw failure("GET", path, response.status, await response.text());
    let rest = "";
    // No pipe: one that nobody reads from any more would still fail, unheard, when the connection ends.
    const decoder = new TextDecoder();
    for await (const chunk of response.body) {
      const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) if (line !== "") yield JSON.parse(line) as WatchEvent<T>;
    }
  }

  /**
   * Applies every document of a YAML file, CRDs and namespaces before what needs them, and waits until the
   * API server serves each CRD.
   */
  async applyFile(path: string): Promise<void> {
    for (const document of parseAllDocuments(readFileSync(path, "utf8"))) {
      const object = document.toJS() as KubeObject | null;
      if (object === null) continue;
      // No conversion webhook of a real CRD runs here.
      if (object.kind === "CustomResourceDefinition") delete object.spec?.conversion;
      await this.apply(await this.pathOf(object), object);
      if (object.kind === "CustomResourceDefinition") await this.established(object.metadata.name);
    }
  }

  /** The REST path of an object, by discovery. */
  async pathOf(object: KubeObject): Promise<string> {
    const apiVersion = object.apiVersion ?? "v1";
    const root = apiVersion.includes("/") ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
    const { resources } = await this.get<{
      resources: { name: string; kind: string; namespaced: boolean }[];
    }>(root);
    const found = resources.find((r) => r.kind === object.kind && !r.name.includes("/"));
    if (found === undefined) throw new Error(`${root} serves no ${object.kind}`);
    const scope = found.namespaced ? `/namespaces/${object.metadata.namespace ?? "default"}` : "";
    return `${root}${scope}/${found.name}/${object.metadata.name}`;
  }

  private async established(name: string): Promise<void> {
    const path = `/apis/apiextensions.k8s.io/v1/customresourcedefinitions/${name}`;
    const giveUpAt = Date.now() + requestTimeoutMs;
    for (;;) {
      const crd = await this.get<CustomResourceDefinition>(path);
      const versions = crd.spec.versions.filter((v) => v.served);
      const served = await Promise.all(
        versions.map((v) => this.find(`/apis/${crd.spec.group}/${v.name}/${crd.spec.names.plural}?limit=1`)),
      );
      if (served.every((s) => s !== undefined)) return;
      if (Date.now() > giveUpAt) throw new Error(`CustomResourceDefinition ${name} is not served after 30 s`);
      await Bun.sleep(50);
    }
  }
}

interface CustomResourceDefinition {
  spec: { group: string; names: { plural: string }; versions: { name: string; served: boolean }[] };
}

function failure(method: string, path: string, code: number, text: string): ApiError {
  let reason = "";
  let message = text.slice(0, 500);
  try {
    const status = JSON.parse(text) as { reason?: string; message?: string };
    reason = status.reason ?? "";
    message = status.message ?? message;
  } catch {
    // Not a Status: the text itself is the message.
  }
  return new ApiError(code, reason, `${method} ${path}: ${code} ${reason} ${message}`);
}

/**
 * A stand-in for kube-apiserver over real sockets, good enough for a provider and its tests: discovery, the objects a
 * provider reads and writes, watches as the real one streams them, reviews, and faults on command. Behaviour and
 * wording were checked against kube-apiserver 1.36; what it does not do: admission (but the not-ready taint of new
 * Nodes), validation beyond a few rules, managedFields, apply conflicts, protobuf, HTTP/2.
 */
import { type AccessRule, admin, createAccess, forbidden, review, type User } from "./access.ts";
import { type Api, createApi, type DeleteOptions, type PatchKind, type Ref } from "./api.ts";
import type { Fault, FaultState } from "./faults.ts";
import { json, type SimReply, type SimRequest, type SimTls, startSimServer, text } from "./http.ts";
import {
  type ChangeType,
  createStore,
  type Entry,
  headOf,
  type KubeObject,
  render,
  type Store,
} from "./kubestore.ts";
import { parseObject, type Target } from "./objects.ts";
import { isObject, type JsonObject } from "./patch.ts";
import { callRemote, remotePrefix } from "./remote.ts";
import {
  apiGroup,
  coreResources,
  extensionResources,
  groupVersion,
  inventoryResource,
  qualified,
  type Resource,
  resourceList,
  reviewGroups,
  sandboxResource,
} from "./resources.ts";
import { parseSelector } from "./selector.ts";
import {
  ApiError,
  badRequest,
  created,
  expired,
  methodNotAllowed,
  pageNotFound,
  type StatusBody,
  statusReply,
  tooLargeVersion,
  unknownResource,
} from "./status.ts";
import { createWatches, type StreamingLists, type Which } from "./watch.ts";

export interface ApiServerOptions {
  /** 0 = any free port. */
  port?: number;
  /** Default 127.0.0.1. */
  hostname?: string;
  /** Serve TLS. With `ca`, a client certificate that it vouches for authenticates. */
  tls?: SimTls;
  /** The administrator's bearer token. Without it and without a client CA, everyone is the administrator. */
  token?: string;
  /** Served beside the core ones. Default: sandboxes, nodeinventories of sandbox.cocoonstack.io, the extensions. */
  resources?: Resource[];
  /** Default "served". */
  streamingLists?: StreamingLists;
  /** Default 60,000, as the real one. */
  bookmarkIntervalMs?: number;
  /** How long a watch lasts that asks for no timeoutSeconds. Default 30 minutes. */
  watchTimeoutMs?: number;
  /** Changes kept per resource for watches to resume from. Default 5000. */
  historyMax?: number;
  /** Serve the control under /_sim/ as well. Whoever reaches the port can then do everything. */
  control?: boolean;
  now?: () => number;
  /** A new UUID. */
  random?: () => string;
}

/** Every function takes at most one JSON value and answers one, so the remote control has them all. */
export interface ApiServerControl {
  fault(fault: Fault): number;
  faults(): FaultState[];
  clearFaults(id?: number): void;
  /** Requests so far, by verb and resource, such as `patch pods/status`; beside them `discovery` and `other`. */
  counts(): Record<string, number>;
  resetCounts(): void;
  /** Refuses connections and kills those it has, until `up` or for `ms`. Objects and history are kept. */
  down(options?: { ms?: number }): Promise<void>;
  up(): Promise<void>;
  /** Open watches. */
  watches(which?: Which): number;
  /** Ends watches cleanly, or with `how: "reset"` not so. Answers how many. */
  dropWatches(which?: Which & { how?: "end" | "reset" }): number;
  /** Silence on the watches open now; with `stalled: false` what was held back follows. */
  stallWatches(which?: Which & { stalled?: boolean }): number;
  /** Writes a line on the watches as it is. */
  sendToWatches(what: Which & { line: string }): number;
  /** Sends an ERROR event, 410 Expired by default, and ends the watches. */
  failWatches(what?: Which & { code?: number; reason?: string; message?: string }): number;
  /** Bookmarks now. */
  bookmark(which?: Which): void;
  /** Every older resourceVersion and continue token has expired: 410. */
  expireHistory(): void;
  streamingLists(mode: StreamingLists): void;
  /** Serves another resource, or one in another way. */
  serve(resource: Resource): void;
  /** Serves a resource (`nodeinventories.sandbox.cocoonstack.io`) no more; its objects stay. */
  unserve(qualifiedName: string): void;
  /** Users by bearer token, for requests and TokenReviews. */
  setUsers(users: Record<string, User>): void;
  /** The first rule that fits decides about a request or review; where none does, it is allowed. */
  setRules(rules: AccessRule[]): void;
  resourceVersion(): number;
}

/** The objects, in-process and without access rules or faults. Resources are named as in `sandboxes.agents.x-k8s.io`. */
export interface Objects {
  /** `key` is `namespace/name`, or the name of a cluster-scoped object. Undefined: not there. */
  get(resource: string, key: string): KubeObject | undefined;
  list(resource: string): KubeObject[];
  create(resource: string, object: JsonObject): KubeObject;
  /** Strategic merge for built-in kinds, JSON merge for custom ones. `resource` may end in `/status`. */
  patch(resource: string, key: string, patch: JsonObject): KubeObject;
  /** Undefined when it is gone at once, or was not there. */
  remove(resource: string, key: string, options?: DeleteOptions): KubeObject | undefined;
  bind(key: string, nodeName: string): void;
  finalizeNamespace(name: string): void;
  /** What is there as ADDED, then every change in order; each in a turn of its own. Returns the way to stop. */
  watch(resource: string, each: (type: ChangeType, object: KubeObject) => void): () => void;
}

export interface ApiServer {
  /** `http(s)://host:port` */
  url: string;
  stop(): Promise<void>;
  control: ApiServerControl;
  objects: Objects;
}

const bodyBytesMax = 3 << 20;
/** Lists that are being read page by page. */
const pagedMax = 64;
const tooLargeWaitMs = 3000;

/** Starts it. Rejects when the port is taken. */
export async function startApiServer(options: ApiServerOptions = {}): Promise<ApiServer> {
  const now = options.now ?? Date.now;
  const random = options.random ?? (() => crypto.randomUUID());
  const store = createStore(options.historyMax ?? 5000);
  const api = createApi({ store, now, random });
  const access = createAccess(options.token);
  const open = options.token === undefined && options.tls?.ca === undefined;
  let lists: StreamingLists = options.streamingLists ?? "served";
  const watches = createWatches({
    store,
    streamingLists: () => lists,
    bookmarkIntervalMs: options.bookmarkIntervalMs ?? 60_000,
    timeoutMs: options.watchTimeoutMs ?? 30 * 60_000,
  });
  const served = new Map<string, Resource>();
  const serve = (resource: Resource) => void served.set(qualified(resource), resource);
  for (const resource of coreResources) serve(resource);
  for (const resource of options.resources ?? [sandboxResource, inventoryResource, ...extensionResources])
    serve(resource);
  let counts: Record<string, number> = {};
  const paged = new Map<string, { version: number; entries: readonly Entry[] }>();

  const namespaceResource = resourceNamed("namespaces");
  for (const name of ["default", "kube-node-lease", "kube-public", "kube-system"])
    api.create({ resource: namespaceResource, namespace: "", name }, {});

  function resourceNamed(name: string): Resource {
    const resource = served.get(name);
    if (!resource) throw new Error(`the resource ${name} is not served`);
    return resource;
  }

  function handle(request: SimRequest): SimReply | Promise<SimReply> {
    const { path } = request;
    if (path === "/healthz" || path === "/livez" || path === "/readyz") return text(200, "ok");
    const user = authenticate(request);
    if (!user) return statusReply(new ApiError(401, "Unauthorized", "Unauthorized"));
    try {
      const discovered = discovery(request);
      if (discovered) {
        count("discovery");
        return discovered;
      }
      const reply = route(request, user);
      if (!(reply instanceof Promise)) return reply;
      return reply.catch(failed);
    } catch (error) {
      return failed(error);
    }
  }

  function count(what: string): void {
    counts[what] = (counts[what] ?? 0) + 1;
  }

  function failed(error: unknown): SimReply {
    if (error instanceof ApiError) return statusReply(error);
    throw error;
  }

  function authenticate(request: SimRequest): User | undefined {
    const header = request.headers.authorization ?? "";
    if (header.startsWith("Bearer ")) {
      const user = access.user(header.slice("Bearer ".length));
      return user ?? (open ? admin : undefined);
    }
    return open || request.certVerified ? admin : undefined;
  }

  /** Versions by group, in the order served. */
  function groups(): Map<string, string[]> {
    const result = new Map<string, string[]>(
      Object.entries(reviewGroups).map(([group, version]) => [group, [version]]),
    );
    for (const { group, version } of served.values()) {
      const versions = result.get(group) ?? [];
      if (group !== "" && !versions.includes(version)) result.set(group, [...versions, version]);
    }
    return result;
  }

  function discovery({ method, path }: SimRequest): SimReply | undefined {
    if (method !== "GET") return undefined;
    if (path === "/version") return json(200, version);
    if (path === "/api") return json(200, { kind: "APIVersions", versions: ["v1"] });
    const [, root, group = "", version_] = /^\/(apis?)(?:\/([^/]+))?(?:\/([^/]+))?\/?$/.exec(path) ?? [];
    if (root === undefined) return undefined;
    if (root === "api") {
      if (group !== "v1" || version_) return undefined;
      return json(
        200,
        resourceList(
          "v1",
          [...served.values()].filter((each) => each.group === ""),
        ),
      );
    }
    const all = groups();
    if (group === "") {
      const list = [...all].map(([name, versions]) => apiGroup(name, versions));
      return json(200, { kind: "APIGroupList", apiVersion: "v1", groups: list });
    }
    const versions = all.get(group);
    if (!versions) return pageNotFound();
    if (version_ === undefined)
      return json(200, { kind: "APIGroup", apiVersion: "v1", ...apiGroup(group, versions) });
    if (!versions.includes(version_)) return pageNotFound();
    const of = [...served.values()].filter((each) => each.group === group && each.version === version_);
    return json(200, resourceList(`${group}/${version_}`, of));
  }

  function route(request: SimRequest, user: User): SimReply | Promise<SimReply> {
    const target = parsePath(request.path);
    if (!target) return pageNotFound();
    const { group, version: wanted, plural, namespace, name, subresource } = target;
    if (request.method === "POST" && Object.hasOwn(reviewGroups, group))
      return reviewed(request, plural, user);
    const resource = served.get(qualified({ group, plural }));
    // Where only a namespace has them: a name, and a place to create.
    const misplaced = resource?.namespaced
      ? namespace === "" && (name !== "" || request.method === "POST")
      : namespace !== "";
    if (!resource || resource.version !== wanted || misplaced) {
      count("other");
      const others = [...served.values()].filter((each) => each.group === group && each.version === wanted);
      if (others.length === 0 || others.every((each) => each.custom)) return pageNotFound();
      throw unknownResource();
    }
    const verb = verbOf(request, name);
    const what = subresource === "" ? qualified(resource) : `${qualified(resource)}/${subresource}`;
    count(`${verb} ${what}`);
    const asked = { verb, group, resource: plural, subresource, namespace, name };
    if (!access.allowed(user, asked)) throw forbidden(user, asked);
    const ref: Ref = { resource, namespace, name };
    if (subresource !== "") return onSubresource(request, ref, subresource, verb);
    switch (verb) {
      case "get":
        return shown(200, api.get(ref), resource);
      case "list":
        return list(request, ref);
      case "watch":
        return watch(request, ref);
      case "create": {
        const body = parseObject(resource, request.body);
        return shown(201, api.create(ref, body, request.query.get("dryRun") === "All"), resource);
      }
      case "update":
      case "patch":
        return write(request, ref, verb, "object");
      case "delete":
        return removed(api.remove(ref, deleteOptions(request)), resource);
      case "deletecollection":
        return removeAll(request, ref);
      default:
        throw methodNotAllowed();
    }
  }

  function onSubresource(request: SimRequest, ref: Ref, subresource: string, verb: string): SimReply {
    const { resource } = ref;
    const isPod = resource.kind === "Pod" && !resource.custom;
    if (subresource === "status" && resource.status) {
      if (verb === "get") return shown(200, api.get(ref), resource);
      if (verb === "update" || verb === "patch") return write(request, ref, verb, "status");
      throw methodNotAllowed();
    }
    if (isPod && (subresource === "binding" || subresource === "eviction")) {
      if (verb !== "create") throw methodNotAllowed();
      const body = parseJson(request.body);
      if (subresource === "binding") api.bind(ref, String(isObject(body.target) ? body.target.name : ""));
      else api.evict(ref, (isObject(body.deleteOptions) ? body.deleteOptions : {}) as DeleteOptions);
      return json(201, created);
    }
    if (resource.kind === "Namespace" && subresource === "finalize" && verb === "update") {
      const entry = api.get(ref);
      api.finalizeNamespace(ref.name);
      return shown(200, entry, resource);
    }
    if (resource.custom) return pageNotFound();
    throw unknownResource();
  }

  function write(request: SimRequest, ref: Ref, verb: "update" | "patch", target: Target): SimReply {
    const { resource } = ref;
    if (verb === "update") {
      const { entry, created } = api.update(ref, parseObject(resource, request.body), target);
      return shown(created ? 201 : 200, entry, resource);
    }
    const kind = patchKind(resource, request.headers["content-type"] ?? "");
    const body = kind === "apply" ? parseYaml(request.body) : parseJson(request.body);
    const manager = request.query.get("fieldManager") ?? "";
    const { entry, created } = api.patch(ref, body, target, kind, manager);
    return shown(created ? 201 : 200, entry, resource);
  }

  async function list(request: SimRequest, ref: Ref): Promise<SimReply> {
    const { resource, namespace } = ref;
    const { query } = request;
    const asked = Number(query.get("resourceVersion") ?? 0);
    if (asked > store.version()) {
      await new Promise((resolve) => setTimeout(resolve, tooLargeWaitMs));
      if (asked > store.version()) throw tooLargeVersion(asked, store.version());
    }
    const selects = parseSelector(
      resource,
      query.get("fieldSelector") ?? "",
      query.get("labelSelector") ?? "",
    );
    const limit = Number(query.get("limit") ?? 0);
    const from = query.get("continue");
    const page = from
      ? resume(from)
      : { version: store.version(), entries: store.collection(resource).all(), at: 0 };
    const head = headOf(resource, groupVersion(resource));
    const items: string[] = [];
    let { at } = page;
    for (; at < page.entries.length && (limit === 0 || items.length < limit); at++) {
      const entry = page.entries[at];
      if (!entry || (namespace !== "" && entry.namespace !== namespace) || !selects(entry.object)) continue;
      items.push(resource.custom ? render(entry, head) : entry.json);
    }
    const metadata: JsonObject = { resourceVersion: String(page.version) };
    if (at < page.entries.length) {
      metadata.continue = remember(page, at);
      metadata.remainingItemCount = page.entries.length - at;
    }
    const listHead = headOf({ ...resource, kind: `${resource.kind}List` }, groupVersion(resource));
    return {
      status: 200,
      body: `${listHead}"metadata":${JSON.stringify(metadata)},"items":[${items.join(",")}]}\n`,
    };
  }

  /** A continue token: which list, and where in it. Lists stay as they were while they are read. */
  function remember(page: { version: number; entries: readonly Entry[] }, at: number): string {
    const id = random();
    paged.set(id, page);
    const [oldest] = paged.keys();
    if (paged.size > pagedMax && oldest !== undefined) paged.delete(oldest);
    return btoa(JSON.stringify({ id, at }));
  }

  function resume(token: string): { version: number; entries: readonly Entry[]; at: number } {
    let id: unknown;
    let at: unknown;
    try {
      ({ id, at } = JSON.parse(atob(token)) as Record<string, unknown>);
    } catch {
      throw badRequest("invalid continue token: continue key is not valid");
    }
    const page = paged.get(String(id));
    if (!page)
      throw expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
      );
    return { ...page, at: Number(at) };
  }

  function watch(request: SimRequest, { resource, namespace, name }: Ref): SimReply {
    const { query } = request;
    const fields = [query.get("fieldSelector"), name ? `metadata.name=${name}` : ""]
      .filter(Boolean)
      .join(",");
    const stream = watches.open({
      resource,
      collection: store.collection(resource),
      namespace,
      selector: parseSelector(resource, fields, query.get("labelSelector") ?? ""),
      head: headOf(resource, groupVersion(resource)),
      query,
    });
    return { status: 200, stream };
  }

  function removeAll(request: SimRequest, ref: Ref): SimReply {
    const { resource, namespace } = ref;
    const { query } = request;
    const selects = parseSelector(
      resource,
      query.get("fieldSelector") ?? "",
      query.get("labelSelector") ?? "",
    );
    const wanted = deleteOptions(request);
    for (const entry of store.collection(resource).all())
      if ((namespace === "" || entry.namespace === namespace) && selects(entry.object))
        api.remove({ resource, namespace: entry.namespace, name: entry.name }, wanted);
    return json(200, { kind: "Status", apiVersion: "v1", metadata: {}, status: "Success" });
  }

  function reviewed(request: SimRequest, plural: string, user: User): SimReply {
    count(`create ${plural}`);
    const body = review(access, plural, parseJson(request.body), user);
    if (!body) throw unknownResource();
    return json(201, body);
  }

  const server = await startSimServer({
    port: options.port,
    hostname: options.hostname,
    tls: options.tls,
    bodyBytesMax,
    tooLarge: statusReply(
      new ApiError(413, "RequestEntityTooLarge", `Request entity too large: limit is ${bodyBytesMax}`),
    ),
    exemptPrefix: remotePrefix,
    handle(request) {
      if (options.control && request.path.startsWith(remotePrefix))
        return callRemote(control, request, ["down"]);
      return handle(request);
    },
  });

  const control: ApiServerControl = {
    fault: (fault) => server.faults.add(fault),
    faults: () => server.faults.list(),
    clearFaults: (id) => server.faults.clear(id),
    counts: () => ({ ...counts }),
    resetCounts() {
      counts = {};
    },
    async down({ ms } = {}) {
      await server.down();
      if (ms === undefined) return;
      await new Promise((resolve) => setTimeout(resolve, ms));
      await server.up();
    },
    up: server.up,
    watches: watches.count,
    dropWatches: watches.drop,
    stallWatches: watches.stall,
    sendToWatches: watches.send,
    failWatches(what = {}) {
      const {
        code = 410,
        reason = "Expired",
        message = `too old resource version: 1 (${store.version()})`,
      } = what;
      return watches.fail(what, new ApiError(code, reason, message));
    },
    bookmark: watches.bookmark,
    expireHistory() {
      store.expire();
      paged.clear();
    },
    streamingLists(mode) {
      lists = mode;
    },
    serve,
    unserve(name) {
      resourceNamed(name);
      served.delete(name);
    },
    setUsers: access.setUsers,
    setRules: access.setRules,
    resourceVersion: store.version,
  };

  return {
    url: server.url,
    control,
    objects: createObjects(api, store, resourceNamed),
    async stop() {
      watches.stop();
      await server.stop();
    },
  };
}

function createObjects(api: Api, store: Store, resourceNamed: (name: string) => Resource): Objects {
  function refTo(name: string, key: string): Ref {
    const slash = key.indexOf("/");
    return {
      resource: resourceNamed(name),
      namespace: key.slice(0, Math.max(slash, 0)),
      name: key.slice(slash + 1),
    };
  }
  return {
    get(name, key) {
      const ref = refTo(name, key);
      return store.collection(ref.resource).get(ref.namespace, ref.name)?.object;
    },
    list: (name) =>
      store
        .collection(resourceNamed(name))
        .all()
        .map((entry) => entry.object),
    create(name, object) {
      const resource = resourceNamed(name);
      const { metadata } = object;
      const namespace = isObject(metadata) && metadata.namespace ? String(metadata.namespace) : "default";
      return api.create({ resource, namespace: resource.namespaced ? namespace : "", name: "" }, object)
        .object;
    },
    patch(name, key, patch) {
      const [of = "", subresource] = name.split("/");
      const ref = refTo(of, key);
      const kind = ref.resource.custom ? "merge" : "strategic";
      return api.patch(ref, patch, subresource === "status" ? "status" : "object", kind).entry.object;
    },
    remove(name, key, options = {}) {
      const ref = refTo(name, key);
      try {
        const left = api.remove(ref, options);
        return "object" in left
          ? store.collection(ref.resource).get(ref.namespace, ref.name)?.object
          : undefined;
      } catch (error) {
        if (error instanceof ApiError && error.body.code === 404) return undefined;
        throw error;
      }
    },
    bind: (key, nodeName) => api.bind(refTo("pods", key), nodeName),
    finalizeNamespace: api.finalizeNamespace,
    watch(name, each) {
      const collection = store.collection(resourceNamed(name));
      // Queued, so that what a listener writes does not overtake what others have yet to hear.
      let stopped = false;
      const tell = (type: ChangeType, object: KubeObject) =>
        queueMicrotask(() => {
          if (!stopped) each(type, object);
        });
      for (const { object } of collection.all()) tell("ADDED", object);
      const unsubscribe = collection.subscribe(({ type, entry }) => tell(type, entry.object));
      return () => {
        stopped = true;
        unsubscribe();
      };
    },
  };
}

const version = {
  major: "1",
  minor: "36",
  gitVersion: "v1.36.1-sim",
  gitCommit: "",
  gitTreeState: "",
  buildDate: "1970-01-01T00:00:00Z",
  goVersion: "",
  compiler: "",
  platform: "linux/amd64",
};

/** The parts of a resource's path, or undefined when it is none. */
function parsePath(
  path: string,
):
  | { group: string; version: string; plural: string; namespace: string; name: string; subresource: string }
  | undefined {
  const parts = path.split("/").slice(1).map(decodeURIComponent);
  const [root] = parts;
  if (root !== "api" && root !== "apis") return undefined;
  const [group = "", version = ""] = root === "api" ? ["", parts[1]] : [parts[1], parts[2]];
  let rest = parts.slice(root === "api" ? 2 : 3);
  let namespace = "";
  if (rest[0] === "namespaces" && rest[2] !== undefined && rest[2] !== "status" && rest[2] !== "finalize") {
    namespace = rest[1] ?? "";
    rest = rest.slice(2);
  }
  const [plural = "", name = "", subresource = "", more] = rest;
  if (plural === "" || version === "" || more !== undefined) return undefined;
  return { group, version, plural, namespace, name, subresource };
}

function verbOf({ method, query }: SimRequest, name: string): string {
  const watching = query.get("watch");
  switch (method) {
    case "GET":
      if (watching === "true" || watching === "1") return "watch";
      return name === "" ? "list" : "get";
    case "POST":
      return "create";
    case "PUT":
    case "PATCH":
      if (name === "") throw badRequest("name must be provided");
      return method === "PUT" ? "update" : "patch";
    case "DELETE":
      return name === "" ? "deletecollection" : "delete";
    default:
      throw methodNotAllowed();
  }
}

function patchKind(resource: Resource, contentType: string): PatchKind {
  const type = contentType.split(";")[0];
  if (type === "application/merge-patch+json") return "merge";
  if (type === "application/apply-patch+yaml") return "apply";
  if (type === "application/strategic-merge-patch+json" && !resource.custom) return "strategic";
  const accepted = ["application/merge-patch+json", "application/apply-patch+yaml"];
  if (!resource.custom) accepted.push("application/strategic-merge-patch+json");
  throw new ApiError(
    415,
    "UnsupportedMediaType",
    `the body of the request was in an unknown format - accepted media types include: ${accepted.join(", ")}`,
  );
}

function deleteOptions({ body, query }: SimRequest): DeleteOptions {
  const wanted = (body === "" ? {} : parseJson(body)) as DeleteOptions;
  const grace = query.get("gracePeriodSeconds");
  const policy = query.get("propagationPolicy");
  return {
    ...wanted,
    ...(grace === null ? {} : { gracePeriodSeconds: Number(grace) }),
    ...(policy === null ? {} : { propagationPolicy: policy }),
  };
}

function parseJson(body: string): JsonObject {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch (error) {
    throw badRequest(error instanceof Error ? error.message : String(error));
  }
  if (!isObject(value)) throw badRequest("the body of the request is not a JSON object");
  return value;
}

/** JSON is YAML, and nearly every client sends JSON. */
function parseYaml(body: string): JsonObject {
  try {
    return parseJson(body);
  } catch {
    let value: unknown;
    try {
      value = Bun.YAML.parse(body);
    } catch (error) {
      throw badRequest(`error decoding YAML: ${error instanceof Error ? error.message : error}`);
    }
    if (!isObject(value)) throw badRequest("error decoding YAML: not an object");
    return value;
  }
}

function shown(status: number, entry: Entry, resource: Resource): SimReply {
  return { status, body: `${render(entry, headOf(resource, groupVersion(resource)))}\n` };
}

function removed(left: Entry | StatusBody, resource: Resource): SimReply {
  return "object" in left ? shown(200, left, resource) : json(200, left);
}

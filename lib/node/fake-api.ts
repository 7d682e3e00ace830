/** An API server of Nodes and Leases for this folder's tests: objects in memory, replies as the client gives them. */
import type { KubeClient, KubeReply, RequestOptions } from "../kube/index.ts";

type Json = { [key: string]: unknown };

export interface Asked {
  method: string;
  path: string;
  body: Json;
  options: RequestOptions;
}

export interface FakeApi extends Pick<KubeClient, "request"> {
  /** By path. */
  objects: Map<string, Json>;
  asked: Asked[];
  /** "METHOD path" since the last call of `clear`. */
  lines(): string[];
  clear(): void;
  /** Answers instead of the store when it returns something. */
  before: (asked: Asked) => KubeReply | undefined | Promise<KubeReply | undefined>;
  /** Merges into an object and moves its resourceVersion, as somebody else would. */
  edit(path: string, patch: Json): void;
}

export const status = (code: number, reason: string, message = reason): KubeReply => ({
  ok: false,
  kind: "status",
  code,
  reason,
  message,
  detailsName: "",
  detailsKind: "nodes",
  retryAfterMs: 0,
  body: {},
});

export const away: KubeReply = { ok: false, kind: "network", message: "connection refused" };

const isObject = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** RFC 7386; for conditions and addresses the strategic merge that v1 Node declares. */
function merge(target: Json, patch: Json, strategic: boolean): Json {
  const out: Json = { ...target };
  for (const [key, value] of Object.entries(patch)) {
    if (value === undefined) continue;
    if (value === null) delete out[key];
    else if (isObject(value)) out[key] = merge(isObject(out[key]) ? out[key] : {}, value, strategic);
    else if (Array.isArray(value) && strategic && (key === "conditions" || key === "addresses")) {
      const items = value.filter((item: Json) => item.$patch === undefined) as Json[];
      const replace = items.length !== value.length;
      const kept = replace
        ? []
        : ((out[key] ?? []) as Json[]).filter((old) => !items.some((item) => item.type === old.type));
      out[key] = [...kept, ...items];
    } else out[key] = value;
  }
  return out;
}

export function fakeApi(): FakeApi {
  let version = 1;
  let shown = 0;
  const objects = new Map<string, Json>();
  const store = (path: string, object: Json): Json => {
    version++;
    const metadata = { ...(object.metadata as Json), resourceVersion: String(version) };
    const stored = { ...object, metadata };
    objects.set(path, stored);
    return stored;
  };
  const answer = ({ method, path, body, options }: Asked): KubeReply => {
    if (method === "POST") {
      const metadata = body.metadata as Json;
      const item = `${path}/${metadata.name}`;
      if (objects.has(item)) return status(409, "AlreadyExists");
      return {
        ok: true,
        status: 201,
        body: store(item, { ...body, metadata: { ...metadata, uid: `uid-${version}` } }),
      };
    }
    const item = path.replace(/\/status$/, "");
    const object = objects.get(item);
    if (object === undefined) return status(404, "NotFound");
    if (method === "GET") return { ok: true, status: 200, body: object };
    const wanted = (body.metadata ?? {}) as Json;
    const current = object.metadata as Json;
    if (wanted.resourceVersion !== undefined && wanted.resourceVersion !== current.resourceVersion)
      return status(409, "Conflict");
    if (wanted.uid !== undefined && wanted.uid !== current.uid) return status(409, "Conflict");
    const strategic = options.contentType === "application/strategic-merge-patch+json";
    return { ok: true, status: 200, body: store(item, merge(object, body, strategic)) };
  };
  const api: FakeApi = {
    objects,
    asked: [],
    before: () => undefined,
    lines: () => api.asked.slice(shown).map(({ method, path }) => `${method} ${path}`),
    clear() {
      shown = api.asked.length;
    },
    edit(path, patch) {
      store(path, merge(objects.get(path) ?? {}, patch, false));
    },
    async request(method, path, options = {}) {
      // As it goes over the wire: undefined is left out.
      const body = JSON.parse(JSON.stringify(options.body ?? {})) as Json;
      const asked = { method, path, body, options };
      api.asked.push(asked);
      return (await api.before(asked)) ?? answer(asked);
    },
  };
  return api;
}

/** Lets everything that waits for promises run until nothing moves. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise<void>((resolve) => setImmediate(resolve));
}

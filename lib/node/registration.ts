/** Makes the Node exist and keeps its labels and taints right, as far as our identity is allowed to. */
import { apiPath, describeFailure, type KubeClient, type KubeFailure, mergePatch } from "../kube/index.ts";
import type { Log } from "../log/index.ts";
import {
  allowedForNodes,
  type Capacity,
  type Condition,
  labelCorrection,
  type NodeSpec,
  nodeToCreate,
  readNode,
  type SeenNode,
  taintCorrection,
  wantedLabels,
} from "./object.ts";

const requestTimeoutMs = 8000;
/** Reads and writes of one correction before it is left to the next round. */
const conflictsMax = 5;

export type Registered = { ok: true; node: SeenNode; created: boolean } | { ok: false; why: string };
export type Corrected = { ok: true; node: SeenNode } | { ok: false; gone: boolean; why: string };

export interface RegistrationOptions {
  kube: Pick<KubeClient, "request">;
  spec: NodeSpec;
  log: Log;
}

export interface Registration {
  /** The Node as it is, or made new with these conditions when there is none. */
  ensure(capacity: Capacity | undefined, conditions: () => Condition[]): Promise<Registered>;
  /** Writes what differs of labels and taints; one request each, none when nothing does. */
  correct(node: SeenNode, capacity: Capacity | undefined): Promise<Corrected>;
}

const isCode = (failure: KubeFailure, code: number) => failure.kind === "status" && failure.code === code;

/** What the API server's NodeRestriction admission forbids is tried, said once, and left out from then on. */
export function registration({ kube, spec, log }: RegistrationOptions): Registration {
  // A node name has been validated as a DNS name, so it is always a path segment.
  const path = apiPath("/api/v1/nodes", spec.name) ?? "";
  let labelsRestricted = false;
  let labelsRefused = false;
  let taintsRefused = false;

  const labels = () => {
    const wanted = wantedLabels(spec);
    if (!labelsRestricted) return wanted;
    return Object.fromEntries(Object.entries(wanted).filter(([key]) => allowedForNodes(key)));
  };

  const get = async (): Promise<
    { kind: "node"; node: SeenNode } | { kind: "missing" } | { kind: "failed"; why: string }
  > => {
    const reply = await kube.request("GET", path, { exempt: true, timeoutMs: requestTimeoutMs });
    if (!reply.ok)
      return isCode(reply, 404) ? { kind: "missing" } : { kind: "failed", why: describeFailure(reply) };
    const node = readNode(reply.body, spec.name);
    return node === undefined
      ? { kind: "failed", why: "the reply is not this Node" }
      : { kind: "node", node };
  };

  const create = (capacity: Capacity | undefined, conditions: Condition[]) =>
    kube.request("POST", "/api/v1/nodes", {
      body: nodeToCreate(spec, labels(), capacity, conditions),
      exempt: true,
      timeoutMs: requestTimeoutMs,
    });

  const restrict = (why: string) => {
    labelsRestricted = true;
    const without = Object.keys(wantedLabels(spec)).filter((key) => !allowedForNodes(key));
    log.warn(
      "this identity may not set some labels of its Node (NodeRestriction); the Node goes without them",
      {
        node: spec.name,
        labels: without.join(","),
        why,
      },
    );
  };

  const patch = (node: SeenNode, body: Record<string, unknown>) => {
    const metadata = {
      ...(body.metadata as object | undefined),
      uid: node.uid,
      resourceVersion: node.resourceVersion,
    };
    return kube.request("PATCH", path, {
      body: { ...body, metadata },
      contentType: mergePatch,
      exempt: true,
      timeoutMs: requestTimeoutMs,
    });
  };

  /**
   * One patch computed from the Node as read; read again and computed again while others write in between.
   * `refused` is told of a 403 and says whether another try makes sense.
   */
  const write = async (
    node: SeenNode,
    body: (node: SeenNode) => Record<string, unknown> | undefined,
    refused: (why: string) => boolean,
  ): Promise<Corrected> => {
    let current = node;
    for (let tries = 0; tries < conflictsMax; tries++) {
      const wanted = body(current);
      if (wanted === undefined) return { ok: true, node: current };
      const reply = await patch(current, wanted);
      if (reply.ok) return { ok: true, node: readNode(reply.body, spec.name) ?? current };
      if (isCode(reply, 404)) return { ok: false, gone: true, why: describeFailure(reply) };
      if (isCode(reply, 403)) {
        if (refused(describeFailure(reply))) continue;
        return { ok: true, node: current };
      }
      if (!isCode(reply, 409)) return { ok: false, gone: false, why: describeFailure(reply) };
      const got = await get();
      if (got.kind !== "node")
        return {
          ok: false,
          gone: got.kind === "missing",
          why: got.kind === "failed" ? got.why : "the Node is gone",
        };
      current = got.node;
    }
    return { ok: false, gone: false, why: "others kept writing the Node at the same time" };
  };

  return {
    async ensure(capacity, conditions) {
      const got = await get();
      if (got.kind === "failed") return { ok: false, why: got.why };
      if (got.kind === "node") {
        // A Node that is on its way out cannot be kept; it is made anew once it is gone.
        if (got.node.deleting) return { ok: false, why: "the Node is being deleted" };
        return { ok: true, node: got.node, created: false };
      }
      let reply = await create(capacity, conditions());
      if (!reply.ok && isCode(reply, 403) && !labelsRestricted) {
        const why = describeFailure(reply);
        labelsRestricted = true;
        reply = await create(capacity, conditions());
        if (reply.ok) restrict(why);
        else labelsRestricted = false;
      }
      if (!reply.ok) return { ok: false, why: describeFailure(reply) };
      const node = readNode(reply.body, spec.name);
      if (node === undefined) return { ok: false, why: "the reply is not this Node" };
      // What a Node was refused later it may be granted at creation, taints above all.
      taintsRefused = false;
      labelsRefused = false;
      return { ok: true, node, created: true };
    },

    async correct(node, capacity) {
      let current = node;
      if (!labelsRefused) {
        const wrong = (seen: SeenNode) => {
          const correction = labelCorrection(labels(), seen);
          return correction === undefined ? undefined : { metadata: { labels: correction } };
        };
        const done = await write(current, wrong, (why) => {
          if (!labelsRestricted) {
            restrict(why);
            return true;
          }
          labelsRefused = true;
          log.warn("this identity may not change its Node's labels; they stay as they are", {
            node: spec.name,
            why,
          });
          return false;
        });
        if (!done.ok) return done;
        current = done.node;
      }
      if (taintsRefused) return { ok: true, node: current };
      const wrong = (seen: SeenNode) => {
        const taints = taintCorrection(capacity, seen);
        return taints === undefined ? undefined : { spec: { taints } };
      };
      return write(current, wrong, (why) => {
        taintsRefused = true;
        log.warn("this identity may not change its Node's taints (NodeRestriction); they stay as they are", {
          node: spec.name,
          why,
        });
        return false;
      });
    },
  };
}

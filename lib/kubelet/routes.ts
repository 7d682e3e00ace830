/** What the kubelet API answers to which path. */
import type { Authorizer, User } from "./auth.ts";
import type { RequestHead, Response } from "./http.ts";

/** Where the answers come from. Objects are sent as JSON; what throws answers 500 and is told to `onFault`. */
export interface Content {
  /** v1 PodList of all Pods of this node: GET /pods. */
  pods(): unknown;
  /** v1 PodList of the running ones: GET /runningpods/. */
  runningPods(): unknown;
  /** Summary of the kubelet's stats API: GET /stats/summary. */
  stats(): unknown;
  /** Prometheus text: GET /metrics. */
  metrics(): string | Promise<string>;
  /** Prometheus text of resource use, for metrics-server: GET /metrics/resource. */
  resourceMetrics(): string | Promise<string>;
  /** Why the provider is not healthy, or undefined: GET /healthz. */
  fault?(): string | undefined;
}

const noInteraction =
  "not served by vk-sandbox: this Pod is a microVM without a container runtime; use the sandbox SDK or the sandbox's preview URL for shells, commands, logs and ports";

/** Paths of kubelets' interactive surfaces (kubelet server.go). */
const interactive = [
  "/exec/",
  "/attach/",
  "/run/",
  "/containerLogs/",
  "/portForward/",
  "/logs/",
  "/cri/",
  "/checkpoint/",
];

const prometheus = "text/plain; version=0.0.4; charset=utf-8";

interface Route {
  subresource: "proxy" | "stats" | "metrics";
  contentType: string;
  answer: (content: Content) => unknown;
}

const json = "application/json";
const routes: Record<string, Route> = {
  "/pods": { subresource: "proxy", contentType: json, answer: (content) => content.pods() },
  "/runningpods": { subresource: "proxy", contentType: json, answer: (content) => content.runningPods() },
  "/stats/summary": { subresource: "stats", contentType: json, answer: (content) => content.stats() },
  "/metrics": { subresource: "metrics", contentType: prometheus, answer: (content) => content.metrics() },
  "/metrics/resource": {
    subresource: "metrics",
    contentType: prometheus,
    answer: (content) => content.resourceMetrics(),
  },
};

export interface RouterOptions {
  content: Content;
  authorizer: Authorizer;
  onFault: (path: string, error: unknown) => void;
}

const text = (status: number, body: string, headers?: Record<string, string>): Response => ({
  status,
  body: `${body}\n`,
  headers,
});

/** Answers one request whose connection presented `certificate`, if any. Never throws. */
export function router({ content, authorizer, onFault }: RouterOptions) {
  return async (head: RequestHead, certificate: User | undefined): Promise<Response> => {
    const { method } = head;
    const path = head.path.length > 1 && head.path.endsWith("/") ? head.path.slice(0, -1) : head.path;
    const reading = method === "GET" || method === "HEAD";
    if (path === "/healthz") {
      if (!reading) return text(405, "only GET", { Allow: "GET, HEAD" });
      const fault = content.fault?.();
      return fault === undefined ? { status: 200, body: "ok" } : text(503, fault);
    }
    // Said to everyone: it tells nothing about the node, and kubectl shows it to the person who asked.
    if (interactive.some((prefix) => `${path}/`.startsWith(prefix))) return text(501, noInteraction);
    const route = Object.hasOwn(routes, path) ? routes[path] : undefined;
    if (route === undefined)
      return text(
        404,
        "no such page; there are /healthz, /pods, /runningpods/, /stats/summary, /metrics and /metrics/resource",
      );
    if (!reading) return text(405, "only GET", { Allow: "GET, HEAD" });
    try {
      const decision = await authorizer.decide(
        certificate,
        head.headers.get("authorization"),
        "get",
        route.subresource,
      );
      if (!decision.ok) {
        const challenge =
          decision.status === 401 ? { "WWW-Authenticate": 'Bearer realm="vk-sandbox"' } : undefined;
        return text(decision.status, decision.message, challenge);
      }
      const answer = await route.answer(content);
      const body = typeof answer === "string" ? answer : JSON.stringify(answer);
      return { status: 200, contentType: route.contentType, body };
    } catch (error) {
      onFault(path, error);
      return text(500, "vk-sandbox failed to answer; its log says why");
    }
  };
}

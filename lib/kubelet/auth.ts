/** Who asks the kubelet API, and whether they may: TokenReview and SubjectAccessReview, as kubelets do it. */
import * as v from "valibot";
import { type Clock, describeFailure, isRecent, type KubeClient } from "../kube/index.ts";

/** What the API server calls a user. */
export interface User {
  username: string;
  uid?: string;
  groups: string[];
  extra?: Record<string, string[]>;
}

/** What of the node is asked for (kubelet authorization: the subresource of `nodes`). */
export type Subresource = "proxy" | "stats" | "metrics";

/** Refusals by HTTP status. 503: the API server did not tell, which is no verdict. */
export type Decision =
  | { ok: true; user: User }
  | { ok: false; status: 401 | 403 | 429 | 503; message: string };

export interface AuthOptions {
  kube: Pick<KubeClient, "request">;
  nodeName: string;
  clock: Clock;
}

export interface Authorizer {
  /**
   * Decides about one request.
   *
   * @param certificate the user a verified client certificate names
   * @param authorization the Authorization header
   */
  decide(
    certificate: User | undefined,
    authorization: string | undefined,
    verb: "get" | "create",
    subresource: Subresource,
  ): Promise<Decision>;
}

/** How long a yes is remembered, and how long a no. A token that was revoked works for this long. */
const yesMs = 60_000;
const noMs = 10_000;
const cacheEntriesMax = 256;
/**
 * Reviews a second, with as many in reserve: the port is open to the network, and a stranger with random tokens
 * must not make us flood the API server.
 */
const reviewsPerSecond = 10;
const reviewsBurst = 20;
const reviewTimeoutMs = 8000;

const userSchema = v.object({
  username: v.pipe(v.string(), v.minLength(1)),
  uid: v.nullish(v.string()),
  groups: v.nullish(v.array(v.string())),
  extra: v.nullish(v.record(v.string(), v.array(v.string()))),
});
const tokenReviewSchema = v.object({
  kind: v.literal("TokenReview"),
  status: v.object({ authenticated: v.optional(v.boolean(), false), user: v.nullish(v.unknown()) }),
});
const accessReviewSchema = v.object({
  kind: v.literal("SubjectAccessReview"),
  status: v.object({ allowed: v.boolean(), denied: v.optional(v.boolean(), false) }),
});

/** Answers that are good for a while, oldest out first. */
function cache<T>(clock: Clock) {
  const entries = new Map<string, { value: T; atMs: number; forMs: number }>();
  return {
    get(key: string): T | undefined {
      const entry = entries.get(key);
      if (entry === undefined) return undefined;
      if (isRecent(clock.now(), entry.atMs, entry.forMs)) return entry.value;
      entries.delete(key);
      return undefined;
    },
    set(key: string, value: T, forMs: number) {
      entries.delete(key);
      if (entries.size >= cacheEntriesMax)
        for (const oldest of entries.keys()) {
          entries.delete(oldest);
          break;
        }
      entries.set(key, { value, atMs: clock.now(), forMs });
    },
  };
}

export function authorizer({ kube, nodeName, clock }: AuthOptions): Authorizer {
  const users = cache<User | "unknown">(clock);
  const grants = cache<boolean>(clock);
  /** The same question asked twice at once is asked once. */
  const asking = new Map<string, Promise<unknown>>();
  let reserve = reviewsBurst;
  let refilledAtMs = clock.now();

  const mayReview = (): boolean => {
    const passedMs = Math.max(0, clock.now() - refilledAtMs);
    refilledAtMs = clock.now();
    reserve = Math.min(reviewsBurst, reserve + (passedMs / 1000) * reviewsPerSecond);
    if (reserve < 1) return false;
    reserve--;
    return true;
  };

  const once = <T>(key: string, ask: () => Promise<T>): Promise<T> => {
    const running = asking.get(key) as Promise<T> | undefined;
    if (running !== undefined) return running;
    const answer = ask().finally(() => asking.delete(key));
    asking.set(key, answer);
    return answer;
  };

  const review = (path: string, body: unknown) =>
    kube.request("POST", path, { body, exempt: true, timeoutMs: reviewTimeoutMs });

  type Refusal = Extract<Decision, { ok: false }>;
  const refuse = (status: Refusal["status"], message: string): Refusal => ({ ok: false, status, message });
  const busy = refuse(429, "too many reviews are under way; try again in a second");

  const authenticate = async (token: string): Promise<User | Refusal> => {
    // The token itself is not kept, only its digest.
    const key = new Bun.CryptoHasher("sha256").update(token).digest("base64");
    const known = users.get(key);
    if (known === "unknown") return refuse(401, "the bearer token is not valid");
    if (known !== undefined) return known;
    return once(`t${key}`, async () => {
      if (!mayReview()) return busy;
      const reply = await review("/apis/authentication.k8s.io/v1/tokenreviews", {
        apiVersion: "authentication.k8s.io/v1",
        kind: "TokenReview",
        spec: { token },
      });
      if (!reply.ok) return refuse(503, `the API server did not review the token: ${describeFailure(reply)}`);
      const parsed = v.safeParse(tokenReviewSchema, reply.body);
      if (!parsed.success) return refuse(503, "the API server's TokenReview cannot be read");
      const user = v.safeParse(userSchema, parsed.output.status.user);
      if (!parsed.output.status.authenticated || !user.success) {
        users.set(key, "unknown", noMs);
        return refuse(401, "the bearer token is not valid");
      }
      const { username, uid, groups, extra } = user.output;
      const found: User = {
        username,
        groups: groups ?? [],
        uid: uid ?? undefined,
        extra: extra ?? undefined,
      };
      users.set(key, found, yesMs);
      return found;
    });
  };

  const authorize = async (user: User, verb: string, subresource: Subresource): Promise<Decision> => {
    const key = JSON.stringify([user, verb, subresource]);
    const no = refuse(
      403,
      `user "${user.username}" may not ${verb} nodes/${subresource} of ${nodeName}; grant it that by RBAC`,
    );
    const known = grants.get(key);
    if (known !== undefined) return known ? { ok: true, user } : no;
    return once(`a${key}`, async (): Promise<Decision> => {
      if (!mayReview()) return busy;
      const { username, uid, groups, extra } = user;
      const reply = await review("/apis/authorization.k8s.io/v1/subjectaccessreviews", {
        apiVersion: "authorization.k8s.io/v1",
        kind: "SubjectAccessReview",
        spec: {
          user: username,
          uid,
          groups,
          extra,
          resourceAttributes: { verb, version: "v1", resource: "nodes", subresource, name: nodeName },
        },
      });
      if (!reply.ok)
        return refuse(503, `the API server did not review the access: ${describeFailure(reply)}`);
      const parsed = v.safeParse(accessReviewSchema, reply.body);
      if (!parsed.success) return refuse(503, "the API server's SubjectAccessReview cannot be read");
      const allowed = parsed.output.status.allowed && !parsed.output.status.denied;
      grants.set(key, allowed, allowed ? yesMs : noMs);
      return allowed ? { ok: true, user } : no;
    });
  };

  return {
    async decide(certificate, authorization, verb, subresource) {
      if (certificate !== undefined) return authorize(certificate, verb, subresource);
      const token = /^Bearer +([\x21-\x7e]+)$/i.exec(authorization ?? "")?.[1];
      if (token === undefined)
        return refuse(
          401,
          "a client certificate of --client-ca-file or a bearer token of the cluster is needed",
        );
      const user = await authenticate(token);
      return "ok" in user ? user : authorize(user, verb, subresource);
    },
  };
}

/**
 * The user that a verified client certificate names, as Kubernetes reads it: common name and organizations.
 * Undefined when it names none.
 *
 * @param subject as X509Certificate.subject: one `KEY=value` a line
 */
export function certificateUser(subject: string): User | undefined {
  let username: string | undefined;
  const groups: string[] = [];
  for (const line of subject.split("\n")) {
    if (line.startsWith("CN=")) {
      // Two common names: which one counts is a matter of opinion.
      if (username !== undefined) return undefined;
      username = line.slice(3);
    } else if (line.startsWith("O=")) groups.push(line.slice(2));
  }
  if (username === undefined || username === "") return undefined;
  return { username, groups: [...groups, "system:authenticated"] };
}

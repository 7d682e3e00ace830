/**
 * Who may do what, for requests and for reviews alike: tokens, and rules of which the first that fits decides.
 */
import { isObject, type Json, type JsonObject } from "./patch.ts";
import { ApiError } from "./status.ts";

export interface User {
  username: string;
  uid?: string;
  groups?: string[];
}

/** What is asked for. Names and groups are empty where there are none. */
export interface Attributes {
  verb: string;
  group: string;
  resource: string;
  subresource: string;
  namespace: string;
  name: string;
}

/** What a rule leaves out fits everything. */
export interface AccessRule extends Partial<Attributes> {
  allow: boolean;
  /** The user's name, or a group of theirs. */
  user?: string;
}

export interface Access {
  /** The user behind a bearer token. */
  user(token: string): User | undefined;
  allowed(user: User, attributes: Attributes): boolean;
  /** By token. Replaces those set before; the server's own token stays. */
  setUsers(users: Record<string, User>): void;
  /** The first rule that fits decides; where none does, everything is allowed. */
  setRules(rules: AccessRule[]): void;
}

export const admin: User = { username: "admin", uid: "1", groups: ["system:masters"] };

/** @param token the server's own: its bearer is the administrator */
export function createAccess(token: string | undefined): Access {
  let users: Record<string, User> = {};
  let rules: AccessRule[] = [];
  return {
    user: (given) => (token !== undefined && given === token ? admin : users[given]),
    allowed(user, attributes) {
      const rule = rules.find((each) => {
        if (each.user !== undefined && each.user !== user.username && !user.groups?.includes(each.user))
          return false;
        return (Object.keys(attributes) as (keyof Attributes)[]).every(
          (name) => each[name] === undefined || each[name] === attributes[name],
        );
      });
      return rule?.allow ?? true;
    },
    setUsers(given) {
      users = given;
    },
    setRules(given) {
      rules = given;
    },
  };
}

/** What a refused request is answered. */
export function forbidden(user: User, asked: Attributes): ApiError {
  const { verb, group, resource, subresource, namespace, name } = asked;
  const what = subresource === "" ? resource : `${resource}/${subresource}`;
  const where = namespace === "" ? "at the cluster scope" : `in the namespace ${JSON.stringify(namespace)}`;
  const qualified = group === "" ? resource : `${resource}.${group}`;
  const message = `${qualified}${name === "" ? "" : ` "${name}"`} is forbidden: User "${user.username}" cannot ${verb} resource "${what}" in API group "${group}" ${where}`;
  return new ApiError(403, "Forbidden", message, {
    name: name || undefined,
    group: group || undefined,
    kind: resource,
  });
}

/** The three reviews, by the plural they are POSTed to. Undefined: no such review. */
export function review(
  access: Access,
  plural: string,
  body: JsonObject,
  caller: User,
): JsonObject | undefined {
  const spec = isObject(body.spec) ? body.spec : {};
  switch (plural) {
    case "tokenreviews": {
      const user = access.user(String(spec.token ?? ""));
      const status: JsonObject = user
        ? {
            authenticated: true,
            user: {
              username: user.username,
              uid: user.uid,
              groups: [...(user.groups ?? []), "system:authenticated"],
            },
          }
        : { user: {}, error: "invalid bearer token" };
      return { ...body, status };
    }
    case "subjectaccessreviews": {
      const groups = Array.isArray(spec.groups) ? spec.groups.map(String) : [];
      const user = { username: String(spec.user ?? ""), groups };
      return { ...body, status: { allowed: access.allowed(user, attributesOf(spec)) } };
    }
    case "selfsubjectaccessreviews":
      return { ...body, status: { allowed: access.allowed(caller, attributesOf(spec)) } };
    default:
      return undefined;
  }
}

function attributesOf(spec: JsonObject): Attributes {
  const asked = isObject(spec.resourceAttributes) ? spec.resourceAttributes : {};
  const field = (value: Json | undefined) => (typeof value === "string" ? value : "");
  return {
    verb: field(asked.verb),
    group: field(asked.group),
    resource: field(asked.resource),
    subresource: field(asked.subresource),
    namespace: field(asked.namespace),
    name: field(asked.name),
  };
}

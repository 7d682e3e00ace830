/**
 * The API server's Status objects, worded as kube-apiserver 1.36 words them (each checked there once).
 */
import { json, type SimReply, text } from "./http.ts";
import { qualified, qualifiedKind, type Resource } from "./resources.ts";

export interface Cause {
  reason: string;
  message: string;
  field?: string;
}

export interface StatusBody {
  kind: "Status";
  apiVersion: "v1";
  metadata: Record<string, never>;
  status: "Failure" | "Success";
  message?: string;
  reason?: string;
  details?: {
    name?: string;
    group?: string;
    kind?: string;
    uid?: string;
    causes?: Cause[];
    retryAfterSeconds?: number;
  };
  code?: number;
}

/** A request that fails: thrown anywhere below the router, answered as the Status it carries. */
export class ApiError extends Error {
  readonly body: StatusBody;
  constructor(code: number, reason: string, message: string, details?: StatusBody["details"]) {
    super(message);
    this.body = {
      kind: "Status",
      apiVersion: "v1",
      metadata: {},
      status: "Failure",
      message,
      reason: reason === "" ? undefined : reason,
      details,
      code,
    };
  }
}

export function statusReply(error: ApiError): SimReply {
  const retryAfter = error.body.details?.retryAfterSeconds;
  return json(
    error.body.code ?? 500,
    error.body,
    retryAfter === undefined ? undefined : { "retry-after": String(retryAfter) },
  );
}

/** Details of a named object; empty group and name are left out. */
function details(resource: Resource, name: string, kind = resource.plural): StatusBody["details"] {
  return { name: name || undefined, group: resource.group || undefined, kind };
}

export function notFound(resource: Resource, name: string): ApiError {
  return new ApiError(404, "NotFound", `${qualified(resource)} "${name}" not found`, details(resource, name));
}

export function alreadyExists(resource: Resource, name: string): ApiError {
  return new ApiError(
    409,
    "AlreadyExists",
    `${qualified(resource)} "${name}" already exists`,
    details(resource, name),
  );
}

export function conflict(resource: Resource, name: string, why: string): ApiError {
  const message = `Operation cannot be fulfilled on ${qualified(resource)} "${name}": ${why}`;
  return new ApiError(409, "Conflict", message, details(resource, name));
}

/** A DELETE whose preconditions do not hold: named by kind, not by resource. */
export function preconditionFailed(resource: Resource, name: string, why: string): ApiError {
  const message = `Operation cannot be fulfilled on ${qualifiedKind(resource)} "${name}": ${why}`;
  return new ApiError(409, "Conflict", message, details(resource, name, resource.kind));
}

export const modified =
  "the object has been modified; please apply your changes to the latest version and try again";

/** 422. `faults` are [field, message] with the message as a cause carries it. */
export function invalid(
  resource: Resource,
  name: string,
  faults: [field: string, message: string][],
): ApiError {
  const each = faults.map(([field, message]) => `${field}: ${message}`);
  const list = each.length === 1 ? each[0] : `[${each.join(", ")}]`;
  const reason = (message: string) =>
    message.startsWith("Required")
      ? "FieldValueRequired"
      : message.startsWith("Forbidden")
        ? "FieldValueForbidden"
        : "FieldValueInvalid";
  return new ApiError(422, "Invalid", `${qualifiedKind(resource)} "${name}" is invalid: ${list}`, {
    ...details(resource, name, resource.kind),
    causes: faults.map(([field, message]) => ({ reason: reason(message), message, field })),
  });
}

/** 422 for an unconditional PUT where there is none; named by resource, unlike other Invalids. */
export function versionRequired(resource: Resource, name: string): ApiError {
  return invalid({ ...resource, kind: resource.plural }, name, [
    ["metadata.resourceVersion", "Invalid value: 0: must be specified for an update"],
  ]);
}

export function badRequest(message: string): ApiError {
  return new ApiError(400, "BadRequest", message);
}

/** A list or watch parameter that is refused. */
export function badOptions(options: string, field: string, message: string): ApiError {
  return invalid({ group: "meta.k8s.io", version: "v1", plural: "", kind: options, namespaced: false }, "", [
    [field, message],
  ]);
}

/** What a server without the resource says: nothing about any name. */
export function unknownResource(): ApiError {
  return new ApiError(404, "NotFound", "the server could not find the requested resource", {});
}

/** What a server without the group, or a custom group without the resource, says. */
export function pageNotFound(): SimReply {
  return text(404, "404 page not found\n");
}

export function methodNotAllowed(): ApiError {
  const message = "the server does not allow this method on the requested resource";
  return new ApiError(405, "MethodNotAllowed", message, {});
}

export function expired(message: string): ApiError {
  return new ApiError(410, "Expired", message);
}

/** A resourceVersion the server has not reached. */
export function tooLargeVersion(asked: number, current: number): ApiError {
  return new ApiError(504, "Timeout", `Timeout: Too large resource version: ${asked}, current: ${current}`, {
    causes: [{ reason: "ResourceVersionTooLarge", message: "Too large resource version" }],
    retryAfterSeconds: 1,
  });
}

/** The answer to a DELETE that leaves no object to show. */
export function deleted(resource: Resource, name: string, uid: string): StatusBody {
  return {
    kind: "Status",
    apiVersion: "v1",
    metadata: {},
    status: "Success",
    details: { ...details(resource, name), uid },
  };
}

/** The answer to a binding or an eviction. */
export const created: StatusBody = {
  kind: "Status",
  apiVersion: "v1",
  metadata: {},
  status: "Success",
  code: 201,
};

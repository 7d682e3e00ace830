import { authorityOf } from "./pod.ts";
import type { OwnerRef, PodView, Row } from "./types.ts";

/**
 * Whether a Pod's authority is a row's (contract: Create 3): the same UID, and the same object behind it.
 *
 * An ownerReference is its writer's word. A UID belongs to one object for ever, so a reference with the row's
 * UID and another kind or name is false: whoever may create Pods could point a living owner's VM at a name
 * that does not exist, and the next verdict would release it. Versions of a group are the same object.
 */
export function hasAuthority(row: Pick<Row, "authority" | "owner" | "podUID">, pod: PodView): boolean {
  if (row.authority !== authorityOf(pod)) return false;
  if (row.owner !== undefined && pod.owner !== undefined) return isSameOwner(row.owner, pod.owner);
  // Of a row that names no owner only a bare Pod's own generation is known to be the authority; in a table
  // that lost the owner's name there is nothing to compare with.
  return pod.owner === undefined ? row.owner === undefined : row.authority !== row.podUID;
}

function isSameOwner(a: OwnerRef, b: OwnerRef): boolean {
  return a.kind === b.kind && a.name === b.name && groupOf(a.apiVersion) === groupOf(b.apiVersion);
}

/** `agents.x-k8s.io/v1beta1` → `agents.x-k8s.io`; the core group is "". */
function groupOf(apiVersion: string): string {
  const slash = apiVersion.indexOf("/");
  return slash < 0 ? "" : apiVersion.slice(0, slash);
}

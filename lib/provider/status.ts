import type { Cause, PodStatus, PodView, Row } from "./types.ts";

/** Reason on a Pod whose create fails (contract: Create 5). */
export const PROVIDER_FAILED = "ProviderFailed";

/** Reasons on a Pod whose VM is confirmed gone (contract: Leases). */
export type DeathReason = "SandboxLeaseExpired" | "SandboxLost";

/** RFC3339 with whole seconds, as metav1.Time is written. */
export function rfc3339(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 19)}Z`;
}

const CONDITION_TYPES = ["Initialized", "Ready", "ContainersReady", "PodScheduled"] as const;

/**
 * Status of a Pod served by a claim: Running, all conditions True, every container ready (contract: Create 4).
 * Times come from the claim, so they do not move between pushes. The IPs are added by whoever sends it.
 */
export function runningStatus(pod: PodView, row: Row): PodStatus {
  const since = rfc3339(row.claimedAtMs);
  const imageID = `sandboxd://${row.id}`;
  return {
    phase: "Running",
    reason: null,
    message: null,
    startTime: since,
    conditions: CONDITION_TYPES.map((type) => ({
      type,
      status: "True",
      lastTransitionTime: since,
      reason: null,
      message: null,
    })),
    containerStatuses: pod.containers.map((container) => ({
      name: container.name,
      image: container.image,
      imageID,
      containerID: imageID,
      ready: true,
      started: true,
      restartCount: 0,
      state: { running: { startedAt: since } },
    })),
  };
}

/** Status of a Pod that has no claim yet, with the typed cause: Pending, or Failed under restartPolicy Never. */
export function refusedStatus(pod: PodView, cause: Cause): PodStatus {
  return {
    phase: pod.restartNever ? "Failed" : "Pending",
    reason: PROVIDER_FAILED,
    message: cause.message,
  };
}

/** Status of a Pod whose VM is confirmed gone: Failed, exit code 1, finished when it ended. */
export function deadStatus(pod: PodView, reason: DeathReason, finishedAtMs: number, row?: Row): PodStatus {
  const finishedAt = rfc3339(finishedAtMs);
  const startedAt = row === undefined ? finishedAt : rfc3339(row.claimedAtMs);
  const message =
    reason === "SandboxLeaseExpired"
      ? `the lease of sandbox ${row?.id ?? pod.claimId} ended at ${finishedAt} and sandboxd destroyed it`
      : `sandbox ${row?.id ?? pod.claimId} is no longer known to sandboxd: it was destroyed outside this provider`;
  return {
    phase: "Failed",
    reason,
    message,
    conditions: [unready("Ready", finishedAt, reason), unready("ContainersReady", finishedAt, reason)],
    containerStatuses: terminated(pod, 1, reason, startedAt, finishedAt, row?.id ?? pod.claimId),
  };
}

/**
 * Last status of a Pod that is being deleted: its containers have ended. The phase stays as it is, since a
 * Pod that turns Failed would leave its Sandbox Finished for good.
 */
export function endedStatus(pod: PodView, nowMs: number): PodStatus {
  const at = rfc3339(nowMs);
  return {
    conditions: [unready("Ready", at, "PodDeleted"), unready("ContainersReady", at, "PodDeleted")],
    containerStatuses: terminated(pod, 0, "Completed", at, at, pod.claimId),
  };
}

function unready(type: string, at: string, reason: string): Record<string, unknown> {
  return { type, status: "False", lastTransitionTime: at, reason };
}

function terminated(
  pod: PodView,
  exitCode: number,
  reason: string,
  startedAt: string,
  finishedAt: string,
  claimId: string,
): Record<string, unknown>[] {
  const imageID = claimId === "" ? "" : `sandboxd://${claimId}`;
  return pod.containers.map((container) => ({
    name: container.name,
    image: container.image,
    imageID,
    containerID: imageID,
    ready: false,
    started: false,
    restartCount: 0,
    state: { terminated: { exitCode, reason, startedAt, finishedAt } },
  }));
}

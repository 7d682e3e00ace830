/**
 * The words the provider core, the state store and the effect runner share. Times are milliseconds since
 * the epoch; 0 as a deadline means "kept for ever".
 */

/** The controller ownerReference of a Pod: who, beside the Pod itself, may decide about its claim. */
export interface OwnerRef {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
}

/** One sandboxd sandbox held for a Pod key: the durable record, release credential included. */
export interface Row {
  id: string;
  /** Release credential. Never logged, published or shown. */
  token: string;
  /** owner_addr as sandboxd gave it: host:port or an http(s) origin. */
  address: string;
  /** UID of the Pod generation that holds the claim, or held it last. */
  podUID: string;
  /** UID that decides about the claim: the controller owner's, or the Pod's own when it is bare. Empty in tables older than authority. */
  authority: string;
  claimedAtMs: number;
  deadlineMs: number;
  /** Absent for a bare Pod. */
  owner?: OwnerRef;
  /** When a replacement was first seen Running on another node. */
  supersededAtMs?: number;
}

/** Written before a claim is asked for, so that a lost reply can be traced to its Pod. */
export interface Intent {
  podUID: string;
  authority: string;
  owner?: OwnerRef;
  atMs: number;
  template: string;
  net: string;
  size: string;
}

/** A claim withdrawn from its key, on its way back to sandboxd. */
export interface Releasing {
  key: string;
  row: Row;
  /** The verdict's reason, for the ledger and the log. */
  reason: string;
}

/** A claim whose key was taken over by a Pod of another authority; its own owner has not been asked to the end yet. */
export interface Displaced {
  key: string;
  row: Row;
}

/** One durable step. A list of changes is committed together or not at all. `value: null` removes. */
export type Change =
  | { kind: "row"; key: string; value: Row | null }
  | { kind: "intent"; key: string; value: Intent | null }
  | { kind: "releasing"; id: string; value: Releasing | null }
  | { kind: "displaced"; id: string; value: Displaced | null };

/** The durable table as the store loads it. */
export interface Table {
  /** By Pod key. */
  rows: Map<string, Row>;
  /** By Pod key. */
  intents: Map<string, Intent>;
  /** By claim id. */
  releasing: Map<string, Releasing>;
  /** By claim id. */
  displaced: Map<string, Displaced>;
}

/** A container as its status needs it. */
export interface ContainerView {
  name: string;
  image: string;
}

/** A Pod trimmed to what decisions need (facts: virtual-kubelet, contract: Create). */
export interface PodView {
  /** `<namespace>/<name>` */
  key: string;
  uid: string;
  resourceVersion: string;
  owner?: OwnerRef;
  phase: string;
  deleting: boolean;
  restartNever: boolean;
  runtime: string;
  template: string;
  net: string;
  size: string;
  ttl: string;
  renew: boolean;
  claimId: string;
  /** status.podIP as the API holds it; empty when none. */
  podIP: string;
  containers: ContainerView[];
  /** Digest of the status as the API holds it, comparable with `statusDigest` of what we would publish. */
  digest: StatusDigest;
}

/** A status in comparable form: phase, reason, message and claim; four conditions; containers. */
export interface StatusDigest {
  head: string;
  conditions: string;
  containers: string;
}

/** One row of sandboxd's index (`GET /v1/sandboxes`). */
export interface Listed {
  id: string;
  template: string;
  net: string;
  size: string;
  deadlineMs: number;
  /** Absent when sandboxd does not say. */
  claimedAtMs?: number;
  hibernated: boolean;
  claimRef: string;
}

/** Why a claim was refused (contract: Create 5). */
export type CauseKind =
  | "no_warm_capacity"
  | "max_claims"
  | "draining"
  | "unknown_template"
  | "bad_token"
  | "egress_unavailable"
  | "provisioning_failed"
  | "unreachable"
  | "timeout"
  | "bad_reply"
  | "bad_annotation"
  | "state_unwritable";

export interface Cause {
  kind: CauseKind;
  /** A sentence for the Pod's status: what happened, to what, and what to do next. */
  message: string;
}

export interface Grant {
  id: string;
  token: string;
  address: string;
  deadlineMs: number;
}

/** What `POST /v1/claim` came to. `lost`: sandboxd may have granted without our hearing of it. */
export type ClaimResult = { ok: true; grant: Grant } | { ok: false; cause: Cause; lost: boolean };

/** What `GET /v1/sandboxes/{id}` came to. Only a structured 404 is absence. */
export type ReadResult =
  /** `address` is empty when sandboxd's row does not carry it. */
  { ok: true; listed: Listed; token: string; address: string } | { ok: false; absent: boolean; why: string };

/** What a quorum GET of an owner (or of a bare Pod) came to. */
export type OwnerState =
  | { kind: "found"; uid: string; deleting: boolean; expired: boolean; suspended: boolean }
  /** `named`: the Status' details.name is the name that was asked for. */
  | { kind: "not_found"; named: boolean }
  | { kind: "failed"; why: string };

/** The Pod now living under a key, read beside the owner (contract: Superseded). */
export type CurrentPod =
  | {
      kind: "found";
      uid: string;
      /** UID of its controller owner, empty when it has none; absent: not known, and nothing is released on it. */
      ownerUid?: string;
      nodeName: string;
      running: boolean;
      claimId: string;
    }
  | { kind: "not_found" }
  | { kind: "failed"; why: string };

/** Answer of a one-shot call: done, the thing is gone, refused for good, or to be tried again. */
export type CallResult =
  | { ok: true; resourceVersion?: string; deadlineMs?: number }
  | { ok: false; kind: "gone" | "refused" | "failed"; why: string };

/** Fields of a Pod's status that one patch sets; what it leaves out stays as it is. */
export type PodStatus = Record<string, unknown>;

/** Work the core asks for. `seq` tells its answer from that of an older request. */
export type Effect =
  | {
      kind: "claim";
      seq: number;
      key: string;
      template: string;
      net: string;
      size: string;
      ttlSeconds: number;
    }
  | { kind: "find"; seq: number; key: string }
  | { kind: "read"; seq: number; key: string; id: string }
  | {
      kind: "ask";
      seq: number;
      key: string;
      id: string;
      /** Absent: a bare Pod, ask for the Pod itself. */
      owner?: OwnerRef;
      /** Also read the Pod now living under the key. */
      withPod: boolean;
    }
  | { kind: "release"; seq: number; key: string; id: string; token: string }
  | { kind: "hibernate" | "wake"; seq: number; key: string; id: string; token: string }
  | { kind: "renew"; seq: number; key: string; id: string; token: string; ttlSeconds: number }
  /** `address`: owner_addr of the claim, whose host is the Pod's IP; empty when no VM is published. */
  | {
      kind: "publish";
      seq: number;
      key: string;
      uid: string;
      status: PodStatus;
      claimId: string;
      address: string;
    }
  | { kind: "finalize"; seq: number; key: string; uid: string; status: PodStatus | undefined }
  | { kind: "evict"; seq: number; key: string; uid: string }
  | { kind: "list"; seq: number };

/** What happened, as told to the core. */
export type Event =
  /** A complete list begins: Pods not seen again until `synced` are gone. */
  | { type: "relist" }
  | { type: "pod"; pod: PodView }
  /** The watch said DELETED for this Pod generation, at this version. */
  | { type: "podGone"; key: string; uid: string; resourceVersion?: string }
  | { type: "synced" }
  | { type: "claimed"; effect: Effect; result: ClaimResult }
  | { type: "found"; effect: Effect; result: { ok: true; rows: Listed[] } | { ok: false; why: string } }
  | { type: "read"; effect: Effect; result: ReadResult }
  | { type: "asked"; effect: Effect; owner: OwnerState; pod?: CurrentPod }
  | { type: "called"; effect: Effect; result: CallResult }
  | { type: "listed"; effect: Effect; result: { ok: true; rows: Listed[] } | { ok: false; why: string } }
  /** Time has passed: do what is due. */
  | { type: "tick" };

/** A decision about a VM or a Pod, for log, ledger, metrics and Kubernetes events. Never carries a token. */
export interface Note {
  kind:
    | "claimed"
    | "adopted"
    | "refused"
    | "recovered"
    | "preserved"
    | "release_decided"
    | "released"
    | "release_failed"
    | "displaced"
    | "superseded"
    | "hibernated"
    | "hibernate_refused"
    | "woken"
    | "renewed"
    | "renew_refused"
    | "lease_moved"
    | "lease_expired"
    | "lost"
    | "vouched"
    | "dropped"
    | "orphan"
    | "external"
    | "stale"
    | "settled"
    | "unrecoverable"
    | "uncommitted"
    | "rescheduled"
    | "finalized"
    | "publish_failed";
  key: string;
  /** Claim id; empty when there is none yet. */
  id: string;
  podUID: string;
  /** In words: why, on what evidence. */
  reason: string;
  /** For `refused`. */
  cause?: CauseKind;
}

import { expect } from "bun:test";
import * as fc from "fast-check";
import { anyJson, fuzz, mutated } from "../fuzzing.ts";
import {
  authorityOf,
  claimAxes,
  digestCovers,
  isNewer,
  mergeDigest,
  podView,
  splitKey,
  statusDigest,
} from "./pod.ts";
import { endedStatus, refusedStatus, runningStatus } from "./status.ts";
import type { Row } from "./types.ts";

const name = fc.stringMatching(/^[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?$/);
const annotation = (short: string) => `sandbox.cocoonstack.io/${short}`;
const axis = fc.oneof(fc.constantFrom("", "none", "egress", "small", "sandboxd", "0", "86400"), fc.string());
const pod = fc
  .record({
    namespace: name,
    name,
    uid: fc.uuid(),
    resourceVersion: fc.nat().map(String),
    annotations: fc.dictionary(
      fc.constantFrom(
        ...["template", "net", "size", "ttl-seconds", "runtime", "renew", "claim-id"].map(annotation),
      ),
      axis,
      { noNullPrototype: true },
    ),
    owners: fc.array(
      fc.record({
        apiVersion: fc.string(),
        kind: fc.string(),
        name: fc.string(),
        uid: fc.uuid(),
        controller: fc.boolean(),
      }),
      { maxLength: 3 },
    ),
    phase: fc.constantFrom("", "Pending", "Running", "Failed", "Succeeded"),
    containers: fc.array(fc.record({ name, image: fc.string() }), { maxLength: 4 }),
    conditions: fc.array(
      fc.record({
        type: fc.constantFrom("Ready", "Initialized", "Other"),
        status: fc.constantFrom("True", "False", "Unknown"),
      }),
      { maxLength: 4 },
    ),
  })
  .map(
    ({
      namespace,
      name: podName,
      uid,
      resourceVersion,
      annotations,
      owners,
      phase,
      containers,
      conditions,
    }) => ({
      metadata: { namespace, name: podName, uid, resourceVersion, annotations, ownerReferences: owners },
      spec: { nodeName: "n", containers },
      status: { phase, conditions },
    }),
  );

fuzz(
  "any value is a Pod with namespace, name and UID, or none; its fields have their types",
  fc.oneof(anyJson, mutated(pod)),
  (value) => {
    const view = podView(value);
    if (view === undefined) return;
    expect(view.key).toMatch(/^.+\/.+$/s);
    for (const text of [
      view.uid,
      view.phase,
      view.template,
      view.net,
      view.size,
      view.ttl,
      view.claimId,
      view.podIP,
    ])
      expect(text).toBeString();
    expect(view.containers.length).toBeLessThanOrEqual(64);
    expect(authorityOf(view)).toBeString();
    const axes = claimAxes(view);
    if (!axes.ok) {
      expect(axes.cause.message.length).toBeLessThan(600);
      expect(axes.cause.message).not.toMatch(/[\p{Cc}\p{Cf}]/u);
      return;
    }
    expect(axes.axes.template).not.toBe("");
    expect(Number.isInteger(axes.axes.ttlSeconds) && axes.axes.ttlSeconds >= 0).toBe(true);
  },
);

fuzz("a Pod is read as it is: key, UID, and the first controller among its owners", pod, (given) => {
  const view = podView(given);
  const { metadata } = given;
  expect(view?.key).toBe(`${metadata.namespace}/${metadata.name}`);
  expect(splitKey(view?.key ?? "")).toEqual({ namespace: metadata.namespace, name: metadata.name });
  expect(view?.uid).toBe(metadata.uid);
  const controller = metadata.ownerReferences.find((owner) => owner.controller);
  expect(view?.owner?.uid).toBe(controller?.uid);
});

fuzz(
  "the digest of any status covers itself, and what was merged into it",
  fc.tuple(anyJson, anyJson, fc.string()),
  ([a, b, claimId]) => {
    const object = (value: unknown) =>
      (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
    const [held, pushed] = [statusDigest(object(a), claimId), statusDigest(object(b), claimId)];
    expect(digestCovers(held, held)).toBe(true);
    expect(digestCovers(mergeDigest(held, pushed), pushed)).toBe(true);
  },
);

fuzz("what would be published of a Pod covers its own digest and is plain JSON", pod, (given) => {
  const view = podView(given);
  if (view === undefined) throw new Error("no Pod");
  const row: Row = {
    id: "sb_1",
    token: "t",
    address: "10.0.0.1:1",
    podUID: view.uid,
    authority: "a",
    claimedAtMs: 1_000,
    deadlineMs: 0,
  };
  for (const status of [
    runningStatus(view, row),
    endedStatus(view, 5_000),
    refusedStatus(view, { kind: "max_claims", message: "m" }),
  ]) {
    expect(JSON.parse(JSON.stringify(status))).toEqual(status);
    const digest = statusDigest(status, row.id);
    expect(digestCovers(digest, digest)).toBe(true);
  }
});

fuzz(
  "versions order as the numbers they are",
  fc.tuple(fc.bigInt({ min: 1n, max: 2n ** 64n }), fc.bigInt({ min: 1n, max: 2n ** 64n })),
  ([a, b]) => {
    expect(isNewer(String(a), String(b))).toBe(a > b);
  },
);

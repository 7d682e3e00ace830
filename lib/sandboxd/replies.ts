/** The shapes of sandboxd's answers other than the claim's (facts: sandboxd's HTTP API). */
import * as v from "valibot";
import type { Listed } from "../provider/types.ts";
import { originOf } from "./address.ts";
import { isId } from "./limits.ts";
import { parseTime } from "./time.ts";

const text = v.string();
const flag = v.nullish(v.boolean(), false);
const count = v.pipe(v.number(), v.finite(), v.minValue(0));
const id = v.pipe(
  text,
  v.check((value) => isId(value), "a sandbox id"),
);
const time = v.pipe(
  v.nullish(text, null),
  v.check((value) => parseTime(value) !== undefined, "an RFC 3339 time"),
  v.transform((value): number => parseTime(value) ?? 0),
);
const poolKey = v.object({ template: text, net: v.nullish(text, ""), size: v.nullish(text, "") });

const rowFields = {
  id,
  key: poolKey,
  deadline: time,
  claimed_at: time,
  hibernated: flag,
  claim_ref: v.nullish(text, ""),
};
const row = v.object(rowFields);

function toListed(value: v.InferOutput<typeof row>): Listed {
  const { key } = value;
  return {
    id: value.id,
    template: key.template,
    net: key.net,
    size: key.size,
    deadlineMs: value.deadline,
    ...(value.claimed_at > 0 ? { claimedAtMs: value.claimed_at } : {}),
    hibernated: value.hibernated,
    claimRef: value.claim_ref,
  };
}

/** The field must be there: a body without it is not an empty index. Go writes an empty one as null. */
const listing = v.object({ sandboxes: v.nullable(v.array(row)) });
const oneRow = v.object({ ...rowFields, token: v.nullish(text, ""), owner_addr: v.nullish(text, "") });
const deadlineReply = v.object({ deadline: time });

const info = v.object({
  pools: v.nullable(v.array(v.object({ key: poolKey, warm: count, target: count }))),
  claimed: count,
  hibernated: v.nullish(count, 0),
  archived: v.nullish(count, 0),
  draining: flag,
  at_capacity: flag,
  at_capacity_reason: v.nullish(text, ""),
});

const stats = v.object({
  id,
  cpu_count: v.nullish(count, 0),
  mem_total_bytes: v.nullish(count, 0),
  mem_used_bytes: v.nullish(count, 0),
  mem_used_measured: flag,
  hibernated: flag,
  measured_at: time,
});

/** A warm pool and how full it is. */
export interface Pool {
  template: string;
  net: string;
  size: string;
  warm: number;
  target: number;
}

/** `GET /v1/info`. */
export interface Info {
  pools: Pool[];
  claimed: number;
  hibernated: number;
  archived: number;
  draining: boolean;
  atCapacity: boolean;
  atCapacityReason: string;
}

/** `GET /v1/sandboxes/{id}/stats`. */
export interface SandboxStats {
  id: string;
  cpuCount: number;
  memTotalBytes: number;
  memUsedBytes: number;
  /** False: the used bytes are an estimate. */
  memUsedMeasured: boolean;
  hibernated: boolean;
  /** 0: not said. */
  measuredAtMs: number;
}

/** A reply in the shape it should have, or the first place where it has not; no value of it is quoted. */
export type Shaped<T> = { ok: true; value: T } | { ok: false; why: string };

function shaped<S extends v.GenericSchema, T>(
  schema: S,
  value: unknown,
  map: (output: v.InferOutput<S>) => T,
): Shaped<T> {
  if (value === undefined) return { ok: false, why: "its reply is not JSON" };
  const checked = v.safeParse(schema, value, { abortEarly: true });
  if (checked.success) return { ok: true, value: map(checked.output) };
  const [issue] = checked.issues;
  const path = issue.path?.map((part) => String(part.key)).join(".") ?? "";
  const expected = issue.kind === "validation" ? issue.message : (issue.expected ?? "something else");
  return { ok: false, why: `in its reply ${path || "the body"} should be ${expected}` };
}

/** `GET /v1/sandboxes`. */
export function shapeListing(value: unknown): Shaped<Listed[]> {
  return shaped(listing, value, ({ sandboxes }) => (sandboxes ?? []).map(toListed));
}

/** `GET /v1/sandboxes/{id}`; token and address are "" where sandboxd does not give them. */
export function shapeRow(value: unknown): Shaped<{ listed: Listed; token: string; address: string }> {
  return shaped(oneRow, value, (output) => ({
    listed: toListed(output),
    token: output.token,
    address: originOf(output.owner_addr),
  }));
}

/** `POST …/renew`; the deadline that was granted, in milliseconds, 0 = kept for ever. */
export function shapeRenewal(value: unknown): Shaped<number> {
  return shaped(deadlineReply, value, (output) => output.deadline);
}

export function shapeInfo(value: unknown): Shaped<Info> {
  return shaped(info, value, (output) => ({
    pools: (output.pools ?? []).map(({ key, warm, target }) => ({ ...key, warm, target })),
    claimed: output.claimed,
    hibernated: output.hibernated,
    archived: output.archived,
    draining: output.draining,
    atCapacity: output.at_capacity,
    atCapacityReason: output.at_capacity_reason,
  }));
}

export function shapeStats(value: unknown): Shaped<SandboxStats> {
  return shaped(stats, value, (output) => ({
    id: output.id,
    cpuCount: output.cpu_count,
    memTotalBytes: output.mem_total_bytes,
    memUsedBytes: output.mem_used_bytes,
    memUsedMeasured: output.mem_used_measured,
    hibernated: output.hibernated,
    measuredAtMs: output.measured_at,
  }));
}

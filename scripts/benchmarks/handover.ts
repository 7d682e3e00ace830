/**
 * Our own time on the handover path, measured inside: the daemon's own parts (watch line, decision, journal on disk,
 * effects) with the two servers replaced by answers that cost nothing, so that every sample is ours alone.
 * It prints one JSON line: microseconds at p50 and p99 for handovers and commits, on the clock and of this thread's
 * CPU. On a machine that others share the clock also counts how long the scheduler let us wait; the CPU does not.
 *
 * usage: handover DIR ROWS HANDOVERS
 */
import { dlopen, FFIType } from "bun:ffi";
import { join } from "node:path";
import { createLineSplitter } from "../../lib/kube/lines.ts";
import { createEffects } from "../../lib/pods/effects.ts";
import { createPods } from "../../lib/pods/pods.ts";
import { applyChanges } from "../../lib/provider/table.ts";
import type { Change, Row } from "../../lib/provider/types.ts";
import { hostOf } from "../../lib/sandboxd/index.ts";
import { openStore } from "../../lib/state/index.ts";
import { quantile } from "./numbers.ts";

const [dir = "", rowsText = "0", handoversText = "2000"] = process.argv.slice(2);
const rows = Number(rowsText);
const handovers = Number(handoversText);
/** This thread's CPU to the nanosecond; what Bun gives is counted in ticks of the scheduler. */
const CLOCK_THREAD_CPUTIME_ID = 3;
const timespec = new BigInt64Array(2);
const { clock_gettime } = dlopen("libc.so.6", {
  clock_gettime: { args: [FFIType.i32, FFIType.ptr], returns: FFIType.i32 },
}).symbols;
/** Left out: the JIT compiles meanwhile. */
const warmUp = 500;

const opened = openStore({ path: join(dir, "claims.json") });
if (!opened.ok) throw new Error(opened.message);
const { store } = opened;
const commits: number[] = [];
const cpuCommits: number[] = [];

function rowFor(n: number): Row {
  return {
    id: `sb_${n.toString(16).padStart(16, "0")}`,
    token: n.toString(16).padStart(64, "0"),
    address: "10.88.0.7:8080",
    podUID: `00000000-0000-4000-8000-${n.toString(16).padStart(12, "0")}`,
    authority: `00000000-0000-4000-8000-${n.toString(16).padStart(12, "0")}`,
    claimedAtMs: Date.now(),
    deadlineMs: Date.now() + 86_400_000,
  };
}

for (let at = 0; at < rows; at += 100) {
  const changes: Change[] = [];
  for (let n = at; n < Math.min(rows, at + 100); n++)
    changes.push({ kind: "row", key: `held/p-${n}`, value: rowFor(n) });
  const done = store.commit(changes);
  if (!done.ok) throw new Error(done.why);
  applyChanges(store.table, changes);
}

/** Our own time of the handover under way: up to the claim, and from its answer up to the status. */
let started = now();
let own = { ms: 0, cpuMs: 0 };
let next = 1_000_000;
let running = () => {};

function now(): { ms: number; cpuMs: number } {
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, timespec);
  return { ms: performance.now(), cpuMs: Number(timespec[0]) * 1000 + Number(timespec[1]) / 1e6 };
}

function since(before: { ms: number; cpuMs: number }): { ms: number; cpuMs: number } {
  const { ms, cpuMs } = now();
  return { ms: ms - before.ms, cpuMs: cpuMs - before.cpuMs };
}

const never = (): never => {
  throw new Error("not part of a handover");
};

const effects = createEffects({
  kube: {
    async request(method) {
      if (method !== "PATCH") never();
      const second = since(started);
      own = { ms: own.ms + second.ms, cpuMs: own.cpuMs + second.cpuMs };
      running();
      return { ok: true, status: 200, body: { metadata: { resourceVersion: "1" } } };
    },
    stream: never,
    close() {},
    waiting: 0,
  },
  sandboxd: {
    async claim() {
      own = since(started);
      await new Promise((resolve) => setImmediate(resolve));
      started = now();
      const { id, token, address, deadlineMs } = rowFor(next++);
      return { ok: true, grant: { id, token, address, deadlineMs } };
    },
    list: async () => ({ ok: false, why: "not part of a handover" }),
    read: never,
    release: never,
    renew: never,
    hibernate: never,
    wake: never,
    hostOf,
  },
  reads: { owner: never, barePod: never, pod: never },
});

const pods = createPods({
  provider: { nodeName: "bench", orphanScanMs: 0 },
  table: store.table,
  commit(changes) {
    const at = now();
    const done = store.commit(changes);
    const took = since(at);
    commits.push(took.ms);
    cpuCommits.push(took.cpuMs);
    if (done.ok) applyChanges(store.table, changes);
    return done.ok;
  },
  runEffect: effects,
  onNote() {},
  onFault(error) {
    throw error;
  },
  clock: { now: Date.now, after: () => () => {} },
  ticks: () => performance.now(),
  random: Math.random,
});

const annotation = (name: string) => `sandbox.cocoonstack.io/${name}`;

/** A watch line as long as a real one: managedFields and defaulted fields make up most of it. */
function lineFor(n: number): Uint8Array {
  const filler = Object.fromEntries(
    Array.from({ length: 60 }, (_, at) => [`f:field-${at}`, { "f:inner": {} }]),
  );
  const object = {
    kind: "Pod",
    apiVersion: "v1",
    metadata: {
      name: `q-${n}`,
      namespace: "bench",
      uid: `10000000-0000-4000-8000-${n.toString(16).padStart(12, "0")}`,
      resourceVersion: String(1000 + n),
      annotations: {
        [annotation("template")]: "registry.example/sandbox/rt:24.04",
        [annotation("net")]: "none",
        [annotation("size")]: "small",
      },
      managedFields: [{ manager: "bench", operation: "Update", fieldsType: "FieldsV1", fieldsV1: filler }],
    },
    spec: {
      nodeName: "bench",
      restartPolicy: "Always",
      containers: [{ name: "agent", image: "registry.example/sandbox/rt:24.04", resources: {} }],
    },
    status: { phase: "Pending", conditions: [{ type: "PodScheduled", status: "True" }] },
  };
  return Buffer.from(`${JSON.stringify({ type: "ADDED", object })}\n`);
}

const splitter = createLineSplitter(1 << 20, (line) => {
  const { object } = JSON.parse(line);
  pods.onWatch({ type: "object", object, initial: false, change: "ADDED" });
  return true;
});

pods.onWatch({ type: "relist" });
pods.onWatch({ type: "synced" });
const samples: number[] = [];
const cpuSamples: number[] = [];
for (let n = 0; n < warmUp + handovers; n++) {
  const line = lineFor(n);
  const done = new Promise<void>((resolve) => {
    running = resolve;
  });
  if (n === warmUp) {
    commits.length = 0;
    cpuCommits.length = 0;
  }
  started = now();
  splitter.push(line);
  await done;
  if (n >= warmUp) {
    samples.push(own.ms);
    cpuSamples.push(own.cpuMs);
  }
  // A daemon sleeps between Pods; one that never does is put off by the scheduler in the middle of a sample.
  await new Promise((resolve) => setTimeout(resolve, 2));
}
const us = (values: readonly number[], at: number) => quantile(values, at) * 1000;
process.stdout.write(
  `${JSON.stringify({
    rows,
    handovers,
    handoverP50Us: us(samples, 0.5),
    handoverP99Us: us(samples, 0.99),
    handoverCpuP50Us: us(cpuSamples, 0.5),
    handoverCpuP99Us: us(cpuSamples, 0.99),
    commitP50Us: us(commits, 0.5),
    commitP99Us: us(commits, 0.99),
    commitCpuP50Us: us(cpuCommits, 0.5),
  })}\n`,
);
store.close();
process.exit(0);

/** Churn, faults and rotation for a long time, with memory, descriptors and latency watched. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { deletePods, Follower, makePods, names } from "./load.ts";
import { median, quantile } from "./numbers.ts";
import { pictureOf, type Sample } from "./picture.ts";
import { cpuSecondsOf, descriptorsOf, memoryOf } from "./process.ts";
import type { Bench, Result } from "./rows.ts";
import { allFeatures, openBudget } from "./world.ts";

/** Pods of one round. */
const roundPods = 50;
/** A fault every so many rounds, of the kinds below in turn. */
const faultEvery = 5;

/** Makes and deletes Pods for `minutes`, in between cutting the watch, restarting sandboxd and rewriting the token file. */
export async function soak(bench: Bench, minutes: number, picture: string | undefined): Promise<Result[]> {
  const { world, size, say } = bench;
  const subject = await world.start("daemon", { flags: [...allFeatures, ...openBudget] });
  const follower = new Follower(world.api, subject);
  await follower.start();
  const samples: Sample[] = [];
  const startedAt = performance.now();
  const faults = [
    // sandboxd restarts: requests in flight die, claims live.
    () => subject.signalSandboxd("SIGHUP"),
    // The API server hangs for a moment.
    async () => {
      world.cluster.signal("kube-apiserver", "SIGSTOP");
      await Bun.sleep(2000);
      world.cluster.signal("kube-apiserver", "SIGCONT");
    },
    // The token file is written anew, with the same token, as a rotation does.
    () => subject.rewriteToken(),
  ];
  let rounds = 0;
  let pods = 0;
  while (performance.now() - startedAt < minutes * 60_000) {
    if (rounds > 0 && rounds % faultEvery === 0) await faults[(rounds / faultEvery - 1) % faults.length]?.();
    const made = names(Math.min(roundPods, size.heldPods));
    const seen = await makePods(world.api, subject, follower, made);
    await deletePods(world.api, subject, follower, made);
    follower.forgetGone();
    rounds++;
    pods += made.length;
    const latencies = seen.map((one) => (one.runningAt ?? Number.NaN) - one.postedAt);
    samples.push({
      minute: (performance.now() - startedAt) / 60_000,
      rssMb: memoryOf(subject.pid).rssMb,
      descriptors: descriptorsOf(subject.pid),
      p50Ms: median(latencies),
      p99Ms: quantile(latencies, 0.99),
    });
    if (rounds % 20 === 0)
      say(
        `soak: ${samples.at(-1)?.minute.toFixed(1)} min, ${pods} Pods, RSS ${samples.at(-1)?.rssMb.toFixed(0)} MB`,
      );
  }
  await Bun.sleep(size.quietMs);
  const atRest = memoryOf(subject.pid).rssMb;
  const cpu = cpuSecondsOf(subject.pid);
  if (picture !== undefined) writeFileSync(join(process.cwd(), picture), pictureOf(samples));
  const tenth = Math.max(1, Math.floor(samples.length / 10));
  const early = samples.slice(tenth, 2 * tenth);
  const late = samples.slice(-tenth);
  const rssOf = (some: Sample[]) => median(some.map((sample) => sample.rssMb));
  follower.stop();
  await subject.remove();
  const row = "soak";
  return [
    { row, what: `Pods made and deleted in ${minutes} minutes`, daemon: pods, unit: "" },
    {
      row,
      what: "RSS, last tenth ÷ second tenth",
      daemon: rssOf(late) / rssOf(early.length > 0 ? early : samples),
      unit: "×",
      must: { atMost: 1.15 },
      note: `${rssOf(early.length > 0 ? early : samples).toFixed(0)} and ${rssOf(late).toFixed(0)} MB; at rest ${atRest.toFixed(0)}`,
    },
    {
      row,
      what: "descriptors, last ÷ first",
      daemon: (samples.at(-1)?.descriptors ?? Number.NaN) / (samples[0]?.descriptors ?? Number.NaN),
      unit: "×",
      must: { atMost: 1.5 },
    },
    {
      row,
      what: "POST to Running, p50 of all rounds",
      daemon: median(samples.map((s) => s.p50Ms)),
      unit: "ms",
    },
    { row, what: "CPU per Pod, made and deleted", daemon: (1000 * cpu) / Math.max(1, pods), unit: "ms" },
  ];
}

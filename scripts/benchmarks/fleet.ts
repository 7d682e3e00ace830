/** Many daemons on this machine against the one API server: what each of them costs it. */
import { Follower, makePods, names } from "./load.ts";
import { median, quantile } from "./numbers.ts";
import { memoryOf } from "./process.ts";
import type { Bench, Result } from "./rows.ts";
import { type Subject, settled } from "./world.ts";

/** Daemons that start at once. */
const startWidth = 8;

/**
 * Starts the daemons, one of them with a sandboxd stand-in of its own that all share, gives each its Pods, and counts
 * an idle minute.
 */
export async function fleet(bench: Bench, daemons: number, pods: number): Promise<Result[]> {
  const { world, size, say } = bench;
  const first = await world.start("daemon", { flags: ["--publish-inventory"] });
  const subjects: Subject[] = [first];
  while (subjects.length < daemons) {
    const count = Math.min(startWidth, daemons - subjects.length);
    const sandboxd = { url: first.url, tokenFile: first.tokenFile };
    const started = await Promise.all(
      Array.from({ length: count }, () =>
        world.start("daemon", { flags: ["--publish-inventory"], sandboxd }),
      ),
    );
    subjects.push(...started);
    say(`fleet: ${subjects.length} daemons`);
  }
  const mark = world.auditMark();
  const times: number[] = [];
  const startedAt = performance.now();
  for (let at = 0; at < subjects.length; at += startWidth)
    await Promise.all(
      subjects.slice(at, at + startWidth).map(async (subject) => {
        const follower = new Follower(world.api, subject);
        await follower.start();
        const seen = await makePods(world.api, subject, follower, names(pods));
        for (const one of seen) times.push((one.runningAt ?? Number.NaN) - one.postedAt);
        follower.stop();
      }),
    );
  const tookMs = performance.now() - startedAt;
  say(`fleet: ${daemons * pods} Pods Running in ${(tookMs / 1000).toFixed(1)} s; counting a minute`);
  // Events and the first inventories follow.
  await settled(() => world.audit(mark).filter((line) => line.objectRef?.resource === "events").length);
  const served = world.audit(mark).filter((line) => line.userAgent?.startsWith("vk-sandbox/"));
  const idleMark = world.auditMark();
  await Bun.sleep(size.idleMs);
  const idle = world.audit(idleMark).filter((line) => line.userAgent?.startsWith("vk-sandbox/"));
  const count = (lines: typeof idle, resource: string, subresource?: string) =>
    lines.filter(
      ({ objectRef }) =>
        objectRef?.resource === resource && (subresource ?? "") === (objectRef.subresource ?? ""),
    ).length;
  const perMinute = 60_000 / size.idleMs / daemons;
  const memory = subjects.map((subject) => memoryOf(subject.pid).rssMb);
  const inventory = await world.api
    .find(`/apis/sandbox.cocoonstack.io/v1beta1/nodeinventories/${first.name}`)
    .catch(() => undefined);
  const pod = await world.api.list(`${first.podsPath}?limit=1`);
  const sizeOf = (object: unknown) => (object === undefined ? Number.NaN : JSON.stringify(object).length);
  const node = await world.api.find(`/api/v1/nodes/${first.name}`);
  const lease = await world.api.find(
    `/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/${first.name}`,
  );
  const row = "fleet";
  const one = (what: string, daemon: number, unit: string, note?: string): Result => ({
    row,
    what,
    daemon,
    unit,
    note,
  });
  return [
    one(`${daemons} daemons with ${pods} Pods each: POST to Running, p50`, median(times), "ms"),
    one("the same, p99", quantile(times, 0.99), "ms"),
    one("Pods per second", (1000 * daemons * pods) / tookMs, "/s"),
    one("API requests per Pod, status", count(served, "pods", "status") / (daemons * pods), ""),
    one("API requests per Pod, events", count(served, "events") / (daemons * pods), ""),
    one("idle, per node and minute: leases", count(idle, "leases") * perMinute, ""),
    one("idle, per node and minute: inventories", count(idle, "nodeinventories") * perMinute, ""),
    one("idle, per node and minute: node statuses", count(idle, "nodes", "status") * perMinute, ""),
    one("idle, per node and minute: all requests", idle.length * perMinute, ""),
    one("RSS of a daemon, p50", median(memory), "MB"),
    one("RSS of a daemon, largest", Math.max(...memory), "MB"),
    one("a Pod as JSON", sizeOf(pod.items[0]), "B"),
    one("a Node as JSON", sizeOf(node), "B"),
    one("a Lease as JSON", sizeOf(lease), "B"),
    one(
      "an inventory as JSON",
      sizeOf(inventory),
      "B",
      `all share one sandboxd: ${daemons * pods} sandboxes`,
    ),
  ];
}

/**
 * The mistakes a template author can make, row by row as sandbox-operator's documentation lists them, and what
 * a person sees of each on the Pod.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { annotation, conditionOf, type Pod, type PodOptions, World } from "./world.ts";

let world: World;

beforeAll(async () => {
  world = await World.create();
});

afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

/** Waits until the scheduler has said that it cannot place the Pod, and returns its words. */
async function unschedulable(name: string): Promise<string> {
  const pod = await world.eventually(
    `the scheduler gives up on Pod ${name}`,
    () => world.pod(name),
    (p) => conditionOf(p, "PodScheduled")?.reason === "Unschedulable",
  );
  expect(pod?.status.phase).toBe("Pending");
  expect(pod?.spec.nodeName).toBeUndefined();
  return conditionOf(pod, "PodScheduled")?.message ?? "";
}

/** Waits until the provider has refused the Pod, on the Pod and in its events, and returns the Pod. */
async function refused(name: string, phase: "Pending" | "Failed"): Promise<Pod> {
  const pod = await world.eventually(
    `Pod ${name} is ${phase} with the provider's reason`,
    () => world.pod(name),
    (p) => p?.status.phase === phase && p.status.reason === "ProviderFailed",
  );
  const message = pod?.status.message ?? "";
  expect(message).toMatch(/./);
  await world.eventually(
    `an Event of Pod ${name} carries the message`,
    () => world.events(name),
    (events) =>
      events.some(
        (e) => e.type === "Warning" && e.reason === "ProviderCreateFailed" && e.message.includes(message),
      ),
  );
  if (pod === undefined) throw new Error("unreachable: the Pod exists");
  return pod;
}

describe("no node selector, or one matching no node", () => {
  test("neither selector nor toleration: the Pod stays Pending, unschedulable", async () => {
    await world.createPod("no-selector", { spec: { nodeSelector: {}, tolerations: [] } });
    expect(await unschedulable("no-selector")).toContain("untolerated taint");
    expect(world.granted("no-selector")).toEqual([]);
  });

  test("a selector that matches no node: the Pod stays Pending, unschedulable", async () => {
    await world.createPod("wrong-selector", { spec: { nodeSelector: { [annotation("runtime")]: "other" } } });
    expect(await unschedulable("wrong-selector")).toContain("node affinity/selector");
    expect(world.granted("wrong-selector")).toEqual([]);
  });
});

test("selector set, toleration missing: the virtual node's taint keeps the Pod off it", async () => {
  await world.createPod("no-toleration", { spec: { tolerations: [] } });
  expect(await unschedulable("no-toleration")).toContain("untolerated taint");
  expect(world.granted("no-toleration")).toEqual([]);
});

describe("spec.nodeName pinned to a virtual node: the annotations alone decide", () => {
  test("the Pod runs, without selector and toleration, past the scheduler", async () => {
    await world.createPod("pinned", { spec: { nodeName: world.name, nodeSelector: {}, tolerations: [] } });
    await world.running("pinned");
    expect(world.granted("pinned")).toHaveLength(1);
  });

  test("without the template annotation it fails", async () => {
    const spec = { nodeName: world.name, nodeSelector: {}, tolerations: [] };
    await world.createPod("pinned-without", { spec, annotations: { [annotation("template")]: null } });
    expect((await refused("pinned-without", "Pending")).status.message).toContain(annotation("template"));
  });
});

const faults: { what: string; name: string; options: PodOptions; says: string }[] = [
  {
    what: "the template annotation is missing",
    name: "no-template",
    options: { annotations: { [annotation("template")]: null } },
    says: annotation("template"),
  },
  {
    what: "runtime names another runtime than sandboxd",
    name: "other-runtime",
    options: { annotations: { [annotation("runtime")]: "cocoon" } },
    says: "cocoon",
  },
  {
    what: "ttl-seconds is negative",
    name: "negative-ttl",
    options: { annotations: { [annotation("ttl-seconds")]: "-1" } },
    says: annotation("ttl-seconds"),
  },
  {
    what: "ttl-seconds is not an integer",
    name: "fractional-ttl",
    options: { annotations: { [annotation("ttl-seconds")]: "1.5" } },
    says: annotation("ttl-seconds"),
  },
  {
    what: "the template names a pool that nobody provisioned",
    name: "unknown-template",
    options: { annotations: { [annotation("template")]: "nobody/provisioned:this" } },
    says: "nobody/provisioned:this",
  },
];

for (const { what, name, options, says } of faults)
  describe(what, () => {
    test("the Pod stays Pending, and its status and events say why", async () => {
      await world.createPod(name, options);
      expect((await refused(name, "Pending")).status.message).toContain(says);
      expect(world.granted(name)).toEqual([]);
    });

    test("under restartPolicy Never it is Failed, and never tried again", async () => {
      const never = `${name}-never`;
      await world.createPod(never, { ...options, spec: { restartPolicy: "Never" } });
      expect((await refused(never, "Failed")).status.message).toContain(says);
      expect(world.granted(never)).toEqual([]);
    });
  });

test("a fault in an annotation that is corrected on the Pod is tried again at once", async () => {
  await world.createPod("corrected", { annotations: { [annotation("runtime")]: "cocoon" } });
  await refused("corrected", "Pending");
  await world.api.patch(world.podPath("corrected"), {
    metadata: { annotations: { [annotation("runtime")]: "sandboxd" } },
  });
  const pod = await world.running("corrected");
  expect(pod.status.reason).toBeUndefined();
  expect(pod.status.message).toBeUndefined();
});

test("an explicit ttl of 0 takes sandboxd's default, an absent one a day", async () => {
  await world.createPod("ttl-zero", { annotations: { [annotation("ttl-seconds")]: "0" } });
  await world.createPod("ttl-absent");
  await world.running("ttl-zero");
  await world.running("ttl-absent");
  expect(world.granted("ttl-zero")).toMatchObject([{ leaseSeconds: 300 }]);
  expect(world.granted("ttl-absent")).toMatchObject([{ leaseSeconds: 86_400 }]);
});

test("a key with no warm capacity leaves the Pod Pending with the reason, and it runs once there is", async () => {
  const cold = { template: "cold/pool:1", net: "none", size: "large" };
  world.sandboxd.control.setPool({ ...cold, warm: 0 });
  await world.createPod("cold", {
    annotations: {
      [annotation("template")]: cold.template,
      [annotation("size")]: cold.size,
      [annotation("net")]: cold.net,
    },
  });
  expect((await refused("cold", "Pending")).status.message).toMatch(/warm/);
  world.sandboxd.control.setPool({ ...cold, warm: 1 });
  await world.running("cold", undefined, { timeoutMs: 60_000 });
  expect(world.granted("cold")).toMatchObject([{ key: cold }]);
}, 90_000);

test("no Pod here but the ones that should have one ever cost a VM", () => {
  const refs = world.sandboxd.control.history().map((vm) => vm.claimRef.split("/")[1]);
  expect(refs.sort()).toEqual(["cold", "corrected", "pinned", "ttl-absent", "ttl-zero"]);
});

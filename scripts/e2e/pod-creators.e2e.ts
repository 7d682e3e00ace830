/**
 * What somebody who may create, patch and delete Pods in a namespace can do to other people's VMs there, and what he
 * cannot. docs/security.md points here.
 */
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { queryLedger } from "../../lib/ledger/index.ts";
import { quietBurst } from "../../lib/pods/quiet.ts";
import { Api, ApiError, type KubeObject } from "../controlplane/api.ts";
import { annotation, controlPlane, ownerReference, type Pod, World } from "./world.ts";

/** A Sandbox with its Pod, as the controller makes it; nobody makes another one. */
async function victim(world: World): Promise<{ sandbox: KubeObject; pod: Pod; id: string }> {
  const sandbox = await world.createSandbox("victim");
  await world.createPod("victim", { owner: sandbox });
  const pod = await world.running("victim");
  return { sandbox, pod, id: world.granted("victim")[0]?.id ?? "" };
}

/** Deletes the Pod and waits until it is gone, and so until its VM's fate was judged. */
async function end(world: World, name: string): Promise<void> {
  const uid = (await world.pod(name))?.metadata.uid;
  await world.api.delete(world.podPath(name));
  await world.gone(world.podPath(name), uid);
}

describe("a VM whose Sandbox lives is not released", () => {
  test("by a Pod that names the Sandbox's UID under another name", async () => {
    await using world = await World.create({ noController: true });
    const { sandbox } = await victim(world);
    await end(world, "victim");
    const forged = { ...sandbox, metadata: { ...sandbox.metadata, name: "no-such-sandbox" } };
    // The garbage collector finds no such owner and deletes the Pod by itself, at times before it has a VM.
    await world.eventually("a forged Pod came as far as a VM", async () => {
      const { metadata } = await world.createPod("victim", { owner: forged });
      await world.gone(world.podPath("victim"), metadata.uid);
      return world.fates("victim").length === 2;
    });
    await world.eventually("its own VM is released", () => world.fates("victim")[1] === "sandbox");
    expect(world.fates("victim")[0]).toBe("lives");

    await world.createPod("victim", { owner: sandbox });
    await world.running("victim");
    expect(world.fates("victim")).toEqual(["lives", "sandbox"]);
  });

  test("by a Pod without an owner, or of another owner, under the same name", async () => {
    await using world = await World.create({ noController: true });
    const { pod } = await victim(world);
    const own = await world.createSandbox("attacker");
    await end(world, "victim");
    let before = pod;
    for (const owner of [undefined, own]) {
      await world.createPod("victim", { owner });
      before = await world.running("victim", before);
      await end(world, "victim");
    }
    expect(world.fates("victim")[0]).toBe("lives");
    expect(world.granted("victim").length).toBe(3);
  });

  test("by taking the owner off the Pod, or by naming one that does not exist, and deleting the Pod", async () => {
    await using world = await World.create({ noController: true });
    const { sandbox, pod, id } = await victim(world);
    const nobody = { ...ownerReference(sandbox), name: "nobody", uid: crypto.randomUUID() };
    let before = pod;
    for (const ownerReferences of [null, [nobody]]) {
      await world.api.patch(world.podPath("victim"), { metadata: { ownerReferences } });
      await end(world, "victim");
      expect(world.fates("victim")).toEqual(["lives"]);
      await world.createPod("victim", { owner: sandbox });
      before = await world.running("victim", before);
    }
    expect(before.metadata.annotations?.[annotation("claim-id")]).toBe(id);
  });

  test("by a Pod that says it holds the VM, under another name or in another namespace", async () => {
    await using world = await World.create({ noController: true });
    const { sandbox, id } = await victim(world);
    const claims = { [annotation("claim-id")]: id };
    await world.createPod("thief", { annotations: claims });
    const thief = await world.running("thief");
    expect(thief.metadata.annotations?.[annotation("claim-id")]).not.toBe(id);
    await end(world, "thief");

    await using elsewhere = await World.create({ idle: true, noController: true });
    const there = await elsewhere.createPod("victim", {
      owner: sandbox,
      annotations: claims,
      spec: { nodeName: world.name, nodeSelector: {} },
    });
    await elsewhere.eventually(
      "the garbage collector or we have ended it",
      () => elsewhere.pod("victim"),
      (p) => p?.metadata.uid !== there.metadata.uid,
    );
    expect(world.fates("victim")).toEqual(["lives"]);
  });

  test("by a Pod that forges the whole reference: it takes the Sandbox's place, and its end preserves", async () => {
    await using world = await World.create({ noController: true });
    const { sandbox, pod, id } = await victim(world);
    await end(world, "victim");
    await world.createPod("victim", { owner: sandbox });
    const impostor = await world.running("victim", pod);
    expect(impostor.metadata.annotations?.[annotation("claim-id")]).toBe(id);
    await end(world, "victim");
    expect(world.fates("victim")).toEqual(["lives"]);
  });
});

describe("what he can have", () => {
  test("Pods that come and go leave no VM behind", async () => {
    await using world = await World.create({ noController: true });
    for (let round = 0; round < 3; round++) {
      const names = Array.from({ length: 10 }, (_, i) => `p${i}`);
      await Promise.all(names.map((name) => world.createPod(name)));
      await Promise.all(names.map((name) => world.running(name)));
      await Promise.all(names.map((name) => end(world, name)));
    }
    await world.eventually("no VM lives", () => world.living().length === 0);
    expect(world.sandboxd.control.history().length).toBe(30);
  }, 90_000);

  test("VMs kept under names that a living Sandbox is said to own end with that Sandbox", async () => {
    await using world = await World.create({ noController: true });
    const sandbox = await world.createSandbox("mine");
    for (const name of ["x1", "x2", "x3"]) {
      await world.createPod(name, { owner: sandbox });
      await world.running(name);
      await end(world, name);
    }
    expect(world.living().length).toBe(3);
    await world.api.delete(world.sandboxPath("mine"));
    await world.eventually("no VM lives", () => world.living().length === 0, Boolean, { timeoutMs: 60_000 });
  }, 90_000);

  test("a Pod that is edited in a loop gets a few lines, rows and events, and no VM", async () => {
    await using world = await World.create({ noController: true });
    await world.createPod("loud", { annotations: { [annotation("net")]: "none-0" } });
    const edits = 80;
    for (let i = 1; i <= edits; i++)
      await world.api.patch(world.podPath("loud"), {
        metadata: { annotations: { [annotation("net")]: `none-${i}` } },
      });
    await world.eventually(
      "its status says the last fault",
      () => world.pod("loud"),
      (pod) => pod?.status.message?.includes(`none-${edits}"`) ?? false,
    );
    const lines = world.daemon.log.filter((line) => line.includes(`"pod":"${world.name}/loud"`));
    expect(lines.length).toBeLessThanOrEqual(quietBurst);
    const events = await world.events("loud");
    expect(events.length).toBeLessThanOrEqual(25);
    expect(await world.daemon.stop()).toBe(0);
    const ledger = await queryLedger(join(world.daemon.stateDir, "audit.db"), { limit: 1_000 });
    if (!ledger.ok) throw new Error(ledger.message);
    expect(ledger.rows.filter((row) => row.key === `${world.name}/loud`).length).toBeLessThanOrEqual(
      quietBurst,
    );
    expect(world.granted("loud")).toEqual([]);
  });
});

describe("with manifests/owner-reference-policy.yaml", () => {
  const file = join(import.meta.dir, "../../manifests/owner-reference-policy.yaml");
  const admission = "/apis/admissionregistration.k8s.io/v1";
  const name = "vk-sandbox-owner-references";

  test("nobody but the controllers says whose a Pod is, and everybody may have Pods all the same", async () => {
    await using world = await World.create();
    const user = `${world.name}-editor`;
    await world.api.create(
      `${world.path.replace("/api/v1", "/apis/rbac.authorization.k8s.io/v1")}/rolebindings`,
      {
        metadata: { name: user },
        roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "edit" },
        subjects: [{ apiGroup: "rbac.authorization.k8s.io", kind: "User", name: user }],
      },
    );
    controlPlane().identity(user, { user, groups: [] });
    const api = new Api(controlPlane().credentials(user));
    const asked = (request: Promise<unknown>) =>
      request.then(
        () => "done",
        (error: unknown) => {
          if (error instanceof ApiError) return `${error.code} ${error.message}`;
          throw error;
        },
      );
    const sandbox = await world.createSandbox("victim");
    const before = await world.running("victim");
    const podOf = (pod: string, references: unknown[]) => ({
      ...world.podTemplate(),
      metadata: { ...world.podTemplate().metadata, name: pod, ownerReferences: references },
    });
    const forged = podOf("forged", [ownerReference(sandbox)]);
    await world.api.applyFile(file);
    try {
      await world.eventually(
        "the policy is in force",
        () => asked(api.create(`${world.path}/pods?dryRun=All`, forged)),
        (answer) => answer.startsWith("403") && answer.includes("Only the sandbox controller"),
      );
      const denied = expect.stringMatching(/^403 .*Only the sandbox controller/);
      const patch = (ownerReferences: unknown) =>
        asked(api.patch(world.podPath("victim"), { metadata: { ownerReferences } }));
      expect(await patch(null)).toEqual(denied);
      expect(await patch([{ ...ownerReference(sandbox), name: "other" }])).toEqual(denied);
      expect(await patch([{ ...ownerReference(sandbox), controller: false }])).toEqual(denied);

      // Pods of his own, other owners, and edits that touch no reference are his as before.
      expect(await asked(api.create(`${world.path}/pods`, podOf("plain", [])))).toBe("done");
      const job = {
        apiVersion: "batch/v1",
        kind: "Job",
        name: "j",
        uid: crypto.randomUUID(),
        controller: true,
      };
      expect(await asked(api.create(`${world.path}/pods?dryRun=All`, podOf("of-a-job", [job])))).toBe("done");
      expect(await asked(api.patch(world.podPath("victim"), { metadata: { labels: { a: "b" } } }))).toBe(
        "done",
      );
      // And the controller's way goes on: Pod evicted, replacement made, same VM.
      expect(await asked(api.request("DELETE", world.podPath("victim")))).toBe("done");
      await world.running("victim", before);
      expect(world.fates("victim")).toEqual(["lives"]);
    } finally {
      await world.api.delete(`${admission}/validatingadmissionpolicybindings/${name}`);
      await world.api.delete(`${admission}/validatingadmissionpolicies/${name}`);
    }
  });
});

/** What somebody who may create, patch and delete Pods in a namespace can do to other people's VMs there. */
import { expect, test } from "bun:test";
import { World } from "./world.ts";

test("a Pod that names the owner's UID under another name adopts nothing, and its end releases nothing of the owner's", async () => {
  await using world = await World.create({ noController: true });
  const sandbox = await world.createSandbox("victim");
  await world.createPod("victim", { owner: sandbox });
  const before = await world.running("victim");
  await world.api.delete(world.podPath("victim"), { gracePeriodSeconds: 0 });
  await world.gone(world.podPath("victim"), before.metadata.uid);

  // The reference of a Pod is its creator's word: a UID that exists, and a name that does not.
  const forged = { ...sandbox, metadata: { ...sandbox.metadata, name: "no-such-sandbox" } };
  const pod = await world.createPod("victim", { owner: forged });
  await world.running("victim", before);
  await world.api.delete(world.podPath("victim"));
  await world.gone(world.podPath("victim"), pod.metadata.uid);

  expect(world.fates("victim")).toEqual(["lives", "sandbox"]);
});

import { describe, expect, test } from "bun:test";
import { hasAuthority } from "./authority.ts";
import { podView } from "./pod.ts";
import { createProvider, type ProviderPorts } from "./provider.ts";
import { applyChanges, emptyTable } from "./table.ts";
import type { Effect, Note, OwnerRef, OwnerState, PodView, Row } from "./types.ts";

const owner: OwnerRef = {
  apiVersion: "agents.x-k8s.io/v1beta1",
  kind: "Sandbox",
  name: "a",
  uid: "sandbox-uid",
};
const row: Row = {
  id: "sb_1",
  token: "t",
  address: "10.0.0.5:7777",
  podUID: "pod-1",
  authority: owner.uid,
  owner,
  claimedAtMs: 1,
  deadlineMs: 0,
};

function pod(uid: string, reference: OwnerRef | undefined, changes: Record<string, unknown> = {}): PodView {
  const view = podView({
    metadata: {
      namespace: "ns",
      name: "a",
      uid,
      resourceVersion: "2",
      annotations: { "sandbox.cocoonstack.io/template": "t" },
      ownerReferences: reference === undefined ? [] : [{ ...reference, controller: true }],
      ...changes,
    },
    spec: { containers: [{ name: "c", image: "i" }] },
  });
  if (view === undefined) throw new Error("no Pod");
  return view;
}

describe("a Pod's authority is a row's", () => {
  test("when its owner is the same object, in whatever version of its group", () => {
    expect(hasAuthority(row, pod("pod-2", owner))).toBe(true);
    expect(hasAuthority(row, pod("pod-2", { ...owner, apiVersion: "agents.x-k8s.io/v1" }))).toBe(true);
  });

  test("not when the UID is another's", () => {
    expect(hasAuthority(row, pod("pod-2", { ...owner, uid: "other" }))).toBe(false);
    expect(hasAuthority(row, pod("pod-2", undefined))).toBe(false);
  });

  test("not when the reference has the UID and another name, kind or group", () => {
    for (const change of [
      { name: "nobody" },
      { kind: "Job" },
      { apiVersion: "v1" },
      { apiVersion: "x.io/v1beta1" },
    ])
      expect(hasAuthority(row, pod("pod-2", { ...owner, ...change }))).toBe(false);
  });

  test("a bare Pod's UID as somebody's owner is no bare Pod", () => {
    const bare: Row = { ...row, authority: "pod-1", owner: undefined };
    expect(hasAuthority(bare, pod("pod-1", undefined))).toBe(true);
    expect(hasAuthority(bare, pod("pod-2", { ...owner, uid: "pod-1" }))).toBe(false);
  });

  test("a table that lost the owner's name has only the UID to go by", () => {
    expect(hasAuthority({ ...row, owner: undefined }, pod("pod-2", owner))).toBe(true);
  });
});

const alive: OwnerState = {
  kind: "found",
  uid: owner.uid,
  deleting: false,
  expired: false,
  suspended: false,
};

describe("a Pod whose reference has the true UID and a false name", () => {
  /** A provider that holds the row, preserved and vouched for, and what it does. */
  function start() {
    const table = emptyTable();
    table.rows.set("ns/a", row);
    const effects: Effect[] = [];
    const notes: Note[] = [];
    const ports: ProviderPorts = {
      commit(changes) {
        applyChanges(table, changes);
        return true;
      },
      run: (effect) => void effects.push(effect),
      note: (note) => void notes.push(note),
      random: () => 0.5,
    };
    const provider = createProvider(table, ports, { nodeName: "n" }, 1_000);
    const take = <K extends Effect["kind"]>(kind: K): Effect & { kind: K } => {
      const at = effects.findIndex((effect) => effect.kind === kind);
      if (at < 0) throw new Error(`no ${kind} among ${effects.map((effect) => effect.kind)}`);
      return effects.splice(at, 1)[0] as Effect & { kind: K };
    };
    const listed = {
      id: "sb_1",
      template: "t",
      net: "",
      size: "",
      deadlineMs: 0,
      hibernated: false,
      claimRef: "ns/a",
    };
    provider.handle({ type: "relist" }, 1_000);
    provider.handle({ type: "synced" }, 1_000);
    provider.handle({ type: "tick" }, 1_000);
    provider.handle({ type: "listed", effect: take("list"), result: { ok: true, rows: [listed] } }, 1_000);
    const ask = effects.some((effect) => effect.kind === "ask") ? take("ask") : undefined;
    if (ask !== undefined)
      provider.handle(
        {
          type: "asked",
          effect: ask,
          owner: alive,
        },
        1_000,
      );
    return { table, provider, notes, effects, take };
  }

  test("gets a VM of its own; the owner's is set aside for its owner, who is asked by its true name", () => {
    const { table, provider, notes, take } = start();
    provider.handle({ type: "pod", pod: pod("pod-2", { ...owner, name: "nobody" }) }, 2_000);
    expect(notes.map((note) => note.kind)).not.toContain("adopted");
    expect(table.displaced.get("sb_1")?.row).toEqual(row);
    expect(take("ask").owner).toEqual(owner);
    expect(take("claim").key).toBe("ns/a");
  });

  /** The forged Pod came, found no capacity, and the true owner was found alive. */
  function setAside() {
    const world = start();
    const { provider, take } = world;
    provider.handle({ type: "pod", pod: pod("pod-2", { ...owner, name: "nobody" }) }, 2_000);
    const cause = { kind: "no_warm_capacity", message: "none" } as const;
    const refused = { ok: false, lost: false, cause } as const;
    provider.handle({ type: "claimed", effect: take("claim"), result: refused }, 2_000);
    provider.handle({ type: "asked", effect: take("ask"), owner: alive }, 2_000);
    provider.handle({ type: "called", effect: take("publish"), result: { ok: true } }, 2_000);
    return world;
  }

  test("does not take back what was set aside, and goes on claiming", () => {
    const { table, provider, take } = setAside();
    provider.handle({ type: "tick" }, 60_000);
    expect(take("claim").key).toBe("ns/a");
    expect(table.displaced.has("sb_1")).toBe(true);
  });

  test("leaves what was set aside to the owner's next true Pod", () => {
    const { table, provider } = setAside();
    provider.handle({ type: "podGone", key: "ns/a", uid: "pod-2", resourceVersion: "3" }, 3_000);
    provider.handle({ type: "pod", pod: { ...pod("pod-3", owner), resourceVersion: "4" } }, 4_000);
    expect(table.displaced.size).toBe(0);
    expect(table.rows.get("ns/a")?.id).toBe("sb_1");
  });

  test("and with another version of the group it is the owner's true Pod", () => {
    const { table, provider, notes } = start();
    provider.handle(
      { type: "pod", pod: pod("pod-2", { ...owner, apiVersion: "agents.x-k8s.io/v1" }) },
      2_000,
    );
    expect(notes.map((note) => note.kind)).toContain("adopted");
    expect(table.rows.get("ns/a")).toMatchObject({ podUID: "pod-2", authority: owner.uid });
  });
});

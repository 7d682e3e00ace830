import { expect, test } from "bun:test";
import type { Row } from "../provider/types.ts";
import { createFakeDisk } from "./fakefs.ts";
import { recordedHolder } from "./place.ts";
import { readTableReadOnly } from "./readonly.ts";
import { openStore } from "./store.ts";

const PATH = "/s/claims.json";
const SECRET = "secret-token";

function row(n: number): Row {
  return {
    id: `sb_${n}`,
    token: SECRET,
    address: "a",
    podUID: "u",
    authority: "o",
    claimedAtMs: 1_000,
    deadlineMs: 0,
  };
}

function held() {
  const disk = createFakeDisk();
  const opened = openStore({
    path: PATH,
    fs: disk.process(),
    schedule: () => {},
    nowMs: () => 5_000,
    pid: 12,
  });
  if (!opened.ok) throw new Error(opened.message);
  return { disk, store: opened.store };
}

test("the table of a running process is read without its lock and without credentials", () => {
  const { disk, store } = held();
  store.commit([
    { kind: "row", key: "ns/a", value: row(1) },
    { kind: "releasing", id: "sb_2", value: { key: "ns/b", row: row(2), reason: "owner gone" } },
    { kind: "displaced", id: "sb_3", value: { key: "ns/c", row: row(3) } },
    {
      kind: "intent",
      key: "ns/d",
      value: { podUID: "u", authority: "o", atMs: 1_000, template: "t", net: "", size: "" },
    },
  ]);
  const read = readTableReadOnly(PATH, disk.process());
  if (!read.ok) throw new Error(read.message);
  expect([...read.rows.keys(), ...read.intents.keys()]).toEqual(["ns/a", "ns/d"]);
  expect(read.releasing).toMatchObject([{ key: "ns/b", reason: "owner gone", row: { id: "sb_2" } }]);
  expect(read.displaced).toMatchObject([{ key: "ns/c", row: { id: "sb_3" } }]);
  expect(JSON.stringify([[...read.rows], read.releasing, read.displaced, read.warnings])).not.toContain(
    SECRET,
  );
  expect(recordedHolder(disk.process(), PATH)).toEqual({ pid: 12, startedAtMs: 5_000 });
});

test("a compaction or a stop between the reading of the two files does not mix two times", () => {
  for (const between of ["compact", "close"] as const) {
    for (const after of ["claims.json", "claims.json.journal"]) {
      const { disk, store } = held();
      store.commit([{ kind: "row", key: "ns/a", value: row(1) }]);
      let once = true;
      disk.onCall = ({ name, path }) => {
        if (once && name === "read" && path === `/s/${after}`) {
          once = false;
          store.commit([{ kind: "row", key: "ns/b", value: row(2) }]);
          store[between]();
        }
        return undefined;
      };
      const read = readTableReadOnly(PATH, disk.process());
      if (!read.ok) throw new Error(read.message);
      expect([...read.rows.keys()], `${between} at ${after}`).toEqual(["ns/a", "ns/b"]);
      expect(once).toBe(false);
    }
  }
});

test("reading changes nothing, not even where there is nothing", () => {
  const disk = createFakeDisk();
  expect(readTableReadOnly(PATH, disk.process())).toMatchObject({ ok: true });
  expect(disk.paths()).toEqual(["/"]);
  disk.plantDirectory("/s", 0o700);
  disk.plant(PATH, "{");
  expect(readTableReadOnly(PATH, disk.process())).toMatchObject({ ok: false, kind: "malformed" });
});

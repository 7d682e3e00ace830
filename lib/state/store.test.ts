import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Change, Row } from "../provider/types.ts";
import { createFakeDisk, type FakeDisk, type FakeProcess } from "./fakefs.ts";
import { openStore, type Store, type StoreOptions, type Trouble } from "./store.ts";

const DIRECTORY = "/s";
const PATH = "/s/claims.json";
const SECRET = "secret-token-never-shown";

function row(n: number): Row {
  return {
    id: `sb_${n}`,
    token: SECRET,
    address: "10.0.0.1:7777",
    podUID: `pod-${n}`,
    authority: `owner-${n}`,
    claimedAtMs: Date.UTC(2026, 0, 1, 0, 0, 0, 5),
    deadlineMs: Date.UTC(2026, 0, 2),
    owner: { apiVersion: "agents.x-k8s.io/v1beta1", kind: "Sandbox", name: `s${n}`, uid: `owner-${n}` },
  };
}

function put(n: number): Change[] {
  return [{ kind: "row", key: `ns/p${n}`, value: row(n) }];
}

/** A store on a fake disk, whose scheduled tasks wait in `tasks`. */
interface Bench {
  disk: FakeDisk;
  process: FakeProcess;
  store: Store;
  tasks: (() => void)[];
  troubles: Trouble[];
}

function fakeDisk(): FakeDisk {
  const disk = createFakeDisk();
  disk.plantDirectory(DIRECTORY, 0o700);
  return disk;
}

function openOn(disk: FakeDisk, options: Partial<StoreOptions> = {}) {
  const process = disk.process();
  const tasks: (() => void)[] = [];
  const troubles: Trouble[] = [];
  const opened = openStore({
    path: PATH,
    fs: process,
    schedule: (task) => tasks.push(task),
    nowMs: () => Date.UTC(2026, 0, 1),
    pid: 4711,
    onTrouble: (trouble) => troubles.push(trouble),
    ...options,
  });
  return { opened, process, tasks, troubles };
}

function bench(disk = fakeDisk(), options: Partial<StoreOptions> = {}): Bench {
  const { opened, ...rest } = openOn(disk, options);
  if (!opened.ok) throw new Error(opened.message);
  return { disk, store: opened.store, ...rest };
}

function refusal(disk: FakeDisk, options: Partial<StoreOptions> = {}) {
  const before = disk.paths().map((path) => [path, disk.read(path)]);
  const { opened } = openOn(disk, options);
  if (opened.ok) throw new Error("it was opened");
  const after = disk.paths().map((path) => [path, disk.read(path)]);
  const withoutLock = (files: unknown[][]) => files.filter(([path]) => path !== `${PATH}.lock`);
  expect(opened.message).not.toContain(SECRET);
  return { ...opened, untouched: Bun.deepEquals(withoutLock(before), withoutLock(after)) };
}

function text(disk: FakeDisk, path: string): string {
  return new TextDecoder().decode(disk.read(path) ?? new Uint8Array());
}

/** Runs the scheduled tasks and the syncs they ask for until nothing is left. */
function settle({ tasks, process }: Bench): void {
  for (let turn = 0; turn < 10_000 && tasks.length + process.pendingSyncs() > 0; turn++) {
    tasks.shift()?.();
    process.completeSync();
  }
}

describe("the format of the Go reference", () => {
  const theirs = {
    claims: {
      "ns/a": {
        id: "sb_1",
        token: "t1",
        address: "10.0.0.1:7777",
        podUID: "u1",
        authority: "o1",
        claimedAt: "2026-01-01T00:00:00Z",
        deadline: "2026-01-02T00:00:00.123456789+01:00",
        owner: {
          apiVersion: "agents.x-k8s.io/v1beta1",
          kind: "Sandbox",
          name: "a",
          uid: "o1",
          controller: true,
        },
        tentative: true,
      },
      "ns/b": {
        id: "sb_2",
        token: "t2",
        address: "a",
        podUID: "u2",
        claimedAt: null,
        deadline: null,
        owner: null,
      },
      "ns/c": { id: "sb_3", token: "t3", address: "a", podUID: "u3", deadline: "0001-01-01T00:00:00Z" },
      "ns/d": { id: "sb_4", token: "t4", address: "a", podUID: "u4" },
    },
    releasing: [{ id: "sb_5", token: "t5", address: "a", podUID: "u5", authority: "o5", claimedAt: null }],
    somethingNew: 1,
  };

  test("a table of the reference is read as it is, old ones and zero times included", () => {
    const disk = fakeDisk();
    disk.plant(PATH, JSON.stringify(theirs));
    const { table, warnings } = bench(disk).store;
    expect(warnings).toEqual([]);
    expect(table.rows.get("ns/a")).toEqual({
      id: "sb_1",
      token: "t1",
      address: "10.0.0.1:7777",
      podUID: "u1",
      authority: "o1",
      claimedAtMs: Date.UTC(2026, 0, 1),
      deadlineMs: Date.UTC(2026, 0, 1, 23, 0, 0, 123),
      owner: { apiVersion: "agents.x-k8s.io/v1beta1", kind: "Sandbox", name: "a", uid: "o1" },
    });
    for (const [key, id, podUID] of [
      ["ns/b", "sb_2", "u2"],
      ["ns/c", "sb_3", "u3"],
      ["ns/d", "sb_4", "u4"],
    ] as const) {
      const token = id.replace("sb_", "t");
      expect(table.rows.get(key)).toEqual({
        id,
        token,
        address: "a",
        podUID,
        authority: "",
        claimedAtMs: 0,
        deadlineMs: 0,
      });
    }
    expect(table.releasing.get("sb_5")).toMatchObject({
      key: "",
      row: { id: "sb_5", token: "t5", authority: "o5" },
    });
  });

  test("a null or missing part of it is an empty one", () => {
    for (const content of ['{"claims":null,"releasing":null}', '{"claims":{}}', "{}"]) {
      const disk = fakeDisk();
      disk.plant(PATH, content);
      expect(bench(disk).store.table.rows.size).toBe(0);
    }
  });

  test("a clean stop leaves one file that the reference reads, and no journal", () => {
    const { disk, store } = bench();
    store.commit(put(1));
    store.commit([
      {
        kind: "row",
        key: "ns/bare",
        value: { ...row(2), owner: undefined, deadlineMs: 0, claimedAtMs: 1e15 },
      },
      { kind: "releasing", id: "sb_3", value: { key: "ns/x", row: row(3), reason: "owner gone" } },
    ]);
    expect(store.close()).toEqual({ ok: true });
    expect(disk.paths()).toEqual(["/", DIRECTORY, PATH, `${PATH}.lock`]);
    const written = JSON.parse(text(disk, PATH));
    expect(written.claims["ns/p1"]).toEqual({
      id: "sb_1",
      token: SECRET,
      address: "10.0.0.1:7777",
      podUID: "pod-1",
      authority: "owner-1",
      claimedAt: "2026-01-01T00:00:00.005Z",
      deadline: "2026-01-02T00:00:00Z",
      owner: {
        apiVersion: "agents.x-k8s.io/v1beta1",
        kind: "Sandbox",
        name: "s1",
        uid: "owner-1",
        controller: true,
        blockOwnerDeletion: true,
      },
    });
    // Go's time.Time reads no year beyond 9999.
    expect(written.claims["ns/bare"]).toMatchObject({
      claimedAt: "9999-12-31T23:59:59.999Z",
      deadline: null,
      owner: null,
    });
    expect(written.releasing).toMatchObject([
      { id: "sb_3", token: SECRET, key: "ns/x", reason: "owner gone" },
    ]);
  });

  test("everything comes back after a clean stop as after a crash", () => {
    for (const stop of ["close", "kill"] as const) {
      const { disk, store, process } = bench();
      const changes: Change[] = [
        { kind: "row", key: "ns/p1", value: { ...row(1), supersededAtMs: 77_000 } },
        { kind: "releasing", id: "sb_2", value: { key: "ns/p2", row: row(2), reason: "r" } },
        { kind: "displaced", id: "sb_3", value: { key: "ns/p3", row: row(3) } },
        {
          kind: "intent",
          key: "ns/p4",
          value: {
            podUID: "u",
            authority: "a",
            atMs: 5,
            template: "t",
            net: "n",
            size: "s",
            owner: row(4).owner,
          },
        },
      ];
      expect(store.commit(changes)).toEqual({ ok: true });
      if (stop === "close") store.close();
      else process.kill();
      const { rows, intents, releasing, displaced } = bench(disk).store.table;
      const got = [rows.get("ns/p1"), releasing.get("sb_2"), displaced.get("sb_3"), intents.get("ns/p4")];
      expect(got, stop).toEqual(changes.map((change) => change.value ?? undefined) as never);
    }
  });
});

describe("a table that cannot be opened", () => {
  const malformed: [string, string, string][] = [
    ["empty", "", "it is empty"],
    ["blank", " \n", "it is empty"],
    ["cut off", '{"claims":{\n"ns/a":{"id":"sb_1"', "line 2, column 20: the text ends where"],
    ["with a comma too many", '{"claims":{},}', "line 1, column 14: a quoted field name should be here"],
    ["with something behind it", '{"claims":{}}x', "line 1, column 14: something follows"],
    ["with a control character", '{"claims":{"ns/a\u0001":{}}}', "line 1, column 12: a quoted field name"],
    [
      "with a row without token",
      '{"claims":{"ns/a":{"id":"sb_1","address":"","podUID":""}}}',
      "claims.ns/a.token is missing",
    ],
    ...["../../v1", "a/b", "..", "", "sb_é", "sb 1", "x".repeat(129)].map((id): [string, string, string] => [
      `with the id ${JSON.stringify(id).slice(0, 20)}`,
      JSON.stringify({ claims: { "ns/a": { id, token: SECRET, address: "", podUID: "" } } }),
      "claims.ns/a.id should be a claim id",
    ]),
    [
      "with an id in its release queue that no request could name",
      JSON.stringify({ claims: {}, releasing: [{ id: "a/b", token: SECRET, address: "", podUID: "" }] }),
      "releasing[0].id should be a claim id",
    ],
    [
      "with a wrong token",
      `{"claims":{"ns/a":{"id":"i","token":["${SECRET}"],"address":"","podUID":""}}}`,
      "claims.ns/a.token",
    ],
    [
      "with a wrong time",
      '{"claims":{"ns/a":{"id":"i","token":"","address":"","podUID":"","deadline":"soon"}}}',
      "an RFC 3339 time",
    ],
    [
      "with a key that is none",
      '{"claims":{"a":{"id":"i","token":"","address":"","podUID":""}}}',
      "a Pod key of the form",
    ],
    ["with a list for claims", '{"claims":[]}', "claims should be"],
    [
      "of a newer format",
      '{"claims":{},"journal":{"version":2,"generation":1,"offset":1,"closed":true}}',
      "newer program",
    ],
  ];
  test.each(malformed)(
    "one that is %s is malformed, with its place, and stays as it is",
    (_, content, place) => {
      const disk = fakeDisk();
      disk.plant(PATH, content);
      const { kind, message, untouched } = refusal(disk);
      expect(kind).toBe("malformed");
      expect(message).toContain(`${PATH}: `);
      expect(message).toContain(place);
      expect(message).toContain("Nothing was changed: ");
      expect(untouched).toBe(true);
    },
  );

  test("bytes that are no UTF-8 are malformed", () => {
    const disk = fakeDisk();
    disk.plant(PATH, new Uint8Array([0x7b, 0xff, 0x7d]));
    expect(refusal(disk)).toMatchObject({ kind: "malformed", untouched: true });
  });

  test("another JSON file, or what is no file, is not ours", () => {
    for (const content of ['{"kind":"Config"}', "[]", '"text"', "null", "7"]) {
      const disk = fakeDisk();
      disk.plant(PATH, content);
      expect(refusal(disk), content).toMatchObject({ kind: "not_ours", untouched: true });
    }
    const disk = fakeDisk();
    disk.plantDirectory(PATH, 0o700);
    expect(refusal(disk)).toMatchObject({ kind: "not_ours", untouched: true });
  });

  const header =
    '{"journal":"vk-sandbox","version":1,"generation":1,"follows":{"generation":0,"offset":0}}\n';
  const snapshot = '{"claims":{},"journal":{"version":1,"generation":0,"offset":0,"closed":false}}';
  const journals: [string, string, string][] = [
    ["empty", "", "line 1: the header is missing"],
    ["without a header", "[]\n", "line 1: not the header"],
    ["with a line that is no JSON", `${header}[]\n{"kind"\n[]\n`, "line 3 (byte 93): column 8"],
    [
      "with a line that is no commit",
      `${header}[{"kind":"row","key":"ns/a","value":{"id":"i","token":["${SECRET}"]}}]\n`,
      "line 2 (byte 90): [0].value.token",
    ],
    [
      "with an id that no request could name",
      `${header}[{"kind":"row","key":"ns/a","value":{"id":"../x","token":"${SECRET}"}}]\n`,
      "line 2 (byte 90): [0].value.id should be a claim id",
    ],
    ["with an unknown change", `${header}[{"kind":"spell"}]\n`, "line 2 (byte 90): [0].kind"],
    ["of another snapshot", header.replace('"offset":0', '"offset":9'), "does not continue"],
    ["of a newer format", header.replace('"version":1', '"version":2'), "newer program"],
  ];
  test.each(journals)(
    "a journal that is %s is malformed, with line and byte, and stays as it is",
    (_, content, place) => {
      const disk = fakeDisk();
      disk.plant(PATH, snapshot);
      disk.plant(`${PATH}.journal`, content);
      const { kind, message, untouched } = refusal(disk);
      expect({ kind, untouched }).toEqual({ kind: "malformed", untouched: true });
      expect(message).toContain(`${PATH}.journal`);
      expect(message).toContain(place);
    },
  );

  test("a journal without its snapshot, or beside one that another program wrote, is not replayed", () => {
    const alone = fakeDisk();
    alone.plant(`${PATH}.journal`, header);
    expect(refusal(alone)).toMatchObject({ kind: "malformed", untouched: true });
    const theirs = fakeDisk();
    theirs.plant(PATH, '{"claims":{}}');
    theirs.plant(`${PATH}.journal`, header);
    expect(refusal(theirs).message).toContain("which names no journal");
  });

  test("one that a living process holds names that process, and is free when it dies", () => {
    const { disk, process } = bench();
    const { kind, message } = refusal(disk, { pid: 1 });
    expect(kind).toBe("held");
    expect(message).toContain("process 4711, running since 2026-01-01T00:00:00.000Z");
    process.kill();
    bench(disk);
  });

  test("a disk that is full or read-only is told before anything depends on it", () => {
    const full = fakeDisk();
    full.capacityBytes = 60;
    expect(refusal(full)).toMatchObject({ kind: "unwritable", message: expect.stringContaining("ENOSPC") });
    const readOnly = fakeDisk();
    readOnly.plant(PATH, '{"claims":{}}');
    readOnly.readOnly = true;
    expect(refusal(readOnly)).toMatchObject({
      kind: "unwritable",
      message: expect.stringContaining("EROFS"),
      untouched: true,
    });
  });

  test("files of another user are told as such", () => {
    const disk = fakeDisk();
    disk.plant(PATH, '{"claims":{}}');
    disk.onCall = ({ name }) => (name === "read" ? { error: "EACCES" } : undefined);
    expect(refusal(disk)).toMatchObject({
      kind: "unreadable",
      message: expect.stringContaining("for user 0"),
    });
    disk.onCall = ({ name }) => (name === "open" ? { error: "EACCES" } : undefined);
    expect(refusal(disk)).toMatchObject({
      kind: "unwritable",
      message: expect.stringContaining("for user 0"),
    });
  });

  test("an opening that fails half way gives the lock back", () => {
    const disk = fakeDisk();
    let syncs = 0;
    disk.onCall = ({ name }) => (name === "fsync" && ++syncs > 2 ? { error: "EIO" } : undefined);
    expect(refusal(disk)).toMatchObject({ kind: "unwritable" });
    disk.onCall = undefined;
    bench(disk);
  });

  test("no lock to be had is a refusal, not a run without one", () => {
    const disk = fakeDisk();
    const process = disk.process();
    const fs = { ...process, lock: () => ({ unavailable: "no library" }) };
    const opened = openStore({ path: PATH, fs, schedule: () => {}, nowMs: () => 0 });
    expect(opened).toMatchObject({ ok: false, kind: "unlockable" });
  });
});

describe("the directory", () => {
  test("is made with its parents, for this user only", () => {
    const disk = createFakeDisk();
    const process = disk.process();
    const opened = openStore({
      path: "/var/lib/vk/claims.json",
      fs: process,
      schedule: () => {},
      nowMs: () => 0,
    });
    expect(opened.ok).toBe(true);
    expect(process.stat("/var/lib/vk")?.mode).toBe(0o700);
  });

  test("is narrowed when nothing but our files are in it", () => {
    const disk = createFakeDisk();
    disk.plantDirectory(DIRECTORY, 0o755);
    disk.plant(PATH, '{"claims":{}}');
    disk.plant("/s/audit.db-wal", "");
    const { store, process } = bench(disk);
    expect(process.stat(DIRECTORY)?.mode).toBe(0o700);
    expect(store.warnings).toMatchObject([expect.stringContaining("had mode 0755 and now has 0700")]);
  });

  test("is narrowed for whole names of ours only: what merely begins like one is somebody's", () => {
    for (const name of ["claims.json-of-jo", "claims", "audit.db2", "c"]) {
      const disk = createFakeDisk();
      disk.plantDirectory(DIRECTORY, 0o755);
      disk.plant(join(DIRECTORY, name), "");
      const { process } = bench(disk);
      expect([name, process.stat(DIRECTORY)?.mode]).toEqual([name, 0o755]);
    }
  });

  test("is no directory that the state path itself names: / or /home are neither locked nor narrowed", () => {
    const disk = createFakeDisk();
    disk.plantDirectory("/home", 0o755);
    disk.plantDirectory("/home/jo", 0o755);
    for (const path of ["/", "/home", "/home/jo"]) {
      const opened = openStore({ path, fs: disk.process(), schedule: () => {}, nowMs: () => 0 });
      expect(opened).toMatchObject({
        ok: false,
        kind: "not_ours",
        message: expect.stringContaining("claims.json"),
      });
    }
    expect(disk.paths()).toEqual(["/", "/home", "/home/jo"]);
    expect(["/", "/home"].map((path) => disk.process().stat(path)?.mode)).toEqual([0o755, 0o755]);
  });

  test("is left alone when it is shared, and refused when others can write in it", () => {
    const shared = createFakeDisk();
    shared.plantDirectory(DIRECTORY, 0o755);
    shared.plant("/s/else", "");
    const { store, process } = bench(shared);
    expect(process.stat(DIRECTORY)?.mode).toBe(0o755);
    expect(store.warnings.length).toBe(1);
    const open = createFakeDisk();
    open.plantDirectory(DIRECTORY, 0o1777);
    open.plant("/s/else", "");
    expect(refusal(open)).toMatchObject({ kind: "unsafe", untouched: true });
    const foreign = createFakeDisk();
    foreign.plantDirectory(DIRECTORY, 0o777, 1000);
    expect(refusal(foreign)).toMatchObject({ kind: "unsafe", untouched: true });
  });

  test("of another user's is refused whatever its mode, and one of root's is not", () => {
    const foreign = createFakeDisk();
    foreign.plantDirectory(DIRECTORY, 0o700, 1000);
    expect(refusal(foreign)).toMatchObject({
      kind: "unsafe",
      untouched: true,
      message: expect.stringMatching(/belongs to user 1000, .* chown 0 /),
    });
    const ofRoot = createFakeDisk();
    ofRoot.plantDirectory(DIRECTORY, 0o755, 0);
    ofRoot.plant(join(DIRECTORY, "else"), "");
    const opened = openStore({ path: PATH, fs: ofRoot.process(1000), schedule: () => {}, nowMs: () => 0 });
    // Root's directory is safe; whether this user may write in it is another matter.
    expect(opened).not.toMatchObject({ kind: "unsafe" });
  });

  test("with a table that another user made is refused", () => {
    for (const name of [PATH, `${PATH}.journal`]) {
      const disk = fakeDisk();
      disk.plant(PATH, '{"claims":{}}');
      disk.plant(name, '{"claims":{}}', 0o600, 1000);
      expect(refusal(disk)).toMatchObject({ kind: "unsafe", untouched: true });
    }
  });

  test("a table that others could read is told of", () => {
    const disk = fakeDisk();
    disk.plant(PATH, '{"claims":{}}', 0o644);
    const { store, process } = bench(disk);
    expect(store.warnings).toMatchObject([expect.stringContaining("had mode 0644")]);
    expect(process.stat(PATH)?.mode).toBe(0o600);
  });
});

describe("a commit", () => {
  test("is one write of the same size, however many rows there are", () => {
    const { disk, store } = bench();
    const writes = (): number[] => {
      const seen: number[] = [];
      disk.onCall = ({ name, bytes }) => {
        if (name === "write") seen.push(bytes ?? 0);
        return undefined;
      };
      store.commit(put(1));
      disk.onCall = undefined;
      return seen;
    };
    const first = writes();
    for (let n = 0; n < 500; n++) store.commit(put(n));
    expect(first.length).toBe(1);
    expect(writes()).toEqual(first);
  });

  test("with nothing in it writes nothing", () => {
    const { disk, store } = bench();
    disk.onCall = () => ({ error: "EIO" });
    expect(store.commit([])).toEqual({ ok: true });
  });

  test("that would not read back is refused whole", () => {
    const { disk, store, process } = bench();
    const bad: Change[] = [
      { kind: "row", key: "", value: row(1) },
      { kind: "row", key: "ns/a", value: { ...row(1), token: undefined as never } },
      { kind: "row", key: "ns/a", value: { ...row(1), deadlineMs: Number.NaN } },
      { kind: "row", key: "ns/a", value: { ...row(1), id: "" } },
      {
        kind: "releasing",
        id: "sb_1",
        value: { key: "ns/a", row: { ...row(1), address: undefined as never }, reason: "" },
      },
      {
        kind: "intent",
        key: "ns/a",
        value: { podUID: "", authority: "", atMs: -1, template: "", net: "", size: "" },
      },
      { kind: "row", key: "ns/a", value: { ...row(1), address: "x".repeat(2 << 20) } },
    ];
    for (const change of bad) {
      const answer = store.commit([...put(9), change]);
      expect(answer.ok, JSON.stringify(change).slice(0, 200)).toBe(false);
      expect(JSON.stringify(answer)).not.toContain(SECRET);
    }
    process.kill();
    expect(bench(disk).store.table.rows.size).toBe(0);
  });

  test("on a full disk fails with the reason, and works again with space", () => {
    const { disk, store, process } = bench();
    expect(store.commit(put(1)).ok).toBe(true);
    const used = disk.paths().reduce((sum, path) => sum + (disk.read(path)?.length ?? 0), 0);
    for (const left of [0, 7]) {
      disk.capacityBytes = used + left;
      const answer = store.commit(put(2));
      expect(answer).toMatchObject({ ok: false, why: expect.stringContaining(`${PATH}.journal: `) });
    }
    disk.capacityBytes = Number.POSITIVE_INFINITY;
    expect(store.commit(put(3))).toEqual({ ok: true });
    process.kill();
    expect([...bench(disk).store.table.rows.keys()]).toEqual(["ns/p1", "ns/p3"]);
  });

  test("whose remains cannot be cut off breaks the journal until it can, or until it is written anew", () => {
    for (const truncates of [true, false]) {
      const { disk, store, process } = bench();
      store.commit(put(1));
      disk.onCall = ({ name }) => {
        if (name === "write") return { error: "EIO", after: 9 };
        return name === "truncate" || name === "open" ? { error: "EIO" } : undefined;
      };
      expect(store.commit(put(2)).ok).toBe(false);
      expect(store.stats().broken).toContain("EIO");
      expect(store.commit(put(2)).ok).toBe(false);
      disk.onCall = truncates
        ? undefined
        : ({ name }) => (name === "truncate" ? { error: "EIO" } : undefined);
      expect(store.commit(put(3))).toEqual({ ok: true });
      expect(store.stats().broken).toBeUndefined();
      process.kill();
      disk.onCall = undefined;
      expect([...bench(disk).store.table.rows.keys()]).toEqual(["ns/p1", "ns/p3"]);
    }
  });

  test("on a file system turned read-only fails, and works again when it is writable", () => {
    const { disk, store } = bench();
    disk.readOnly = true;
    expect(store.commit(put(1))).toMatchObject({ ok: false, why: expect.stringContaining("EROFS") });
    disk.readOnly = false;
    expect(store.commit(put(1))).toEqual({ ok: true });
  });
});

describe("a directory that disappears", () => {
  test("fails the commits until it is back as it was", () => {
    const { disk, store, process } = bench();
    store.commit(put(1));
    const bringBack = disk.detachDirectory(DIRECTORY);
    expect(store.commit(put(2))).toMatchObject({
      ok: false,
      why: expect.stringContaining(`${DIRECTORY} has disappeared`),
    });
    bringBack();
    expect(store.commit(put(3))).toEqual({ ok: true });
    process.kill();
    expect([...bench(disk).store.table.rows.keys()]).toEqual(["ns/p1", "ns/p3"]);
  });

  test("is filled from memory when it comes back empty, under a lock of its own", () => {
    const { disk, store, process } = bench();
    store.commit(put(1));
    disk.removeDirectory(DIRECTORY);
    expect(store.commit(put(2)).ok).toBe(false);
    disk.plantDirectory(DIRECTORY, 0o700);
    expect(store.commit(put(3))).toEqual({ ok: true });
    expect(refusal(disk, { pid: 2 })).toMatchObject({ kind: "held" });
    process.kill();
    expect([...bench(disk).store.table.rows.keys()]).toEqual(["ns/p1", "ns/p3"]);
  });

  test("is left to another process that has taken it meanwhile", () => {
    const { disk, store } = bench();
    store.commit(put(1));
    disk.removeDirectory(DIRECTORY);
    disk.plantDirectory(DIRECTORY, 0o700);
    const other = bench(disk, { pid: 99 });
    expect(store.commit(put(2))).toMatchObject({ ok: false, why: expect.stringContaining("process 99") });
    expect(store.compact().ok).toBe(false);
    expect(store.close().ok).toBe(false);
    expect(other.store.commit(put(3))).toEqual({ ok: true });
    other.process.kill();
    expect([...bench(disk).store.table.rows.keys()]).toEqual(["ns/p3"]);
  });

  test("a journal that somebody removed is written anew with all that is in memory", () => {
    const { disk, store, process } = bench();
    store.commit(put(1));
    process.unlink(`${PATH}.journal`);
    expect(store.commit(put(2))).toEqual({ ok: true });
    process.kill();
    expect([...bench(disk).store.table.rows.keys()]).toEqual(["ns/p1", "ns/p2"]);
  });
});

describe("the background", () => {
  test("syncs many commits at once, one sync at a time", () => {
    const it = bench();
    let syncs = 0;
    it.disk.onCall = ({ name }) => {
      if (name === "fdatasyncLater") syncs++;
      return undefined;
    };
    for (let n = 0; n < 20; n++) it.store.commit(put(n));
    expect(it.tasks.length).toBe(1);
    it.tasks.shift()?.();
    for (let n = 20; n < 40; n++) it.store.commit(put(n));
    expect({ syncs, waiting: it.tasks.length, pending: it.process.pendingSyncs() }).toEqual({
      syncs: 1,
      waiting: 0,
      pending: 1,
    });
    expect(it.store.stats().unsyncedBytes).toBeGreaterThan(0);
    settle(it);
    expect({ syncs, unsynced: it.store.stats().unsyncedBytes }).toEqual({ syncs: 2, unsynced: 0 });
  });

  test("tells of a sync that failed and writes everything anew, since the kernel has forgotten the pages", () => {
    const it = bench();
    it.store.commit(put(1));
    it.disk.onCall = ({ name }) => (name === "fdatasyncLater" ? { error: "EIO" } : undefined);
    it.tasks.shift()?.();
    it.process.completeSync();
    expect(it.troubles).toMatchObject([{ kind: "sync_failed", message: expect.stringContaining("EIO") }]);
    expect(it.store.stats()).toMatchObject({ generation: 1 });
    settle(it);
    expect(it.store.stats()).toMatchObject({ generation: 2, unsyncedBytes: 0 });
    it.disk.powerCut();
    expect([...bench(it.disk).store.table.rows.keys()]).toEqual(["ns/p1"]);
  });

  test("compacts a journal that has outgrown the floor and the snapshot, while commits go on", () => {
    const it = bench(fakeDisk(), { compactFloorBytes: 3_000 });
    for (let n = 0; n < 200; n++) {
      it.store.commit(put(n % 5));
      it.tasks.shift()?.();
      it.process.completeSync();
    }
    settle(it);
    const { generation, compactions, journalBytes } = it.store.stats();
    expect(generation).toBeGreaterThan(3);
    expect(compactions).toBe(generation);
    expect(journalBytes).toBeLessThan(10_000);
    it.process.kill();
    expect(bench(it.disk).store.table.rows.size).toBe(5);
  });

  test("a compaction that fails is told, costs no commit, and is tried again", () => {
    const it = bench(fakeDisk(), { compactFloorBytes: 1_000 });
    it.disk.onCall = ({ name, path }) =>
      name === "open" && path === `${PATH}.tmp` ? { error: "ENOSPC" } : undefined;
    for (let n = 0; n < 20; n++) expect(it.store.commit(put(n))).toEqual({ ok: true });
    for (let turn = 0; turn < 50; turn++) {
      it.tasks.shift()?.();
      it.process.completeSync();
    }
    expect(it.troubles.at(-1)).toMatchObject({
      kind: "compaction_failed",
      message: expect.stringContaining("ENOSPC"),
    });
    it.disk.onCall = undefined;
    settle(it);
    expect(it.store.stats().generation).toBe(2);
  });

  test("a flush between a new journal's rename and the sync of its name makes the name durable too", () => {
    const it = bench(fakeDisk(), { compactFloorBytes: 1_000 });
    for (let n = 0; n < 5; n++) it.store.commit(put(n));
    while (it.store.stats().generation === 1) {
      it.tasks.shift()?.();
      if (it.store.stats().generation === 1) it.process.completeSync();
    }
    it.store.commit(put(5));
    expect(it.store.flush()).toEqual({ ok: true });
    it.disk.powerCut();
    expect(bench(it.disk).store.table.rows.size).toBe(6);
  });

  test("a stop in the middle of a compaction loses nothing", () => {
    const it = bench(fakeDisk(), { compactFloorBytes: 1_000 });
    for (let n = 0; n < 20; n++) it.store.commit(put(n));
    it.tasks.shift()?.();
    it.tasks.shift()?.();
    expect(it.store.close()).toEqual({ ok: true });
    settle(it);
    expect(it.store.commit(put(99)).ok).toBe(false);
    expect(it.disk.paths()).not.toContain(`${PATH}.tmp`);
    expect(bench(it.disk).store.table.rows.size).toBe(20);
  });

  test("a stop that cannot write keeps the journal", () => {
    const { disk, store } = bench();
    store.commit(put(1));
    disk.onCall = ({ name }) => (name === "rename" ? { error: "EIO" } : undefined);
    expect(store.close().ok).toBe(false);
    disk.onCall = undefined;
    expect(disk.paths()).toEqual(["/", DIRECTORY, PATH, `${PATH}.journal`, `${PATH}.lock`]);
    expect([...bench(disk).store.table.rows.keys()]).toEqual(["ns/p1"]);
  });
});

describe("on the real file system", () => {
  let directory: string;
  let path: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), "state-"));
    path = join(directory, "state", "claims.json");
  });
  afterEach(() => rmSync(directory, { recursive: true }));

  function real(options: Partial<StoreOptions> = {}): Store {
    const opened = openStore({ path, ...options });
    if (!opened.ok) throw new Error(opened.message);
    return opened.store;
  }

  test("everything is private, and comes back", () => {
    const store = real();
    expect(store.commit(put(1))).toEqual({ ok: true });
    expect(statSync(join(directory, "state")).mode & 0o777).toBe(0o700);
    for (const name of readdirSync(join(directory, "state"))) {
      expect(statSync(join(directory, "state", name)).mode & 0o777, name).toBe(0o600);
    }
    expect(store.close()).toEqual({ ok: true });
    const again = real();
    expect(again.table.rows.get("ns/p1")).toEqual(row(1));
    again.close();
  });

  test("a second opening in the same process is refused while the first lasts", () => {
    const store = real();
    expect(openStore({ path })).toMatchObject({
      ok: false,
      kind: "held",
      message: expect.stringContaining(`process ${process.pid},`),
    });
    store.close();
    real().close();
  });

  test("kill -9 frees the lock and loses no commit", async () => {
    const script = join(directory, "holder.ts");
    writeFileSync(
      script,
      `import { openStore } from ${JSON.stringify(join(import.meta.dir, "store.ts"))};
       const opened = openStore({ path: ${JSON.stringify(path)} });
       if (!opened.ok) throw new Error(opened.message);
       for (let n = 0; n < 300; n++) opened.store.commit([{ kind: "row", key: "ns/p" + n, value: ${JSON.stringify(row(1))} }]);
       console.log("committed");
       setInterval(() => {}, 1000);`,
    );
    const child = Bun.spawn([process.execPath, script], { stdout: "pipe", stderr: "inherit" });
    const { value } = await child.stdout.getReader().read();
    expect(new TextDecoder().decode(value)).toBe("committed\n");
    const held = openStore({ path });
    expect(held).toMatchObject({
      ok: false,
      kind: "held",
      message: expect.stringContaining(`process ${child.pid},`),
    });
    child.kill("SIGKILL");
    await child.exited;
    const store = real();
    expect(store.table.rows.size).toBe(300);
    store.close();
  });

  test("the background syncs and compacts by itself", async () => {
    const store = real({ compactFloorBytes: 10_000, syncDelayMs: 1 });
    for (let n = 0; n < 400; n++) store.commit(put(n));
    while (store.stats().generation < 2 || store.stats().unsyncedBytes > 0) await Bun.sleep(1);
    for (let n = 400; n < 500; n++) expect(store.commit(put(n))).toEqual({ ok: true });
    store.close();
    expect(Object.keys(JSON.parse(readFileSync(path, "utf8")).claims).length).toBe(500);
  });

  test("a link under the table's name is refused, and its target is left alone", () => {
    const target = join(directory, "target");
    writeFileSync(target, '{"claims":{}}');
    mkdirSync(join(directory, "state"), { mode: 0o700 });
    symlinkSync(target, path);
    expect(openStore({ path })).toMatchObject({ ok: false, kind: "not_ours" });
    expect(readFileSync(target, "utf8")).toBe('{"claims":{}}');
  });

  test("a link under the directory's name is followed: systemd's DynamicUser makes one", () => {
    const target = join(directory, "private");
    mkdirSync(target, { mode: 0o700 });
    symlinkSync(target, join(directory, "state"));
    const opened = openStore({ path });
    if (!opened.ok) throw new Error(opened.message);
    expect(opened.store.commit(put(1))).toEqual({ ok: true });
    opened.store.close();
    expect(Object.keys(JSON.parse(readFileSync(join(target, "claims.json"), "utf8")).claims)).toHaveLength(1);
  });

  test("a link under the directory's name that leads nowhere, or to a file, is told", () => {
    symlinkSync(join(directory, "nowhere"), join(directory, "state"));
    expect(openStore({ path })).toMatchObject({ ok: false, kind: "unwritable" });
    writeFileSync(join(directory, "nowhere"), "");
    expect(openStore({ path })).toMatchObject({ ok: false, kind: "unwritable" });
  });

  test("a directory that is a file is told", () => {
    writeFileSync(join(directory, "state"), "");
    expect(openStore({ path })).toMatchObject({ ok: false, kind: "unwritable" });
  });
});

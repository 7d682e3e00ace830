import { type Case, daemonRuns, nowMs, type Spoilt, tableOf, testCases } from "./fixtures.ts";
import type { PathInfo } from "./probes.ts";

const place = "/var/lib/vk-sandbox";
const directory = (change: Partial<PathInfo>): PathInfo => ({
  kind: "directory",
  mode: 0o700,
  uid: 990,
  bytes: 4096,
  modifiedAtMs: nowMs,
  ...change,
});
const file = (change: Partial<PathInfo> = {}): PathInfo =>
  directory({ kind: "file", mode: 0o600, ...change });
/** The state directory as told; above it everything is as usual. */
const at = (info: PathInfo | undefined | { code: string }, more: Spoilt["state"] = {}): Spoilt => ({
  state: {
    stat: (path) =>
      path === place ? info : path === "/var/lib" ? directory({ uid: 0, mode: 0o755 }) : undefined,
    ...more,
  },
});
const disk = (magic: number): Spoilt => ({
  state: { statfs: () => ({ magic, freeBytes: 2 ** 40, inodes: 0, freeInodes: 0 }) },
});
const room = (freeBytes: number, freeInodes = 900_000, inodes = 1_000_000): Spoilt => ({
  state: { statfs: () => ({ magic: 0xef53, freeBytes, inodes, freeInodes }) },
});

const cases: Case[] = [
  { id: "state.directory", when: "it is there", status: "pass", says: [place] },
  {
    id: "state.directory",
    when: "it can be made",
    spoilt: at(undefined),
    status: "pass",
    says: ["will be made"],
  },
  {
    id: "state.directory",
    when: "it cannot be made",
    spoilt: at(undefined, { writable: () => false }),
    status: "fail",
    says: ["install -d -m 0700 -o 990"],
  },
  {
    id: "state.directory",
    when: "it is a file",
    spoilt: at(file()),
    status: "fail",
    says: ["not a directory"],
  },
  {
    id: "state.directory",
    when: "it may not be looked at",
    spoilt: at({ code: "EACCES" }),
    status: "fail",
    says: ["EACCES"],
  },
  {
    id: "state.directory",
    when: "nothing of the path is there",
    spoilt: { state: { stat: () => undefined } },
    status: "fail",
  },

  { id: "state.access", when: "it is ours and narrow", status: "pass", says: ["0700", "990"] },
  { id: "state.access", when: "it does not exist yet", spoilt: at(undefined), status: "skipped" },
  {
    id: "state.access",
    when: "we may not write in it",
    spoilt: at(directory({ uid: 0 }), { writable: () => false }),
    status: "fail",
    says: ["chown 990"],
  },
  {
    id: "state.access",
    when: "it is wider, but ours alone",
    spoilt: at(directory({ mode: 0o755 }), {
      list: () => ["claims.json", "claims.json.journal", "audit.db"],
    }),
    status: "pass",
    says: ["narrowed"],
  },
  {
    id: "state.access",
    when: "others can look into it",
    spoilt: at(directory({ mode: 0o755 }), { list: () => ["claims.json", "other"] }),
    status: "warn",
    says: ["0755"],
  },
  {
    id: "state.access",
    when: "others can write in it",
    spoilt: at(directory({ mode: 0o777 }), { list: () => ["other"] }),
    status: "fail",
    says: ["0777", "--state-path"],
  },
  {
    id: "state.access",
    when: "it cannot be listed and its group can write in it",
    spoilt: at(directory({ mode: 0o770 }), { list: () => undefined }),
    status: "fail",
  },
  {
    id: "state.access",
    when: "root looks at another's directory",
    spoilt: at(directory({}), { uid: 0 }),
    status: "pass",
    says: ["says nothing about the provider's own user"],
  },

  { id: "state.space", when: "there is plenty", status: "pass", says: ["10 GiB", "inodes"] },
  {
    id: "state.space",
    when: "less is free than the ledger may need",
    spoilt: room(32 * 2 ** 20),
    status: "warn",
    says: ["32 MiB", "df -h"],
  },
  {
    id: "state.space",
    when: "the same is free and there is no ledger",
    spoilt: room(32 * 2 ** 20),
    flags: { audit: "false" },
    status: "pass",
  },
  {
    id: "state.space",
    when: "nearly nothing is free",
    spoilt: room(2 ** 20),
    status: "fail",
    says: ["1 MiB"],
  },
  { id: "state.space", when: "inodes are scarce", spoilt: room(2 ** 40, 500), status: "warn" },
  {
    id: "state.space",
    when: "inodes are used up",
    spoilt: room(2 ** 40, 3),
    status: "fail",
    says: ["df -i"],
  },
  {
    id: "state.space",
    when: "the file system counts no inodes",
    spoilt: room(2 ** 40, 0, 0),
    status: "pass",
  },
  { id: "state.space", when: "the directory does not exist yet", spoilt: at(undefined), status: "pass" },
  {
    id: "state.space",
    when: "it cannot be asked",
    spoilt: { state: { statfs: () => ({ code: "EACCES" }) } },
    status: "skipped",
  },

  { id: "state.filesystem", when: "it is ext4", spoilt: disk(0xef53), status: "pass", says: ["ext4"] },
  { id: "state.filesystem", when: "it is Btrfs", spoilt: disk(0x9123683e), status: "pass" },
  { id: "state.filesystem", when: "it is tmpfs", spoilt: disk(0x01021994), status: "warn", says: ["memory"] },
  {
    id: "state.filesystem",
    when: "it is a container's layer",
    spoilt: disk(0x794c7630),
    status: "warn",
    says: ["hostPath"],
  },
  {
    id: "state.filesystem",
    when: "it is NFS",
    spoilt: disk(0x6969),
    status: "fail",
    says: ["NFS", "local disk"],
  },
  { id: "state.filesystem", when: "it is SMB", spoilt: disk(0xfe534d42), status: "fail" },
  { id: "state.filesystem", when: "it is FUSE", spoilt: disk(0x65735546), status: "warn", says: ["FUSE"] },
  { id: "state.filesystem", when: "nobody knows it", spoilt: disk(0x1234), status: "warn", says: ["0x1234"] },

  { id: "state.lock", when: "nobody holds it", status: "pass", says: ["free"] },
  {
    id: "state.lock",
    when: "a daemon that was killed held it last",
    spoilt: { state: { recordedHolder: () => ({ pid: 99, startedAtMs: 1 }) } },
    status: "pass",
    says: ["99"],
  },
  {
    id: "state.lock",
    when: "the running daemon holds it",
    spoilt: { state: daemonRuns },
    status: "pass",
    says: ["4711", "60 s"],
  },
  {
    id: "state.lock",
    when: "another program holds it",
    spoilt: { state: { lockHolder: () => ({ pid: 5 }), process: () => ({ pid: 5, name: "sqlite3" }) } },
    status: "fail",
    says: ["sqlite3", "ps -fp 5"],
  },
  {
    id: "state.lock",
    when: "another process holds it than the file names",
    spoilt: { state: { lockHolder: () => ({ pid: 5 }), recordedHolder: () => ({ pid: 6, startedAtMs: 1 }) } },
    status: "fail",
    says: ["5"],
  },
  {
    id: "state.lock",
    when: "the holder is outside this container",
    spoilt: { state: { lockHolder: () => ({ pid: 0 }) } },
    status: "warn",
    says: ["outside this container"],
  },
  {
    id: "state.lock",
    when: "/proc does not tell and the recorded process lives",
    spoilt: { state: { lockHolder: () => "unknown", recordedHolder: () => ({ pid: 4711, startedAtMs: 1 }) } },
    status: "warn",
    says: ["4711"],
  },
  {
    id: "state.lock",
    when: "/proc does not tell and the recorded process is gone",
    spoilt: {
      state: {
        lockHolder: () => "unknown",
        recordedHolder: () => ({ pid: 4711, startedAtMs: 1 }),
        process: () => undefined,
      },
    },
    status: "pass",
  },

  { id: "state.table", when: "there is none", status: "pass", says: ["empty"] },
  {
    id: "state.table",
    when: "it reads well",
    spoilt: {
      state: { stat: (path) => (path === `${place}/claims.json` ? file({ bytes: 2048 }) : directory({})) },
    },
    status: "pass",
    says: ["2 KiB"],
  },
  {
    id: "state.table",
    when: "its last line is torn",
    spoilt: { state: { table: () => ({ ...tableOf(), warnings: ["the last line was torn"] }) } },
    status: "warn",
    says: ["torn"],
  },
  {
    id: "state.table",
    when: "it is malformed",
    spoilt: {
      state: { table: () => ({ ok: false, kind: "malformed", message: "claims.json: line 3 is no JSON" }) },
    },
    status: "fail",
    says: ["line 3"],
  },

  { id: "state.rows", when: "there are none", status: "pass", says: ["no claims"] },
  {
    id: "state.rows",
    when: "there are some, of every kind",
    spoilt: {
      state: {
        table: () => {
          const table = tableOf(
            ["a/b", { claimedAtMs: nowMs - 7_200_000 }],
            ["a/c", { id: "sb_2", deadlineMs: nowMs - 1 }],
            ["a/d", { id: "sb_3", deadlineMs: 0 }],
          );
          const [row] = table.rows.values();
          if (row === undefined) throw new Error("no row");
          return {
            ...table,
            releasing: [{ key: "a/x", row, reason: "r" }],
            displaced: [{ key: "a/y", row }],
            intents: new Map([
              ["a/z", { podUID: "u", authority: "u", atMs: nowMs, template: "t", net: "", size: "" }],
            ]),
          };
        },
      },
    },
    status: "pass",
    says: ["3 claims", "2 h", "1 past its deadline", "1 on the way back", "1 set aside", "1 claim asked for"],
  },
  {
    id: "state.rows",
    when: "the table cannot be read",
    spoilt: { state: { table: () => ({ ok: false, kind: "malformed", message: "x" }) } },
    status: "skipped",
  },
];

testCases(cases);

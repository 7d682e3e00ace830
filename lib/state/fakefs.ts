/**
 * A disk in memory for tests and simulations: processes on it can be killed between any two calls or in the
 * middle of a write, calls fail on command, it runs full, turns read-only, loses its directory, and at a
 * power cut forgets what was not synced, file names included. Nothing here is random; the caller decides.
 */
import { dirname } from "node:path";
import type { FileStat, FsError, StateFs } from "./fs.ts";

/** A call about to be made, as `onCall` sees it. */
export interface FakeCall {
  name: keyof StateFs;
  /** The path, or that under which the descriptor was opened. */
  path: string;
  /** For `write`. */
  bytes?: number;
}

/** What becomes of a call instead of succeeding. */
export type Fault =
  /** It fails with this code and does nothing; a write leaves `after` bytes behind. */
  | { error: string; after?: number }
  /** Only so many bytes are written, and that is what the call answers. */
  | { short: number }
  /** The process dies before the call; a write leaves `after` bytes behind. */
  | { die: "before"; after?: number }
  /** The call is carried out and the process dies before it hears of it. */
  | { die: "after" };

/**
 * What a power cut leaves of the unsynced: how many bytes of a file's tail, and which of the operations on a
 * directory's names, the oldest having index 0. POSIX promises no order among those.
 */
export interface PowerCutKeep {
  bytes?: (path: string, unsynced: number) => number;
  names?: (directory: string, index: number, unsynced: number) => boolean;
}

/** A process on the disk. After its death every call fails with EDEAD and changes nothing. */
export interface FakeProcess extends StateFs {
  readonly dead: boolean;
  /** kill -9: descriptors and locks are gone, everything written stays. */
  kill(): void;
  /** Background syncs that have been asked for and not answered. */
  pendingSyncs(): number;
  /** Carries out and answers the oldest of them. */
  completeSync(): void;
}

export interface FakeDisk {
  process(uid?: number): FakeProcess;
  /** Asked before every call of every process; undefined lets it pass. */
  onCall: ((call: FakeCall) => Fault | undefined) | undefined;
  /** Bytes the files may have together. */
  capacityBytes: number;
  readOnly: boolean;
  /** All processes die and what was not synced is forgotten, but for what `keep` says. */
  powerCut(keep?: PowerCutKeep): void;
  /** The directory and all in it are gone, as by rm -rf; open descriptors go on working. */
  removeDirectory(path: string): void;
  /** The directory is gone and can be brought back by the function returned, as a volume unmounted and mounted. */
  detachDirectory(path: string): () => void;
  /** A file's content from outside, for assertions and for planting files. */
  read(path: string): Uint8Array | undefined;
  plant(path: string, content: Uint8Array | string, mode?: number, uid?: number): void;
  plantDirectory(path: string, mode: number, uid?: number): void;
  paths(): string[];
}

interface Node {
  ino: number;
  kind: "file" | "directory";
  mode: number;
  uid: number;
  data: Uint8Array;
  length: number;
  /** What a power cut leaves. Shares `data`'s bytes as long as those are only appended to. */
  synced: Uint8Array;
  /** When `synced` was asked for: a sync that is carried out late must not undo a newer one. */
  syncedAt: number;
}

interface Descriptor {
  node: Node;
  path: string;
}

type NameOperation = (names: Map<string, Node>) => void;

function fail(code: string): FsError {
  return Object.assign(new Error(`simulated ${code}`), { code });
}

/** A disk with nothing on it but the root directory. */
export function createFakeDisk(): FakeDisk {
  let nextIno = 1;
  let clock = 0;
  let names = new Map<string, Node>();
  /** The names a power cut leaves, and what has been done to them since, by directory. */
  let syncedNames = new Map<string, Node>();
  const unsynced = new Map<string, NameOperation[]>();
  const locks = new Map<Node, FakeProcess>();
  const processes = new Set<{ die: () => void }>();

  const disk: FakeDisk = {
    process: (uid = 0) => createProcess(uid),
    onCall: undefined,
    capacityBytes: Number.POSITIVE_INFINITY,
    readOnly: false,
    powerCut,
    removeDirectory: (path) => {
      for (const name of [...names.keys()]) {
        if (name === path || name.startsWith(`${path}/`)) {
          names.delete(name);
          syncedNames.delete(name);
        }
      }
    },
    detachDirectory,
    read: (path) => {
      const node = names.get(path);
      return node?.kind === "file" ? node.data.slice(0, node.length) : undefined;
    },
    plant: (path, content, mode = 0o600, uid = 0) => {
      const data = typeof content === "string" ? new TextEncoder().encode(content) : content.slice();
      const node: Node = {
        ino: nextIno++,
        kind: "file",
        mode,
        uid,
        data,
        length: data.length,
        synced: data,
        syncedAt: 0,
      };
      names.set(path, node);
      syncedNames.set(path, node);
    },
    plantDirectory: (path, mode, uid = 0) => {
      const node = directoryNode(mode, uid);
      names.set(path, node);
      syncedNames.set(path, node);
    },
    paths: () => [...names.keys()].sort(),
  };
  disk.plantDirectory("/", 0o755);
  return disk;

  function directoryNode(mode: number, uid: number): Node {
    const none = new Uint8Array();
    return { ino: nextIno++, kind: "directory", mode, uid, data: none, length: 0, synced: none, syncedAt: 0 };
  }

  function detachDirectory(path: string): () => void {
    const taken = [...names].filter(([name]) => name === path || name.startsWith(`${path}/`));
    const takenSynced = [...syncedNames].filter(([name]) => name === path || name.startsWith(`${path}/`));
    disk.removeDirectory(path);
    return () => {
      disk.removeDirectory(path);
      for (const [name, node] of taken) names.set(name, node);
      for (const [name, node] of takenSynced) syncedNames.set(name, node);
    };
  }

  function powerCut(keep: PowerCutKeep = {}): void {
    for (const process of [...processes]) process.die();
    for (const [directory, operations] of unsynced) {
      for (const [index, operation] of operations.entries()) {
        if (keep.names?.(directory, index, operations.length)) operation(syncedNames);
      }
    }
    unsynced.clear();
    names = new Map(syncedNames);
    for (const [path, node] of names) {
      if (node.kind !== "file") continue;
      const current = node.data.subarray(0, node.length);
      const appended = current.length - node.synced.length;
      const kept = appended > 0 ? (keep.bytes?.(path, appended) ?? 0) : 0;
      // A truncation that was not synced is undone; an append that was not is lost but for what is kept.
      node.data = (kept > 0 ? current.subarray(0, node.synced.length + kept) : node.synced).slice();
      node.length = node.data.length;
      node.synced = node.data;
    }
    syncedNames = new Map(names);
  }

  function used(): number {
    let bytes = 0;
    for (const node of new Set(names.values())) bytes += node.length;
    return bytes;
  }

  function change(directory: string, operation: NameOperation): void {
    operation(names);
    const pending = unsynced.get(directory);
    if (pending === undefined) unsynced.set(directory, [operation]);
    else pending.push(operation);
  }

  function syncDirectory(path: string, asked: Set<NameOperation>): void {
    const rest: NameOperation[] = [];
    for (const operation of unsynced.get(path) ?? []) {
      if (asked.has(operation)) operation(syncedNames);
      else rest.push(operation);
    }
    unsynced.set(path, rest);
  }

  function append(node: Node, data: Uint8Array): void {
    const end = node.length + data.length;
    const shared = node.synced.buffer === node.data.buffer && node.synced.length > node.length;
    if (end > node.data.length || shared) {
      const grown = new Uint8Array(Math.max(end * 2, 256));
      grown.set(node.data.subarray(0, node.length));
      node.data = grown;
    }
    node.data.set(data, node.length);
    node.length = end;
  }

  function createProcess(uid: number): FakeProcess {
    let dead = false;
    let nextFd = 3;
    const descriptors = new Map<number, Descriptor>();
    const syncs: (() => void)[] = [];

    function die(): void {
      dead = true;
      descriptors.clear();
      syncs.length = 0;
      for (const [node, holder] of locks) if (holder === process) locks.delete(node);
      processes.delete(entry);
    }
    const entry = { die };
    processes.add(entry);

    const of = (fd: number): Descriptor => {
      const descriptor = descriptors.get(fd);
      if (descriptor === undefined) throw fail("EBADF");
      return descriptor;
    };
    const at = (path: string): Node => {
      const node = names.get(path.endsWith("/.") ? path.slice(0, -2) || "/" : path);
      if (node === undefined) throw fail("ENOENT");
      return node;
    };
    const parent = (path: string): string => {
      const directory = dirname(path);
      if (names.get(directory)?.kind !== "directory") throw fail("ENOENT");
      return directory;
    };
    const writable = (): void => {
      if (disk.readOnly) throw fail("EROFS");
    };

    /** Runs a call through the fault that is ordered for it. */
    function run<T>(
      name: keyof StateFs,
      path: string,
      work: () => T,
      onFault?: (bytes: number) => T,
      bytes?: number,
    ): T {
      if (dead) throw fail("EDEAD");
      const fault = disk.onCall?.(bytes === undefined ? { name, path } : { name, path, bytes });
      if (fault === undefined) return work();
      if ("error" in fault) {
        if (fault.after) onFault?.(fault.after);
        throw fail(fault.error);
      }
      if ("short" in fault) return onFault === undefined ? work() : onFault(fault.short);
      if (fault.die === "before") {
        if (fault.after) onFault?.(fault.after);
      } else work();
      die();
      throw fail("EDEAD");
    }

    function later(
      name: "fsyncLater" | "fdatasyncLater",
      fd: number,
      done: (error: FsError | undefined) => void,
    ): void {
      // What is durable afterwards is what there was when the sync was asked for: the least a kernel promises.
      let carryOut: () => void = () => {};
      let error: FsError | undefined;
      try {
        const descriptor = of(fd);
        carryOut = capture(descriptor);
        run(name, descriptor.path, () => {});
      } catch (thrown) {
        error = thrown as FsError;
      }
      if (dead) return;
      syncs.push(() => {
        if (error === undefined) carryOut();
        done(error);
      });
    }

    function capture({ node, path }: Descriptor): () => void {
      if (node.kind === "directory") {
        const asked = new Set(unsynced.get(path));
        return () => syncDirectory(path, asked);
      }
      const { data, length } = node;
      const askedAt = ++clock;
      return () => {
        if (askedAt < node.syncedAt) return;
        node.synced = data.subarray(0, length);
        node.syncedAt = askedAt;
      };
    }

    const process: FakeProcess = {
      get dead() {
        return dead;
      },
      kill: die,
      pendingSyncs: () => syncs.length,
      completeSync: () => syncs.shift()?.(),

      open: (path, how) =>
        run("open", path, () => {
          let node = names.get(path);
          if (how === "create" && node !== undefined) throw fail("EEXIST");
          if ((how === "append" || how === "directory") && node === undefined) throw fail("ENOENT");
          if (how !== "directory") writable();
          if (node === undefined) {
            const made: Node = {
              ino: nextIno++,
              kind: "file",
              mode: 0o600,
              uid,
              data: new Uint8Array(),
              length: 0,
              synced: new Uint8Array(),
              syncedAt: 0,
            };
            change(parent(path), (map) => map.set(path, made));
            node = made;
          }
          const fd = nextFd++;
          descriptors.set(fd, { node, path });
          return fd;
        }),
      close: (fd) => {
        const { node } = of(fd);
        descriptors.delete(fd);
        if (locks.get(node) === process && ![...descriptors.values()].some((other) => other.node === node)) {
          locks.delete(node);
        }
      },
      write: (fd, data) => {
        const { node, path } = of(fd);
        const put = (bytes: number): number => {
          append(node, data.subarray(0, bytes));
          return bytes;
        };
        const work = (): number => {
          writable();
          const free = Math.max(disk.capacityBytes - used(), 0);
          if (free === 0 && data.length > 0) throw fail("ENOSPC");
          return put(Math.min(free, data.length));
        };
        return run("write", path, work, (bytes) => put(Math.min(bytes, data.length)), data.length);
      },
      read: (path) =>
        run("read", path, () => {
          const node = at(path);
          if (node.kind !== "file") throw fail("EISDIR");
          return node.data.slice(0, node.length);
        }),
      truncate: (fd, length) => {
        const { node, path } = of(fd);
        run("truncate", path, () => {
          writable();
          if (length < node.length) node.length = length;
        });
      },
      fsync: (fd) => {
        const descriptor = of(fd);
        run("fsync", descriptor.path, () => capture(descriptor)());
      },
      fsyncLater: (fd, done) => later("fsyncLater", fd, done),
      fdatasyncLater: (fd, done) => later("fdatasyncLater", fd, done),
      rename: (from, to) =>
        run("rename", to, () => {
          writable();
          const node = at(from);
          change(parent(to), (map) => {
            if (map.get(from) === node) map.delete(from);
            map.set(to, node);
          });
        }),
      unlink: (path) =>
        run("unlink", path, () => {
          const node = at(path);
          writable();
          change(parent(path), (map) => {
            if (map.get(path) === node) map.delete(path);
          });
        }),
      mkdir: (path) =>
        run("mkdir", path, () => {
          if (names.has(path)) throw fail("EEXIST");
          writable();
          const node = directoryNode(0o700, uid);
          change(parent(path), (map) => map.set(path, node));
        }),
      chmod: (path, mode) =>
        run("chmod", path, () => {
          writable();
          at(path).mode = mode;
        }),
      stat: (path) =>
        run("stat", path, () => {
          const node = names.get(path.endsWith("/.") ? path.slice(0, -2) || "/" : path);
          return node && statOf(node);
        }),
      fstat: (fd) => {
        const { node, path } = of(fd);
        return run("fstat", path, () => statOf(node));
      },
      list: (path) =>
        run("list", path, () => {
          const prefix = path === "/" ? "/" : `${path}/`;
          return [...names.keys()]
            .filter(
              (name) => name.startsWith(prefix) && name !== path && !name.slice(prefix.length).includes("/"),
            )
            .map((name) => name.slice(prefix.length));
        }),
      lock: (fd) => {
        const { node, path } = of(fd);
        return run("lock", path, () => {
          if (locks.has(node)) return "held";
          locks.set(node, process);
          return "taken";
        });
      },
      uid: () => uid,
    };
    return process;
  }

  function statOf(node: Node): FileStat {
    const { kind, length: size, mode, uid, ino } = node;
    return { kind, size, mode, uid, dev: 1, ino };
  }
}

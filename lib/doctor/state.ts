/** The state directory: whether the claims table can be kept there, who has it, and what is in it. */
import { dirname, resolve } from "node:path";
import { isOwnName, pathsOf } from "../state/index.ts";
import { bytes, count, span } from "../words.ts";
import type { Check, Context } from "./context.ts";
import { fail, type Outcome, pass, skipped, warn } from "./finding.ts";
import type { PathInfo } from "./probes.ts";

/** Below this a commit may fail at any moment. */
const freeBytesMin = 16 * 1024 * 1024;
const freeInodesMin = 16;
const freeInodesWanted = 1000;

/** statfs(2) f_type of file systems, and whether they keep what a table needs: atomic rename, fsync, flock. */
const fileSystems: Record<
  number,
  { name: string; verdict: "good" | "volatile" | "layer" | "remote" | "foreign" }
> = {
  61267: { name: "ext4", verdict: "good" },
  1481003842: { name: "XFS", verdict: "good" },
  2435016766: { name: "Btrfs", verdict: "good" },
  801189825: { name: "ZFS", verdict: "good" },
  4076150800: { name: "F2FS", verdict: "good" },
  3393526350: { name: "bcachefs", verdict: "good" },
  16914836: { name: "tmpfs", verdict: "volatile" },
  2240043254: { name: "ramfs", verdict: "volatile" },
  2035054128: { name: "overlayfs", verdict: "layer" },
  26985: { name: "NFS", verdict: "remote" },
  20859: { name: "SMB", verdict: "remote" },
  4283649346: { name: "CIFS", verdict: "remote" },
  4266872130: { name: "SMB2", verdict: "remote" },
  1397113167: { name: "AFS", verdict: "remote" },
  12805120: { name: "CephFS", verdict: "foreign" },
  1702057286: { name: "FUSE", verdict: "foreign" },
  16914839: { name: "9p", verdict: "foreign" },
  1785031267: { name: "virtiofs", verdict: "foreign" },
};

export const stateChecks: Check[] = [
  {
    id: "state.directory",
    group: "state",
    why: "The claims table lies there; without it the provider does not start.",
    run: directory,
  },
  {
    id: "state.access",
    group: "state",
    why: "The table holds release credentials: whoever can read it can destroy VMs, and whoever can write beside it can replace it.",
    run: access,
  },
  {
    id: "state.space",
    group: "state",
    why: "A claim that cannot be written down is given back, and its Pod stays Pending.",
    run: space,
  },
  {
    id: "state.filesystem",
    group: "state",
    why: "A commit relies on atomic rename, fsync and kernel locks; a file system that does not keep them loses claims, and with them VMs.",
    run: fileSystem,
  },
  {
    id: "state.lock",
    group: "state",
    why: "Two providers on one table would release each other's VMs, so the second one does not start.",
    run: lock,
  },
  {
    id: "state.table",
    group: "state",
    why: "A table that cannot be read keeps the provider from starting; it never starts with an empty one instead.",
    run: table,
  },
  {
    id: "state.rows",
    group: "state",
    why: "These are the VMs that this provider answers for.",
    run: rows,
  },
];

const placeOf = (context: Context) => dirname(resolve(context.config.statePath));

/** The directory itself, or the nearest one above it that exists. */
function nearest(
  context: Context,
): { path: string; info: PathInfo } | { code: string; path: string } | undefined {
  let path = placeOf(context);
  for (;;) {
    const info = context.probes.state.stat(path);
    if (info !== undefined) return "code" in info ? { code: info.code, path } : { path, info };
    const above = dirname(path);
    if (above === path) return undefined;
    path = above;
  }
}

const elsewhere = "or give another --state-path";

function directory(context: Context): Outcome {
  const { state } = context.probes;
  const wanted = placeOf(context);
  const found = nearest(context);
  if (found === undefined) return fail(`${wanted} cannot be reached`, "Correct --state-path.");
  if ("code" in found) {
    return fail(
      `${found.path} cannot be looked at (${found.code})`,
      `Make every directory of that path enterable for uid ${state.uid}, ${elsewhere}.`,
    );
  }
  const { path, info } = found;
  if (info.kind !== "directory") {
    return fail(`${path} is not a directory`, "Give --state-path a file in a directory of its own.");
  }
  if (path === wanted) return pass(wanted);
  return state.writable(path)
    ? pass(`${wanted} does not exist yet; it will be made with mode 0700`)
    : fail(
        `${wanted} does not exist, and uid ${state.uid} may not make it in ${path}`,
        `Make it: install -d -m 0700 -o ${state.uid} ${wanted}, ${elsewhere}.`,
      );
}

const octal = (mode: number) => mode.toString(8).padStart(4, "0");

/** The judgement that the store makes at start, without its mending. */
function access(context: Context): Outcome {
  const { state } = context.probes;
  const path = placeOf(context);
  const info = state.stat(path);
  if (info === undefined || "code" in info || info.kind !== "directory") {
    return skipped(`${path} is not there to be looked at`);
  }
  const found = `${path} has mode ${octal(info.mode)} and belongs to uid ${info.uid}`;
  const own = info.uid === state.uid;
  if (!state.writable(path)) {
    return fail(
      `${found}; uid ${state.uid} may not write in it`,
      `Run this as the provider's user. If it is that user: chown ${state.uid} ${path}, ${elsewhere}.`,
    );
  }
  const asWhom =
    state.uid === 0 && !own
      ? "; root may write anywhere, so this says nothing about the provider's own user"
      : "";
  if ((info.mode & 0o077) === 0) return pass(found + asWhom);
  const paths = pathsOf(context.config.statePath);
  const onlyOurs = state.list(path)?.every((name) => isOwnName(paths, name)) ?? false;
  if (own && onlyOurs) return pass(`${found}; it will be narrowed to 0700 at start`);
  const narrow = `Give it a directory of its own: install -d -m 0700 -o ${state.uid} /var/lib/vk-sandbox, and --state-path /var/lib/vk-sandbox/claims.json.`;
  if ((info.mode & 0o022) !== 0) return fail(`${found}: others can write in it`, narrow);
  return warn(
    `${found}${own ? ", and it holds other files too" : asWhom}`,
    narrow,
    "Others can see which files are there. The files themselves are 0600.",
  );
}

function space(context: Context): Outcome {
  const { state } = context.probes;
  const found = nearest(context);
  if (found === undefined || "code" in found) return skipped("the directory cannot be looked at");
  const fs = state.statfs(found.path);
  if ("code" in fs) return skipped(`statfs of ${found.path} failed (${fs.code})`);
  const { audit, statePath } = context.config;
  const sizeOf = (path: string): number => {
    const info = state.stat(path);
    return info === undefined || "code" in info ? 0 : info.bytes;
  };
  // A compaction writes the table anew beside the old one; the ledger grows up to its bound.
  const need =
    freeBytesMin +
    2 * (sizeOf(statePath) + sizeOf(`${statePath}.journal`)) +
    (audit.enabled ? audit.bytesMax : 0);
  const inodes = fs.inodes === 0 ? "" : `, ${fs.freeInodes} inodes free`;
  const text = `${bytes(fs.freeBytes)} free${inodes}`;
  const todo = `Free space on the file system of ${found.path} (df -h ${found.path}; df -i ${found.path}).`;
  if (fs.freeBytes < freeBytesMin || (fs.inodes > 0 && fs.freeInodes < freeInodesMin))
    return fail(text, todo);
  if (fs.freeBytes < need)
    return warn(`${text}, and up to ${bytes(need)} may be needed (table, compaction, ledger)`, todo);
  if (fs.inodes > 0 && fs.freeInodes < freeInodesWanted) return warn(text, todo);
  return pass(text);
}

function fileSystem(context: Context): Outcome {
  const found = nearest(context);
  if (found === undefined || "code" in found) return skipped("the directory cannot be looked at");
  const fs = context.probes.state.statfs(found.path);
  if ("code" in fs) return skipped(`statfs of ${found.path} failed (${fs.code})`);
  const known = fileSystems[fs.magic];
  const local = "Put --state-path on a local disk (ext4, XFS, Btrfs).";
  if (known === undefined) {
    return warn(
      `an unknown one (type 0x${fs.magic.toString(16)})`,
      `${local} Or make sure that it keeps rename, fsync and flock.`,
    );
  }
  switch (known.verdict) {
    case "good":
      return pass(known.name);
    case "volatile":
      return warn(
        `${known.name}, which lives in memory`,
        local,
        "The table is gone after a reboot. Claims whose Pods still stand are found again from sandboxd's index; preserved VMs without a Pod are not.",
      );
    case "layer":
      return warn(
        "overlayfs, a container's own layer",
        "Mount a volume there: a hostPath such as /var/lib/vk-sandbox.",
        "The table is gone when the container is. Claims whose Pods still stand are found again from sandboxd's index; preserved VMs without a Pod are not.",
      );
    case "remote":
      return fail(`${known.name}, a network file system`, local);
    case "foreign":
      return warn(
        `${known.name}; what it promises depends on who serves it`,
        `${local} Or make sure that it keeps rename, fsync and flock.`,
      );
  }
}

function lock({ lock: held, probes: { now } }: Context): Outcome {
  const state = held();
  switch (state.kind) {
    case "free":
      return pass(
        state.lastPid === undefined ? "free" : `free; process ${state.lastPid} held it last, and is gone`,
      );
    case "ours":
      return pass(
        `held by the running provider, process ${state.pid}, for ${span(now() - state.startedAtMs)}`,
      );
    case "other":
      return fail(
        `held by process ${state.pid} (${state.name}), which is no vk-sandbox`,
        `See what it is: ps -fp ${state.pid}. Stop it, or give another --state-path.`,
      );
    case "unknown":
      return warn(
        state.why,
        "If a provider runs there, this is as it should be; otherwise stop that process.",
      );
  }
}

function table({ config, probes: { state } }: Context): Outcome {
  const read = state.table();
  if (!read.ok)
    return fail(
      read.message,
      `Look at the file, and at its last good copy. See docs/troubleshooting.md, "The claims table cannot be read".`,
    );
  const info = state.stat(config.statePath);
  const [first, ...more] = read.warnings;
  if (first !== undefined) {
    return warn(
      `readable, with a remark: ${first}${more.length === 0 ? "" : ` (and ${more.length} more)`}`,
      "Nothing has to be done; the provider mends it at its next start.",
    );
  }
  if (info === undefined) return pass("none yet; it begins empty");
  return pass("code" in info ? "readable" : `readable, ${bytes(info.bytes)} and its journal`);
}

function rows({ config, probes: { state, now } }: Context): Outcome {
  const read = state.table();
  if (!read.ok) return skipped("the table cannot be read");
  const nowMs = now();
  const held = [...read.rows.values()];
  const parts: string[] = [];
  if (held.length === 0) parts.push("no claims");
  else {
    const oldest = nowMs - Math.min(...held.map((row) => row.claimedAtMs));
    parts.push(`${count(held.length, "claim")}, the oldest made ${span(oldest)} ago`);
  }
  const overdue = held.filter((row) => row.deadlineMs > 0 && row.deadlineMs < nowMs).length;
  if (overdue > 0) parts.push(`${overdue} past ${overdue === 1 ? "its deadline" : "their deadlines"}`);
  if (read.releasing.length > 0) parts.push(`${read.releasing.length} on the way back to sandboxd`);
  if (read.displaced.length > 0) parts.push(`${read.displaced.length} set aside for another owner`);
  if (read.intents.size > 0)
    parts.push(`${count(read.intents.size, "claim")} asked for whose answer is not known yet`);
  const info = state.stat(config.statePath);
  if (info !== undefined && !("code" in info))
    parts.push(`file written ${span(nowMs - info.modifiedAtMs)} ago`);
  return pass(parts.join("; "));
}

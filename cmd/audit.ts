import { dirname, join, resolve } from "node:path";
import { parseDuration } from "../lib/config/index.ts";
import {
  type LedgerAnswer,
  type LedgerQuery,
  type LedgerRow,
  QUERY_ROWS_MAX,
  queryLedger,
} from "../lib/ledger/index.ts";
import { sentenceOf } from "../lib/pods/notes.ts";
import { statePathArg, statePathOf } from "./state-path.ts";
import { defineVerb, exitDone, exitFailed, Misuse } from "./verb.ts";

const limitDefault = 500;
/** How often --follow looks; the provider itself writes within half a second. */
const pollMs = 1_000;

/** `vk-sandbox audit`: what happened to a VM, when, on what evidence. */
export const audit = defineVerb({
  name: "audit",
  summary: "Tell what happened to a VM, when, and on what evidence: every decision the provider recorded.",
  args: {
    subject: {
      type: "positional",
      required: false,
      valueHint: "POD|CLAIM",
      description: "A Pod (NAMESPACE/NAME, or NAME in any namespace) or a claim id. Without it: everything.",
    },
    ...statePathArg,
    since: {
      type: "string",
      valueHint: "DURATION",
      description: "Only what happened in the last 30m, 24h, …; or since an RFC 3339 time.",
    },
    limit: {
      type: "string",
      valueHint: "NUMBER",
      default: String(limitDefault),
      description: "At most so many, the newest.",
    },
    json: { type: "boolean", description: "Print a JSON object a line.", default: false },
    follow: {
      type: "boolean",
      alias: "f",
      description: "Go on with what happens from now, until interrupted.",
      default: false,
    },
  },
  examples: [
    "audit default/agent-1",
    "audit sb_4f2a --since 24h",
    "audit --since 1h --json",
    "audit --follow",
  ],
  async run(args, { env }) {
    const path = join(dirname(resolve(statePathOf(args["state-path"], env))), "audit.db");
    const { since } = args;
    const sinceMs = since === undefined ? undefined : startOf(since, Date.now());
    const limit = limitOf(args.limit);
    const search: Search = { path, selectors: selectorsOf(args.subject), sinceMs };
    const render = args.json ? (rows: readonly LedgerRow[]) => rows.map(jsonLine).join("") : createLines();
    const what = describeSearch(search, args.subject, since);

    // One more than is shown tells whether there is more.
    const first = await read(search, { limit: limit + 1 });
    if (!first.ok && !(first.kind === "missing" && args.follow)) {
      const next =
        first.kind === "missing"
          ? `. Is --state-path (VK_STATE_PATH) the provider's, and its --audit on?`
          : "";
      await Bun.write(Bun.stderr, `vk-sandbox: ${first.message}${next}\n`);
      return exitFailed;
    }
    const all = first.ok ? first.rows : [];
    const rows = all.slice(Math.max(0, all.length - limit));
    if (rows.length < all.length) {
      await Bun.write(
        Bun.stderr,
        `vk-sandbox: the newest ${limit} are shown; --since or --limit choose others\n`,
      );
    }
    if (rows.length > 0) await Bun.write(Bun.stdout, render(rows));
    else
      await Bun.write(Bun.stderr, `vk-sandbox: nothing recorded about ${what}${args.follow ? " yet" : ""}\n`);
    if (!args.follow) return exitDone;
    return follow(search, rows.at(-1)?.row ?? 0, async (news) => {
      await Bun.write(Bun.stdout, render(news));
    });
  },
});

/** What is looked for, and where. */
interface Search {
  path: string;
  /** Any of them may fit; one empty selector is everything. */
  selectors: Pick<LedgerQuery, "pod" | "id">[];
  sinceMs?: number;
}

/**
 * What a word on the command line may mean. A key has a slash, and what no Kubernetes name can be is a claim id
 * (sandboxd's begin with sb_); anything else may be either.
 */
export function selectorsOf(subject: string | undefined): Search["selectors"] {
  if (subject === undefined) return [{}];
  if (subject.includes("/")) return [{ pod: subject }];
  if (!/^[a-z0-9.-]+$/.test(subject)) return [{ id: subject }];
  return [{ pod: subject }, { id: subject }];
}

/** The start of `--since`: a duration back from now, or a time. */
export function startOf(text: string, nowMs: number): number {
  if (/^\d{4}-\d{2}-\d{2}/.test(text)) {
    const at = Date.parse(text);
    if (Number.isNaN(at))
      throw new Misuse(`--since "${text}" is not a time; write it as in 2026-05-01T12:00:00Z`);
    return at;
  }
  const parsed = parseDuration(text);
  if (!parsed.ok) throw new Misuse(`--since "${text}" ${parsed.reason}, or as a time: 2026-05-01T12:00:00Z`);
  return nowMs - parsed.value;
}

function limitOf(text: string): number {
  const limit = Number(text);
  if (!Number.isInteger(limit) || limit < 1 || limit >= QUERY_ROWS_MAX) {
    throw new Misuse(`--limit "${text}" is not a number from 1 to ${QUERY_ROWS_MAX - 1}`);
  }
  return limit;
}

/** Rows that fit any selector, oldest first. */
async function read(search: Search, rest: { limit: number; afterRow?: number }): Promise<LedgerAnswer> {
  const found = new Map<number, LedgerRow>();
  for (const selector of search.selectors) {
    const answer = await queryLedger(search.path, { ...selector, sinceMs: search.sinceMs, ...rest });
    if (!answer.ok) return answer;
    for (const row of answer.rows) found.set(row.row, row);
  }
  const rows = [...found.values()].sort((a, b) => a.row - b.row);
  // Of what is read forward the oldest count, or rows in between would be lost; backward the newest.
  return {
    ok: true,
    rows: rest.afterRow === undefined ? rows.slice(-rest.limit) : rows.slice(0, rest.limit),
  };
}

function describeSearch(
  { path, selectors }: Search,
  subject: string | undefined,
  since: string | undefined,
): string {
  const who =
    subject === undefined
      ? "any VM"
      : selectors.length > 1
        ? `a Pod or claim "${subject}"`
        : selectors[0]?.id === undefined
          ? `Pod ${subject}`
          : `claim ${subject}`;
  const when = since === undefined ? "" : /^\d{4}-/.test(since) ? ` since ${since}` : ` in the last ${since}`;
  return `${who}${when} in ${path}`;
}

/** Looks again and again until interrupted. A ledger that is not there yet, or busy, is waited for. */
async function follow(
  search: Search,
  fromRow: number,
  show: (rows: LedgerRow[]) => Promise<void>,
): Promise<number> {
  let afterRow = fromRow;
  let stopped = false;
  let said = "";
  let wake = () => {};
  const stop = () => {
    stopped = true;
    wake();
  };
  process.once("SIGINT", stop);
  process.once("SIGTERM", stop);
  try {
    while (!stopped) {
      const answer = await read(search, { limit: QUERY_ROWS_MAX, afterRow });
      if (answer.ok && answer.rows.length > 0) {
        afterRow = answer.rows.at(-1)?.row ?? afterRow;
        await show(answer.rows);
      }
      const trouble = answer.ok ? "" : answer.message;
      if (trouble !== "" && trouble !== said)
        await Bun.write(Bun.stderr, `vk-sandbox: ${trouble}; waiting for it\n`);
      said = trouble;
      if (stopped) break;
      await new Promise<void>((resume) => {
        const timer = setTimeout(resume, pollMs);
        wake = () => {
          clearTimeout(timer);
          resume();
        };
      });
    }
  } finally {
    process.off("SIGINT", stop);
    process.off("SIGTERM", stop);
  }
  return exitDone;
}

/** One decision for machines. */
function jsonLine({ row, atMs, kind, key, id, podUID, reason, cause }: LedgerRow): string {
  return `${JSON.stringify({ row, time: new Date(atMs).toISOString(), kind, what: sentenceOf(kind), pod: key, podUID, claim: id, reason, cause })}\n`;
}

/** Columns do not grow beyond this; a longer name moves its own line only. */
const columnCharsMax = 48;

/** Decisions as lines for people: time, Pod, claim, what happened, why. Columns grow with what was seen. */
export function createLines(): (rows: readonly LedgerRow[]) => string {
  let podChars = 0;
  let idChars = 0;
  return (rows) => {
    const cells = rows.map((row) => ({ row, pod: clean(row.key) || "-", claim: clean(row.id) || "-" }));
    for (const { pod, claim } of cells) {
      podChars = Math.min(Math.max(podChars, pod.length), columnCharsMax);
      idChars = Math.min(Math.max(idChars, claim.length), columnCharsMax);
    }
    return cells
      .map(({ row: { atMs, kind, reason, cause }, pod, claim }) => {
        const time = new Date(atMs).toISOString().replace("T", " ").slice(0, 19);
        const why = reason === "" ? "" : `: ${clean(reason)}`;
        const typed = cause === undefined ? "" : ` (${clean(cause)})`;
        const what = sentenceOf(kind) ?? clean(kind);
        return `${time}Z  ${pod.padEnd(podChars)}  ${claim.padEnd(idChars)}  ${what}${why}${typed}\n`;
      })
      .join("");
  };
}

/** Reasons quote other programs: nothing of them may move the cursor. */
function clean(text: string): string {
  return Bun.stripANSI(text).replace(/[\p{Cc}\p{Cf}]+/gu, " ");
}

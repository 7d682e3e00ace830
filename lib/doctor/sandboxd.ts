/** sandboxd: whether it answers, whether our token is the right one, and whether it has anything to give. */
import type { Info, Pool } from "../sandboxd/index.ts";
import { count, listed, span } from "../words.ts";
import type { Check, Context } from "./context.ts";
import { fail, type Outcome, pass, skipped, warn } from "./finding.ts";

const latencyCalls = 5;
const latencyWarnMs = 100;
const latencyFailMs = 2_000;
/** Pools and claims named in a line; the rest is counted. */
const namedMax = 4;
/** A claim younger than this may be made while we look. */
const youngMs = 30_000;

export const sandboxdChecks: Check[] = [
  {
    id: "sandboxd.url",
    group: "sandboxd",
    why: "The root token travels with every call; over plain HTTP everyone on the way can read it, and with it destroy every VM.",
    run: url,
  },
  {
    id: "sandboxd.token-file",
    group: "sandboxd",
    why: "The root token is what lets the provider claim, list, recover and release VMs.",
    run: tokenFile,
  },
  {
    id: "sandboxd.reachable",
    group: "sandboxd",
    why: "Without sandboxd no Pod gets a VM, and the Node turns NotReady.",
    run: reachable,
  },
  {
    id: "sandboxd.version",
    group: "sandboxd",
    why: "For reports of faults: which sandboxd this is.",
    run: async ({ probes: { sandboxd } }) => {
      const version = await sandboxd.version();
      if (version !== undefined) return pass(version);
      const health = await sandboxd.healthz();
      return skipped(health.ok ? "sandboxd does not tell its version" : noAnswer);
    },
  },
  {
    id: "sandboxd.token",
    group: "sandboxd",
    why: "A tenant's token can claim, but not list everything or recover a lost VM, so a crash would leak VMs.",
    run: token,
  },
  {
    id: "sandboxd.latency",
    group: "sandboxd",
    why: "Each Pod waits for at least one such call before it is Running.",
    run: latency,
  },
  {
    id: "sandboxd.pools",
    group: "sandboxd",
    why: "A Pod gets a VM from the warm pool of its template, net and size; where that is empty it stays Pending.",
    run: pools,
  },
  {
    id: "sandboxd.draining",
    group: "sandboxd",
    why: "A sandboxd that drains grants no claim: new Pods stay Pending here.",
    run: async (context) =>
      withInfo(context, (info) =>
        info.draining
          ? warn(
              "sandboxd is draining",
              "End the drain when the maintenance is over: DELETE /v1/drain with the root token.",
            )
          : pass("not draining"),
      ),
  },
  {
    id: "sandboxd.capacity",
    group: "sandboxd",
    why: "A sandboxd at capacity grants no claim: new Pods stay Pending until others end, or go to other nodes.",
    run: async (context) => withInfo(context, capacity),
  },
  {
    id: "sandboxd.index",
    group: "sandboxd",
    why: "At start a claim counts only once sandboxd lists it; one that it does not list is taken for dead and its Pod published Failed.",
    run: index,
  },
  {
    id: "sandboxd.advertise",
    group: "sandboxd",
    why: "Readers of the inventory on other machines reach sandboxd at the published address.",
    run: advertise,
  },
];

const isLoopback = (host: string) =>
  host === "localhost" ||
  host.endsWith(".localhost") ||
  host === "[::1]" ||
  host === "::1" ||
  /^127\./.test(host);

function url({ config }: Context): Outcome {
  const { protocol, hostname } = new URL(config.sandboxd.url);
  if (protocol !== "http:" || isLoopback(hostname)) return pass(config.sandboxd.url);
  if (config.sandboxd.tokenFile === undefined) return pass(`${config.sandboxd.url}, no token is sent`);
  return warn(
    `${config.sandboxd.url} is plain HTTP to another address than loopback`,
    "Run the provider on sandboxd's own host with http://127.0.0.1:7777, or give sandboxd TLS and use https://.",
  );
}

function tokenFile({ config, probes: { sandboxd } }: Context): Outcome {
  const read = sandboxd.token();
  const path = config.sandboxd.tokenFile ?? "";
  switch (read.kind) {
    case "none":
      return skipped("no --sandboxd-token-file is given");
    case "bad":
      return fail(
        read.reason,
        `Put sandboxd's api_token alone into ${path}, owned by the provider's user, mode 0600.`,
      );
    case "read":
      return read.warning === undefined ? pass(path) : warn(read.warning, `chmod 600 ${path}`);
  }
}

const whichUrl =
  "Check that sandboxd runs (systemctl status sandboxd) and that --sandboxd-url (SANDBOXD_URL) is its address.";

async function reachable({ config, probes: { sandboxd } }: Context): Promise<Outcome> {
  const health = await sandboxd.healthz();
  return health.ok ? pass(`${config.sandboxd.url} answers healthz`) : fail(health.why, whichUrl);
}

const noAnswer = "sandboxd does not answer; see sandboxd.reachable";

/** The outcome for what needs `GET /v1/info`; says in few words why there is none, sandboxd.token says more. */
async function withInfo(context: Context, judge: (info: Info) => Outcome): Promise<Outcome> {
  const info = await context.info();
  if (info.ok) return judge(info.info);
  if (info.status === 401 || info.status === 403)
    return skipped("the token may not read it; see sandboxd.token");
  return info.status === undefined
    ? skipped(noAnswer)
    : skipped(`GET /v1/info answers ${info.status}; see sandboxd.token`);
}

async function token(context: Context): Promise<Outcome> {
  const { sandboxd } = context.probes;
  const file = sandboxd.token();
  if (file.kind === "bad") return skipped("the token file cannot be used; see sandboxd.token-file");
  const [mine, anyone] = await Promise.all([
    context.info(),
    file.kind === "none" ? context.info() : sandboxd.info(false),
  ]);
  if (mine.ok && anyone.ok) {
    const remark = file.kind === "none" ? "" : "; the token in our file means nothing to it";
    return warn(
      `sandboxd asks for no token${remark}`,
      "Set api_token in sandboxd's configuration, put the same into a file and give --sandboxd-token-file.",
      "Everyone who reaches that port can claim and destroy VMs.",
    );
  }
  if (mine.ok) return pass("root: it may read GET /v1/info, which a tenant may not");
  if (mine.status === 403) {
    return fail(
      "the token is a tenant's: GET /v1/info answers 403",
      `Put the root api_token of sandboxd's configuration into ${context.config.sandboxd.tokenFile}.`,
    );
  }
  if (mine.status === 401) {
    return file.kind === "none"
      ? fail(
          "sandboxd asks for a token, and none is given",
          "Put sandboxd's api_token into a file of mode 0600 and give --sandboxd-token-file (SANDBOXD_TOKEN_FILE).",
          "Every claim will be refused with 401.",
        )
      : fail(
          "sandboxd does not know the token: GET /v1/info answers 401",
          `Put the api_token of this sandboxd's configuration into ${context.config.sandboxd.tokenFile}; the running provider reads it again by itself.`,
          "Every claim and release will be refused with 401.",
        );
  }
  // Whatever else: reachable or not, we did not learn what the token is good for.
  return mine.status === undefined ? skipped(noAnswer) : fail(mine.why, whichUrl);
}

async function latency({ probes: { sandboxd, now } }: Context): Promise<Outcome> {
  const times: number[] = [];
  for (let i = 0; i < latencyCalls; i++) {
    const startedMs = now();
    const reply = await sandboxd.healthz();
    if (!reply.ok) return skipped(noAnswer);
    times.push(now() - startedMs);
  }
  times.sort((a, b) => a - b);
  const medianMs = times[latencyCalls >> 1] ?? 0;
  const shown = medianMs < 10 ? `${medianMs.toFixed(1)} ms` : span(medianMs);
  const found = `${shown} for a call, the middle one of ${latencyCalls}`;
  const todo =
    "Look at the load of the host (uptime, iostat) and at sandboxd's log; run the provider on sandboxd's own host.";
  if (medianMs >= latencyFailMs) return fail(found, todo);
  return medianMs >= latencyWarnMs ? warn(found, todo) : pass(found);
}

const nameOf = ({ template, net, size }: Pool) =>
  [template, net, size].filter((axis) => axis !== "").join("/");

function named(texts: string[]): string {
  if (texts.length <= namedMax) return listed(texts);
  return `${texts.slice(0, namedMax).join(", ")} and ${texts.length - namedMax} more`;
}

async function pools(context: Context): Promise<Outcome> {
  return withInfo(context, ({ pools: all }) => {
    if (all.length === 0) {
      return warn(
        "sandboxd has no pool",
        "Add pools to sandboxd's configuration (PUT /v1/pools), one for each template that Pods name.",
      );
    }
    const empty = all.filter((pool) => pool.warm === 0);
    const warm = all.reduce((sum, pool) => sum + pool.warm, 0);
    const text = `${count(all.length, "pool")}, ${count(warm, "warm VM")}`;
    if (empty.length === 0) {
      return pass(`${text}: ${named(all.map((pool) => `${nameOf(pool)} ${pool.warm}/${pool.target}`))}`);
    }
    const none = empty.map((pool) => `${nameOf(pool)} (0/${pool.target})`);
    const unwanted = empty.every((pool) => pool.target === 0);
    return warn(
      `${text}; empty: ${named(none)}`,
      unwanted
        ? "Raise the pool's size in sandboxd's configuration: its target is 0."
        : "Wait for sandboxd to refill, then run this again; if it stays empty, look at sandboxd's log and raise the pool's size.",
    );
  });
}

function capacity(info: Info): Outcome {
  const used = `${count(info.claimed, "claim")}, ${info.hibernated} hibernated, ${info.archived} archived`;
  if (!info.atCapacity) return pass(`room is left (${used})`);
  const reason = info.atCapacityReason === "" ? "it does not say why" : info.atCapacityReason;
  return warn(
    `sandboxd is at capacity: ${reason} (${used})`,
    "Raise max_claims in sandboxd's configuration, free the resource it names, or add a node.",
  );
}

async function index({ config, probes: { sandboxd, state, now } }: Context): Promise<Outcome> {
  const [listing, table] = [await sandboxd.list(), state.table()];
  if (!listing.ok) {
    if (listing.status === 401 || listing.status === 403)
      return skipped("the token may not list; see sandboxd.token");
    return listing.status === undefined ? skipped(noAnswer) : fail(listing.why, whichUrl);
  }
  const text = count(listing.rows.length, "sandbox", "sandboxes");
  if (!table.ok) return pass(`${text} listed; the table cannot be compared, see state.table`);
  const live = new Set(listing.rows.map((row) => row.id));
  const held = [...table.rows.entries()].filter(([, row]) => now() - row.claimedAtMs > youngMs);
  const missing = held.filter(([, row]) => !live.has(row.id));
  if (missing.length === 0) {
    const all = count(held.length, "claim");
    return pass(
      held.length === 0
        ? `${text} listed; the table holds no claim`
        : `${text} listed, the table's ${all} among them`,
    );
  }
  if (missing.length === held.length && held.length > 1) {
    return fail(
      `none of the table's ${held.length} claims is among the ${text} that ${config.sandboxd.url} lists`,
      "Make sure that --sandboxd-url and --state-path belong together before the provider starts. If they do, these VMs are gone.",
    );
  }
  const names = missing.map(([key, row]) => `${key} (${row.id})`);
  return warn(
    `${text} listed; not among them: ${named(names)}`,
    `See what became of each: vk-sandbox audit ${missing[0]?.[1].id ?? ""}. Their Pods will be published Failed.`,
  );
}

function advertise({ config }: Context): Outcome {
  if (!config.inventory.publish) return skipped("--publish-inventory is off");
  const address = config.sandboxd.advertiseAddr;
  const host = address.replace(/:\d+$/, "");
  if (!isLoopback(host)) return pass(address);
  const example =
    config.node.ip === undefined
      ? "10.0.0.5"
      : config.node.ip.includes(":")
        ? `[${config.node.ip}]`
        : config.node.ip;
  return warn(
    `the inventory would publish ${address}, a loopback address`,
    `Give --sandboxd-advertise-addr an address that other machines reach: ${example}:${address.slice(host.length + 1)}.`,
  );
}

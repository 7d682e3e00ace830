import {
  type CheckResult,
  check,
  contractLabels,
  fixText,
  isAtLeast,
  isRule,
  jsonReport,
  type Pools,
  parseManifests,
  readCluster,
  readSources,
  renderFindings,
  renderRules,
  renderUnreadable,
  replaceFile,
  ruleList,
  type Severity,
  type Skipped,
  type SourceFile,
  type SourceObject,
  sarifReport,
  severities,
  type Unreadable,
  unifiedDiff,
} from "../lib/check/index.ts";
import { nearest, parseLabels } from "../lib/config/index.ts";
import { version } from "../lib/version.ts";
import { defineVerb, exitDone, exitFailed, exitMisuse, Misuse, type VerbInput } from "./verb.ts";

const choices = [...severities];

/** `vk-sandbox check`: manifests and live objects against the pod-template contract. */
export const checkVerb = defineVerb({
  name: "check",
  summary:
    "Judge Sandbox, SandboxTemplate, SandboxClaim, SandboxWarmPool and Pod manifests, or those of a cluster, against the pod-template contract of all three backends: who a Pod is for, and every way it can fail there.",
  takesAnyWords: true,
  args: {
    file: {
      type: "positional",
      required: false,
      valueHint: "file…",
      description: "YAML or JSON files, directories, or - for standard input.",
    },
    cluster: { type: "boolean", default: false, description: "Judge what the cluster has, live." },
    namespace: {
      type: "string",
      alias: "n",
      valueHint: "NAME",
      description: "With --cluster, a namespace; may be given several times. Without it: all of them.",
    },
    kubeconfig: { type: "string", valueHint: "FILE", description: "Kubeconfig for --cluster." },
    "kube-context": { type: "string", valueHint: "NAME", description: "Context of the kubeconfig." },
    "sandboxd-url": {
      type: "string",
      valueHint: "URL",
      description: "Ask this sandboxd whether each pool (template, net, size) exists and is warm.",
    },
    "sandboxd-token-file": { type: "string", valueHint: "FILE", description: "File with its root token." },
    "node-labels": {
      type: "string",
      valueHint: "LABELS",
      description: "Labels of your sandboxd nodes, when they were started with others than the default.",
    },
    fix: {
      type: "boolean",
      default: false,
      description:
        "Mend what needs no judgement, in place; comments and order stay. With - to standard output.",
    },
    diff: { type: "boolean", default: false, description: "Print what --fix would do, and change nothing." },
    json: { type: "boolean", default: false, description: "Print one JSON object with all findings." },
    sarif: { type: "boolean", default: false, description: "Print SARIF 2.1.0 for code hosts." },
    "fail-on": {
      type: "enum",
      options: choices,
      default: "error",
      description: "Least severity that exits 1.",
    },
    show: { type: "enum", options: choices, default: "info", description: "Least severity that is printed." },
    ignore: {
      type: "string",
      valueHint: "RULE,…",
      description: "Rules that are not applied. For one line: a comment, vk-sandbox-ignore: RULE.",
    },
    rules: { type: "boolean", default: false, description: "List all rules." },
  },
  examples: [
    "check sandbox.yaml",
    "check --fix --diff manifests/",
    "check - < rendered.yaml",
    "check --cluster -n team-a -n team-b --fail-on warning",
    "check --sandboxd-url http://127.0.0.1:7777 --sandboxd-token-file /etc/sandboxd/api-token sandbox.yaml",
    "check --sarif manifests/ > check.sarif",
  ],
  async run(args, input) {
    if (args.rules) {
      const text = args.json
        ? `${JSON.stringify(ruleList, null, 2)}\n`
        : renderRules(Math.min(process.stdout.columns ?? 100, 120));
      await Bun.write(Bun.stdout, text);
      return exitDone;
    }
    if (input.words.length === 0 && !args.cluster)
      throw new Misuse("nothing to check; name files, directories or - for standard input, or use --cluster");
    if (args.json && args.sarif) throw new Misuse("--json and --sarif: one form at a time");
    const fixing = args.fix || args.diff;
    if (fixing && input.words.length === 0)
      throw new Misuse("--fix mends files; a cluster's objects are mended in the files they came from");
    return await runCheck(
      {
        words: input.words,
        cluster: args.cluster ? { namespaces: namespacesOf(input) } : undefined,
        kubeconfig: args.kubeconfig,
        context: args["kube-context"],
        sandboxdUrl: args["sandboxd-url"],
        tokenFile: args["sandboxd-token-file"],
        nodeLabels: labelsOf(args["node-labels"]),
        ignore: ignoredOf(args.ignore),
        fix: args.diff ? "diff" : args.fix ? "write" : "no",
        form: args.sarif ? "sarif" : args.json ? "json" : "text",
        failOn: args["fail-on"] as Severity,
        show: args.show as Severity,
      },
      input.env,
    );
  },
});

interface Settings {
  words: readonly string[];
  cluster?: { namespaces: string[] };
  kubeconfig?: string;
  context?: string;
  sandboxdUrl?: string;
  tokenFile?: string;
  nodeLabels: Record<string, string>;
  ignore: ReadonlySet<string>;
  fix: "no" | "write" | "diff";
  form: "text" | "json" | "sarif";
  failOn: Severity;
  show: Severity;
}

function namespacesOf(input: VerbInput): string[] {
  return input.every("n", "namespace").flatMap((text) => text.split(",").filter((name) => name !== ""));
}

function labelsOf(text: string | undefined): Record<string, string> {
  if (text === undefined) return { ...contractLabels };
  const parsed = parseLabels(text);
  if (!parsed.ok) throw new Misuse(`--node-labels ${text}: ${parsed.reason}`);
  return parsed.value;
}

function ignoredOf(text: string | undefined): ReadonlySet<string> {
  const ids = (text ?? "").split(",").filter((id) => id !== "");
  for (const id of ids) {
    if (isRule(id)) continue;
    const near = nearest(
      id,
      ruleList.map((rule) => rule.id),
    );
    throw new Misuse(
      `--ignore ${id}: no such rule; ${near === undefined ? "--rules lists them" : `did you mean ${near}?`}`,
    );
  }
  return new Set(ids);
}

async function runCheck(settings: Settings, env: VerbInput["env"]): Promise<number> {
  const sources = await readSources(settings.words, readStdin);
  const unreadable: Unreadable[] = [...sources.unreadable];
  const skipped: Skipped[] = [];
  const objects: SourceObject[] = [];
  const common = { nodeLabels: settings.nodeLabels, ignore: settings.ignore, nowMs: Date.now() };

  let pools: Pools | undefined;
  let facts: Parameters<typeof check>[0]["cluster"];
  if (settings.cluster !== undefined) {
    const read = await fromCluster(settings, env, settings.cluster.namespaces);
    if ("reason" in read) unreadable.push(read);
    else {
      objects.push(...read.objects);
      unreadable.push(...read.unreadable);
      skipped.push(...read.skipped);
      facts = read.facts;
      pools = read.pools;
    }
  }
  if (settings.sandboxdUrl !== undefined) {
    const read = await fromSandboxd(settings.sandboxdUrl, settings.tokenFile);
    if ("reason" in read) unreadable.push(read);
    else pools = read;
  }

  let files = sources.files;
  const changed: { file: string; mended: Record<string, number> }[] = [];
  let wrote = "";
  const wholeCluster = settings.cluster !== undefined && settings.words.length === 0;
  if (settings.fix !== "no") {
    const judge = (of: readonly SourceObject[]) => check({ ...common, objects: of });
    const results: SourceFile[] = [];
    for (const source of files) {
      const fixed = fixText(source, judge);
      const after = fixed.ok ? await applyFix(source, fixed, settings.fix) : undefined;
      if (!fixed.ok) skipped.push({ file: source.name, what: `not mended: it ${fixed.reason}` });
      else if (after?.reason !== undefined) unreadable.push({ file: source.name, reason: after.reason });
      if (fixed.ok && fixed.text !== source.text && after?.reason === undefined)
        changed.push({ file: source.name, mended: Object.fromEntries(fixed.mended) });
      wrote += after?.output ?? (source.name === "-" && settings.fix === "write" ? source.text : "");
      results.push(settings.fix === "write" ? (after?.source ?? source) : source);
    }
    files = results;
  }
  for (const source of files) {
    const parsed = parseManifests(source);
    objects.push(...parsed.objects);
    unreadable.push(...parsed.unreadable);
    skipped.push(...parsed.skipped);
  }

  const found = check({ ...common, objects, pools, cluster: facts, complete: wholeCluster });
  const result: CheckResult = { ...found, skipped: [...skipped, ...found.skipped] };
  const bad = result.findings.some(({ severity }) => isAtLeast(severity, settings.failOn));
  const ok = !bad && unreadable.length === 0;
  await Bun.write(Bun.stderr, renderUnreadable(unreadable));
  const report = render(result, settings, { ok, files: files.length, unreadable, changed, env });
  // What was asked for on standard output is the text or the diff; the report must not be in it.
  const toStderr =
    wrote !== "" || settings.fix === "diff" || (settings.fix === "write" && settings.words.includes("-"));
  if (wrote !== "") await Bun.write(Bun.stdout, wrote);
  await Bun.write(toStderr ? Bun.stderr : Bun.stdout, report);
  if (unreadable.length > 0) return exitMisuse;
  return bad ? exitFailed : exitDone;
}

interface About {
  ok: boolean;
  files: number;
  unreadable: readonly Unreadable[];
  changed: readonly { file: string; mended: Record<string, number> }[];
  env: VerbInput["env"];
}

function render(result: CheckResult, settings: Settings, about: About): string {
  const { ok, files, unreadable, changed, env } = about;
  if (settings.form === "sarif")
    return `${JSON.stringify(sarifReport(result, { version, directory: process.cwd(), unreadable }), null, 2)}\n`;
  if (settings.form === "json") {
    const report = jsonReport(result, { version, files, ok, unreadable });
    const fixed = settings.fix === "no" ? {} : { fixed: changed };
    return `${JSON.stringify({ ...report, ...fixed }, null, 2)}\n`;
  }
  const done = settings.fix === "diff" ? "would mend" : "mended";
  const mended = changed.map(({ file, mended }) => {
    const what = Object.entries(mended).map(([rule, count]) => (count === 1 ? rule : `${rule} ×${count}`));
    return `${done} ${file}: ${what.join(", ")}\n`;
  });
  const text = renderFindings(result, {
    columns: Math.min(process.stdout.columns ?? 100, 120),
    color: process.stdout.isTTY === true && !env.NO_COLOR,
    least: settings.show,
    files,
    unreadable: unreadable.length,
  });
  return mended.length > 0 ? `${mended.join("")}\n${text}` : text;
}

/** Writes a mended file, or shows what would be written. */
async function applyFix(
  source: SourceFile,
  fixed: { text: string },
  how: Settings["fix"],
): Promise<{ source: SourceFile; output?: string; reason?: string }> {
  const after = { ...source, text: fixed.text };
  if (how === "diff") return { source, output: unifiedDiff(source.name, source.text, fixed.text) };
  if (source.name === "-") return { source: after, output: fixed.text };
  if (fixed.text === source.text) return { source };
  const reason = await replaceFile(source, fixed.text);
  return reason === undefined ? { source: after } : { source, reason };
}

async function readStdin(bytesMax: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of Bun.stdin.stream()) {
    chunks.push(chunk);
    bytes += chunk.byteLength;
    // One byte over the limit is enough for the reader to say so.
    if (bytes > bytesMax) break;
  }
  return Buffer.concat(chunks);
}

async function fromCluster(settings: Settings, env: VerbInput["env"], namespaces: string[]) {
  const { createKubeClient, loadCluster } = await import("../lib/kube/index.ts");
  const loaded = await loadCluster({ env, kubeconfig: settings.kubeconfig, context: settings.context });
  if (!loaded.ok) return { file: "cluster", reason: loaded.message };
  const client = createKubeClient({ ...loaded.cluster, userAgent: `vk-sandbox-check/${version}` });
  try {
    return await readCluster(client, namespaces);
  } finally {
    client.close();
  }
}

async function fromSandboxd(url: string, tokenFile: string | undefined): Promise<Pools | Unreadable> {
  const { readTokenFile } = await import("../lib/config/index.ts");
  const { createSandboxd } = await import("../lib/sandboxd/index.ts");
  let token: string | undefined;
  if (tokenFile !== undefined) {
    const read = readTokenFile(tokenFile);
    if (!read.ok) throw new Misuse(read.reason);
    token = read.token;
  }
  const reply = await createSandboxd({ url, token: () => token }).info();
  if (!reply.ok) return { file: url, reason: `${reply.why}; pools are not judged` };
  const pools = reply.info.pools.map((pool) => ({ ...pool, where: url }));
  return { source: `sandboxd at ${url}`, pools };
}

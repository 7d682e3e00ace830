/**
 * The program: finds the verb, turns its command line into what it takes, and exits with its code. The path
 * to `run` imports nothing but the configuration; everything for people is loaded when they ask.
 */
import {
  type ConfigError,
  configFrom,
  formatConfigError,
  nearest,
  type Scannable,
  scan,
  scannable,
} from "../lib/config/index.ts";
import { exitDone, exitFailed, exitMisuse, Misuse, type Verb, type VerbInput } from "./verb.ts";
import { verbs } from "./verbs.ts";

const runFlags: ReadonlyMap<string, Scannable> = new Map([...scannable, ["version", { boolean: true }]]);

/**
 * Runs a command line.
 *
 * @param argv without runtime and script
 * @returns the exit code: 0 done, 1 failed, 2 misuse
 */
export async function main(argv: readonly string[], env: VerbInput["env"]): Promise<number> {
  const [first = "", ...rest] = argv;
  // Without a verb it is the provider, which is how everyone starts the reference.
  if (first === "" || first.startsWith("-")) return run(argv, env, undefined);
  if (first === "run") return run(rest, env, "run");
  if (first === "help") return help(rest.find((word) => !word.startsWith("-")));
  const entry = Object.hasOwn(verbs, first) ? verbs[first] : undefined;
  if (entry === undefined) return misuse([unknownVerb(first)], "help");
  return runVerb(first, await entry.load(), rest, env);
}

async function run(argv: readonly string[], env: VerbInput["env"], verb: "run" | undefined): Promise<number> {
  const scanned = scan(argv, runFlags);
  if (!scanned.ok)
    return misuse([formatConfigError({ flag: scanned.flag, reason: scanned.reason })], "help run");
  if (scanned.help) return help(verb ?? (argv.length === 1 ? undefined : "run"));
  if (["true", "1", "t"].includes(scanned.values.get("version") ?? "")) {
    const { versionLine } = await import("./version.ts");
    return print(`${versionLine()}\n`);
  }
  const [extra] = scanned.rest;
  if (extra !== undefined) return misuse([unexpected(extra)], "help run");
  const loaded = configFrom(scanned.values, env);
  if (!loaded.ok) return misuse(loaded.errors.map(formatConfigError), "help run");
  const daemon = await import("./run.ts").then((m) => m.run);
  return daemon(loaded.config);
}

function unexpected(word: string): string {
  const error: ConfigError = {
    flag: word,
    reason: "unexpected argument; flags begin with --, and a boolean's value follows an equals sign",
  };
  return formatConfigError(error);
}

function unknownVerb(word: string): string {
  const near = nearest(word, ["run", "help", ...Object.keys(verbs)]);
  return `${word}: unknown verb; ${near === undefined ? "help lists them all" : `did you mean ${near}?`}`;
}

async function runVerb(
  name: string,
  verb: Verb,
  argv: readonly string[],
  env: VerbInput["env"],
): Promise<number> {
  const { runCommand } = await import("citty");
  const own = await ownFlags(verb);
  const known = new Map([...(verb.takesRunFlags === true ? scannable : []), ...own.flags]);
  const scanned = scan(argv, known);
  if (!scanned.ok)
    return misuse([formatConfigError({ flag: scanned.flag, reason: scanned.reason })], `help ${name}`);
  if (scanned.help) return help(name);
  const extra = verb.takesAnyWords === true ? undefined : scanned.rest[own.positionals];
  if (extra !== undefined) return misuse([unexpected(extra)], `help ${name}`);
  // citty gets one form only, `--flag=value`, and never a flag it does not know: it would take it silently.
  const rawArgs: string[] = [];
  const sharedFlags = new Map<string, string>();
  for (const [flag, value] of scanned.values)
    if (own.flags.has(flag))
      rawArgs.push(flag.length === 1 ? `-${flag}${value === "true" ? "" : value}` : `--${flag}=${value}`);
    else sharedFlags.set(flag, value);
  const input: VerbInput = {
    env,
    sharedFlags,
    config: () => configFrom(sharedFlags, env),
    words: scanned.rest,
    every: (...names) => scanned.all.filter(([flag]) => names.includes(flag)).map(([, value]) => value),
  };
  try {
    const { result } = await runCommand(verb.command, {
      rawArgs: [...rawArgs, "--", ...scanned.rest],
      data: input,
    });
    return typeof result === "number" ? result : exitDone;
  } catch (error) {
    // citty's own complaints (a missing argument, a word that is none of the choices) are about the command line.
    if (error instanceof Misuse || (error instanceof Error && error.name === "CLIError"))
      return misuse([error.message], `help ${name}`);
    throw error;
  }
}

async function ownFlags(verb: Verb): Promise<{ flags: Map<string, Scannable>; positionals: number }> {
  const flags = new Map<string, Scannable>();
  let positionals = 0;
  for (const [name, arg] of Object.entries((await verb.command.args) ?? {})) {
    if (arg.type === "positional") {
      positionals++;
      continue;
    }
    const flag = { boolean: arg.type === "boolean" };
    for (const spelled of [name, ...[arg.alias ?? []].flat()]) flags.set(spelled, flag);
  }
  return { flags, positionals };
}

async function help(verb: string | undefined): Promise<number> {
  const { renderHelp } = await import("./help.ts");
  const text = await renderHelp(verb, process.stdout.columns ?? 100);
  return text === undefined ? misuse([unknownVerb(verb ?? "")], "help") : print(text);
}

async function print(text: string): Promise<number> {
  await Bun.write(Bun.stdout, text);
  return exitDone;
}

async function misuse(lines: string[], next: string): Promise<number> {
  const told = lines.map((line) => `vk-sandbox: ${Bun.stripANSI(line)}\n`).join("");
  await Bun.write(Bun.stderr, `${told}See: vk-sandbox ${next}\n`);
  return exitMisuse;
}

// No top-level await: bytecode compilation does not take it.
if (import.meta.main)
  main(process.argv.slice(2), process.env)
    .catch(async (error: unknown) => {
      // A reader that went away (`| head`) is no failure worth a message.
      if (error instanceof Error && "code" in error && error.code === "EPIPE") return exitDone;
      await Bun.write(Bun.stderr, `vk-sandbox: ${error instanceof Error ? error.message : String(error)}\n`);
      return exitFailed;
    })
    .then((code) => process.exit(code));

/**
 * What a verb is: a citty command, so that its declaration is parser, types and help at once, run behind a
 * scanner that knows Go's flag forms and refuses unknown flags. Types only: whoever is on the daemon's path
 * may import this, and citty (8 MB of RSS) stays out.
 */
import type { ArgsDef, CommandDef } from "citty";
import type { ConfigResult, Environment } from "../lib/config/index.ts";

/** What main gives a verb beside its own arguments, as citty's `data`. */
export interface VerbInput {
  env: Environment;
  /** The provider's configuration from the flags it shares with `run` and the environment. */
  config(): ConfigResult;
  /** Flags of `run` that were given on this command line. */
  sharedFlags: ReadonlyMap<string, string>;
  /** The words that are no flags, all of them. */
  words: readonly string[];
  /** Every value of a flag that may be given several times, in order. `names`: all its spellings. */
  every(...names: string[]): string[];
}

/** Exit codes of every verb. */
export const exitDone = 0;
/** The verb did what it was asked and the answer is bad, or it could not do it. */
export const exitFailed = 1;
/** The command line or the environment is wrong: try again differently. */
export const exitMisuse = 2;

/** Thrown by a verb whose arguments are wrong: main prints the message and exits 2. */
export class Misuse extends Error {
  override name = "Misuse";
}

export interface Verb {
  /** meta.description is one line; `run` returns the exit code. */
  command: CommandDef;
  /** Also takes every flag of `run`, with the same environment. */
  takesRunFlags?: boolean;
  /** Takes any number of words, not one for each positional argument. */
  takesAnyWords?: boolean;
  /** Command lines without the program's name: `doctor --json`. */
  examples?: string[];
}

interface VerbDeclaration<A extends ArgsDef> {
  name: string;
  /** One sentence. */
  summary: string;
  args: A;
  takesRunFlags?: boolean;
  takesAnyWords?: boolean;
  examples?: string[];
  /** Returns the exit code. */
  run(args: Parsed<A>, input: VerbInput): Promise<number>;
}

type Parsed<A extends ArgsDef> = Parameters<NonNullable<CommandDef<A>["run"]>>[0]["args"];

/** Declares a verb: citty's `args` with types, shared flags, examples, and what it does. */
export function defineVerb<const A extends ArgsDef>(declaration: VerbDeclaration<A>): Verb {
  const { name, summary, args, takesRunFlags, takesAnyWords, examples, run } = declaration;
  const command: CommandDef<A> = {
    meta: { name, description: summary },
    args,
    run: (context) => run(context.args, context.data as VerbInput),
  };
  // citty's CommandDef is invariant in its arguments; nobody calls `run` with other ones than its own.
  return { command: command as unknown as CommandDef, takesRunFlags, takesAnyWords, examples };
}

/** `--state-path` for the verbs that read what the provider keeps there: same flag, variable and default. */
import { defaultOf, flags } from "../lib/config/index.ts";
import { Misuse, type VerbInput } from "./verb.ts";

const flag = flags["state-path"];

export const statePathArg = {
  "state-path": {
    type: "string",
    valueHint: "FILE",
    description: `The provider's claims table (default: ${flag.env}, else ${flag.default}).`,
  },
} as const;

/** The path from the flag, else the environment, else the provider's default. Throws Misuse for one that is none. */
export function statePathOf(given: string | undefined, env: VerbInput["env"]): string {
  const text = given ?? (env[flag.env] || (defaultOf("state-path") ?? ""));
  const parsed = flag.kind.parse(text);
  if (!parsed.ok) throw new Misuse(`--state-path "${text}" ${parsed.reason}`);
  return parsed.value;
}

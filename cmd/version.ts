import { buildDate, commit, version as number } from "../lib/version.ts";
import { defineVerb, exitDone } from "./verb.ts";

/** What `--version` prints: one line for people. */
export function versionLine(): string {
  return `vk-sandbox ${number} (commit ${commit}, built ${buildDate}, Bun ${Bun.version}, ${process.platform}/${process.arch})`;
}

export const version = defineVerb({
  name: "version",
  summary: "Print version, commit and build date.",
  args: { json: { type: "boolean", description: "Print one JSON object.", default: false } },
  examples: ["version", "version --json"],
  async run(args) {
    const { platform, arch } = process;
    const facts = { version: number, commit, buildDate, bun: Bun.version, platform, arch };
    await Bun.write(Bun.stdout, `${args.json ? JSON.stringify(facts) : versionLine()}\n`);
    return exitDone;
  },
});

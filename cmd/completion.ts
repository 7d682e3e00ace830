import type { ArgsDef } from "citty";
import { flagList } from "../lib/config/index.ts";
import { defineVerb, exitDone, Misuse } from "./verb.ts";
import { verbs } from "./verbs.ts";

/** A flag as a shell completes it. */
interface Completed {
  name: string;
  text: string;
  /** Words to offer as its value, `file` for paths, undefined for anything, `none` for a boolean. */
  value: string[] | "file" | "none" | undefined;
}

async function completedFlags(): Promise<Map<string, Completed[]>> {
  const run: Completed[] = flagList.map((flag) => ({
    name: flag.name,
    text: flag.help,
    value: valuesOf(flag.kind.hint),
  }));
  const help: Completed = { name: "help", text: "Explain this verb.", value: "none" };
  const byVerb = new Map([
    ["run", [...run, help, { name: "version", text: "Print the version.", value: "none" } as const]],
  ]);
  for (const [name, entry] of Object.entries(verbs)) {
    const verb = await entry.load();
    const own: Completed[] = [];
    for (const [arg, def] of Object.entries(((await verb.command.args) ?? {}) as ArgsDef)) {
      if (def.type === "positional") continue;
      const value =
        def.type === "boolean"
          ? "none"
          : def.type === "enum"
            ? def.options
            : valuesOf(def.valueHint ?? "VALUE");
      own.push({ name: arg, text: def.description ?? "", value: value });
    }
    const shared = verb.takesRunFlags === true ? run : [];
    byVerb.set(name, [...own, ...shared.filter((flag) => !own.some(({ name }) => name === flag.name)), help]);
  }
  byVerb.set("help", []);
  return byVerb;
}

function valuesOf(hint: string): Completed["value"] {
  if (hint === "") return "none";
  if (hint.includes("|")) return hint.split("|");
  return hint === "FILE" ? "file" : undefined;
}

/** Words after a verb that are no flags. */
const shells = ["bash", "zsh", "fish"];
function words(verb: string): string[] {
  if (verb === "completion") return shells;
  return verb === "help" ? ["run", ...Object.keys(verbs)] : [];
}

function bash(byVerb: Map<string, Completed[]>): string {
  const all = [...byVerb.keys()].join(" ");
  const values = new Map<string, string>();
  for (const flags of byVerb.values())
    for (const { name, value } of flags)
      if (value === "file") values.set(name, 'COMPREPLY=($(compgen -f -- "$cur"))');
      else if (Array.isArray(value))
        values.set(name, `COMPREPLY=($(compgen -W "${value.join(" ")}" -- "$cur"))`);
      else if (value === undefined) values.set(name, "COMPREPLY=()");
  return `# vk-sandbox completion for bash: source <(vk-sandbox completion bash)
_vk_sandbox() {
  local cur="\${COMP_WORDS[COMP_CWORD]}" prev="\${COMP_WORDS[COMP_CWORD-1]}" verb=run word
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in ${[...byVerb.keys()].join("|")}) verb="$word"; break ;; esac
  done
  case "$prev" in
${[...values].map(([name, action]) => `    --${name}) ${action}; return ;;`).join("\n")}
  esac
  local flags="" words=""
  case "$verb" in
${[...byVerb]
  .map(
    ([verb, flags]) =>
      `    ${verb}) flags="${flags.map(({ name }) => `--${name}`).join(" ")}"; words="${words(verb).join(" ")}" ;;`,
  )
  .join("\n")}
  esac
  if [[ $COMP_CWORD -eq 1 && $cur != -* ]]; then COMPREPLY=($(compgen -W "${all}" -- "$cur"))
  elif [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  elif [[ -n $words ]]; then COMPREPLY=($(compgen -W "$words" -- "$cur"))
  else COMPREPLY=($(compgen -f -- "$cur")); fi
}
complete -o filenames -F _vk_sandbox vk-sandbox
`;
}

function zsh(byVerb: Map<string, Completed[]>): string {
  const quote = (text: string) => text.replace(/['\\[\]:]/g, (c) => (c === "'" ? "'\\''" : `\\${c}`));
  const spec = ({ name, text, value }: Completed) => {
    const action =
      value === "none"
        ? ""
        : value === "file"
          ? ":file:_files"
          : Array.isArray(value)
            ? `:value:(${value.join(" ")})`
            : ":value:";
    return `'--${name}${value === "none" ? "" : "="}[${quote(text)}]${action}'`;
  };
  return `#compdef vk-sandbox
# vk-sandbox completion for zsh: vk-sandbox completion zsh > "\${fpath[1]}/_vk-sandbox"
_vk_sandbox() {
  local verb=run
  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
    compadd -- ${[...byVerb.keys()].join(" ")}
    return
  fi
  if [[ $words[2] != -* ]]; then verb=$words[2]; shift words; (( CURRENT-- )); fi
  case $verb in
${[...byVerb]
  .map(([verb, flags]) => {
    const rest = words(verb).length > 0 ? `'1:word:(${words(verb).join(" ")})'` : "'*:file:_files'";
    return `    ${verb}) _arguments ${[...flags.map(spec), rest].join(" \\\n      ")} ;;`;
  })
  .join("\n")}
  esac
}
if [ "$funcstack[1]" = "_vk-sandbox" ]; then _vk_sandbox "$@"; else compdef _vk_sandbox vk-sandbox; fi
`;
}

function fish(byVerb: Map<string, Completed[]>): string {
  const quote = (text: string) => `'${text.replace(/['\\]/g, "\\$&")}'`;
  const all = [...byVerb.keys()];
  const lines = [
    "# vk-sandbox completion for fish: vk-sandbox completion fish | source",
    `complete -c vk-sandbox -n __fish_use_subcommand -f -a '${all.join(" ")}'`,
  ];
  for (const [verb, flags] of byVerb) {
    const others = all.filter((name) => name !== "run").join(" ");
    const when =
      verb === "run" ? `not __fish_seen_subcommand_from ${others}` : `__fish_seen_subcommand_from ${verb}`;
    for (const { name, text, value } of flags) {
      const takes = value === "none" ? "" : value === "file" ? " -r -F" : " -x";
      const offer = Array.isArray(value) ? ` -a '${value.join(" ")}'` : "";
      lines.push(`complete -c vk-sandbox -n '${when}' -l ${name} -d ${quote(text)}${takes}${offer}`);
    }
    if (words(verb).length > 0)
      lines.push(`complete -c vk-sandbox -n '${when}' -f -a '${words(verb).join(" ")}'`);
  }
  return `${lines.join("\n")}\n`;
}

/** The completion script of a shell, from the flags' and verbs' declarations. */
export async function renderCompletion(shell: "bash" | "zsh" | "fish"): Promise<string> {
  const byVerb = await completedFlags();
  return { bash, zsh, fish }[shell](byVerb);
}

export const completion = defineVerb({
  name: "completion",
  summary: "Print a completion script for bash, zsh or fish.",
  args: { shell: { type: "positional", description: "bash, zsh or fish.", required: true } },
  examples: ["completion bash > /etc/bash_completion.d/vk-sandbox"],
  async run(args) {
    if (args.shell !== "bash" && args.shell !== "zsh" && args.shell !== "fish")
      throw new Misuse(`completion "${args.shell}": is not a shell it knows; write bash, zsh or fish`);
    await Bun.write(Bun.stdout, await renderCompletion(args.shell));
    return exitDone;
  },
});

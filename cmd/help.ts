/** Help and man page, both from the flags' and the verbs' declarations. */
import type { ArgsDef, CommandMeta } from "citty";
import { flagList, groups } from "../lib/config/index.ts";
import { buildDate, version } from "../lib/version.ts";
import type { Verb } from "./verb.ts";
import { verbs } from "./verbs.ts";

/** One line of a list: what to type, and what it does. `notes` follow in small. */
interface Item {
  term: string;
  text: string;
  notes?: string;
}

interface Section {
  title: string;
  items: Item[];
}

interface Page {
  name: string;
  summary: string;
  usage: string[];
  sections: Section[];
  examples: string[];
}

const tagline = "Serves sandboxd, the node-local daemon of warm microVMs, to Kubernetes as one virtual Node.";

const exitCodes: Section = {
  title: "Exit codes",
  items: [
    { term: "0", text: "Done." },
    { term: "1", text: "Failed: the answer is bad, or the work could not be done." },
    { term: "2", text: "Misuse: a flag, a variable or an argument is wrong." },
  ],
};

/**
 * The help of a verb, or the overview without one.
 *
 * @param columns width of the terminal; lines are broken at most there
 * @returns undefined for a verb that does not exist
 */
export async function renderHelp(verb: string | undefined, columns: number): Promise<string | undefined> {
  const page = verb === undefined ? overviewPage() : await verbPage(verb);
  return page === undefined ? undefined : renderText(page, Math.min(110, Math.max(60, columns)));
}

function overviewPage(): Page {
  return {
    name: "vk-sandbox",
    summary: tagline,
    usage: ["vk-sandbox [run] [flags]", "vk-sandbox VERB [arguments] [flags]", "vk-sandbox help VERB"],
    sections: [
      {
        title: "Verbs",
        items: [
          { term: "run", text: "Serve the virtual Node. This is what happens without a verb." },
          ...Object.entries(verbs).map(([term, { summary }]) => ({ term, text: summary })),
          { term: "help", text: "Explain a verb and its flags; `help run` lists the provider's." },
        ],
      },
      exitCodes,
    ],
    examples: [
      "vk-sandbox --node-name vk-sandboxd-node1 --sandboxd-token-file /etc/sandboxd/api-token",
      "vk-sandbox help run",
    ],
  };
}

function runFlagSections(): Section[] {
  return groups.map((title) => ({
    title,
    items: flagList
      .filter((flag) => flag.group === title)
      .map((flag) => ({
        term: `--${flag.name}${flag.kind.hint === "" ? "" : ` ${flag.kind.hint}`}`,
        text: flag.help,
        notes: [
          flag.default === undefined ? "" : `default ${flag.default}`,
          `env ${flag.env}`,
          `e.g. ${flag.example}`,
        ]
          .filter((note) => note !== "")
          .join(" · "),
      })),
  }));
}

async function verbPage(name: string): Promise<Page | undefined> {
  if (name === "run")
    return {
      name: "vk-sandbox run",
      summary: "Serves the virtual Node until it is told to stop. Claims and Node stay when it stops.",
      usage: ["vk-sandbox [run] [flags]"],
      sections: [
        ...runFlagSections(),
        { title: "Other", items: [{ term: "--version", text: "Print the version and stop." }] },
        {
          title: "How values are written",
          items: [
            {
              term: "flags",
              text: "-flag, --flag=value, --flag value; a boolean's value follows an equals sign: --audit=false.",
            },
            { term: "env", text: "Used where the flag is not given; an empty variable counts as unset." },
            { term: "DURATION", text: "As Go writes them: 30s, 1m30s, 1.5h, 100ms, 0." },
            { term: "QUANTITY", text: "As Kubernetes writes them: 8Ti, 4000, 500m, 1e3." },
          ],
        },
        exitCodes,
      ],
      examples: [
        "vk-sandbox --node-name vk-sandboxd-node1 --node-ip 10.0.0.5 --sandboxd-token-file /etc/sandboxd/api-token --publish-inventory",
      ],
    };
  const entry = verbs[name];
  if (entry === undefined || !Object.hasOwn(verbs, name)) return undefined;
  const verb = await entry.load();
  const own = await ownItems(verb);
  const meta = (await verb.command.meta) as CommandMeta | undefined;
  const words = own.positionals.map((item) => item.term).join(" ");
  return {
    name: `vk-sandbox ${name}`,
    summary: meta?.description ?? entry.summary,
    usage: [`vk-sandbox ${name}${words === "" ? "" : ` ${words}`} [flags]`],
    sections: [
      { title: "Arguments", items: own.positionals },
      { title: "Flags", items: own.flags },
      ...(verb.takesRunFlags === true ? runFlagSections() : []),
      exitCodes,
    ],
    examples: (verb.examples ?? []).map((example) => `vk-sandbox ${example}`),
  };
}

/** A verb's own arguments as help shows them. */
export async function ownItems(verb: Verb): Promise<{ positionals: Item[]; flags: Item[] }> {
  const args = (await verb.command.args) as ArgsDef | undefined;
  const positionals: Item[] = [];
  const flags: Item[] = [];
  for (const [name, arg] of Object.entries(args ?? {})) {
    const text = arg.description ?? "";
    if (arg.type === "positional") {
      const word = (arg.valueHint ?? name).toUpperCase();
      positionals.push({
        term: arg.required === false || arg.default !== undefined ? `[${word}]` : word,
        text,
      });
      continue;
    }
    const other = "alias" in arg ? arg.alias : undefined;
    const aliases = [other ?? []]
      .flat()
      .map((short) => (short.length === 1 ? `-${short}, ` : `--${short}, `));
    const hint =
      arg.type === "boolean"
        ? ""
        : ` ${arg.valueHint ?? (arg.type === "enum" ? arg.options?.join("|") : name.toUpperCase())}`;
    const notes = arg.default === undefined || arg.default === false ? undefined : `default ${arg.default}`;
    flags.push({ term: `${aliases.join("")}--${name}${hint}`, text, notes });
  }
  return { positionals, flags };
}

function renderText(page: Page, columns: number): string {
  const lines = [...wrap(page.summary, columns), "", "Usage", ...page.usage.map((line) => `  ${line}`)];
  for (const { title, items } of page.sections) {
    if (items.length === 0) continue;
    lines.push("", title);
    const widest = Math.max(...items.map((item) => item.term.length));
    // One long flag must not push every other text to the right edge.
    const column = Math.min(widest, 30) + 4;
    for (const { term, text, notes } of items) {
      const indent = " ".repeat(column);
      const rest = [
        ...wrap(text, columns - column),
        ...(notes === undefined ? [] : wrap(notes, columns - column)),
      ];
      const head = `  ${term}`;
      if (head.length + 2 > column) lines.push(head);
      else lines.push(head.padEnd(column) + (rest.shift() ?? ""));
      for (const line of rest) lines.push(indent + line);
    }
  }
  if (page.examples.length > 0) lines.push("", "Examples", ...page.examples.map((example) => `  ${example}`));
  return `${lines.map((line) => line.trimEnd()).join("\n")}\n`;
}

function wrap(text: string, columns: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && line.length + 1 + word.length > columns) {
      lines.push(line);
      line = word;
    } else line = line === "" ? word : `${line} ${word}`;
  }
  return line === "" ? lines : [...lines, line];
}

/** The man page vk-sandbox(8) in roff, made from the same declarations. */
export async function renderMan(): Promise<string> {
  const pages = [overviewPage()];
  for (const name of ["run", ...Object.keys(verbs)]) {
    const page = await verbPage(name);
    if (page !== undefined) pages.push(page);
  }
  const roff = (text: string) =>
    text
      .replaceAll("\\", "\\e")
      .replaceAll("-", "\\-")
      .replace(/^([.'])/, "\\&$1")
      .replaceAll("·", "\\(bu");
  const out = [
    `.TH VK\\-SANDBOX 8 "${buildDate === "unknown" ? "" : buildDate.slice(0, 10)}" "vk\\-sandbox ${roff(version)}"`,
  ];
  out.push(".SH NAME", `vk\\-sandbox \\- ${roff(tagline)}`);
  for (const page of pages) {
    out.push(`.SH "${roff(page.name.toUpperCase())}"`, roff(page.summary), ".PP");
    for (const usage of page.usage) out.push(".nf", `\\fB${roff(usage)}\\fR`, ".fi");
    for (const { title, items } of page.sections) {
      if (items.length === 0 || (page !== pages[0] && title === exitCodes.title)) continue;
      out.push(`.SS "${roff(title)}"`);
      for (const { term, text, notes } of items) {
        out.push(".TP", `\\fB${roff(term)}\\fR`, roff(text));
        if (notes !== undefined) out.push(".br", roff(notes));
      }
    }
    if (page.examples.length > 0) out.push('.SS "Examples"', ".nf", ...page.examples.map(roff), ".fi");
  }
  return `${out.join("\n")}\n`;
}

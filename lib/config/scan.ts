/**
 * Splits a command line into flags and the rest the way Go's flag package does, because that is how the
 * reference is started: `-flag`, `--flag`, `--flag=value`, `--flag value`, `--bool`, `--bool=false`. Unlike
 * Go's it goes on after the first word that is no flag, so that `doctor FILE --json` works.
 */

/** What the scanner must know of a flag. */
export interface Scannable {
  /** Takes no value unless written with `=`. */
  boolean: boolean;
}

export interface Scanned {
  /** By flag name; the last one wins, as in Go. */
  values: Map<string, string>;
  /** Every flag as it was given, for those that may be given several times. */
  all: [flag: string, value: string][];
  /** Words that are no flags, and everything after `--`. */
  rest: string[];
  /** `-h`, `-help` or `--help` was there. */
  help: boolean;
}

export type ScanResult = ({ ok: true } & Scanned) | { ok: false; flag: string; reason: string };

/**
 * Scans `argv` (without the program's name) for the flags that `known` has.
 * Returns the texts unparsed; an unknown flag names its nearest match.
 */
export function scan(argv: readonly string[], known: ReadonlyMap<string, Scannable>): ScanResult {
  const scanned: Scanned = { values: new Map(), all: [], rest: [], help: false };
  const set = (flag: string, value: string) => {
    scanned.values.set(flag, value);
    scanned.all.push([flag, value]);
  };
  for (let i = 0; i < argv.length; i++) {
    const word = argv[i] ?? "";
    if (word === "--") {
      scanned.rest.push(...argv.slice(i + 1));
      break;
    }
    // A single dash is the usual name of standard input.
    if (!word.startsWith("-") || word === "-") {
      scanned.rest.push(word);
      continue;
    }
    const body = word.startsWith("--") ? word.slice(2) : word.slice(1);
    const equals = body.indexOf("=");
    const name = equals < 0 ? body : body.slice(0, equals);
    const shown = `--${name}`;
    const flag = known.get(name);
    if (flag === undefined) {
      if ((name === "help" || name === "h") && equals < 0) {
        scanned.help = true;
        continue;
      }
      const near = nearest(name, known.keys());
      return {
        ok: false,
        flag: shown,
        reason:
          near === undefined
            ? "unknown flag; --help lists them all"
            : `unknown flag; did you mean --${near}?`,
      };
    }
    if (equals >= 0) set(name, body.slice(equals + 1));
    else if (flag.boolean) set(name, "true");
    else {
      const next = argv[i + 1];
      if (next === undefined)
        return { ok: false, flag: shown, reason: `needs a value; write ${shown} VALUE` };
      // Go would take the next flag as the value; nobody means that. `--flag=-x` still says it.
      if (next.startsWith("--") && known.has(next.slice(2).split("=")[0] ?? ""))
        return {
          ok: false,
          flag: shown,
          reason: `needs a value, but the flag ${next} follows; write ${shown}=VALUE`,
        };
      set(name, next);
      i++;
    }
  }
  return { ok: true, ...scanned };
}

/** The word closest to `word` by edits, when it is close enough to be a typing mistake. */
export function nearest(word: string, words: Iterable<string>): string | undefined {
  let best: string | undefined;
  let bestDistance = Math.max(2, Math.floor(word.length / 3)) + 1;
  for (const candidate of words) {
    const distance = edits(word.toLowerCase().replaceAll("_", "-"), candidate);
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/** Levenshtein distance; a neighbour swap counts as one edit. Words are capped, an argument may be of any length. */
function edits(a: string, b: string): number {
  const charsMax = 64;
  const x = a.slice(0, charsMax);
  const y = b.slice(0, charsMax);
  let before: number[] = [];
  let previous = Array.from({ length: y.length + 1 }, (_, j) => j);
  for (let i = 1; i <= x.length; i++) {
    const row = [i];
    for (let j = 1; j <= y.length; j++) {
      let cost = Math.min(
        (previous[j] ?? 0) + 1,
        (row[j - 1] ?? 0) + 1,
        (previous[j - 1] ?? 0) + (x[i - 1] === y[j - 1] ? 0 : 1),
      );
      if (i > 1 && j > 1 && x[i - 1] === y[j - 2] && x[i - 2] === y[j - 1])
        cost = Math.min(cost, (before[j - 2] ?? 0) + 1);
      row.push(cost);
    }
    before = previous;
    previous = row;
  }
  return previous[y.length] ?? 0;
}

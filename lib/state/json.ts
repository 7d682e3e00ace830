/**
 * JSON.parse that says where. JavaScriptCore's message names no position, and a person with a broken state
 * file needs one, so on failure the text is walked once more by a strict scanner.
 */

export type Parsed = { ok: true; value: unknown } | { ok: false; offset: number; reason: string };

/** Parses JSON text; on failure tells the character offset of the first fault and what is wrong there, quoting nothing. */
export function parseJson(text: string): Parsed {
  try {
    return { ok: true, value: JSON.parse(text) };
  } catch {
    const fault = findFault(text);
    return { ok: false, ...fault };
  }
}

/** Line and column, both from 1, of a character offset. */
export function placeOf(text: string, offset: number): { line: number; column: number } {
  const before = text.slice(0, offset);
  const lastBreak = before.lastIndexOf("\n");
  return { line: before.split("\n").length, column: offset - lastBreak };
}

const literal = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids exactly these in a string
const string = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const blank = /[ \t\r\n]*/y;

function findFault(text: string): { offset: number; reason: string } {
  let at = 0;
  const skip = (pattern: RegExp): boolean => {
    pattern.lastIndex = at;
    if (!pattern.test(text)) return false;
    at = pattern.lastIndex;
    return true;
  };
  const fault = (expected: string) => ({
    offset: at,
    reason: at >= text.length ? `the text ends where ${expected} should be` : `${expected} should be here`,
  });
  // One closing bracket per open object or array; what may come next is in `want`.
  const open: string[] = [];
  let want: "value" | "firstValue" | "key" | "firstKey" | "after" = "value";
  for (;;) {
    skip(blank);
    const next = text[at];
    if (want === "after") {
      const close = open.at(-1);
      if (close === undefined) {
        return at < text.length
          ? { offset: at, reason: "something follows the end of the JSON value" }
          : { offset: at, reason: "not valid JSON" };
      }
      if (next === close) {
        at++;
        open.pop();
      } else if (next === ",") {
        at++;
        want = close === "}" ? "key" : "value";
      } else return fault(`"," or "${close}"`);
    } else if (want === "key" || want === "firstKey") {
      if (next === "}" && want === "firstKey") {
        at++;
        open.pop();
        want = "after";
        continue;
      }
      if (!skip(string)) return fault("a quoted field name");
      skip(blank);
      if (text[at] !== ":") return fault('":"');
      at++;
      want = "value";
    } else if (next === "{") {
      at++;
      open.push("}");
      want = "firstKey";
    } else if (next === "[") {
      at++;
      open.push("]");
      want = "firstValue";
    } else if (next === "]" && want === "firstValue") {
      at++;
      open.pop();
      want = "after";
    } else if (skip(string) || skip(literal)) {
      want = "after";
    } else return fault("a value");
  }
}

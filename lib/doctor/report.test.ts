import { describe, expect, test } from "bun:test";
import { type Finding, tally } from "./finding.ts";
import { renderReport } from "./report.ts";

const finding = (
  id: string,
  status: Finding["status"],
  found = "as found",
  todo = "",
  why = "Because.",
): Finding => ({
  id,
  group: id.split(".")[0] as Finding["group"],
  status,
  found,
  why,
  todo,
});
const plain = { columns: 100, color: false, subject: [["node", "vk-1"]] as [string, string][] };

describe("the report", () => {
  test("says why and what to do for what is wrong, and neither for what is right", () => {
    const text = renderReport(
      [finding("host.a", "pass"), finding("state.b", "fail", "full", "Free space.", "Claims are lost.")],
      plain,
    );
    expect(text).toBe(
      [
        "node  vk-1",
        "",
        "Host",
        "  pass  a  as found",
        "",
        "State",
        "  FAIL  b  full",
        "        Why:  Claims are lost.",
        "        Do:   Free space.",
        "",
        "Summary",
        "  Not fit to serve: 1 of 2 checks passed and 1 failure.",
        "  Do this, in this order:",
        "   1. state.b: Free space.",
        "",
      ].join("\n"),
    );
  });

  test("says once what kept several checks from being made", () => {
    const text = renderReport(
      [
        finding("cluster.a", "skipped", "no way"),
        finding("cluster.b", "pass"),
        finding("cluster.c", "skipped", "no way"),
        finding("cluster.d", "skipped", "another reason"),
      ],
      plain,
    );
    expect(text).toContain("skip  a, c: no way\n");
    expect(text.match(/no way/g)).toHaveLength(1);
    expect(text).toContain("skip  d  another reason");
    expect(text).toContain("1 of 4 checks passed and 3 could not be made");
  });

  test("gives one step for all failures that it mends, and names what only warns", () => {
    const text = renderReport(
      [
        finding("cluster.a", "fail", "x", "Apply it."),
        finding("cluster.b", "fail", "y", "Apply it."),
        finding("cluster.c", "fail", "z", "Start it."),
        finding("host.w", "warn", "w", "Mind it."),
      ],
      plain,
    );
    expect(text).toContain("   1. cluster.a and cluster.b: Apply it.\n   2. cluster.c: Start it.\n");
    expect(text).toContain("Then see what is said above about host.w.");
  });

  test("is fit to serve when nothing failed", () => {
    expect(renderReport([finding("host.a", "pass")], plain)).toContain(
      "Fit to serve, as far as was checked: 1 of 1 check passed.",
    );
  });

  test("keeps to the width of the terminal, but never breaks a word that could be a path", () => {
    const path = `/${"x".repeat(60)}`;
    const text = renderReport(
      [finding("host.a", "warn", `${"word ".repeat(40)}${path}`, `${"do ".repeat(40)}`)],
      { ...plain, columns: 60 },
    );
    expect(text).toContain(path);
    for (const line of text.split("\n"))
      if (!line.includes(path)) expect(line.length).toBeLessThanOrEqual(60);
  });

  test("has colours only where asked", () => {
    expect(renderReport([finding("host.a", "fail")], plain)).not.toContain("\x1b");
    const colored = renderReport([finding("host.a", "fail")], { ...plain, color: true });
    expect(colored).toContain("\x1b[31mFAIL\x1b[0m");
    expect(Bun.stripANSI(colored)).toBe(renderReport([finding("host.a", "fail")], plain));
  });
});

test("findings are counted by status", () => {
  expect(tally([finding("host.a", "pass"), finding("host.b", "pass"), finding("host.c", "fail")])).toEqual({
    pass: 2,
    warn: 0,
    fail: 1,
    skipped: 0,
  });
});

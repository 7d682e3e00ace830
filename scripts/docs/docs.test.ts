/** The pages, alerts and dashboard say what the code says. */
import { expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import * as v from "valibot";
import { parse } from "yaml";
import { generated, metricFacts, withPart } from "./generate.ts";

const root = join(import.meta.dir, "../..");
const read = (path: string) => readFileSync(join(root, path), "utf8");

/** What Prometheus itself adds to a scrape. */
const ofPrometheus = ["up"];
/** The sample names that each metric makes, with the labels that may be asked for. */
const samples = new Map<string, string[]>();
for (const { name, type, labels } of metricFacts())
  if (type === "histogram") {
    samples.set(`${name}_bucket`, [...labels, "le"]);
    samples.set(`${name}_sum`, labels).set(`${name}_count`, labels);
  } else samples.set(name, labels);
/** Labels that the scrape configuration adds. */
const ofScrape = ["job", "node"];

const alertsSchema = v.object({
  groups: v.array(
    v.object({
      name: v.string(),
      rules: v.array(
        v.object({
          alert: v.string(),
          expr: v.string(),
          for: v.optional(v.string()),
          labels: v.object({ severity: v.picklist(["critical", "warning", "info"]) }),
          annotations: v.object({ summary: v.string(), description: v.string() }),
        }),
      ),
    }),
  ),
});
const alerts = v.parse(alertsSchema, parse(read("manifests/alerts.yaml"))).groups.flatMap((g) => g.rules);

const dashboardSchema = v.object({
  panels: v.array(
    v.object({
      id: v.number(),
      title: v.string(),
      targets: v.optional(v.array(v.object({ expr: v.string() }))),
      gridPos: v.object({ x: v.number(), y: v.number(), w: v.number(), h: v.number() }),
    }),
  ),
});
const dashboard = v.parse(dashboardSchema, JSON.parse(read("manifests/grafana-dashboard.json")));

/** Selectors of an expression: metric name and the labels it is asked by. */
function selectors(expr: string): { name: string; labels: string[] }[] {
  return [...expr.matchAll(/\b((?:vk_sandbox|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?/g)].map((match) => ({
    name: match[1] ?? "",
    labels: [...(match[2] ?? "").matchAll(/([a-z_]+)\s*=?[=~!]/g)].map((m) => m[1] ?? ""),
  }));
}

function expectKnown(where: string, expr: string): void {
  const found = selectors(expr);
  expect(found.length, `${where} selects nothing`).toBeGreaterThan(0);
  for (const { name, labels } of found) {
    const known = samples.get(name) ?? (ofPrometheus.includes(name) ? [] : undefined);
    expect(known, `${where} asks for ${name}, which is not exported`).toBeDefined();
    for (const label of labels)
      expect([...(known ?? []), ...ofScrape], `${where}: ${name} has no label ${label}`).toContain(label);
  }
}

for (const [path, make] of Object.entries(generated))
  test(`${path} is as the code says (scripts/docs/write makes it so)`, () => {
    expect(withPart(read(path), make())).toBe(read(path));
  });

test("alerts ask for nothing that is not exported", () => {
  for (const { alert, expr } of alerts) expectKnown(alert, expr);
});

test("docs/metrics.md explains every alert, and none that is not there", () => {
  const explained = [...read("docs/metrics.md").matchAll(/^\| `(VkSandbox\w+)`/gm)].map((m) => m[1]);
  expect(explained.sort()).toEqual(alerts.map(({ alert }) => alert).sort());
});

test("the dashboard asks for nothing that is not exported", () => {
  for (const { title, targets } of dashboard.panels)
    for (const { expr } of targets ?? []) expectKnown(title, expr);
});

test("every metric is on the dashboard, so that none is exported for nobody", () => {
  const shown = dashboard.panels.flatMap((p) => p.targets ?? []).map(({ expr }) => expr);
  const missing = metricFacts().filter(({ name }) => !shown.some((expr) => expr.includes(name)));
  expect(missing.map(({ name }) => name)).toEqual([]);
});

test("panels have ids of their own and do not lie on each other", () => {
  const { panels } = dashboard;
  expect(new Set(panels.map((p) => p.id)).size).toBe(panels.length);
  const cells = panels.flatMap(({ gridPos: { x, y, w, h } }) =>
    Array.from({ length: w * h }, (_, at) => `${x + (at % w)},${y + Math.floor(at / w)}`),
  );
  expect(new Set(cells).size).toBe(cells.length);
});

test("a link in the documentation leads somewhere, heading included", () => {
  const pages = [
    ...readdirSync(join(root, "docs")).map((file) => `docs/${file}`),
    ...readdirSync(join(root, "docs/decisions")).map((file) => `docs/decisions/${file}`),
    ...["README.md", "SECURITY.md", "CONTRIBUTING.md"].filter((file) => existsSync(join(root, file))),
  ].filter((file) => file.endsWith(".md"));
  const broken: string[] = [];
  for (const page of pages)
    for (const [, target = ""] of read(page)
      .replace(/```[\s\S]*?```/g, "")
      .matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const [path = "", anchor] = target.split("#");
      const file = path === "" ? join(root, page) : resolve(root, dirname(page), path);
      if (!existsSync(file)) broken.push(`${page}: ${target}`);
      else if (anchor !== undefined && !anchors(readFileSync(file, "utf8")).includes(anchor))
        broken.push(`${page}: ${target} (no such heading)`);
    }
  expect(broken).toEqual([]);
});

/** Anchors of a page's headings, as code hosts make them. */
function anchors(page: string): string[] {
  return [...page.matchAll(/^#+ (.+)$/gm)].map(([, heading = ""]) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\- ]/gu, "")
      .replaceAll(" ", "-"),
  );
}

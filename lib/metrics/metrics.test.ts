import { expect, test } from "bun:test";
import { createMetrics, SERIES_MAX } from "./metrics.ts";

test("a counter starts at nought and counts by label", () => {
  const metrics = createMetrics();
  const plain = metrics.counter("a_total", "A.");
  const labelled = metrics.counter("b_total", "B.", ["verb", "code"]);
  expect(metrics.text()).toContain("a_total 0\n");
  plain.inc();
  labelled.inc(["get", "200"], 2);
  labelled.inc(["get", "200"]);
  expect(metrics.text()).toBe(
    '# HELP a_total A.\n# TYPE a_total counter\na_total 1\n# HELP b_total B.\n# TYPE b_total counter\nb_total{verb="get",code="200"} 3\n',
  );
});

test("a histogram's buckets are cumulative and end in +Inf", () => {
  const metrics = createMetrics();
  const seconds = metrics.histogram("h_seconds", "H.", [0.001, 0.01], ["kind"]);
  seconds.observe(0.0005, ["x"]);
  seconds.observe(0.001, ["x"]);
  seconds.observe(5, ["x"]);
  const text = metrics.text();
  expect(text).toContain('h_seconds_bucket{kind="x",le="0.001"} 2\n');
  expect(text).toContain('h_seconds_bucket{kind="x",le="0.01"} 2\n');
  expect(text).toContain('h_seconds_bucket{kind="x",le="+Inf"} 3\n');
  expect(text).toContain('h_seconds_count{kind="x"} 3\n');
  expect(text).toContain('h_seconds_sum{kind="x"} 5.0015\n');
});

test("label values cannot break out of their quotes", () => {
  const metrics = createMetrics();
  metrics.gauge("g", "G.", ["pool"], () => [{ labels: ['a"b\\c\nd'], value: 1 }]);
  expect(metrics.text()).toContain('g{pool="a\\"b\\\\c\\nd"} 1\n');
});

test("label combinations above the bound are counted as other", () => {
  const metrics = createMetrics();
  const counter = metrics.counter("c_total", "C.", ["x"]);
  for (let at = 0; at < SERIES_MAX + 50; at++) counter.inc([String(at)]);
  const lines = metrics
    .text()
    .split("\n")
    .filter((line) => line.startsWith("c_total{"));
  expect(lines).toHaveLength(SERIES_MAX + 1);
  expect(metrics.text()).toContain('c_total{x="other"} 50\n');
});

test("a gauge without samples is left out", () => {
  const metrics = createMetrics();
  metrics.gauge("g", "G.", [], () => []);
  expect(metrics.text()).toBe("");
});

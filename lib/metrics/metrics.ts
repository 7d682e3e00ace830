/**
 * Counters, gauges and histograms in the Prometheus text format (version 0.0.4). By hand, because prom-client
 * costs the daemon 14 MB of RSS for forty lines of text: docs/decisions/metrics.md.
 */

/** Label combinations kept for one metric; a further one is counted under the label value `other`. */
export const SERIES_MAX = 200;

export interface Counter {
  /** @param labels values in the order of the label names */
  inc(labels?: readonly string[], by?: number): void;
}

export interface Histogram {
  observe(value: number, labels?: readonly string[]): void;
}

/** One sample of a gauge that is read when scraped. */
export interface Sample {
  labels?: readonly string[];
  value: number;
}

export interface Metrics {
  counter(name: string, help: string, labelNames?: readonly string[]): Counter;
  /** @param read called at each scrape; a metric without a sample is left out */
  gauge(name: string, help: string, labelNames: readonly string[], read: () => readonly Sample[]): void;
  /** A counter kept elsewhere, read when scraped. */
  counted(name: string, help: string, read: () => number): void;
  /** @param bounds upper bounds, ascending, in the unit that the name ends in */
  histogram(name: string, help: string, bounds: readonly number[], labelNames?: readonly string[]): Histogram;
  /** The exposition, ending in a line break. */
  text(): string;
}

interface Family {
  name: string;
  help: string;
  type: "counter" | "gauge" | "histogram";
  lines: () => string;
}

/** Makes an empty registry. */
export function createMetrics(): Metrics {
  const families: Family[] = [];

  function series<T>(
    make: () => T,
    labelNames: readonly string[],
  ): {
    of: (labels: readonly string[]) => T;
    all: Map<string, T>;
  } {
    const all = new Map<string, T>();
    /** The same by their bare values: the text of the labels is made once, not for each observation. */
    const byValues = new Map<string, T>();
    return {
      all,
      of(labels) {
        const values = labels.length === 1 ? (labels[0] ?? "") : labels.join("\0");
        let found = byValues.get(values);
        if (found !== undefined) return found;
        let key = labelText(labelNames, labels);
        found = all.get(key);
        if (found !== undefined) return found;
        if (all.size >= SERIES_MAX) {
          key = labelText(
            labelNames,
            labelNames.map(() => "other"),
          );
          found = all.get(key);
          if (found !== undefined) return found;
        }
        found = make();
        all.set(key, found);
        if (byValues.size < SERIES_MAX) byValues.set(values, found);
        return found;
      },
    };
  }

  return {
    counter(name, help, labelNames = []) {
      const { of, all } = series(() => ({ value: 0 }), labelNames);
      if (labelNames.length === 0) of([]);
      families.push({
        name,
        help,
        type: "counter",
        lines: () => [...all].map(([labels, { value }]) => `${name}${labels} ${value}\n`).join(""),
      });
      return {
        inc(labels = [], by = 1) {
          of(labels).value += by;
        },
      };
    },
    counted(name, help, read) {
      families.push({ name, help, type: "counter", lines: () => `${name} ${read()}\n` });
    },
    gauge(name, help, labelNames, read) {
      families.push({
        name,
        help,
        type: "gauge",
        lines: () =>
          read()
            .map(({ labels = [], value }) => `${name}${labelText(labelNames, labels)} ${value}\n`)
            .join(""),
      });
    },
    histogram(name, help, bounds, labelNames = []) {
      const make = () => ({ counts: new Float64Array(bounds.length + 1), sum: 0 });
      const { of, all } = series(make, labelNames);
      if (labelNames.length === 0) of([]);
      families.push({
        name,
        help,
        type: "histogram",
        lines() {
          let out = "";
          for (const [labels, { counts, sum }] of all) {
            const inner = labels === "" ? "" : `${labels.slice(1, -1)},`;
            let total = 0;
            for (let at = 0; at <= bounds.length; at++) {
              total += counts[at] ?? 0;
              out += `${name}_bucket{${inner}le="${bounds[at] ?? "+Inf"}"} ${total}\n`;
            }
            out += `${name}_sum${labels} ${sum}\n${name}_count${labels} ${total}\n`;
          }
          return out;
        },
      });
      return {
        observe(value, labels = []) {
          const slot = of(labels);
          let at = 0;
          while (at < bounds.length && value > (bounds[at] ?? 0)) at++;
          slot.counts[at] = (slot.counts[at] ?? 0) + 1;
          slot.sum += value;
        },
      };
    },
    text() {
      let out = "";
      for (const { name, help, type, lines } of families) {
        const body = lines();
        if (body !== "") out += `# HELP ${name} ${escapeHelp(help)}\n# TYPE ${name} ${type}\n${body}`;
      }
      return out;
    },
  };
}

/** `{a="1",b="2"}`, or nothing without labels. Values are escaped as the format asks. */
export function labelText(names: readonly string[], values: readonly string[]): string {
  if (names.length === 0) return "";
  return `{${names.map((name, at) => `${name}="${escapeLabel(values[at] ?? "")}"`).join(",")}}`;
}

function escapeLabel(value: string): string {
  return value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll('"', '\\"');
}

function escapeHelp(text: string): string {
  return text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
}

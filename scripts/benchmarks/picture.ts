/** A soak as a picture: three curves over time, as SVG by hand. */

export interface Sample {
  minute: number;
  rssMb: number;
  descriptors: number;
  p50Ms: number;
  p99Ms: number;
}

const width = 900;
const panelHeight = 150;
const left = 70;
const top = 30;
const gap = 40;

/** Three panels: RSS, descriptors, and latency at p50 and p99. */
export function pictureOf(samples: readonly Sample[]): string {
  const minutes = Math.max(...samples.map((sample) => sample.minute), 0.001);
  const panels: { title: string; lines: { of: (sample: Sample) => number; colour: string }[] }[] = [
    { title: "RSS, MB", lines: [{ of: (s) => s.rssMb, colour: "#1f6feb" }] },
    { title: "descriptors", lines: [{ of: (s) => s.descriptors, colour: "#8250df" }] },
    {
      title: "POST to Running, ms: p50 and p99 of each round",
      lines: [
        { of: (s) => s.p99Ms, colour: "#d4a72c" },
        { of: (s) => s.p50Ms, colour: "#1a7f37" },
      ],
    },
  ];
  const height = top + panels.length * (panelHeight + gap);
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12">`,
    `<rect width="${width}" height="${height}" fill="white"/>`,
  ];
  for (const [at, { title, lines }] of panels.entries()) {
    const y = top + at * (panelHeight + gap);
    const highest = Math.max(...samples.flatMap((sample) => lines.map((line) => line.of(sample))), 1);
    parts.push(
      `<text x="${left}" y="${y - 8}">${title}</text>`,
      `<path d="M${left} ${y}V${y + panelHeight}H${width - 10}" fill="none" stroke="#888"/>`,
      `<text x="${left - 6}" y="${y + 10}" text-anchor="end">${highest.toFixed(0)}</text>`,
      `<text x="${left - 6}" y="${y + panelHeight}" text-anchor="end">0</text>`,
      `<text x="${width - 10}" y="${y + panelHeight + 14}" text-anchor="end">${minutes.toFixed(1)} min</text>`,
    );
    for (const { of, colour } of lines) {
      const points = samples.map((sample) => {
        const x = left + (sample.minute / minutes) * (width - left - 10);
        return `${x.toFixed(1)},${(y + panelHeight - (of(sample) / highest) * panelHeight).toFixed(1)}`;
      });
      parts.push(
        `<polyline points="${points.join(" ")}" fill="none" stroke="${colour}" stroke-width="1.5"/>`,
      );
    }
  }
  parts.push("</svg>");
  return `${parts.join("\n")}\n`;
}

import { expect } from "bun:test";
import * as fc from "fast-check";
import { damaged, fuzz, SECRET, withoutSecret } from "../fuzzing.ts";
import { flagList, formatConfigError, loadConfig } from "./index.ts";
import {
  ipVersion,
  type Parsed,
  parseAdvertise,
  parseBool,
  parseCount,
  parseDuration,
  parseIP,
  parseLabels,
  parseListen,
  parseNodeName,
  parseOrigin,
  parsePath,
  parseQuantity,
} from "./values.ts";

const parsers: Record<string, (text: string) => Parsed<unknown>> = {
  parseAdvertise,
  parseBool,
  parseCount,
  parseDuration,
  parseIP,
  parseLabels,
  parseListen,
  parseNodeName,
  parseOrigin,
  parsePath,
  parseQuantity,
};

/** Texts that are nearly what somebody would write. */
const likely = fc.constantFrom(
  "1m30s",
  "1.5h",
  "100ms",
  "8Ti",
  "4000",
  "500m",
  "1e3",
  "a=b,c=d/e",
  "example.com/role=x",
  ":10260",
  "[::1]:10260",
  "127.0.0.1:0",
  "fd00::5",
  "::ffff:1.2.3.4",
  "http://127.0.0.1:7777/",
  `https://root:${SECRET}@h:1`,
  "/var/lib/x",
  "true",
);
const texts = fc.oneof(likely, damaged(likely), fc.string(), fc.string({ unit: "binary", maxLength: 300 }));

for (const [name, parse] of Object.entries(parsers))
  fuzz(`${name} answers any text with a value or half a sentence`, texts, (text) => {
    const parsed = parse(text);
    if (parsed.ok) return;
    expect(parsed.reason).toMatch(/^[a-z].*\S$/s);
    // The one value that may hold a credential by its nature.
    if (parse === parseOrigin) withoutSecret(parsed.reason);
  });

const units: [name: string, ms: number][] = [
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1000],
  ["ms", 1],
];
fuzz(
  "a duration is the sum of its parts",
  fc.array(fc.tuple(fc.nat({ max: 10_000 }), fc.constantFrom(...units)), { minLength: 1, maxLength: 6 }),
  (parts) => {
    const text = parts.map(([amount, [unit]]) => `${amount}${unit}`).join("");
    const ms = parts.reduce((sum, [amount, [, each]]) => sum + amount * each, 0);
    expect(parseDuration(text)).toEqual({ ok: true, value: ms });
  },
);

const suffixes: Record<string, number> = {
  "": 1,
  k: 1e3,
  M: 1e6,
  Ki: 1024,
  Mi: 1024 ** 2,
  Gi: 1024 ** 3,
  Ti: 1024 ** 4,
};
fuzz(
  "a quantity keeps its text and has the value of digits and suffix",
  fc.tuple(fc.nat({ max: 100_000 }), fc.constantFrom(...Object.keys(suffixes))),
  ([digits, suffix]) => {
    const text = `${digits}${suffix}`;
    expect(parseQuantity(text)).toEqual({
      ok: true,
      value: { text, value: digits * (suffixes[suffix] ?? 0) },
    });
  },
);

const word = fc.stringMatching(/^[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?$/);
fuzz(
  "labels come back as they were written",
  fc.dictionary(word, fc.oneof(word, fc.constant("")), { maxKeys: 8, noNullPrototype: true }),
  (labels) => {
    const text = Object.entries(labels)
      .map(([key, value]) => `${key}=${value}`)
      .join(",");
    expect(parseLabels(text)).toEqual({ ok: true, value: labels });
  },
);

/** The runtime's URL parser, which judges IPv6, refuses some forms that end in dotted decimals. */
const ipV6 = fc.ipV6().filter((ip) => !ip.includes("."));
fuzz("every IP address is one, and where to listen and to be reached", fc.oneof(fc.ipV4(), ipV6), (ip) => {
  const six = ip.includes(":");
  expect(ipVersion(ip)).toBe(six ? 6 : 4);
  const hostPort = six ? `[${ip}]:7777` : `${ip}:7777`;
  expect(parseListen(hostPort)).toEqual({ ok: true, value: { host: ip, port: 7777 } });
  expect(parseAdvertise(hostPort)).toEqual({ ok: true, value: hostPort });
});

const flag = fc.constantFrom(...flagList.map(({ name }) => name), "nod-name", "", "help", "__proto__", "x=y");
const argument = fc.oneof(
  fc
    .tuple(fc.constantFrom("-", "--", "---"), flag, texts)
    .map(([dashes, name, value]) => `${dashes}${name}=${value}`),
  fc.tuple(fc.constantFrom("-", "--"), flag).map(([dashes, name]) => dashes + name),
  texts,
  fc.constantFrom("--", "-", "-="),
);
const environment = fc.dictionary(fc.constantFrom(...flagList.map(({ env }) => env)), texts, { maxKeys: 4 });

fuzz(
  "any command line and environment is a configuration or a list of what is wrong with it",
  fc.tuple(fc.array(argument, { maxLength: 8 }), environment),
  ([argv, env]) => {
    const loaded = loadConfig(argv, env);
    if (loaded.ok) {
      expect(loaded.config.node.name).toMatch(/^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/);
      expect(Number.isFinite(loaded.config.orphanScanIntervalMs)).toBe(true);
      return;
    }
    expect(loaded.errors.length).toBeGreaterThan(0);
    for (const error of loaded.errors) {
      const told = formatConfigError(error);
      expect(told.length).toBeLessThan(2_000);
      // The one value that may hold a credential by its nature.
      if (error.flag === "--sandboxd-url") withoutSecret(told);
    }
  },
);

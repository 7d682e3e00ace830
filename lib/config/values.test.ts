import { describe, expect, test } from "bun:test";
import {
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
  parseQuantity,
} from "./values.ts";

const value = <T>(parsed: Parsed<T>): T => {
  if (!parsed.ok) throw new Error(parsed.reason);
  return parsed.value;
};
const reason = (parsed: Parsed<unknown>): string => (parsed.ok ? "" : parsed.reason);

describe("durations are Go's", () => {
  const cases: [string, number][] = [
    ["0", 0],
    ["0s", 0],
    ["30s", 30_000],
    ["1m30s", 90_000],
    ["1.5h", 5_400_000],
    ["100ms", 100],
    ["1.1s", 1100],
    [".5s", 500],
    ["1.s", 1000],
    ["+5s", 5000],
    ["1h2m3s4ms", 3_723_004],
    ["1500us", 2],
    ["1µs", 1],
    ["1ns", 1],
  ];
  for (const [text, ms] of cases)
    test(`${text} is ${ms} ms`, () => expect(value(parseDuration(text))).toBe(ms));

  const refused: [string, RegExp][] = [
    ["", /not a duration/],
    ["30", /no unit.*30s/],
    ["-5s", /negative/],
    ["1d", /not a duration/],
    ["1 s", /not a duration/],
    ["s", /not a duration/],
    [".s", /not a duration/],
    ["1m30", /not a duration/],
    ["1e3s", /not a duration/],
    ["9999999h", /292 years/],
    ["NaNs", /not a duration/],
  ];
  for (const [text, why] of refused)
    test(`"${text}" is refused`, () => expect(reason(parseDuration(text))).toMatch(why));
});

describe("quantities are Kubernetes'", () => {
  const cases: [string, number][] = [
    ["8Ti", 8 * 2 ** 40],
    ["4000", 4000],
    ["500m", 0.5],
    ["1e3", 1000],
    ["1E3", 1000],
    ["1E", 1e18],
    ["1.5Gi", 1.5 * 2 ** 30],
    ["2k", 2000],
    ["0", 0],
    ["+1", 1],
    ["1.", 1],
  ];
  for (const [text, number] of cases)
    test(`${text} is ${number}`, () => expect(value(parseQuantity(text))).toEqual({ text, value: number }));

  const refused: [string, RegExp][] = [
    ["", /not a quantity/],
    ["8TiB", /suffix "TiB"/],
    ["8 Ti", /not a quantity/],
    ["8ti", /suffix "ti"/],
    ["8K", /suffix "K"/],
    ["-1", /negative/],
    ["1e", /suffix "e"/],
    ["8Ei", /8Ei/],
    ["1constructor", /suffix "constructor"/],
    ["0x10", /not a quantity/],
  ];
  for (const [text, why] of refused)
    test(`"${text}" is refused`, () => expect(reason(parseQuantity(text))).toMatch(why));

  test("Pods are counted in whole numbers", () => {
    expect(value(parseCount("2k")).value).toBe(2000);
    expect(reason(parseCount("1.5"))).toMatch(/whole number/);
  });
});

describe("labels obey Kubernetes' rules", () => {
  test("keys with and without prefix, values empty or not", () => {
    expect(value(parseLabels("sandbox.cocoonstack.io/runtime=sandboxd, zone=a,empty="))).toEqual({
      "sandbox.cocoonstack.io/runtime": "sandboxd",
      zone: "a",
      empty: "",
    });
  });
  test("empty text is no labels", () => expect(value(parseLabels(""))).toEqual({}));
  const refused: [string, RegExp][] = [
    ["zone", /"zone", which is not key=value/],
    ["zone=a,", /not key=value/],
    ["=a", /key ""/],
    ["UPPER.io/x=a", /prefix "UPPER.io"/],
    ["a/b/c=d", /key "a\/b\/c"/],
    ["-x=a", /key "-x"/],
    [`${"k".repeat(64)}=a`, /label key/],
    [`k=${"v".repeat(64)}`, /label value/],
    ["k=a b", /value "a b"/],
    ["k=a=b", /value "a=b"/],
    ["k=a,k=b", /twice/],
    ["__proto__=x", /label key/],
  ];
  for (const [text, why] of refused)
    test(`"${text.slice(0, 20)}" is refused`, () => expect(reason(parseLabels(text))).toMatch(why));
});

describe("addresses", () => {
  test("where to listen", () => {
    expect(value(parseListen(":10260"))).toEqual({ host: "", port: 10260 });
    expect(value(parseListen("127.0.0.1:0"))).toEqual({ host: "127.0.0.1", port: 0 });
    expect(value(parseListen("[::1]:10260"))).toEqual({ host: "::1", port: 10260 });
    expect(value(parseListen("localhost:10260"))).toEqual({ host: "localhost", port: 10260 });
  });
  const refused: [string, RegExp][] = [
    ["", /not host:port/],
    ["10260", /not host:port/],
    ["::1:10260", /not host:port/],
    [":http", /port "http"/],
    [":65536", /port "65536"/],
    [":", /port ""/],
    ["[10.0.0.1]:1", /host "10.0.0.1"/],
    ["10.0.0.300:1", /host "10.0.0.300"/],
    ["a_b:1", /host "a_b"/],
    ["http://x:1", /not host:port/],
  ];
  for (const [text, why] of refused)
    test(`"${text}" is refused`, () => expect(reason(parseListen(text))).toMatch(why));

  test("an advertised address needs both halves", () => {
    expect(value(parseAdvertise("10.0.0.5:7777"))).toBe("10.0.0.5:7777");
    expect(reason(parseAdvertise(":7777"))).toMatch(/lacks the host/);
    expect(reason(parseAdvertise("10.0.0.5:0"))).toMatch(/lacks the port/);
  });
  test("an IP is one that others can reach", () => {
    expect(value(parseIP("10.0.0.5"))).toBe("10.0.0.5");
    expect(value(parseIP("fd00::5"))).toBe("fd00::5");
    for (const text of ["", "10.0.0", "10.0.0.256", "010.0.0.1", "[::1]", "fe80::1%eth0", "host", ":::"])
      expect(reason(parseIP(text))).toMatch(/not an IP/);
    expect(reason(parseIP("0.0.0.0"))).toMatch(/unspecified/);
    expect(reason(parseIP("::"))).toMatch(/unspecified/);
  });
  test("an origin loses its trailing slash and never carries credentials", () => {
    expect(value(parseOrigin("http://127.0.0.1:7777/"))).toBe("http://127.0.0.1:7777");
    expect(value(parseOrigin("https://[fd00::1]:7777"))).toBe("https://[fd00::1]:7777");
    expect(reason(parseOrigin("127.0.0.1:7777"))).toMatch(/http:\/\//);
    expect(reason(parseOrigin("http://"))).toMatch(/not a URL/);
    expect(reason(parseOrigin("http://u:p@h:1"))).toMatch(/credentials/);
    expect(reason(parseOrigin("http://h:1/?a"))).toMatch(/query/);
  });
});

test("a node name is a DNS-1123 subdomain that fits into a label", () => {
  expect(value(parseNodeName("vk.node-1"))).toBe("vk.node-1");
  for (const text of ["Node", "a_b", "-a", "a-", "a..b", "a b"])
    expect(reason(parseNodeName(text))).toMatch(/DNS-1123/);
  expect(reason(parseNodeName(""))).toMatch(/empty/);
  expect(reason(parseNodeName("a".repeat(64)))).toMatch(/63/);
});

test("booleans are Go's", () => {
  for (const text of ["1", "t", "T", "true", "TRUE", "True"]) expect(value(parseBool(text))).toBe(true);
  for (const text of ["0", "f", "F", "false", "FALSE", "False"]) expect(value(parseBool(text))).toBe(false);
  for (const text of ["", "yes", "on", "tRUE"]) expect(reason(parseBool(text))).toMatch(/true or false/);
});

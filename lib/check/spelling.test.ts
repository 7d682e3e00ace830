import { describe, expect, test } from "bun:test";
import { cocoonKeys, sandboxKeys } from "./contract.ts";
import { meantBoolean, meantSeconds, meantValue, misspeltKey } from "./spelling.ts";

describe("a misspelt annotation", () => {
  test("every key of the contract is right", () => {
    for (const key of [...sandboxKeys, ...cocoonKeys]) expect(misspeltKey(key)).toBeUndefined();
  });
  const s = "sandbox.cocoonstack.io/";
  test.each([
    [`${s}templete`, `${s}template`],
    [`${s}Template`, `${s}template`],
    [`${s}ttl`, `${s}ttl-seconds`],
    [`${s}ttlSeconds`, `${s}ttl-seconds`],
    [`${s}ttl_seconds`, `${s}ttl-seconds`],
    [`${s}sizes`, `${s}size`],
    [`${s}nett`, `${s}net`],
    [`${s}claimid`, `${s}claim-id`],
    ["sandboxes.cocoonstack.io/template", `${s}template`],
    ["sandbox.cocoonstack.com/net", `${s}net`],
    ["sandbox.cocoonstack/size", `${s}size`],
    ["sandbox.cocoostack.io/size", "undefined"],
    ["cocoonstack.io/template", `${s}template`],
    ["vm.cocoonstack.io/managed", "cocoonset.cocoonstack.io/managed"],
    ["cocoonset.cocoonstack.io/ip", "vm.cocoonstack.io/ip"],
    ["vm.cocoonstack.io/nmae", "vm.cocoonstack.io/name"],
  ])("%s was meant to be %s", (key, meant) => {
    expect(String(misspeltKey(key)?.meant)).toBe(meant);
  });
  test.each([
    ["agents.x-k8s.io/pod-name"],
    ["example.com/template"],
    ["template"],
    ["cocoonstack.io/pool-of-ours"],
    ["sandbox.cocoonstack.io/claim"],
    ["sandbox.cocoonstack.io/node"],
    ["fluentd.cocoonstack.io/size"],
  ])("%s is nobody's misspelling", (key) => expect(misspeltKey(key)).toBeUndefined());
  test("a key of ours that is like none is told, without a guess", () => {
    expect(misspeltKey("sandbox.cocoonstack.io/flavour-of-the-month")).toEqual({});
  });
});

test.each([
  ["3600", 3600],
  [" 60 ", 60],
  ["+60", 60],
  ["60.0", 60],
  ["1h", 3600],
  ["1h30m", 5400],
  ["90 minutes", 5400],
  ["2d", 172_800],
  ["1_000", 1000],
  ["-1", undefined],
  ["1.5", undefined],
  ["1.5h", undefined],
  ["soon", undefined],
  ["", undefined],
  ["9999999999999", undefined],
])("%p as seconds is %p", (text, seconds) => {
  expect(meantSeconds(text)).toBe(seconds as number);
});

test("a boolean's words", () => {
  expect(["true", "True", "YES", "on", "1"].map(meantBoolean)).toEqual(Array(5).fill("true"));
  expect(["false", "No", "off", "0", ""].map(meantBoolean)).toEqual(Array(5).fill("false"));
  expect(meantBoolean("maybe")).toBeUndefined();
});

test("a value's choice", () => {
  const sizes = ["small", "medium", "large"];
  expect(["Small", "smal", " large ", "meduim"].map((word) => meantValue(word, sizes))).toEqual([
    "small",
    "small",
    "large",
    "medium",
  ]);
  expect(["xl", "m", "huge", ""].map((word) => meantValue(word, sizes))).toEqual([
    undefined,
    undefined,
    undefined,
    undefined,
  ]);
});

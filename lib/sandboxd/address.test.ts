import { expect, test } from "bun:test";
import { hostOf } from "./address.ts";

test("the host is found in every form of owner_addr that sandboxd gives", () => {
  expect(hostOf("10.0.0.5:7777")).toBe("10.0.0.5");
  expect(hostOf("[fd00::5]:7777")).toBe("fd00::5");
  expect(hostOf("[fd00::5]")).toBe("fd00::5");
  expect(hostOf("fd00::5")).toBe("fd00::5");
  expect(hostOf("https://node-1.example.com:8443/sandboxes?x=1")).toBe("node-1.example.com");
  expect(hostOf("http://[fd00::5]:7777")).toBe("fd00::5");
  expect(hostOf("HTTP://node-1")).toBe("node-1");
  expect(hostOf("node-1")).toBe("node-1");
  expect(hostOf(" 10.0.0.5 ")).toBe("10.0.0.5");
});

test("what is no address has no host", () => {
  for (const bad of [
    "",
    ":7777",
    "http://",
    "http://user@host:1",
    "a b",
    "a:b",
    "[::1",
    "::g",
    "host:1:2",
    "[]:1",
    "-a",
  ]) {
    expect(hostOf(bad), bad).toBe("");
  }
});

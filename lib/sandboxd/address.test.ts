import { expect, test } from "bun:test";
import { hostOf, originOf } from "./address.ts";

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

test("an IP comes back as a Pod's status may hold it", () => {
  expect(hostOf("[fe80::1%eth0]:7777")).toBe("fe80::1");
  expect(hostOf("fe80::1%eth0")).toBe("fe80::1");
  expect(hostOf("[::ffff:10.0.0.5]:7777")).toBe("10.0.0.5");
  expect(hostOf("[::FFFF:a00:5]:7777")).toBe("10.0.0.5");
  expect(hostOf("[FD00:0:0::5]:7777")).toBe("fd00::5");
  expect(hostOf("[::]:7777")).toBe("::");
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
    "010.0.0.1:80",
    "999.1.1.1:80",
    "127.1",
    "7777",
    "0x7f.1",
    "node.1:80",
    "[:::::]:80",
    "[1.2.3.4]:80",
    "1:2:3",
  ]) {
    expect(hostOf(bad), bad).toBe("");
  }
});

test("an address is kept with scheme, host and port, and without what follows", () => {
  for (const plain of ["10.0.0.5:7777", "[fd00::5]:7777", "http://[fd00::5]:7777", "https://node-1:8443", ""])
    expect(originOf(plain)).toBe(plain);
  expect(originOf(" https://node-1:8443/sandboxes?token=x#y ")).toBe("https://node-1:8443");
  expect(originOf("10.0.0.5:7777?token=x")).toBe("10.0.0.5:7777");
  expect(originOf("http:///x")).toBe("http://");
});

import { expect, test } from "bun:test";
import { proxyFor } from "./proxy.ts";

const proxy = "http://proxy:3128";

test("the variable of the server's scheme chooses the proxy, in either case", () => {
  expect(proxyFor("https://kube:6443", { HTTPS_PROXY: proxy })).toBe(proxy);
  expect(proxyFor("https://kube:6443", { https_proxy: proxy })).toBe(proxy);
  expect(proxyFor("https://kube:6443", { HTTP_PROXY: proxy })).toBe(false);
  expect(proxyFor("http://kube:8080", { http_proxy: "proxy:3128" })).toBe(proxy);
  expect(proxyFor("https://kube:6443", {})).toBe(false);
});

test("the loopback never goes through a proxy", () => {
  for (const host of ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"]) {
    expect(proxyFor(`https://${host}:6443`, { HTTPS_PROXY: proxy })).toBe(false);
  }
});

for (const [noProxy, host, direct] of [
  ["*", "kube.example", true],
  ["10.0.0.0/8", "10.96.0.1", true],
  ["10.0.0.0/8", "11.0.0.1", false],
  ["10.96.0.0/12", "10.111.255.255", true],
  ["10.96.0.0/12", "10.112.0.0", false],
  ["fd00::/8", "[fd12:3456::1]", true],
  ["fd00::/8", "[fe80::1]", false],
  ["10.0.0.0/8", "10.example", false],
  ["10.96.0.1", "10.96.0.1", true],
  ["example", "kube.example", true],
  [".example", "kube.example", true],
  [".example", "example", false],
  ["*.example", "kube.example", true],
  ["ample", "kube.example", false],
  ["kube.example:6443", "kube.example", true],
  ["kube.example:443", "kube.example", false],
  ["other, kube.example", "kube.example", true],
  ["KUBE.example", "kube.EXAMPLE", true],
  ["96.0.1", "10.96.0.1", false],
  ["", "kube.example", false],
] as const) {
  test(`NO_PROXY=${noProxy} ${direct ? "excludes" : "does not exclude"} ${host}`, () => {
    const chosen = proxyFor(`https://${host}:6443`, { HTTPS_PROXY: proxy, NO_PROXY: noProxy });
    expect(chosen).toBe(direct ? false : proxy);
  });
}

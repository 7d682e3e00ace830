import { expect, test } from "bun:test";
import { createPrivateKey, X509Certificate } from "node:crypto";
import { issue, selfSigned } from "./certificate.ts";

const nowMs = Date.parse("2026-03-01T12:00:00Z");

test("a self-signed certificate is one that another library reads, verifies and matches with its key", async () => {
  const names = ["vk-1", "10.0.0.5", "fd00::a:5", "::1", "127.0.0.1"];
  const { cert, key } = await selfSigned(names, nowMs);
  const read = new X509Certificate(cert);
  expect(read.subject).toBe("O=vk-sandbox\nCN=vk-1");
  expect(read.issuer).toBe(read.subject);
  expect(read.verify(read.publicKey)).toBe(true);
  expect(read.checkPrivateKey(createPrivateKey(key))).toBe(true);
  expect(read.publicKey.asymmetricKeyDetails?.namedCurve).toBe("prime256v1");
  expect(read.checkHost("vk-1")).toBe("vk-1");
  expect(read.checkHost("vk-2")).toBeUndefined();
  for (const ip of names.slice(1)) expect(read.checkIP(ip)).toBe(ip);
  expect(read.checkIP("10.0.0.6")).toBeUndefined();
  expect(read.ca).toBe(false);
  expect(new Date(read.validFrom).toISOString()).toBe("2026-03-01T11:00:00.000Z");
  expect(new Date(read.validTo).toISOString()).toBe("2036-02-27T12:00:00.000Z");
});

test("no two have the same serial number or key", async () => {
  const [a, b] = await Promise.all([selfSigned(["a"], nowMs), selfSigned(["a"], nowMs)]);
  expect(new X509Certificate(a.cert).serialNumber).not.toBe(new X509Certificate(b.cert).serialNumber);
  expect(a.key).not.toBe(b.key);
});

test("signatures and serials of every shape of leading bits are valid", async () => {
  // Half of all r, s and serials have their top bit set, one of 256 begins with a zero byte.
  for (let i = 0; i < 300; i++) {
    const read = new X509Certificate((await selfSigned(["a"], nowMs)).cert);
    expect(read.verify(read.publicKey)).toBe(true);
  }
});

test("a date after 2049 is written in the form it needs", async () => {
  const read = new X509Certificate((await selfSigned(["a"], Date.parse("2045-01-01T00:00:00Z"))).cert);
  expect(new Date(read.validTo).getUTCFullYear()).toBe(2054);
});

test("a certificate signed by a CA is its child", async () => {
  const common = { organizations: [], names: [], fromMs: nowMs, untilMs: nowMs + 1000 };
  const ca = await issue({ ...common, commonName: "ca", usage: "ca" });
  const leaf = await issue({ ...common, commonName: "leaf", usage: "client" }, ca);
  const [parent, child] = [new X509Certificate(ca.cert), new X509Certificate(leaf.cert)];
  expect(parent.ca).toBe(true);
  expect(child.checkIssued(parent)).toBe(true);
  expect(child.verify(parent.publicKey)).toBe(true);
});

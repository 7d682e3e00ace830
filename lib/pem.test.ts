import { expect, test } from "bun:test";
import { isWholePem } from "./pem.ts";

const block = (kind: string) => `-----BEGIN ${kind}-----\nAAAA\n-----END ${kind}-----\n`;

test("PEM text is whole when each block has its end, and at no other length", () => {
  const whole = `${block("CERTIFICATE")}# a comment\n${block("EC PRIVATE KEY")}`.trimEnd();
  expect(isWholePem(whole)).toBe(true);
  const first = block("CERTIFICATE").trimEnd().length;
  for (let cut = 0; cut < whole.length; cut++) {
    // Up to the beginning of the second block nobody can tell that one was to come.
    const looksWhole =
      cut >= first && cut < whole.indexOf("-----BEGIN EC") + "-----BEGIN EC PRIVATE KEY-----".length;
    expect([cut, isWholePem(whole.slice(0, cut))]).toEqual([cut, looksWhole]);
  }
  expect(isWholePem("-----BEGIN A-----\n-----END B-----\n")).toBe(false);
  expect(isWholePem("")).toBe(false);
});

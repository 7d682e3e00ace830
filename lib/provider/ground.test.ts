import { expect, test } from "bun:test";
import type { OwnerState } from "./types.ts";
import { groundOf, verdict } from "./verdict.ts";

const found = { kind: "found", uid: "u", deleting: false, expired: false, suspended: false } as const;

for (const [ground, state, authority = "u"] of [
  ["gone", { kind: "not_found", named: true }],
  ["not_named", { kind: "not_found", named: false }],
  ["unreadable", { kind: "failed", why: "a timeout that is gone" }],
  ["being_deleted", { ...found, deleting: true }],
  ["expired", { ...found, expired: true }],
  ["made_anew", { ...found, uid: "another" }],
  ["suspended", { ...found, suspended: true }],
  ["alive", found],
  ["no_authority", found, ""],
] as [string, OwnerState, string?][]) {
  test(`the ground of a verdict on ${JSON.stringify(state)}${authority === "" ? " without authority" : ""} is ${ground}`, () => {
    expect(groundOf(verdict(authority, "Sandbox agent-1", state).reason)).toBe(ground);
  });
}

test("a sentence of nobody's has the ground other", () => {
  expect(groundOf("it rained")).toBe("other");
});

import { expect, test } from "bun:test";
import { join } from "node:path";
import type { CauseKind } from "../provider/types.ts";
import { checks } from "./doctor.ts";

const page = await Bun.file(join(import.meta.dir, "../../docs/troubleshooting.md")).text();

test("docs/troubleshooting.md has a row for every check, and none for a check that is gone", () => {
  const rows = [...page.matchAll(/^\| `((?:host|state|sandboxd|cluster)\.[a-z/.-]+)` \|/gm)].map(
    (match) => match[1] ?? "",
  );
  expect(rows.sort()).toEqual(checks.map(({ id }) => id).sort());
});

test("every check that docs/troubleshooting.md points to exists", () => {
  const ids = new Set(checks.map(({ id }) => id));
  const named = [...page.matchAll(/`((?:host|state|sandboxd|cluster)\.[a-z/.-]+)`/g)].map(
    (match) => match[1] ?? "",
  );
  expect(named.filter((id) => !ids.has(id))).toEqual([]);
});

test("docs/troubleshooting.md explains every typed cause of a claim that failed", () => {
  const causes: Record<CauseKind, true> = {
    no_warm_capacity: true,
    max_claims: true,
    draining: true,
    unknown_template: true,
    bad_token: true,
    egress_unavailable: true,
    provisioning_failed: true,
    unreachable: true,
    timeout: true,
    bad_reply: true,
    bad_annotation: true,
    state_unwritable: true,
  };
  for (const cause of Object.keys(causes)) expect(page).toContain(`| \`${cause}\` |`);
});

test("the section that state.table sends to is there", () => {
  expect(page).toContain("### The claims table cannot be read");
});

import { expect, test } from "bun:test";
import { type ListAnswer, toldListing } from "./listing.ts";

test("an index that cannot be read is told once for each reason, and once when it is back", async () => {
  const told: string[] = [];
  let answer: ListAnswer = { ok: true, rows: [] };
  const list = toldListing(async () => answer, {
    warn: (_, { why }) => told.push(why),
    info: (_, { failures }) => told.push(`back after ${failures}`),
  });
  expect(await list()).toBe(answer);
  for (const why of ["refused", "refused", "sandboxes.0.id should be a sandbox id", "refused"]) {
    answer = { ok: false, why };
    expect(await list("ns/a")).toBe(answer);
  }
  answer = { ok: true, rows: [] };
  await list();
  await list();
  expect(told).toEqual(["refused", "sandboxes.0.id should be a sandbox id", "refused", "back after 4"]);
});

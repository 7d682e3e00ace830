import { expect, test } from "bun:test";
import { denyDumps } from "./dumps.ts";

// In a process of its own: the tests' own should stay debuggable.
test("the process becomes undumpable: the kernel itself says so", () => {
  const script = `
    import { denyDumps } from ${JSON.stringify(`${import.meta.dir}/dumps.ts`)};
    import { libc } from ${JSON.stringify(`${import.meta.dir}/libc.ts`)};
    const before = libc().prctl(3, 0, 0, 0, 0);
    const why = denyDumps();
    console.log(JSON.stringify({ before, why: why ?? "", after: libc().prctl(3, 0, 0, 0, 0) }));`;
  const { stdout, stderr } = Bun.spawnSync([process.execPath, "-e", script]);
  expect(stderr.toString()).toBe("");
  expect(JSON.parse(stdout.toString())).toEqual({ before: 1, why: "", after: 0 });
});

test("without a C library, or with a kernel that refuses, it says why", () => {
  const others = { flock: () => 0, madvise: () => 0 };
  expect(denyDumps({ unavailable: "no C library" })).toBe("no C library");
  expect(denyDumps({ ...others, prctl: () => -1 })).toMatch(/PR_SET_DUMPABLE/);
  // A filter that answers 0 to the setting and lets the question through.
  expect(denyDumps({ ...others, prctl: (operation) => (operation === 4 ? 0 : 1) })).toMatch(/refused/);
});

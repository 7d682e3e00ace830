import { expect, test } from "bun:test";
import { claimAxes, podView } from "./pod.ts";

const axesOf = (annotations: Record<string, string>) => {
  const names = Object.entries(annotations).map(([name, value]) => [`sandbox.cocoonstack.io/${name}`, value]);
  const view = podView({
    metadata: { namespace: "ns", name: "a", uid: "u", annotations: Object.fromEntries(names) },
  });
  if (view === undefined) throw new Error("no Pod");
  return claimAxes(view);
};

test("a fault repeats the annotation's value, one line of it and no more than a glance", () => {
  for (const name of ["runtime", "net", "size", "ttl-seconds"]) {
    const short = axesOf({ template: "t", [name]: "wrong" });
    expect(short).toMatchObject({ ok: false, cause: { message: expect.stringContaining('"wrong"') } });
    const hostile = axesOf({ template: "t", [name]: `\u001b[2Ja\nb\u202e${"x".repeat(250_000)}` });
    if (hostile.ok) throw new Error("it is no fault");
    expect(hostile.cause.message.length).toBeLessThan(400);
    expect(hostile.cause.message).not.toMatch(/[\p{Cc}\p{Cf}]/u);
    expect(hostile.cause.message).toContain("(250008 characters)");
  }
});

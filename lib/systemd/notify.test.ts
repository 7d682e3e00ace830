import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openSystemd } from "./notify.ts";

const dir = mkdtempSync(join(tmpdir(), "vk-notify-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** A receiver in another process, since Bun has no unix datagram sockets. */
async function receiver(path: string) {
  const python = Bun.which("python3");
  if (python === null) return undefined;
  const code = `
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
p = sys.argv[1]
s.bind("\\0" + p[1:] if p.startswith("@") else p)
s.settimeout(10)
# One write each: with PYTHONUNBUFFERED print makes two, and the reader would take the second for a line.
sys.stdout.write("up\\n"); sys.stdout.flush()
sys.stdout.write(s.recv(4096).decode() + "\\n"); sys.stdout.flush()`;
  const child = Bun.spawn([python, "-c", code, path], { stdout: "pipe" });
  const reader = child.stdout.getReader();
  const line = async () => new TextDecoder().decode((await reader.read()).value).trim();
  expect(await line()).toBe("up");
  return { line, child };
}

for (const path of [join(dir, "notify"), `@vk-sandbox-test-${process.pid}`]) {
  test.skipIf(Bun.which("python3") === null)(
    `a message reaches the socket ${path.startsWith("@") ? "in the abstract namespace" : "on disk"}`,
    async () => {
      const there = await receiver(path);
      const systemd = await openSystemd({ NOTIFY_SOCKET: path, WATCHDOG_USEC: "30000000" }, 1);
      systemd.notify("READY=1");
      expect(await there?.line()).toBe("READY=1");
      expect(systemd.watchdogMs).toBe(15_000);
      await there?.child.exited;
    },
  );
}

test("without systemd nothing is sent and no watchdog runs", async () => {
  const systemd = await openSystemd({ WATCHDOG_USEC: "1000000" }, 1);
  systemd.notify("READY=1");
  expect(systemd.watchdogMs).toBe(0);
});

test("a watchdog that is another process's is left alone", async () => {
  const systemd = await openSystemd(
    { NOTIFY_SOCKET: join(dir, "nobody"), WATCHDOG_USEC: "1000000", WATCHDOG_PID: "7" },
    8,
  );
  systemd.notify("READY=1");
  expect(systemd.watchdogMs).toBe(0);
});

/**
 * The kubelet port of the compiled daemon under callers who mean no good: many, slow, mute, malformed. Whoever has
 * business there is served meanwhile, Pods are too, and memory stays bounded.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { connect as connectTcp, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { connectionsMax, headTimeoutMs } from "../../lib/kubelet/server.ts";
import { World } from "./world.ts";

/** What an attack may leave on the process beside what it had: half of what the unit allows. */
const growthMbMax = 100;
let world: World;
let host = "";
let port = 0;

beforeAll(async () => {
  world = await World.create({ warm: 200, noController: true });
  const url = new URL(world.daemon.kubeletUrl);
  [host, port] = [url.hostname, Number(url.port)];
});

afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

const rssMb = () =>
  Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${world.daemon.pid}/status`, "utf8"))?.[1]) / 1024;

const healthz = () =>
  fetch(`${world.daemon.kubeletUrl}/healthz`, {
    keepalive: false,
    tls: { rejectUnauthorized: false },
    signal: AbortSignal.timeout(10_000),
  }).then((response) => response.text());

/** A connection, open or refused; it never throws later. */
function tcp(first = ""): Promise<Socket> {
  return new Promise((settle) => {
    const socket = connectTcp({ host, port }, () => {
      if (first !== "") socket.write(first);
      settle(socket);
    });
    socket.on("error", () => settle(socket));
  });
}

function tls(first: string): Promise<Socket> {
  return new Promise((settle) => {
    const socket = connectTls({ host, port, rejectUnauthorized: false, allowHalfOpen: true }, () => {
      socket.write(first);
      settle(socket);
    });
    socket.on("error", () => settle(socket));
  });
}

const closed = (socket: Socket) =>
  socket.closed || socket.destroyed
    ? undefined
    : new Promise<void>((done) => socket.once("close", () => done()));

/** A Pod is claimed for, runs and is gone: the daemon's own work, in the middle of it. */
async function serves(name: string): Promise<void> {
  await world.createPod(name);
  await world.running(name);
  await world.api.delete(world.podPath(name));
  await world.gone(world.podPath(name));
}

async function bounded(attack: () => Promise<void>): Promise<void> {
  const before = rssMb();
  await attack();
  expect(await healthz()).toBe("ok");
  expect(rssMb() - before).toBeLessThan(growthMbMax);
}

test("10,000 connections that send three bytes and stay: the newest are kept, others are served, Pods run", async () => {
  await bounded(async () => {
    const sockets: Socket[] = [];
    for (let batch = 0; batch < 20; batch++) {
      sockets.push(...(await Promise.all(Array.from({ length: 500 }, () => tcp("\x16\x03\x01")))));
      expect(await healthz()).toBe("ok");
    }
    await serves("among-ten-thousand");
    const open = () => sockets.filter((socket) => !socket.closed && !socket.destroyed).length;
    await world.eventually("all but the bound are let go", () => open() <= connectionsMax);
    for (const socket of sockets) socket.destroy();
  });
}, 120_000);

test("callers who send their request a byte at a time are let go, and nobody waits for them", async () => {
  await bounded(async () => {
    const sockets = await Promise.all(Array.from({ length: 200 }, () => tls("GET /healthz HTTP/1.1\r\nX: ")));
    const drip = setInterval(() => {
      for (const socket of sockets) if (!socket.destroyed) socket.write("y");
    }, 500);
    try {
      expect(await healthz()).toBe("ok");
      await serves("among-the-slow");
      await world.eventually(
        "every slow caller is let go, though he never paused",
        () => sockets.every((socket) => socket.closed || socket.destroyed),
        Boolean,
        { timeoutMs: headTimeoutMs * 4 },
      );
    } finally {
      clearInterval(drip);
      for (const socket of sockets) socket.destroy();
    }
  });
}, 60_000);

test("garbage in place of TLS, and inside of it, costs its connection and nothing else", async () => {
  await bounded(async () => {
    for (let round = 0; round < 4; round++) {
      const noise = () => Buffer.from(crypto.getRandomValues(new Uint8Array(500))).toString("latin1");
      const sockets = [
        ...(await Promise.all(Array.from({ length: 250 }, () => tcp(noise())))),
        ...(await Promise.all(Array.from({ length: 50 }, () => tls(`${noise()}\r\n\r\n`)))),
      ];
      expect(await healthz()).toBe("ok");
      for (const socket of sockets) socket.destroy();
    }
    await serves("after-garbage");
  });
}, 60_000);

test("heads and bodies without end are refused before they fill memory", async () => {
  await bounded(async () => {
    const sockets = await Promise.all([
      ...Array.from({ length: 50 }, () => tls(`GET / HTTP/1.1\r\nHost: a\r\nX: ${"y".repeat(1_000_000)}`)),
      ...Array.from({ length: 50 }, () =>
        tls(
          `POST /exec/a/b/c HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n${"z".repeat(1_000_000)}`,
        ),
      ),
    ]);
    await Promise.all(sockets.map(closed));
  });
}, 60_000);

test("callers who never close what was ended hold no more connections than there may be", async () => {
  const descriptors = () => readdirSync(`/proc/${world.daemon.pid}/fd`).length;
  const before = descriptors();
  await bounded(async () => {
    const sockets: Socket[] = [];
    for (let batch = 0; batch < 10; batch++)
      sockets.push(
        ...(await Promise.all(
          Array.from({ length: 100 }, () =>
            tls("GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
          ),
        )),
      );
    expect(descriptors()).toBeLessThan(before + connectionsMax + 50);
    await serves("among-the-clinging");
    await world.eventually("they are let go", () => descriptors() < before + 50);
    for (const socket of sockets) socket.destroy();
  });
}, 60_000);

test("a thousand invented tokens make a few dozen reviews, and nothing of them is told", async () => {
  world.forgetRequests();
  const startedAt = Date.now();
  const codes = new Map<number, number>();
  for (let batch = 0; batch < 20; batch++)
    await Promise.all(
      Array.from({ length: 50 }, async () => {
        const { status } = await fetch(`${world.daemon.kubeletUrl}/metrics`, {
          headers: { authorization: `Bearer ${crypto.randomUUID()}` },
          tls: { rejectUnauthorized: false },
        });
        codes.set(status, (codes.get(status) ?? 0) + 1);
      }),
    );
  const seconds = (Date.now() - startedAt) / 1000;
  expect([...codes.keys()].sort()).toEqual([401, 429]);
  await serves("among-strangers");
  const reviews = world.requests().filter(({ requestURI }) => requestURI.includes("tokenreviews")).length;
  expect(reviews).toBeGreaterThan(0);
  expect(reviews).toBeLessThanOrEqual(20 + 10 * (seconds + 1));
}, 60_000);

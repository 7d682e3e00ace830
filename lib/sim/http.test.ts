import { expect, test } from "bun:test";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { serverCert, serverKey } from "../kube/test-pki.ts";
import { startSimServer } from "./http.ts";

test("a server that goes down kills a connection whose handshake was under way, and is down then", async () => {
  const server = await startSimServer({
    hostname: "127.0.0.1",
    tls: { cert: serverCert, key: serverKey },
    bodyBytesMax: 1024,
    tooLarge: { status: 413 },
    handle: async () => ({ status: 200, body: "here" }),
  });
  // In between sits someone who passes on half of the client's first words, and the rest when told.
  const passOn = Promise.withResolvers<void>();
  const half = Promise.withResolvers<void>();
  const sockets: Socket[] = [];
  const between = createServer((client) => {
    const upstream = connect(server.port, "127.0.0.1");
    sockets.push(client, upstream);
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      one.on("error", () => {});
      one.on("close", () => other.destroy());
    }
    upstream.on("data", (chunk) => client.write(chunk));
    client.once("data", (hello) => {
      upstream.write(hello.subarray(0, 20), () => half.resolve());
      void passOn.promise.then(() => {
        upstream.write(hello.subarray(20));
        client.on("data", (chunk) => upstream.write(chunk));
      });
    });
  });
  await new Promise<void>((resolve) => between.listen(0, "127.0.0.1", resolve));
  const { port } = between.address() as AddressInfo;

  const answer = fetch(`https://127.0.0.1:${port}`, { tls: { rejectUnauthorized: false } }).then(
    (response) => response.text(),
    () => "a broken connection",
  );
  await half.promise;
  // Connections are accepted in their order: once this one is answered the half one is the server's.
  await fetch(server.url, { tls: { rejectUnauthorized: false } }).then((response) => response.text());
  const down = server.down();
  passOn.resolve();
  await down;
  expect(await answer).toBe("a broken connection");

  for (const socket of sockets) socket.destroy();
  await new Promise((resolve) => between.close(resolve));
  await server.stop();
}, 20_000);

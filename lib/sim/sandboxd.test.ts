import { afterEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Sandboxd, type SandboxdOptions, startSandboxd } from "./sandboxd.ts";

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

const template = "rt:24.04";

async function start(options: SandboxdOptions = {}): Promise<Sandboxd> {
  const sandboxd = await startSandboxd({
    token: "root",
    pools: [{ template, warm: 3 }],
    reapIntervalMs: 0,
    ...options,
  });
  cleanups.push(() => sandboxd.stop());
  return sandboxd;
}

interface Answer {
  status: number;
  body: Record<string, unknown>;
}

async function call(
  { url }: { url: string },
  method: string,
  path: string,
  body?: unknown,
  token = "root",
): Promise<Answer> {
  const response = await fetch(url + path, {
    method,
    headers: token === "" ? {} : { authorization: `Bearer ${token}` },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return {
    status: response.status,
    body: text.startsWith("{") ? (JSON.parse(text) as Record<string, unknown>) : { text },
  };
}

const claim = (sandboxd: { url: string }, more: object = {}, token?: string) =>
  call(sandboxd, "POST", "/v1/claim", { template, ...more }, token);

async function ids(sandboxd: { url: string }, query = ""): Promise<string[]> {
  const { body } = await call(sandboxd, "GET", `/v1/sandboxes${query}`);
  return (body.sandboxes as { id: string }[]).map((row) => row.id);
}

describe("claims", () => {
  test("a claim takes a warm VM, is stored before it is answered, and has an address of its own", async () => {
    const sandboxd = await start();
    const first = await claim(sandboxd, { claim_ref: "default/a" });
    const second = await claim(sandboxd, { claim_ref: "default/b" });
    expect(first.status).toBe(200);
    expect(first.body.id).toMatch(/^sb_[0-9a-f]{16}$/);
    expect(first.body.owner_addr).toBe("10.88.0.1:8080");
    expect(second.body.owner_addr).toBe("10.88.0.2:8080");
    expect(await ids(sandboxd, "?claim_ref=default/b")).toEqual([String(second.body.id)]);
    expect(sandboxd.control.pools()[0]?.warm).toBe(1);
  });

  test("addresses stay distinct past the first 254 and may be put on one host instead", async () => {
    const sandboxd = await start({ pools: [{ template, warm: 300 }] });
    for (let i = 0; i < 300; i++) await claim(sandboxd);
    const addresses = sandboxd.control.index().map((vm) => vm.address);
    expect(new Set(addresses).size).toBe(300);
    expect(addresses[254]).toBe("10.88.1.1:8080");
    const fixed = await start({ vmHost: "fd00::5", vmPort: 7 });
    expect((await claim(fixed)).body.owner_addr).toBe("[fd00::5]:7");
  });

  test.each([
    ["an unknown net", { net: "lan" }, 400],
    ["an unknown size", { size: "huge" }, 400],
    ["an unknown template", { template: "nope" }, 400],
    ["no template", { template: "" }, 400],
    ["a field of the wrong type", { ttl_seconds: "1h" }, 400],
    ["a key of a known template without warm capacity", { size: "large" }, 429],
  ])("%s is refused", async (_, body, status) => {
    const sandboxd = await start();
    const answer = await claim(sandboxd, body);
    expect(answer.status).toBe(status);
    expect(answer.body.error).toBeString();
    expect(sandboxd.control.history()).toEqual([]);
  });

  test("a body that is no JSON object and one beyond 1 MiB are 400", async () => {
    const sandboxd = await start();
    for (const body of ["{", "[]", `{"template":"${"x".repeat(1 << 20)}"}`]) {
      const response = await fetch(`${sandboxd.url}/v1/claim`, {
        method: "POST",
        headers: { authorization: "Bearer root" },
        body,
      });
      expect([response.status, await response.json()]).toEqual([400, { error: "invalid request body" }]);
    }
  });

  test("an egress claim on a node without an attachment is 409", async () => {
    const sandboxd = await start({ egress: false });
    expect((await claim(sandboxd, { net: "egress" })).status).toBe(409);
  });

  test("max_claims and draining are 429, and end with them", async () => {
    const sandboxd = await start({ maxClaims: 1 });
    expect((await claim(sandboxd)).status).toBe(200);
    expect((await claim(sandboxd)).body).toEqual({ error: "quota exceeded: 1 live claims, cap 1" });
    sandboxd.control.set({ maxClaims: 0, draining: true });
    expect((await claim(sandboxd)).body).toEqual({ error: "quota exceeded: node draining" });
    expect((await call(sandboxd, "GET", "/v1/info")).body.draining).toBe(true);
    sandboxd.control.set({ draining: false });
    expect((await claim(sandboxd)).status).toBe(200);
  });

  test("without a warm VM a claim is redirected to the peers unless it asks not to be", async () => {
    const sandboxd = await start({ pools: [{ template, warm: 0 }], peers: ["10.0.0.6:7777"] });
    expect((await claim(sandboxd)).body).toEqual({ redirect: ["10.0.0.6:7777"] });
    expect((await claim(sandboxd, { no_redirect: true })).status).toBe(429);
  });

  test("without a warm VM a node that boots cold grants one", async () => {
    const sandboxd = await start({ pools: [{ template, warm: 0 }], cold: "boot", coldMs: 1 });
    expect((await claim(sandboxd)).status).toBe(200);
  });

  test("a refill fills pools up to their targets", async () => {
    const sandboxd = await start({ pools: [{ template, warm: 0, target: 2 }] });
    expect((await claim(sandboxd)).status).toBe(429);
    sandboxd.control.refill();
    expect((await claim(sandboxd)).status).toBe(200);
    expect(sandboxd.control.pools()).toEqual([
      { key: { template, net: "none", size: "small" }, warm: 1, target: 2 },
    ]);
  });
});

describe("leases", () => {
  const day = 86_400_000;

  test.each([
    ["0 grants five minutes", 0, 300_000],
    ["more than a day is clamped to a day", 1_000_000, day],
    ["anything else is granted as asked", 60, 60_000],
  ])("a ttl of %s", async (_, ttlSeconds, grantedMs) => {
    let nowMs = Date.UTC(2026, 0, 1);
    const sandboxd = await start({ now: () => nowMs });
    const { body } = await claim(sandboxd, { ttl_seconds: ttlSeconds });
    expect(Date.parse(String(body.deadline))).toBe(nowMs + grantedMs);
    nowMs += grantedMs;
    expect(await ids(sandboxd)).toEqual([String(body.id)]);
    nowMs += 1;
    expect(await ids(sandboxd)).toEqual([]);
    expect(sandboxd.control.history()[0]?.endedBy).toBe("reaper");
  });

  test("a renewal moves the deadline from now and may grant less", async () => {
    let nowMs = Date.UTC(2026, 0, 1);
    const sandboxd = await start({ now: () => nowMs });
    const { body } = await claim(sandboxd, { ttl_seconds: 60 });
    nowMs += 30_000;
    const renewed = await call(
      sandboxd,
      "POST",
      `/v1/sandboxes/${body.id}/renew`,
      { ttl_seconds: 10 ** 6 },
      String(body.token),
    );
    expect(renewed.status).toBe(200);
    expect(Date.parse(String(renewed.body.deadline))).toBe(nowMs + day);
  });

  test("an expired hibernated VM is archived with the retention's deadline, and a wake grants its lease again", async () => {
    let nowMs = Date.UTC(2026, 0, 1);
    const sandboxd = await start({ now: () => nowMs, archiveKeepMs: 0 });
    const { body } = await claim(sandboxd, { ttl_seconds: 60 });
    const path = `/v1/sandboxes/${body.id}`;
    expect((await call(sandboxd, "POST", `${path}/hibernate`)).status).toBe(204);
    expect((await call(sandboxd, "POST", `${path}/hibernate`)).status).toBe(204);
    nowMs += 61_000;
    const archived = await call(sandboxd, "GET", path);
    expect(archived.body).toMatchObject({
      archived: true,
      hibernated: true,
      deadline: "0001-01-01T00:00:00Z",
    });
    expect((await call(sandboxd, "POST", `${path}/renew`, { ttl_seconds: 60 })).status).toBe(409);
    expect((await call(sandboxd, "POST", `${path}/wake`)).status).toBe(204);
    const woken = await call(sandboxd, "GET", path);
    expect(woken.body.archived).toBeUndefined();
    expect(Date.parse(String(woken.body.deadline))).toBe(nowMs + 60_000);
  });

  test("an archived VM whose retention ends is gone", async () => {
    let nowMs = Date.UTC(2026, 0, 1);
    const sandboxd = await start({ now: () => nowMs, archiveKeepMs: 5000 });
    const { body } = await claim(sandboxd);
    sandboxd.control.archive(String(body.id));
    nowMs += 5001;
    expect(await ids(sandboxd)).toEqual([]);
    expect(sandboxd.control.history()[0]?.endedBy).toBe("retention");
  });

  test("neither an egress VM nor one with volumes hibernates", async () => {
    const sandboxd = await start({
      pools: [
        { template, net: "egress", warm: 1 },
        { template, warm: 1 },
      ],
    });
    for (const more of [{ net: "egress" }, { volumes: [{ name: "data" }] }]) {
      const { body } = await claim(sandboxd, more);
      expect((await call(sandboxd, "POST", `/v1/sandboxes/${body.id}/hibernate`)).status).toBe(409);
    }
  });
});

describe("tokens", () => {
  test("a VM is released by its own token or root's, never by another's, and the history says by which", async () => {
    const sandboxd = await start({ tenants: { acme: "acme" } });
    const a = (await claim(sandboxd)).body;
    const b = (await claim(sandboxd)).body;
    const release = (id: unknown, token: string) =>
      call(sandboxd, "POST", `/v1/sandboxes/${id}/release`, undefined, token);
    expect((await release(a.id, "")).status).toBe(401);
    expect((await release(a.id, String(b.token))).status).toBe(404);
    expect((await release(a.id, "acme")).status).toBe(404);
    expect((await release(a.id, String(a.token))).status).toBe(204);
    expect((await release(a.id, String(a.token))).status).toBe(404);
    expect((await release(b.id, "root")).status).toBe(204);
    expect(sandboxd.control.history().map((vm) => [vm.id, vm.endedBy])).toEqual([
      [String(a.id), "sandbox"],
      [String(b.id), "root"],
    ]);
  });

  test("a tenant sees its own claims only and no operator endpoint; an unknown token sees nothing", async () => {
    const sandboxd = await start({ tenants: { "t-acme": "acme" } });
    await claim(sandboxd);
    const own = (await claim(sandboxd, {}, "t-acme")).body;
    const listed = await call(sandboxd, "GET", "/v1/sandboxes", undefined, "t-acme");
    expect((listed.body.sandboxes as { id: string }[]).map((row) => row.id)).toEqual([String(own.id)]);
    for (const path of ["/v1/info", "/metrics", `/v1/sandboxes/${own.id}`, `/v1/sandboxes/${own.id}/stats`]) {
      expect((await call(sandboxd, "GET", path, undefined, "t-acme")).status).toBe(403);
      expect((await call(sandboxd, "GET", path, undefined, "stranger")).status).toBe(401);
      expect((await call(sandboxd, "GET", path, undefined, "")).status).toBe(401);
    }
    expect((await claim(sandboxd, {}, "stranger")).status).toBe(401);
  });

  test("a root token that was replaced is refused, and the new one is root's", async () => {
    const sandboxd = await start();
    sandboxd.control.setToken("next");
    expect((await claim(sandboxd)).status).toBe(401);
    expect((await claim(sandboxd, {}, "next")).status).toBe(200);
    expect((await call(sandboxd, "GET", "/v1/info", undefined, "next")).status).toBe(200);
  });

  test("the token of a VM is in root's read of it and in no listing", async () => {
    const sandboxd = await start();
    const { body } = await claim(sandboxd);
    expect((await call(sandboxd, "GET", `/v1/sandboxes/${body.id}`)).body.token).toBe(body.token);
    const listing = await call(sandboxd, "GET", "/v1/sandboxes");
    expect(JSON.stringify(listing.body)).not.toContain(String(body.token));
    expect(JSON.stringify(sandboxd.control.history())).not.toContain(String(body.token));
    const open = await start({ token: undefined });
    const { body: vm } = await claim(open, {}, "");
    expect((await call(open, "GET", `/v1/sandboxes/${vm.id}`, undefined, "")).body.token).toBeUndefined();
  });
});

test("info, stats, metrics and healthz tell what is there", async () => {
  const sandboxd = await start({ atCapacity: "no room", peers: ["p:1"] });
  const { body } = await claim(sandboxd, { claim_ref: "ns/p" });
  await call(sandboxd, "POST", `/v1/sandboxes/${body.id}/hibernate`);
  expect((await call(sandboxd, "GET", "/v1/info")).body).toEqual({
    pools: [
      { key: { template, net: "none", size: "small" }, warm: 2, refilling: 0, target: 3, golden: true },
    ],
    claimed: 1,
    hibernated: 1,
    archived: 0,
    at_capacity: true,
    at_capacity_reason: "no room",
    peers: ["p:1"],
  });
  expect((await call(sandboxd, "GET", `/v1/sandboxes/${body.id}/stats`)).body).toMatchObject({
    id: body.id,
    cpu_count: 1,
    mem_total_bytes: 536_870_912,
    mem_used_bytes: 0,
    mem_used_measured: false,
    hibernated: true,
  });
  const metrics = await call(sandboxd, "GET", "/metrics");
  expect(metrics.body.text).toContain(`sandboxd_pool_warm{template="${template}",net="none",size="small"} 2`);
  expect((await call(sandboxd, "GET", "/healthz", undefined, "")).body.text).toBe("ok");
});

test("an operator drains the node and sets its pools", async () => {
  const sandboxd = await start();
  expect((await call(sandboxd, "POST", "/v1/drain")).body.draining).toBe(true);
  expect((await claim(sandboxd)).status).toBe(429);
  expect((await call(sandboxd, "DELETE", "/v1/drain")).body.draining).toBeUndefined();
  expect((await claim(sandboxd)).status).toBe(200);
  const pools = (body: unknown) => call(sandboxd, "PUT", "/v1/pools", body);
  expect((await pools({ pools: [{ template: "other", size: "huge", warm: 1 }] })).status).toBe(400);
  expect((await pools({})).status).toBe(400);
  expect((await pools({ pools: [{ template: "other", warm: 1 }] })).status).toBe(200);
  expect((await claim(sandboxd, { template: "other" })).status).toBe(200);
  expect((await claim(sandboxd)).body.error).toBe(`unknown template "${template}"`);
});

describe("faults", () => {
  /** What a raw socket gets until the connection ends. */
  function raw(url: string, request: string): Promise<{ received: string; how: "reset" | "closed" }> {
    const { port } = new URL(url);
    return new Promise((resolve) => {
      let received = "";
      let how: "reset" | "closed" = "closed";
      const socket = connect(Number(port), "127.0.0.1", () => socket.write(request));
      socket.on("data", (chunk) => {
        received += chunk;
      });
      socket.on("error", () => {
        how = "reset";
      });
      socket.on("close", () => resolve({ received, how }));
    });
  }
  const claimBody = JSON.stringify({ template });
  const claimRequest = `POST /v1/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\nContent-Length: ${claimBody.length}\r\n\r\n${claimBody}`;

  test("a reset before granting grants nothing; one after granting leaves a live VM and no answer", async () => {
    const sandboxd = await start();
    sandboxd.control.fault({ match: "^POST /v1/claim", effect: "reset" });
    expect(await raw(sandboxd.url, claimRequest)).toEqual({ received: "", how: "reset" });
    expect(sandboxd.control.index()).toEqual([]);
    sandboxd.control.fault({ match: "^POST /v1/claim", effect: "reset", after: true });
    expect(await raw(sandboxd.url, claimRequest)).toEqual({ received: "", how: "reset" });
    expect(sandboxd.control.index()).toHaveLength(1);
    expect((await claim(sandboxd)).status).toBe(200);
  });

  test("a hang accepts and never answers; with `after` the VM is granted", async () => {
    const sandboxd = await start();
    sandboxd.control.fault({ match: "claim", effect: "hang", after: true });
    const gaveUp = new AbortController();
    const pending = fetch(`${sandboxd.url}/v1/claim`, {
      method: "POST",
      headers: { authorization: "Bearer root" },
      body: claimBody,
      signal: gaveUp.signal,
    });
    while (sandboxd.control.index().length === 0) await Bun.sleep(1);
    gaveUp.abort();
    await expect(pending).rejects.toThrow();
    expect((await claim(sandboxd)).status).toBe(200);
  });

  test("a truncated body promises more than it sends; a cut one is well-framed and broken", async () => {
    const sandboxd = await start();
    await claim(sandboxd);
    sandboxd.control.fault({ match: "GET /v1/sandboxes", effect: "truncate", bytes: 10 });
    const request = "GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\n\r\n";
    const { received } = await raw(sandboxd.url, request);
    const [head = "", body = ""] = received.split("\r\n\r\n");
    expect(body).toBe('{"sandboxe');
    expect(Number(/content-length: (\d+)/i.exec(head)?.[1])).toBeGreaterThan(10);
    sandboxd.control.fault({ match: "GET /v1/sandboxes", effect: "cut", bytes: 10 });
    const cut = await fetch(`${sandboxd.url}/v1/sandboxes`, { headers: { authorization: "Bearer root" } });
    expect([cut.status, await cut.text()]).toEqual([200, '{"sandboxe']);
  });

  test("status, garbage and empty answers; count and skip choose the requests", async () => {
    const sandboxd = await start();
    const { control } = sandboxd;
    control.fault({
      match: "info",
      effect: "status",
      status: 503,
      body: { error: "later" },
      skip: 1,
      count: 2,
    });
    const statuses = [];
    for (let i = 0; i < 4; i++) statuses.push((await call(sandboxd, "GET", "/v1/info")).status);
    expect(statuses).toEqual([200, 503, 503, 200]);
    control.clearFaults();
    control.fault({ match: "info", effect: "garbage" });
    control.fault({ match: "info", effect: "empty" });
    expect((await call(sandboxd, "GET", "/v1/info")).body.text).toStartWith("<html>");
    expect((await call(sandboxd, "GET", "/v1/info")).body.text).toBe("");
    control.fault({ match: "info", effect: "status", count: 0 });
    expect(control.faults().map((fault) => fault.match)).toContain("info");
    control.clearFaults();
    expect(control.faults()).toEqual([]);
  });

  test("a delayed claim whose client has left is granted all the same", async () => {
    const sandboxd = await start();
    sandboxd.control.fault({ match: "claim", effect: "delay", delayMs: 30 });
    const gaveUp = new AbortController();
    const pending = fetch(`${sandboxd.url}/v1/claim`, {
      method: "POST",
      headers: { authorization: "Bearer root" },
      body: claimBody,
      signal: gaveUp.signal,
    });
    while (sandboxd.control.faults()[0]?.hits !== 1) await Bun.sleep(1);
    gaveUp.abort();
    await expect(pending).rejects.toThrow();
    expect(sandboxd.control.index()).toEqual([]);
    while (sandboxd.control.index().length === 0) await Bun.sleep(1);
    expect(sandboxd.control.index()).toHaveLength(1);
  });

  test("a stale listing shows the index as it was when the fault was set", async () => {
    const sandboxd = await start();
    const old = (await claim(sandboxd)).body;
    sandboxd.control.fault({ match: "^GET /v1/sandboxes", effect: "stale" });
    await call(sandboxd, "POST", `/v1/sandboxes/${old.id}/release`);
    const fresh = (await claim(sandboxd)).body;
    expect(await ids(sandboxd)).toEqual([String(old.id)]);
    expect(await ids(sandboxd)).toEqual([String(fresh.id)]);
  });

  test("a fault that is none is refused", async () => {
    const sandboxd = await start();
    expect(() => sandboxd.control.fault({ match: "(", effect: "hang" })).toThrow();
    expect(() => sandboxd.control.fault(JSON.parse('{"effect":"hang"}'))).toThrow("match");
    expect(() => sandboxd.control.fault(JSON.parse('{"match":"x","effect":"hung"}'))).toThrow("hang, reset");
  });
});

describe("restarts", () => {
  test("in a restart requests in flight die, a cold claim among them, and claims live", async () => {
    const sandboxd = await start({ cold: "boot", coldMs: 20 });
    const kept = (await claim(sandboxd)).body;
    const booting = claim(sandboxd, { size: "large" }).then(
      () => "answered",
      () => "died",
    );
    while (sandboxd.control.counts()["POST /v1/claim"] !== 2) await Bun.sleep(1);
    await sandboxd.control.restart({ downMs: 40 });
    expect(await booting).toBe("died");
    expect(await ids(sandboxd)).toEqual([String(kept.id)]);
    expect(sandboxd.control.pools()[0]?.warm).toBe(3);
  });

  test("down refuses connections, and up serves on the same port again", async () => {
    const sandboxd = await start();
    await sandboxd.control.down();
    await expect(claim(sandboxd)).rejects.toThrow();
    await sandboxd.control.up();
    expect((await claim(sandboxd)).status).toBe(200);
  });

  test("with a state file claims outlive the process, tokens, endings and addresses included", async () => {
    const directory = mkdtempSync(join(tmpdir(), "sandboxd-"));
    cleanups.push(() => rmSync(directory, { recursive: true }));
    const statePath = join(directory, "claims");
    const first = await startSandboxd({ token: "root", pools: [{ template, warm: 9 }], statePath });
    const gone = (await claim(first)).body;
    const kept = (await claim(first)).body;
    await call(first, "POST", `/v1/sandboxes/${gone.id}/release`);
    await first.stop();
    expect(statSync(statePath).mode & 0o777).toBe(0o600);

    const second = await start({ statePath, pools: [{ template, warm: 9 }] });
    expect((await call(second, "GET", `/v1/sandboxes/${kept.id}`)).body.token).toBe(kept.token);
    expect(second.control.history().map((vm) => vm.endedBy)).toEqual(["root", undefined]);
    const next = (await claim(second)).body;
    expect(next.owner_addr).toBe("10.88.0.3:8080");
  });

  test("a torn last line of the state file is dropped, a broken one before it is fatal", async () => {
    const directory = mkdtempSync(join(tmpdir(), "sandboxd-"));
    cleanups.push(() => rmSync(directory, { recursive: true }));
    const statePath = join(directory, "claims");
    writeFileSync(statePath, '{"id":"sb_1"');
    const sandboxd = await start({ statePath });
    expect(sandboxd.control.history()).toEqual([]);
    writeFileSync(statePath, "nonsense\n");
    await expect(startSandboxd({ statePath })).rejects.toThrow("line 1");
  });

  test("as a process it is driven through its remote control, and SIGKILL loses no claim", async () => {
    const directory = mkdtempSync(join(tmpdir(), "sandboxd-"));
    cleanups.push(() => rmSync(directory, { recursive: true }));
    writeFileSync(join(directory, "token"), "root\n");
    const run = async (port: string) => {
      const child = Bun.spawn(
        [
          process.execPath,
          join(import.meta.dir, "sandboxd-main.ts"),
          ...["--port", port, "--token-file", join(directory, "token"), "--control"],
          ...["--state", join(directory, "claims"), "--pool", `${template},,,2`],
        ],
        { stdout: "pipe", stderr: "inherit" },
      );
      cleanups.push(() => child.kill("SIGKILL"));
      const reader = child.stdout.getReader();
      const { value } = await reader.read();
      const { url } = JSON.parse(new TextDecoder().decode(value)) as { url: string };
      return { child, url };
    };
    const first = await run("0");
    const remote = async (name: string, argument?: unknown) =>
      (await call(first, "POST", `/_sim/${name}`, argument)).body.result;

    await remote("fault", { match: "claim", effect: "status", status: 500 });
    expect((await claim(first)).status).toBe(500);
    await remote("setPool", { template, size: "large", warm: 1 });
    const { body } = await claim(first, { size: "large", claim_ref: "default/a" });
    expect(await remote("index")).toMatchObject([{ id: String(body.id), claimRef: "default/a" }]);
    expect((await call(first, "POST", "/_sim/nothing")).status).toBe(404);
    expect((await call(first, "POST", "/_sim/kill", "sb_none")).body.error).toContain("sb_none");

    await remote("restart");
    // The answer comes first; the restart has happened once the new server answers.
    while ((await remote("pools").catch(() => undefined)) === undefined) await Bun.sleep(1);

    // SIGHUP is a restart too: what is in flight dies with it.
    await remote("fault", { match: "claim", effect: "hang" });
    const hanging = claim(first).then(
      () => "answered",
      () => "died",
    );
    while (((await remote("faults")) as { hits: number }[]).at(-1)?.hits !== 1) await Bun.sleep(1);
    first.child.kill("SIGHUP");
    expect(await hanging).toBe("died");

    first.child.kill("SIGKILL");
    await first.child.exited;
    const second = await run(new URL(first.url).port);
    expect(await ids(second)).toEqual([String(body.id)]);
    second.child.kill("SIGTERM");
    expect(await second.child.exited).toBe(0);
  });

  test("the remote control is not there unless asked for", async () => {
    const sandboxd = await start();
    expect((await call(sandboxd, "POST", "/_sim/index")).status).toBe(404);
  });
});

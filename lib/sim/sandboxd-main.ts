/**
 * The sandboxd stand-in as a process of its own. Prints `{"url": …, "pid": …}` as its first line.
 * SIGHUP restarts it as a crash would: requests in flight die, claims live. SIGTERM ends it.
 */
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { startSandboxd } from "./sandboxd.ts";
import type { PoolSpec } from "./vms.ts";

const usage = `usage: sandboxd-main [flags]
  --port N               default: any free port
  --host ADDRESS         default 127.0.0.1
  --token-file FILE      the root token, trimmed; without it the node is open
  --pool TEMPLATE,NET,SIZE,WARM[,TARGET]   repeatable; NET and SIZE may be empty
  --state FILE           claims live there across restarts
  --control              serve the remote control under /_sim/
  --refill-ms N          refill the pools so often; default 0, never
  --cold refuse|boot     without a warm VM; default refuse
  --cold-ms N            how long a cold boot takes; default 2000
  --max-claims N         default 0, no cap
  --peer HOST:PORT       repeatable; where claims are redirected without a warm VM
  --vm-host HOST         one host for every VM; default: a distinct 10.88.x.y each
  --vm-port N            default 8080`;

function number(name: string, value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  if (!/^\d+$/.test(value)) throw new Error(`--${name} takes a number, not ${JSON.stringify(value)}`);
  return Number(value);
}

function pool(value: string): PoolSpec {
  const [template = "", net, size, warm, target] = value.split(",");
  if (template === "" || warm === undefined)
    throw new Error(`--pool takes TEMPLATE,NET,SIZE,WARM[,TARGET], not ${JSON.stringify(value)}`);
  return { template, net, size, warm: number("pool", warm) ?? 0, target: number("pool", target) };
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      port: { type: "string" },
      host: { type: "string" },
      "token-file": { type: "string" },
      pool: { type: "string", multiple: true },
      state: { type: "string" },
      control: { type: "boolean" },
      "refill-ms": { type: "string" },
      cold: { type: "string" },
      "cold-ms": { type: "string" },
      "max-claims": { type: "string" },
      peer: { type: "string", multiple: true },
      "vm-host": { type: "string" },
      "vm-port": { type: "string" },
      help: { type: "boolean" },
    },
  });
  if (values.help) return console.log(usage);
  const { cold } = values;
  if (cold !== undefined && cold !== "refuse" && cold !== "boot")
    throw new Error(`--cold takes refuse or boot, not ${JSON.stringify(cold)}`);
  const tokenFile = values["token-file"];
  const sandboxd = await startSandboxd({
    port: number("port", values.port),
    hostname: values.host,
    token: tokenFile === undefined ? undefined : readFileSync(tokenFile, "utf8").trim(),
    pools: values.pool?.map(pool),
    statePath: values.state,
    control: values.control,
    refillIntervalMs: number("refill-ms", values["refill-ms"]),
    cold,
    coldMs: number("cold-ms", values["cold-ms"]),
    maxClaims: number("max-claims", values["max-claims"]),
    peers: values.peer,
    vmHost: values["vm-host"],
    vmPort: number("vm-port", values["vm-port"]),
  });
  process.on("SIGHUP", () => void sandboxd.control.restart());
  for (const signal of ["SIGTERM", "SIGINT"] as const)
    process.on(signal, () => void sandboxd.stop().then(() => process.exit(0)));
  console.log(JSON.stringify({ url: sandboxd.url, pid: process.pid }));
}

main().catch((error: Error) => {
  console.error(`sandboxd stand-in: ${error.message}\n\n${usage}`);
  process.exit(2);
});

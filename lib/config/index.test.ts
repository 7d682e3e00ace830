import { describe, expect, test } from "bun:test";
import { flagList } from "./flags.ts";
import { type ConfigError, formatConfigError, loadConfig, type RunConfig } from "./index.ts";

function config(argv: string[], env: Record<string, string> = {}): RunConfig {
  const result = loadConfig(argv, env);
  if (!result.ok) throw new Error(result.errors.map(formatConfigError).join("\n"));
  return result.config;
}
function errors(argv: string[], env: Record<string, string> = {}): ConfigError[] {
  const result = loadConfig(argv, env);
  return result.ok ? [] : result.errors;
}
const sentence = (argv: string[], env: Record<string, string> = {}) =>
  errors(argv, env).map(formatConfigError).join("\n");

test("without flags the reference's defaults hold", () => {
  expect(config([])).toMatchObject({
    node: {
      name: "vk-sandboxd",
      ip: undefined,
      cpu: { text: "4000" },
      memory: { text: "8Ti" },
      pods: { text: "2000" },
      labels: { "sandbox.cocoonstack.io/runtime": "sandboxd" },
      notReadyAfterMs: 40_000,
    },
    sandboxd: { url: "http://127.0.0.1:7777", tokenFile: undefined, advertiseAddr: "127.0.0.1:7777" },
    kube: { qps: 200, burst: 400 },
    kubelet: { listen: { host: "", port: 10260 } },
    statePath: "/var/lib/vk-sandbox/claims.json",
    orphanScanIntervalMs: 60_000,
    inventory: { publish: false, intervalMs: 30_000 },
    normalEvents: true,
    rescheduleAfterMs: 0,
    renewLeases: false,
    releaseSupersededAfterMs: 0,
  });
});

test("every way Go's flag package takes a flag is taken", () => {
  expect(config(["-node-name", "a"]).node.name).toBe("a");
  expect(config(["--node-name=a"]).node.name).toBe("a");
  expect(config(["--node-name", "a"]).node.name).toBe("a");
  expect(config(["-node-name=a", "--node-name=b"]).node.name).toBe("b");
  expect(config(["--publish-inventory"]).inventory.publish).toBe(true);
  expect(config(["--publish-inventory=false"]).inventory.publish).toBe(false);
  expect(config(["--publish-inventory", "--node-name", "a"])).toMatchObject({
    inventory: { publish: true },
    node: { name: "a" },
  });
  expect(config(["--disable-pod-events=1"]).normalEvents).toBe(false);
});

test("the environment fills in, the command line wins, and an empty variable counts as unset", () => {
  expect(config([], { VK_NODE_NAME: "e" }).node.name).toBe("e");
  expect(config(["--node-name", "f"], { VK_NODE_NAME: "e" }).node.name).toBe("f");
  expect(config([], { VK_NODE_NAME: "" }).node.name).toBe("vk-sandboxd");
  expect(config(["--node-ip="], { VK_NODE_IP: "10.0.0.1" }).node.ip).toBeUndefined();
});

test("the advertised address defaults to host and port of the URL", () => {
  expect(config(["--sandboxd-url", "https://[fd00::1]"]).sandboxd.advertiseAddr).toBe("[fd00::1]:443");
  expect(config(["--sandboxd-advertise-addr", "10.0.0.5:7777"]).sandboxd.advertiseAddr).toBe("10.0.0.5:7777");
});

describe("a mistake names flag, value, reason and next step", () => {
  const cases: [string, string[], RegExp][] = [
    [
      "an unknown flag names its nearest match",
      ["--node-nmae", "x"],
      /--node-nmae: unknown flag; did you mean --node-name\?/,
    ],
    ["an underscore is a dash", ["--node_name=x"], /did you mean --node-name/],
    ["a flag like no other points to the help", ["--zzzzzzzz"], /--zzzzzzzz: unknown flag; --help/],
    ["a value is missing at the end", ["--node-name"], /--node-name: needs a value/],
    [
      "a flag stands where a value should",
      ["--node-name", "--publish-inventory"],
      /--node-name: needs a value/,
    ],
    ["a word that is no flag", ["--publish-inventory", "false"], /false: unexpected argument.*equals sign/],
    ["a malformed duration", ["--publish-interval=5"], /--publish-interval "5" has no unit.*30s/],
    ["a negative duration", ["--reschedule-after=-5s"], /--reschedule-after "-5s" is negative/],
    ["a period nobody can mean", ["--publish-interval=0"], /--publish-interval "0" is out of range/],
    ["a period longer than a timer holds", ["--orphan-scan-interval=1000h"], /from 100ms to 24h, or 0/],
    ["a malformed quantity", ["--node-memory=8TiB"], /--node-memory "8TiB" has the unknown suffix "TiB"/],
    ["half a Pod", ["--node-pods=1.5"], /--node-pods "1.5" is not a whole number/],
    ["a malformed label", ["--node-labels=a b=c"], /--node-labels "a b=c".*the key "a b"/],
    [
      "a label that is ours",
      ["--node-labels=type=x"],
      /--node-labels "type=x" names a label that vk-sandbox sets itself/,
    ],
    ["a malformed address", ["--listen-addr=10260"], /--listen-addr "10260" is not host:port; write :10260/],
    ["a malformed node name", ["--node-name=Node_1"], /--node-name "Node_1" is not a DNS-1123/],
    ["an empty node name", ["--node-name="], /--node-name "" is empty/],
    ["a malformed IP", ["--node-ip=host"], /--node-ip "host" is not an IP/],
    [
      "a malformed URL",
      ["--sandboxd-url=localhost:7777"],
      /--sandboxd-url "localhost:7777" does not begin with/,
    ],
    ["a rate of nothing", ["--kube-api-qps=0"], /--kube-api-qps "0" is out of range/],
    ["a fraction of a burst", ["--kube-api-burst=1.5"], /--kube-api-burst "1.5" is not a whole number/],
    ["a boolean that is none", ["--publish-inventory=yes"], /--publish-inventory "yes" is not a boolean/],
    [
      "an unknown log level",
      ["--log-level=loud"],
      /--log-level "loud" is not one of debug, info, warn, error/,
    ],
    ["a certificate without its key", ["--tls-cert=/c"], /--tls-cert "\/c" has no --tls-key beside it/],
    ["a key without its certificate", ["--tls-key=/k"], /--tls-key "\/k" has no --tls-cert beside it/],
  ];
  for (const [name, argv, pattern] of cases) test(name, () => expect(sentence(argv)).toMatch(pattern));

  test("a value from the environment names the variable", () =>
    expect(sentence([], { VK_NODE_MEMORY: "much" })).toMatch(
      /^--node-memory \(from VK_NODE_MEMORY\) "much" is not/,
    ));
  test("all mistakes are told at once", () =>
    expect(errors(["--node-ip=x", "--node-memory=y"], { VK_NODE_PODS: "z" }).map((e) => e.flag)).toEqual([
      "--node-ip",
      "--node-memory",
      "--node-pods",
    ]));
  test("credentials in a URL are not repeated", () => {
    const text = sentence(["--sandboxd-url=http://root:hunter2@h:1"]);
    expect(text).toMatch(/credentials/);
    expect(text).not.toContain("hunter2");
  });
  test("a very long value is cut", () =>
    expect(sentence([`--node-ip=${"x".repeat(100_000)}`]).length).toBeLessThan(500));
});

describe("the declaration is whole", () => {
  test("every default is a value its own flag accepts", () => {
    for (const flag of flagList)
      if (flag.default !== undefined)
        expect([flag.name, flag.kind.parse(flag.default).ok]).toEqual([flag.name, true]);
  });
  test("every example is accepted and every variable is named once", () => {
    for (const flag of flagList) {
      const paired =
        flag.name === "tls-cert" ? ["--tls-key=/k"] : flag.name === "tls-key" ? ["--tls-cert=/c"] : [];
      expect(sentence([...flag.example.split(" "), ...paired])).toBe("");
      expect(flag.help).toEndWith(".");
    }
    expect(new Set(flagList.map((flag) => flag.env)).size).toBe(flagList.length);
  });
});

test("arbitrary words end in a configuration or in errors, never in an exception", () => {
  // A fixed linear congruential generator: a failing input is the same on every machine.
  let state = 20_240_601;
  const random = (n: number) => {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    return Math.floor((state / 2 ** 31) * n);
  };
  const alphabet = [
    "-",
    "--",
    "=",
    ",",
    ":",
    "[",
    "]",
    "/",
    ".",
    "0",
    "9",
    "e",
    "Ti",
    "h",
    " ",
    "\0",
    "ä",
    "🦊",
    "http://",
    "%",
  ];
  for (let round = 0; round < 5000; round++) {
    const words = Array.from({ length: 1 + random(4) }, () => {
      const name = flagList[random(flagList.length)]?.name ?? "";
      const noise = Array.from({ length: random(8) }, () => alphabet[random(alphabet.length)]).join("");
      return random(2) === 0 ? `--${name}=${noise}` : noise;
    });
    const result = loadConfig(words, { VK_NODE_IP: words[0] });
    if (!result.ok)
      for (const error of result.errors) expect(formatConfigError(error).length).toBeGreaterThan(10);
  }
});

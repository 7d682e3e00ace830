/** The machine: what the binary runs on, what it listens on, and who lives beside it. */
import { createPrivateKey, X509Certificate } from "node:crypto";
import { ipVersion } from "../config/index.ts";
import { count, listed, span } from "../words.ts";
import type { Check, Context } from "./context.ts";
import { fail, type Outcome, pass, skipped, warn } from "./finding.ts";
import type { ProcessInfo } from "./probes.ts";

/** Bun's own minimum, and what it recommends (bun.sh/docs/installation). */
const kernelMin = [5, 1] as const;
const kernelWanted = [5, 6] as const;
/** A watch, 64 API requests at once, sandboxd's connections, and the kubelet port's callers. */
const openFilesMin = 512;
const openFilesWanted = 4096;
const skewWarnMs = 5_000;
/** Readers drop an inventory that trails the newest by 90 s, of which the publish interval uses up 30 s. */
const skewFailMs = 60_000;
const certificateWarnMs = 14 * 24 * 3_600_000;
const pemBytesMax = 1024 * 1024;
/** Where the physical kubelet listens, and vk-cocoon too. */
const kubeletPort = 10250;

export const hostChecks: Check[] = [
  {
    id: "host.architecture",
    group: "host",
    why: "There are builds for Linux on x64 and arm64 only.",
    run: ({ probes: { host } }) => {
      if (host.platform !== "linux") {
        return fail(`${host.platform}/${host.arch}`, "Run it on the Linux host on which sandboxd runs.");
      }
      return host.arch === "x64" || host.arch === "arm64"
        ? pass(`${host.platform}/${host.arch}`)
        : fail(`linux/${host.arch}`, "Run it on an x64 or arm64 host.");
    },
  },
  {
    id: "host.kernel",
    group: "host",
    why: "The runtime inside the binary needs Linux 5.1, and is slower and less tested below 5.6.",
    run: ({ probes: { host } }) => {
      const todo = "Update the host's kernel to 5.6 or later.";
      const version = /^(\d+)\.(\d+)/.exec(host.kernel);
      if (version === null) return warn(`"${host.kernel}" is no version that could be compared`, todo);
      const [major, minor] = [Number(version[1]), Number(version[2])];
      const below = ([a, b]: readonly [number, number]) => major < a || (major === a && minor < b);
      if (below(kernelMin)) return fail(`Linux ${host.kernel}`, todo);
      return below(kernelWanted) ? warn(`Linux ${host.kernel}`, todo) : pass(`Linux ${host.kernel}`);
    },
  },
  {
    id: "host.libc",
    group: "host",
    why: "The lock on the claims table comes from the C library; without it the provider does not start.",
    run: ({ probes: { host } }) => {
      const { kind, version } = host.libc();
      if (kind !== "unknown") return pass(`${kind}${version === "" ? "" : ` ${version}`}`);
      return warn(
        "neither glibc nor musl was recognised in this process",
        "Use the build made for this host's C library: the plain one for glibc, the one named musl for Alpine.",
      );
    },
  },
  {
    id: "host.open-files",
    group: "host",
    why: "A daemon that runs out of descriptors stops reaching the API server and sandboxd.",
    run: openFiles,
  },
  {
    id: "host.clock",
    group: "host",
    why: "Deadlines, certificates, tokens and the inventory's time are compared with clocks elsewhere; readers drop a node whose inventory is 90 s behind.",
    run: clock,
  },
  {
    id: "host.port",
    group: "host",
    why: "The kubelet API listens there; a port that is taken keeps the provider from starting.",
    run: port,
  },
  {
    id: "host.address",
    group: "host",
    why: "The API server calls the kubelet API at the Node's address, for stats and metrics.",
    run: address,
  },
  {
    id: "host.certificate",
    group: "host",
    why: "The kubelet API is TLS only; a certificate or CA that cannot be used keeps the provider from starting.",
    run: certificate,
  },
  {
    id: "host.cocoon",
    group: "host",
    why: "vk-cocoon reads VK_NODE_NAME too: two providers under one node name overwrite each other's Node and Pods.",
    run: cocoon,
  },
  {
    id: "host.node-name",
    group: "host",
    why: "The physical kubelet of this host registers under the host's name, and each Node needs a name of its own.",
    run: ({ config, probes: { host } }) => {
      const { name } = config.node;
      const short = host.hostname.split(".")[0];
      if (name !== host.hostname.toLowerCase() && name !== short?.toLowerCase()) return pass(name);
      return warn(
        `${name} is this host's own name`,
        `Give the virtual Node another name, such as --node-name vk-sandboxd-${name}.`,
      );
    },
  },
  { id: "host.labels", group: "host", why: "Pod templates select the Node by its labels.", run: labels },
];

function openFiles({ probes: { host }, lock }: Context): Outcome {
  const running = lock();
  const ofDaemon = running.kind === "ours" ? host.openFiles(running.pid) : undefined;
  const limit = ofDaemon ?? host.openFiles();
  if (limit === undefined) return skipped("/proc does not show the limit here");
  // The runtime raises its soft limit to the hard one at start.
  const usable = ofDaemon === undefined ? limit.hard : limit.soft;
  const whose = ofDaemon === undefined ? "this shell's" : "the running daemon's";
  const found = `${Number.isFinite(usable) ? usable : "unlimited"} (${whose} limit)`;
  const todo =
    "Set LimitNOFILE=65536 in the systemd unit, or the container runtime's ulimit, and restart the provider.";
  if (usable < openFilesMin) return fail(found, todo);
  return usable < openFilesWanted ? warn(found, todo) : pass(found);
}

async function clock(context: Context): Promise<Outcome> {
  const cluster = await context.cluster();
  if (!cluster.ok) return skipped("there is no API server to compare with; see cluster.credentials");
  const date = await cluster.value.date();
  if (!date.ok) return skipped(`the API server's time is not known: ${date.why}`);
  const aheadMs = date.localMs - date.serverMs;
  // A Date header has whole seconds, and our own reading is as uncertain as the call was long.
  const certainMs = Math.max(0, Math.abs(aheadMs) - 1000 - date.roundTripMs / 2);
  const found =
    certainMs === 0
      ? "agrees with the API server's to the second"
      : `${span(aheadMs)} ${aheadMs > 0 ? "ahead of" : "behind"} the API server's`;
  const todo =
    "Start time synchronisation on this host (timedatectl set-ntp true), then see: chronyc tracking.";
  if (certainMs >= skewFailMs) return fail(found, todo);
  return certainMs >= skewWarnMs ? warn(found, todo) : pass(found);
}

async function port({ config, probes: { host }, lock }: Context): Promise<Outcome> {
  const { listen } = config.kubelet;
  const shown = `${listen.host.includes(":") ? `[${listen.host}]` : listen.host}:${listen.port}`;
  if (listen.port === 0) return pass("any free port (--listen-addr names port 0)");
  const tried = await host.tryListen(listen);
  const daemon = lock();
  if (tried.ok) {
    return daemon.kind === "ours"
      ? warn(
          `nobody listens on ${shown}, though the provider runs (process ${daemon.pid})`,
          "Give this command the flags and environment of the running provider, or look at its log.",
        )
      : pass(`${shown} is free`);
  }
  switch (tried.code) {
    case "EADDRINUSE": {
      const by = host.listener(listen.port);
      if (daemon.kind === "ours" && by?.pid === daemon.pid) {
        return pass(`${shown} is served by the running provider, process ${daemon.pid}`);
      }
      if (by === undefined || by.pid === 0) {
        // The provider is closed to the eyes of its own user, and does not run without its port.
        if (daemon.kind === "ours")
          return pass(
            `${shown} is taken, by the running provider, process ${daemon.pid}, as far as this user may see`,
          );
        return fail(
          `${shown} is taken, and this user may not see by which process`,
          `Find out with: ss -ltnp 'sport = :${listen.port}' (as root). If it is not vk-sandbox, stop it or choose another --listen-addr.`,
        );
      }
      return fail(
        `${shown} is taken by process ${by.pid} (${by.name})`,
        `Stop that process, or choose another port: --listen-addr ${listen.host}:${listen.port + 1}.`,
      );
    }
    case "EADDRNOTAVAIL":
      return fail(
        `${listen.host} is no address of this host`,
        `Use one of ${listed(host.addresses())}, or :${listen.port} for all of them.`,
      );
    case "EACCES":
      return fail(
        `this user may not listen on ${shown}`,
        "Use a port above 1023, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE.",
      );
    default:
      return fail(`listening on ${shown} failed with ${tried.code}`, "Correct --listen-addr.");
  }
}

/** An IP address in the one form the URL parser gives it, so that ::1 and 0:0:0:0:0:0:0:1 compare equal. */
function canonical(ip: string): string {
  return ipVersion(ip) === 6 ? new URL(`http://[${ip}]/`).hostname.slice(1, -1) : ip;
}

function address({ config, probes: { host } }: Context): Outcome {
  const { ip, name } = config.node;
  const { listen } = config.kubelet;
  if (ip === undefined) {
    return warn(
      `--node-ip is not set, so the Node's only address is the name ${name}`,
      "Give --node-ip (VK_NODE_IP) an address of this host that the API server can reach.",
      "The API server can call the kubelet API only if it can resolve that name, which it usually cannot.",
    );
  }
  if (ip.startsWith("127.") || canonical(ip) === "::1") {
    return warn(
      `--node-ip ${ip} is a loopback address`,
      "Give --node-ip an address of this host that other machines reach.",
      "The API server refuses to call a Node at a loopback address.",
    );
  }
  const wildcard = listen.host === "" || /^(0\.0\.0\.0|[0:]+)$/.test(listen.host);
  if (!wildcard && ipVersion(listen.host) !== 0 && canonical(listen.host) !== canonical(ip)) {
    return warn(
      `the kubelet API listens on ${listen.host} only, while the Node's address is ${ip}`,
      `Use --listen-addr :${listen.port}, or the same address for both.`,
    );
  }
  if (!host.addresses().map(canonical).includes(canonical(ip))) {
    return warn(
      `--node-ip ${ip} is none of this host's addresses (${listed(host.addresses())})`,
      "Correct --node-ip, unless a NAT leads from that address to this host.",
    );
  }
  return pass(ip);
}

function certificate({ config, probes: { host, now } }: Context): Outcome {
  const { certFile, keyFile, clientCaFile } = config.kubelet;
  const read = (flag: string, path: string): { text: string } | Outcome => {
    const file = host.readText(path, pemBytesMax);
    if (file.ok) return file;
    const what = file.code === "ENOENT" ? "does not exist" : `cannot be read (${file.code})`;
    return fail(
      `${flag} ${path} ${what}`,
      `Correct ${flag}, or make the file readable for the provider's user.`,
    );
  };
  if (clientCaFile !== undefined) {
    const ca = read("--client-ca-file", clientCaFile);
    if ("status" in ca) return ca;
    if (parseCertificate(ca.text) === undefined) {
      return fail(
        `--client-ca-file ${clientCaFile} holds no PEM certificate`,
        "Give it the CA that signs the API server's kubelet client certificate.",
      );
    }
  }
  const ca = clientCaFile === undefined ? "" : `, client CA ${clientCaFile}`;
  if (certFile === undefined || keyFile === undefined) return pass(`self-signed, made at start${ca}`);
  const cert = read("--tls-cert", certFile);
  if ("status" in cert) return cert;
  const key = read("--tls-key", keyFile);
  if ("status" in key) return key;
  const x509 = parseCertificate(cert.text);
  if (x509 === undefined)
    return fail(
      `--tls-cert ${certFile} holds no PEM certificate`,
      "Give it the certificate in PEM, its chain below it.",
    );
  const renew = `Renew ${certFile}; the provider reads it again by itself.`;
  if (!fits(x509, key.text)) {
    return fail(
      `${keyFile} is not the private key of ${certFile}`,
      "Give --tls-cert and --tls-key files that belong together.",
    );
  }
  const from = Date.parse(x509.validFrom);
  const leftMs = Date.parse(x509.validTo) - now();
  if (from > now())
    return fail(
      `${certFile} is valid only from ${new Date(from).toISOString()}`,
      "Check the clock, or renew the certificate.",
    );
  if (leftMs <= 0) return fail(`${certFile} expired ${span(leftMs)} ago`, renew);
  if (leftMs < certificateWarnMs) return warn(`${certFile} expires in ${span(leftMs)}`, renew);
  const { ip, name } = config.node;
  const named = ip === undefined ? x509.checkHost(name) : x509.checkIP(ip);
  if (named === undefined) {
    return warn(
      `${certFile} does not name ${ip ?? name}`,
      "Have it issued for the Node's address (subject alternative name).",
      "An API server that verifies kubelets (--kubelet-certificate-authority) will refuse to connect.",
    );
  }
  return pass(`${certFile}, valid for ${span(leftMs)}${ca}`);
}

function parseCertificate(pem: string): X509Certificate | undefined {
  try {
    return new X509Certificate(pem);
  } catch {
    return undefined;
  }
}

function fits(x509: X509Certificate, key: string): boolean {
  try {
    return x509.checkPrivateKey(createPrivateKey(key));
  } catch {
    return false;
  }
}

function cocoon({ config, probes: { host } }: Context): Outcome {
  const found = host.cocoon();
  const clash = found.find((process) => process.nodeName === config.node.name);
  if (clash !== undefined) {
    return fail(
      `vk-cocoon (process ${clash.pid}) serves a Node named ${config.node.name} too`,
      "Give each its own VK_NODE_NAME; do not share one environment file between the two units.",
    );
  }
  const on10250 = host.listener(kubeletPort);
  if (config.kubelet.listen.port === kubeletPort) {
    return warn(
      `--listen-addr uses port ${kubeletPort}${on10250 === undefined ? "" : `, where ${nameOf(on10250)} listens`}`,
      "Use --listen-addr :10260.",
      `Port ${kubeletPort} belongs to the physical kubelet, and to vk-cocoon: whichever starts second does not start.`,
    );
  }
  if (found.length === 0) return pass("no vk-cocoon on this host");
  const names = found.map(({ pid, nodeName }) =>
    nodeName === undefined ? `process ${pid}, node name not readable` : `process ${pid}, node ${nodeName}`,
  );
  const hidden = found.some((process) => process.nodeName === undefined);
  const text = `vk-cocoon runs here (${names.join("; ")}), we use port ${config.kubelet.listen.port}`;
  return hidden
    ? warn(
        text,
        `Make sure that its VK_NODE_NAME is not ${config.node.name}, or run this as root to have it looked up.`,
      )
    : pass(text);
}

function nameOf(process: ProcessInfo): string {
  return process.pid === 0 ? "another process" : `process ${process.pid} (${process.name})`;
}

const runtimeLabel = "sandbox.cocoonstack.io/runtime";
const cocoonPoolLabel = "cocoonstack.io/pool";

function labels({ config }: Context): Outcome {
  const { labels: given } = config.node;
  if (given[cocoonPoolLabel] !== undefined) {
    return fail(
      `--node-labels has ${cocoonPoolLabel}=${given[cocoonPoolLabel]}`,
      `Take ${cocoonPoolLabel} out of --node-labels.`,
      "Pods for vk-cocoon select that label: they would be bound to this Node and fail here.",
    );
  }
  if (given[runtimeLabel] !== "sandboxd") {
    return warn(
      given[runtimeLabel] === undefined
        ? `--node-labels lacks ${runtimeLabel}=sandboxd`
        : `--node-labels has ${runtimeLabel}=${given[runtimeLabel]}`,
      `Add ${runtimeLabel}=sandboxd to --node-labels, unless your templates select another label of this Node.`,
      "Templates select that label; without it their Pods stay Pending as unschedulable.",
    );
  }
  return pass(
    `${count(Object.keys(given).length, "label")} of --node-labels, ${runtimeLabel}=sandboxd among them`,
  );
}

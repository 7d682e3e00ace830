/** What the Node tells about the machine it stands for, read from the files Linux keeps it in. */
import { readFileSync } from "node:fs";

/** status.nodeInfo of a v1 Node. */
export interface NodeInfo {
  machineID: string;
  systemUUID: string;
  bootID: string;
  kernelVersion: string;
  osImage: string;
  containerRuntimeVersion: string;
  kubeletVersion: string;
  kubeProxyVersion: string;
  operatingSystem: string;
  architecture: string;
}

const factCharsMax = 256;

/** The first line of a small file, or undefined when it cannot be read. */
function fact(path: string, read: (path: string) => string): string | undefined {
  try {
    const line = read(path).split("\n", 1)[0]?.trim();
    return line === undefined || line === "" ? undefined : line.slice(0, factCharsMax);
  } catch {
    // Not every host has every file, and product_uuid is root's: the Node is as good without.
    return undefined;
  }
}

const readText = (path: string) => readFileSync(path, "utf8");

/**
 * Reads nodeInfo. What cannot be read stays empty, except machineID and systemUUID, which stand in for each
 * other: tools key on them.
 *
 * @param version of vk-sandbox, becomes kubeletVersion with a leading v
 * @param read reads a file as text; throws when it cannot
 */
export function readNodeInfo(version: string, read: (path: string) => string = readText): NodeInfo {
  const machineID = fact("/etc/machine-id", read) ?? fact("/var/lib/dbus/machine-id", read);
  const systemUUID = fact("/sys/class/dmi/id/product_uuid", read);
  return {
    machineID: machineID ?? systemUUID ?? "",
    systemUUID: systemUUID ?? machineID ?? "",
    bootID: fact("/proc/sys/kernel/random/boot_id", read) ?? "",
    kernelVersion: fact("/proc/sys/kernel/osrelease", read) ?? "",
    osImage: osName(read) ?? "Linux",
    containerRuntimeVersion: "sandboxd://",
    kubeletVersion: `v${version}`,
    kubeProxyVersion: "",
    operatingSystem: "linux",
    architecture: process.arch === "x64" ? "amd64" : process.arch,
  };
}

/** PRETTY_NAME of os-release(5). */
function osName(read: (path: string) => string): string | undefined {
  for (const path of ["/etc/os-release", "/usr/lib/os-release"]) {
    try {
      const match = /^PRETTY_NAME=(?:"([^"\n]*)"|'([^'\n]*)'|([^\s"']*))$/m.exec(read(path));
      const name = match?.[1] ?? match?.[2] ?? match?.[3];
      if (name) return name.slice(0, factCharsMax);
    } catch {
      // The next path.
    }
  }
  return undefined;
}

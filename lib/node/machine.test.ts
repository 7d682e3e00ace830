import { expect, test } from "bun:test";
import { readNodeInfo } from "./machine.ts";

const reader = (files: Record<string, string>) => (path: string) => {
  const text = files[path];
  if (text === undefined) throw new Error("ENOENT");
  return text;
};

test("facts come from the files Linux keeps them in", () => {
  const info = readNodeInfo(
    "0.1.0",
    reader({
      "/etc/machine-id": "abc\n",
      "/sys/class/dmi/id/product_uuid": "UUID\n",
      "/proc/sys/kernel/random/boot_id": "boot\n",
      "/proc/sys/kernel/osrelease": "6.1.0-amd64\n",
      "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    }),
  );
  expect(info).toMatchObject({
    machineID: "abc",
    systemUUID: "UUID",
    bootID: "boot",
    kernelVersion: "6.1.0-amd64",
    osImage: "Debian GNU/Linux 12 (bookworm)",
    kubeletVersion: "v0.1.0",
    operatingSystem: "linux",
  });
});

test("a host that shows nothing makes a Node all the same", () => {
  expect(readNodeInfo("0.1.0", reader({}))).toMatchObject({
    machineID: "",
    osImage: "Linux",
    kernelVersion: "",
  });
});

test("machine id and system UUID stand in for each other", () => {
  expect(readNodeInfo("1", reader({ "/etc/machine-id": "abc" })).systemUUID).toBe("abc");
  expect(readNodeInfo("1", reader({ "/sys/class/dmi/id/product_uuid": "U" })).machineID).toBe("U");
});

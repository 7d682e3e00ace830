/** What a release is made for, and the Bun runtime each of them is built upon. */

/** One kind of Linux machine. */
export interface Target {
  /** As artifacts are called: vk-sandbox-<version>-<name>.tar.gz. */
  name: string;
  /** As `bun build --target` is called. */
  bunTarget: string;
  /** npm package that brings Bun's executable. */
  package: string;
  /**
   * SHA-256 of that executable in the version of scripts/bun.sh. Whoever raises the version writes these anew;
   * a runtime that is not the one that was reviewed is not built upon.
   */
  sha256: string;
  arch: "x64" | "arm64";
  libc: "glibc" | "musl";
}

const x64Glibc = "f05d28a3862f4b84395c7fa32480b835dd47482e80b7e7a49a115227f0c06083";
const x64Musl = "cf5d285ddbe256785a5121a3c113191a6b577504976374c7cfd5aedca609b720";

/**
 * All targets, the usual one first. Bun 1.4.5 ships one executable under the plain and the baseline name (it
 * chooses by CPU when it starts), so those two differ in nothing but their names; they stay separate because
 * earlier and later versions of Bun do not promise that.
 */
export const targets: readonly Target[] = [
  {
    name: "linux-x64",
    bunTarget: "bun-linux-x64",
    package: "@oven/bun-linux-x64",
    sha256: x64Glibc,
    arch: "x64",
    libc: "glibc",
  },
  {
    name: "linux-x64-baseline",
    bunTarget: "bun-linux-x64-baseline",
    package: "@oven/bun-linux-x64-baseline",
    sha256: x64Glibc,
    arch: "x64",
    libc: "glibc",
  },
  {
    name: "linux-arm64",
    bunTarget: "bun-linux-arm64",
    package: "@oven/bun-linux-aarch64",
    sha256: "04778f1f42399a69d086853e9c7af4acf574b2f21a43d0dc673853d8b84a2923",
    arch: "arm64",
    libc: "glibc",
  },
  {
    name: "linux-x64-musl",
    bunTarget: "bun-linux-x64-musl",
    package: "@oven/bun-linux-x64-musl",
    sha256: x64Musl,
    arch: "x64",
    libc: "musl",
  },
  {
    name: "linux-x64-musl-baseline",
    bunTarget: "bun-linux-x64-musl-baseline",
    package: "@oven/bun-linux-x64-musl-baseline",
    sha256: x64Musl,
    arch: "x64",
    libc: "musl",
  },
  {
    name: "linux-arm64-musl",
    bunTarget: "bun-linux-arm64-musl",
    package: "@oven/bun-linux-aarch64-musl",
    sha256: "9c48986093073afec8b76a3e285303598dd2462f52748aecb65e4d94866e1ea3",
    arch: "arm64",
    libc: "musl",
  },
];

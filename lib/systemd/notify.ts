/** Tells systemd that the daemon is ready, alive, or stopping (sd_notify(3)), for units with Type=notify. */
import { libcNames } from "../libc.ts";

/** sun_path of sockaddr_un. */
const SOCKET_PATH_BYTES_MAX = 107;
const AF_UNIX = 1;
const SOCK_DGRAM = 2;
const SOCK_CLOEXEC = 0o2000000;
const MSG_NOSIGNAL = 0x4000;

export interface Systemd {
  /** Sends one message, for example `READY=1` or `STATUS=…`. Never throws; without systemd it does nothing. */
  notify(message: string): void;
  /** How often `WATCHDOG=1` is due, in ms; 0 when the unit has no watchdog. */
  watchdogMs: number;
}

/**
 * Opens the notification socket that systemd names in NOTIFY_SOCKET. By libc through bun:ffi, because neither
 * Bun nor Node has unix datagram sockets, and systemd-notify(1) would be another process with another PID.
 *
 * @param env NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID
 * @param pid our own, since WATCHDOG_PID may name another
 */
export async function openSystemd(env: Record<string, string | undefined>, pid: number): Promise<Systemd> {
  const path = env.NOTIFY_SOCKET ?? "";
  const forUs = env.WATCHDOG_PID === undefined || Number(env.WATCHDOG_PID) === pid;
  const watchdogUs = forUs ? Number(env.WATCHDOG_USEC ?? 0) : 0;
  const none: Systemd = { notify: () => {}, watchdogMs: 0 };
  const bytes = Buffer.from(path.startsWith("@") ? `\0${path.slice(1)}` : path);
  if ((!path.startsWith("/") && !path.startsWith("@")) || bytes.length > SOCKET_PATH_BYTES_MAX) return none;
  const libc = await openLibc();
  if (libc === undefined) return none;
  const fd = libc.socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return none;
  const address = Buffer.alloc(2 + bytes.length + (path.startsWith("@") ? 0 : 1));
  address.writeUInt16LE(AF_UNIX, 0);
  bytes.copy(address, 2);
  return {
    watchdogMs: Number.isFinite(watchdogUs) && watchdogUs > 0 ? watchdogUs / 2000 : 0,
    notify(message) {
      const text = Buffer.from(message);
      libc.sendto(fd, text, text.length, MSG_NOSIGNAL, address, address.length);
    },
  };
}

async function openLibc() {
  const { dlopen } = await import("bun:ffi");
  for (const name of libcNames(process.arch)) {
    try {
      return dlopen(name, {
        socket: { args: ["i32", "i32", "i32"], returns: "i32" },
        sendto: { args: ["i32", "ptr", "u64", "i32", "ptr", "u32"], returns: "i64" },
      }).symbols;
    } catch {
      // musl has it under the other name.
    }
  }
  return undefined;
}

/** Where log lines go: a bounded buffer in front of a file descriptor that may be slow, full or closed. */
import { write as fsWrite, writeSync } from "node:fs";

export interface Sink {
  /** Takes whole lines, newline included. Never blocks, never throws. */
  write(text: string): void;
  /** Waits until everything taken is written, at most `timeoutMs`. Returns whether it was. */
  flush(timeoutMs: number): Promise<boolean>;
  /** Writes what is buffered, blocking. A chunk already on its way may come out beside it. */
  flushSync(): void;
}

export interface FdSinkOptions {
  /** Characters buffered while the reader is slow; lines above are dropped and counted. Default 1 Mi. */
  bufferCharsMax?: number;
  /** How the descriptor is written; calls back with an error or the bytes written. Default fs.write. */
  write?: (
    fd: number,
    bytes: Uint8Array,
    done: (error: NodeJS.ErrnoException | null, written: number) => void,
  ) => void;
  /** Default setTimeout. */
  after?: (delayMs: number, run: () => void) => void;
}

const retryMs = 50;
/** How long a line waits for company: each write costs two changes of thread, which a burst of Pods would pay per Pod. */
export const gatherMs = 10;

/**
 * A sink on a file descriptor. fs.write runs on the thread pool, so a pipe nobody reads holds a thread and not
 * the event loop. When the reader is gone (EPIPE, EBADF, EIO) lines are dropped from then on: a daemon that
 * holds people's VMs does not die of a closed log.
 */
export function fdSink(fd: number, options: FdSinkOptions = {}): Sink {
  const {
    bufferCharsMax = 1024 * 1024,
    write = (to, bytes, done) => fsWrite(to, bytes, 0, bytes.byteLength, null, done),
    after = (delayMs, run) => {
      setTimeout(run, delayMs).unref();
    },
  } = options;
  let buffered = "";
  let dropped = 0;
  let closed = false;
  let inFlight: Uint8Array | undefined;
  let scheduled = false;
  let idle: (() => void)[] = [];

  const settle = () => {
    for (const resolve of idle) resolve();
    idle = [];
  };

  const takeBuffer = (): Uint8Array => {
    const note = dropped === 0 ? "" : droppedLine(dropped);
    const bytes = Buffer.from(buffered + note);
    buffered = "";
    dropped = 0;
    return bytes;
  };

  const send = () => {
    scheduled = false;
    if (inFlight !== undefined) return;
    if (closed || buffered === "") return settle();
    push(takeBuffer());
  };

  const push = (bytes: Uint8Array) => {
    inFlight = bytes;
    write(fd, bytes, (error, written) => {
      if (error === null && written < bytes.byteLength) return push(bytes.subarray(written));
      // The descriptor is non-blocking and full: someone shares it and set it so.
      if (error !== null && (error.code === "EAGAIN" || error.code === "EINTR" || error.code === "ENOSPC"))
        return after(retryMs, () => push(bytes));
      inFlight = undefined;
      if (error !== null) {
        closed = true;
        buffered = "";
      }
      send();
    });
  };

  return {
    write(text) {
      if (closed) return;
      if (buffered.length + text.length > bufferCharsMax) {
        dropped++;
        return;
      }
      buffered += text;
      if (scheduled || inFlight !== undefined) return;
      scheduled = true;
      after(gatherMs, send);
    },
    flush(timeoutMs) {
      if (closed || (buffered === "" && inFlight === undefined)) return Promise.resolve(true);
      return new Promise((resolve) => {
        let timer: ReturnType<typeof setTimeout> | undefined = setTimeout(() => {
          timer = undefined;
          resolve(false);
        }, timeoutMs);
        idle.push(() => {
          if (timer === undefined) return;
          clearTimeout(timer);
          resolve(true);
        });
        send();
      });
    },
    flushSync() {
      if (closed || buffered === "") return;
      try {
        let bytes = takeBuffer();
        // A few tries and no more: a full pipe must not keep a dying process alive.
        for (let tries = 0; bytes.byteLength > 0 && tries < 16; tries++)
          bytes = bytes.subarray(writeSync(fd, bytes, 0, bytes.byteLength, null));
      } catch {
        closed = true;
      }
    },
  };
}

function droppedLine(count: number): string {
  return `{"level":"warn","msg":"log lines dropped because the reader is too slow","lines":${count}}\n`;
}

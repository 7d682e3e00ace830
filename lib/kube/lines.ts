/** Cuts a stream of byte chunks into lines of text. */
export interface LineSplitter {
  /**
   * Takes the next chunk and hands each line it completes to `onLine`, without its newline.
   *
   * @throws LineError when a line is longer than the bound, or is not UTF-8
   */
  push(chunk: Uint8Array): void;
  /** Bytes of a line that has begun and not ended. */
  readonly pendingBytes: number;
}

export class LineError extends Error {
  override name = "LineError";
}

const newline = 10;

/**
 * Makes a splitter. Chunks may end anywhere, inside a character too: lines are cut as bytes and decoded
 * whole. Only a line that spans chunks is copied, and only once.
 *
 * @param bytesMax longest line accepted
 * @param onLine called synchronously; when it returns false the rest of the chunk is left alone
 */
export function createLineSplitter(bytesMax: number, onLine: (line: string) => boolean): LineSplitter {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let pieces: Uint8Array[] = [];
  let pending = 0;

  function decode(bytes: Uint8Array): string {
    try {
      return decoder.decode(bytes);
    } catch {
      throw new LineError(`a line of ${bytes.byteLength} bytes is not UTF-8`);
    }
  }

  return {
    push(chunk) {
      let from = 0;
      for (;;) {
        const end = chunk.indexOf(newline, from);
        const length = pending + (end < 0 ? chunk.byteLength : end) - from;
        if (length > bytesMax) throw new LineError(`a line is longer than lineBytesMax ${bytesMax}`);
        if (end < 0) break;
        let line = chunk.subarray(from, end);
        if (pending > 0) {
          pieces.push(line);
          line = Buffer.concat(pieces, length);
          pieces = [];
          pending = 0;
        }
        from = end + 1;
        if (length > 0 && !onLine(decode(line))) return;
      }
      if (from < chunk.byteLength) {
        pieces.push(from === 0 ? chunk : chunk.subarray(from));
        pending += chunk.byteLength - from;
      }
    },
    get pendingBytes() {
      return pending;
    },
  };
}

/**
 * Whether PEM text has an end for every beginning. A file that is being written is cut off somewhere, and TLS
 * libraries take the blocks that are whole and say nothing of the rest: half a CA bundle would be a smaller bundle.
 */
export function isWholePem(text: string): boolean {
  const begins = text.match(/-----BEGIN [A-Z0-9 ]+-----/g) ?? [];
  const ends = text.match(/-----END [A-Z0-9 ]+-----/g) ?? [];
  return (
    begins.length > 0 &&
    begins.length === ends.length &&
    begins.every((begin, at) => begin.replace("BEGIN", "END") === ends[at])
  );
}

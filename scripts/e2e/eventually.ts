/** Waiting for a condition, with a failure that tells what was seen instead. */

const pollEveryMs = 25;
const stateCharactersMax = 4_000;

export interface EventuallyOptions {
  /** Default 60 s: many times what anything here takes, so that a slow machine is not a failure. */
  timeoutMs?: number;
  /** Added to the failure's message: a log's last lines, say. */
  context?: () => string;
}

/**
 * Probes until `holds` is true of what the probe returned, and returns that. `what` is the condition in words.
 * A probe that throws counts as not yet; when time is up the error names the condition and the last state seen.
 */
export async function eventually<T>(
  what: string,
  probe: () => T | Promise<T>,
  holds: (value: T) => boolean = Boolean,
  { timeoutMs = 60_000, context }: EventuallyOptions = {},
): Promise<T> {
  const giveUpAt = Date.now() + timeoutMs;
  for (;;) {
    let last: string;
    try {
      const value = await probe();
      if (holds(value)) return value;
      last = show(value);
    } catch (error) {
      last = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    }
    if (Date.now() > giveUpAt)
      throw new Error(
        `not so after ${timeoutMs / 1000} s: ${what}\nlast seen: ${last}${context ? `\n${context()}` : ""}`,
      );
    await Bun.sleep(pollEveryMs);
  }
}

function show(value: unknown): string {
  const text =
    JSON.stringify(value, (key, field) => (key === "managedFields" ? undefined : field), 1) ?? "undefined";
  return text.length > stateCharactersMax ? `${text.slice(0, stateCharactersMax)} …` : text;
}

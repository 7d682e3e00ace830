import type { Listed } from "../provider/types.ts";

export type ListAnswer = { ok: true; rows: Listed[] } | { ok: false; why: string };
type List = (claimRef?: string) => Promise<ListAnswer>;

/**
 * Tells when sandboxd's index cannot be had, and when it can again, once each. Without an index rows stay
 * quarantined, leases are not looked at and lost VMs not noticed, all of it in silence: a failed listing decides
 * nothing.
 *
 * @param list the call to sandboxd
 * @param log what to tell it to
 * @returns the same call; what it answers is passed on as it is
 */
export function toldListing(
  list: List,
  log: {
    warn(message: string, fields: { why: string }): void;
    info(message: string, fields: { failures: number }): void;
  },
): List {
  let failures = 0;
  let told = "";
  return async (claimRef) => {
    const answer = await list(claimRef);
    if (!answer.ok) {
      failures++;
      if (told !== answer.why)
        log.warn(
          "sandboxd's index cannot be read: no claim is verified, and no lost VM noticed, until it can",
          {
            why: answer.why,
          },
        );
      told = answer.why;
    } else if (failures > 0) {
      log.info("sandboxd's index can be read again", { failures });
      failures = 0;
      told = "";
    }
    return answer;
  };
}

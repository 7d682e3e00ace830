/** Shorter secrets are not looked for: replacing them would damage texts that merely contain them. */
export const scrubCharsMin = 12;
export const scrubbed = "[credential]";

/**
 * A text from outside without a credential that its sender was shown and may have echoed: a server's error, a
 * proxy's page. As it is, and as JSON and URLs would write it.
 */
export function scrub(text: string, secret: string): string {
  if (secret.length < scrubCharsMin) return text;
  let clean = text.includes(secret) ? text.replaceAll(secret, scrubbed) : text;
  for (const spelled of [JSON.stringify(secret).slice(1, -1), encodeURIComponent(secret)])
    if (spelled !== secret && clean.includes(spelled)) clean = clean.replaceAll(spelled, scrubbed);
  return clean;
}

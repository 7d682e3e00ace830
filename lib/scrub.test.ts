import { expect, test } from "bun:test";
import { scrub, scrubCharsMin } from "./scrub.ts";

test("a credential goes out of a text, however the text spells it", () => {
  const secret = 'tök"en/with+signs=';
  for (const spelled of [secret, JSON.stringify(secret).slice(1, -1), encodeURIComponent(secret)]) {
    const clean = scrub(`before ${spelled} between ${spelled} after`, secret);
    expect(clean).toBe("before [credential] between [credential] after");
  }
});

test("a text without it is the very same, and so is one that a short credential happens to be in", () => {
  expect(scrub("nothing here", "a-long-credential")).toBe("nothing here");
  expect(scrub('{"root": 1}', "root")).toBe('{"root": 1}');
  const short = "x".repeat(scrubCharsMin - 1);
  expect(scrub(short, short)).toBe(short);
});

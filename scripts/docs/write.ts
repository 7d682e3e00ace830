/** Writes the generated parts of docs/ anew. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { generated, withPart } from "./generate.ts";

const root = join(import.meta.dir, "../..");
for (const [path, make] of Object.entries(generated)) {
  const file = join(root, path);
  writeFileSync(file, withPart(readFileSync(file, "utf8"), make()));
  console.log(path);
}

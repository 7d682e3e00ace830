/**
 * Loaded into the compiled binary by BUN_OPTIONS=--preload, before its own code: a wall clock that the test steps. The
 * offset in milliseconds is read from the file $VK_E2E_CLOCK at the start and at each SIGUSR2. Timers and
 * performance.now() are left alone, as a step of the real wall clock leaves them alone.
 */
import { readFileSync } from "node:fs";

const path = process.env.VK_E2E_CLOCK;
if (path === undefined) throw new Error("VK_E2E_CLOCK names no file");
const RealDate = Date;
const realNow = Date.now;
let offsetMs = 0;

function read(): void {
  offsetMs = Number(readFileSync(path ?? "", "utf8"));
  process.stderr.write(`clock: ${offsetMs}\n`);
}

class SteppedDate extends RealDate {
  constructor(...given: []) {
    // Whatever `new Date` takes; without anything it is the clock that is asked.
    if (given.length === 0) super(realNow() + offsetMs);
    else super(...given);
  }
  static override now(): number {
    return realNow() + offsetMs;
  }
}

globalThis.Date = SteppedDate as DateConstructor;
process.on("SIGUSR2", read);
read();

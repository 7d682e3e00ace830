/**
 * Faults on command: what a stand-in does to a request instead of answering it as it should.
 */

/** How a request is spoiled. All but `delay`, `stale`, `truncate` and `cut` replace the answer. */
const effects = [
  /** Answer `status` with `body` and `headers`. */
  "status",
  /** Accept and never answer. */
  "hang",
  /** TCP reset without an answer; over TLS the connection is closed without a goodbye. */
  "reset",
  /** Answer 200 with a body that is not JSON. */
  "garbage",
  /** The answer's status with an empty body. */
  "empty",
  /** Promise the whole body, send a part of it, close the connection. */
  "truncate",
  /** Send a part of the body as if it were the whole: well-framed HTTP, broken JSON. */
  "cut",
  /** Answer properly, `delayMs` late. */
  "delay",
  /** Answer a read from the state as it was when the fault was added. */
  "stale",
] as const;
export type FaultEffect = (typeof effects)[number];

/** A fault as tests and the remote control give it. Plain JSON. */
export interface Fault {
  /** Source of a regular expression, matched against `METHOD /path?query`. */
  match: string;
  effect: FaultEffect;
  /** Carry the request out first, then spoil the answer: a lost reply. Default false. */
  after?: boolean;
  /**
   * How many requests it hits; 0 = until cleared. Default 1. Mind that Bun's fetch silently repeats a GET once when a
   * connection it had used before breaks: a single `reset` of a GET may go unnoticed. It never repeats a POST.
   */
  count?: number;
  /** How many matching requests pass unharmed first. Default 0. */
  skip?: number;
  /** Wait so long before doing anything. */
  delayMs?: number;
  /** For `status`. Default 500. */
  status?: number;
  /** For `status` and `garbage`; an object is sent as JSON. */
  body?: string | object;
  /** For `status`. */
  headers?: Record<string, string>;
  /** For `truncate` and `cut`: how much of the body is sent. Default: half. */
  bytes?: number;
}

/** A fault in force, as it is shown. */
export interface FaultState extends Fault {
  id: number;
  /** Requests it has hit so far. */
  hits: number;
}

/** A fault in force, with what a `stale` one answers from. */
export interface ActiveFault<Frozen> extends FaultState {
  frozen?: Frozen;
}

export interface Faults<Frozen> {
  /** Takes a fault and returns its id. Throws on a pattern that is no regular expression, and an unknown effect. */
  add(fault: Fault): number;
  list(): FaultState[];
  /** Removes one fault, or all. */
  clear(id?: number): void;
  /** The fault that hits this request line, if any; counts it. Faults added earlier come first. */
  take(line: string): ActiveFault<Frozen> | undefined;
}

/**
 * @param freeze what a `stale` fault answers from: called when the fault is added
 */
export function createFaults<Frozen>(freeze?: () => Frozen): Faults<Frozen> {
  const active: (ActiveFault<Frozen> & { pattern: RegExp; passed: number })[] = [];
  let nextId = 1;
  return {
    add(fault) {
      if (typeof fault?.match !== "string" || !effects.includes(fault.effect))
        throw new Error(`a fault needs match (a regular expression) and effect (${effects.join(", ")})`);
      if (fault.effect === "stale" && !freeze) throw new Error("this stand-in has no stale answers");
      const id = nextId++;
      const frozen = fault.effect === "stale" ? freeze?.() : undefined;
      active.push({ ...fault, id, hits: 0, passed: 0, pattern: new RegExp(fault.match), frozen });
      return id;
    },
    list: () => active.map(({ pattern, passed, frozen, ...fault }) => fault),
    clear(id) {
      if (id === undefined) active.length = 0;
      else {
        const at = active.findIndex((fault) => fault.id === id);
        if (at >= 0) active.splice(at, 1);
      }
    },
    take(line) {
      for (const fault of active) {
        const count = fault.count ?? 1;
        if ((count > 0 && fault.hits >= count) || !fault.pattern.test(line)) continue;
        if (fault.passed < (fault.skip ?? 0)) {
          fault.passed++;
          continue;
        }
        fault.hits++;
        return fault;
      }
      return undefined;
    },
  };
}

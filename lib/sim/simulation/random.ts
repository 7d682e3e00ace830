/** A seeded source of randomness: the same seed gives the same numbers on every machine. */
export interface Random {
  /** A whole number, 0 ≤ x < 2³². */
  u32(): number;
  /** A whole number, 0 ≤ x < n; 0 when n is 0. */
  below(n: number): number;
  /** 0 ≤ x < 1. */
  float(): number;
  /** True with this probability. */
  chance(p: number): boolean;
  /** Starts again from another seed. */
  reseed(seed: number): void;
}

/** mulberry32: 32 bits of state, enough for traces of some thousand steps, and a few nanoseconds a number. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  function u32(): number {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (t ^ (t >>> 14)) >>> 0;
  }
  return {
    u32,
    below: (n) => (n <= 0 ? 0 : u32() % n),
    float: () => u32() / 0x1_0000_0000,
    chance: (p) => u32() < p * 0x1_0000_0000,
    reseed(next) {
      state = next >>> 0;
    },
  };
}

/**
 * Rows of numbers by key, of which the newest are remembered. It makes no object for a row: JavaScriptCore moves
 * nothing in its heap, so that each small object that outlives a burst keeps 16 KB of it from being given back
 * (docs/performance.md). Two generations, the older one forgotten whole: a Map whose oldest entry is deleted for each
 * new one makes its storage anew all the time.
 */
export interface RecentRows {
  /** The numbers of all rows; one row's begin at what `find` and `add` return, until the next of either. */
  readonly numbers: Float64Array;
  /** Where the row of a key begins, -1 without one. What is found is as new as what is added. */
  find(key: number): number;
  /** Where the row of a key that has none begins, all zero. */
  add(key: number): number;
}

/**
 * Remembers between `max / 2` and `max` rows.
 *
 * @param max an even number
 * @param width numbers in a row
 */
export function createRecentRows(max: number, width: number): RecentRows {
  const half = max / 2;
  const numbers = new Float64Array(max * width);
  let young = { first: 0, rows: new Map<number, number>() };
  let old = { first: half * width, rows: new Map<number, number>() };

  function place(key: number): number {
    if (young.rows.size === half) {
      [young, old] = [old, young];
      young.rows.clear();
    }
    const at = young.first + young.rows.size * width;
    young.rows.set(key, at);
    return at;
  }

  return {
    numbers,
    find(key) {
      const at = young.rows.get(key);
      if (at !== undefined) return at;
      const before = old.rows.get(key);
      if (before === undefined) return -1;
      // Taken out first: the place may be in the generation that is forgotten for it.
      const row = numbers.slice(before, before + width);
      const after = place(key);
      numbers.set(row, after);
      return after;
    },
    add(key) {
      const at = place(key);
      numbers.fill(0, at, at + width);
      return at;
    },
  };
}

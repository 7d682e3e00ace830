/**
 * Remembers rows of numbers by key, the newest `max / 2` to `max` of them, in two generations of which the older one
 * is forgotten whole.
 *
 * It makes no object that stays: JavaScriptCore moves nothing in its heap, and a small object that outlives a burst
 * keeps the whole block that it lies in (docs/performance.md).
 *
 * @param max an even number
 * @param width numbers in a row
 * @returns the row of a key, all zero when it is new or was forgotten: to be read and written until the next call
 */
export function createRecentRows(max: number, width: number): (key: number) => Float64Array {
  const half = max / 2;
  const numbers = new Float64Array(max * width);
  let young = { first: 0, places: new Map<number, number>() };
  let old = { first: half * width, places: new Map<number, number>() };
  return (key) => {
    let at = young.places.get(key);
    if (at === undefined) {
      const before = old.places.get(key);
      if (young.places.size === half) {
        [young, old] = [old, young];
        young.places.clear();
      }
      at = young.first + young.places.size * width;
      young.places.set(key, at);
      if (before === undefined) numbers.fill(0, at, at + width);
      else numbers.copyWithin(at, before, before + width);
    }
    return numbers.subarray(at, at + width);
  };
}

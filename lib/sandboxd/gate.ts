/** Lets a bounded number through at once, the others in the order of their coming. */
export interface Gate {
  /** Runs `task` when there is room. How many wait is bounded by who calls: one call per Pod at a time. */
  through<T>(task: () => Promise<T>): Promise<T>;
  readonly waiting: number;
}

/** @param places how many may be inside at once */
export function createGate(places: number): Gate {
  let free = places;
  const queue: (() => void)[] = [];

  async function run<T>(task: () => Promise<T>): Promise<T> {
    try {
      return await task();
    } finally {
      const next = queue.shift();
      if (next === undefined) free++;
      else next();
    }
  }

  return {
    through(task) {
      if (free > 0) {
        free--;
        return run(task);
      }
      return new Promise<void>((resolve) => queue.push(resolve)).then(() => run(task));
    },
    get waiting() {
      return queue.length;
    },
  };
}

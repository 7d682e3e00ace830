/** Numbers, times and lists as a person says them. */

/** `1 Pod`, `3 Pods`. */
export function count(n: number, one: string, many = `${one}s`): string {
  return `${n} ${n === 1 ? one : many}`;
}

/** `a, b and c`. */
export function listed(words: readonly string[]): string {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** A span of time as a person says it: `850 ms`, `12 s`, `3 min`, `5 h`, `2 d`. Two units where one is too coarse. */
export function span(ms: number): string {
  const abs = Math.abs(Math.round(ms));
  if (abs < 1000) return `${abs} ms`;
  if (abs < 100_000) return `${Math.round(abs / 1000)} s`;
  const minutes = Math.round(abs / 60_000);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h${minutes % 60 === 0 ? "" : ` ${minutes % 60} min`}`;
  const days = Math.floor(hours / 24);
  return `${days} d${hours % 24 === 0 ? "" : ` ${hours % 24} h`}`;
}

/** Bytes in binary units with three figures: `512 MiB`, `1.5 GiB`. */
export function bytes(n: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = n;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${units[unit]}`;
}

/** Whether a Pod's pool exists, by what sandboxd or the nodes' inventories say. */
import { nearest } from "../config/index.ts";
import { annotationPath, type Case } from "./context.ts";
import { netKey, nets, sizeKey, sizes, templateKey } from "./contract.ts";
import type { Hit, PoolFact } from "./types.ts";

/** As many pools are named in one message. */
const poolsShownMax = 5;

/** Judges template, net and size against the pools that are known. */
export function judgePools({ subject, context }: Case): Hit[] {
  const { pools: known } = context;
  if (known === undefined) return [];
  const template = subject.annotations[templateKey] ?? "";
  const net = subject.annotations[netKey] ?? "";
  const size = subject.annotations[sizeKey] ?? "";
  // A wrong axis is reported as such.
  if (template === "" || (net !== "" && !nets.includes(net)) || (size !== "" && !sizes.includes(size)))
    return [];
  const ofTemplate = known.pools.filter((pool) => pool.template === template);
  // An axis that is left out is sandboxd's own default, which it does not tell: any pool may be the one.
  const matching = ofTemplate.filter(
    (pool) => (net === "" || pool.net === net) && (size === "" || pool.size === size),
  );
  const path = annotationPath(subject, templateKey);
  if (matching.length === 0) {
    const near = nearest(template, new Set(known.pools.map((pool) => pool.template)));
    const others = ofTemplate.length > 0 ? `It has ${shownPools(ofTemplate)}.` : "";
    return [
      {
        rule: "sandboxd/pool-missing",
        path,
        what: `${known.source} has no pool ${poolName({ template, net, size })}; every claim is refused. ${others}`.trim(),
        fix:
          ofTemplate.length > 0
            ? "Name the net and size of a pool that there is, or provision this one."
            : near === undefined
              ? "Provision the pool in sandboxd, or name one that there is."
              : `Write ${near}, or provision the pool in sandboxd.`,
      },
    ];
  }
  if (matching.some((pool) => pool.warm > 0)) return [];
  const target = matching.reduce((sum, pool) => sum + pool.target, 0);
  return [
    {
      rule: "sandboxd/pool-cold",
      path,
      what:
        target === 0
          ? `The pool ${poolName({ template, net, size })} is kept at 0 warm VMs; claims are refused.`
          : `The pool ${poolName({ template, net, size })} has no warm VM of ${target} now; claims are refused until it is refilled.`,
      fix:
        target === 0
          ? "Give the pool a target above 0 in sandboxd."
          : "Wait, or raise the pool's target in sandboxd.",
    },
  ];
}

/** A pool key as people read it. */
export function poolName({ template, net, size }: Pick<PoolFact, "template" | "net" | "size">): string {
  return `${template} (net ${net || "default"}, size ${size || "default"})`;
}

function shownPools(pools: readonly PoolFact[]): string {
  const names = [
    ...new Set(pools.map(({ net, size }) => `net ${net || "default"}, size ${size || "default"}`)),
  ];
  const more = names.length - poolsShownMax;
  return `${names.slice(0, poolsShownMax).join("; ")}${more > 0 ? `; and ${more} more` : ""}`;
}

import { expect, test } from "bun:test";
import { type Admission, createBudget } from "./budget.ts";
import { fakeClock } from "./fake-clock.ts";

function setup(limits: { qps?: number; burst?: number; inFlightMax?: number; waitingMax?: number } = {}) {
  const clock = fakeClock();
  const budget = createBudget({
    qps: 10,
    burst: 2,
    inFlightMax: 100,
    waitingMax: 3,
    clock,
    ...limits,
  });
  return { clock, budget };
}

test("within the burst a request starts with no promise and no timer", () => {
  const { clock, budget } = setup();
  expect(budget.take()).toBeUndefined();
  expect(budget.take()).toBeUndefined();
  expect(clock.timers).toBe(0);
});

test("beyond the burst requests start in the order they came, one each 1/qps", async () => {
  const { clock, budget } = setup();
  budget.take();
  budget.take();
  const order: number[] = [];
  const waits = [1, 2, 3].map((n) => budget.take()?.then(() => order.push(n)));
  expect(budget.waiting).toBe(3);
  clock.advance(99);
  await Promise.resolve();
  expect(order).toEqual([]);
  clock.advance(1);
  await waits[0];
  expect(order).toEqual([1]);
  clock.advance(200);
  await Promise.all(waits);
  expect(order).toEqual([1, 2, 3]);
  expect(clock.timers).toBe(0);
});

test("a newcomer never overtakes those who wait, although a token has come before the timer ran", async () => {
  let nowMs = 1_000;
  const budget = createBudget({
    qps: 10,
    burst: 1,
    inFlightMax: 100,
    waitingMax: 3,
    clock: { now: () => nowMs, after: () => () => {} },
  });
  budget.take();
  const order: string[] = [];
  const first = budget.take()?.then(() => order.push("first"));
  nowMs += 100;
  const second = budget.take()?.then(() => order.push("second"));
  expect(second).toBeInstanceOf(Promise);
  await first;
  expect(order).toEqual(["first"]);
});

test("one more than may wait is turned away", async () => {
  const { budget } = setup({ burst: 1, waitingMax: 1 });
  budget.take();
  budget.take();
  expect(await budget.take()).toBe("full");
});

test("who stops waiting leaves the queue and costs no token", async () => {
  const { clock, budget } = setup({ burst: 1 });
  budget.take();
  const controller = new AbortController();
  const gone = budget.take(controller.signal);
  const next = budget.take();
  controller.abort();
  expect(await gone).toBe("aborted");
  expect(budget.waiting).toBe(1);
  clock.advance(100);
  expect(await next).toBe("admitted");
});

test("no more requests are in flight than allowed, and the next starts when one ends", async () => {
  const { clock, budget } = setup({ burst: 10, inFlightMax: 2 });
  budget.take();
  budget.take();
  const third = budget.take();
  expect(third).toBeInstanceOf(Promise);
  expect(clock.timers).toBe(0);
  budget.done();
  expect(await third).toBe("admitted");
  expect(budget.inFlight).toBe(2);
});

test("after a hold nothing starts before its end, and then not in a burst", async () => {
  const { clock, budget } = setup({ burst: 5, waitingMax: 10 });
  budget.hold(clock.now() + 1_000);
  const admitted: number[] = [];
  const waits = [1, 2, 3].map((n) =>
    budget.take()?.then((a: Admission) => a === "admitted" && admitted.push(n)),
  );
  clock.advance(1_000);
  await Promise.resolve();
  expect(admitted).toEqual([]);
  clock.advance(100);
  await waits[0];
  expect(admitted).toEqual([1]);
  clock.advance(200);
  await Promise.all(waits);
  expect(admitted).toEqual([1, 2, 3]);
});

for (const held of [false, true]) {
  test(`a wall clock that is set back ${held ? "during a hold " : ""}does not stop the budget`, () => {
    let nowMs = 100_000_000;
    const { after } = fakeClock();
    const clock = { now: () => nowMs, after };
    const budget = createBudget({ qps: 10, burst: 1, inFlightMax: 100, waitingMax: 3, clock });
    if (held) budget.hold(nowMs + 50_000);
    else budget.take();
    nowMs -= 3_600_000;
    void budget.take();
    expect(budget.waiting).toBe(1);
    nowMs += 200;
    // One token came in that time, for the one that waits.
    budget.done();
    expect(budget.waiting).toBe(0);
  });
}

test("a queue that was long is served to its end", async () => {
  const { clock, budget } = setup({ qps: 1000, burst: 1, waitingMax: 5000, inFlightMax: 10_000 });
  budget.take();
  const waits = Array.from({ length: 5000 }, () => budget.take());
  clock.advance(5_100);
  expect(new Set(await Promise.all(waits))).toEqual(new Set<Admission>(["admitted"]));
  expect(budget.waiting).toBe(0);
});

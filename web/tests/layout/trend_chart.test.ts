import { expect, it } from "vitest";

import { CHART, largestCauses, lineOf, stackOf } from "../../src/layout/trend_chart";
import { type TrendStep, withSteps } from "../../src/model/training";

function step(number: number, lost: Record<string, number> = {}): TrendStep {
  return {
    step: number,
    iteration_ns: null,
    window_ns: null,
    bubble: null,
    lost,
    slowest_rank: null,
    slowest_stage: null,
    data: null,
  };
}

it("interrupts a line where a value is unknown, and states the range of the others", () => {
  const line = lineOf([1, null, 4, 2], 4)!;
  expect(line.path.match(/M/g)).toHaveLength(2);
  expect(line.path).not.toContain("NaN");
  expect([line.low, line.high, line.last]).toEqual([1, 4, 2]);
  expect(lineOf([null, null], 4)).toBeNull();
  expect(lineOf([0], 0)!.path).toBe(`M140.0 ${CHART.height.toFixed(1)}`);
});

it("stacks areas from the bottom to the top", () => {
  const [below, above] = stackOf([[1], [1]], 2);
  expect(below).toBe("M140.0 28.0L140.0 56.0Z");
  expect(above).toBe("M140.0 0.0L140.0 28.0Z");
});

it("shows the causes that lose most", () => {
  const steps = [step(0, { jitter: 0.1, straggler: 0, optimizer: 0.3 }), step(1, { jitter: 0.1 })];
  expect(largestCauses(steps, 1)).toEqual([["optimizer", [0.3, 0]]]);
  expect(largestCauses(steps, 9).map(([cause]) => cause)).toEqual(["optimizer", "jitter"]);
});

it("adds steps that came, and begins again after a gap", () => {
  const known = { first: 3, steps: [step(10), step(11)] };
  expect(withSteps(known, { first: 5, steps: [step(12)] })).toEqual({
    first: 3,
    steps: [step(10), step(11), step(12)],
  });
  const later = { first: 90, steps: [step(99)] };
  expect(withSteps(known, later)).toBe(later);
  const many = { first: 0, steps: Array.from({ length: 2000 }, (_, i) => step(i)) };
  const more = withSteps(many, { first: 2000, steps: [step(2000)] });
  expect([more.first, more.steps.length, more.steps.at(-1)!.step]).toEqual([1, 2000, 2000]);
});

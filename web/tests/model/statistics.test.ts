import { describe, expect, it } from "vitest";

import { computeStatistics, unionLength } from "../../src/model/statistics";
import { sourceOf } from "../blob";

const { spans } = sourceOf(`
  F0 F1 .  .  B0 - B1 -
  .  F0 F1 B0 -  B1 - .`);

describe("a selection", () => {
  it("counts every span with its part inside", () => {
    const selection = computeStatistics(spans, null, 5, 45, [0, 1]);
    expect(selection.kinds).toEqual([
      { kind: 1, count: 4, sum_ns: 5 + 10 + 20 },
      { kind: 2, count: 2, sum_ns: 5 + 15 },
    ]);
    expect(selection.busy_ns).toBe(55);
    expect(selection.idle_ns).toBe(80 - 55);
  });

  it("of everything adds up to all work", () => {
    const selection = computeStatistics(spans, null, 0, 80, [0, 1]);
    expect([selection.span_count, selection.busy_ns, selection.idle_ns]).toEqual([8, 120, 40]);
  });

  it("of rows without anything is idle", () =>
    expect(computeStatistics(spans, null, 0, 10, [1]).idle_ns).toBe(10));
});

describe("the length of a union", () => {
  it("counts what overlaps once", () => {
    expect(
      unionLength([
        [0, 10],
        [5, 15],
        [20, 30],
        [22, 25],
      ]),
    ).toBe(25);
    expect(unionLength([])).toBe(0);
  });
});

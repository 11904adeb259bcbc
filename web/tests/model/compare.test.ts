import { describe, expect, it } from "vitest";

import { compareRuns, compareSteps, HIDDEN } from "../../src/model/compare";
import { Spans } from "../../src/model/spans";
import { sourceOf, tableOf } from "../blob";

describe("two runs", () => {
  it("are matched action by action, and the change is a fraction of the other's duration", () => {
    const own = sourceOf("F0 - B0 -");
    const other = sourceOf("F0 B0 - F1");
    const comparison = compareRuns([own.meta, own.spans], [other.meta, other.spans]);
    expect([0, 1].map(comparison.delta)).toEqual([1, 0]);
    expect([comparison.matched, comparison.unmatched]).toEqual([2, 0]);
    expect([comparison.own_ns, comparison.other_ns]).toEqual([40, 30]);
  });

  it("that have nothing in common match nothing", () => {
    const own = sourceOf("F0");
    const other = sourceOf("F1");
    expect(compareRuns([own.meta, own.spans], [other.meta, other.spans])).toMatchObject({
      matched: 0,
      unmatched: 1,
    });
  });

  it("of different numbers of stages have no comparable actions", () => {
    const own = sourceOf("F0 B0");
    const other = sourceOf("F0 B0");
    const more = { ...other.meta, ranks: { ...other.meta.ranks, stages: [[0, 1]] } };
    const comparison = compareRuns([own.meta, own.spans], [more, other.spans]);
    expect(comparison.stages).toEqual([1, 2]);
    expect([comparison.matched, comparison.unmatched, comparison.delta(0)]).toEqual([0, 0, undefined]);
  });

  it("of different units of time are refused", () => {
    const [own, other] = [sourceOf("F0 B0"), sourceOf("F0 B0")];
    const inCost = { ...other.meta, time_unit: "cost" as const };
    expect(() => compareRuns([own.meta, own.spans], [inCost, other.spans])).toThrow("units of cost");
  });

  it("have rows of their own, which are matched by rank", () => {
    const own = sourceOf("F0 B0\n. F0 B0");
    const other = sourceOf("F0 B0\n. F0 B0");
    const ranks = { ...other.meta.ranks, rank: [1, 2] };
    const comparison = compareRuns([own.meta, own.spans], [{ ...other.meta, ranks }, other.spans]);
    expect([0, 1].map(comparison.otherRow)).toEqual([-1, 0]);
    expect(comparison.absentRanks).toBe(1);
  });

  it("can be compared in one step, of which alone the other run is drawn", () => {
    const [own, other] = [sourceOf("F0 B0"), sourceOf("F0 B0")];
    const inStep = (step: number) => compareRuns([own.meta, own.spans], [other.meta, other.spans], step);
    expect(inStep(0)).toMatchObject({ matched: 2, unmatched: 0, onlyStep: 0 });
    expect([...other.spans.kind]).not.toContain(HIDDEN);
    expect(inStep(7)).toMatchObject({ matched: 0, unmatched: 0, onlyStep: 7 });
    expect(new Set(other.spans.kind)).toEqual(new Set([HIDDEN]));
  });

  it("of which the other has longer steps are cut off where the next step begins", () => {
    const own = sourceOf("F0 - B0 -");
    const other = sourceOf("F0 - B0 -");
    const steps = [own.meta.steps[0]!, { ...own.meta.steps[0]!, step: 1, start: 25 }];
    const comparison = compareRuns([{ ...own.meta, steps }, own.spans], [other.meta, other.spans]);
    expect(comparison.cut).toBe(1);
    expect([...other.spans.duration]).toEqual([20, 5]);
  });
});

/** A run whose steps have one forward each, at these times. */
function runOfSteps(steps: [number, number][], withoutStep: [number, number][] = []) {
  const all = [...steps, ...withoutStep.map(([, start]): [number, number] => [-1, start])];
  all.sort(([, one], [, other]) => one - other);
  const table = tableOf({
    row: all.map(() => 0),
    kind: all.map(() => 1),
    lane: all.map(() => 0),
    stage: all.map(() => 0),
    microbatch: all.map(() => 0),
    step: all.map(([step]) => (step < 0 ? null : step)),
    start: all.map(([, start]) => start),
    duration: all.map(() => 10),
  });
  const { meta } = sourceOf("F0");
  const [first] = meta.steps;
  const described = steps.map(([step, start]) => ({ ...first!, step, start, end: start + 10 }));
  return { meta: { ...meta, steps: described }, spans: new Spans(table) };
}

describe("the earlier run", () => {
  it("is cut off where the next step begins, also in steps that the later run lacks", () => {
    const own = runOfSteps([
      [0, 0],
      [2, 100],
    ]);
    const other = runOfSteps([
      [0, 0],
      [1, 95],
      [2, 200],
    ]);
    const comparison = compareRuns([own.meta, own.spans], [other.meta, other.spans]);
    expect([...other.spans.start]).toEqual([0, 95, 100]);
    expect([...other.spans.duration]).toEqual([10, 5, 10]);
    expect(comparison.cut).toBe(1);
  });

  it("has spans without a step beside the step that they were recorded in", () => {
    const own = runOfSteps([
      [0, 0],
      [1, 100],
      [2, 200],
    ]);
    const other = runOfSteps(
      [
        [0, 0],
        [1, 150],
        [2, 300],
      ],
      [
        [-1, 20],
        [-1, 170],
      ],
    );
    compareRuns([own.meta, own.spans], [other.meta, other.spans]);
    expect([...other.spans.start]).toEqual([0, 20, 100, 120, 200]);
  });
});

describe("two steps of one run", () => {
  it("are matched without their number, and only the other step is drawn", () => {
    const source = sourceOf("F0 - B0 -");
    const [own] = source.meta.steps;
    const comparison = compareSteps(source.meta, [source.spans, source.spans], [own!, own!]);
    expect(comparison.steps).toEqual([0, 0]);
    expect([0, 1].map(comparison.delta)).toEqual([0, 0]);
    expect([...comparison.spans.kind]).not.toContain(HIDDEN);
  });
});

import { describe, expect, it } from "vitest";

import { IdleIntervals } from "../../src/model/idle";
import { sourceOf, tableOf } from "../blob";

/** Row 0: [0, 10) [10, 25), then [50, 60); row 2: [5, 9). */
const table = tableOf(
  {
    row: [0, 0, 0, 2],
    start: [0, 10, 50, 5],
    duration: [10, 15, 10, 4],
    waiting_for: [0, 1, 0, 1],
    waits_for: [7, null, 8, 9],
    cause: [0, 1, 0, 1],
    culprit: [5, null, null, 9],
    waits_for_row: [1, null, 2, 0],
    culprit_row: [1, null, null, 0],
    step: [1, 1, 2, 1],
  },
  { origin: 100 },
);
table.words = (name) => (name === "cause" ? ["jitter", "straggler"] : ["compute", "transfer"]);
table.text = () => null;
const idle = new IdleIntervals(table);

describe("starts stored as the preceding span", () => {
  it("are the ends of those spans, or of the interval before", () => {
    const { spans } = sourceOf("F0 . . B0\n. F0 . B0");
    const after = tableOf({
      row: [0, 0, 1, 1],
      duration: [5, 15, 10, 10],
      waiting_for: [0, 0, 0, 0],
      waits_for: [null, null, null, null],
      after: [0, null, null, 2],
      lead: [0, 0, 0, 0],
    });
    expect([...new IdleIntervals(after, spans).start]).toEqual([10, 15, 0, 20]);
  });
});

describe("idle intervals", () => {
  it.each([
    [0, 100, 160, [0, 3]],
    [0, 110, 150, [1, 2]],
    [0, 109, 151, [0, 3]],
    [1, 0, 1000, [3, 3]],
    [2, 0, 1000, [3, 4]],
    [9, 0, 1000, [0, 0]],
  ])("of row %d from %d to %d are found", (row, start, end, places) =>
    expect(idle.within(row, start, end)).toEqual(places),
  );

  it("before a span are listed up to the first break", () => {
    expect(idle.before(0, 125)).toEqual([1, 0]);
    expect(idle.before(0, 160)).toEqual([2]);
    expect(idle.before(0, 124)).toEqual([]);
    expect(idle.before(2, 109)).toEqual([3]);
  });

  it("are summed by what they wait for, clipped to the range", () => {
    expect(idle.sums(105, 155, [0, 1])).toEqual([
      { waiting_for: "transfer", sum_ns: 15 },
      { waiting_for: "compute", sum_ns: 10 },
    ]);
    expect(idle.totals()).toEqual([
      { waiting_for: "compute", sum_ns: 20 },
      { waiting_for: "transfer", sum_ns: 19 },
    ]);
  });

  it("name what they wait for", () => {
    expect([0, 1].map((place) => idle.waitsFor(place))).toEqual([7, null]);
    expect(idle.waitingFor(1)).toBe("transfer");
  });

  it("name their cause and culprit", () => {
    expect([0, 1, 2].map((place) => idle.causeOf(place))).toEqual(["jitter", "straggler", "jitter"]);
    expect([0, 2, 3].map((place) => idle.culprit(place))).toEqual([5, null, 9]);
    expect([0, 1, 3].map((place) => idle.waitsForRow(place))).toEqual([1, -1, 0]);
    expect([0, 1, 3].map((place) => idle.culpritRow(place))).toEqual([1, -1, 0]);
    expect(idle.mainWait("straggler")).toBe("transfer");
    expect(idle.mainWait("optimizer")).toBeNull();
  });

  it("are found at a time, the longest of some, and the delay before a time in a step", () => {
    expect([109, 110, 124, 125].map((time) => idle.at(0, time))).toEqual([0, 1, 1, -1]);
    expect(idle.longest((place) => idle.causeOf(place) === "straggler")).toBe(1);
    expect(idle.longest(() => false)).toBe(-1);
    expect(idle.delayBefore(0, 150, 1)).toBe(0); // the one at 110 waits for nothing known
    expect(idle.delayBefore(0, 150, 2)).toBe(-1);
    expect(idle.delayBefore(0, 160, 2)).toBe(2);
  });
});

import { describe, expect, it } from "vitest";

import { Gaps } from "../../src/model/gaps";
import { sourceOf, tableOf } from "../blob";

/** Row 0: [0, 10) [10, 25), then [50, 60); row 2: [5, 9). */
const table = tableOf(
  { row: [0, 0, 0, 2], start: [0, 10, 50, 5], duration: [10, 15, 10, 4], cause: [0, 1, 0, 1], waits_for: [7, null, 8, 9] },
  { origin: 100 },
);
table.words = () => ["compute", "transfer"];
table.text = () => null;
const gaps = new Gaps(table);

describe("starts that are told by the spans before", () => {
  it("are the ends of those spans, or of the piece before", () => {
    const { spans } = sourceOf("F0 . . B0\n. F0 . B0");
    const after = tableOf({
      row: [0, 0, 1, 1], duration: [5, 15, 10, 10], cause: [0, 0, 0, 0], waits_for: [null, null, null, null],
      after: [0, null, null, 2], lead: [0, 0, 0, 0],
    });
    expect([...new Gaps(after, spans).start]).toEqual([10, 15, 0, 20]);
  });
});

describe("idle time in pieces", () => {
  it.each([
    [0, 100, 160, [0, 3]],
    [0, 110, 150, [1, 2]],
    [0, 109, 151, [0, 3]],
    [1, 0, 1000, [3, 3]],
    [2, 0, 1000, [3, 4]],
    [9, 0, 1000, [0, 0]],
  ])("of row %d from %d to %d is found", (row, start, end, places) => expect(gaps.within(row, start, end)).toEqual(places));

  it("leads up to a span as long as there is no break", () => {
    expect(gaps.before(0, 125)).toEqual([1, 0]);
    expect(gaps.before(0, 160)).toEqual([2]);
    expect(gaps.before(0, 124)).toEqual([]);
    expect(gaps.before(2, 109)).toEqual([3]);
  });

  it("is summed by cause, with its part inside", () => {
    expect(gaps.sums(105, 155, [0, 1])).toEqual([{ cause: "transfer", sum_ns: 15 }, { cause: "compute", sum_ns: 10 }]);
    expect(gaps.totals()).toEqual([{ cause: "compute", sum_ns: 20 }, { cause: "transfer", sum_ns: 19 }]);
  });

  it("says what it waits for, or nothing", () => {
    expect([0, 1].map((place) => gaps.waitsFor(place))).toEqual([7, null]);
    expect(gaps.words(1)).toBe("transfer");
  });
});

import { describe, expect, it } from "vitest";

import { Kernels } from "../../src/model/kernels";
import { tableOf } from "../blob";

/** Row 0, lane 0: [0, 100) [100, 110); lane 1: [5, 25); row 2, lane 0: [7, 8). */
const table = tableOf(
  {
    row: [0, 0, 0, 2],
    start: [0, 5, 100, 7],
    duration: [100, 20, 10, 1],
    lane: [0, 1, 0, 0],
    category: [1, 0, 0, 1],
    stream: [7, 27, 7, null],
    pair: [null, 3, null, null],
  },
  { origin: 1000 },
);
table.words = (name) => (name === "category" ? ["communication", "gemm"] : []);
table.text = (name, place) => (name === "name" ? `kernel ${place}` : null);
const kernels = new Kernels(table);

describe("kernels", () => {
  it("have times from the origin, and lanes by row", () => {
    expect([...kernels.start]).toEqual([1000, 1005, 1100, 1007]);
    expect([0, 1, 2, 3].map((row) => kernels.laneCount(row))).toEqual([2, 0, 1, 0]);
    expect(kernels.typical).toBe(20);
  });

  it.each([
    [0, 1000, 1200, [0, 3]],
    [0, 1050, 1060, [0, 2]],
    [0, 1101, 1102, [2, 3]],
    [2, 1000, 1006, [3, 3]],
    [2, 1000, 1008, [3, 4]],
    [1, 0, 9999, [3, 3]],
    [9, 0, 9999, [0, 0]],
  ])("of row %i that may overlap [%i, %i) are %j", (row, start, end, places) => {
    expect(kernels.within(row, start, end)).toEqual(places);
  });

  it.each([
    [0, 1050, 0, 0],
    [1, 1010, 0, 1],
    [1, 1030, 0, -1],
    [1, 1027, 3, 1],
    [0, 1105, 0, 2],
  ])("of lane %i at %i within %i: %i", (lane, time, slack, place) => {
    expect(kernels.at(0, lane, time, slack)).toBe(place);
  });

  it("state their facts; unknown ones are null", () => {
    expect(kernels.kernel(1)).toMatchObject({
      category: "communication",
      stream: 27,
      pair: 3,
      name: "kernel 1",
    });
    expect(kernels.kernel(3)).toMatchObject({ category: "gemm", stream: null, pair: null, action: null });
  });

  it("may be none", () => {
    const none = new Kernels(
      tableOf({ row: [], start: [], duration: [], lane: [], category: [], stream: [], pair: [] }),
    );
    expect([none.count, none.typical, none.laneCount(0)]).toEqual([0, 0, 0]);
    expect(none.within(0, 0, 1)).toEqual([0, 0]);
  });
});

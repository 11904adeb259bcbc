import { describe, expect, it } from "vitest";

import {
  arranged,
  furthestFromIdeal,
  type Listing,
  spansInView,
  tableText,
} from "../../src/layout/table_rows";
import { Viewer } from "../../src/layout/viewer";
import { sourceOf } from "../blob";

const LISTING: Listing = {
  columns: [
    { name: "rank", type: "number" },
    { name: "name", type: "text" },
    { name: "duration", type: "ns" },
  ],
  rows: [
    { key: 1, select: "span", cells: [10, "b\tc", 5] },
    { key: 2, select: "span", cells: [9, "a", 1_000_000_007] },
    { key: 3, select: "span", cells: [11, null, null] },
  ],
  count: 3,
};

describe("rows of the table", () => {
  it("are sorted by value, and unknown values come last in either direction", () => {
    const keys = (by: number, isFalling: boolean): number[] =>
      arranged(LISTING, "", by, isFalling).map((row) => row.key);
    expect(keys(0, false)).toEqual([2, 1, 3]);
    expect(keys(2, true)).toEqual([2, 1, 3]);
    expect(keys(2, false)).toEqual([1, 2, 3]);
    expect(keys(1, true)).toEqual([1, 2, 3]);
  });

  it("are filtered by a text in any column", () => {
    expect(arranged(LISTING, " A ", -1, false).map((row) => row.key)).toEqual([2]);
  });

  it("are copied with exact times, one line each, whatever names contain", () => {
    expect(tableText(LISTING.columns, LISTING.rows)).toBe(
      "rank\tname\tduration (ns)\n10\tb c\t5\n9\ta\t1000000007\n11\t\t",
    );
  });

  it("list the spans in view with their times to the nanosecond", () => {
    const source = sourceOf("F0 - B0 -");
    const listing = spansInView(new Viewer(source.meta, source.source));
    expect(listing.count).toBe(2);
    expect(listing.rows.map((row) => row.cells.slice(6, 8))).toEqual([
      [0, 20],
      [20, 20],
    ]);
  });

  it("list the actions furthest from the ideal schedule first", () => {
    const source = sourceOf("F0 - - B0");
    const ideal = sourceOf("F0 B0").spans;
    const listing = furthestFromIdeal(new Viewer(source.meta, source.source), ideal);
    expect(listing.rows.map((row) => row.cells.at(-1))).toEqual([20, 0]);
  });
});

import { describe, expect, it } from "vitest";

import {
  autoPitch,
  HEADING_HEIGHT,
  LABEL_HEIGHT,
  pinnedHeight,
  placeRows,
  type RowChoice,
  rowAt,
  rowOnScreen,
  rowsOnScreen,
  screenTop,
  visibleRows,
} from "../../src/layout/rows";
import { metaOf } from "../blob";

const META = metaOf([], 4);
META.ranks.machine = ["b", "a", "b", "a"];
META.ranks.stages = [[1], [0], [0], [1]];
const CHOICE: RowChoice = { group: "none", sort: "rank", pinned: [], hidden: [] };
const order = (choice: Partial<RowChoice>): number[] =>
  placeRows(META, { ...CHOICE, ...choice }, 10).placed.map((row) => row.row);

describe("rows", () => {
  it("are sorted by rank, stage or machine", () => {
    expect(order({})).toEqual([0, 1, 2, 3]);
    expect(order({ sort: "stage" })).toEqual([1, 2, 0, 3]);
    expect(order({ sort: "machine" })).toEqual([1, 3, 0, 2]);
  });

  it("are sorted by rank where the run has them pipeline by pipeline", () => {
    const meta = metaOf([], 4);
    meta.ranks.rank = [0, 2, 1, 3];
    expect(placeRows(meta, CHOICE, 10).placed.map((row) => row.row)).toEqual([0, 2, 1, 3]);
    meta.ranks.rank = [0, 3, 1, 2];
    expect(placeRows(meta, CHOICE, 10).placed.map((row) => row.row)).toEqual([0, 2, 3, 1]);
  });

  it("are grouped under headings", () => {
    const rows = placeRows(META, { ...CHOICE, group: "machine" }, 10);
    expect(rows.headings.map((heading) => heading.text)).toEqual(["machine a", "machine b"]);
    expect(rows.placed.map((row) => row.row)).toEqual([1, 3, 0, 2]);
    expect(rows.height).toBe(4 * 10 + 2 * HEADING_HEIGHT);
  });

  it("that are pinned come first, those that are hidden not at all", () => {
    expect(order({ pinned: [3], hidden: [0] })).toEqual([3, 1, 2]);
    expect(order({ hidden: [0, 1, 2, 3] })).toEqual([]);
  });

  it("are found by height, and the gap between two is none", () => {
    const rows = placeRows(META, CHOICE, 20);
    expect(rowAt(rows, 25)?.row).toBe(1);
    expect(rowAt(rows, 19)).toBeNull();
    expect(rowAt(rows, -1)).toBeNull();
    expect(visibleRows(rows, 25, 45)).toEqual([1, 3]);
  });

  it("number ten thousand without trouble", () => {
    const meta = metaOf([], 10_000);
    const rows = placeRows(meta, { ...CHOICE, group: "pipeline" }, 4);
    expect(rows.placed).toHaveLength(10_000);
    expect(visibleRows(rows, 20_000, 20_400)[1] - visibleRows(rows, 20_000, 20_400)[0]).toBeLessThan(105);
  });
});

describe("the height of rows", () => {
  it("fills the picture with few ranks, and stays within limits", () => {
    expect(autoPitch(6, 640)).toBe(106);
    expect(autoPitch(1, 640)).toBe(120);
    expect(autoPitch(1000, 640)).toBe(14);
  });

  it("is enough for numbers in the blocks of many ranks", () => {
    const rows = placeRows(META, CHOICE, autoPitch(64, 640));
    expect(rows.placed[0]!.height).toBeGreaterThanOrEqual(LABEL_HEIGHT);
  });
});

describe("pinned rows", () => {
  it("are none without any", () => {
    const all = placeRows(META, CHOICE, 30);
    expect(rowsOnScreen({ rows: all, scroll: 0, height: 120 }).map((part) => part.length)).toEqual([0, 4]);
  });

  const rows = placeRows(META, { ...CHOICE, pinned: [3] }, 30);
  const screen = { rows, scroll: 45, height: 120 };

  it("stay at the top while the others scroll below them", () => {
    expect(pinnedHeight(screen)).toBe(HEADING_HEIGHT + 30);
    const [pinned, others] = rowsOnScreen(screen);
    expect(pinned.map((row) => row.row)).toEqual([3]);
    expect(screenTop(screen, pinned[0]!.top)).toBe(HEADING_HEIGHT);
    expect(others.map((row) => row.row)).toEqual([0, 1, 2]);
    expect(screenTop(screen, others[1]!.top)).toBe(others[1]!.top - 45);
  });

  it("are found where they are, above the rows that have scrolled there", () => {
    expect(rowOnScreen(screen, HEADING_HEIGHT + 5)?.row).toBe(3);
    expect(rowOnScreen(screen, HEADING_HEIGHT + 30 + 20)?.row).toBe(1);
  });

  it("scroll with the others if they would take most of the height", () => {
    const low = { rows, scroll: 45, height: 60 };
    expect(pinnedHeight(low)).toBe(0);
    expect(rowsOnScreen(low)[0]).toEqual([]);
    expect(screenTop(low, HEADING_HEIGHT)).toBe(HEADING_HEIGHT - 45);
  });
});

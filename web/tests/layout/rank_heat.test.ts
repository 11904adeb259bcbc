import { describe, expect, it } from "vitest";

import { largestRows, rankHeatOf, recordedMetrics, shade, valuesOf } from "../../src/layout/rank_heat";
import type { Table } from "../../src/model/columns";

function tableOf(rows: [number, number, number][]): Table {
  const column = (place: number): number[] => rows.map((row) => row[place]!);
  const columns: Record<string, number[]> = { row: column(0), step: column(1), idle_ns: column(2) };
  const read = (name: string): number[] => columns[name]!;
  const has = (name: string): boolean => name in columns;
  return { rows: rows.length, ints: read, values: read, has } as unknown as Table;
}

describe("the map of ranks by steps", () => {
  it("has a cell per rank and step, and none where a step is missing", () => {
    const heat = rankHeatOf(
      tableOf([
        [0, 5, 10],
        [0, 6, 20],
        [1, 6, 40],
      ]),
      "idle_ns",
      2,
      100,
    );
    expect(heat.steps).toEqual([
      [5, 5],
      [6, 6],
    ]);
    expect(heat.rows).toEqual([
      [0, 0],
      [1, 1],
    ]);
    expect([...heat.cells]).toEqual([10, 20, NaN, 40]);
    expect([...heat.places]).toEqual([0, 1, -1, 2]);
    expect([heat.low, heat.high]).toEqual([10, 40]);
  });

  it("keeps the largest value of several ranks and steps", () => {
    const rows: [number, number, number][] = [];
    for (let row = 0; row < 5; row++)
      for (let step = 0; step < 4; step++) rows.push([row, step, row * 10 + step]);
    const heat = rankHeatOf(tableOf(rows), "idle_ns", 5, 2);
    expect(heat.rows).toEqual([
      [0, 2],
      [3, 4],
    ]);
    expect(heat.steps).toEqual([
      [0, 1],
      [2, 3],
    ]);
    expect([...heat.cells]).toEqual([21, 23, 41, 43]);
    expect([...heat.places].map((place) => rows[place]!.slice(0, 2))).toEqual([
      [2, 1],
      [2, 3],
      [4, 1],
      [4, 3],
    ]);
  });

  it("has as work what is not idle", () => {
    const columns: Record<string, Float64Array> = {
      window_ns: Float64Array.from([10, 20]),
      idle_ns: Float64Array.from([4, 5]),
    };
    const table = { rows: 2, values: (name: string) => columns[name]! } as unknown as Table;
    expect([...valuesOf(table, "work_ns")]).toEqual([6, 15]);
    expect([...valuesOf(table, "idle_ns")]).toEqual([4, 5]);
  });

  it("keeps a zero", () => {
    expect([...rankHeatOf(tableOf([[0, 0, 0]]), "idle_ns", 1, 9).cells]).toEqual([0]);
  });
});

describe("the shade of a value", () => {
  it("spans all shades only for values that differ by a quarter", () => {
    expect(shade(0, 0, 100)).toBe(0);
    expect(shade(100, 0, 100)).toBe(1);
    expect(shade(98, 98, 100)).toBeCloseTo(0.92);
    expect(shade(7, 7, 7)).toBe(1);
    expect(shade(0, 0, 0)).toBe(0);
  });
});

describe("the metrics of a map", () => {
  it("leave out waits of which none was recorded", () => {
    const table = (waits: number[]): Table =>
      ({ rows: waits.length, ints: () => [], has: () => true, values: () => waits }) as unknown as Table;
    expect(recordedMetrics(table([0, 0]), ["idle_ns", "wait_ns"])).toEqual(["idle_ns"]);
    expect(recordedMetrics(table([0, 3]), ["idle_ns", "wait_ns"])).toEqual(["idle_ns", "wait_ns"]);
  });

  it("leave out what is unknown everywhere", () => {
    const table = { has: () => true, values: () => [NaN, NaN] } as unknown as Table;
    expect(recordedMetrics(table, ["idle_ns", "wait_ns"])).toEqual([]);
  });

  it("have the largest values, the first ones among equal values, and none of 0", () => {
    const values = Float64Array.from([5, 0, 9, 5, 7]);
    expect(largestRows(values, 3)).toEqual([2, 4, 0]);
    expect(largestRows(values, 9)).toEqual([2, 4, 0, 3]);
  });
});

/** The map of ranks by steps: how much of each step a rank computed, was blocked or was idle. */

import type { Table } from "../model/columns";

export const RANK_METRICS = ["idle_ns", "work_ns", "wait_ns"] as const;
export type RankMetric = (typeof RANK_METRICS)[number];

export interface RankHeat {
  /** The steps of the columns, rising; with many steps a column has several. */
  steps: [number, number][];
  /** The rows (of meta.ranks) of the lines, in the order of the run; with many ranks a line has several. */
  rows: [number, number][];
  /** The largest value of each cell, line by line; NaN: no such step on these ranks. */
  cells: Float64Array;
  /** The row and step of each cell's largest value. */
  places: Int32Array;
  low: number;
  high: number;
}

/** The values of a metric by row of the table; a rank works while it is not idle. */
export function valuesOf(table: Table, metric: RankMetric): Float64Array {
  if (metric !== "work_ns") return table.values(metric);
  const idle = table.values("idle_ns");
  return table.values("window_ns").map((window, i) => window - idle[i]!);
}

/** Sum up a table in at most `most` lines and columns of cells, each with its largest value. */
export function rankHeatOf(table: Table, metric: RankMetric, rowCount: number, most: number): RankHeat {
  const [row, step, value] = [table.ints("row"), table.ints("step"), valuesOf(table, metric)];
  const every = [...new Set(step)].sort((a, b) => a - b);
  const [perColumn, perLine] = [Math.ceil(every.length / most) || 1, Math.ceil(rowCount / most) || 1];
  const [width, height] = [Math.ceil(every.length / perColumn), Math.ceil(rowCount / perLine)];
  const column = new Map(every.map((one, i) => [one, Math.floor(i / perColumn)]));
  const cells = new Float64Array(width * height).fill(NaN);
  const places = new Int32Array(width * height).fill(-1);
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < table.rows; i++) {
    const cell = Math.floor(row[i]! / perLine) * width + column.get(step[i]!)!;
    if (value[i]! > cells[cell]! || Number.isNaN(cells[cell]!)) {
      cells[cell] = value[i]!;
      places[cell] = i;
    }
  }
  for (const one of cells) {
    if (Number.isNaN(one)) continue;
    [low, high] = [Math.min(low, one), Math.max(high, one)];
  }
  const groups = (count: number, size: number): [number, number][] =>
    Array.from({ length: Math.ceil(count / size) }, (_, i) => [
      i * size,
      Math.min((i + 1) * size, count) - 1,
    ]);
  return {
    steps: groups(every.length, perColumn).map(([first, last]) => [every[first]!, every[last]!]),
    rows: groups(rowCount, perLine),
    cells,
    places,
    low,
    high,
  };
}

/** Cells that differ by less than this fraction of the largest value differ by less than all shades. */
const LEAST_SPREAD = 0.25;

/** How strong the color of a value is, from 0 to 1: a spread of a few percent does not take all shades. */
export function shade(value: number, low: number, high: number): number {
  const pale = Math.min(low, high * (1 - LEAST_SPREAD));
  return high > pale ? (value - pale) / (high - pale) : 0;
}

/** The metrics with a known value: a wait that was not recorded is 0 everywhere, and no wait of 0. */
export function recordedMetrics<Metric extends string>(table: Table, names: readonly Metric[]): Metric[] {
  const isKnown = (name: Metric, value: number): boolean => (name === "wait_ns" ? value > 0 : value >= 0);
  // Work is the rest of a window, and no column.
  return names.filter((name) => !table.has(name) || table.values(name).some((value) => isKnown(name, value)));
}

/** Where the largest values above 0 are, the first ones among equal values. */
export function largestRows(values: Float64Array, most: number): number[] {
  const found: number[] = [];
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    const isLarge = found.length < most || value > values[found[most - 1]!]!;
    if (!(value > 0) || !isLarge) continue;
    const before = found.findIndex((one) => value > values[one]!);
    found.splice(before < 0 ? found.length : before, 0, i);
    found.length = Math.min(found.length, most);
  }
  return found;
}

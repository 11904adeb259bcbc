/** A chart of one counter over time: the range of all ranks, and the line of one. */

import type { Table } from "../model/columns";

export interface Counter {
  name: string;
  unit: string;
  /** Of each value: row of the run, time and value, sorted by row and time. */
  rows: Int32Array;
  times: Float64Array;
  values: Float64Array;
}

/** Counters by name, in the order of the table. */
export function countersOf(table: Table): Counter[] {
  const [names, units] = [table.ints("name"), table.has("unit") ? table.ints("unit") : null];
  const [rows, times, values] = [table.ints("row"), table.values("time"), table.values("value")];
  const found: Counter[] = [];
  for (let first = 0; first < table.rows; ) {
    let last = first + 1;
    while (last < table.rows && names[last] === names[first]) last++;
    found.push({
      name: table.words("name")[names[first]!]!,
      unit: table.words("unit")[units?.[first] ?? -1] ?? "",
      rows: rows.subarray(first, last),
      times: times.subarray(first, last),
      values: values.subarray(first, last),
    });
    first = last;
  }
  return found;
}

export interface Chart {
  /** SVG paths in a box of `width` by `height`. */
  band: string;
  line: string;
  low: number;
  high: number;
  /** The row of the line, and its highest value. */
  row: number;
  highest: number;
}

/** The paths of a counter from time 0 to `end`; the line is that of `wanted`, or of the row with the highest value. */
export function chartOf(
  counter: Counter,
  end: number,
  wanted: number | null,
  width: number,
  height: number,
): Chart {
  const { rows, times, values } = counter;
  const [low, high] = [least(values), most(values)];
  const row = wanted !== null && rows.includes(wanted) ? wanted : rows[values.indexOf(high)]!;
  const bottom = Math.min(low, 0);
  const y = (value: number): number => height * (1 - (value - bottom) / (high - bottom || 1));
  const x = (time: number): number => (width * time) / (end || 1);
  const lows = new Float64Array(width).fill(Infinity);
  const highs = new Float64Array(width).fill(-Infinity);
  const points: string[] = [];
  let highest = -Infinity;
  for (let i = 0; i < values.length; i++) {
    const column = Math.min(Math.max(Math.floor(x(times[i]!)), 0), width - 1);
    lows[column] = Math.min(lows[column]!, values[i]!);
    highs[column] = Math.max(highs[column]!, values[i]!);
    if (rows[i] !== row) continue;
    highest = Math.max(highest, values[i]!);
    points.push(`${points.length ? "L" : "M"}${rounded(x(times[i]!))} ${rounded(y(values[i]!))}`);
  }
  const columns = [...lows.keys()].filter((column) => highs[column]! > -Infinity);
  const there = columns.map((column, i) => `${i ? "L" : "M"}${column} ${rounded(y(highs[column]!))}`);
  const back = columns.reverse().map((column) => `L${column} ${rounded(y(lows[column]!))}`);
  return { band: `${there.join("")}${back.join("")}Z`, line: points.join(""), low, high, row, highest };
}

function rounded(value: number): number {
  return Math.round(value * 10) / 10;
}

function least(values: Float64Array): number {
  return values.reduce((found, value) => (value < found ? value : found), Infinity);
}

function most(values: Float64Array): number {
  return values.reduce((found, value) => (value > found ? value : found), -Infinity);
}

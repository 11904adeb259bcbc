import { expect, it } from "vitest";

import { type Counter, chartOf } from "../../src/layout/counter_chart";

const COUNTER: Counter = {
  name: "allocated memory",
  unit: "B",
  rows: Int32Array.of(0, 0, 1, 1),
  times: Float64Array.of(0, 50, 0, 50),
  values: Float64Array.of(10, 20, 40, 30),
};

it("draws the range of all rows, and the line of the highest", () => {
  const chart = chartOf(COUNTER, 100, null, 100, 40);
  expect(chart.row).toBe(1);
  expect([chart.low, chart.high, chart.highest]).toEqual([10, 40, 40]);
  expect(chart.line).toBe("M0 0L50 10");
  expect(chart.band).toBe("M0 0L50 10L50 20L0 30Z");
});

it("draws the line of a row that is asked for, if it has values", () => {
  expect(chartOf(COUNTER, 100, 0, 100, 40).line).toBe("M0 30L50 20");
  expect(chartOf(COUNTER, 100, 7, 100, 40).row).toBe(1);
});

it("draws a run without length, and values without a range", () => {
  const flat = { ...COUNTER, times: new Float64Array(4), values: new Float64Array(4) };
  expect(chartOf(flat, 0, null, 100, 40).line).toMatch(/^M/);
});

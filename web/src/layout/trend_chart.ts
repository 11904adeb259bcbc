/** Charts of a trend: which values, and where they are drawn. */

import type { TrendStep } from "../model/training";

export const CHART = { width: 280, height: 56 };
/** Steps of a chart; more would be closer than a pixel. */
export const CHARTED_STEPS = 240;

/** One line through the known values; a step without one interrupts it. */
export interface Line {
  path: string;
  low: number;
  high: number;
  last: number | null;
}

/** The SVG path of values against a scale from 0 to `top`, and their range; null if none is known. */
export function lineOf(values: (number | null)[], top: number): Line | null {
  const known = values.filter((value): value is number => value !== null);
  if (known.length === 0) return null;
  let path = "";
  let isDown = false;
  values.forEach((value, i) => {
    if (value === null) {
      isDown = false;
      return;
    }
    path += `${isDown ? "L" : "M"}${placeOf(i, values.length)} ${heightOf(value, top)}`;
    isDown = true;
  });
  return { path, low: Math.min(...known), high: Math.max(...known), last: known.at(-1)! };
}

/** Areas on top of each other, the first one at the bottom: the closed path of each. */
export function stackOf(layers: number[][], top: number): string[] {
  const count = layers[0]?.length ?? 0;
  let below: number[] = new Array(count).fill(0);
  return layers.map((values) => {
    const above = values.map((value, i) => below[i]! + value);
    const forth = above.map((value, i) => `${i ? "L" : "M"}${placeOf(i, count)} ${heightOf(value, top)}`);
    const back = below.map((value, i) => `L${placeOf(i, count)} ${heightOf(value, top)}`).reverse();
    below = above;
    return `${forth.join("")}${back.join("")}Z`;
  });
}

/** The causes that lose most in these steps, the largest first, and the values of each. */
export function largestCauses(steps: TrendStep[], most: number): [string, number[]][] {
  const sums = new Map<string, number>();
  for (const { lost } of steps)
    for (const [cause, share] of Object.entries(lost)) sums.set(cause, (sums.get(cause) ?? 0) + share);
  const largest = [...sums].filter(([, sum]) => sum > 0).sort(([, a], [, b]) => b - a);
  return largest
    .slice(0, most)
    .map(([cause]) => [cause, steps.map((step) => Math.max(0, step.lost[cause] ?? 0))]);
}

function placeOf(i: number, count: number): string {
  return ((CHART.width * (i + 0.5)) / count).toFixed(1);
}

function heightOf(value: number, top: number): string {
  return (CHART.height * (1 - value / (top || 1))).toFixed(1);
}

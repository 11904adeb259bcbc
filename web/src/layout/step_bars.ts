/** The steps as bars on a common scale: pure arithmetic. */

import type { Step } from "../model/meta";
import { clamp } from "./view";

/** Narrower bars would not be seen: where there are more steps than fit, a bar shows the slowest of several. */
export const LEAST_BAR_PX = 3;
/** Bars of steps that took more than so many times the median are cut off, or the others would be flat. */
export const MOST_MEDIANS = 4;

export interface StepBar {
  /** Places in `meta.steps`: of the steps that share the bar, and of the slowest of them, which it shows. */
  first: number;
  last: number;
  shown: number;
  left: number;
  width: number;
  /** Fractions of the height: the whole bar, and its bubble at the top. */
  height: number;
  bubble: number;
  isCut: boolean;
  isOutlier: boolean;
  inTotals: boolean;
}

export interface StepBars {
  bars: StepBar[];
  /** The length at the top of the scale, and the median; 0 if no length is known. */
  top_ns: number;
  median_ns: number;
}

/** Return the bars of all steps side by side in a width; a step of unknown length has height 0. */
export function stepBars(steps: Step[], width: number): StepBars {
  const lengths = steps.map((step) => step.window_ns ?? 0);
  const known = lengths.filter((length) => length > 0).sort((a, b) => a - b);
  const median = known[(known.length - 1) >> 1] ?? 0;
  const top = Math.min(known[known.length - 1] ?? 0, MOST_MEDIANS * median);
  const count = Math.min(steps.length, Math.max(1, Math.floor(width / LEAST_BAR_PX)));
  const bars = Array.from({ length: count }, (_, i): StepBar => {
    const first = Math.floor((i * steps.length) / count);
    const last = Math.floor(((i + 1) * steps.length) / count) - 1;
    let shown = first;
    for (let at = first; at <= last; at++) if (lengths[at]! > lengths[shown]!) shown = at;
    const height = top > 0 ? Math.min(lengths[shown]! / top, 1) : 0;
    const group = steps.slice(first, last + 1);
    return {
      first,
      last,
      shown,
      left: (i * width) / count,
      width: width / count,
      height,
      bubble: clamp(steps[shown]!.bubble_fraction ?? 0, 0, 1) * height,
      isCut: lengths[shown]! > top,
      isOutlier: group.some((step) => step.excess_ns !== null),
      inTotals: group.some((step) => step.in_totals !== false),
    };
  });
  return { bars, top_ns: top, median_ns: median };
}

/** The bar at a place, in pixels from the left. */
export function barAt(bars: StepBar[], width: number, x: number): StepBar | undefined {
  return bars[clamp(Math.floor((x / Math.max(width, 1)) * bars.length), 0, bars.length - 1)];
}

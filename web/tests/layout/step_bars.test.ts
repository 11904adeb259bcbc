import { describe, expect, it } from "vitest";

import { barAt, MOST_MEDIANS, stepBars } from "../../src/layout/step_bars";
import type { Step } from "../../src/model/meta";

function stepOf(step: number, window_ns: number | null, excess_ns: number | null = null): Step {
  return { step, start: 0, end: 1, window_ns, bubble_fraction: 0.25, in_totals: true, excess_ns };
}

describe("stepBars", () => {
  it("draws all steps on one scale, with the bubble inside", () => {
    const { bars, top_ns, median_ns } = stepBars([stepOf(0, 100), stepOf(1, 100), stepOf(2, 200, 100)], 300);
    expect([top_ns, median_ns]).toEqual([200, 100]);
    expect(bars.map((bar) => bar.height)).toEqual([0.5, 0.5, 1]);
    expect(bars.map((bar) => bar.bubble)).toEqual([0.125, 0.125, 0.25]);
    expect(bars.map((bar) => bar.isOutlier)).toEqual([false, false, true]);
  });

  it("shows the slowest of the steps that share a bar, so that no slow step disappears", () => {
    const steps = Array.from({ length: 1000 }, (_, i) =>
      stepOf(i, i === 517 ? 300 : 100, i === 517 ? 200 : null),
    );
    const { bars } = stepBars(steps, 300);
    expect(bars.length).toBe(100);
    const slow = bars.find((bar) => bar.isOutlier)!;
    expect([slow.shown, slow.height]).toEqual([517, 1]);
    expect(barAt(bars, 300, slow.left + 1)).toBe(slow);
  });

  it("cuts a bar that would make all others flat, and leaves unknown lengths empty", () => {
    const { bars, top_ns } = stepBars([stepOf(0, 10), stepOf(1, 10), stepOf(2, 10_000), stepOf(3, null)], 40);
    expect(top_ns).toBe(10 * MOST_MEDIANS);
    expect(bars.map((bar) => bar.isCut)).toEqual([false, false, true, false]);
    expect(bars[3]!.height).toBe(0);
  });
});

/** Bars of the steps: the length with the bubble inside, on a common scale. */

import type { StepBar, StepBars } from "../layout/step_bars";
import type { Inks } from "./theme";

/** Space for the marks of outliers above the bars. */
export const MARK_HEIGHT = 8;
const GAP_WIDTH = 5;
const SELECTED_ALPHA = 0.22;

/** Draw the bars; `current` is the place of the step in view, `size` is in CSS pixels. */
export function drawStepBars(
  pen: CanvasRenderingContext2D,
  { bars, top_ns, median_ns }: StepBars,
  size: { width: number; height: number },
  current: number,
  inks: Inks,
): void {
  pen.fillStyle = inks.paper;
  pen.fillRect(0, 0, size.width, size.height);
  const space = size.height - MARK_HEIGHT;
  for (const bar of bars) drawBar(pen, bar, { space, bottom: size.height }, inks, holds(bar, current));
  if (top_ns <= 0) return;
  const y = Math.round(size.height - (median_ns / top_ns) * space) + 0.5;
  pen.strokeStyle = inks.quiet;
  pen.lineWidth = 1;
  pen.setLineDash([3, 3]);
  pen.beginPath();
  pen.moveTo(0, y);
  pen.lineTo(size.width, y);
  pen.stroke();
  pen.setLineDash([]);
}

function drawBar(
  pen: CanvasRenderingContext2D,
  bar: StepBar,
  { space, bottom }: { space: number; bottom: number },
  inks: Inks,
  isCurrent: boolean,
): void {
  const gap = bar.width >= GAP_WIDTH ? 1 : 0;
  const [left, width] = [bar.left, Math.max(bar.width - gap, 1)];
  const top = bottom - bar.height * space;
  if (isCurrent) {
    pen.globalAlpha = SELECTED_ALPHA;
    pen.fillStyle = inks.stepCurrent;
    pen.fillRect(left, 0, width, bottom);
    pen.globalAlpha = 1;
  }
  pen.fillStyle = inks.stepIdle;
  pen.fillRect(left, top, width, bar.bubble * space);
  pen.fillStyle = bar.inTotals ? inks.stepBusy : inks.stepApart;
  pen.fillRect(left, top + bar.bubble * space, width, (bar.height - bar.bubble) * space);
  if (bar.isCut) {
    // A gap in the bar: it goes on beyond the scale.
    pen.fillStyle = inks.paper;
    pen.fillRect(left, top + 4, width, 2);
  }
  if (bar.isOutlier) drawMark(pen, left + width / 2, top, inks);
  if (isCurrent) {
    pen.fillStyle = inks.stepCurrent;
    pen.fillRect(left, bottom - 2, width, 2);
  }
}

function drawMark(pen: CanvasRenderingContext2D, middle: number, top: number, inks: Inks): void {
  pen.fillStyle = inks.stepOutlier;
  pen.beginPath();
  pen.moveTo(middle, top - 1);
  pen.lineTo(middle - 4, top - 7);
  pen.lineTo(middle + 4, top - 7);
  pen.fill();
}

function holds(bar: StepBar, place: number): boolean {
  return place >= bar.first && place <= bar.last;
}

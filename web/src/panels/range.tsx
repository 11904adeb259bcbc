/** The ends of the selected time range: dragged, or moved with the arrow keys. */

import { useRef } from "preact/hooks";

import type { Range } from "../layout/selection";
import { length, pixelOf } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import { durationText } from "../model/time";
import { TEXTS } from "./texts";

/** Pixels that the arrow keys move an end by, without and with Shift. */
const KEY_PIXELS = 1;
const SHIFT_PIXELS = 20;

type End = "start" | "end";

export function RangeHandles({ viewer }: { viewer: Viewer }) {
  const range = viewer.selection.range.value;
  if (!range || viewer.display.isPrinted.value) return null;
  return (
    <>
      <Handle viewer={viewer} range={range} end="start" />
      <Handle viewer={viewer} range={range} end="end" />
    </>
  );
}

function Handle({ viewer, range, end }: { viewer: Viewer; range: Range; end: End }) {
  const drag = useRef<{ x: number; time: number } | null>(null);
  const view = viewer.camera.view.value;
  const { width } = viewer.display.size.value;
  const at = pixelOf(view, width, range[end]);
  if (at < -1 || at > width + 1) return null;
  const perPixel = length(view) / width;
  const unit = viewer.meta.time_unit;
  const origin = viewer.camera.step.value?.start ?? 0;
  const onKeyDown = (event: KeyboardEvent): void => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const pixels = event.shiftKey ? SHIFT_PIXELS : KEY_PIXELS;
    viewer.moveRange(end, range[end] + by * Math.max(pixels * perPixel, 1), true);
  };
  return (
    <div
      class={`range-handle ${end}`}
      style={{ left: `${at}px` }}
      role="slider"
      tabIndex={0}
      aria-label={end === "start" ? TEXTS.rangeStart : TEXTS.rangeEnd}
      aria-valuemin={0}
      aria-valuemax={viewer.meta.end}
      aria-valuenow={range[end]}
      aria-valuetext={TEXTS.rangeEdge(
        durationText(range[end] - origin, unit),
        durationText(range.end - range.start, unit),
      )}
      title={TEXTS.rangeHandle}
      onKeyDown={onKeyDown}
      onPointerDown={(event) => {
        if (event.button !== 0) return;
        event.preventDefault();
        event.currentTarget.focus();
        event.currentTarget.setPointerCapture(event.pointerId);
        drag.current = { x: event.clientX, time: range[end] };
      }}
      onPointerMove={(event) => {
        const { current } = drag;
        if (current) viewer.moveRange(end, current.time + (event.clientX - current.x) * perPixel, false);
      }}
      onPointerUp={() => {
        if (drag.current) viewer.moveRange(end, viewer.selection.range.peek()![end], true);
        drag.current = null;
      }}
      onPointerCancel={() => (drag.current = null)}
    />
  );
}

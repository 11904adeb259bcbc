/** Mouse, wheel and touch on the picture. */

import { AXIS_HEIGHT } from "../draw/scene";
import { rowAt } from "../layout/rows";
import { length, timeAt } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import type { Span } from "../model/source";

const CLICK_ROOM = 4;
const WHEEL_FACTOR = 0.0016;
const LINE_HEIGHT = 16;

interface Drag {
  x: number;
  y: number;
  start: number;
  scroll: number;
  isRange: boolean;
  hasMoved: boolean;
}

/** Let a canvas answer to pointers; returns what ends that. */
export function listen(canvas: HTMLCanvasElement, viewer: Viewer): () => void {
  const pointers = new Map<number, { x: number; y: number }>();
  let drag: Drag | null = null;
  let pinch: { distance: number; middle: number } | null = null;

  const place = (event: MouseEvent): { x: number; y: number } => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top - AXIS_HEIGHT };
  };

  const onWheel = (event: WheelEvent): void => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? LINE_HEIGHT : event.deltaMode === 2 ? viewer.size.peek().height : 1;
    const across = (event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX) * unit;
    if (Math.abs(across) > Math.abs(event.deltaY * unit) || event.shiftKey)
      viewer.panBy(across / viewer.size.peek().width);
    else {
      // A pinch on a touch pad arrives as a wheel with Ctrl, in smaller steps.
      const factor = Math.exp(event.deltaY * unit * WHEEL_FACTOR * (event.ctrlKey ? 5 : 1));
      viewer.zoomBy(factor, place(event).x / viewer.size.peek().width);
    }
  };

  const onDown = (event: PointerEvent): void => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    const at = place(event);
    pointers.set(event.pointerId, at);
    if (pointers.size === 2) {
      drag = null;
      pinch = pinchOf(pointers);
      return;
    }
    const isRange = event.shiftKey || viewer.measuring.peek();
    drag = { ...at, start: viewer.view.peek().start, scroll: viewer.scroll.peek(), isRange, hasMoved: false };
  };

  const onMove = (event: PointerEvent): void => {
    const at = place(event);
    if (pointers.has(event.pointerId)) pointers.set(event.pointerId, at);
    if (pinch && pointers.size === 2) {
      const now = pinchOf(pointers);
      const { width } = viewer.size.peek();
      viewer.zoomBy(pinch.distance / Math.max(now.distance, 1), now.middle / width);
      viewer.panBy((pinch.middle - now.middle) / width);
      pinch = now;
    } else if (drag) dragTo(at);
    else void viewer.hoverOver(spanUnder(viewer, at));
  };

  const dragTo = (at: { x: number; y: number }): void => {
    if (!drag) return;
    const { width } = viewer.size.peek();
    if (!drag.hasMoved && Math.hypot(at.x - drag.x, at.y - drag.y) < CLICK_ROOM) return;
    drag.hasMoved = true;
    if (drag.isRange) {
      viewer.range.value = rangeBetween(viewer, drag, at);
      return;
    }
    const view = viewer.view.peek();
    const wanted = drag.start - ((at.x - drag.x) / width) * length(view);
    viewer.panBy((wanted - view.start) / length(view));
    viewer.setScroll(drag.scroll - (at.y - drag.y));
  };

  const onUp = (event: PointerEvent): void => {
    const at = place(event);
    pointers.delete(event.pointerId);
    if (pinch) {
      if (pointers.size === 0) pinch = null;
      return;
    }
    const ended = drag;
    drag = null;
    if (!ended) return;
    if (!ended.hasMoved) {
      const span = spanUnder(viewer, at);
      void viewer.select(span?.id ?? null);
    } else if (ended.isRange) {
      void viewer.setRange(rangeBetween(viewer, ended, at));
      viewer.measuring.value = false;
    }
  };

  const onCancel = (event: PointerEvent): void => {
    pointers.delete(event.pointerId);
    drag = pinch = null;
  };
  const onLeave = (): void => void viewer.hoverOver(null);
  const onDouble = (event: MouseEvent): void => {
    const span = spanUnder(viewer, place(event));
    if (span) viewer.showSpan(span, true);
  };

  canvas.addEventListener("wheel", onWheel, { passive: false });
  canvas.addEventListener("pointerdown", onDown);
  canvas.addEventListener("pointermove", onMove);
  canvas.addEventListener("pointerup", onUp);
  canvas.addEventListener("pointercancel", onCancel);
  canvas.addEventListener("pointerleave", onLeave);
  canvas.addEventListener("dblclick", onDouble);
  return () => {
    canvas.removeEventListener("wheel", onWheel);
    canvas.removeEventListener("pointerdown", onDown);
    canvas.removeEventListener("pointermove", onMove);
    canvas.removeEventListener("pointerup", onUp);
    canvas.removeEventListener("pointercancel", onCancel);
    canvas.removeEventListener("pointerleave", onLeave);
    canvas.removeEventListener("dblclick", onDouble);
  };
}

function pinchOf(pointers: Map<number, { x: number; y: number }>): { distance: number; middle: number } {
  const [one, other] = [...pointers.values()] as [{ x: number; y: number }, { x: number; y: number }];
  return { distance: Math.hypot(one.x - other.x, one.y - other.y), middle: (one.x + other.x) / 2 };
}

function spanUnder(viewer: Viewer, at: { x: number; y: number }): Span | null {
  if (at.y < 0) return null;
  const y = at.y + viewer.scroll.peek();
  const row = rowAt(viewer.rows.peek(), y);
  return row && viewer.spanAt(at.x, row.row, (y - row.top) / row.height);
}

function rangeBetween(
  viewer: Viewer, drag: Drag, at: { x: number; y: number },
): { start: number; end: number; rows: number[] } {
  const view = viewer.view.peek();
  const { width } = viewer.size.peek();
  const times = [timeAt(view, width, drag.x), timeAt(view, width, at.x)].sort((a, b) => a - b) as [number, number];
  const scroll = viewer.scroll.peek();
  const [top, bottom] = [drag.y + drag.scroll, at.y + scroll].sort((a, b) => a - b) as [number, number];
  const rows = viewer.rows.peek().placed.filter((row) => row.top < bottom && row.top + row.height > top);
  return {
    start: Math.round(Math.max(times[0], 0)),
    end: Math.round(Math.min(Math.max(times[1], 0), viewer.meta.end)),
    rows: rows.map((row) => row.row).sort((a, b) => a - b),
  };
}

/** Mouse, wheel and touch gestures on the picture. */

import { AXIS_HEIGHT } from "../draw/scene";
import { type PlacedRow, rowOnScreen, rowsOnScreen, screenTop } from "../layout/rows";
import type { Range } from "../layout/selection";
import { length, timeAt } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import type { Kernel } from "../model/kernels";
import type { Span } from "../model/source";
import { TEXTS } from "../panels/texts";

/** A pointer that moves less than this between press and release is a click. */
const CLICK_SLOP_PX = 4;
const WHEEL_FACTOR = 0.0016;
/** Whether the page is a part of another one, such as a notebook. */
const IS_FRAMED = window.self !== window.top;
/** Browsers report a touchpad pinch as a wheel with Ctrl, in steps about this much smaller. */
const PINCH_WHEEL_GAIN = 5;
const LINE_HEIGHT_PX = 16;

interface Point {
  x: number;
  y: number;
}

interface Drag extends Point {
  start: number;
  scroll: number;
  isRange: boolean;
  hasMoved: boolean;
}

interface Pinch {
  distance: number;
  middle: number;
}

/** Attach the gestures to a canvas; the returned function detaches them. */
export function listen(canvas: HTMLCanvasElement, viewer: Viewer): () => void {
  const gestures = new Gestures(canvas, viewer);
  const controller = new AbortController();
  const { signal } = controller;
  // Not passive: preventDefault keeps the page from scrolling under the picture.
  canvas.addEventListener("wheel", (event) => gestures.wheel(event), { passive: false, signal });
  canvas.addEventListener("pointerdown", (event) => gestures.down(event), { signal });
  canvas.addEventListener("pointermove", (event) => gestures.move(event), { signal });
  canvas.addEventListener("pointerup", (event) => gestures.up(event), { signal });
  canvas.addEventListener("pointercancel", (event) => gestures.cancel(event), { signal });
  canvas.addEventListener("pointerleave", () => gestures.leave(), { signal });
  canvas.addEventListener("dblclick", (event) => gestures.doubleClick(event), { signal });
  return () => controller.abort();
}

/** The state of the pointers between events. */
class Gestures {
  private readonly pointers = new Map<number, Point>();
  private drag: Drag | null = null;
  private pinch: Pinch | null = null;
  private isHinted = false;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly viewer: Viewer,
  ) {}

  wheel(event: WheelEvent): void {
    if (IS_FRAMED && !(event.ctrlKey || event.shiftKey || event.altKey)) {
      // In a notebook, the wheel scrolls the notebook.
      if (!this.isHinted) this.viewer.notify(TEXTS.wheelInFrame);
      this.isHinted = true;
      return;
    }
    event.preventDefault();
    const { width, height } = this.viewer.display.size.peek();
    const unit =
      event.deltaMode === WheelEvent.DOM_DELTA_LINE
        ? LINE_HEIGHT_PX
        : event.deltaMode === WheelEvent.DOM_DELTA_PAGE
          ? height
          : 1;
    if (event.altKey) {
      const { pitch } = this.viewer.display;
      this.viewer.display.setPitch(pitch.peek() * Math.exp(-event.deltaY * unit * WHEEL_FACTOR));
      return;
    }
    const across = (event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX) * unit;
    if (Math.abs(across) > Math.abs(event.deltaY * unit) || event.shiftKey) {
      this.viewer.camera.panBy(across / width);
      return;
    }
    const gain = event.ctrlKey ? PINCH_WHEEL_GAIN : 1;
    this.viewer.camera.zoomBy(
      Math.exp(event.deltaY * unit * WHEEL_FACTOR * gain),
      this.place(event).x / width,
    );
  }

  down(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    const at = this.place(event);
    this.pointers.set(event.pointerId, at);
    if (this.pointers.size === 2) {
      this.drag = null;
      this.pinch = pinchOf(this.pointers);
      return;
    }
    const { viewer } = this;
    const isRange = event.shiftKey || viewer.selection.measuring.peek();
    const start = viewer.camera.view.peek().start;
    this.drag = { ...at, start, scroll: viewer.display.scroll.peek(), isRange, hasMoved: false };
  }

  move(event: PointerEvent): void {
    const at = this.place(event);
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, at);
    if (this.pinch && this.pointers.size === 2) this.pinch = this.pinchTo(this.pinch);
    else if (this.drag) this.dragTo(this.drag, at);
    else {
      const kernel = kernelUnder(this.viewer, at);
      this.viewer.selection.hoverKernel.value = kernel;
      const span = kernel ? null : spanUnder(this.viewer, at);
      this.viewer.selection.hoverIdle.value = kernel || span ? null : idleUnder(this.viewer, at);
      void this.viewer.selection.hoverOver(span);
    }
  }

  up(event: PointerEvent): void {
    const at = this.place(event);
    this.pointers.delete(event.pointerId);
    if (this.pinch) {
      if (this.pointers.size === 0) this.pinch = null;
      return;
    }
    const ended = this.drag;
    this.drag = null;
    if (!ended) return;
    if (!ended.hasMoved) this.click(at);
    else if (ended.isRange) {
      void this.viewer.selection.setRange(rangeBetween(this.viewer, ended, at));
      this.viewer.selection.measuring.value = false;
    }
  }

  private click(at: Point): void {
    const kernel = kernelUnder(this.viewer, at);
    if (kernel) {
      this.viewer.selection.selectKernel(kernel);
      return;
    }
    const span = spanUnder(this.viewer, at);
    const idle = span ? null : idleUnder(this.viewer, at);
    if (idle !== null) void this.viewer.selectIdle(idle);
    else void this.viewer.select(span?.id ?? null);
  }

  cancel(event: PointerEvent): void {
    this.pointers.delete(event.pointerId);
    this.drag = null;
    this.pinch = null;
  }

  leave(): void {
    this.viewer.selection.hoverKernel.value = null;
    this.viewer.selection.hoverIdle.value = null;
    void this.viewer.selection.hoverOver(null);
  }

  doubleClick(event: MouseEvent): void {
    const at = this.place(event);
    const span = spanUnder(this.viewer, at);
    const idle = span ? null : idleUnder(this.viewer, at);
    if (span) this.viewer.showSpan(span, true);
    else if (idle !== null) this.viewer.showIdle(idle, true);
  }

  /** Where an event is, in pixels from the top left of the rows. */
  private place(event: MouseEvent): Point {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top - AXIS_HEIGHT };
  }

  private pinchTo(before: Pinch): Pinch {
    const now = pinchOf(this.pointers);
    const { width } = this.viewer.display.size.peek();
    this.viewer.camera.zoomBy(before.distance / Math.max(now.distance, 1), now.middle / width);
    this.viewer.camera.panBy((before.middle - now.middle) / width);
    return now;
  }

  private dragTo(drag: Drag, at: Point): void {
    if (!drag.hasMoved && Math.hypot(at.x - drag.x, at.y - drag.y) < CLICK_SLOP_PX) return;
    drag.hasMoved = true;
    const { viewer } = this;
    if (drag.isRange) {
      viewer.selection.range.value = rangeBetween(viewer, drag, at);
      return;
    }
    const view = viewer.camera.view.peek();
    const wanted = drag.start - ((at.x - drag.x) / viewer.display.size.peek().width) * length(view);
    viewer.camera.panBy((wanted - view.start) / length(view));
    viewer.display.setScroll(drag.scroll - (at.y - drag.y));
  }
}

function pinchOf(pointers: Map<number, Point>): Pinch {
  const [one, other] = [...pointers.values()] as [Point, Point];
  return { distance: Math.hypot(one.x - other.x, one.y - other.y), middle: (one.x + other.x) / 2 };
}

/** The row at a point, and how far below its top the point is. */
function rowUnder(viewer: Viewer, at: Point): { row: PlacedRow; y: number } | null {
  const screen = viewer.display.screen();
  const row = at.y < 0 ? null : rowOnScreen(screen, at.y);
  return row && { row, y: at.y - screenTop(screen, row.top) };
}

function spanUnder(viewer: Viewer, at: Point): Span | null {
  const found = rowUnder(viewer, at);
  return found && viewer.spanAt(at.x, found.row.row, found.y / found.row.height);
}

function idleUnder(viewer: Viewer, at: Point): number | null {
  const found = rowUnder(viewer, at);
  return found && viewer.idleAt(at.x, found.row.row);
}

function kernelUnder(viewer: Viewer, at: Point): Kernel | null {
  const found = rowUnder(viewer, at);
  return found && viewer.kernelAt(at.x, found.row.row, found.y, found.row.height);
}

/** The time range and the rows between the begin of a drag and a point. */
function rangeBetween(viewer: Viewer, drag: Drag, at: Point): Range {
  const view = viewer.camera.view.peek();
  const { width } = viewer.display.size.peek();
  const times = [timeAt(view, width, drag.x), timeAt(view, width, at.x)].sort((a, b) => a - b) as [
    number,
    number,
  ];
  const screen = viewer.display.screen();
  const [top, bottom] = [drag.y, at.y].sort((a, b) => a - b) as [number, number];
  const rows = rowsOnScreen(screen)
    .flat()
    .filter((row) => screenTop(screen, row.top) < bottom && screenTop(screen, row.top) + row.height > top);
  return {
    start: Math.round(Math.max(times[0], 0)),
    end: Math.round(Math.min(Math.max(times[1], 0), viewer.meta.end)),
    rows: rows.map((row) => row.row).sort((a, b) => a - b),
  };
}

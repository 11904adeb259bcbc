/** The overview of the whole run: which rows it draws, and where the part in view is in it. */

import { clamp, length } from "./view";
import type { Viewer } from "./viewer";

/** More rows would be lower than a pixel: of these, evenly chosen ones are drawn. */
export const MOST_ROWS = 40;
const LEAST_BOX_PX = 6;

/** The rows that are drawn, from the first to the last. */
export function minimapRows(viewer: Viewer): number[] {
  const { placed } = viewer.display.rows.value;
  const count = Math.min(placed.length, MOST_ROWS);
  return Array.from({ length: count }, (_, i) => placed[Math.floor((i * placed.length) / count)]!.row);
}

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Where the part in view is, in an overview of a size. */
export function viewBox(viewer: Viewer, width: number, height: number): Box {
  const { bounds } = viewer.camera;
  const view = viewer.camera.view.value;
  const scale = width / length(bounds);
  const wide = clamp(length(view) * scale, LEAST_BOX_PX, width);
  const middle = ((view.start + view.end) / 2 - bounds.start) * scale;
  const { rows, scroll, height: seen } = viewer.display.screen();
  const part = rows.height > seen ? height / rows.height : height / Math.max(seen, 1);
  return {
    left: clamp(middle - wide / 2, 0, width - wide),
    width: wide,
    top: rows.height > seen ? scroll * part : 0,
    height: clamp(seen * part, LEAST_BOX_PX, height),
  };
}

/** Move the view by a way in the overview, in pixels. */
export function moveView(viewer: Viewer, by: { x: number; y: number }, width: number, height: number): void {
  const { camera, display } = viewer;
  const view = camera.view.peek();
  camera.panBy(((by.x / width) * length(camera.bounds)) / length(view));
  const whole = display.rows.peek().height;
  if (whole > display.size.peek().height) display.setScroll(display.scroll.peek() + (by.y / height) * whole);
}

/** The time range on the screen: pure arithmetic on times and pixels. */

/** Times in ns from the base of the run. */
export interface View {
  start: number;
  end: number;
}

export const LEAST_LENGTH_NS = 20;
const MARGIN_FRACTION = 0.02;

export function length(view: View): number {
  return view.end - view.start;
}

export function pixelOf(view: View, width: number, time: number): number {
  return ((time - view.start) / length(view)) * width;
}

export function timeAt(view: View, width: number, x: number): number {
  return view.start + (x / width) * length(view);
}

/** [start, end] with a margin on both sides. */
export function framed(start: number, end: number): View {
  const margin = Math.max((end - start) * MARGIN_FRACTION, LEAST_LENGTH_NS / 2);
  return { start: start - margin, end: end + margin };
}

/** `factor` below 1 zooms in; the time at `anchor` (0 left edge, 1 right edge) stays where it is. */
export function zoom(view: View, factor: number, anchor: number, bounds: View): View {
  const still = view.start + anchor * length(view);
  const wanted = clamp(length(view) * factor, LEAST_LENGTH_NS, length(bounds));
  return hold({ start: still - anchor * wanted, end: still + (1 - anchor) * wanted }, bounds);
}

export function pan(view: View, fraction: number, bounds: View): View {
  const by = fraction * length(view);
  return hold({ start: view.start + by, end: view.end + by }, bounds);
}

/** Shift a view into the bounds; it is shortened only if it is longer than they are. */
export function hold(view: View, bounds: View): View {
  const long = Math.min(length(view), length(bounds));
  const start = clamp(view.start, bounds.start, bounds.end - long);
  return { start, end: start + long };
}

export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), Math.max(low, high));
}

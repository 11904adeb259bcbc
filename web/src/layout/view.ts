/** The part of the run that is on the screen: pure arithmetic on times and pixels. */

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

/** All of [start, end] with a little room on both sides. */
export function framed(start: number, end: number): View {
  const room = Math.max((end - start) * MARGIN_FRACTION, LEAST_LENGTH_NS / 2);
  return { start: start - room, end: end + room };
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

/** Moved, not stretched, until it lies in the bounds. */
export function hold(view: View, bounds: View): View {
  const long = Math.min(length(view), length(bounds));
  const start = clamp(view.start, bounds.start, bounds.end - long);
  return { start, end: start + long };
}

export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), Math.max(low, high));
}

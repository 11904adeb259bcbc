/** Level of detail: wide spans become blocks with text, narrow ones are averaged into pixels.
 *
 * A track is painted as `depth` pixel lines, so that overlapping spans stay separate. The color of a pixel is the mean
 * of its spans and its alpha the covered fraction: idle time stays visible at any zoom.
 */

import type { Spans, Tile } from "../model/spans";
import { length, type View } from "./view";

/** Colors as 0xBBGGRR, by kind and shade: see palette.ts. */
export interface Palette {
  color(kind: number, chunk: number): number;
}

export interface Block {
  tile: Tile;
  place: number;
  left: number;
  right: number;
  /** Share of the band's height, from the top. */
  top: number;
  bottom: number;
}

export interface Paint {
  view: View;
  width: number;
  depth: number;
  /** Spans at least this wide are blocks. */
  blockWidth: number;
  palette: Palette;
  hiddenKinds: Uint8Array;
  /** Colors by place that replace the palette's, where two runs are compared. */
  override: Int32Array | null;
  /** Predicate of the spans that match the search, the others are drawn faint; null: no search. */
  wanted: ((spans: Spans, place: number) => boolean) | null;
}

const SEPARATED_WIDTH = 3;
const FAINT = 0.16;

/** Sums of one line's current pixel. */
class Pixel {
  at = -1;
  red = 0;
  green = 0;
  blue = 0;
  cover = 0;
}

const pixels = [new Pixel(), new Pixel(), new Pixel(), new Pixel()];

/** Paint one track into `lines` (depth x width, from `offset`), and return the spans wide enough for blocks. */
export function paintTrack(
  tile: Tile,
  track: [number, number],
  paint: Paint,
  lines: Uint32Array,
  offset: number,
): Block[] {
  const blocks: Block[] = [];
  const { spans } = tile;
  const { view, width, depth, blockWidth, palette, hiddenKinds, override, wanted } = paint;
  const scale = width / length(view);
  const [from, to] = track;
  const left = Math.max(view.start, tile.start);
  const right = Math.min(view.end, tile.end);
  const { start, duration, kind } = spans;
  const chunk = spans.table.has("chunk") ? spans.table.ints("chunk") : null;
  const sublane = spans.table.has("sublane") ? spans.table.ints("sublane") : null;
  const sublanes = sublane ? spans.table.ints("sublanes") : null;
  const busy = spans.isBinned ? spans.table.ints("busy") : null;
  for (let line = 0; line < depth; line++)
    Object.assign(pixels[line]!, { at: -1, red: 0, green: 0, blue: 0, cover: 0 });
  for (let i = spans.firstReaching(left, from, to); i < to; i++) {
    const began = start[i]!;
    if (began >= right) break;
    if (hiddenKinds[kind[i]!]) continue;
    const ended = began + duration[i]!;
    if (ended < left) continue;
    const x = Math.max((began - view.start) * scale, 0);
    const end = Math.min((ended - view.start) * scale, width);
    let first = 0;
    let last = depth;
    if (depth > 1 && sublanes![i]! > 1) {
      first = Math.floor((sublane![i]! * depth) / sublanes![i]!) % depth;
      last = Math.max(first + 1, Math.floor(((sublane![i]! + 1) * depth) / sublanes![i]!));
      last = Math.min(last, depth);
    }
    if (end - x >= blockWidth && !busy) {
      blocks.push({ tile, place: i, left: x, right: end, top: first / depth, bottom: last / depth });
      continue;
    }
    const faint = wanted !== null && !wanted(spans, i);
    const opacity = (busy ? busy[i]! / 255 : 1) * (faint ? FAINT : 1);
    const color = override ? override[i]! : palette.color(kind[i]!, chunk ? Math.max(chunk[i]!, 0) : 0);
    for (let line = first; line < last; line++)
      paintSpan(lines, offset + line * width, width, pixels[line]!, x, end, color, opacity);
  }
  for (let line = 0; line < depth; line++) flush(lines, offset + line * width, pixels[line]!);
  return blocks;
}

function paintSpan(
  lines: Uint32Array,
  base: number,
  width: number,
  pixel: Pixel,
  x: number,
  end: number,
  color: number,
  opacity: number,
): void {
  const first = x | 0;
  if (first >= width) return;
  const last = Math.min(end | 0, width - 1);
  if (first === last) {
    // A span of zero length stays visible.
    add(lines, base, pixel, first, Math.max(end - x, 0.1), color, opacity);
    return;
  }
  add(lines, base, pixel, first, first + 1 - x, color, opacity);
  if (last - first > 1) {
    const solid = ((Math.round(opacity * 255) << 24) | color) >>> 0;
    lines.fill(solid, base + first + 1, base + last);
    if (end - x >= SEPARATED_WIDTH)
      lines[base + last - 1] = ((Math.round(opacity * 150) << 24) | color) >>> 0;
  }
  add(lines, base, pixel, last, end - last, color, opacity);
}

function add(
  lines: Uint32Array,
  base: number,
  pixel: Pixel,
  at: number,
  part: number,
  color: number,
  opacity: number,
): void {
  if (part <= 0) return;
  if (at !== pixel.at) {
    if (at < pixel.at) return; // overlaps what is painted already
    flush(lines, base, pixel);
    pixel.at = at;
    pixel.red = pixel.green = pixel.blue = pixel.cover = 0;
  }
  const weight = part * opacity;
  pixel.red += weight * (color & 255);
  pixel.green += weight * ((color >> 8) & 255);
  pixel.blue += weight * ((color >> 16) & 255);
  pixel.cover += weight;
}

function flush(lines: Uint32Array, base: number, pixel: Pixel): void {
  const { at, cover } = pixel;
  if (at < 0 || cover <= 0) return;
  const alpha = Math.min(255, Math.round(cover * 255));
  const mean = (sum: number): number => (sum / cover) & 255;
  lines[base + at] =
    ((alpha << 24) | (mean(pixel.blue) << 16) | (mean(pixel.green) << 8) | mean(pixel.red)) >>> 0;
}

/** Paint when the host of a row was blocked, one line of one color. */
export function paintWaits(
  tile: Tile,
  row: number,
  paint: Paint,
  color: number,
  lines: Uint32Array,
  offset: number,
): void {
  const { spans } = tile;
  if (!spans.table.has("wait")) return;
  const wait = spans.table.values("wait");
  const waited = spans.table.values("wait_duration");
  const { view, width } = paint;
  const scale = width / length(view);
  const pixel = pixels[0]!;
  for (let lane = 0; lane < 3; lane++) {
    const [from, to] = spans.track(row, lane);
    Object.assign(pixel, { at: -1, red: 0, green: 0, blue: 0, cover: 0 });
    for (let i = spans.firstReaching(view.start, from, to); i < to && spans.start[i]! < view.end; i++) {
      if (!(waited[i]! > 0)) continue;
      const began = spans.start[i]! + wait[i]!;
      const x = Math.max((began - view.start) * scale, 0);
      const end = Math.min((began + waited[i]! - view.start) * scale, width);
      if (end > x) paintSpan(lines, offset, width, pixel, x, end, color, 1);
    }
    flush(lines, offset, pixel);
  }
}

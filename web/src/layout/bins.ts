/** Level of detail: wide spans become blocks with text, narrow ones are painted as pixels.
 *
 * A track is painted as `depth` sublanes, so that overlapping spans stay separate. The alpha of a pixel is the covered
 * fraction: idle time stays visible at any zoom. Where spans meet in a pixel, its color is their mean; where they are
 * too many to be distinguished, it shows their shares (mixture.ts).
 */

import type { Spans, Tile } from "../model/spans";
import type { Division } from "./bands";
import { type Mixture, NARROW_WIDTH } from "./mixture";
import { length, type View } from "./view";

/** Colors as 0xBBGGRR, by kind and shade: see palette.ts. */
export interface Palette {
  /** How many colors each kind has, one after the other: one for each chunk, or one for all. */
  shades: number;
  colors: Int32Array;
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
  /** Predicate of the spans that match the search, the others are drawn faint; null: no search. */
  wanted: ((spans: Spans, place: number) => boolean) | null;
}

/** The pixel lines of a track: for each sublane those of the division, from `offset`. */
export interface TrackLines {
  lines: Uint32Array;
  offset: number;
  division: Division;
  /** Place of the first line in the whole picture. */
  turn: number;
  /** One for each sublane. */
  mixtures: Mixture[];
}

const FAINT = 0.16;
/** Alpha of the last pixel of a wide span, which separates it from the next. */
const SEPARATED_ALPHA = 150;

/** Paint what the tiles have of one track, and return the spans that are wide enough for blocks. */
export function paintTrack(
  tiles: { tile: Tile; track: [number, number]; override: Int32Array | null }[],
  paint: Paint,
  target: TrackLines,
): Block[] {
  const { width, depth } = paint;
  const { lines, offset, division, turn } = target;
  const mixtures = target.mixtures.slice(0, depth);
  const isVaried = paint.palette.shades > 1 || tiles.some(({ override }) => override !== null);
  for (const mixture of mixtures) mixture.begin(width, isVaried);
  const blocks = tiles.flatMap(({ tile, track, override }) =>
    paintTile(tile, track, { ...paint, override }, target),
  );
  mixtures.forEach((mixture, sublane) => {
    const before = sublane * division.lines;
    mixture.finish({ lines, offset: offset + before * width, division, turn: turn + before });
  });
  return blocks;
}

function paintTile(
  tile: Tile,
  track: [number, number],
  paint: Paint & { override: Int32Array | null },
  { lines, offset, division, mixtures }: TrackLines,
): Block[] {
  const blocks: Block[] = [];
  const { spans } = tile;
  const { view, width, depth, blockWidth, palette, hiddenKinds, override, wanted } = paint;
  const scale = width / length(view);
  const origin = view.start;
  const below = division.lines * width;
  const [from, to] = track;
  const left = Math.max(view.start, tile.start);
  const right = Math.min(view.end, tile.end);
  const { start, duration, kind } = spans;
  const { shades, colors } = palette;
  const chunk = shades > 1 && spans.table.has("chunk") ? spans.table.ints("chunk") : null;
  const sublane = depth > 1 && spans.table.has("sublane") ? spans.table.ints("sublane") : null;
  const sublanes = sublane ? spans.table.ints("sublanes") : null;
  const busy = spans.isBinned ? spans.table.ints("busy") : null;
  // Of low rows, most spans are narrow and plain.
  const isPlain =
    depth === 1 && shades === 1 && override === null && wanted === null && blockWidth >= NARROW_WIDTH;
  const narrow = { start, duration, kind, busy };
  const pixels = { origin, scale, left, right, hidden: hiddenKinds, colors };
  for (let i = spans.firstReaching(left, from, to); i < to; i++) {
    if (isPlain) i = mixtures[0]!.addNarrow(narrow, i, to, pixels);
    if (i >= to) break;
    const began = start[i]!;
    if (began >= right) break;
    const code = kind[i]!;
    if (hiddenKinds[code]) continue;
    const ended = began + duration[i]!;
    if (ended < left) continue;
    // Half a million times a frame: Math.max and Math.min take longer.
    const x = began > origin ? (began - origin) * scale : 0;
    const reached = (ended - origin) * scale;
    const end = reached < width ? reached : width;
    let first = 0;
    let last = depth;
    if (sublanes && sublanes[i]! > 1) {
      first = Math.floor((sublane![i]! * depth) / sublanes[i]!) % depth;
      last = Math.max(first + 1, Math.floor(((sublane![i]! + 1) * depth) / sublanes[i]!));
      last = Math.min(last, depth);
    }
    if (end - x >= blockWidth && !busy) {
      blocks.push({ tile, place: i, left: x, right: end, top: first / depth, bottom: last / depth });
      continue;
    }
    let opacity = busy ? busy[i]! / 255 : 1;
    if (wanted !== null && !wanted(spans, i)) opacity *= FAINT;
    const shade = chunk && chunk[i]! > 0 ? Math.min(chunk[i]!, shades - 1) : 0;
    const color = override ? override[i]! : colors[code * shades + shade]!;
    for (let line = first; line < last; line++) {
      if (end - x >= NARROW_WIDTH) paintInside(lines, offset + line * below, x, end, color, opacity);
      mixtures[line]!.add(code, color, x, end, opacity);
    }
  }
  return blocks;
}

/** The pixels that lie wholly inside of a wide span. */
function paintInside(
  lines: Uint32Array,
  base: number,
  x: number,
  end: number,
  color: number,
  opacity: number,
): void {
  const [from, to] = [(x | 0) + 1, end | 0];
  lines.fill(((Math.round(opacity * 255) << 24) | color) >>> 0, base + from, base + to);
  lines[base + to - 1] = ((Math.round(opacity * SEPARATED_ALPHA) << 24) | color) >>> 0;
}

/** Paint when the host of a row was blocked, one line of one color. */
export function paintWaits(
  tiles: Tile[],
  row: number,
  paint: Paint,
  color: number,
  lines: Uint32Array,
  offset: number,
  mixture: Mixture,
): void {
  const { view, width } = paint;
  const scale = width / length(view);
  mixture.begin(width, false);
  for (const { spans } of tiles) {
    if (!spans.table.has("wait")) continue;
    const wait = spans.table.values("wait");
    const waited = spans.table.values("wait_duration");
    for (let lane = 0; lane < 3; lane++) {
      const [from, to] = spans.track(row, lane);
      for (let i = spans.firstReaching(view.start, from, to); i < to && spans.start[i]! < view.end; i++) {
        if (!(waited[i]! > 0)) continue;
        const began = spans.start[i]! + wait[i]!;
        const x = Math.max((began - view.start) * scale, 0);
        const end = Math.min((began + waited[i]! - view.start) * scale, width);
        if (end <= x) continue;
        if (end - x >= NARROW_WIDTH) paintInside(lines, offset, x, end, color, 1);
        mixture.add(0, color, x, end, 1);
      }
    }
  }
  mixture.finish({ lines, offset, division: ONE_LINE, turn: 0 });
}

const ONE_LINE: Division = { lines: 1, isStacked: false };

/** The overview of the whole run: a line for each row. */

import { divideBand } from "../layout/bands";
import { paintTrack } from "../layout/bins";
import { pixelPalette } from "../layout/colors";
import { Mixture } from "../layout/mixture";
import type { View } from "../layout/view";
import { COMPUTE, HOST, type Kind } from "../model/meta";
import type { Tile } from "../model/spans";
import { Strips } from "./strips";
import type { Inks } from "./theme";

export interface Overview {
  bounds: View;
  rows: number[];
  tiles: Tile[];
  kinds: Kind[];
  chunkCount: number;
  hiddenKinds: ReadonlySet<number>;
}

/** Draw the whole run; the size is in pixels of the canvas. */
export function drawMinimap(
  pen: CanvasRenderingContext2D,
  { bounds, rows, tiles, kinds, chunkCount, hiddenKinds }: Overview,
  size: { width: number; height: number },
  inks: Inks,
): void {
  const { width, height } = size;
  pen.fillStyle = inks.track;
  pen.fillRect(0, 0, width, height);
  if (rows.length === 0 || width === 0) return;
  const each = height / rows.length;
  const division = divideBand(Math.ceil(each), 1, rows.length);
  const hidden = new Uint8Array(256);
  for (const code of hiddenKinds) hidden[code] = 1;
  const paint = {
    view: bounds,
    width,
    depth: 1,
    blockWidth: Infinity,
    palette: pixelPalette(kinds, chunkCount),
    hiddenKinds: hidden,
    wanted: null,
  };
  const strips = new Strips();
  strips.begin(width, rows.length * division.lines);
  const mixtures = [new Mixture()];
  rows.forEach((row, i) => {
    const tracks = tiles.map((tile) => {
      const own = tile.spans.track(row, COMPUTE);
      return { tile, track: own[0] < own[1] ? own : tile.spans.track(row, HOST), override: null };
    });
    const line = i * division.lines;
    paintTrack(tracks, paint, { lines: strips.lines, offset: line * width, division, turn: line, mixtures });
  });
  strips.end();
  pen.imageSmoothingEnabled = false;
  rows.forEach((_, i) => {
    const top = Math.round(i * each);
    const bottom = Math.max(Math.round((i + 1) * each), top + 1);
    strips.draw(pen, i * division.lines, division.lines, top, bottom - top);
  });
}

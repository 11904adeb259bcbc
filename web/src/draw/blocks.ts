/** Spans: those too narrow for a shape as pixels, the others as textured blocks with their micro-batch. */

import { divideBand, type Lines, stripsOf } from "../layout/bands";
import { type Block, type Paint, type Palette, paintTrack, paintWaits } from "../layout/bins";
import { chunkColor, mix, pixelPalette, textColor } from "../layout/colors";
import { Mixture } from "../layout/mixture";
import { LABEL_HEIGHT } from "../layout/rows";
import { type Comparison, HIDDEN } from "../model/compare";
import { COMM, COMPUTE, HOST, isAction, type Kind } from "../model/meta";
import type { Spans, Tile } from "../model/spans";
import { shortChange, shortDuration } from "../model/time";
import type { DrawnRow, Scene } from "./scene";
import { Strips } from "./strips";

const BLOCK_WIDTH = 7;
const MOST_BLOCKS = 9000;
const LEAST_LABEL_SIZE = 8;
/** Width of a digit as a part of the font's size. */
const DIGIT_WIDTH = 0.62;
/** Lower rows show no waits: their lines would hide the blocks. */
const LEAST_WAITED_HEIGHT = 14;
const PAIR_DEPTHS = [1, 2, 4, 4];
/** From light to dark, so that faster and slower differ without color, too. */
const FASTER = "#8fd3fb";
const UNCHANGED = "#a6abb2";
const SLOWER = "#9c3d00";
const WITHOUT_PARTNER = "#eef0f2";
/** A change of this fraction has the full color. */
export const FULL_DELTA = 0.25;

interface Band extends Lines {
  row: DrawnRow;
  lane: number;
  isMain: boolean;
}

interface Drawable extends Block {
  y: number;
  height: number;
  isMain: boolean;
}

export class BlockPainter {
  private readonly strips = new Strips();
  private readonly mixtures = Array.from({ length: Math.max(...PAIR_DEPTHS) }, () => new Mixture());
  private readonly depths = new WeakMap<Spans, number>();
  private readonly chunks: number;
  private readonly palette: Palette;
  private readonly colors = new Map<number, string>();
  private readonly kinds: Kind[] = [];
  private override: { of: Comparison; colors: WeakMap<Spans, Int32Array> } | null = null;

  constructor(kinds: Kind[], chunkCount: number) {
    this.chunks = chunkCount;
    this.palette = pixelPalette(kinds, chunkCount);
    for (const kind of kinds) this.kinds[kind.code] = kind;
  }

  /** Color of a block, as in the SVG pictures. */
  color(kind: number, chunk: number): string {
    const key = kind * 1024 + chunk;
    let color = this.colors.get(key);
    if (!color) {
      color = chunkColor(this.kinds[kind]?.color ?? "#bdbdbd", chunk, this.chunks);
      this.colors.set(key, color);
    }
    return color;
  }

  draw(scene: Scene): void {
    const blocks: Drawable[] = [];
    const ghostTile: Tile | null = ghostOf(scene);
    const bands = this.bands(scene, ghostTile !== null);
    const width = Math.round(scene.width * scene.ratio);
    const depth = Math.max(1, ...scene.tiles.map((tile) => this.depth(tile.spans)));
    const waitLine = this.divide(bands, depth, scene.ratio);
    const withWaits =
      scene.viewer.display.flags.value.has("waits") &&
      !scene.viewer.comparison.value &&
      (scene.rows[0]?.mainHeight ?? 0) >= LEAST_WAITED_HEIGHT;
    this.strips.begin(width, waitLine + (withWaits ? scene.rows.length : 0));
    const blockWidth = this.blockWidth(scene, bands.length) * scene.ratio;
    const paint: Paint = { ...this.paint(scene, width), depth, blockWidth };
    for (const band of bands) {
      const tiles = bandTiles(scene, band, ghostTile).map((tile) => ({
        tile,
        track: tile.spans.track(rowIn(scene, band), Math.max(band.lane, COMPUTE)),
        override: this.overrideOf(scene, tile),
      }));
      const { line, division } = band;
      // The place in the whole picture, not in the window: the lines keep their turns when rows are scrolled.
      const turn = Math.round((band.row.top + band.top - band.row.y) * scene.ratio);
      const target = {
        lines: this.strips.lines,
        offset: line * width,
        division,
        turn,
        mixtures: this.mixtures,
      };
      for (const block of paintTrack(tiles, paint, target)) blocks.push(placed(block, band));
    }
    if (withWaits)
      scene.rows.forEach((row, i) => {
        paintWaits(
          scene.tiles,
          row.row,
          paint,
          scene.inks.wait,
          this.strips.lines,
          (waitLine + i) * width,
          this.mixtures[0]!,
        );
      });
    this.strips.end();
    this.drawStrips(scene, bands, depth, withWaits ? waitLine : -1);
    this.drawBlocks(scene, blocks);
  }

  /** Give every band its pixel lines; return how many there are. */
  private divide(bands: Band[], depth: number, ratio: number): number {
    let line = 0;
    for (const band of bands) {
      band.division = divideBand(Math.round(band.height * ratio), depth, depth * bands.length);
      band.line = line;
      line += depth * band.division.lines;
    }
    return line;
  }

  private paint(scene: Scene, width: number): Omit<Paint, "depth" | "blockWidth"> {
    const hidden = new Uint8Array(256);
    hidden[HIDDEN] = 1;
    for (const code of scene.viewer.display.hiddenKinds.value) hidden[code] = 1;
    const { view } = scene;
    return {
      view,
      width,
      palette: this.palette,
      hiddenKinds: hidden,
      wanted: scene.viewer.search.matcher(),
    };
  }

  /** Narrow blocks cost more than they show where there are very many. */
  private blockWidth(scene: Scene, bandCount: number): number {
    const most = (scene.width / BLOCK_WIDTH) * bandCount;
    return most > MOST_BLOCKS ? (scene.width * bandCount) / MOST_BLOCKS : BLOCK_WIDTH;
  }

  private bands(scene: Scene, withGhost: boolean): Band[] {
    const bands: Band[] = [];
    const { flags } = scene.viewer.display;
    const add = (row: DrawnRow, lane: number, top: number, height: number, isMain: boolean): void =>
      void bands.push({ row, lane, top, height, isMain, line: 0, division: { lines: 1, isStacked: false } });
    for (const row of scene.rows) {
      const has = (lane: number): boolean =>
        scene.tiles.some((tile) => tile.spans.track(row.row, lane)[0] < tile.spans.track(row.row, lane)[1]);
      const main = has(COMPUTE) ? COMPUTE : has(HOST) ? HOST : COMPUTE;
      add(row, main, row.mainTop, row.mainHeight, true);
      if (row.thinHeight > 0 && flags.value.has("host") && main !== HOST)
        add(row, HOST, row.thinTop, row.thinHeight, false);
      if (row.thinHeight > 0 && flags.value.has("comm")) add(row, COMM, row.thinTop, row.thinHeight, false);
      if (withGhost && row.ghostHeight > 0) add(row, -1, row.ghostTop, row.ghostHeight, false);
    }
    return bands;
  }

  private depth(spans: Spans): number {
    let depth = this.depths.get(spans);
    if (depth === undefined) {
      const most = spans.table.has("sublanes")
        ? spans.table.ints("sublanes").reduce((a, b) => (a > b ? a : b), 1)
        : 1;
      depth = PAIR_DEPTHS[Math.min(most, 4) - 1] ?? 1;
      this.depths.set(spans, depth);
    }
    return depth;
  }

  private overrideOf(scene: Scene, tile: Tile): Int32Array | null {
    const comparison = scene.viewer.comparison.value;
    const { spans } = tile;
    if (!comparison || comparison.stages || spans.isBinned || spans === comparison.spans) return null;
    if (this.override?.of !== comparison) this.override = { of: comparison, colors: new WeakMap() };
    const known = this.override.colors.get(spans);
    if (known) return known;
    const chunk = spans.table.has("chunk") ? spans.table.ints("chunk") : null;
    const colors = Int32Array.from({ length: spans.count }, (_, i) => {
      const delta = comparison.delta(spans.id(i));
      if (delta !== undefined) return swapped(deltaColor(delta));
      return colorIn(this.palette, spans.kind[i]!, chunk ? chunk[i]! : 0);
    });
    this.override.colors.set(spans, colors);
    return colors;
  }

  private drawStrips(scene: Scene, bands: Band[], depth: number, waitLine: number): void {
    const { pen, ratio } = scene;
    pen.save();
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.imageSmoothingEnabled = false;
    for (const { line, count, top, height } of stripsOf(bands, depth, ratio))
      this.strips.draw(pen, line, count, top, height);
    if (waitLine >= 0)
      scene.rows.forEach((row, i) => {
        const height = Math.max(1, Math.min(3, row.mainHeight * 0.1)) * ratio;
        this.strips.draw(pen, waitLine + i, 1, (row.mainTop + row.mainHeight) * ratio - height, height);
      });
    pen.restore();
  }

  private drawBlocks(scene: Scene, blocks: Drawable[]): void {
    const { pen } = scene;
    const wanted = scene.viewer.search.matcher();
    const comparison = scene.viewer.comparison.value;
    const isColored = comparison !== null && comparison.stages === null;
    const labels: [Drawable, string, number | undefined][] = [];
    for (const block of blocks) {
      const { spans } = block.tile;
      const kind = this.kinds[spans.kind[block.place]!];
      const chunk =
        isAction(kind) && spans.table.has("chunk") ? Math.max(spans.table.ints("chunk")[block.place]!, 0) : 0;
      const delta =
        isColored && !spans.isBinned && spans !== comparison.spans
          ? comparison.delta(spans.id(block.place))
          : undefined;
      const color = delta === undefined ? this.color(spans.kind[block.place]!, chunk) : deltaColor(delta);
      const left = block.left / scene.ratio;
      const width = (block.right - block.left) / scene.ratio;
      pen.globalAlpha = wanted && !wanted(spans, block.place) ? 0.16 : 1;
      pen.fillStyle = color;
      pen.fillRect(left, block.y, Math.max(width - 0.75, 0.75), block.height);
      const overlay = kind && block.height >= 9 ? scene.textures.overlay(kind.texture, color) : null;
      if (overlay) {
        pen.fillStyle = overlay;
        pen.fillRect(left, block.y, Math.max(width - 0.75, 0.75), block.height);
      }
      if (block.height >= LABEL_HEIGHT && pen.globalAlpha === 1) labels.push([block, color, delta]);
    }
    pen.globalAlpha = 1;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    this.font = "";
    for (const [block, color, delta] of labels) this.drawLabel(scene, block, color, delta);
  }

  private drawLabel(scene: Scene, block: Drawable, color: string, delta: number | undefined): void {
    const { pen, ratio } = scene;
    const { spans } = block.tile;
    const microbatch = spans.table.has("microbatch") ? spans.table.ints("microbatch")[block.place]! : -1;
    const kind = this.kinds[spans.kind[block.place]!];
    const isNumbered = isAction(kind) && microbatch >= 0;
    // The color shows the change, so the letter has to show the kind.
    const letter = isNumbered && delta === undefined ? "" : (kind?.letter ?? "");
    const text = isNumbered ? `${letter}${microbatch}` : letter;
    const left = block.left / ratio;
    const width = (block.right - block.left) / ratio;
    const wanted = Math.round(Math.min(13, Math.max(9, block.height * 0.5)));
    const size = Math.min(wanted, Math.floor((width - 2) / (text.length * DIGIT_WIDTH)));
    if (size < LEAST_LABEL_SIZE) return;
    const digit = size * DIGIT_WIDTH;
    this.setFont(pen, `500 ${size}px ${scene.inks.fontFamily}`);
    pen.fillStyle = textColor(color);
    const middle = left + width / 2;
    const y = block.y + block.height / 2 + 0.5;
    // A cost beside the micro-batch would be one bare number beside another.
    if (scene.unit === "cost" && delta === undefined) {
      pen.fillText(text, middle, y);
      return;
    }
    const duration =
      delta === undefined || Number.isNaN(delta)
        ? shortDuration(spans.duration[block.place]!, scene.unit)
        : shortChange(delta);
    const space = width - text.length * digit;
    if (block.height >= 30 && width >= duration.length * 5.6 + 8) {
      pen.fillText(text, middle, y - 6);
      this.drawDuration(pen, scene, duration, middle, y + 8);
    } else if (block.height >= 14 && space >= duration.length * 5.6 + 22) {
      const half = (duration.length * 5.6) / 2 + 4;
      pen.fillText(text, middle - half, y);
      this.drawDuration(pen, scene, duration, middle + (text.length * digit) / 2 + 2, y);
    } else pen.fillText(text, middle, y);
  }

  private drawDuration(
    pen: CanvasRenderingContext2D,
    scene: Scene,
    text: string,
    at: number,
    y: number,
  ): void {
    this.setFont(pen, `10px ${scene.inks.fontFamily}`);
    pen.globalAlpha = 0.85;
    pen.fillText(text, at, y);
    pen.globalAlpha = 1;
  }

  /** Setting a font is slow, even the one that is set. */
  private setFont(pen: CanvasRenderingContext2D, font: string): void {
    if (this.font === font) return;
    pen.font = this.font = font;
  }
  private font = "";
}

/** Dark where slower, light where faster, gray where alike, pale without a partner. */
export function deltaColor(delta: number): string {
  if (Number.isNaN(delta)) return WITHOUT_PARTNER;
  return mix(UNCHANGED, delta > 0 ? SLOWER : FASTER, Math.min(Math.abs(delta) / FULL_DELTA, 1));
}

function colorIn({ shades, colors }: Palette, kind: number, chunk: number): number {
  return colors[kind * shades + Math.min(Math.max(chunk, 0), shades - 1)]!;
}

function swapped(color: string): number {
  const value = parseInt(color.slice(1), 16);
  return ((value & 255) << 16) | (value & 0xff00) | (value >> 16);
}

function ghostOf(scene: Scene): Tile | null {
  const spans =
    scene.viewer.comparison.value?.spans ??
    (scene.viewer.display.ideal.value === "under" ? scene.layers.ideal : null);
  return spans && { spans, start: -Infinity, end: Infinity };
}

function bandTiles(scene: Scene, band: Band, ghost: Tile | null): Tile[] {
  if (band.lane >= 0) return scene.tiles;
  return ghost ? [ghost] : [];
}

/** The row of a band's spans: that of another run may differ, because rows are ranks and each run has its own. */
function rowIn(scene: Scene, { row, lane }: Band): number {
  const comparison = lane < 0 ? scene.viewer.comparison.value : null;
  return comparison ? comparison.otherRow(row.row) : row.row;
}

function placed(block: Block, band: Band): Drawable {
  const y = band.top + block.top * band.height;
  const height = (block.bottom - block.top) * band.height - (block.bottom < 1 ? 0.75 : 0);
  return { ...block, y, height, isMain: band.isMain };
}

/** Textures of the kinds and hatches of idle time, as repeating patterns: color is never the only sign. */

import { contrast } from "../layout/colors";
import type { Texture } from "../model/meta";

/** Width and height of a tile. */
export const TILE = 6;
const LIGHT_BELOW_CONTRAST = 3;

/** Pen moves in a tile of 6 x 6, as in exporters/pictures/legend.py. */
export const STROKES: Record<Texture, [number, number, number, number][]> = {
  plain: [],
  rising: [
    [-1, 7, 7, -1],
    [-1, 1, 1, -1],
    [5, 7, 7, 5],
  ],
  falling: [
    [-1, -1, 7, 7],
    [5, -1, 7, 1],
    [-1, 5, 1, 7],
  ],
  dots: [[2.2, 3, 3.8, 3]],
  cross: [
    [-1, 7, 7, -1],
    [-1, -1, 7, 7],
  ],
  bars: [[3, -1, 3, 7]],
};

/** What the painters need of textures: a style to fill with, null where there is none. */
export interface TextureStyles {
  overlay(texture: Texture, color: string): CanvasPattern | null;
  hatch(texture: Texture, color: string): CanvasPattern | null;
}

/** The stroke of an overlay: its color and width. */
export function overlayStroke(texture: Texture, color: string): [string, number] {
  const isLight = contrast(color, "#ffffff") < LIGHT_BELOW_CONTRAST;
  return [isLight ? "rgba(26,26,26,.22)" : "rgba(255,255,255,.3)", texture === "dots" ? 1.6 : 1];
}

export class Textures implements TextureStyles {
  private readonly made = new Map<string, CanvasPattern | null>();

  constructor(private readonly ratio: number) {}

  /** Faint strokes to be laid over a block of `color`; null where the kind is plain. */
  overlay(texture: Texture, color: string): CanvasPattern | null {
    if (texture === "plain") return null;
    return this.strokes(texture, ...overlayStroke(texture, color));
  }

  /** Opaque strokes that fill idle time; no span has such a look. */
  hatch(texture: Texture, color: string): CanvasPattern | null {
    return this.strokes(texture, color, 1);
  }

  /** Strokes of any color and width. */
  strokes(texture: Texture, color: string, lineWidth: number): CanvasPattern | null {
    const key = `${texture} ${color}`;
    let pattern = this.made.get(key);
    if (pattern === undefined) {
      pattern = this.make(texture, color, lineWidth);
      this.made.set(key, pattern);
    }
    return pattern;
  }

  private make(texture: Texture, color: string, lineWidth: number): CanvasPattern | null {
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(TILE * this.ratio);
    const pen = tile.getContext("2d")!;
    pen.scale(tile.width / TILE, tile.height / TILE);
    pen.strokeStyle = color;
    pen.lineWidth = lineWidth;
    pen.beginPath();
    for (const [x, y, toX, toY] of STROKES[texture]) {
      pen.moveTo(x, y);
      pen.lineTo(toX, toY);
    }
    pen.stroke();
    const pattern = pen.createPattern(tile, "repeat");
    pattern?.setTransform(new DOMMatrix().scale(1 / this.ratio));
    return pattern;
  }
}

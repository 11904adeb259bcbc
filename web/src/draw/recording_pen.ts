/** A pen with the methods that the painters use, which keeps what is drawn as marks for a file of vectors. */

import type { Texture } from "../model/meta";

export interface Hatch {
  texture: Texture;
  color: string;
  lineWidth: number;
}

export type Move =
  | ["M" | "L", number, number]
  | ["C", number, number, number, number, number, number]
  | ["R", number, number, number, number]
  | ["Z"];

export type Mark =
  | { kind: "fill"; path: Move[]; color: string; alpha: number }
  | { kind: "hatch"; path: Move[]; hatch: Hatch; alpha: number }
  | { kind: "stroke"; path: Move[]; color: string; alpha: number; width: number; dash: number[] }
  | {
      kind: "text";
      text: string;
      x: number;
      y: number;
      size: number;
      weight: string;
      align: Align;
      color: string;
      alpha: number;
    }
  /** One line of pixels, stretched to the height. */
  | { kind: "pixels"; x: number; y: number; width: number; height: number; pixels: Uint8ClampedArray }
  | { kind: "clip"; path: Move[] }
  | { kind: "restore" };

export type Align = "left" | "center" | "right";

interface State {
  fillStyle: unknown;
  strokeStyle: unknown;
  lineWidth: number;
  globalAlpha: number;
  font: string;
  textAlign: Align;
  textBaseline: string;
  dash: number[];
  clips: number;
}

/** Heights of capitals and of the part below a line, as parts of the size. */
const MIDDLE = 0.35;
const TOP = 0.76;

/** To read pixels of an image from, without making the image slow to draw. */
let scratch: CanvasRenderingContext2D | null = null;

export class RecordingPen implements State {
  readonly marks: Mark[] = [];
  fillStyle: unknown = "#000000";
  strokeStyle: unknown = "#000000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "10px sans-serif";
  textAlign: Align = "left";
  textBaseline = "alphabetic";
  lineJoin = "miter";
  imageSmoothingEnabled = true;
  dash: number[] = [];
  clips = 0;
  private path: Move[] = [];
  private readonly saved: State[] = [];
  private scale = 1;
  private scales: number[] = [];

  /** `left` and `top` of what is drawn from now on, and the pixels of the painter per unit. */
  constructor(
    private readonly ratio = 1,
    private left = 0,
    private top = 0,
  ) {}

  /** The pen as the painters know it. */
  get canvasPen(): CanvasRenderingContext2D {
    return this as unknown as CanvasRenderingContext2D;
  }

  moveOrigin(left: number, top: number): void {
    [this.left, this.top] = [left, top];
  }

  /** Only the scale is used: 1 for pixels of the device, the ratio for units. */
  setTransform(scale: number): void {
    this.scale = scale / this.ratio;
  }

  save(): void {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash, clips } =
      this;
    this.saved.push({
      fillStyle,
      strokeStyle,
      lineWidth,
      globalAlpha,
      font,
      textAlign,
      textBaseline,
      dash,
      clips,
    });
    this.scales.push(this.scale);
  }

  restore(): void {
    const state = this.saved.pop();
    if (!state) return;
    for (let i = state.clips; i < this.clips; i++) this.marks.push({ kind: "restore" });
    Object.assign(this, state);
    this.scale = this.scales.pop()!;
  }

  clip(): void {
    this.marks.push({ kind: "clip", path: this.path });
    this.clips++;
  }

  setLineDash(dash: number[]): void {
    this.dash = dash;
  }

  beginPath(): void {
    this.path = [];
  }

  moveTo(x: number, y: number): void {
    this.path.push(["M", this.x(x), this.y(y)]);
  }

  lineTo(x: number, y: number): void {
    this.path.push(["L", this.x(x), this.y(y)]);
  }

  bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void {
    this.path.push(["C", this.x(a), this.y(b), this.x(c), this.y(d), this.x(x), this.y(y)]);
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.path.push(["R", this.x(x), this.y(y), width * this.scale, height * this.scale]);
  }

  closePath(): void {
    this.path.push(["Z"]);
  }

  fill(): void {
    this.fillPath(this.path);
  }

  stroke(): void {
    this.strokePath(this.path);
  }

  fillRect(x: number, y: number, width: number, height: number): void {
    this.fillPath([["R", this.x(x), this.y(y), width * this.scale, height * this.scale]]);
  }

  strokeRect(x: number, y: number, width: number, height: number): void {
    this.strokePath([["R", this.x(x), this.y(y), width * this.scale, height * this.scale]]);
  }

  fillText(text: string, x: number, y: number): void {
    const size = Number(/([\d.]+)px/.exec(this.font)?.[1] ?? 10);
    const weight = /^(\d+) /.exec(this.font)?.[1] ?? "400";
    const below = this.textBaseline === "middle" ? MIDDLE : this.textBaseline === "top" ? TOP : 0;
    this.marks.push({
      kind: "text",
      text,
      x: this.x(x),
      y: this.y(y) + below * size,
      size,
      weight,
      align: this.textAlign,
      color: String(this.fillStyle),
      alpha: this.globalAlpha,
    });
  }

  drawImage(
    image: HTMLCanvasElement,
    fromX: number,
    fromY: number,
    fromWidth: number,
    fromHeight: number,
    x: number,
    y: number,
    width: number,
    height: number,
  ): void {
    scratch ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
    [scratch.canvas.width, scratch.canvas.height] = [fromWidth, fromHeight];
    scratch.drawImage(image, fromX, fromY, fromWidth, fromHeight, 0, 0, fromWidth, fromHeight);
    // Equal lines become one mark: few rows show a mixture.
    for (let line = 0; line < fromHeight; ) {
      const { data: pixels } = scratch.getImageData(0, line, fromWidth, 1);
      const first = line++;
      while (line < fromHeight && isEqual(pixels, scratch.getImageData(0, line, fromWidth, 1).data)) line++;
      if (!pixels.some((value, i) => i % 4 === 3 && value > 0)) continue;
      const { scale } = this;
      this.marks.push({
        kind: "pixels",
        x: this.x(x),
        y: this.y(y + (first * height) / fromHeight),
        width: width * scale,
        height: ((line - first) * height * scale) / fromHeight,
        pixels,
      });
    }
  }

  private x(x: number): number {
    return this.left + x * this.scale;
  }

  private y(y: number): number {
    return this.top + y * this.scale;
  }

  private fillPath(path: Move[]): void {
    const [style, alpha] = [this.fillStyle, this.globalAlpha];
    if (typeof style === "string") this.marks.push({ kind: "fill", path, color: style, alpha });
    else this.marks.push({ kind: "hatch", path, hatch: style as Hatch, alpha });
  }

  private strokePath(path: Move[]): void {
    this.marks.push({
      kind: "stroke",
      path: [...path],
      color: String(this.strokeStyle),
      alpha: this.globalAlpha,
      width: this.lineWidth,
      dash: this.dash,
    });
  }
}

/** Red, green, blue and alpha of a color as the painters write it. */
export function channelsOf(color: string): [number, number, number, number] {
  const parts = /^rgba?\(([^)]*)\)/.exec(color);
  if (parts) {
    const [red = 0, green = 0, blue = 0, alpha = 1] = parts[1]!.split(",").map(Number);
    return [red, green, blue, alpha];
  }
  const value = parseInt(color.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255, 1];
}

function isEqual(one: Uint8ClampedArray, other: Uint8ClampedArray): boolean {
  return one.every((value, i) => value === other[i]);
}

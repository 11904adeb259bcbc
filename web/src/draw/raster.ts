/** Marks on a canvas, for a file of pixels. */

import type { Mark, Move } from "./recording_pen";
import { Textures } from "./textures";

export function rasterOf(
  marks: Mark[],
  width: number,
  height: number,
  ratio: number,
  fontFamily: string,
): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d")!;
  const textures = new Textures(ratio);
  pen.scale(ratio, ratio);
  pen.lineJoin = "round";
  for (const mark of marks) draw(pen, mark, textures, fontFamily);
  return canvas;
}

function draw(pen: CanvasRenderingContext2D, mark: Mark, textures: Textures, fontFamily: string): void {
  if ("alpha" in mark) pen.globalAlpha = mark.alpha;
  switch (mark.kind) {
    case "fill":
      pen.fillStyle = mark.color;
      trace(pen, mark.path);
      pen.fill();
      return;
    case "hatch":
      pen.fillStyle = textures.strokes(mark.hatch.texture, mark.hatch.color, mark.hatch.lineWidth) ?? "#0000";
      trace(pen, mark.path);
      pen.fill();
      return;
    case "stroke":
      pen.strokeStyle = mark.color;
      pen.lineWidth = mark.width;
      pen.setLineDash(mark.dash);
      trace(pen, mark.path);
      pen.stroke();
      return;
    case "text":
      pen.fillStyle = mark.color;
      pen.font = `${mark.weight} ${mark.size}px ${fontFamily}`;
      pen.textAlign = mark.align;
      pen.fillText(mark.text, mark.x, mark.y);
      return;
    case "pixels":
      pen.globalAlpha = 1;
      pen.imageSmoothingEnabled = false;
      pen.drawImage(lineOf(mark.pixels), mark.x, mark.y, mark.width, mark.height);
      return;
    case "clip":
      pen.save();
      trace(pen, mark.path);
      pen.clip();
      return;
    case "restore":
      pen.restore();
      return;
  }
}

function trace(pen: CanvasRenderingContext2D, path: Move[]): void {
  pen.beginPath();
  for (const move of path) {
    if (move[0] === "M") pen.moveTo(move[1], move[2]);
    else if (move[0] === "L") pen.lineTo(move[1], move[2]);
    else if (move[0] === "C") pen.bezierCurveTo(move[1], move[2], move[3], move[4], move[5], move[6]);
    else if (move[0] === "R") pen.rect(move[1], move[2], move[3], move[4]);
    else pen.closePath();
  }
}

function lineOf(pixels: Uint8ClampedArray): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = pixels.length / 4;
  canvas.height = 1;
  canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(pixels), canvas.width, 1), 0, 0);
  return canvas;
}

/** The pipeline picture: axis, tracks, spans and overlays. */

import { divideRow } from "../layout/bands";
import { pinnedHeight, rowsOnScreen, screenTop } from "../layout/rows";
import { axisTicks, type Tick } from "../layout/ticks";
import { length } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import { t } from "../model/language";
import { durationText } from "../model/time";
import { BlockPainter } from "./blocks";
import { drawKernels } from "./kernels";
import * as overlays from "./overlays";
import { AXIS_HEIGHT, type DrawnRow, type Layers, type Scene, x } from "./scene";
import { type TextureStyles, Textures } from "./textures";
import { DARK, type Inks, LIGHT } from "./theme";

const TICK_DISTANCE = 90;
/** Paper shows more dots than a screen: 300 per inch. */
const PRINTED_RATIO = 3;

export const NO_LAYERS: Layers = { idle: null, critical: null, criticalIds: [], ideal: null, kernels: null };

export class TimelinePainter {
  readonly blocks: BlockPainter;
  private textures = new Textures(1);
  private ratio = 1;

  constructor(
    private readonly viewer: Viewer,
    chunkCount: number,
  ) {
    this.blocks = new BlockPainter(viewer.meta.kinds, chunkCount);
  }

  /** Redraw everything; `size` is in CSS pixels. */
  draw(
    canvas: HTMLCanvasElement,
    size: { width: number; height: number },
    isDark: boolean,
    layers: Layers,
  ): void {
    const isPrinted = this.viewer.display.isPrinted.peek();
    const ratio = Math.max(window.devicePixelRatio || 1, isPrinted ? PRINTED_RATIO : 0);
    const { width } = size;
    const height = size.height + AXIS_HEIGHT;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    // Set here, not by the layout: the browser would stretch the old picture until it is redrawn.
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    if (this.ratio !== ratio) {
      this.ratio = ratio;
      this.textures = new Textures(ratio);
    }
    const pen = canvas.getContext("2d", { alpha: false })!;
    this.paint(pen, { ...size, ratio }, isDark ? DARK : LIGHT, layers, this.textures);
  }

  /** Draw everything with a pen; `size` has the width and height of the rows, and the pixels per unit. */
  paint(
    pen: CanvasRenderingContext2D,
    size: { width: number; height: number; ratio: number },
    inks: Inks,
    layers: Layers,
    textures: TextureStyles,
  ): void {
    const { width, ratio } = size;
    const height = size.height + AXIS_HEIGHT;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const scene = { ...this.scene(pen, width, height, ratio, inks, layers), textures };
    pen.fillStyle = scene.inks.paper;
    pen.fillRect(0, 0, width, height);
    const screen = this.viewer.display.screen(size.height);
    const fixed = pinnedHeight(screen);
    drawAxis(scene);
    overlays.drawRangeLength(scene);
    overlays.drawNotes(scene);
    // Pinned rows stay; the others scroll below them. Both know all rows, for arrows between them.
    const isPinned = (row: DrawnRow): boolean => row.top < fixed;
    if (fixed > 0) this.paintRows({ ...scene, rows: scene.rows.filter(isPinned) }, 0, fixed);
    const others = fixed > 0 ? scene.rows.filter((row) => !isPinned(row)) : scene.rows;
    this.paintRows({ ...scene, rows: others }, fixed, size.height - fixed);
    if (fixed > 0 && screen.scroll > 0) {
      pen.fillStyle = scene.inks.quiet;
      pen.fillRect(0, AXIS_HEIGHT + fixed - 1, width, 1);
    }
  }

  /** Draw rows with all that belongs to them, between two heights below the axis. */
  private paintRows(scene: Scene, top: number, height: number): void {
    const { pen } = scene;
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS_HEIGHT + top, scene.width, height);
    pen.clip();
    drawTracks(scene);
    drawGrid(scene);
    overlays.drawIdle(scene);
    this.blocks.draw(scene);
    drawKernels(scene);
    overlays.drawIdealOutlines(scene);
    overlays.drawClockErrors(scene);
    overlays.drawCriticalPath(scene);
    overlays.drawRange(scene);
    overlays.drawNoteLines(scene);
    overlays.drawLinks(scene, this.viewer.selection.chain.value, 1.4);
    overlays.drawLinks(scene, this.viewer.selection.hoverLinks.value, 1.8);
    overlays.drawIdleFrames(scene);
    overlays.drawFrame(scene, this.viewer.selection.hover.value, 1);
    overlays.drawFrame(scene, this.viewer.selection.selected.value, 2);
    pen.restore();
  }

  private scene(
    pen: CanvasRenderingContext2D,
    width: number,
    height: number,
    ratio: number,
    inks: Inks,
    layers: Layers,
  ): Omit<Scene, "textures"> {
    const { viewer } = this;
    const view = viewer.camera.view.value;
    const rows = this.drawnRows(height);
    const request = {
      start: view.start,
      end: view.end,
      rows: rows.map((row) => row.row),
      ns_per_pixel: length(view) / width,
    };
    return {
      pen,
      viewer,
      inks,
      view,
      width,
      height,
      ratio,
      rows,
      layers,
      drawn: new Map(rows.map((row) => [row.row, row])),
      tiles: viewer.source.tiles(request),
      unit: viewer.meta.time_unit,
    };
  }

  private drawnRows(height: number): DrawnRow[] {
    const { viewer } = this;
    const screen = viewer.display.screen(height - AXIS_HEIGHT);
    const lanes = viewer.lanes();
    return rowsOnScreen(screen)
      .flat()
      .map((row) => {
        const y = screenTop(screen, row.top) + AXIS_HEIGHT;
        const bands = divideRow(row.height, lanes);
        return {
          ...row,
          ...bands,
          y,
          mainTop: y,
          ghostTop: y + bands.ghostTop,
          thinTop: y + bands.thinTop,
          kernelTop: y + bands.kernelTop,
        };
      });
  }
}

function drawTracks(scene: Scene): void {
  const { pen, inks, viewer } = scene;
  pen.fillStyle = inks.track;
  // Rows without a gap between them are one rectangle.
  for (let i = 0; i < scene.rows.length; ) {
    const { y } = scene.rows[i]!;
    let bottom = y;
    while (i < scene.rows.length && scene.rows[i]!.y === bottom) bottom += scene.rows[i++]!.height;
    pen.fillRect(0, y, scene.width, bottom - y);
  }
  pen.strokeStyle = inks.grid;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const heading of viewer.display.rows.value.headings) {
    const screen = viewer.display.screen(scene.height - AXIS_HEIGHT);
    const y = Math.round(screenTop(screen, heading.top) + AXIS_HEIGHT) + 0.5;
    pen.moveTo(0, y + 3);
    pen.lineTo(scene.width, y + 3);
  }
  pen.stroke();
}

/** Lines from the ticks of the axis down through the rows. */
function drawGrid(scene: Scene): void {
  const { pen, inks, view, viewer, width } = scene;
  const { rows, scroll } = viewer.display.screen();
  const bottom = Math.min(scene.height, AXIS_HEIGHT + rows.height - scroll);
  pen.strokeStyle = inks.grid;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const tick of axisTicks(view, originOf(scene).origin, width / TICK_DISTANCE, scene.unit).ticks) {
    const at = Math.round(x(scene, tick.time)) + 0.5;
    pen.moveTo(at, AXIS_HEIGHT);
    pen.lineTo(at, bottom);
  }
  pen.stroke();
}

/** Where the times of the axis count from: the start of the step if the view is within one, else that of the run. */
function originOf({ viewer, view }: Scene): { isWithin: boolean; origin: number } {
  const step = viewer.camera.step.value;
  const isWithin = step !== null && length(view) < 1.5 * (step.end - step.start) + 40;
  return { isWithin, origin: isWithin ? step.start : 0 };
}

/** Ticks and their times, relative to the start of the step if the view is within one. */
function drawAxis(scene: Scene): void {
  const { pen, inks, view, width } = scene;
  const { isWithin, origin } = originOf(scene);
  const axis = axisTicks(view, origin, width / TICK_DISTANCE, scene.unit);
  pen.strokeStyle = inks.grid;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const tick of axis.ticks) {
    const at = Math.round(x(scene, tick.time)) + 0.5;
    pen.moveTo(at, AXIS_HEIGHT - 5);
    pen.lineTo(at, AXIS_HEIGHT);
  }
  pen.stroke();
  pen.fillStyle = inks.paper;
  pen.fillRect(0, 0, width, AXIS_HEIGHT - 6);
  pen.font = `11px ${inks.fontFamily}`;
  pen.textBaseline = "alphabetic";
  pen.textAlign = "center";
  pen.fillStyle = inks.quiet;
  const halfOf = (text: string): number => text.length * 3.4;
  const fits = axis.ticks.filter(
    (tick) => x(scene, tick.time) > halfOf(tick.text) && x(scene, tick.time) < width - halfOf(tick.text),
  );
  // The unit follows the last number that leaves enough space for it.
  const hasSpace = (tick: Tick): boolean => x(scene, tick.time) + halfOf(tick.text) + 22 < width;
  const last = fits.map(hasSpace).lastIndexOf(true);
  fits.slice(0, last + 1).forEach((tick, i) => {
    const at = x(scene, tick.time);
    pen.fillText(tick.text, at, AXIS_HEIGHT - 10);
    if (!axis.unit || i !== last) return;
    pen.textAlign = "left";
    pen.fillText(axis.unit, at + halfOf(tick.text) + 3, AXIS_HEIGHT - 10);
  });
  drawStepMarks(scene, isWithin);
}

function drawStepMarks(scene: Scene, isWithin: boolean): void {
  const { pen, inks, viewer, width } = scene;
  pen.textAlign = "left";
  pen.font = `600 11px ${inks.fontFamily}`;
  pen.fillStyle = inks.quiet;
  pen.strokeStyle = inks.quiet;
  if (isWithin) {
    const { unit } = scene;
    const [inView, step] = [durationText(length(scene.view), unit), viewer.camera.step.value!.step];
    const caption =
      unit === "cost"
        ? t`${inView} units of cost in view, from the start of step ${step}`
        : t`${inView} in view, from the start of step ${step}`;
    pen.font = `11px ${inks.fontFamily}`;
    pen.fillText(caption, 2, 11);
  }
  let free = -Infinity;
  pen.beginPath();
  for (const step of viewer.meta.steps) {
    const left = x(scene, step.start);
    if (left < -2 || left > width) continue;
    pen.moveTo(Math.round(left) + 0.5, AXIS_HEIGHT - 8);
    pen.lineTo(Math.round(left) + 0.5, AXIS_HEIGHT);
    const text = t`step ${step.step}`;
    if (!isWithin && left > free) {
      pen.fillText(text, left + 2, 11);
      free = left + text.length * 6.5 + 16;
    }
  }
  pen.stroke();
}

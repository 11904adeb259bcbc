/** The picture in view as marks, with a title, the labels of the rows and a legend: what is saved to a file. */

import { chunkColor, textColor } from "../layout/colors";
import { kindText, legendKinds, legendNotes, legendWaits, waitText } from "../layout/legend";
import {
  HEADING_HEIGHT,
  type PlacedRow,
  pinnedHeight,
  rowLabel,
  rowsOnScreen,
  screenTop,
  stageLabel,
} from "../layout/rows";
import type { Viewer } from "../layout/viewer";
import { t } from "../model/language";
import { isAction } from "../model/meta";
import { type Hatch, type Mark, RecordingPen } from "./recording_pen";
import { AXIS_HEIGHT, type Layers } from "./scene";
import { overlayStroke, type TextureStyles } from "./textures";
import { type Inks, LIGHT } from "./theme";
import type { TimelinePainter } from "./timeline";

const MARGIN = 12;
const TITLE_HEIGHT = 26;
const LABELS_WIDTH = 118;
const LABEL_SIZE = 11;
const LEGEND_LINE = 20;
const SWATCH_WIDTH = 22;
/** Width of a character as a part of the font's size, on average. */
const CHARACTER = 0.56;
/** Pixels per unit of spans that are too narrow for a shape. */
const RATIO = 2;

export interface Picture {
  marks: Mark[];
  width: number;
  height: number;
  title: string;
  inks: Inks;
}

export function pictureOf(
  viewer: Viewer,
  painter: TimelinePainter,
  layers: Layers,
  chunkCount: number,
): Picture {
  const rows = viewer.display.rows.peek();
  const size = viewer.display.size.peek();
  const height = Math.min(size.height, Math.max(rows.height - viewer.display.scroll.peek(), 1));
  const pen = new RecordingPen(RATIO);
  const inks = LIGHT;
  const width = MARGIN + LABELS_WIDTH + size.width + MARGIN;
  const top = MARGIN + TITLE_HEIGHT;
  const title = viewer.meta.document_title ?? viewer.meta.title;
  const legend = legendOf(viewer, chunkCount);
  const lines = wrapped(legend, width - 2 * MARGIN);
  const whole = top + AXIS_HEIGHT + height + MARGIN + lines.length * LEGEND_LINE + MARGIN;
  pen.fillStyle = inks.paper;
  pen.fillRect(0, 0, width, whole);
  drawText(pen, title, MARGIN, MARGIN + 14, `600 14px ${inks.fontFamily}`, inks.ink);
  pen.moveOrigin(MARGIN + LABELS_WIDTH, top);
  // A canvas ends where its last row does; here, the legend follows.
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, size.width, AXIS_HEIGHT + height);
  pen.clip();
  painter.paint(pen.canvasPen, { width: size.width, height, ratio: RATIO }, inks, layers, VECTOR_TEXTURES);
  pen.restore();
  pen.moveOrigin(MARGIN, top);
  drawLabels(viewer, pen, height, inks);
  pen.moveOrigin(MARGIN, top + AXIS_HEIGHT + height + MARGIN);
  for (const [i, line] of lines.entries())
    for (const [at, entry] of line) entry.draw(pen, at, i * LEGEND_LINE, inks);
  return { marks: pen.marks, width, height: whole, title, inks };
}

const VECTOR_TEXTURES: TextureStyles = {
  overlay(texture, color) {
    if (texture === "plain") return null;
    const [stroke, lineWidth] = overlayStroke(texture, color);
    return hatch({ texture, color: stroke, lineWidth });
  },
  hatch: (texture, color) => hatch({ texture, color, lineWidth: 1 }),
};

/** The recording pen takes the description of a hatch where a canvas takes a pattern. */
function hatch(found: Hatch): CanvasPattern {
  return found as unknown as CanvasPattern;
}

function drawLabels(viewer: Viewer, pen: RecordingPen, height: number, inks: Inks): void {
  const rows = viewer.display.rows.peek();
  const screen = viewer.display.screen(height);
  const fixed = pinnedHeight(screen);
  // What scrolls must not lie on what stays.
  const isSeen = (top: number, middle: number): boolean =>
    middle >= (top < fixed ? 0 : fixed) && middle <= height;
  const every = Math.max(1, Math.ceil((LABEL_SIZE + 2) / viewer.display.pitch.peek()));
  const font = `${LABEL_SIZE}px ${inks.fontFamily}`;
  for (const heading of rows.headings) {
    const y = screenTop(screen, heading.top);
    if (!isSeen(heading.top, y) || y + HEADING_HEIGHT > height) continue;
    drawText(pen, heading.text, 0, AXIS_HEIGHT + y + 15, `600 ${font}`, inks.quiet);
  }
  const first = rows.placed.indexOf(rowsOnScreen(screen)[1][0]!);
  const placeOf = (row: PlacedRow, i: number): number => (row.top < fixed ? i : Math.max(first, 0) + i);
  const draw = (row: PlacedRow, i: number): void => {
    const middle = AXIS_HEIGHT + screenTop(screen, row.top) + row.height / 2;
    if (placeOf(row, i) % every !== 0 || !isSeen(row.top, middle - AXIS_HEIGHT)) return;
    const stage = row.height >= 30 ? stageLabel(viewer.meta, row.row) : "";
    drawText(pen, rowLabel(viewer.meta, row.row), 0, middle + (stage ? -2 : 4), font, inks.ink);
    if (stage) drawText(pen, stage, 0, middle + 11, font, inks.quiet);
  };
  for (const part of rowsOnScreen(screen)) part.forEach(draw);
}

interface Entry {
  width: number;
  /** Whether it begins a line. */
  isFirst?: boolean;
  draw(pen: RecordingPen, left: number, top: number, inks: Inks): void;
}

function legendOf(viewer: Viewer, chunkCount: number): Entry[] {
  const hidden = viewer.display.hiddenKinds.peek();
  const waits = legendWaits(viewer);
  const swatches = legendKinds(viewer)
    .filter((kind) => !hidden.has(kind.code))
    .map((kind) =>
      swatch(kindText(kind), (pen, left, top, inks) => {
        const shades = isAction(kind) ? Math.max(chunkCount, 1) : 1;
        for (let chunk = 0; chunk < shades; chunk++) {
          pen.fillStyle = chunkColor(kind.color, chunk, shades);
          const from = (SWATCH_WIDTH * chunk) / shades;
          pen.fillRect(left + from, top, SWATCH_WIDTH / shades, 14);
        }
        const overlay = VECTOR_TEXTURES.overlay(kind.texture, kind.color);
        if (overlay) {
          pen.fillStyle = overlay;
          pen.fillRect(left, top, SWATCH_WIDTH, 14);
        }
        const font = `600 10px ${inks.fontFamily}`;
        drawText(pen, kind.letter, left + 7, top + 10.5, font, textColor(kind.color), "center");
      }),
    );
  const idle = waits.map((wait) =>
    swatch(waitText(wait), (pen, left, top) => {
      pen.fillStyle = VECTOR_TEXTURES.hatch(wait.texture, wait.color);
      pen.fillRect(left, top, SWATCH_WIDTH, 14);
      pen.strokeStyle = wait.color;
      pen.lineWidth = 1;
      pen.strokeRect(left, top, SWATCH_WIDTH, 14);
    }),
  );
  const notes = legendNotes(viewer, chunkCount).map(words);
  const named = idle.length ? [{ ...words(t("idle, waiting for:")), isFirst: true }, ...idle] : [];
  return [...swatches, ...notes, ...named];
}

function swatch(text: string, draw: Entry["draw"]): Entry {
  const width = SWATCH_WIDTH + 6 + textWidth(text);
  return {
    width,
    draw(pen, left, top, inks) {
      draw(pen, left, top, inks);
      drawText(pen, text, left + SWATCH_WIDTH + 6, top + 11, `${LABEL_SIZE}px ${inks.fontFamily}`, inks.ink);
    },
  };
}

function words(text: string): Entry {
  return {
    width: textWidth(text),
    draw: (pen, left, top, inks) =>
      drawText(pen, text, left, top + 11, `${LABEL_SIZE}px ${inks.fontFamily}`, inks.quiet),
  };
}

/** Entries in lines, each with its place from the left. */
function wrapped(entries: Entry[], width: number): [number, Entry][][] {
  const lines: [number, Entry][][] = [];
  let at = Infinity;
  for (const entry of entries) {
    if (entry.isFirst || at + entry.width > width) {
      lines.push([]);
      at = 0;
    }
    lines[lines.length - 1]!.push([at, entry]);
    at += entry.width + 18;
  }
  return lines;
}

function textWidth(text: string): number {
  return text.length * LABEL_SIZE * CHARACTER;
}

function drawText(
  pen: RecordingPen,
  text: string,
  x: number,
  y: number,
  font: string,
  color: string,
  align: "left" | "center" = "left",
): void {
  pen.font = font;
  pen.textAlign = align;
  pen.textBaseline = "alphabetic";
  pen.fillStyle = color;
  pen.fillText(text, x, y);
}

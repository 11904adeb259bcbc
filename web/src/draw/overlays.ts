/** Overlays: idle intervals by what was waited for, clock error, ideal outlines, critical path, arrows, selection. */

import { waitNamed } from "../layout/colors";
import { clamp, length } from "../layout/view";
import { COMM, COMPUTE, HOST } from "../model/meta";
import type { Links, Span } from "../model/source";
import { durationText } from "../model/time";
import { AXIS_HEIGHT, type DrawnRow, type Scene, x } from "./scene";

const LEAST_IDLE_WIDTH = 2;
/** Lower rows are tinted: a hatch would be noise. */
const LEAST_HATCHED_HEIGHT = 14;
const TINT = 0.28;
/** Idle time takes the whole of lower rows: nothing would be left of it. */
const LEAST_INSET_HEIGHT = 6;
/** Rows further apart have a heading between them. */
const MOST_ROW_GAP = 20;
/** Of a micro-batch and its duration, in the middle of a row. */
const LABELS_HEIGHT = 28;

export function drawIdle(scene: Scene): void {
  const { idle } = scene.layers;
  if (!idle || !scene.viewer.display.flags.value.has("idle")) return;
  const { pen, view } = scene;
  const filter = scene.viewer.display.causeFilter.value;
  const styles = idle.waits.map((name) => {
    const { color, texture } = waitNamed(scene.viewer.meta, name);
    return { color, hatch: scene.textures.hatch(texture, color) };
  });
  const { start, duration, wait } = idle;
  const shortest = (LEAST_IDLE_WIDTH * length(view)) / scene.width;
  for (const row of scene.rows) {
    const isHatched = row.mainHeight >= LEAST_HATCHED_HEIGHT;
    const inset = row.mainHeight >= LEAST_INSET_HEIGHT ? 1 : 0;
    pen.globalAlpha = isHatched ? (filter ? 0.95 : 0.6) : filter ? 2 * TINT : TINT;
    const [from, to] = idle.within(row.row, view.start, view.end);
    for (let i = from; i < to; i++) {
      if (duration[i]! < shortest || (filter !== null && idle.causeOf(i) !== filter)) continue;
      const style = styles[wait[i]!];
      if (!style) continue;
      const left = Math.max(x(scene, start[i]!), -2);
      const right = Math.min(x(scene, start[i]! + duration[i]!), scene.width + 2);
      pen.fillStyle = isHatched && style.hatch ? style.hatch : style.color;
      pen.fillRect(left, row.mainTop + inset, right - left - 0.75, row.mainHeight - 2 * inset);
    }
  }
  pen.globalAlpha = 1;
}

/** Frames around the idle interval under the pointer, the selected one, and what caused it. */
export function drawIdleFrames(scene: Scene): void {
  const { idle } = scene.layers;
  const { hoverIdle, idle: selected, idleChain } = scene.viewer.selection;
  if (!idle) return;
  const { pen } = scene;
  pen.strokeStyle = scene.inks.ink;
  for (const [place, width] of [
    [hoverIdle.value, 1],
    [selected.value, 2],
  ] as const) {
    const row = place === null ? undefined : scene.drawn.get(idle.row[place]!);
    if (place === null || !row) continue;
    const left = x(scene, idle.start[place]!);
    const right = x(scene, idle.start[place]! + idle.duration[place]!);
    pen.lineWidth = width;
    pen.strokeRect(left + 0.5, row.mainTop + 1, Math.max(right - left - 1.5, 1), row.mainHeight - 2);
  }
  const culprit = idleChain.value?.culprit;
  if (selected.value !== null && culprit) drawFrame(scene, culprit, 3, scene.inks.accent);
}

/** Whiskers at the edges of blocks: how far off the clock of their machine may be. */
export function drawClockErrors(scene: Scene): void {
  const { pen, viewer } = scene;
  if (!viewer.display.flags.value.has("clocks")) return;
  const errors = new Map(viewer.meta.clocks.map((clock) => [clock.machine, clock]));
  pen.strokeStyle = scene.inks.ink;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const row of scene.rows) {
    const error = errors.get(viewer.meta.ranks.machine[row.row] ?? null);
    if (!error || error.error_lo_ns === null || error.error_hi_ns === null) continue;
    const low = x(scene, error.error_lo_ns) - x(scene, 0);
    const high = x(scene, error.error_hi_ns) - x(scene, 0);
    if (high - low < 1.5) continue;
    for (const edge of edgesOf(scene, row)) whisker(pen, edge, low, high, row);
  }
  pen.globalAlpha = 0.75;
  pen.stroke();
  pen.globalAlpha = 1;
}

function* edgesOf(scene: Scene, row: DrawnRow): Generator<number> {
  let budget = 600;
  for (const { spans } of scene.tiles) {
    const [from, to] = spans.track(row.row, COMPUTE);
    for (
      let i = spans.firstReaching(scene.view.start, from, to);
      i < to && spans.start[i]! < scene.view.end;
      i++
    ) {
      if (budget-- <= 0) return;
      if (x(scene, spans.end(i)) - x(scene, spans.start[i]!) < 4) continue;
      yield x(scene, spans.start[i]!);
      yield x(scene, spans.end(i));
    }
  }
}

function whisker(
  pen: CanvasRenderingContext2D,
  edge: number,
  low: number,
  high: number,
  row: DrawnRow,
): void {
  const y = row.mainTop + row.mainHeight * 0.22;
  const cap = Math.min(3, row.mainHeight * 0.12);
  pen.moveTo(edge + low, y);
  pen.lineTo(edge + high, y);
  for (const end of [edge + low, edge + high]) {
    pen.moveTo(end, y - cap);
    pen.lineTo(end, y + cap);
  }
}

export function drawIdealOutlines(scene: Scene): void {
  const { ideal } = scene.layers;
  if (!ideal || scene.viewer.display.ideal.value !== "over") return;
  const { pen } = scene;
  pen.save();
  pen.strokeStyle = scene.inks.ink;
  pen.setLineDash([3, 2]);
  pen.lineWidth = 1.25;
  pen.beginPath();
  for (const row of scene.rows) {
    const [from, to] = ideal.track(row.row, COMPUTE);
    for (
      let i = ideal.firstReaching(scene.view.start, from, to);
      i < to && ideal.start[i]! < scene.view.end;
      i++
    ) {
      const left = x(scene, ideal.start[i]!);
      const width = x(scene, ideal.end(i)) - left;
      if (width >= 3) pen.rect(left, row.mainTop + 1.5, width - 1, row.mainHeight - 3);
    }
  }
  pen.stroke();
  pen.restore();
}

export function drawCriticalPath(scene: Scene): void {
  const { criticalIds } = scene.layers;
  if (criticalIds.length === 0 || !scene.viewer.display.flags.value.has("critical")) return;
  const { pen } = scene;
  const spans = scene.tiles[0]?.spans;
  if (!spans || spans.isBinned) return;
  pen.strokeStyle = scene.inks.accent;
  pen.lineJoin = "round";
  pen.lineWidth = 2.5;
  pen.beginPath();
  const steps = spans.table.ints("step");
  let step = -1;
  let before: [number, number] | null = null;
  for (const id of criticalIds) {
    const place = spans.place(id);
    const row = place < 0 ? undefined : scene.drawn.get(spans.row[place]!);
    if (!row || spans.end(place) < scene.view.start || spans.start[place]! > scene.view.end) {
      before = null;
      continue;
    }
    const left = x(scene, spans.start[place]!);
    const right = x(scene, spans.end(place));
    const y = row.mainTop + row.mainHeight / 2;
    pen.rect(left, row.mainTop, Math.max(right - left - 0.75, 1), row.mainHeight);
    // A path ends with its step: the next one begins before or long after it.
    if (before && left >= before[0] - 3 && steps[place] === step) {
      pen.moveTo(...before);
      pen.lineTo(left, y);
    }
    before = [right, y];
    step = steps[place]!;
  }
  pen.stroke();
}

export function drawLinks(scene: Scene, links: Links | null, width: number): void {
  if (!links || !scene.viewer.display.flags.value.has("arrows")) return;
  const { pen } = scene;
  const byId = new Map(links.spans.map((span) => [span.id, span]));
  pen.strokeStyle = pen.fillStyle = scene.inks.ink;
  pen.lineWidth = width;
  for (const [from, to] of links.links) {
    const one = byId.get(from);
    const other = byId.get(to);
    if (one && other) drawArrow(scene, one, other);
  }
}

function drawArrow(scene: Scene, from: Span, to: Span): void {
  const own = scene.drawn.get(from.row);
  const their = scene.drawn.get(to.row);
  if (!own || !their) return;
  const { pen } = scene;
  const startX = clamp(x(scene, from.start + from.duration), -1e4, 1e4);
  const endX = clamp(x(scene, to.start), -1e4, 1e4);
  if (Math.max(startX, endX) < -50 || Math.min(startX, endX) > scene.width + 50) return;
  const half = headHalf(their);
  // Labels are in the middle of rows: arrows leave and reach rows at the edges that face each other.
  const startY = edgeY(own, own.mainTop >= their.mainTop);
  const endY = edgeY(their, own.mainTop <= their.mainTop);
  const bend = clamp(Math.abs(endX - startX) * 0.45, 10, 70);
  pen.beginPath();
  pen.moveTo(startX, startY);
  pen.bezierCurveTo(startX + bend, startY, endX - bend, endY, endX - 5, endY);
  pen.save();
  // A rim in the color of the paper keeps the line readable on blocks of any color.
  pen.strokeStyle = scene.inks.paper;
  pen.lineWidth += 2.5;
  pen.globalAlpha = 0.75;
  pen.stroke();
  pen.restore();
  pen.stroke();
  pen.beginPath();
  pen.moveTo(endX, endY);
  pen.lineTo(endX - 2 * half, endY - half);
  pen.lineTo(endX - 2 * half, endY + half);
  pen.closePath();
  pen.fill();
}

/** Half the height of an arrowhead: what fits between the edge of a row and its labels, within limits. */
function headHalf(row: DrawnRow): number {
  return clamp((row.mainHeight - LABELS_HEIGHT) / 4, 1.5, 4);
}

function edgeY(row: DrawnRow, isTop: boolean): number {
  const inset = headHalf(row) + 0.5;
  return isTop ? row.mainTop + inset : row.mainTop + row.mainHeight - inset;
}

/** Frame around a span, and around both of an overlapped pair. */
export function drawFrame(scene: Scene, span: Span | null, width: number, ink = scene.inks.ink): void {
  const row = span && scene.drawn.get(span.row);
  if (!span || !row) return;
  const [top, height] = bandOf(scene, span, row);
  const left = x(scene, span.start);
  const right = Math.max(x(scene, span.start + span.duration), left + 2);
  const { pen } = scene;
  pen.strokeStyle = scene.inks.paper;
  pen.lineWidth = width + 2;
  pen.strokeRect(left - 1, top - 1, right - left + 1, height + 2);
  pen.strokeStyle = ink;
  pen.lineWidth = width;
  pen.strokeRect(left - 1, top - 1, right - left + 1, height + 2);
}

function bandOf(scene: Scene, span: Span, row: DrawnRow): [number, number] {
  if ((span.lane === COMM || span.lane === HOST) && row.thinHeight > 0) return [row.thinTop, row.thinHeight];
  for (const { spans } of scene.tiles) {
    const place = spans.place(span.id);
    if (place < 0 || !spans.table.has("sublanes")) continue;
    const count = Math.max(spans.table.ints("sublanes")[place]!, 1);
    const height = row.mainHeight / count;
    return [row.mainTop + height * spans.table.ints("sublane")[place]!, height];
  }
  return [row.mainTop, row.mainHeight];
}

/** Markers of the notes: a number on the axis, a line through the rows, and a dot on the row of its rank. */
export function drawNotes(scene: Scene): void {
  const { pen, inks, viewer, width } = scene;
  viewer.notes.all.value.forEach((note, i) => {
    const at = Math.round(x(scene, note.time)) + 0.5;
    if (at < 0 || at > width) return;
    const text = String(i + 1);
    const half = 4 + text.length * 3.5;
    pen.fillStyle = inks.noteFill;
    pen.fillRect(at - half, 1, 2 * half, 13);
    pen.fillStyle = inks.noteInk;
    pen.font = `600 10px ${inks.fontFamily}`;
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    pen.fillText(text, at, 11);
    pen.strokeStyle = inks.noteFill;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(at, 14);
    pen.lineTo(at, AXIS_HEIGHT);
    pen.stroke();
  });
}

/** The lines of the notes through the rows. */
export function drawNoteLines(scene: Scene): void {
  const { pen, inks, viewer, width } = scene;
  pen.save();
  pen.strokeStyle = pen.fillStyle = inks.noteFill;
  for (const note of viewer.notes.all.value) {
    const at = Math.round(x(scene, note.time)) + 0.5;
    if (at < 0 || at > width) continue;
    pen.lineWidth = 1;
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(at, AXIS_HEIGHT);
    pen.lineTo(at, scene.height);
    pen.stroke();
    const row = scene.rows.find(({ row: place }) => viewer.meta.ranks.rank[place] === note.rank);
    if (!row) continue;
    pen.setLineDash([]);
    pen.fillRect(at - 3.5, row.y - 1, 7, 7);
  }
  pen.restore();
}

/** The length of the selected range, in the axis between its ends, or beside it where they are close. */
export function drawRangeLength(scene: Scene): void {
  const range = scene.viewer.selection.range.value;
  if (!range) return;
  const { pen, inks, width } = scene;
  const left = x(scene, range.start);
  const right = x(scene, range.end);
  if (right < 0 || left > width) return;
  const text = durationText(range.end - range.start, scene.unit);
  pen.font = `600 11px ${inks.fontFamily}`;
  const space = text.length * 6.6 + 8;
  const [from, to] = [Math.max(left, 0), Math.min(right, width)];
  const middle = to - from >= space + 12 ? (from + to) / 2 : to + space / 2 + 8;
  const at = clamp(middle, space / 2, width - space / 2);
  pen.fillStyle = inks.paper;
  pen.fillRect(at - space / 2, AXIS_HEIGHT - 20, space, 14);
  pen.fillStyle = inks.accent;
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  pen.fillText(text, at, AXIS_HEIGHT - 9);
  pen.fillRect(from, AXIS_HEIGHT - 4, Math.max(to - from, 1), 2);
}

/** The selected time on its rows: tinted, and framed where rows lie beside each other. */
export function drawRange(scene: Scene): void {
  const range = scene.viewer.selection.range.value;
  if (!range) return;
  const { pen } = scene;
  const left = Math.round(x(scene, range.start)) + 0.5;
  const width = Math.max(Math.round(x(scene, range.end)) + 0.5 - left, 1);
  const chosen = new Set(range.rows);
  pen.fillStyle = scene.inks.select;
  pen.strokeStyle = scene.inks.accent;
  pen.lineWidth = 1.5;
  let top: number | null = null;
  scene.rows.forEach((row, i) => {
    if (!chosen.has(row.row)) return;
    const bottom = row.y + row.height + 2;
    top ??= row.y - 2;
    const next = scene.rows[i + 1];
    if (next && chosen.has(next.row) && next.y - bottom < MOST_ROW_GAP) return;
    pen.fillRect(left, top, width, bottom - top);
    pen.strokeRect(left, top, width, bottom - top);
    top = null;
  });
}

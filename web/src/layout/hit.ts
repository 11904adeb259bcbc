/** Which span is drawn at a point of the picture. */

import { t } from "../model/language";
import { COMM, COMPUTE, HOST } from "../model/meta";
import type { Span } from "../model/source";
import type { Spans } from "../model/spans";

/** Layers of the picture in addition to the spans. */
export type Flag =
  | "arrows"
  | "waits"
  | "comm"
  | "host"
  | "idle"
  | "clocks"
  | "critical"
  | "table"
  | "minimap";

export const LAYER_NAMES: Record<Flag, string> = {
  arrows: t("dependency arrows"),
  waits: t("waits for transfers"),
  comm: t("transfers"),
  host: t("host spans"),
  idle: t("idle intervals"),
  critical: t("critical path"),
  clocks: t("clock errors"),
  table: t("table of the visible spans"),
  minimap: t("overview of the run"),
};

export interface Point {
  row: number;
  /** Part of the row's height, from its top. */
  part: number;
  time: number;
  /** ns. */
  perPixel: number;
}

/** From here down a row has its thin bands. */
const THIN_FROM = 0.72;
/** Spans narrower than this many pixels are hit from nearby. */
const SLOP_PX = 6;

/** Return the shortest span at a point, null where none is drawn. */
export function findSpan(
  tiles: Spans[],
  point: Point,
  flags: ReadonlySet<Flag>,
  hiddenKinds: ReadonlySet<number>,
): Span | null {
  const hasThin = flags.has("comm") || flags.has("host");
  const lanes = hasThin && point.part > THIN_FROM ? [COMM, HOST, COMPUTE] : [COMPUTE, COMM, HOST];
  for (const spans of tiles)
    for (const lane of lanes) {
      if (!isDrawn(spans, point.row, lane, flags)) continue;
      const place = inLane(spans, lane, point, hiddenKinds);
      if (place >= 0) return spans.span(place);
    }
  return null;
}

/** The compute lane always is; the host's takes its place where there is none. */
function isDrawn(spans: Spans, row: number, lane: number, flags: ReadonlySet<Flag>): boolean {
  if (lane === COMPUTE) return true;
  if (lane === COMM) return flags.has("comm");
  const [from, to] = spans.track(row, COMPUTE);
  return flags.has("host") || from === to;
}

function inLane(spans: Spans, lane: number, point: Point, hiddenKinds: ReadonlySet<number>): number {
  const { row, part, time, perPixel } = point;
  const [from, to] = spans.track(row, lane);
  const sublane = spans.table.has("sublane") ? spans.table.ints("sublane") : null;
  const sublanes = sublane ? spans.table.ints("sublanes") : null;
  const slack = (perPixel * SLOP_PX) / 2;
  let best = -1;
  for (let i = spans.firstReaching(time - slack, from, to); i < to && spans.start[i]! <= time + slack; i++) {
    if (hiddenKinds.has(spans.kind[i]!)) continue;
    const slop = spans.duration[i]! < perPixel * SLOP_PX ? slack : 0;
    if (spans.end(i) < time - slop || spans.start[i]! > time + slop) continue;
    if (sublanes && sublanes[i]! > 1 && Math.floor(part * sublanes[i]!) !== sublane![i]!) continue;
    if (best < 0 || spans.duration[i]! < spans.duration[best]!) best = i;
  }
  return best;
}

/** The rows of the table: spans in view, the longest idle intervals, and the actions furthest from the ideal schedule. */

import { actionsOf } from "../model/compare";
import { EmbeddedSource } from "../model/embedded";
import { ofData } from "../model/language";
import { kindsByCode } from "../model/meta";
import type { QueryResult } from "../model/server";
import type { Spans } from "../model/spans";
import { length } from "./view";
import type { Viewer } from "./viewer";

export type Cell = string | number | null;

export interface Column {
  name: string;
  /** Exact whole nanoseconds, plain numbers, or text. */
  type: "ns" | "number" | "text";
}

export interface TableRow {
  key: number;
  cells: Cell[];
  /** What a click selects: the span or the idle interval of this number. */
  select: "span" | "interval" | null;
}

export interface Listing {
  columns: Column[];
  rows: TableRow[];
  /** How many there are, of which `rows` are the first or the largest. */
  count: number;
}

const column = (name: string, type: Column["type"] = "number"): Column => ({ name, type });
const ACTION = ["step", "stage", "chunk", "micro-batch"].map((name) => column(name));
const PLACE = [column("rank"), column("kind", "text"), ...ACTION];
/** More rows are slow to lay out; a filter or a closer view shows others. */
export const MOST_ROWS = 1000;

/** The spans in view, of the lanes and kinds that are shown, in order of row and time. */
export function spansInView(viewer: Viewer): Listing {
  const columns = [
    ...PLACE,
    column("start", "ns"),
    column("duration", "ns"),
    column("blocked", "ns"),
    column("name", "text"),
  ];
  const view = viewer.camera.view.value;
  const flags = viewer.display.flags.value;
  const rows = viewer.display.rows.value.placed.map((one) => one.row);
  const ns_per_pixel = length(view) / viewer.display.size.value.width;
  const lanes = [0, ...(flags.has("comm") ? [1] : []), ...(flags.has("host") ? [2] : [])];
  const found: TableRow[] = [];
  let count = 0;
  for (const { spans } of viewer.source.loaded({ ...view, rows, ns_per_pixel }))
    for (const row of rows)
      for (const lane of spans.isBinned ? [] : lanes) {
        const [from, to] = spans.track(row, lane);
        for (let i = spans.firstReaching(view.start, from, to); i < to && spans.start[i]! < view.end; i++) {
          if (viewer.display.hiddenKinds.value.has(spans.kind[i]!) || spans.end(i) < view.start) continue;
          if (count++ < MOST_ROWS) found.push(spanRow(viewer, spans, i));
        }
      }
  return { columns, rows: found, count };
}

function spanRow(viewer: Viewer, spans: Spans, place: number): TableRow {
  const span = spans.span(place);
  return {
    key: span.id,
    select: "span",
    cells: [...placeCells(viewer, spans, place), span.start, span.duration, span.wait_duration, span.name],
  };
}

function placeCells(viewer: Viewer, spans: Spans, place: number): Cell[] {
  const { row, kind, step, stage, chunk, microbatch } = spans.span(place);
  const name = ofData(kindsByCode(viewer.meta.kinds)[kind]?.name.replaceAll("_", " ") ?? "");
  return [viewer.meta.ranks.rank[row]!, name, step, stage, chunk, microbatch];
}

/** The longest idle intervals of the run. */
export function longestIdle(viewer: Viewer): Listing {
  const columns = [
    column("rank"),
    column("step"),
    column("waiting for", "text"),
    column("cause", "text"),
    column("start", "ns"),
    column("duration", "ns"),
  ];
  const idle = viewer.idle.value;
  if (!idle) return { columns, rows: [], count: 0 };
  const places = largest(idle.duration);
  const rows = places.map(
    (place): TableRow => ({
      key: place,
      select: "interval",
      cells: [
        viewer.meta.ranks.rank[idle.row[place]!]!,
        idle.step(place),
        ofData(idle.waitingFor(place).replaceAll("_", " ")),
        ofData(idle.causeOf(place).replaceAll("_", " ")),
        idle.start[place]!,
        idle.duration[place]!,
      ],
    }),
  );
  return { columns, rows, count: idle.count };
}

/** The actions that began furthest after (or before) their time in the ideal schedule; of a page only. */
export function furthestFromIdeal(viewer: Viewer, ideal: Spans): Listing {
  const columns = [...PLACE, column("start", "ns"), column("later than ideal", "ns")];
  if (!(viewer.source instanceof EmbeddedSource)) return { columns, rows: [], count: 0 };
  const { spans } = viewer.source;
  const planned = new Map(actionsOf(viewer.meta, ideal, null));
  const matched = actionsOf(viewer.meta, spans, null).flatMap(([key, place]): [number, number][] => {
    const other = planned.get(key);
    return other === undefined ? [] : [[place, spans.start[place]! - ideal.start[other]!]];
  });
  const far = largest(Float64Array.from(matched, ([, later]) => Math.abs(later)));
  const rows = far.map((at): TableRow => {
    const [place, later] = matched[at]!;
    return {
      key: spans.id(place),
      select: "span",
      cells: [...placeCells(viewer, spans, place), spans.start[place]!, later],
    };
  });
  return { columns, rows, count: matched.length };
}

/** The places of the largest values, largest first. */
function largest(values: Float64Array): number[] {
  return Array.from(values.keys())
    .sort((a, b) => values[b]! - values[a]!)
    .slice(0, MOST_ROWS);
}

/** The rows that contain a text, sorted by a column; -1: as they are. */
export function arranged(
  { rows, columns }: Listing,
  filter: string,
  by: number,
  isFalling: boolean,
): TableRow[] {
  const wanted = filter.trim().toLowerCase();
  const kept = wanted
    ? rows.filter(({ cells }) =>
        cells.some((cell) =>
          String(cell ?? "")
            .toLowerCase()
            .includes(wanted),
        ),
      )
    : [...rows];
  if (by < 0) return kept;
  const isText = columns[by]!.type === "text";
  const sign = isFalling ? -1 : 1;
  return kept.sort((one, other) => {
    const [a, b] = [one.cells[by], other.cells[by]];
    // Unknown values come last, in either direction.
    if (a === null || b === null || a === undefined || b === undefined)
      return Number(a == null) - Number(b == null);
    // Whole numbers as text may be larger than a number is exact.
    if (!isText && isWhole(a) && isWhole(b)) return sign * (BigInt(a) < BigInt(b) ? -1 : a === b ? 0 : 1);
    return sign * (isText ? String(a).localeCompare(String(b), "en") : Number(a) - Number(b));
  });
}

function isWhole(cell: Cell): cell is string {
  return typeof cell === "string" && /^-?\d+$/.test(cell);
}

/** The result of a query as rows of the table, which select nothing. */
export function queryListing({ columns, rows, count }: QueryResult): Listing {
  const listed = rows.map((cells, key): TableRow => ({ key, cells, select: null }));
  return { columns: columns.map(({ name, type }) => column(name, type)), rows: listed, count };
}

/** Rows as tab-separated text with a head, for a spreadsheet: times are whole nanoseconds. */
export function tableText(columns: Column[], rows: TableRow[]): string {
  const head = columns.map(({ name, type }) => (type === "ns" ? `${ofData(name)} (ns)` : ofData(name)));
  const plain = (cell: Cell): string => String(cell ?? "").replace(/[\t\r\n]+/g, " ");
  return [head, ...rows.map(({ cells }) => cells.map(plain))].map((line) => line.join("\t")).join("\n");
}

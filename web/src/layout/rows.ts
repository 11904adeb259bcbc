/** Which rows are shown, in which order, under which headings, and where. */

import { t } from "../model/language";
import type { Meta } from "../model/meta";
import { lowerBound } from "../model/spans";

export const GROUPINGS = ["none", "stage", "machine", "dp", "pipeline"] as const;
export type Grouping = (typeof GROUPINGS)[number];
export const SORTINGS = ["rank", "stage", "machine"] as const;
export type Sorting = (typeof SORTINGS)[number];

export interface RowChoice {
  group: Grouping;
  sort: Sorting;
  pinned: number[];
  hidden: number[];
}

export interface PlacedRow {
  /** Index into meta.ranks. */
  row: number;
  top: number;
  height: number;
  pinned: boolean;
}

export interface Heading {
  text: string;
  top: number;
}

export interface Rows {
  placed: PlacedRow[];
  headings: Heading[];
  height: number;
  /** Height of the pinned rows, which come first. */
  pinnedHeight: number;
  /** Top of every placed row, rising. */
  tops: Float64Array;
}

export const HEADING_HEIGHT = 22;

/** Return the position of every row, `pitch` pixels apart; pinned rows come first. */
export function placeRows(meta: Meta, choice: RowChoice, pitch: number): Rows {
  const hidden = new Set(choice.hidden);
  const pinned = choice.pinned.filter((row) => row < meta.ranks.rank.length && !hidden.has(row));
  const others = sortedRows(meta, choice.sort).filter((row) => !hidden.has(row) && !pinned.includes(row));
  const placed: PlacedRow[] = [];
  const headings: Heading[] = [];
  let top = 0;
  const gap = pitch >= 8 ? Math.max(2, Math.round(pitch * 0.14)) : pitch >= 4 ? 1 : 0;
  const place = (row: number, isPinned: boolean): void => {
    placed.push({ row, top, height: pitch - gap, pinned: isPinned });
    top += pitch;
  };
  const head = (text: string): void => {
    headings.push({ text, top });
    top += HEADING_HEIGHT;
  };
  if (pinned.length) head("pinned");
  for (const row of pinned) place(row, true);
  const pinnedHeight = top;
  if (pinned.length && choice.group === "none") head(t("other rows"));
  for (const [title, rows] of grouped(meta, choice.group, others)) {
    if (title !== null) head(title);
    for (const row of rows) place(row, false);
  }
  return { placed, headings, height: top, pinnedHeight, tops: Float64Array.from(placed, (one) => one.top) };
}

/** The places (of `placed`) that lie between two heights. */
export function visibleRows(rows: Rows, top: number, bottom: number): [number, number] {
  const first = Math.max(0, lowerBound(rows.tops, top, 0, rows.tops.length) - 1);
  return [first, lowerBound(rows.tops, bottom, first, rows.tops.length)];
}

/** The row at a height, null where there is a heading or nothing. */
export function rowAt(rows: Rows, y: number): PlacedRow | null {
  const row = rows.placed[lowerBound(rows.tops, y, 0, rows.tops.length) - 1];
  return row && y < row.top + row.height ? row : null;
}

/** Where rows are on the screen: pinned ones stay at the top while the others scroll below them. */
export interface RowScreen {
  rows: Rows;
  scroll: number;
  height: number;
}

/** Pinned rows that take more of the height scroll with the others, of which little could be seen. */
const MOST_PINNED_FRACTION = 0.7;

/** The height at the top that does not scroll. */
export function pinnedHeight({ rows, height }: RowScreen): number {
  return rows.pinnedHeight <= MOST_PINNED_FRACTION * height ? rows.pinnedHeight : 0;
}

/** Where something of this height in the list of rows is on the screen. */
export function screenTop(screen: RowScreen, top: number): number {
  return top < pinnedHeight(screen) ? top : top - screen.scroll;
}

/** The rows on the screen: those that stay, then those that scroll. */
export function rowsOnScreen(screen: RowScreen): [PlacedRow[], PlacedRow[]] {
  const { rows, scroll, height } = screen;
  const fixed = pinnedHeight(screen);
  const count = fixed > 0 ? lowerBound(rows.tops, fixed, 0, rows.tops.length) : 0;
  const [first, last] = visibleRows(rows, scroll + fixed, scroll + height);
  return [rows.placed.slice(0, count), rows.placed.slice(Math.max(first, count), last)];
}

/** The row at a height on the screen, null where there is none. */
export function rowOnScreen(screen: RowScreen, y: number): PlacedRow | null {
  return rowAt(screen.rows, y < pinnedHeight(screen) ? y : y + screen.scroll);
}

/** Lower blocks have no numbers. */
export const LABEL_HEIGHT = 11;
/** Rows of this pitch have numbers: the gap between them takes 2 pixels. */
const SMALLEST_AUTO_PITCH = 14;
const LARGEST_AUTO_PITCH = 120;
export const LARGEST_PITCH = 240;

/** The distance at which the rows fill the height, within limits. */
export function autoPitch(count: number, height: number, smallest = SMALLEST_AUTO_PITCH): number {
  return Math.min(Math.max(Math.floor(height / Math.max(count, 1)), smallest), LARGEST_AUTO_PITCH);
}

export function rowLabel(meta: Meta, row: number): string {
  return t`rank ${meta.ranks.rank[row]!}`;
}

export function stageLabel(meta: Meta, row: number): string {
  const stages = meta.ranks.stages[row] ?? [];
  if (stages.length === 0) return "";
  return stages.length <= 4
    ? t`stage ${stages.join(", ")}`
    : t`stages ${stages[0]} … ${stages[stages.length - 1]}`;
}

function sortedRows(meta: Meta, sort: Sorting): number[] {
  const { rank, machine, stages } = meta.ranks;
  const rows = rank.map((_, row) => row);
  const stage = (row: number): number => stages[row]?.[0] ?? Infinity;
  // The rows of a large stored run come pipeline by pipeline.
  if (sort === "rank") rows.sort((a, b) => rank[a]! - rank[b]!);
  else if (sort === "stage") rows.sort((a, b) => stage(a) - stage(b) || rank[a]! - rank[b]!);
  else if (sort === "machine")
    rows.sort((a, b) => (machine[a] ?? "").localeCompare(machine[b] ?? "") || rank[a]! - rank[b]!);
  return rows;
}

function grouped(meta: Meta, group: Grouping, rows: number[]): [string | null, number[]][] {
  if (group === "none") return [[null, rows]];
  const groups = new Map<string, number[]>();
  for (const row of rows) {
    const title = groupTitle(meta, group, row);
    const members = groups.get(title);
    if (members) members.push(row);
    else groups.set(title, [row]);
  }
  return [...groups].sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true }));
}

function groupTitle(meta: Meta, group: Grouping, row: number): string {
  if (group === "stage") return stageLabel(meta, row) || t("no stage");
  if (group === "machine") return t`machine ${meta.ranks.machine[row] ?? meta.ranks.host[row] ?? "unknown"}`;
  const value = group === "dp" ? meta.ranks.dp[row] : meta.ranks.pipeline[row];
  const name = group === "dp" ? t("data-parallel replica") : t("pipeline of rank");
  return `${name} ${value ?? "unknown"}`;
}

/** The interface to the data. Only its two implementations know whether they come from the page or the local server. */

import type { Table } from "./columns";
import type { Comparison } from "./compare";
import type { WaitSum } from "./idle";
import type { Meta, Step } from "./meta";
import type { Spans, Tile } from "./spans";

/** One span with all its facts; times in ns from the base of the run; null: unknown. */
export interface Span {
  id: number;
  row: number;
  kind: number;
  lane: number;
  step: number | null;
  stage: number | null;
  chunk: number | null;
  microbatch: number | null;
  pair: number | null;
  peer: number | null;
  bytes: number | null;
  start: number;
  duration: number;
  wait: number | null;
  wait_duration: number | null;
  name: string | null;
}

export interface Hit {
  id: number;
  row: number;
  start: number;
  duration: number;
  /** The lane as which it is drawn: host spans replace the actions of a row without any. */
  layer: number;
  kind: number;
}

/** How many matches a layer has of a kind. */
export interface HitGroup {
  layer: number;
  kind: number;
  count: number;
}

/** Matches in order of start. */
export interface Found {
  /** How many spans match, which may be more than are listed. */
  count: number;
  listed: number;
  /** All matches by layer and kind. */
  groups: HitGroup[];
  at(index: number): Hit;
}

/** Statistics of one kind in a selection: spans that overlap it, and their time inside. */
export interface KindStatistics {
  kind: number;
  count: number;
  sum_ns: number;
}

export interface Statistics {
  start: number;
  end: number;
  row_count: number;
  span_count: number;
  /** Time inside the selection, summed over its spans. */
  sum_ns: number;
  /** Union of the compute spans inside, summed over the rows. */
  busy_ns: number;
  /** rows x length - busy. */
  idle_ns: number;
  /** Host blocked on transfers, inside: union per row. */
  wait_ns: number;
  kinds: KindStatistics[];
  /** Idle time inside by what was waited for; empty without analysis. */
  waits: WaitSum[];
}

/** The result is too large; the message is for the user. */
export class TooManyError extends Error {}

export interface Links {
  spans: Span[];
  /** Pairs of ids: an action and one that needs it. */
  links: [number, number][];
}

export interface TileRequest {
  start: number;
  end: number;
  rows: number[];
  ns_per_pixel: number;
}

/** Whether newer data exist, and the problem with them or with the server. */
export interface Freshness {
  hasNewer: boolean;
  problem: string;
}

export const FRESH: Freshness = { hasNewer: false, problem: "" };

export interface Source {
  meta(): Promise<Meta>;
  /** The loaded tiles of a part; missing ones are requested, and `changed` is called when they arrive. */
  tiles(request: TileRequest): Tile[];
  /** The loaded tiles of a part, without requesting others. */
  loaded(request: TileRequest): Tile[];
  /** Tiles for a thumbnail, loaded after those of the picture; null if no longer wanted by then. */
  overview(request: TileRequest, isWanted: () => boolean): Promise<Tile[] | null>;
  onChange(changed: () => void): void;
  /** `changed` is called when newer data exist or cannot be read. */
  onFreshness(changed: (now: Freshness) => void): void;
  /** Check for newer data; false if there can be none. */
  lookForNewer(): Promise<boolean>;
  details(id: number): Promise<Span | null>;
  search(query: string): Promise<Found>;
  select(start: number, end: number, rows: number[]): Promise<Statistics>;
  /** Throws TooManyError if the step has too many actions. */
  links(id: number, whole: boolean): Promise<Links>;
  table(name: string): Promise<Table | null>;
  /** The kernels of a part, of a run with too many for a section. Throws TooManyError if the part has too many. */
  kernels(start: number, end: number, rows: number[]): Promise<Table | null>;
  json(name: string): Promise<unknown>;
  /** The spans of a step, and maybe others, as a copy that may be changed. Throws TooManyError. */
  stepSpans(step: Step): Promise<Spans>;
  /** All spans. Throws TooManyError. */
  allSpans(): Promise<Spans>;
  /**
   * The comparison with the run that this one came with; null without one. Of runs that are too large as a whole, the
   * given step is compared. Throws TooManyError.
   */
  comparison(step: Step | null): Promise<Comparison | null>;
  /** Whether `comparison` is loaded first, which takes longer than the first picture. */
  readonly loadsComparison: boolean;
  /** Whether only the step that `comparison` gets is compared, once that is known. */
  readonly isComparedByStep: boolean;
  /** Whether several spans are one block in the tiles for this many ns per pixel. */
  isBinned(ns_per_pixel: number): boolean;
}

/** Where spans come from. The page and the local server answer the same questions; nothing else knows which it is. */

import type { Table } from "./columns";
import type { Comparison } from "./compare";
import type { WaitSum } from "./idle";
import type { Meta } from "./meta";
import type { Tile } from "./spans";

/** One span with all that is known of it; times in ns from the base of the run, null: not known. */
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
}

/** Matches in order of start. */
export interface Found {
  /** How many spans match, which may be more than are listed. */
  count: number;
  listed: number;
  at(index: number): Hit;
}

/** Figures of one kind in a selection: spans count where they overlap it, and with their part inside. */
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

/** More than the source can answer at once; its message is for the user. */
export class TooManyError extends Error {}

export interface Links {
  spans: Span[];
  /** Ids: the action that gives, and the one that needs it. */
  links: [number, number][];
}

export interface TileRequest {
  start: number;
  end: number;
  rows: number[];
  ns_per_pixel: number;
}

/** Whether there are newer data than these, and what is wrong with them or with the server, in words. */
export interface Freshness {
  hasNewer: boolean;
  problem: string;
}

export const FRESH: Freshness = { hasNewer: false, problem: "" };

export interface Source {
  meta(): Promise<Meta>;
  /** What can be drawn of this part right now, without waiting; what is missing is fetched, and `changed` tells when it is there. */
  tiles(request: TileRequest): Tile[];
  /** The same of what is there, and nothing is fetched. */
  loaded(request: TileRequest): Tile[];
  /** A part as a small picture shows it, when the large one waits for nothing; null where nobody wants it by then. */
  overview(request: TileRequest, isWanted: () => boolean): Promise<Tile[] | null>;
  onChange(changed: () => void): void;
  /** `changed` is told when newer data are there, or cannot be read. */
  onFreshness(changed: (now: Freshness) => void): void;
  /** Ask whether there are newer data; false where none can come. */
  lookForNewer(): Promise<boolean>;
  details(id: number): Promise<Span | null>;
  search(query: string): Promise<Found>;
  select(start: number, end: number, rows: number[]): Promise<Statistics>;
  /** Throws TooManyError where the actions of the step are too many to be told apart. */
  links(id: number, whole: boolean): Promise<Links>;
  table(name: string): Promise<Table | null>;
  json(name: string): Promise<unknown>;
  /** The comparison with the run that the page brought beside its own; null where it brought none. */
  comparison(): Promise<Comparison | null>;
}

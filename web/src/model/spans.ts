/** Spans in columns, indexed by track: all spans of one lane of one row, in order of start. */

import type { Table } from "./columns";
import { COMPUTE, HOST } from "./meta";
import type { Span } from "./source";

/** Spans of a part of the run, or blocks of binned spans with `count` and `busy`. */
export interface Tile {
  spans: Spans;
  /** The time range that it covers; nothing of it is drawn outside. */
  start: number;
  end: number;
}

const LANE_COUNT = 3;

export class Spans {
  readonly count: number;
  readonly row: Int32Array;
  readonly kind: Uint8Array;
  readonly lane: Uint8Array;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  /** Latest end of this span and all before it on its track: rises, so that it can be searched. */
  reach: Float64Array;
  /** Whether these are bins, not spans. */
  readonly isBinned: boolean;
  /** Id of the first span; ids count on from it unless the table lists them. */
  readonly first: number;
  private trackFrom: Int32Array;

  /** `copied` are spans of the same table, whose times and kinds are copied: they may be changed then. */
  constructor(
    readonly table: Table,
    copied: Spans | null = null,
  ) {
    this.count = table.rows;
    this.row = table.ints("row");
    this.kind = copied ? copied.kind.slice() : table.byteColumn("kind");
    this.lane = table.byteColumn("lane");
    this.start = copied ? copied.start.slice() : table.relative("start");
    this.duration = copied ? copied.duration.slice() : table.values("duration");
    this.isBinned = table.has("busy");
    this.first = Number(table.facts.first ?? 0);
    const origin = copied ? 0 : Number(table.facts.origin ?? 0);
    if (origin !== 0) for (let i = 0; i < this.count; i++) this.start[i] = this.start[i]! + origin;
    this.reach = new Float64Array(this.count);
    this.trackFrom = this.index();
  }

  /** Where the spans of a track begin and end in the columns. */
  track(row: number, lane: number): [number, number] {
    const place = row * LANE_COUNT + lane;
    if (row < 0 || place + 1 >= this.trackFrom.length) return [0, 0];
    return [this.trackFrom[place]!, this.trackFrom[place + 1]!];
  }

  /** The first span of a track that may reach beyond `time`. */
  firstReaching(time: number, from: number, to: number): number {
    return lowerBound(this.reach, time, from, to);
  }

  /** To be called after starts were changed; their order within a track has to be as before. */
  refresh(): void {
    this.trackFrom = this.index();
  }

  id(place: number): number {
    return this.table.has("id") ? this.table.values("id")[place]! : this.first + place;
  }

  place(id: number): number {
    const place = this.table.has("id") ? this.table.values("id").indexOf(id) : id - this.first;
    return place >= 0 && place < this.count ? place : -1;
  }

  end(place: number): number {
    return this.start[place]! + this.duration[place]!;
  }

  /** The lane as which a span is drawn: host spans replace the actions of a row without any. */
  layer(place: number): number {
    const lane = this.lane[place]!;
    if (lane !== HOST) return lane;
    const [from, to] = this.track(this.row[place]!, COMPUTE);
    return from === to ? COMPUTE : HOST;
  }

  /** The span under a moment of a track, the shortest if several are; -1 if none. */
  at(row: number, lane: number, time: number, slack: number): number {
    const [from, to] = this.track(row, lane);
    let best = -1;
    for (let i = this.firstReaching(time - slack, from, to); i < to && this.start[i]! <= time + slack; i++) {
      if (this.end(i) < time - slack) continue;
      if (best < 0 || this.duration[i]! < this.duration[best]!) best = i;
    }
    return best;
  }

  span(place: number): Span {
    const of = (name: string): number | null => {
      if (!this.table.has(name)) return null;
      const value = this.table.values(name)[place]!;
      return Number.isNaN(value) ? null : value;
    };
    return {
      id: this.id(place),
      row: this.row[place]!,
      kind: this.kind[place]!,
      lane: this.lane[place]!,
      step: of("step"),
      stage: of("stage"),
      chunk: of("chunk"),
      microbatch: of("microbatch"),
      pair: of("pair"),
      peer: of("peer"),
      bytes: of("bytes"),
      start: this.start[place]!,
      duration: this.duration[place]!,
      wait: of("wait"),
      wait_duration: of("wait_duration"),
      name: this.table.has("name") ? this.table.text("name", place) : null,
    };
  }

  private index(): Int32Array {
    const { count, row, lane, start, duration, reach } = this;
    const rows = count ? row[count - 1]! + 1 : 0;
    const from = new Int32Array(rows * LANE_COUNT + 1);
    let track = -1;
    let latest = 0;
    for (let i = 0; i < count; i++) {
      const own = row[i]! * LANE_COUNT + lane[i]!;
      if (own !== track) {
        from.fill(i, track + 1, own + 1);
        track = own;
        latest = -Infinity;
      }
      const end = start[i]! + duration[i]!;
      if (end > latest) latest = end;
      reach[i] = latest;
    }
    from.fill(count, track + 1);
    return from;
  }
}

/** The first place of a rising column, from `from` to `to`, that is above `value`; `to` if none is. */
export function lowerBound(values: ArrayLike<number>, value: number, from: number, to: number): number {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle]! <= value) from = middle + 1;
    else to = middle;
  }
  return from;
}

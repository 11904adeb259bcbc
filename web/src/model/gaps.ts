/** Idle time in pieces, each with its cause: by row in order of time, so that a part is found without a look at all. */

import type { Table } from "./columns";
import { lowerBound, type Spans } from "./spans";

export class Gaps {
  readonly count: number;
  readonly row: Int32Array;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  /** Index into `causes`; -1: not known. */
  readonly cause: Int32Array;
  readonly causes: string[];
  private readonly end: Float64Array;
  private readonly rowFrom: Int32Array;

  /** `spans` are needed where the table tells starts by the spans that the pieces follow. */
  constructor(
    private readonly table: Table,
    spans: Spans | null = null,
  ) {
    this.count = table.rows;
    this.row = table.ints("row");
    this.duration = table.values("duration");
    this.start = table.has("after") && spans ? startsAfter(table, spans) : startsOf(table);
    this.cause = table.ints("cause");
    this.causes = table.words("cause");
    this.end = this.start.map((value, i) => value + this.duration[i]!);
    const rows = this.count ? this.row[this.count - 1]! + 1 : 0;
    this.rowFrom = new Int32Array(rows + 1);
    for (let i = 0; i < this.count; i++) this.rowFrom[this.row[i]! + 1]!++;
    for (let row = 0; row < rows; row++) this.rowFrom[row + 1]! += this.rowFrom[row]!;
  }

  /** The pieces of a row that reach into [start, end): the first, and the one after the last. */
  within(row: number, start: number, end: number): [number, number] {
    if (row + 1 >= this.rowFrom.length) return [0, 0];
    const [from, to] = [this.rowFrom[row]!, this.rowFrom[row + 1]!];
    const first = lowerBound(this.end, start, from, to);
    let last = lowerBound(this.start, end, first, to);
    while (last > first && this.start[last - 1]! >= end) last--;
    return [first, last];
  }

  /** What a piece says of itself. */
  words(place: number): string {
    return [this.causes[this.cause[place]!], this.table.text("text", place)].filter(Boolean).join(": ") || "idle";
  }

  /** Id of the span that a piece waits for; null where that is not known. */
  waitsFor(place: number): number | null {
    const id = this.table.values("waits_for")[place]!;
    return Number.isNaN(id) ? null : id;
  }

  /** The pieces that lead up to a moment on a row without a break, the latest first. */
  before(row: number, time: number): number[] {
    const places: number[] = [];
    let until = time;
    for (let i = this.within(row, -Infinity, time)[1] - 1; i >= 0; i--) {
      if (this.row[i] !== row || this.end[i] !== until) break;
      until = this.start[i]!;
      places.push(i);
    }
    return places;
  }

  /** Time by cause inside [start, end) on some rows, longest first; causes without any are left out. */
  sums(start: number, end: number, rows: Iterable<number>): { cause: string; sum_ns: number }[] {
    const sums = new Float64Array(this.causes.length);
    for (const row of rows) {
      const [from, to] = this.within(row, start, end);
      for (let i = from; i < to; i++)
        if (this.cause[i]! >= 0) sums[this.cause[i]!]! += Math.min(this.end[i]!, end) - Math.max(this.start[i]!, start);
    }
    return this.causes
      .map((cause, i) => ({ cause, sum_ns: sums[i]! }))
      .filter((one) => one.sum_ns > 0)
      .sort((one, other) => other.sum_ns - one.sum_ns);
  }

  /** Time by cause of everything. */
  totals(): { cause: string; sum_ns: number }[] {
    return this.sums(-Infinity, Infinity, this.rowFrom.subarray(0, -1).keys());
  }
}

function startsOf(table: Table): Float64Array {
  const origin = Number(table.facts["origin"] ?? 0);
  return table.relative("start").map((value) => value + origin);
}

/** Where no span is named, a piece begins `lead` after the end of the piece before it on its row, or of the run's begin. */
function startsAfter(table: Table, spans: Spans): Float64Array {
  const [row, duration] = [table.ints("row"), table.values("duration")];
  const [after, lead] = [table.values("after"), table.values("lead")];
  const start = new Float64Array(table.rows);
  let end = 0;
  for (let i = 0; i < start.length; i++) {
    if (i > 0 && row[i] !== row[i - 1]) end = 0;
    const place = after[i]!;
    start[i] = Number.isNaN(place) ? end + lead[i]! : spans.end(spans.place(place));
    end = start[i]! + duration[i]!;
  }
  return start;
}

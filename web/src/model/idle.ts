/** Idle intervals, each with what the rank waited for. Sorted by row and time, so that a range is found by bisection. */

import type { Table } from "./columns";
import { lowerBound, type Spans } from "./spans";

/** Idle time with one `waiting_for`. */
export interface WaitSum {
  waiting_for: string;
  sum_ns: number;
}

export class IdleIntervals {
  readonly count: number;
  readonly row: Int32Array;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  /** Index into `waits`; -1: unknown. */
  readonly wait: Int32Array;
  /** The names in the column `waiting_for`. */
  readonly waits: string[];
  /** The names in the column `cause`; empty without. */
  readonly causes: string[];
  private readonly end: Float64Array;
  private readonly rowFrom: Int32Array;

  /** `spans` are needed where the table stores each start as a reference to the preceding span. */
  constructor(
    private readonly table: Table,
    private readonly spans: Spans | null = null,
  ) {
    this.count = table.rows;
    this.row = table.ints("row");
    this.duration = table.values("duration");
    this.start = table.has("after") && spans ? startsAfter(table, spans) : startsOf(table);
    this.wait = table.ints("waiting_for");
    this.waits = table.words("waiting_for");
    this.causes = table.has("cause") ? table.words("cause") : [];
    this.end = this.start.map((value, i) => value + this.duration[i]!);
    const rows = this.count ? this.row[this.count - 1]! + 1 : 0;
    this.rowFrom = new Int32Array(rows + 1);
    for (let i = 0; i < this.count; i++) this.rowFrom[this.row[i]! + 1]!++;
    for (let row = 0; row < rows; row++) this.rowFrom[row + 1]! += this.rowFrom[row]!;
  }

  /** The intervals of a row that overlap [start, end): first index, and one past the last. */
  within(row: number, start: number, end: number): [number, number] {
    if (row + 1 >= this.rowFrom.length) return [0, 0];
    const [from, to] = [this.rowFrom[row]!, this.rowFrom[row + 1]!];
    const first = lowerBound(this.end, start, from, to);
    let last = lowerBound(this.start, end, first, to);
    while (last > first && this.start[last - 1]! >= end) last--;
    return [first, last];
  }

  /** The name of what an interval waits for. */
  waitingFor(place: number): string {
    return this.waits[this.wait[place]!] ?? "unknown";
  }

  /** Free text of an interval, null without. */
  text(place: number): string | null {
    return this.table.text("text", place);
  }

  /** Id of the span that an interval waits for; null where unknown. */
  waitsFor(place: number): number | null {
    return this.number("waits_for", place);
  }

  private number(column: string, place: number): number | null {
    if (!this.table.has(column)) return null;
    const value = this.table.values(column)[place]!;
    return Number.isNaN(value) ? null : value;
  }

  /** Tables for readers without all spans have a column of rows. */
  private rowOf(column: "waits_for" | "culprit", place: number): number {
    const name = column === "culprit" ? "culprit_row" : "waits_for_row";
    if (this.table.has(name)) return this.number(name, place) ?? -1;
    const id = this.number(column, place);
    return id === null || !this.spans ? -1 : this.spans.row[this.spans.place(id)]!;
  }

  /** Id of the span that delays an interval most; null: none, or unknown. */
  culprit(place: number): number | null {
    return this.number("culprit", place);
  }

  /** The row of the span that an interval waits for; -1: unknown. */
  waitsForRow(place: number): number {
    return this.rowOf("waits_for", place);
  }

  culpritRow(place: number): number {
    return this.rowOf("culprit", place);
  }

  step(place: number): number | null {
    return this.number("step", place);
  }

  /** The name of the largest cause of an interval; empty: unknown. */
  causeOf(place: number): string {
    return this.causes.length ? (this.causes[this.table.ints("cause")[place]!] ?? "") : "";
  }

  /** The wait with most idle time among the intervals of a cause; null without any. */
  mainWait(cause: string): string | null {
    const sums = new Float64Array(this.waits.length);
    for (let i = 0; i < this.count; i++)
      if (this.wait[i]! >= 0 && this.causeOf(i) === cause) sums[this.wait[i]!]! += this.duration[i]!;
    const most = sums.reduce((best, sum, i) => (sum > sums[best]! ? i : best), 0);
    return sums[most] ? this.waits[most]! : null;
  }

  /** The longest interval that a test accepts, the first if several are; -1: none. */
  longest(test: (place: number) => boolean): number {
    let best = -1;
    for (let i = 0; i < this.count; i++)
      if ((best < 0 || this.duration[i]! > this.duration[best]!) && test(i)) best = i;
    return best;
  }

  /** The interval of a row at a time; -1: none. */
  at(row: number, time: number): number {
    const [from, to] = this.within(row, time, time + 1);
    for (let i = from; i < to; i++) if (this.start[i]! <= time && time < this.end[i]!) return i;
    return -1;
  }

  /** The last interval of a row and step that ended by a time and waited for a known span; -1: none. */
  delayBefore(row: number, time: number, step: number | null): number {
    const [from, to] = this.within(row, -Infinity, time);
    for (let i = to - 1; i >= from && this.step(i) === step; i--)
      if (this.end[i]! <= time && this.waitsFor(i) !== null) return i;
    return -1;
  }

  /** The contiguous intervals that end at a time on a row, latest first. */
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

  /** Idle time inside [start, end) on some rows by what was waited for, longest first, without zeros. */
  sums(start: number, end: number, rows: Iterable<number>): WaitSum[] {
    const sums = new Float64Array(this.waits.length);
    for (const row of rows) {
      const [from, to] = this.within(row, start, end);
      for (let i = from; i < to; i++)
        if (this.wait[i]! >= 0)
          sums[this.wait[i]!]! += Math.min(this.end[i]!, end) - Math.max(this.start[i]!, start);
    }
    return this.waits
      .map((waiting_for, i) => ({ waiting_for, sum_ns: sums[i]! }))
      .filter((one) => one.sum_ns > 0)
      .sort((one, other) => other.sum_ns - one.sum_ns);
  }

  /** Idle time of the whole run by what was waited for. */
  totals(): WaitSum[] {
    return this.sums(-Infinity, Infinity, this.rowFrom.subarray(0, -1).keys());
  }
}

function startsOf(table: Table): Float64Array {
  const origin = Number(table.facts.origin ?? 0);
  return table.relative("start").map((value) => value + origin);
}

/** Without a span in `after`, an interval begins `lead` after the end of the interval before it on its row, or after the run's begin. */
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

/** Device kernels, sorted by row and start, so that a range is found by bisection. Those of several streams overlap. */

import type { Table } from "./columns";
import type { KernelFacts } from "./meta";
import { lowerBound } from "./spans";

export const CATEGORIES = ["gemm", "attention", "elementwise", "communication", "memcpy", "other"] as const;

/** One kernel with all its facts; times in ns from the base of the run; null: unknown. */
export interface Kernel {
  place: number;
  row: number;
  lane: number;
  start: number;
  duration: number;
  name: string;
  category: string;
  operation: string | null;
  stream: number | null;
  /** Such as F0.3, with the name of its part. */
  action: string | null;
  pair: number | null;
}

export class Kernels {
  readonly count: number;
  readonly row: Int32Array;
  readonly lane: Int32Array;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  /** Index into CATEGORIES, by kernel. */
  readonly category: Int32Array;
  /** The median duration: kernels can be seen where it is a pixel wide. */
  readonly typical: number;
  private lanes: number[] = [];
  private readonly rowFrom: Int32Array;
  /** The latest end so far on the row: rises, unlike the ends. */
  private readonly reach: Float64Array;

  /** `facts` are those of all kernels of a run, where these are only a part. */
  constructor(
    private readonly table: Table,
    facts: KernelFacts | null = null,
  ) {
    this.count = table.rows;
    this.row = table.ints("row");
    this.lane = table.ints("lane");
    this.duration = table.values("duration");
    const origin = Number(table.facts.origin ?? 0);
    this.start = table.relative("start").map((value) => value + origin);
    const words = table
      .words("category")
      .map((word) => Math.max(0, (CATEGORIES as readonly string[]).indexOf(word)));
    this.category = table.ints("category").map((word) => words[word] ?? CATEGORIES.length - 1);
    const median = this.count ? this.duration.slice().sort()[this.count >> 1]! : 0;
    this.typical = facts ? facts.typical_ns : median;
    const rows = this.count ? this.row[this.count - 1]! + 1 : 0;
    this.rowFrom = new Int32Array(rows + 1);
    this.reach = new Float64Array(this.count);
    for (let i = 0; i < this.count; i++) {
      const row = this.row[i]!;
      this.rowFrom[row + 1]!++;
      const end = this.start[i]! + this.duration[i]!;
      this.reach[i] = i > 0 && this.row[i - 1] === row ? Math.max(this.reach[i - 1]!, end) : end;
      this.lanes[row] = Math.max(this.lanes[row] ?? 0, this.lane[i]! + 1);
    }
    for (let row = 0; row < rows; row++) this.rowFrom[row + 1]! += this.rowFrom[row]!;
    if (facts) this.lanes = facts.lanes;
  }

  /** Number of streams of a row. */
  laneCount(row: number): number {
    return this.lanes[row] ?? 0;
  }

  /** The kernels of a row that may overlap [start, end): first index, and one past the last. */
  within(row: number, start: number, end: number): [number, number] {
    if (row + 1 >= this.rowFrom.length) return [0, 0];
    const [from, to] = [this.rowFrom[row]!, this.rowFrom[row + 1]!];
    const first = lowerBound(this.reach, start, from, to);
    return [first, lowerBound(this.start, end, first, to)];
  }

  /** The shortest kernel of a lane at a time, or within `slack` of it; -1: none. */
  at(row: number, lane: number, time: number, slack: number): number {
    const [first, last] = this.within(row, time - slack, time + slack);
    let best = -1;
    for (let i = first; i < last; i++) {
      if (this.lane[i] !== lane || this.start[i]! + this.duration[i]! < time - slack) continue;
      if (best < 0 || this.duration[i]! < this.duration[best]!) best = i;
    }
    return best;
  }

  /** All facts of a kernel. */
  kernel(place: number): Kernel {
    const known = (name: string): number | null => {
      const value = this.table.values(name)[place]!;
      return Number.isNaN(value) ? null : value;
    };
    return {
      place,
      row: this.row[place]!,
      lane: this.lane[place]!,
      start: this.start[place]!,
      duration: this.duration[place]!,
      name: this.table.text("name", place) ?? "",
      category: CATEGORIES[this.category[place]!]!,
      operation: this.table.text("operation", place),
      stream: known("stream"),
      action: this.table.text("action", place),
      pair: known("pair"),
    };
  }
}

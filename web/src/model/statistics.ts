/** Statistics of a time range on some rows.
 *
 * docs/viewer.md defines them ("Statistics of a selection"). The local server computes them in viewer/tiles/statistics.py;
 * tests/data/viewer/cases.json holds the cases that both are tested with.
 */

import type { IdleIntervals } from "./idle";
import { COMPUTE } from "./meta";
import type { Statistics } from "./source";
import type { Spans } from "./spans";

const LANE_COUNT = 3;

/** Return the statistics of [start, end) on `rows`; spans count with their part inside. */
export function computeStatistics(
  spans: Spans,
  idle: IdleIntervals | null,
  start: number,
  end: number,
  rows: number[],
): Statistics {
  const counts = new Float64Array(256);
  const sums = new Float64Array(256);
  let busy = 0;
  let wait = 0;
  for (const row of rows) {
    for (let lane = 0; lane < LANE_COUNT; lane++) {
      const [from, to] = spans.track(row, lane);
      let covered = start;
      for (let i = spans.firstReaching(start, from, to); i < to && spans.start[i]! < end; i++) {
        const spanEnd = Math.min(spans.end(i), end);
        const spanStart = Math.max(spans.start[i]!, start);
        if (spanEnd <= start) continue;
        counts[spans.kind[i]!]!++;
        sums[spans.kind[i]!]! += spanEnd - spanStart;
        if (lane === COMPUTE && spanEnd > covered) {
          busy += spanEnd - Math.max(spanStart, covered);
          covered = spanEnd;
        }
      }
    }
    wait += waitOf(spans, row, start, end);
  }
  const kinds = [];
  for (let kind = 0; kind < 256; kind++)
    if (counts[kind]) kinds.push({ kind, count: counts[kind]!, sum_ns: sums[kind]! });
  const total = (values: Float64Array): number => values.reduce((sum, value) => sum + value, 0);
  return {
    start,
    end,
    row_count: rows.length,
    span_count: total(counts),
    sum_ns: total(sums),
    busy_ns: busy,
    idle_ns: rows.length * (end - start) - busy,
    wait_ns: wait,
    kinds,
    waits: idle ? idle.sums(start, end, rows) : [],
  };
}

/** Length of the union of the times in which the host of a row was blocked. */
function waitOf(spans: Spans, row: number, start: number, end: number): number {
  if (!spans.table.has("wait")) return 0;
  const wait = spans.table.values("wait");
  const duration = spans.table.values("wait_duration");
  const parts: [number, number][] = [];
  for (let lane = 0; lane < LANE_COUNT; lane++) {
    const [from, to] = spans.track(row, lane);
    for (let i = from; i < to; i++) {
      if (Number.isNaN(wait[i])) continue;
      const left = Math.max(spans.start[i]! + wait[i]!, start);
      const right = Math.min(spans.start[i]! + wait[i]! + duration[i]!, end);
      if (right > left) parts.push([left, right]);
    }
  }
  return unionLength(parts);
}

export function unionLength(parts: [number, number][]): number {
  parts.sort((one, other) => one[0] - other[0]);
  let sum = 0;
  let covered = -Infinity;
  for (const [left, right] of parts) {
    if (right <= covered) continue;
    sum += right - Math.max(left, covered);
    covered = right;
  }
  return sum;
}

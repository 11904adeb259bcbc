/** The matrix of transfers between ranks: who sent how much to whom. */

import type { Table } from "../model/columns";

export const METRICS = ["messages", "bytes", "transfer_ns"] as const;
export type Metric = (typeof METRICS)[number];

export interface Transfer {
  source: number;
  target: number;
  messages: number;
  /** NaN: unknown. */
  bytes: number;
  transfer_ns: number;
}

export interface Matrix {
  /** The first and the last rank of each row or column of cells, rising. */
  ranks: [number, number][];
  /** Sums by row (source) and column (target) of cells, row by row; NaN: unknown. */
  cells: Float64Array;
  /** How many messages each cell has: time and bytes may be 0 although something was sent. */
  messages: Float64Array;
  largest: number;
}

export function transfersOf(table: Table): Transfer[] {
  const [source, target] = [table.ints("source"), table.ints("target")];
  const [messages, bytes, transfer] = METRICS.map((name) => table.values(name));
  return Array.from({ length: table.rows }, (_, i) => ({
    source: source[i]!,
    target: target[i]!,
    messages: messages![i]!,
    bytes: bytes![i]!,
    transfer_ns: transfer![i]!,
  }));
}

/** Sum the transfers in at most `most` rows and columns of cells, each of as many ranks. */
export function matrixOf(
  transfers: Transfer[],
  ranks: readonly number[],
  metric: Metric,
  most: number,
): Matrix {
  const sorted = [...ranks].sort((a, b) => a - b);
  const perCell = Math.max(1, Math.ceil(sorted.length / most));
  const count = Math.ceil(sorted.length / perCell);
  const place = new Map(sorted.map((rank, i) => [rank, Math.floor(i / perCell)]));
  const cells = new Float64Array(count * count);
  const messages = new Float64Array(count * count);
  for (const transfer of transfers) {
    const [row, column] = [place.get(transfer.source), place.get(transfer.target)];
    if (row === undefined || column === undefined) continue;
    cells[row * count + column]! += transfer[metric];
    messages[row * count + column]! += transfer.messages;
  }
  const largest = cells.reduce((found, value) => (value > found ? value : found), 0);
  const named = Array.from({ length: count }, (_, i): [number, number] => {
    const own = sorted.slice(i * perCell, (i + 1) * perCell);
    return [own[0]!, own[own.length - 1]!];
  });
  return { ranks: named, cells, messages, largest };
}

/** The pairs with most of a metric, those with an unknown value last. */
export function largestPairs(transfers: Transfer[], metric: Metric, most: number): Transfer[] {
  const key = (one: Transfer): number => (Number.isNaN(one[metric]) ? -1 : one[metric]);
  return [...transfers]
    .sort((a, b) => key(b) - key(a) || a.source - b.source || a.target - b.target)
    .slice(0, most);
}

/** Transfers between ranks: a matrix of senders and receivers, and the pairs with most. */

import { useCallback, useEffect, useMemo, useState } from "preact/hooks";

import {
  largestPairs,
  type Matrix,
  METRICS,
  type Metric,
  matrixOf,
  type Transfer,
  transfersOf,
} from "../layout/matrix";
import type { Viewer } from "../layout/viewer";
import { bytesText, countText, durationText } from "../model/time";
import { CellMap, type CellPainter, MetricChoice } from "./cell_map";
import { TEXTS } from "./texts";

const SIZE = 260;
const MOST_CELLS = 130;
const MOST_PAIRS = 8;

export function Transfers({ viewer, isDark }: { viewer: Viewer; isDark: boolean }) {
  const [transfers, setTransfers] = useState<Transfer[]>([]);
  const [metric, setMetric] = useState<Metric>("messages");
  const [pointed, setPointed] = useState("");
  useEffect(() => {
    const none = (): void => setTransfers([]);
    viewer.source
      .table("transfers")
      .then((table) => (table ? setTransfers(transfersOf(table)) : none()), none);
  }, [viewer.source]);
  const ranks = viewer.meta.ranks.rank;
  const matrix = useMemo(() => matrixOf(transfers, ranks, metric, MOST_CELLS), [transfers, ranks, metric]);
  const pairs = useMemo(() => largestPairs(transfers, metric, MOST_PAIRS), [transfers, metric]);
  const paint = useCallback<CellPainter>(
    (pen, side, _, color) => paintMatrix(matrix, pen, side, color),
    [matrix],
  );
  if (transfers.length === 0) return null;
  const text = (value: number): string => valueText(viewer, metric, value);
  const count = matrix.ranks.length;
  return (
    <div>
      <MetricChoice names={METRICS} words={TEXTS.metrics} chosen={metric} choose={setMetric} />
      <CellMap
        columns={count}
        lines={count}
        size={{ width: SIZE, height: SIZE }}
        label={TEXTS.matrix}
        caption={TEXTS.matrixAxes(String(matrix.ranks[0]![0]), String(matrix.ranks[count - 1]![1]))}
        isDark={isDark}
        paint={paint}
        onPoint={(cell) => setPointed(cell ? cellText(matrix, ...cell, text) : "")}
      />
      <p class="quiet">{pointed || TEXTS.matrixLegend(text(matrix.largest))}</p>
      <table class="figures">
        <thead>
          <tr>
            <th scope="col">{TEXTS.pair}</th>
            {METRICS.map((name) => (
              <th key={name} scope="col">
                {TEXTS.metrics[name]}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {pairs.map((one) => (
            <tr key={`${one.source} ${one.target}`}>
              <th scope="row">{TEXTS.arrow(String(one.source), String(one.target))}</th>
              {METRICS.map((name) => (
                <td key={name}>{valueText(viewer, name, one[name])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {transfers.length > MOST_PAIRS && (
        <p class="quiet">{TEXTS.largestOf(String(MOST_PAIRS), countText(transfers.length))}</p>
      )}
    </div>
  );
}

function paintMatrix(
  matrix: Matrix,
  pen: CanvasRenderingContext2D,
  side: number,
  color: (name: string) => string,
): void {
  const count = matrix.ranks.length;
  const filled = Math.max(Math.ceil(side) - (side > 6 ? 1 : 0), 1);
  pen.fillStyle = color("--track");
  pen.fillRect(0, 0, pen.canvas.width, pen.canvas.height);
  pen.fillStyle = color("--heat-high");
  matrix.cells.forEach((value, i) => {
    if (matrix.messages[i] === 0) return;
    // The root keeps small values visible beside large ones; an unknown value is as faint as the smallest.
    pen.globalAlpha = value > 0 ? 0.15 + 0.85 * Math.sqrt(value / matrix.largest) : 0.15;
    pen.fillRect(Math.floor((i % count) * side), Math.floor(Math.floor(i / count) * side), filled, filled);
  });
  pen.globalAlpha = 1;
}

function cellText(matrix: Matrix, row: number, column: number, text: (value: number) => string): string {
  const place = row * matrix.ranks.length + column;
  const named = (at: number): string => {
    const [first, last] = matrix.ranks[at]!;
    return first === last ? TEXTS.oneRank(String(first)) : TEXTS.severalRanks(String(first), String(last));
  };
  const value = matrix.messages[place] === 0 ? TEXTS.nothingSent : text(matrix.cells[place]!);
  return TEXTS.sent(named(row), named(column), value);
}

function valueText(viewer: Viewer, metric: Metric, value: number): string {
  if (Number.isNaN(value)) return TEXTS.unknown;
  if (metric === "messages") return countText(value);
  return metric === "bytes" ? bytesText(value) : durationText(value, viewer.meta.time_unit);
}

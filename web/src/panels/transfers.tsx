/** Transfers between ranks: a matrix of senders and receivers, and the pairs with most. */

import { useEffect, useRef, useState } from "preact/hooks";

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
  if (transfers.length === 0) return null;
  const matrix = matrixOf(transfers, viewer.meta.ranks.rank, metric, MOST_CELLS);
  const text = (value: number): string => valueText(viewer, metric, value);
  const point = (event: MouseEvent): void => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const count = matrix.ranks.length;
    const at = (distance: number, size: number): number =>
      Math.min(Math.max(Math.floor((distance / size) * count), 0), count - 1);
    const [row, column] = [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
    setPointed(cellText(matrix, row, column, text));
  };
  return (
    <div>
      <div class="choices" role="group" aria-label={TEXTS.whatIsShown}>
        {METRICS.map((name) => (
          <button key={name} type="button" aria-pressed={metric === name} onClick={() => setMetric(name)}>
            {TEXTS.metrics[name]}
          </button>
        ))}
      </div>
      <Cells matrix={matrix} isDark={isDark} onPoint={point} onLeave={() => setPointed("")} />
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
          {largestPairs(transfers, metric, MOST_PAIRS).map((one) => (
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

interface CellsProps {
  matrix: Matrix;
  isDark: boolean;
  onPoint: (event: MouseEvent) => void;
  onLeave: () => void;
}

function Cells({ matrix, isDark, onPoint, onLeave }: CellsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const count = matrix.ranks.length;
    const ratio = window.devicePixelRatio || 1;
    const size = Math.round(SIZE * ratio);
    canvas.current!.width = canvas.current!.height = size;
    const pen = canvas.current!.getContext("2d")!;
    const style = getComputedStyle(canvas.current!);
    pen.fillStyle = style.getPropertyValue("--track");
    pen.fillRect(0, 0, size, size);
    pen.fillStyle = style.getPropertyValue("--heat-high");
    const side = size / count;
    matrix.cells.forEach((value, i) => {
      if (value === 0) return;
      // The root keeps small values visible beside large ones; an unknown value is as faint as the smallest.
      pen.globalAlpha = Number.isNaN(value) ? 0.15 : 0.15 + 0.85 * Math.sqrt(value / matrix.largest);
      const [left, top] = [Math.floor((i % count) * side), Math.floor(Math.floor(i / count) * side)];
      pen.fillRect(
        left,
        top,
        Math.max(Math.ceil(side) - (side > 6 ? 1 : 0), 1),
        Math.max(Math.ceil(side) - (side > 6 ? 1 : 0), 1),
      );
    });
  }, [matrix, isDark]);
  const [first] = matrix.ranks[0]!;
  const [, last] = matrix.ranks[matrix.ranks.length - 1]!;
  return (
    <figure class="matrix">
      <figcaption class="quiet">{TEXTS.matrixAxes(String(first), String(last))}</figcaption>
      <canvas
        ref={canvas}
        style={{ width: `${SIZE}px`, height: `${SIZE}px` }}
        role="img"
        aria-label={TEXTS.matrix}
        onMouseMove={onPoint}
        onMouseLeave={onLeave}
      />
    </figure>
  );
}

function cellText(matrix: Matrix, row: number, column: number, text: (value: number) => string): string {
  const value = matrix.cells[row * matrix.ranks.length + column]!;
  const named = (place: number): string => {
    const [first, last] = matrix.ranks[place]!;
    return first === last ? TEXTS.oneRank(String(first)) : TEXTS.severalRanks(String(first), String(last));
  };
  return TEXTS.sent(named(row), named(column), value === 0 ? TEXTS.nothingSent : text(value));
}

function valueText(viewer: Viewer, metric: Metric, value: number): string {
  if (Number.isNaN(value)) return TEXTS.unknown;
  if (metric === "messages") return countText(value);
  return metric === "bytes" ? bytesText(value) : durationText(value, viewer.meta.time_unit);
}

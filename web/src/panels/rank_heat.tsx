/** Ranks by steps: a map of idle time, work and blocking, and the largest values; both lead to their place. */

import { useCallback, useEffect, useMemo, useState } from "preact/hooks";

import {
  largestRows,
  RANK_METRICS,
  type RankHeat,
  type RankMetric,
  rankHeatOf,
  recordedMetrics,
  shade,
  valuesOf,
} from "../layout/rank_heat";
import type { Viewer } from "../layout/viewer";
import type { Table } from "../model/columns";
import { durationText, percentText } from "../model/time";
import { CellMap, type CellPainter, MetricChoice } from "./cell_map";
import { TEXTS } from "./texts";

const WIDTH = 300;
const TALLEST = 320;
const MOST_CELLS = 160;
const TALLEST_LINE = 14;
const MOST_PLACES = 5;

export function RankHeatMap({ viewer, isDark }: { viewer: Viewer; isDark: boolean }) {
  const [table, setTable] = useState<Table | null>(null);
  useEffect(() => {
    viewer.source.table("rank_heat").then(setTable, () => setTable(null));
  }, [viewer.source]);
  return table && <RankHeatOf viewer={viewer} table={table} isDark={isDark} />;
}

function RankHeatOf({ viewer, table, isDark }: { viewer: Viewer; table: Table; isDark: boolean }) {
  const [metric, setMetric] = useState<RankMetric>("idle_ns");
  const [pointed, setPointed] = useState("");
  const rowCount = viewer.meta.ranks.rank.length;
  const names = useMemo(() => recordedMetrics(table, RANK_METRICS), [table]);
  const values = useMemo(() => valuesOf(table, metric), [table, metric]);
  const places = useMemo(() => largestRows(values, MOST_PLACES), [values]);
  const heat = useMemo(() => rankHeatOf(table, metric, rowCount, MOST_CELLS), [table, metric, rowCount]);
  const paint = useCallback<CellPainter>(
    (pen, width, height, color) => paintHeat(heat, pen, { width, height }, color),
    [heat],
  );
  const [columns, lines] = [heat.steps.length, heat.rows.length];
  const [[first], [, last]] = [heat.steps[0]!, heat.steps[columns - 1]!];
  const placeAt = ([line, column]: [number, number]): number => heat.places[line * columns + column]!;
  const text = (place: number): string => (place < 0 ? "" : placeText(viewer, table, values[place]!, place));
  const go = (place: number): void => void (place >= 0 && goTo(viewer, table, place));
  const unit = viewer.meta.time_unit;
  return (
    <div>
      <MetricChoice names={names} words={TEXTS.rankMetrics} chosen={metric} choose={setMetric} />
      <CellMap
        columns={columns}
        lines={lines}
        size={{ width: WIDTH, height: Math.min(lines * TALLEST_LINE, TALLEST) }}
        label={TEXTS.rankHeat}
        caption={TEXTS.rankHeatAxes(String(first), String(last))}
        isDark={isDark}
        paint={paint}
        onPoint={(cell) => setPointed(cell ? text(placeAt(cell)) : "")}
        onChoose={(cell) => go(placeAt(cell))}
      />
      <p class="quiet">
        {pointed || TEXTS.rankHeatLegend(durationText(heat.low, unit), durationText(heat.high, unit))}
      </p>
      <ul class="places">
        {places.map((place) => (
          <li key={place}>
            <button type="button" class="link" onClick={() => go(place)}>
              {text(place)}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function paintHeat(
  heat: RankHeat,
  pen: CanvasRenderingContext2D,
  cell: { width: number; height: number },
  color: (name: string) => string,
): void {
  const columns = heat.steps.length;
  const [low, high] = [color("--heat-low"), color("--heat-high")];
  pen.clearRect(0, 0, pen.canvas.width, pen.canvas.height);
  heat.cells.forEach((value, i) => {
    // A step that a rank does not have stays empty.
    if (Number.isNaN(value)) return;
    const [column, line] = [i % columns, Math.floor(i / columns)];
    const [left, right] = [Math.round(column * cell.width), Math.round((column + 1) * cell.width)];
    const [top, bottom] = [Math.round(line * cell.height), Math.round((line + 1) * cell.height)];
    for (const [ink, strength] of [
      [low, 1],
      [high, shade(value, heat.low, heat.high)],
    ] as const) {
      pen.globalAlpha = strength;
      pen.fillStyle = ink;
      pen.fillRect(left, top, right - left, bottom - top);
    }
  });
  pen.globalAlpha = 1;
}

function placeText(viewer: Viewer, table: Table, value: number, place: number): string {
  const window = table.values("window_ns")[place]!;
  const rank = viewer.meta.ranks.rank[table.ints("row")[place]!]!;
  const length = durationText(value, viewer.meta.time_unit);
  const share = percentText(window > 0 ? value / window : 0);
  return TEXTS.rankInStep(String(rank), String(table.ints("step")[place]!), length, share);
}

function goTo(viewer: Viewer, table: Table, place: number): void {
  const rank = viewer.meta.ranks.rank[table.ints("row")[place]!]!;
  void viewer.showPlace({ step: table.ints("step")[place]!, rank, span: null });
}

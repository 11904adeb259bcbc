/** Ranks by steps: a map of idle time, work and blocking, and the largest values; both lead to their place. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { RANK_METRICS, type RankHeat, type RankMetric, rankHeatOf, shade } from "../layout/rank_heat";
import type { Viewer } from "../layout/viewer";
import type { Table } from "../model/columns";
import { durationText, percentText } from "../model/time";
import { TEXTS } from "./texts";

const WIDTH = 300;
const TALLEST = 320;
const MOST_CELLS = 160;
const TALLEST_LINE = 14;
const MOST_PLACES = 5;

export function RankHeatMap({ viewer, isDark }: { viewer: Viewer; isDark: boolean }) {
  const [table, setTable] = useState<Table | null>(null);
  const [metric, setMetric] = useState<RankMetric>("idle_ns");
  const [pointed, setPointed] = useState("");
  useEffect(() => {
    viewer.source.table("rank_heat").then(setTable, () => setTable(null));
  }, [viewer.source]);
  const rowCount = viewer.meta.ranks.rank.length;
  const heat = useMemo(
    () => (table ? rankHeatOf(table, metric, rowCount, MOST_CELLS) : null),
    [table, metric, rowCount],
  );
  if (!table || !heat) return null;
  const placeAt = (event: MouseEvent): number => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const at = (distance: number, size: number, count: number): number =>
      Math.min(Math.max(Math.floor((distance / size) * count), 0), count - 1);
    const line = at(event.clientY - box.top, box.height, heat.rows.length);
    return heat.places[
      line * heat.steps.length + at(event.clientX - box.left, box.width, heat.steps.length)
    ]!;
  };
  const text = (place: number): string => (place < 0 ? "" : placeText(viewer, table, metric, place));
  const go = (place: number): void => void (place >= 0 && goTo(viewer, table, place));
  const unit = viewer.meta.time_unit;
  return (
    <div>
      <div class="choices" role="group" aria-label={TEXTS.whatIsShown}>
        {RANK_METRICS.map((name) => (
          <button key={name} type="button" aria-pressed={metric === name} onClick={() => setMetric(name)}>
            {TEXTS.rankMetrics[name]}
          </button>
        ))}
      </div>
      <Cells
        heat={heat}
        isDark={isDark}
        onPoint={(event) => setPointed(text(placeAt(event)))}
        onLeave={() => setPointed("")}
        onClick={(event) => go(placeAt(event))}
      />
      <p class="quiet">
        {pointed || TEXTS.rankHeatLegend(durationText(heat.low, unit), durationText(heat.high, unit))}
      </p>
      <ul class="places">
        {largest(table, metric).map((place) => (
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

/** The rows of the table with the largest values, the earliest first among equal ones. */
function largest(table: Table, metric: RankMetric): number[] {
  const values = table.values(metric);
  const found: number[] = [];
  for (let i = 0; i < table.rows; i++) {
    if (found.length === MOST_PLACES && values[i]! <= values[found[MOST_PLACES - 1]!]!) continue;
    if (!(values[i]! > 0)) continue;
    const before = found.findIndex((one) => values[i]! > values[one]!);
    found.splice(before < 0 ? found.length : before, 0, i);
    found.length = Math.min(found.length, MOST_PLACES);
  }
  return found;
}

function placeText(viewer: Viewer, table: Table, metric: RankMetric, place: number): string {
  const value = table.values(metric)[place]!;
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

interface CellsProps {
  heat: RankHeat;
  isDark: boolean;
  onPoint: (event: MouseEvent) => void;
  onLeave: () => void;
  onClick: (event: MouseEvent) => void;
}

function Cells({ heat, isDark, onPoint, onLeave, onClick }: CellsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [columns, lines] = [heat.steps.length, heat.rows.length];
  const height = Math.min(lines * TALLEST_LINE, TALLEST);
  useEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    const element = canvas.current!;
    [element.width, element.height] = [Math.round(WIDTH * ratio), Math.round(height * ratio)];
    const pen = element.getContext("2d")!;
    const style = getComputedStyle(element);
    pen.fillStyle = style.getPropertyValue("--heat-low");
    pen.fillRect(0, 0, element.width, element.height);
    pen.fillStyle = style.getPropertyValue("--heat-high");
    const [x, y] = [element.width / columns, element.height / lines];
    heat.cells.forEach((value, i) => {
      const [left, top] = [(i % columns) * x, Math.floor(i / columns) * y];
      if (Number.isNaN(value)) {
        pen.clearRect(Math.floor(left), Math.floor(top), Math.ceil(x), Math.ceil(y));
        return;
      }
      pen.globalAlpha = shade(value, heat.low, heat.high);
      const [right, bottom] = [Math.round(left + x), Math.round(top + y)];
      pen.fillRect(Math.round(left), Math.round(top), right - Math.round(left), bottom - Math.round(top));
    });
    pen.globalAlpha = 1;
  }, [heat, isDark, height, columns, lines]);
  const [[first], [, last]] = [heat.steps[0]!, heat.steps[columns - 1]!];
  return (
    <figure class="matrix">
      <figcaption class="quiet">{TEXTS.rankHeatAxes(String(first), String(last))}</figcaption>
      <canvas
        ref={canvas}
        style={{ width: `${WIDTH}px`, maxWidth: "100%", height: `${height}px`, cursor: "pointer" }}
        role="img"
        aria-label={TEXTS.rankHeat}
        onMouseMove={onPoint}
        onMouseLeave={onLeave}
        onClick={onClick}
      />
    </figure>
  );
}

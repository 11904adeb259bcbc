/** Counters over time, such as memory: the range of all ranks, and the line of one. */

import { useEffect, useState } from "preact/hooks";

import { type Counter, chartOf, countersOf } from "../layout/counter_chart";
import { length } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import { ofData } from "../model/language";
import { bytesText, fixed } from "../model/time";
import { TEXTS } from "./texts";

const WIDTH = 280;
const HEIGHT = 90;

export function Counters({ viewer }: { viewer: Viewer }) {
  const [counters, setCounters] = useState<Counter[]>([]);
  const [isThinned, setThinned] = useState(false);
  const [at, setAt] = useState(0);
  useEffect(() => {
    viewer.source.table("counters").then(
      (table) => {
        setCounters(table ? countersOf(table) : []);
        setThinned(table?.facts.thinned === true);
      },
      () => setCounters([]),
    );
  }, [viewer.source]);
  const counter = counters[at] ?? counters[0];
  if (!counter) return null;
  const { end } = viewer.meta;
  const chart = chartOf(counter, end, viewer.selection.selected.value?.row ?? null, WIDTH, HEIGHT);
  const text = (value: number): string => valueText(value, counter.unit);
  const rank = String(viewer.meta.ranks.rank[chart.row]);
  const view = viewer.camera.view.value;
  const place = (time: number): number => (WIDTH * Math.min(Math.max(time, 0), end)) / (end || 1);
  const go = (event: MouseEvent): void => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const time = ((event.clientX - box.left) / box.width) * end;
    viewer.camera.move({ start: time - length(view) / 2, end: time + length(view) / 2 });
  };
  const words = TEXTS.counterRange(rank, text(chart.highest), text(chart.low), text(chart.high));
  const name = ofData(counter.name);
  return (
    <div class="counters">
      {counters.length > 1 && (
        <select
          aria-label={TEXTS.counter}
          value={at}
          onChange={(event) => setAt(Number(event.currentTarget.value))}
        >
          {counters.map((one, i) => (
            <option key={one.name} value={i}>
              {ofData(one.name)}
            </option>
          ))}
        </select>
      )}
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${name}: ${words}`}
        onClick={go}
      >
        <rect
          class="in-view"
          x={place(view.start)}
          width={place(view.end) - place(view.start)}
          height={HEIGHT}
        />
        <path class="band" d={chart.band} />
        <path class="line" d={chart.line} />
      </svg>
      <p class="quiet">
        {counters.length > 1 ? "" : `${name}: `}
        {words}
        {isThinned ? ` ${TEXTS.thinned}` : ""}
      </p>
    </div>
  );
}

function valueText(value: number, unit: string): string {
  if (unit === "B") return bytesText(value);
  return `${Number.isInteger(value) ? value : fixed(value, 1)}${unit ? ` ${unit}` : ""}`;
}

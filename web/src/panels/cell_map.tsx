/** What the maps of cells have in common: the choice of a metric, and a canvas whose cells can be pointed at. */

import { useEffect, useRef } from "preact/hooks";

import { TEXTS } from "./texts";

interface MetricChoiceProps<Metric extends string> {
  names: readonly Metric[];
  words: Readonly<Record<Metric, string>>;
  chosen: Metric;
  choose: (metric: Metric) => void;
}

export function MetricChoice<Metric extends string>(props: MetricChoiceProps<Metric>) {
  const { names, words, chosen, choose } = props;
  return (
    <div class="choices" role="group" aria-label={TEXTS.whatIsShown}>
      {names.map((name) => (
        <button key={name} type="button" aria-pressed={chosen === name} onClick={() => choose(name)}>
          {words[name]}
        </button>
      ))}
    </div>
  );
}

/** Draws the cells; `width` and `height` are those of one cell in pixels of the canvas. */
export type CellPainter = (
  pen: CanvasRenderingContext2D,
  width: number,
  height: number,
  color: (name: string) => string,
) => void;

interface CellMapProps {
  columns: number;
  lines: number;
  size: { width: number; height: number };
  label: string;
  caption: string;
  isDark: boolean;
  /** The same function as long as the cells are the same. */
  paint: CellPainter;
  /** Line and column under the pointer; null: none. */
  onPoint: (cell: [number, number] | null) => void;
  onChoose?: (cell: [number, number]) => void;
}

export function CellMap({ columns, lines, size, isDark, paint, onPoint, onChoose, ...texts }: CellMapProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { width, height } = size;
  useEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    const element = canvas.current!;
    [element.width, element.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const style = getComputedStyle(element);
    const color = (name: string): string => style.getPropertyValue(name);
    const pen = element.getContext("2d")!;
    paint(pen, element.width / columns, element.height / lines, color);
  }, [paint, isDark, width, height, columns, lines]);
  const cellAt = (event: MouseEvent): [number, number] => {
    const box = canvas.current!.getBoundingClientRect();
    const at = (distance: number, long: number, count: number): number =>
      Math.min(Math.max(Math.floor((distance / long) * count), 0), count - 1);
    return [at(event.clientY - box.top, box.height, lines), at(event.clientX - box.left, box.width, columns)];
  };
  return (
    <figure class="matrix" data-leads={onChoose !== undefined}>
      <figcaption class="quiet">{texts.caption}</figcaption>
      <canvas
        ref={canvas}
        style={{ width: `${width}px`, height: `${height}px` }}
        role="img"
        aria-label={texts.label}
        onMouseMove={(event) => onPoint(cellAt(event))}
        onMouseLeave={() => onPoint(null)}
        onClick={(event) => onChoose?.(cellAt(event))}
      />
    </figure>
  );
}

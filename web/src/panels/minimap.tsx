/** The overview of the whole run, with a box around the part in view that can be dragged. */

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { drawMinimap } from "../draw/minimap";
import { DARK, LIGHT } from "../draw/theme";
import { minimapRows, moveView, viewBox } from "../layout/minimap";
import type { Viewer } from "../layout/viewer";
import type { Tile } from "../model/spans";
import { TEXTS } from "./texts";

const HEIGHT = 36;

interface MinimapProps {
  viewer: Viewer;
  chunkCount: number;
  isDark: boolean;
}

export function Minimap({ viewer, chunkCount, isDark }: MinimapProps) {
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const drag = useRef<{ x: number; y: number } | null>(null);
  const width = useWidth(place);
  const rows = minimapRows(viewer);
  const tiles = useOverview(viewer, rows, width);
  const hiddenKinds = viewer.display.hiddenKinds.value;
  useLayoutEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    const size = { width: Math.round(width * ratio), height: Math.round(HEIGHT * ratio) };
    Object.assign(canvas.current!, size);
    const { kinds } = viewer.meta;
    const { bounds } = viewer.camera;
    const overview = { bounds, rows, tiles, kinds, chunkCount, hiddenKinds };
    drawMinimap(canvas.current!.getContext("2d")!, overview, size, isDark ? DARK : LIGHT);
  }, [viewer, tiles, rows.join(), width, chunkCount, isDark, hiddenKinds]);
  const box = viewBox(viewer, width, HEIGHT);
  const at = (event: PointerEvent): { x: number; y: number } => {
    const { left, top } = place.current!.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  };
  const down = (event: PointerEvent): void => {
    if (event.button !== 0) return;
    const point = at(event);
    const { left, top, width: wide, height } = box;
    const isInside = point.x >= left && point.x <= left + wide && point.y >= top && point.y <= top + height;
    // Beside the box: its middle jumps there.
    if (!isInside)
      moveView(viewer, { x: point.x - left - wide / 2, y: point.y - top - height / 2 }, width, HEIGHT);
    place.current!.setPointerCapture(event.pointerId);
    drag.current = point;
  };
  const move = (event: PointerEvent): void => {
    const before = drag.current;
    if (!before) return;
    const point = at(event);
    moveView(viewer, { x: point.x - before.x, y: point.y - before.y }, width, HEIGHT);
    drag.current = point;
  };
  const end = (): void => {
    drag.current = null;
  };
  return (
    <div class="minimap">
      <div
        ref={place}
        class="minimap-window"
        role="img"
        aria-label={TEXTS.minimap}
        title={TEXTS.minimapTitle}
        onPointerDown={down}
        onPointerMove={move}
        onPointerUp={end}
        onPointerCancel={end}
      >
        <canvas ref={canvas} style={{ height: `${HEIGHT}px` }} />
        <div
          class="minimap-box"
          style={{
            left: `${box.left}px`,
            top: `${box.top}px`,
            width: `${box.width}px`,
            height: `${box.height}px`,
          }}
        />
      </div>
    </div>
  );
}

/** The width of an element, which follows the layout. */
function useWidth(place: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = (): void => setWidth(place.current!.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  return width;
}

const NO_TILES: Tile[] = [];

/** The tiles of the whole run, read after the first picture, and again when the rows or the data change. */
function useOverview(viewer: Viewer, rows: number[], width: number): Tile[] {
  const [tiles, setTiles] = useState(NO_TILES);
  const { source, meta } = viewer;
  useEffect(() => {
    if (width === 0) return;
    let isWanted = true;
    const { start, end } = viewer.camera.bounds;
    const request = {
      start,
      end,
      rows: [...rows].sort((a, b) => a - b),
      ns_per_pixel: (end - start) / width,
    };
    const read = async (): Promise<void> => {
      // An overview that cannot be read is empty: the picture itself reports what is wrong.
      const found = await source.overview(request, () => isWanted).catch(() => null);
      if (found && isWanted) setTiles(found);
    };
    const timer = setTimeout(() => void read(), 0);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [source, meta, rows.join(), width > 0]);
  return tiles;
}

/** The step scrubber: thumbnails of the steps around the one in view. */

import { useEffect, useRef } from "preact/hooks";

import { type Palette, paintTrack } from "../layout/bins";
import type { Viewer } from "../layout/viewer";
import { COMPUTE, type Step } from "../model/meta";
import type { TileRequest } from "../model/source";
import type { Tile } from "../model/spans";
import { durationText, percentText } from "../model/time";
import { IconButton } from "./icons";

const WIDTH = 116;
const HEIGHT = 34;
const MOST_ROWS = 17;
const PITCH = 126;

export function Steps({ viewer, palette }: { viewer: Viewer; palette: Palette }) {
  const { steps } = viewer.meta;
  if (steps.length < 2) return null;
  const current = Math.max(0, steps.indexOf(viewer.camera.step.value!));
  const most = Math.max(1, Math.floor((viewer.display.size.value.width - 40) / PITCH));
  const first = Math.min(Math.max(0, current - (most >> 1)), Math.max(0, steps.length - most));
  return (
    <nav class="steps" aria-label="Steps">
      <IconButton name="left" title="Previous step ([)" onClick={() => viewer.camera.moveStep(-1)} />
      <div class="thumbs">
        {steps.slice(first, first + most).map((step, i) => (
          <Thumb
            key={step.step}
            viewer={viewer}
            palette={palette}
            step={step}
            isCurrent={first + i === current}
            onClick={() => viewer.camera.goToStep(first + i)}
          />
        ))}
      </div>
      <input
        type="range"
        class="step-slider"
        aria-label="Step"
        min={0}
        max={steps.length - 1}
        value={current}
        aria-valuetext={`step ${steps[current]!.step}`}
        onInput={(event) => viewer.camera.goToStep(Number(event.currentTarget.value))}
      />
      <IconButton name="right" title="Next step (])" onClick={() => viewer.camera.moveStep(1)} />
    </nav>
  );
}

interface ThumbProps {
  viewer: Viewer;
  palette: Palette;
  step: Step;
  isCurrent: boolean;
  onClick: () => void;
}

function Thumb({ viewer, palette, step, isCurrent, onClick }: ThumbProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    let isWanted = true;
    const request = requestOf(viewer, step);
    const draw = (tiles: Tile[] | null): void => {
      if (tiles && isWanted && canvas.current) drawThumb(canvas.current, request, tiles, palette);
    };
    // Errors are ignored: the thumbnail stays blank, and the name and bubble of the step are shown anyway.
    void viewer.source.overview(request, () => isWanted).then(draw, () => {});
    return () => void (isWanted = false);
  }, [viewer, step, palette]);
  const bubble = step.bubble_fraction === null ? "" : ` · bubble ${percentText(step.bubble_fraction)}`;
  return (
    <button
      type="button"
      class="thumb"
      aria-current={isCurrent ? "step" : undefined}
      onClick={onClick}
      title={`step ${step.step}: ${durationText(step.end - step.start, viewer.meta.time_unit)}${bubble}`}
    >
      <canvas ref={canvas} width={WIDTH} height={HEIGHT} aria-hidden="true" />
      <span>step {step.step}</span>
      <span class="quiet">{step.bubble_fraction === null ? "" : percentText(step.bubble_fraction)}</span>
    </button>
  );
}

/** Every row of a small run, evenly chosen rows of a large one. */
function requestOf(viewer: Viewer, step: Step): TileRequest {
  const count = viewer.meta.ranks.rank.length;
  const shown = Math.min(count, MOST_ROWS);
  const rows = Array.from({ length: shown }, (_, i) => Math.floor((i * count) / shown));
  const view = { start: step.start, end: Math.max(step.end, step.start + 1) };
  return { ...view, rows, ns_per_pixel: (view.end - view.start) / WIDTH };
}

function drawThumb(canvas: HTMLCanvasElement, request: TileRequest, tiles: Tile[], palette: Palette): void {
  const { start, end, rows } = request;
  const view = { start, end };
  const image = new ImageData(WIDTH, HEIGHT);
  const lines = new Uint32Array(image.data.buffer);
  const pitch = HEIGHT / Math.max(rows.length, 1);
  const hiddenKinds = new Uint8Array(256);
  rows.forEach((row, i) => {
    const top = Math.floor(i * pitch);
    const bottom = Math.max(Math.floor((i + 1) * pitch) - (pitch >= 4 ? 1 : 0), top + 1);
    for (const tile of tiles) {
      const paint = {
        view,
        width: WIDTH,
        depth: 1,
        blockWidth: Infinity,
        palette,
        hiddenKinds,
        wanted: null,
        override: null,
      };
      paintTrack(tile, tile.spans.track(row, COMPUTE), paint, lines, top * WIDTH);
    }
    for (let y = top + 1; y < bottom && y < HEIGHT; y++)
      lines.copyWithin(y * WIDTH, top * WIDTH, (top + 1) * WIDTH);
  });
  canvas.getContext("2d")!.putImageData(image, 0, 0);
}

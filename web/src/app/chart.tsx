/** The picture: a canvas that is drawn anew whenever something that it shows has changed, once a frame. */

import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { AXIS_HEIGHT, type Layers } from "../draw/scene";
import type { TimelinePainter } from "../draw/timeline";
import type { Viewer } from "../layout/viewer";
import { RowLabels, RowScroller } from "../panels/rows";
import { durationText } from "../model/time";
import { isDark } from "./theme";
import { listen } from "./gestures";

const LEAST_WIDTH = 80;

interface ChartProps {
  viewer: Viewer;
  painter: TimelinePainter;
  layers: Layers;
}

export function Chart({ viewer, painter, layers }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);

  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => {
      const { width, height } = entry!.contentRect;
      viewer.size.value = { width: Math.max(Math.floor(width), LEAST_WIDTH), height: Math.max(Math.floor(height) - AXIS_HEIGHT, 20) };
    });
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, [viewer]);

  useEffect(() => {
    let frame = 0;
    const draw = (): void => {
      frame = 0;
      if (canvas.current) painter.draw(canvas.current, viewer.size.peek(), isDark(viewer.theme.peek()), layers);
    };
    const stop = effect(() => {
      touch(viewer);
      if (!frame) frame = requestAnimationFrame(draw);
    });
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [viewer, painter, layers]);

  useEffect(() => listen(canvas.current!, viewer), [viewer]);

  return (
    <div class="chart">
      <RowLabels viewer={viewer} top={AXIS_HEIGHT} />
      <div class="canvas-box" ref={box}>
        <canvas
          ref={canvas} class={viewer.measuring.value ? "measuring" : ""}
          tabIndex={0} role="application" aria-roledescription="pipeline diagram" aria-label="Pipeline diagram: a row per rank, time to the right. Arrow keys go from block to block, W and S zoom, A and D move."
        />
        <RowScroller viewer={viewer} top={AXIS_HEIGHT} />
        <Readout viewer={viewer} />
        <EmptyNote viewer={viewer} />
      </div>
    </div>
  );
}

/** Name every signal that the picture depends on. */
function touch(viewer: Viewer): void {
  void [
    viewer.view.value, viewer.scroll.value, viewer.size.value, viewer.rows.value, viewer.flags.value, viewer.ideal.value,
    viewer.theme.value, viewer.hiddenKinds.value, viewer.waitFilter.value, viewer.hover.value, viewer.hoverLinks.value,
    viewer.selected.value, viewer.chain.value, viewer.range.value, viewer.found.value, viewer.comparison.value, viewer.revision.value,
  ];
}

/** Why there is nothing to see, where there is not. */
function EmptyNote({ viewer }: { viewer: Viewer }) {
  const isEmpty = viewer.meta.span_count === 0;
  if (!isEmpty && viewer.rows.value.placed.length > 0) return null;
  return <p class="empty-note">{isEmpty ? "Nothing was recorded: this run has no spans." : "Every row is hidden. Show them again under View, or with Shift+H."}</p>;
}

/** One line above the picture about the block under the pointer; beside the picture, so that it hides no block. */
function Readout({ viewer }: { viewer: Viewer }) {
  const span = viewer.hover.value;
  if (!span) return null;
  const words = [viewer.sentence(span), durationText(span.duration, viewer.meta.time_unit)];
  if (span.wait_duration !== null) words.push(`host blocked ${durationText(span.wait_duration, viewer.meta.time_unit)}`);
  return (
    <p class="readout">
      {words.join(" · ")}
      {span.name && <bdi> · {span.name.slice(0, 60)}</bdi>}
    </p>
  );
}

/** The picture: a canvas, redrawn at most once per frame when a signal that it depends on has changed. */

import { effect } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { AXIS_HEIGHT, type Layers } from "../draw/scene";
import type { TimelinePainter } from "../draw/timeline";
import type { Viewer } from "../layout/viewer";
import { t } from "../model/language";
import { durationText } from "../model/time";
import { idleSentence } from "../panels/idle_details";
import { kernelSentence } from "../panels/kernel";
import { NoteMarkers } from "../panels/notes";
import { RangeHandles } from "../panels/range";
import { RowLabels, RowScroller } from "../panels/rows";
import { listen } from "./gestures";
import { listenToPrinting } from "./print";
import { isDark } from "./theme";

const LEAST_WIDTH = 80;

interface ChartProps {
  viewer: Viewer;
  painter: TimelinePainter;
  layers: Layers;
}

export function Chart({ viewer, painter, layers }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);

  // Layout effects, and a draw inside the observer: no frame shows a picture of another size than its labels.
  useLayoutEffect(() => {
    const draw = (): void => {
      const { size, theme, isPrinted } = viewer.display;
      const dark = isDark(theme.peek()) && !isPrinted.peek();
      if (canvas.current) painter.draw(canvas.current, size.peek(), dark, layers);
    };
    const measure = ({ width, height }: { width: number; height: number }): void => {
      if (viewer.display.isPrinted.peek()) return;
      viewer.display.size.value = {
        width: Math.max(Math.floor(width), LEAST_WIDTH),
        height: Math.max(Math.floor(height) - AXIS_HEIGHT, 20),
      };
      draw();
    };
    measure(box.current!.getBoundingClientRect());
    const observer = new ResizeObserver(([entry]) => measure(entry!.contentRect));
    observer.observe(box.current!);
    let frame = 0;
    const stop = effect(() => {
      touch(viewer);
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        draw();
      });
    });
    const stopPrinting = listenToPrinting(viewer, draw);
    return () => {
      observer.disconnect();
      stop();
      stopPrinting();
      cancelAnimationFrame(frame);
    };
  }, [viewer, painter, layers]);

  useEffect(() => listen(canvas.current!, viewer), [viewer]);
  const isPrinted = viewer.display.isPrinted.value;
  const size = viewer.display.size.value;
  return (
    <div class="chart" style={isPrinted ? { height: `${size.height + AXIS_HEIGHT}px` } : undefined}>
      <RowLabels viewer={viewer} top={AXIS_HEIGHT} />
      <div class="canvas-box" ref={box}>
        <canvas
          ref={canvas}
          class={viewer.selection.measuring.value ? "measuring" : ""}
          tabIndex={0}
          role="application"
          aria-roledescription={t("pipeline diagram")}
          aria-label={t(
            "Pipeline diagram: a row per rank, time to the right. Arrow keys select the next span, W and S zoom, A and D pan.",
          )}
        />
        <NoteMarkers viewer={viewer} />
        <RangeHandles viewer={viewer} />
        <RowScroller viewer={viewer} top={AXIS_HEIGHT} />
        <Readout viewer={viewer} />
        <EmptyNote viewer={viewer} />
      </div>
    </div>
  );
}

/** Read every signal that the picture depends on, so that the effect runs again when one changes. */
function touch(viewer: Viewer): void {
  void [
    viewer.camera.view.value,
    viewer.display.scroll.value,
    viewer.display.size.value,
    viewer.display.rows.value,
    viewer.display.flags.value,
    viewer.display.ideal.value,
    viewer.display.theme.value,
    viewer.display.hiddenKinds.value,
    viewer.display.causeFilter.value,
    viewer.selection.idle.value,
    viewer.selection.hoverIdle.value,
    viewer.selection.idleChain.value,
    viewer.selection.hover.value,
    viewer.selection.hoverLinks.value,
    viewer.selection.selected.value,
    viewer.selection.kernel.value,
    viewer.kernels.value,
    viewer.hasIdeal.value,
    viewer.selection.chain.value,
    viewer.selection.range.value,
    viewer.search.found.value,
    viewer.notes.all.value,
    viewer.comparison.value,
    viewer.revision.value,
  ];
}

/** Explains an empty picture. */
function EmptyNote({ viewer }: { viewer: Viewer }) {
  const isEmpty = viewer.meta.span_count === 0;
  if (!isEmpty && viewer.display.rows.value.placed.length > 0) return null;
  return (
    <p class="empty-note">
      {isEmpty
        ? t("Nothing was recorded: this run has no spans.")
        : t("Every row is hidden. Show them again under View, or with Shift+H.")}
    </p>
  );
}

/** One line above the picture about the block under the pointer; beside the picture, so that it hides no block. */
function Readout({ viewer }: { viewer: Viewer }) {
  const span = viewer.selection.hover.value;
  const kernel = viewer.selection.hoverKernel.value;
  if (kernel) return <p class="readout">{kernelSentence(kernel, viewer.meta.time_unit)}</p>;
  const idle = viewer.idle.value;
  const gap = viewer.selection.hoverIdle.value;
  if (!span && idle && gap !== null) return <p class="readout">{idleSentence(viewer, idle, gap)}</p>;
  if (!span) return null;
  const words = [viewer.sentence(span), durationText(span.duration, viewer.meta.time_unit)];
  if (span.wait_duration !== null)
    words.push(t`host blocked ${durationText(span.wait_duration, viewer.meta.time_unit)}`);
  return (
    <p class="readout">
      {words.join(" · ")}
      {span.name && <bdi> · {span.name.slice(0, 60)}</bdi>}
    </p>
  );
}

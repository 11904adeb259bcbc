/** The steps as bars of their length, on a common scale: slow ones are seen, and a click goes to one. */

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { drawStepBars, MARK_HEIGHT } from "../draw/step_bars";
import { DARK, LIGHT } from "../draw/theme";
import { barAt, type StepBar, stepBars } from "../layout/step_bars";
import type { Viewer } from "../layout/viewer";
import { t } from "../model/language";
import type { Step } from "../model/meta";
import { countText, durationText, percentText } from "../model/time";
import { IconButton } from "./icons";
import { TEXTS } from "./texts";

const HEIGHT = 56;

interface StepsProps {
  viewer: Viewer;
  isDark: boolean;
}

export function Steps({ viewer, isDark }: StepsProps) {
  const { steps } = viewer.meta;
  const [hovered, setHovered] = useState<StepBar | null>(null);
  const current = Math.max(0, steps.indexOf(viewer.camera.step.value!));
  if (steps.length < 2) return null;
  return (
    <nav class="steps" aria-label={TEXTS.steps}>
      <IconButton name="left" title={t("Previous step ([)")} onClick={() => viewer.camera.moveStep(-1)} />
      <Bars viewer={viewer} isDark={isDark} current={current} hover={setHovered} />
      <input
        type="range"
        class="step-slider"
        aria-label={t("Step")}
        min={0}
        max={steps.length - 1}
        value={current}
        aria-valuetext={stepText(viewer, steps[current]!)}
        onInput={(event) => viewer.camera.goToStep(Number(event.currentTarget.value))}
      />
      <p class="step-caption">
        {hovered ? barText(viewer, hovered) : stepText(viewer, steps[current]!)}
        <span class="quiet">{TEXTS.stepBarsLegend}</span>
      </p>
      <IconButton name="right" title={t("Next step (])")} onClick={() => viewer.camera.moveStep(1)} />
    </nav>
  );
}

interface BarsProps extends StepsProps {
  current: number;
  hover: (bar: StepBar | null) => void;
}

function Bars({ viewer, isDark, current, hover }: BarsProps) {
  const { steps, time_unit } = viewer.meta;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const laid = useMemo(() => stepBars(steps, width), [steps, width]);
  useLayoutEffect(() => {
    const measure = (): void => setWidth(canvas.current!.parentElement!.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(canvas.current!.parentElement!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    canvas.current!.width = Math.round(width * ratio);
    canvas.current!.height = Math.round(HEIGHT * ratio);
    const pen = canvas.current!.getContext("2d")!;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawStepBars(pen, laid, { width, height: HEIGHT }, current, isDark ? DARK : LIGHT);
  }, [laid, width, current, isDark]);
  const at = (event: MouseEvent): StepBar | undefined => {
    const box = canvas.current!.getBoundingClientRect();
    return barAt(laid.bars, box.width, event.clientX - box.left);
  };
  return (
    <div class="step-bars">
      {laid.top_ns > 0 && (
        <span class="step-scale" style={{ top: `${MARK_HEIGHT - 7}px` }}>
          {durationText(laid.top_ns, time_unit)}
        </span>
      )}
      <div class="step-canvas">
        <canvas
          ref={canvas}
          style={{ height: `${HEIGHT}px` }}
          role="img"
          aria-label={TEXTS.stepBarsOf(countText(steps.length))}
          onMouseMove={(event) => hover(at(event) ?? null)}
          onMouseLeave={() => hover(null)}
          onClick={(event) => viewer.camera.goToStep(at(event)?.shown ?? current)}
        />
      </div>
    </div>
  );
}

function barText(viewer: Viewer, bar: StepBar): string {
  const { steps } = viewer.meta;
  const shown = stepText(viewer, steps[bar.shown]!);
  if (bar.first === bar.last) return shown;
  return `${shown} · ${TEXTS.slowestOf(String(steps[bar.first]!.step), String(steps[bar.last]!.step))}`;
}

/** What is known of a step, in one line. */
export function stepText(viewer: Viewer, step: Step): string {
  const unit = viewer.meta.time_unit;
  const name = String(step.step);
  if (step.window_ns === null) return TEXTS.step(name);
  const length = durationText(step.window_ns, unit);
  const parts = [
    step.bubble_fraction === null
      ? TEXTS.stepLength(name, length)
      : TEXTS.stepLengthAndBubble(name, length, percentText(step.bubble_fraction)),
  ];
  if (step.excess_ns !== null) parts.push(TEXTS.longerThanUsual(durationText(step.excess_ns, unit)));
  if (step.in_totals === false) parts.push(TEXTS.notInTotals);
  return parts.join(" · ");
}

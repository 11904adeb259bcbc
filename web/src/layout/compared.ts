/** The second run of a comparison: one that came with the page, one opened from a file, or another step of this run. */

import { batch, effect } from "@preact/signals";
import { type Comparison, compareSteps } from "../model/compare";
import { learn, t } from "../model/language";
import { TooManyError } from "../model/source";
import type { Viewer } from "./viewer";

/** Whether a second run came with this one. */
export function broughtOther(viewer: Viewer): boolean {
  return viewer.meta.sections.includes("comparison");
}

/** Show the second run that came with this one, or end the comparison. */
export async function showOther(viewer: Viewer, isShown: boolean): Promise<void> {
  viewer.isOtherShown.value = isShown;
  if (!isShown) {
    viewer.comparison.value = null;
    return;
  }
  const { source } = viewer;
  const step = viewer.camera.step.peek();
  // Not if in the meantime the comparison was ended, another version came, or another step is in view.
  const isWanted = (): boolean =>
    viewer.isOtherShown.peek() &&
    viewer.source === source &&
    !(source.isComparedByStep && viewer.camera.step.peek() !== step);
  // Without a subscription: effects call this.
  viewer.comparing.value = viewer.comparing.peek() + 1;
  try {
    if (source.loadsComparison) await nextFrame();
    const comparison = await source.comparison(step);
    if (!isWanted()) return;
    learn(comparison?.meta.translations);
    viewer.comparison.value = comparison;
  } catch (problem) {
    if (!isWanted()) return;
    viewer.comparison.value = null;
    viewer.problem.value =
      problem instanceof TooManyError
        ? t(
            "This step has too many spans to show how each has changed. What changed in all is beside the picture.",
          )
        : t`These runs cannot be compared. ${problem instanceof Error ? problem.message : String(problem)}`;
  } finally {
    viewer.comparing.value = viewer.comparing.peek() - 1;
  }
}

/** Wait until what was rendered before is on the screen. */
function nextFrame(): Promise<void> {
  return new Promise((go) => requestAnimationFrame(() => setTimeout(go, 0)));
}

/** Compare every step that comes into view, of runs that are too large as a whole; the returned function ends this. */
export function followComparedStep(viewer: Viewer): () => void {
  return effect(() => {
    const step = viewer.camera.step.value;
    const isFollowed = viewer.isOtherShown.value && viewer.source.isComparedByStep;
    if (isFollowed && step?.step !== viewer.comparison.peek()?.onlyStep) void showOther(viewer, true);
  });
}

/** Compare again as before, after another version of the run was shown, in which spans have other numbers. */
export async function renewComparison(viewer: Viewer, before: Comparison | null): Promise<void> {
  if (viewer.isOtherShown.peek()) await showOther(viewer, true);
  else if (before?.steps) await showSteps(viewer, ...before.steps);
  else if (before) viewer.notify(t("the comparison has ended, because this run has changed"));
}

/** Compare with an opened run, or with none; links do not restore it. */
export function compareWith(viewer: Viewer, comparison: Comparison | null): void {
  learn(comparison?.meta.translations);
  batch(() => {
    viewer.isOtherShown.value = false;
    viewer.comparison.value = comparison;
  });
}

/** Compare a step with another of this run, and go to it; false if one of them does not exist. */
export async function showSteps(viewer: Viewer, own: number, before: number): Promise<boolean> {
  const [step, other] = [own, before].map((wanted) => viewer.meta.steps.find((one) => one.step === wanted));
  if (!step || !other) return false;
  try {
    const spans = await Promise.all([viewer.source.stepSpans(step), viewer.source.stepSpans(other)]);
    compareWith(viewer, compareSteps(viewer.meta, spans, [step, other]));
    return true;
  } catch (problem) {
    viewer.problem.value = t`These steps cannot be compared. ${problem instanceof Error ? problem.message : String(problem)}`;
    return false;
  }
}

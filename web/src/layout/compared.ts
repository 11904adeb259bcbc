/** The second run of a comparison: embedded in the page, opened from a file, or another step of the same run. */

import { batch } from "@preact/signals";
import { type Comparison, compareSteps } from "../model/compare";
import { t } from "../model/language";
import type { Viewer } from "./viewer";

/** Whether the page embeds a second run. */
export function broughtOther(viewer: Viewer): boolean {
  return viewer.meta.sections.includes("comparison");
}

/** Show the embedded second run, or end the comparison. */
export async function showOther(viewer: Viewer, isShown: boolean): Promise<void> {
  viewer.isOtherShown.value = isShown;
  if (!isShown) {
    viewer.comparison.value = null;
    return;
  }
  try {
    const comparison = await viewer.source.comparison();
    // Not if the user has ended the comparison in the meantime.
    if (viewer.isOtherShown.peek()) viewer.comparison.value = comparison;
  } catch (problem) {
    viewer.problem.value = t`These runs cannot be compared. ${problem instanceof Error ? problem.message : String(problem)}`;
  }
}

/** Compare with an opened run, or with none; links do not restore it. */
export function compareWith(viewer: Viewer, comparison: Comparison | null): void {
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

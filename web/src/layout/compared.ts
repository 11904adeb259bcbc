/** The run that another one is compared with: the one that its page brought, or one that was opened. */

import { batch } from "@preact/signals";

import type { Comparison } from "../model/compare";
import type { Viewer } from "./viewer";

/** Whether the page brought a second run, to be compared with its own. */
export function broughtOther(viewer: Viewer): boolean {
  return viewer.meta.sections.includes("comparison");
}

/** Lay the run that the page brought under its own, or end the comparison. */
export async function showOther(viewer: Viewer, isShown: boolean): Promise<void> {
  viewer.isOtherShown.value = isShown;
  if (!isShown) {
    viewer.comparison.value = null;
    return;
  }
  try {
    const comparison = await viewer.source.comparison();
    // Not if something else was chosen meanwhile.
    if (viewer.isOtherShown.peek()) viewer.comparison.value = comparison;
  } catch (problem) {
    viewer.problem.value = `These runs cannot be compared. ${problem instanceof Error ? problem.message : String(problem)}`;
  }
}

/** Compare with a run that was opened, or with none; a link cannot bring it back. */
export function compareWith(viewer: Viewer, comparison: Comparison | null): void {
  batch(() => {
    viewer.isOtherShown.value = false;
    viewer.comparison.value = comparison;
  });
}

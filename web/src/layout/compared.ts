/** The second run of a comparison: embedded in the page, or opened from a file. */

import { batch } from "@preact/signals";

import type { Comparison } from "../model/compare";
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
    viewer.problem.value = `These runs cannot be compared. ${problem instanceof Error ? problem.message : String(problem)}`;
  }
}

/** Compare with an opened run, or with none; links do not restore it. */
export function compareWith(viewer: Viewer, comparison: Comparison | null): void {
  batch(() => {
    viewer.isOtherShown.value = false;
    viewer.comparison.value = comparison;
  });
}

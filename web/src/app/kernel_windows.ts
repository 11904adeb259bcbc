/** Kernels of a run with too many for one section: those around the view are asked for once they can be seen. */

import { effect } from "@preact/signals";

import { showsKernels } from "../layout/bands";
import { rowsOnScreen } from "../layout/rows";
import { length } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import { Kernels } from "../model/kernels";
import { TooManyError } from "../model/source";

interface KernelWindow {
  start: number;
  end: number;
  rows: number[];
}

/** Keep `viewer.kernels` around the view; returns what ends this. Does nothing for other runs. */
export function followKernels(viewer: Viewer): () => void {
  const facts = viewer.meta.kernels;
  if (!facts) return () => {};
  let asked: KernelWindow | null = null;
  return effect(() => {
    const view = viewer.camera.view.value;
    const { width } = viewer.display.size.value;
    const screen = viewer.display.screen();
    if (!showsKernels(facts.typical_ns, length(view) / width)) return;
    const shown = rowsOnScreen(screen)
      .flat()
      .map((row) => row.row);
    if (shown.length === 0 || (asked && covers(asked, view.start, view.end, shown))) return;
    const wanted = { start: view.start - length(view), end: view.end + length(view), rows: shown };
    asked = wanted;
    viewer.source.kernels(wanted.start, wanted.end, wanted.rows).then(
      (table) => {
        if (asked === wanted) viewer.kernels.value = table && new Kernels(table, facts);
      },
      (problem: unknown) => {
        if (asked === wanted) asked = null;
        if (problem instanceof TooManyError) viewer.notify(problem.message);
        else viewer.problem.value = problem instanceof Error ? problem.message : String(problem);
      },
    );
  });
}

function covers(held: KernelWindow, start: number, end: number, rows: number[]): boolean {
  return held.start <= start && end <= held.end && rows.every((row) => held.rows.includes(row));
}

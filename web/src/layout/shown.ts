/** Converts the state of the viewer to the state in a link, and back. */

import { batch } from "@preact/signals";

import { broughtOther, showOther, showSteps } from "./compared";
import { DEFAULT_FLAGS } from "./display";
import type { Shown } from "./hash";
import type { Flag } from "./hit";
import { hold } from "./view";
import type { Viewer } from "./viewer";

/** Return the state for a link; the initial view is omitted. */
export function shownOf(viewer: Viewer): Shown {
  const first = viewer.camera.firstView();
  const view = viewer.camera.view.value;
  const flags = [...viewer.display.flags.value].sort();
  const hidden = viewer.meta.kinds.filter((kind) => viewer.display.hiddenKinds.value.has(kind.code));
  return {
    view: view.start === first.start && view.end === first.end ? null : view,
    rows: viewer.display.rowChoice.value,
    query: viewer.search.query.value,
    selected: viewer.selection.selected.value?.id ?? null,
    range: viewer.selection.range.value,
    hiddenKinds: hidden.map((kind) => kind.name),
    cause: viewer.display.causeFilter.value ?? "",
    scroll: viewer.display.scroll.value,
    ideal: viewer.display.ideal.value,
    flags: flags.join(".") === [...DEFAULT_FLAGS].sort().join(".") ? [] : flags.length ? flags : ["nothing"],
    pitch: viewer.display.pitchChoice.value,
    theme: viewer.display.theme.value,
    panel: viewer.display.panel.value,
    isCompared: !broughtOther(viewer) || viewer.isOtherShown.value,
    interval: viewer.selection.idle.value ?? viewer.wantedInterval.value,
    notes: viewer.notes.stated.value,
    steps: viewer.comparison.value?.steps ?? null,
  };
}

/** Restore the state of a link; rows and kinds that the run lacks are ignored. */
export async function restore(viewer: Viewer, shown: Shown): Promise<void> {
  const known = (row: number): boolean => row < viewer.meta.ranks.rank.length;
  batch(() => {
    viewer.camera.view.value = shown.view
      ? hold({ ...shown.view }, viewer.camera.bounds)
      : viewer.camera.firstView();
    const { pinned, hidden } = shown.rows;
    viewer.display.rowChoice.value = {
      ...shown.rows,
      pinned: pinned.filter(known),
      hidden: hidden.filter(known),
    };
    const without = viewer.meta.kinds.filter((kind) => shown.hiddenKinds.includes(kind.name));
    viewer.display.hiddenKinds.value = new Set(without.map((kind) => kind.code));
    viewer.display.causeFilter.value = shown.cause || null;
    viewer.display.scroll.value = shown.scroll;
    viewer.display.ideal.value = shown.ideal;
    const flags = shown.flags.length
      ? (shown.flags.filter((flag) => flag !== "nothing") as Flag[])
      : DEFAULT_FLAGS;
    viewer.display.flags.value = new Set(flags);
    viewer.display.pitchChoice.value = shown.pitch;
    viewer.display.theme.value = shown.theme;
    viewer.display.panel.value = shown.panel;
    if (shown.notes) viewer.notes.all.value = [...shown.notes].sort((a, b) => a.time - b.time);
  });
  if (broughtOther(viewer) && viewer.isOtherShown.peek() !== shown.isCompared) {
    const compared = showOther(viewer, shown.isCompared);
    if (!viewer.source.loadsComparison) await compared;
  }
  await viewer.search.run(shown.query);
  await viewer.selection.setRange(shown.range && { ...shown.range, rows: shown.range.rows.filter(known) });
  await viewer.select(shown.selected);
  await viewer.wantInterval(shown.interval);
  if (shown.steps && (await showSteps(viewer, ...shown.steps)) && !shown.view)
    viewer.camera.goToStep(viewer.meta.steps.findIndex((step) => step.step === shown.steps![0]));
}

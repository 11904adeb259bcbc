/** From the state of the viewer to what a link holds, and back. */

import { batch } from "@preact/signals";

import { broughtOther, showOther } from "./compared";
import type { Shown } from "./hash";
import { hold } from "./view";
import { FLAGS_AT_FIRST, type Flag, type Viewer } from "./viewer";

/** Return what a link should bring back; the first view of a run needs none. */
export function shownOf(viewer: Viewer): Shown {
  const first = viewer.firstView();
  const view = viewer.view.value;
  const flags = [...viewer.flags.value].sort();
  const hidden = viewer.meta.kinds.filter((kind) => viewer.hiddenKinds.value.has(kind.code));
  return {
    view: view.start === first.start && view.end === first.end ? null : view,
    rows: viewer.rowChoice.value,
    query: viewer.query.value,
    selected: viewer.selected.value?.id ?? null,
    range: viewer.range.value,
    hiddenKinds: hidden.map((kind) => kind.name),
    waits: [...(viewer.waitFilter.value ?? [])],
    scroll: viewer.scroll.value,
    ideal: viewer.ideal.value,
    flags: flags.join(".") === [...FLAGS_AT_FIRST].sort().join(".") ? [] : flags.length ? flags : ["nothing"],
    pitch: viewer.pitchChoice.value,
    theme: viewer.theme.value,
    panel: viewer.panel.value,
    isCompared: !broughtOther(viewer) || viewer.isOtherShown.value,
  };
}

/** Bring back what a link holds, as far as the run has it. */
export async function restore(viewer: Viewer, shown: Shown): Promise<void> {
  const known = (row: number): boolean => row < viewer.meta.ranks.rank.length;
  batch(() => {
    viewer.view.value = shown.view ? hold({ ...shown.view }, viewer.bounds) : viewer.firstView();
    const { pinned, hidden } = shown.rows;
    viewer.rowChoice.value = { ...shown.rows, pinned: pinned.filter(known), hidden: hidden.filter(known) };
    const without = viewer.meta.kinds.filter((kind) => shown.hiddenKinds.includes(kind.name));
    viewer.hiddenKinds.value = new Set(without.map((kind) => kind.code));
    viewer.waitFilter.value = shown.waits.length ? new Set(shown.waits) : null;
    viewer.scroll.value = shown.scroll;
    viewer.ideal.value = shown.ideal;
    const flags = shown.flags.length ? (shown.flags.filter((flag) => flag !== "nothing") as Flag[]) : FLAGS_AT_FIRST;
    viewer.flags.value = new Set(flags);
    viewer.pitchChoice.value = shown.pitch;
    viewer.theme.value = shown.theme;
    viewer.panel.value = shown.panel;
  });
  if (broughtOther(viewer) && viewer.isOtherShown.peek() !== shown.isCompared) await showOther(viewer, shown.isCompared);
  await viewer.search(shown.query);
  await viewer.setRange(shown.range && { ...shown.range, rows: shown.range.rows.filter(known) });
  await viewer.select(shown.selected);
}

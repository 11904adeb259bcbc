/** What the legend lists: kinds and waits of the layers that are shown, and notes. */

import { ofData, t } from "../model/language";
import { type Kind, LANES, type Wait } from "../model/meta";
import { waitNamed } from "./colors";
import type { Viewer } from "./viewer";

/** With more spans per rank and step, they are narrow where a step fills the width. */
const MANY_SPANS = 150;

/** Kinds of the lanes that are shown, hidden ones too. */
export function legendKinds(viewer: Viewer): Kind[] {
  const flags = viewer.display.flags.value;
  return viewer.meta.kinds.filter(
    (kind) =>
      kind.lane === LANES[0] ||
      (kind.lane === LANES[1] && flags.has("comm")) ||
      (kind.lane === LANES[2] && flags.has("host")),
  );
}

/** What idle intervals wait for, if they are shown. */
export function legendWaits(viewer: Viewer): Wait[] {
  if (!viewer.display.flags.value.has("idle")) return [];
  return (viewer.meta.idle_waits ?? []).map((name) => waitNamed(viewer.meta, name));
}

export function waitText(wait: Wait): string {
  return wait.name === "nothing" ? t("end of the step") : ofData(wait.name.replaceAll("_", " "));
}

export function kindText(kind: Kind): string {
  return ofData(kind.name.replaceAll("_", " "));
}

/** How chunks, narrow spans and the ideal schedule are drawn; none where they are not. */
export function legendNotes(viewer: Viewer, chunkCount: number): string[] {
  const notes = chunkCount > 1 ? [t`chunks 0 to ${chunkCount - 1}: dark to light`] : [];
  const { span_count, ranks, steps } = viewer.meta;
  // Decided by the run, not by the view: a legend that changes while zooming would move the picture.
  if (span_count > MANY_SPANS * ranks.rank.length * Math.max(steps.length, 1))
    notes.push(t("narrow spans: kinds by their share"));
  const ideal = viewer.display.ideal.value;
  if (ideal !== "off" && viewer.meta.sections.includes("ideal") && !viewer.comparison.value)
    notes.push(ideal === "under" ? t("upper half: measured, lower half: ideal") : t("dashed: ideal"));
  return notes;
}

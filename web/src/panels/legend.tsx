/** Kinds with color, texture and letter; a click hides or shows one. */

import { useComputed } from "@preact/signals";
import { deltaColor, FULL_DELTA } from "../draw/blocks";
import { chunkColor, contrast, textColor } from "../layout/colors";
import { kindText, legendKinds, legendNotes, legendWaits, waitText } from "../layout/legend";
import { length } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import type { Comparison } from "../model/compare";
import { ofData, t } from "../model/language";
import { isAction, type Kind, LANES, type Wait } from "../model/meta";
import { fixed } from "../model/time";
import { TEXTS } from "./texts";

export function Legend({ viewer, chunkCount }: { viewer: Viewer; chunkCount: number }) {
  const waits = legendWaits(viewer);
  const flags = viewer.display.flags.value;
  const notes = legendNotes(viewer, chunkCount);
  return (
    <ul class="legend" aria-label={t("Legend")}>
      {legendKinds(viewer).map((kind) => (
        <li key={kind.code}>
          <button
            type="button"
            title={`${ofData(kind.meaning)} ${t("Click to hide or show.")}`}
            aria-pressed={!viewer.display.hiddenKinds.value.has(kind.code)}
            onClick={() => viewer.display.toggleKind(kind.code)}
          >
            <Swatch kind={kind} shades={isAction(kind) ? chunkCount : 1} />
            {kindText(kind)}
          </button>
        </li>
      ))}
      {notes.map((note) => (
        <li class="note" key={note}>
          {note}
        </li>
      ))}
      {isComparing(viewer) && <li class="note">{t("Comparing with the other run …")}</li>}
      {viewer.comparison.value && <Delta viewer={viewer} comparison={viewer.comparison.value} />}
      {flags.has("waits") && hasWaits(viewer) && (
        <li class="note">
          <span class="swatch wait" aria-hidden="true" />
          {t("waits for a transfer")}
        </li>
      )}
      {waits.length > 0 && (
        <li>
          <ul class="causes" aria-label={t("Idle intervals")}>
            <li class="note">{t("idle, waiting for:")}</li>
            {waits.map((wait) => (
              <WaitKey key={wait.name} wait={wait} />
            ))}
          </ul>
        </li>
      )}
    </ul>
  );
}

function WaitKey({ wait }: { wait: Wait }) {
  const { color, texture, label } = wait;
  return (
    <li class="note" title={t`idle, waiting for ${ofData(label)}`}>
      <svg class="swatch" viewBox="0 0 22 12" aria-hidden="true">
        <rect width="22" height="12" fill="none" stroke={color} />
        <path d={TEXTURE_PATHS[texture]} stroke={color} fill="none" />
      </svg>
      {waitText(wait)}
    </li>
  );
}

function Delta({ viewer, comparison }: { viewer: Viewer; comparison: Comparison }) {
  // Of the local server's blocks of several spans, no change is known.
  const isBinned = useComputed(() => {
    const perPixel = length(viewer.camera.view.value) / viewer.display.size.value.width;
    return viewer.source.isBinned(perPixel);
  });
  if (comparison.stages)
    return (
      <li class="note">{TEXTS.stagesDiffer(String(comparison.stages[0]), String(comparison.stages[1]))}</li>
    );
  const most = fixed(100 * FULL_DELTA, 0);
  const ends = [-FULL_DELTA, 0, FULL_DELTA].map(deltaColor);
  return (
    <li class="note">
      <span class="delta-scale">
        {TEXTS.faster(most)}
        <span
          class="delta"
          aria-hidden="true"
          style={{ background: `linear-gradient(90deg, ${ends.join(", ")})` }}
        />
        {TEXTS.slower(most)}
      </span>{" "}
      {comparedWith(comparison)}
      {isBinned.value && ` · ${TEXTS.zoomForChanges}`}
    </li>
  );
}

function comparedWith({ steps, onlyStep }: Comparison): string {
  if (steps) return TEXTS.thanInStep(String(steps[1]));
  return onlyStep === null ? TEXTS.thanInOtherRun : TEXTS.thanInSameStep(String(onlyStep));
}

/** All shades side by side, with the letter and texture of the spans. */
export function Swatch({ kind, shades }: { kind: Kind; shades: number }) {
  // The first shade is wide enough for the letter, the others share the rest.
  const first = shades > 1 ? 13 : 22;
  const width = (22 - first) / Math.max(shades - 1, 1);
  const colors = Array.from({ length: shades }, (_, chunk) => chunkColor(kind.color, chunk, shades));
  const strokes = TEXTURE_PATHS[kind.texture];
  const isLight = contrast(kind.color, "#ffffff") < 3;
  return (
    <svg class="swatch" viewBox="0 0 22 14" aria-hidden="true">
      {colors.map((color, chunk) => (
        <rect
          key={chunk}
          x={chunk && first + (chunk - 1) * width}
          width={chunk ? width : first}
          height="14"
          fill={color}
        />
      ))}
      {strokes && (
        <path
          d={strokes}
          stroke={isLight ? "#1a1a1a" : "#fff"}
          stroke-opacity={isLight ? 0.25 : 0.34}
          fill="none"
        />
      )}
      <text
        x={first / 2}
        y="10.5"
        text-anchor="middle"
        font-size="10"
        font-weight="600"
        fill={textColor(kind.color)}
      >
        {kind.letter}
      </text>
    </svg>
  );
}

const TEXTURE_PATHS: Record<string, string> = {
  rising: "M-2 6 6 -2M0 12 12 0M4 16 20 0M12 16 26 2",
  falling: "M-2 8l8 8M0 2l14 14M6 0l16 16M14 0l10 10",
  dots: "M2 3h1.6M8 3h1.6M14 3h1.6M20 3h1.6M2 10h1.6M8 10h1.6M14 10h1.6M20 10h1.6",
  cross: "M0 12 12 0M4 16 20 0M0 2l14 14M6 0l16 16",
  bars: "M3 0v14M9 0v14M15 0v14M21 0v14",
};

/** Whether the first comparison with the other run is being made. */
function isComparing({ comparing, comparison }: Viewer): boolean {
  return comparing.value > 0 && comparison.value === null;
}

function hasWaits(viewer: Viewer): boolean {
  return viewer.meta.kinds.some((kind) => kind.lane === LANES[1]);
}

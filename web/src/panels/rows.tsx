/** Labels of the rows, beside the picture; each can be pinned and hidden. */

import {
  HEADING_HEIGHT,
  type PlacedRow,
  pinnedHeight,
  type RowScreen,
  type Rows,
  rowLabel,
  rowsOnScreen,
  screenTop,
  stageLabel,
} from "../layout/rows";
import type { Viewer } from "../layout/viewer";
import { t } from "../model/language";
import { IconButton } from "./icons";

const BUTTONS_HEIGHT = 20;
const LABEL_HEIGHT = 13;

export function RowLabels({ viewer, top }: { viewer: Viewer; top: number }) {
  const screen = viewer.display.screen();
  const { rows, scroll, height } = screen;
  const fixed = pinnedHeight(screen);
  const [pinned, others] = rowsOnScreen(screen);
  const part = { viewer, screen, rows };
  return (
    <div
      class="row-labels"
      style={{ paddingTop: `${top}px` }}
      onWheel={(event) => viewer.display.setScroll(scroll + event.deltaY)}
    >
      {fixed > 0 && <Labels {...part} shown={pinned} first={0} top={0} height={fixed} />}
      <Labels
        {...part}
        shown={others}
        first={rows.placed.indexOf(others[0]!)}
        top={fixed}
        height={height - fixed}
      />
    </div>
  );
}

interface LabelsProps {
  viewer: Viewer;
  screen: RowScreen;
  rows: Rows;
  shown: PlacedRow[];
  /** Place of the first one among all rows: of very low rows, only some have a label. */
  first: number;
  /** The part of the screen, below the axis. */
  top: number;
  height: number;
}

function Labels({ viewer, screen, rows, shown, first, top, height }: LabelsProps) {
  const every = Math.max(1, Math.ceil(LABEL_HEIGHT / viewer.display.pitch.value));
  const isPinned = (at: number): boolean => at < pinnedHeight(screen);
  const headings = rows.headings
    .filter((heading) => isPinned(heading.top) === isPinned(top))
    .map((heading) => ({ ...heading, at: screenTop(screen, heading.top) - top }))
    .filter(({ at }) => at > -HEADING_HEIGHT && at < height);
  return (
    <div class="row-window" style={{ height: `${height}px` }}>
      {headings.map(({ text, at, top: key }) => (
        <div key={`${key}`} class="heading" style={{ top: `${at}px`, height: `${HEADING_HEIGHT}px` }}>
          {text}
        </div>
      ))}
      {shown.map(
        (row, i) =>
          (first + i) % every === 0 && (
            <div
              key={row.row}
              class={row.pinned ? "row-label pinned" : "row-label"}
              style={{
                top: `${screenTop(screen, row.top) - top}px`,
                height: `${Math.max(row.height, LABEL_HEIGHT)}px`,
              }}
            >
              <span class="rank">{rowLabel(viewer.meta, row.row)}</span>
              {row.height >= 30 && <span class="stage">{stageLabel(viewer.meta, row.row)}</span>}
              {row.height >= BUTTONS_HEIGHT && <RowButtons viewer={viewer} row={row} />}
            </div>
          ),
      )}
    </div>
  );
}

function RowButtons({ viewer, row }: { viewer: Viewer; row: PlacedRow }) {
  return (
    <span class="row-buttons">
      <IconButton
        name="pin"
        title={t`Pin rank ${viewer.meta.ranks.rank[row.row]} (P)`}
        pressed={row.pinned}
        onClick={() => viewer.display.pin(row.row)}
      />
      <IconButton
        name="hide"
        title={t`Hide rank ${viewer.meta.ranks.rank[row.row]} (H)`}
        onClick={() => viewer.display.hide(row.row)}
      />
    </span>
  );
}

/** A slim bar at the right edge where the rows do not fit. */
export function RowScroller({ viewer, top }: { viewer: Viewer; top: number }) {
  const whole = viewer.display.rows.value.height;
  const { height } = viewer.display.size.value;
  if (whole <= height) return null;
  return (
    <div
      class="row-scroller"
      style={{ top: `${top}px`, height: `${height}px` }}
      tabIndex={0}
      role="region"
      aria-label={t("Scroll the rows")}
      onScroll={(event) => viewer.display.setScroll(event.currentTarget.scrollTop)}
      ref={(element) => {
        if (element && Math.abs(element.scrollTop - viewer.display.scroll.value) > 1)
          element.scrollTop = viewer.display.scroll.value;
      }}
    >
      <div style={{ height: `${whole}px` }} />
    </div>
  );
}

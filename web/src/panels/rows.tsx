/** Labels of the rows, beside the picture; each can be pinned and hidden. */

import { HEADING_HEIGHT, rowLabel, stageLabel, visibleRows } from "../layout/rows";
import type { Viewer } from "../layout/viewer";
import { IconButton } from "./icons";

const BUTTONS_HEIGHT = 20;
const LABEL_HEIGHT = 13;

export function RowLabels({ viewer, top }: { viewer: Viewer; top: number }) {
  const rows = viewer.display.rows.value;
  const scroll = viewer.display.scroll.value;
  const { height } = viewer.display.size.value;
  const [first, last] = visibleRows(rows, scroll, scroll + height);
  const every = Math.max(1, Math.ceil(LABEL_HEIGHT / viewer.display.pitch.value));
  return (
    <div
      class="row-labels"
      style={{ paddingTop: `${top}px` }}
      onWheel={(event) => viewer.display.setScroll(scroll + event.deltaY)}
    >
      <div class="row-window" style={{ height: `${height}px` }}>
        {rows.headings
          .filter((heading) => heading.top > scroll - HEADING_HEIGHT && heading.top < scroll + height)
          .map((heading) => (
            <div
              key={`${heading.top}`}
              class="heading"
              style={{ top: `${heading.top - scroll}px`, height: `${HEADING_HEIGHT}px` }}
            >
              {heading.text}
            </div>
          ))}
        {rows.placed.slice(first, last).map(
          (row, i) =>
            (first + i) % every === 0 && (
              <div
                key={row.row}
                class={row.pinned ? "row-label pinned" : "row-label"}
                style={{ top: `${row.top - scroll}px`, height: `${Math.max(row.height, LABEL_HEIGHT)}px` }}
              >
                <span class="rank">{rowLabel(viewer.meta, row.row)}</span>
                {row.height >= 30 && <span class="stage">{stageLabel(viewer.meta, row.row)}</span>}
                {row.height >= BUTTONS_HEIGHT && (
                  <span class="row-buttons">
                    <IconButton
                      name="pin"
                      title={`Pin rank ${viewer.meta.ranks.rank[row.row]} (P)`}
                      pressed={row.pinned}
                      onClick={() => viewer.display.pin(row.row)}
                    />
                    <IconButton
                      name="hide"
                      title={`Hide rank ${viewer.meta.ranks.rank[row.row]} (H)`}
                      onClick={() => viewer.display.hide(row.row)}
                    />
                  </span>
                )}
              </div>
            ),
        )}
      </div>
    </div>
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
      aria-label="Scroll the rows"
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

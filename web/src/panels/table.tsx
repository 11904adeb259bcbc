/** The spans in view as a table. */

import { length } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import { kindsByCode } from "../model/meta";
import type { Span } from "../model/source";
import { countText, durationText } from "../model/time";

const MOST = 200;
const TEXTS = new Set(["kind", "name"]);

export function VisibleTable({ viewer }: { viewer: Viewer }) {
  const { spans, count } = visibleSpans(viewer);
  const kinds = kindsByCode(viewer.meta.kinds);
  const unit = viewer.meta.time_unit;
  return (
    <section class="visible-table" aria-label="Visible spans" tabIndex={0}>
      <table class="figures">
        <caption>
          {count > spans.length
            ? `The first ${countText(spans.length)} of ${countText(count)} spans in view; zoom in for the others.`
            : `${countText(count)} spans in view`}
        </caption>
        <thead>
          <tr>
            {[
              "rank",
              "kind",
              "step",
              "stage",
              "chunk",
              "micro-batch",
              "start",
              "duration",
              "blocked",
              "name",
            ].map((name) => (
              <th key={name} scope="col" class={TEXTS.has(name) ? "text" : ""}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {spans.map((span) => (
            <tr
              key={span.id}
              aria-selected={viewer.selection.selected.value?.id === span.id}
              onClick={() => void viewer.select(span.id, true)}
            >
              <td>{viewer.meta.ranks.rank[span.row]}</td>
              <td class="text">{kinds[span.kind]?.name.replaceAll("_", " ")}</td>
              <td>{span.step}</td>
              <td>{span.stage}</td>
              <td>{span.chunk}</td>
              <td>{span.microbatch}</td>
              <td>{durationText(span.start, unit)}</td>
              <td>{durationText(span.duration, unit)}</td>
              <td>{span.wait_duration === null ? "" : durationText(span.wait_duration, unit)}</td>
              <td class="text">{span.name?.slice(0, 80)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function visibleSpans(viewer: Viewer): { spans: Span[]; count: number } {
  const view = viewer.camera.view.value;
  const flags = viewer.display.flags.value;
  const rows = viewer.display.rows.value.placed.map((one) => one.row);
  const tiles = viewer.source.loaded({
    ...view,
    rows,
    ns_per_pixel: length(view) / viewer.display.size.value.width,
  });
  const lanes = [0, ...(flags.has("comm") ? [1] : []), ...(flags.has("host") ? [2] : [])];
  const spans: Span[] = [];
  let count = 0;
  for (const tile of tiles)
    for (const row of rows)
      for (const lane of tile.spans.isBinned ? [] : lanes) {
        const [from, to] = tile.spans.track(row, lane);
        for (
          let i = tile.spans.firstReaching(view.start, from, to);
          i < to && tile.spans.start[i]! < view.end;
          i++
        ) {
          if (viewer.display.hiddenKinds.value.has(tile.spans.kind[i]!) || tile.spans.end(i) < view.start)
            continue;
          if (count++ < MOST) spans.push(tile.spans.span(i));
        }
      }
  return { spans, count };
}

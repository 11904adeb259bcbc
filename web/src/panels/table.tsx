/** A table of spans, idle intervals or actions: sorted, filtered and copied, with exact times; each row is a link. */

import { useMemo, useState } from "preact/hooks";
import {
  arranged,
  type Cell,
  type Column,
  furthestFromIdeal,
  type Listing,
  longestIdle,
  queryListing,
  spansInView,
  type TableRow,
  tableText,
} from "../layout/table_rows";
import type { Viewer } from "../layout/viewer";
import { EmbeddedSource } from "../model/embedded";
import { ofData } from "../model/language";
import { type QueryResult, ServerSource } from "../model/server";
import type { Spans } from "../model/spans";
import { countText, durationText } from "../model/time";
import { TEXTS } from "./texts";

type ListName = "spans" | "idle" | "ideal" | "sql";

interface TableProps {
  viewer: Viewer;
  ideal: Spans | null;
  copy: (text: string) => Promise<boolean>;
}

export function VisibleTable({ viewer, ideal, copy }: TableProps) {
  const [list, setList] = useState<ListName>("spans");
  const [filter, setFilter] = useState("");
  const [order, setOrder] = useState({ by: -1, isFalling: false });
  const [found, setFound] = useState(NOTHING_FOUND);
  const listing = useListing(viewer, list, ideal, found);
  const rows = arranged(listing, filter, order.by, order.isFalling);
  const lists: [ListName, string][] = [["spans", TEXTS.spansInView]];
  if (viewer.idle.value) lists.push(["idle", TEXTS.longestIdle]);
  if (ideal && viewer.source instanceof EmbeddedSource) lists.push(["ideal", TEXTS.furthestFromIdeal]);
  const { source } = viewer;
  if (source instanceof ServerSource) lists.push(["sql", TEXTS.sql]);
  const choose = (name: ListName): void => {
    setList(name);
    setOrder({ by: -1, isFalling: false });
  };
  const copyRows = async (): Promise<void> => {
    const isCopied = await copy(tableText(listing.columns, rows));
    viewer.notify(isCopied ? TEXTS.rowsCopied(countText(rows.length)) : TEXTS.notCopied);
  };
  return (
    <section class="visible-table" aria-label={TEXTS.table} tabIndex={0}>
      <div class="table-tools">
        <div class="choices" role="group" aria-label={TEXTS.list}>
          {lists.map(([name, words]) => (
            <button key={name} type="button" aria-pressed={list === name} onClick={() => choose(name)}>
              {words}
            </button>
          ))}
        </div>
        <input
          type="search"
          placeholder={TEXTS.filterRows}
          aria-label={TEXTS.filterRows}
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
        <button type="button" onClick={() => void copyRows()}>
          {TEXTS.copyRows}
        </button>
      </div>
      {list === "sql" && source instanceof ServerSource && (
        <SqlQuery
          source={source}
          use={(result) => {
            setFound(queryListing(result));
            setOrder({ by: -1, isFalling: false });
          }}
        />
      )}
      <table class="figures">
        <caption>{captionOf(listing, rows.length, list)}</caption>
        <thead>
          <tr>
            {listing.columns.map(({ name, type }, i) => (
              <th
                key={`${i} ${name}`}
                scope="col"
                class={type === "text" ? "text" : ""}
                aria-sort={order.by === i ? (order.isFalling ? "descending" : "ascending") : "none"}
              >
                <button
                  type="button"
                  class="sorter"
                  onClick={() =>
                    setOrder({ by: i, isFalling: order.by === i ? !order.isFalling : type === "ns" })
                  }
                >
                  {type === "ns" && viewer.meta.time_unit === "ns" ? `${ofData(name)} (ns)` : ofData(name)}
                  <span aria-hidden="true">{order.by === i ? (order.isFalling ? " ▾" : " ▴") : ""}</span>
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <Row key={row.key} viewer={viewer} columns={listing.columns} row={row} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Row({ viewer, columns, row }: { viewer: Viewer; columns: Column[]; row: TableRow }) {
  const selected = row.select === "span" ? viewer.selection.selected.value?.id : viewer.selection.idle.value;
  const go = (): void =>
    void (row.select === "span" ? viewer.select(row.key, true) : viewer.selectIdle(row.key, true));
  const cells = row.cells.map((cell, i) => (
    <td key={i} class={columns[i]!.type === "text" ? "text" : ""}>
      {cellText(viewer, columns[i]!, cell)}
    </td>
  ));
  if (row.select === null) return <tr class="plain">{cells}</tr>;
  return (
    <tr
      tabIndex={0}
      aria-selected={selected === row.key}
      onClick={go}
      onKeyDown={(event) => {
        if (event.key === "Enter") go();
      }}
    >
      {cells}
    </tr>
  );
}

/** Lists of the whole run are made once, that of the view with every move. */
function useListing(viewer: Viewer, list: ListName, ideal: Spans | null, found: Listing): Listing {
  const idle = viewer.idle.value;
  const ofRun = useMemo(() => {
    if (list === "sql") return found;
    if (list === "idle") return longestIdle(viewer);
    return list === "ideal" && ideal ? furthestFromIdeal(viewer, ideal) : null;
  }, [viewer, list, ideal, idle, found]);
  return ofRun ?? spansInView(viewer);
}

const NOTHING_FOUND: Listing = { columns: [], rows: [], count: 0 };

/** A query to the server, answered by the table below it, or by one sentence. */
function SqlQuery({ source, use }: { source: ServerSource; use: (found: QueryResult) => void }) {
  const [query, setQuery] = useState<string>(TEXTS.sqlExample);
  const [state, setState] = useState<{ problem: string; isRunning: boolean }>(RESTING);
  const run = async (): Promise<void> => {
    setState({ problem: "", isRunning: true });
    try {
      use(await source.sql(query));
      setState(RESTING);
    } catch (problem) {
      setState({ problem: problem instanceof Error ? problem.message : String(problem), isRunning: false });
    }
  };
  return (
    <form
      class="sql"
      onSubmit={(event) => {
        event.preventDefault();
        void run();
      }}
    >
      <textarea
        rows={3}
        spellcheck={false}
        maxLength={MOST_QUERY}
        aria-label={TEXTS.sqlQuery}
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && event.ctrlKey) void run();
          event.stopPropagation();
        }}
      />
      <p>
        <button type="submit" disabled={state.isRunning}>
          {state.isRunning ? TEXTS.sqlRunning : TEXTS.sqlRun}
        </button>{" "}
        <span class="quiet">{TEXTS.sqlTables}</span>
      </p>
      {state.problem && (
        <p class="bad" role="alert">
          {state.problem}
        </p>
      )}
    </form>
  );
}

const RESTING = { problem: "", isRunning: false };
const MOST_QUERY = 10_000;

function captionOf({ rows, count }: Listing, shown: number, list: ListName): string {
  const all = countText(count);
  const isCut = count > rows.length;
  if (shown < rows.length) return TEXTS.rowsOf(countText(shown), all);
  if (list === "spans") return isCut ? TEXTS.firstOfSpans(countText(shown), all) : TEXTS.spanCount(all);
  return isCut ? TEXTS.largestOf(countText(shown), all) : TEXTS.rowCount(all);
}

function cellText(viewer: Viewer, { type }: Column, cell: Cell): string {
  if (cell === null) return "";
  if (typeof cell === "string") return cell.slice(0, 80);
  if (type !== "ns") return String(cell);
  return viewer.meta.time_unit === "cost" ? durationText(cell, "cost") : countText(cell);
}

/** The dependency links of a page: which actions need which is computed in Python (viewer/links.py) and only looked up here. */

import type { Table } from "./columns";
import { isAction, type Meta } from "./meta";
import type { Links } from "./source";
import type { Spans } from "./spans";

/** Return the links of a span: to its direct neighbors, or all links of its micro-batch. Ids are those of `spans`. */
export function findLinks(spans: Spans, meta: Meta, table: Table, place: number, whole: boolean): Links {
  // Transfers carry a micro-batch too, but only actions have links.
  const kind = meta.kinds.find((one) => one.code === spans.kind[place]);
  if (!isAction(kind)) return { spans: [spans.span(place)], links: [] };
  const [from, to] = [table.ints("from"), table.ints("to")];
  const id = spans.id(place);
  const isSame = whole ? sameMicrobatch(spans, meta, place) : null;
  const links: [number, number][] = [];
  for (let i = 0; i < table.rows; i++)
    if (isSame ? isSame(spans.place(to[i]!)) : from[i] === id || to[i] === id) links.push([from[i]!, to[i]!]);
  const places = new Set([place, ...links.flat().map((one) => spans.place(one))]);
  return { spans: [...places].map((one) => spans.span(one)), links };
}

/** Return a predicate: same micro-batch, step and pipeline as a span. Links never leave these three. */
function sameMicrobatch(spans: Spans, meta: Meta, place: number): (other: number) => boolean {
  const [step, microbatch] = [spans.table.ints("step"), spans.table.ints("microbatch")];
  const { pipeline } = meta.ranks;
  const own = pipeline[spans.row[place]!];
  return (other) =>
    microbatch[other] === microbatch[place] &&
    step[other] === step[place] &&
    pipeline[spans.row[other]!] === own;
}

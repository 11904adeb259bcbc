/** What is behind an idle interval: the span that it waited for, the interval that delayed this one, and so on. */

import type { IdleIntervals } from "../model/idle";
import type { Links, Source, Span } from "../model/source";

/** An idle interval, and the span that its rank waited for. */
export interface Hop {
  place: number;
  span: Span;
}

export interface IdleChain {
  hops: Hop[];
  /** The span that delayed the first interval most; null: none. */
  culprit: Span | null;
}

const MOST_HOPS = 8;

/** Return the chain of an interval, back to its culprit or the start of the step. */
export async function followIdle(idle: IdleIntervals, source: Source, place: number): Promise<IdleChain> {
  const hops: Hop[] = [];
  const culprit = idle.culprit(place);
  for (let at = place; at >= 0 && hops.length < MOST_HOPS; ) {
    const id = idle.waitsFor(at);
    const span = id === null ? null : await source.details(id);
    if (!span) break;
    hops.push({ place: at, span });
    if (id === culprit) break;
    at = idle.delayBefore(span.row, span.start, idle.step(at));
  }
  return { hops, culprit: culprit === null ? null : await source.details(culprit) };
}

/** The chain as arrows: from every span to the end of the interval that waited for it. */
export function chainLinks(idle: IdleIntervals, { hops }: IdleChain): Links {
  const spans: Span[] = [];
  const links: [number, number][] = [];
  hops.forEach(({ place, span }, i) => {
    const id = -1 - i; // spans of the run have ids from 0
    const end = idle.start[place]! + idle.duration[place]!;
    spans.push(span, { ...span, id, row: idle.row[place]!, start: end, duration: 0 });
    links.push([span.id, id]);
  });
  return { spans, links };
}

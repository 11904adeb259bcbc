/** Evaluates a query span by span while the picture is drawn. */

import type { Meta } from "../model/meta";
import { compileQuery, type Match } from "../model/query";
import type { Spans } from "../model/spans";

export class Matchers {
  private readonly compiled = new Map<Spans, Match | null>();
  private query = "";

  constructor(private readonly meta: () => Meta) {}

  /** Return a predicate of spans; it accepts all blocks of binned tiles. */
  of(query: string): (spans: Spans, place: number) => boolean {
    if (query !== this.query) this.compiled.clear();
    this.query = query;
    return (spans, place) => {
      const match = this.matchOf(spans);
      return match === null || match(place);
    };
  }

  private matchOf(spans: Spans): Match | null {
    let match = this.compiled.get(spans);
    if (match === undefined) this.compiled.set(spans, (match = this.compile(spans)));
    return match;
  }

  private compile(spans: Spans): Match | null {
    try {
      return spans.isBinned ? null : compileQuery(this.query, this.meta(), spans);
    } catch {
      return null;
    }
  }
}

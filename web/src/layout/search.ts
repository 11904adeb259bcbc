/** The search box: its query, its matches, and which of them is selected. */

import { batch, type Signal, signal } from "@preact/signals";

import type { Meta } from "../model/meta";
import { QueryError } from "../model/query";
import type { Found, Hit, Source } from "../model/source";
import type { Spans } from "../model/spans";
import { Matchers } from "./matchers";

export class Search {
  readonly query = signal("");
  /** Why the query is invalid; empty: it is valid. */
  readonly problem = signal("");
  readonly found: Signal<Found | null> = signal(null);
  /** Index of the selected match; -1: none. */
  readonly foundAt = signal(-1);
  private readonly matchers: Matchers;
  /** Counts the queries, so that the answer to an older one is dropped. */
  private latest = 0;

  constructor(
    meta: () => Meta,
    private readonly source: () => Source,
  ) {
    this.matchers = new Matchers(meta);
  }

  async run(query: string): Promise<void> {
    const own = ++this.latest;
    batch(() => {
      this.query.value = query;
      this.problem.value = "";
      this.foundAt.value = -1;
    });
    if (!query.trim()) {
      this.found.value = null;
      return;
    }
    try {
      const found = await this.source().search(query);
      if (own === this.latest) this.found.value = found;
    } catch (problem) {
      if (own !== this.latest) return;
      this.found.value = null;
      this.problem.value = problem instanceof QueryError ? problem.message : String(problem);
    }
  }

  /** Go to the next match (or the previous one, for -1), from `time` at first; return it, null without matches. */
  advance(by: number, time: number): Hit | null {
    const found = this.found.peek();
    if (!found || found.listed === 0) return null;
    const at = this.foundAt.peek();
    const next = at < 0 ? firstFrom(found, time, by) : (at + by + found.listed) % found.listed;
    this.foundAt.value = next;
    return found.at(next);
  }

  /** Return a predicate of the spans that match; null without a query: all do. */
  matcher(): ((spans: Spans, place: number) => boolean) | null {
    const query = this.query.peek();
    return query.trim() && this.found.peek() ? this.matchers.of(query) : null;
  }
}

function firstFrom(found: Found, time: number, by: number): number {
  for (let i = 0; i < found.listed; i++)
    if (found.at(i).start >= time) return by > 0 ? i : (i || found.listed) - 1;
  return by > 0 ? 0 : found.listed - 1;
}

/** How much later each action could have ended without a longer step: the section `slack`. */

import type { Table } from "./columns";
import { lowerBound } from "./spans";

export class Slack {
  private readonly span: Int32Array;
  private readonly ns: Float64Array;

  constructor(table: Table) {
    this.span = table.ints("span");
    this.ns = table.values("slack_ns");
  }

  /** The slack of a span in ns; null for a span that is not an analyzed action. */
  of(id: number): number | null {
    const place = lowerBound(this.span, id, 0, this.span.length) - 1;
    return this.span[place] === id ? this.ns[place]! : null;
  }
}

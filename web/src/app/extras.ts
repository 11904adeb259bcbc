/** What analysis gave, read when the page has been drawn once. */

import { causePlace } from "../layout/colors";
import type { Layers } from "../draw/scene";
import { NO_LAYERS } from "../draw/timeline";
import { EmbeddedSource } from "../model/embedded";
import { Gaps } from "../model/gaps";
import { Spans } from "../model/spans";
import { COMPUTE, type Changes, type Ledger, type Meta, type Verdict } from "../model/meta";
import type { Source, Span } from "../model/source";
import { durationText } from "../model/time";

export interface Extras {
  layers: Layers;
  changes: Changes | null;
  verdict: Verdict | null;
  ledger: Ledger | null;
  causes: string[];
  /** Idle time of all rows by cause. */
  idle: [string, number][];
}

export const NO_EXTRAS: Extras = { layers: NO_LAYERS, changes: null, verdict: null, ledger: null, causes: [], idle: [] };

export async function readExtras(source: Source): Promise<Extras> {
  const [changes, verdict, table, critical, ideal, ledger] = await Promise.all([
    source.json("comparison"), source.json("verdict"), source.table("idle"), source.table("critical_path"), source.table("ideal"),
    source.json("ledger"),
  ]);
  const path = critical ? critical.values("span").filter((_, i) => critical.values("slack_ns")[i] === 0) : new Float64Array(0);
  const gaps = table && new Gaps(table, source instanceof EmbeddedSource ? source.spans : null);
  return {
    layers: { gaps, critical: critical && new Set(path), criticalIds: [...path], ideal: ideal && new Spans(ideal) },
    changes: changes as Changes | null,
    verdict: verdict as Verdict | null,
    ledger: ledger as Ledger | null,
    causes: gaps ? [...gaps.causes].sort((one, other) => causePlace(one) - causePlace(other)) : [],
    idle: gaps ? gaps.totals().map(({ cause, sum_ns }) => [cause, sum_ns]) : [],
  };
}

export interface Waited {
  words: string;
  /** The span that it waited for, if one was recorded. */
  id: number | null;
}

/** Return what a span waited for: the pieces of idle time on its row that lead up to its start, latest first. */
export function waitedFor(meta: Meta, gaps: Gaps | null, span: Span): Waited[] {
  if (!gaps || span.lane !== COMPUTE) return [];
  return gaps.before(span.row, span.start).map((place) => ({
    words: `${durationText(gaps.duration[place]!, meta.time_unit)}: ${gaps.words(place)}`,
    id: gaps.waitsFor(place),
  }));
}

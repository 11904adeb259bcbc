/** Two runs side by side: the actions of one matched with those of the other by step, stage, micro-batch, kind and rank. */

import { isAction, kindsByCode, type Meta } from "./meta";
import type { Spans } from "./spans";

export interface Comparison {
  title: string;
  meta: Meta;
  spans: Spans;
  /** Per span of the first run: (own - other) / other; NaN without a partner. */
  delta: Float64Array;
  matched: number;
  unmatched: number;
  /** Sum of the matched actions' durations in this run and in the other. */
  own_ns: number;
  other_ns: number;
}

/** Return the comparison of `spans` with `other`, which is shifted so that its steps begin where the own ones do. */
export function compareRuns(meta: Meta, spans: Spans, otherMeta: Meta, other: Spans): Comparison {
  const places = new Map<string, number>();
  eachAction(otherMeta, other, (key, place) => void places.set(key, place));
  const delta = new Float64Array(spans.count).fill(NaN);
  let [matched, unmatched, own, others] = [0, 0, 0, 0];
  eachAction(meta, spans, (key, place) => {
    const partner = places.get(key);
    if (partner === undefined) {
      unmatched++;
      return;
    }
    matched++;
    own += spans.duration[place]!;
    others += other.duration[partner]!;
    const before = other.duration[partner]!;
    delta[place] = before > 0 ? (spans.duration[place]! - before) / before : NaN;
  });
  alignSteps(meta, otherMeta, other);
  return {
    title: otherMeta.title,
    meta: otherMeta,
    spans: other,
    delta,
    matched,
    unmatched,
    own_ns: own,
    other_ns: others,
  };
}

function eachAction(meta: Meta, spans: Spans, visit: (key: string, place: number) => void): void {
  const kinds = kindsByCode(meta.kinds);
  const columns = ["step", "stage", "microbatch"].map((name) => spans.table.ints(name));
  const counts = new Map<string, number>();
  for (let place = 0; place < spans.count; place++) {
    const kind = kinds[spans.kind[place]!];
    if (!isAction(kind)) continue;
    const rank = meta.ranks.rank[spans.row[place]!];
    const action = `${kind!.name} ${rank} ${columns.map((column) => column[place]).join(" ")}`;
    const occurrence = counts.get(action) ?? 0;
    counts.set(action, occurrence + 1);
    visit(`${action} ${occurrence}`, place);
  }
}

/** Move the spans of each step to where the own run has it; steps that it lacks keep their distance to the first. */
function alignSteps(meta: Meta, otherMeta: Meta, other: Spans): void {
  const own = new Map(meta.steps.map((step) => [step.step, step.start]));
  const shift = new Map<number, number>();
  let last = (meta.steps[0]?.start ?? 0) - (otherMeta.steps[0]?.start ?? 0);
  for (const step of otherMeta.steps) {
    const start = own.get(step.step);
    if (start !== undefined) last = start - step.start;
    shift.set(step.step, last);
  }
  const steps = other.table.ints("step");
  for (let i = 0; i < other.count; i++) {
    const by = shift.get(steps[i]!) ?? last;
    other.start[i]! += by;
  }
  other.refresh();
}

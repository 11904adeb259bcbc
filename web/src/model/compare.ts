/** Two runs, or two steps of one: the actions of one matched with those of the other by stage, micro-batch, kind and rank. */

import { DataError } from "./columns";
import { t } from "./language";
import { isAction, kindsByCode, type Meta, type Step } from "./meta";
import { lowerBound, type Spans } from "./spans";

/** Code of no kind: spans that have it are not drawn. */
export const HIDDEN = 255;

export interface Comparison {
  title: string;
  meta: Meta;
  spans: Spans;
  /** By id of a span of the first run: (own - other) / other; NaN without a partner, undefined if not compared. */
  delta: (id: number) => number | undefined;
  matched: number;
  unmatched: number;
  /** Sum of the matched actions' durations in this run and in the other. */
  own_ns: number;
  other_ns: number;
  /** Spans of the other run that are cut off or not drawn, because the next step begins before them. */
  cut: number;
  /** Numbers of the stages if they differ: then no action is comparable with another. */
  stages: [number, number] | null;
  /** The two steps of this run that are compared; null: two runs. */
  steps: [number, number] | null;
  /** The only step of two runs that is compared, because they are too large as a whole; null: all steps. */
  onlyStep: number | null;
  /** The row of the other run that has the same rank as a row of this one; -1: none has. */
  otherRow: (row: number) => number;
  /** How many ranks of the other run this one lacks; they are not drawn. */
  absentRanks: number;
}

/**
 * Return the comparison of `spans` with `other`, which is shifted so that its steps begin where the own ones do; of one
 * step of both only, if there is a number. Throws DataError if their units of time differ.
 */
export function compareRuns(
  [meta, spans]: [Meta, Spans],
  [otherMeta, other]: [Meta, Spans],
  onlyStep: number | null = null,
): Comparison {
  if (meta.time_unit !== otherMeta.time_unit)
    throw new DataError(t("One of the runs is a simulation in units of cost, the other one has times."));
  const stages: [number, number] = [stageCount(meta), stageCount(otherMeta)];
  const differ = stages[0] !== stages[1];
  const found = match(
    differ ? [] : actionsOf(meta, spans, onlyStep),
    differ ? [] : actionsOf(otherMeta, other, onlyStep),
    [spans, other],
  );
  if (onlyStep !== null) hideOthers(other, onlyStep);
  const cut = alignSteps(meta, otherMeta, other);
  return {
    ...found,
    ...matchRows(meta, otherMeta),
    title: otherMeta.title,
    meta: otherMeta,
    spans: other,
    cut,
    stages: differ ? stages : null,
    steps: null,
    onlyStep,
  };
}

/** Return the comparison of a step with another of the same run; `other` is changed, so that only that step is drawn. */
export function compareSteps(
  meta: Meta,
  [spans, other]: [Spans, Spans],
  [own, before]: [Step, Step],
): Comparison {
  const found = match(actionsOf(meta, spans, own.step), actionsOf(meta, other, before.step), [spans, other]);
  hideOthers(other, before.step);
  for (let i = 0; i < other.count; i++) other.start[i] = other.start[i]! + own.start - before.start;
  other.refresh();
  return {
    ...found,
    ...matchRows(meta, meta),
    title: t`step ${before.step}`,
    meta,
    spans: other,
    cut: 0,
    stages: null,
    steps: [own.step, before.step],
    onlyStep: null,
  };
}

function hideOthers(spans: Spans, step: number): void {
  const steps = spans.table.ints("step");
  for (let i = 0; i < spans.count; i++) if (steps[i] !== step) spans.kind[i] = HIDDEN;
}

function matchRows(meta: Meta, other: Meta): Pick<Comparison, "otherRow" | "absentRanks"> {
  const rows = new Map(other.ranks.rank.map((rank, row) => [rank, row]));
  const own = new Set(meta.ranks.rank);
  return {
    otherRow: (row) => rows.get(meta.ranks.rank[row]!) ?? -1,
    absentRanks: other.ranks.rank.filter((rank) => !own.has(rank)).length,
  };
}

type Matched = Pick<Comparison, "delta" | "matched" | "unmatched" | "own_ns" | "other_ns">;

function match(own: [string, number][], others: [string, number][], [spans, other]: [Spans, Spans]): Matched {
  const places = new Map(others);
  const changes = new Map<number, number>();
  let [matched, ownSum, otherSum] = [0, 0, 0];
  for (const [key, place] of own) {
    const partner = places.get(key);
    const before = partner === undefined ? 0 : other.duration[partner]!;
    changes.set(spans.id(place), before > 0 ? (spans.duration[place]! - before) / before : NaN);
    if (partner === undefined) continue;
    matched++;
    ownSum += spans.duration[place]!;
    otherSum += before;
  }
  return {
    delta: (id) => changes.get(id),
    matched,
    unmatched: own.length - matched,
    own_ns: ownSum,
    other_ns: otherSum,
  };
}

/** The actions with what identifies them; of one step, or with their step. */
export function actionsOf(meta: Meta, spans: Spans, step: number | null): [string, number][] {
  const kinds = kindsByCode(meta.kinds);
  const columns = ["step", "stage", "microbatch"].map((name) => spans.table.ints(name));
  const steps = columns[0]!;
  const counts = new Map<string, number>();
  const found: [string, number][] = [];
  for (let place = 0; place < spans.count; place++) {
    const kind = kinds[spans.kind[place]!];
    if (!isAction(kind) || (step !== null && steps[place] !== step)) continue;
    const rank = meta.ranks.rank[spans.row[place]!];
    const numbers = columns.slice(step === null ? 0 : 1).map((column) => column[place]);
    const action = `${kind!.name} ${rank} ${numbers.join(" ")}`;
    const occurrence = counts.get(action) ?? 0;
    counts.set(action, occurrence + 1);
    found.push([`${action} ${occurrence}`, place]);
  }
  return found;
}

function stageCount(meta: Meta): number {
  return new Set(meta.ranks.stages.flat()).size;
}

/** Move the spans of each step to where the own run has it, and cut off what reaches beyond the next own step.
 *
 * Steps that it lacks keep their distance to the one before, and spans without a step go with the step that they are in
 * by time. Return how many spans are cut off.
 */
function alignSteps(meta: Meta, otherMeta: Meta, other: Spans): number {
  const places = placesOfSteps(meta, otherMeta);
  const byNumber = new Map(otherMeta.steps.map((step, i) => [step.step, places[i]!]));
  const starts = otherMeta.steps.map((step) => step.start);
  const first = { shift: (meta.steps[0]?.start ?? 0) - (starts[0] ?? 0), limit: Infinity };
  const steps = other.table.ints("step");
  let cut = 0;
  for (let i = 0; i < other.count; i++) {
    const inTime = (): number => lowerBound(starts, other.start[i]!, 0, starts.length) - 1;
    const { shift, limit } = byNumber.get(steps[i]!) ?? places[inTime()] ?? first;
    other.start[i]! += shift;
    if (other.start[i]! + other.duration[i]! <= limit) continue;
    cut++;
    if (other.start[i]! >= limit) {
      other.kind[i] = HIDDEN;
      other.start[i] = limit;
    }
    other.duration[i] = limit - other.start[i]!;
  }
  other.refresh();
  return cut;
}

/** By step of the other run: how far it moves, and where the next own step begins. */
function placesOfSteps(meta: Meta, otherMeta: Meta): { shift: number; limit: number }[] {
  const own = new Map(meta.steps.map((step) => [step.step, step.start]));
  let shift = (meta.steps[0]?.start ?? 0) - (otherMeta.steps[0]?.start ?? 0);
  return otherMeta.steps.map(({ step, start }) => {
    const here = own.get(step);
    if (here !== undefined) shift = here - start;
    return { shift, limit: meta.steps.find((next) => next.step > step)?.start ?? Infinity };
  });
}

/** Which action needs which: the dependencies that every pipeline schedule has (NOTATION: F stage.micro-batch).
 *
 * F(s,m) needs F(s-1,m); the backward (or its input half) of (s,m) needs that of (s+1,m) and F(s,m); the weight half
 * needs the input half. Actions belong together within one step and one pipeline; where several ranks run the same action
 * (tensor parallelism), those of the same coordinates do.
 */

import { isAction, kindsByCode, type Meta } from "./meta";
import type { Links } from "./source";
import type { Spans } from "./spans";

type Phase = "F" | "B" | "W";

interface Action {
  place: number;
  row: number;
  phase: Phase;
  stage: number;
}

/** Return the actions linked to a span: its neighbors, or the whole way of its micro-batch. Ids are those of `spans`. */
export function findLinks(spans: Spans, meta: Meta, place: number, whole: boolean): Links {
  const actions = actionsOfMicrobatch(spans, meta, place);
  const edges = actions.flatMap((action) =>
    needs(action, actions, meta).map((other): [number, number] => [other.place, action.place]),
  );
  const kept = whole ? edges : edges.filter(([from, to]) => from === place || to === place);
  const places = new Set([place, ...kept.flat()]);
  return {
    spans: [...places].map((one) => spans.span(one)),
    links: kept.map(([from, to]) => [spans.id(from), spans.id(to)]),
  };
}

function actionsOfMicrobatch(spans: Spans, meta: Meta, place: number): Action[] {
  const kinds = kindsByCode(meta.kinds);
  if (!isAction(kinds[spans.kind[place]!])) return [];
  const step = spans.table.ints("step");
  const stage = spans.table.ints("stage");
  const microbatch = spans.table.ints("microbatch");
  const { pipeline } = meta.ranks;
  const own = pipeline[spans.row[place]!];
  if (microbatch[place]! < 0 || stage[place]! < 0) return [];
  const actions: Action[] = [];
  for (let i = 0; i < spans.count; i++) {
    if (microbatch[i] !== microbatch[place] || step[i] !== step[place] || stage[i]! < 0) continue;
    const kind = kinds[spans.kind[i]!];
    if (!isAction(kind) || pipeline[spans.row[i]!] !== own) continue;
    actions.push({ place: i, row: spans.row[i]!, phase: phaseOf(kind!.name), stage: stage[i]! });
  }
  return actions;
}

function phaseOf(kind: string): Phase {
  if (kind === "forward") return "F";
  return kind === "backward_weight" ? "W" : "B";
}

function needs(action: Action, actions: Action[], meta: Meta): Action[] {
  const find = (phase: Phase, stage: number): Action[] =>
    nearest(
      action,
      actions.filter((other) => other.phase === phase && other.stage === stage),
      meta,
    );
  if (action.phase === "F") return find("F", action.stage - 1);
  if (action.phase === "W") return find("B", action.stage);
  const later = find("B", action.stage + 1);
  return later.length ? later : find("F", action.stage);
}

/** Of several ranks with the same action: the own one, else those of the same tensor- and context-parallel place. */
function nearest(action: Action, others: Action[], meta: Meta): Action[] {
  if (others.length <= 1) return others;
  const same = others.filter((other) => other.row === action.row);
  if (same.length) return same;
  const { tp, cp } = meta.ranks;
  const alike = others.filter(
    (other) => tp[other.row] === tp[action.row] && cp[other.row] === cp[action.row],
  );
  return alike.length ? alike : others;
}

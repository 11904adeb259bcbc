/** The state of following a run: the connection, the state of its training, and whether the view follows it. */

import { type Signal, signal } from "@preact/signals";

import type { Meta } from "../model/meta";
import type { Training, TrendStep } from "../model/training";
import { length, type View } from "./view";

/** `none`: the run cannot change. `refused`: the server does not know this page, because it was started again. */
export type Connection = "none" | "connected" | "lost" | "refused";

const MARGIN = 0.02;
const FIRST_STEPS = 3;

export class Live {
  readonly connection: Signal<Connection> = signal("none");
  /** Null: the run is not one of a running training. */
  readonly training: Signal<Training | null> = signal(null);
  /** The measured steps, from the number `first` on. */
  readonly trend: Signal<{ first: number; steps: TrendStep[] }> = signal({ first: 0, steps: [] });
  readonly isFollowing = signal(false);
  /** Whether newer data are not shown, because they no longer have what is in view. */
  readonly isHeld = signal(false);
}

/** The last part of a run, of a length, with a margin at its end. */
export function latestView(meta: Meta, long: number): View {
  const end = meta.end + MARGIN * long;
  return { start: end - long, end };
}

/** How much of a training is seen at first: about three steps. */
export function firstLength(meta: Meta): number {
  const lengths = meta.steps.map((step) => step.end - step.start).sort((a, b) => a - b);
  const median = lengths[lengths.length >> 1] ?? meta.end;
  return Math.max(1, Math.min(FIRST_STEPS * median, meta.end) * (1 + 2 * MARGIN));
}

/** Whether a later version of a run has everything that is seen of this one; its times are `by` later. */
export function hasView(seen: View, by: number): boolean {
  return Math.max(seen.start, 0) + by >= 0;
}

/** Whether data are those of the same run at a later time, maybe with more ranks: they can take the place of those shown. */
export function continues(meta: Meta, later: Meta): boolean {
  const by = Number(BigInt(meta.base_ns) - BigInt(later.base_ns));
  return (
    hasRanks(meta, later) &&
    meta.time_unit === later.time_unit &&
    (meta.span_count === 0 || later.end >= meta.end + by)
  );
}

function hasRanks(meta: Meta, later: Meta): boolean {
  const ranks = new Set(later.ranks.rank);
  return meta.ranks.rank.every((rank) => ranks.has(rank));
}

/** The row in a later version of a row of this one. */
export function laterRow(meta: Meta, later: Meta, row: number): number {
  return later.ranks.rank.indexOf(meta.ranks.rank[row]!);
}

/** Whether a view shows the end of the data, which a user who follows wants to see. */
export function showsEnd(view: View, meta: Meta): boolean {
  return view.end >= meta.end && view.start < meta.end && length(view) > 0;
}

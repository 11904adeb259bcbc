/** The state of a training that is followed, as the server sends it: docs/viewer-format.md, "Events". */

import type { Translations } from "./meta";

export interface RankState {
  rank: number;
  /** running, waiting, busy, silent, gone or ended. */
  condition: string;
  is_culprit: boolean;
  step: number | null;
  /** By how many steps others are further. */
  behind: number;
  doing: string;
  /** The rank it waits for, the rank that one waits for, and so on. */
  chain: number[];
}

export interface AlarmState {
  number: number;
  is_over: boolean;
  sentences: string[];
}

export interface Training {
  translations?: Translations;
  /** trains, hangs or is over. */
  outcome: string;
  has_stopped: boolean;
  sentences: string[];
  culprits: number[];
  missing_ranks: number[];
  /** Those to look at first; `rank_count` may be more. */
  ranks: RankState[];
  rank_count: number;
  behind_count: number;
  conditions: Record<string, number>;
  alarms: AlarmState[];
  alarm_count: number;
  measured: number;
  skipped: number;
  dropped_spans: number | null;
  clock_error_ns: number | null;
}

export interface ServerVersion {
  version: string;
  problem: string | null;
  translations?: Translations;
}

export interface ServerState extends ServerVersion {
  training: Training | null;
}

export interface Slowest {
  place: number;
  work_ns: number;
  median_ns: number;
}

/** One measured step; null: unknown. Causes of lost time are fractions of the iteration. */
export interface TrendStep {
  step: number;
  iteration_ns: number | null;
  window_ns: number | null;
  bubble: number | null;
  lost: Record<string, number>;
  slowest_rank: Slowest | null;
  slowest_stage: Slowest | null;
  data: { unit: string; per_second: number } | null;
}

export const MOST_TREND_STEPS = 2000;

/** The steps so far, without the oldest ones, and those that came; `first` is the number of the first of these. */
export function withSteps(
  known: { first: number; steps: TrendStep[] },
  came: { first: number; steps: TrendStep[] },
): { first: number; steps: TrendStep[] } {
  const next = known.first + known.steps.length;
  // A gap: the server no longer had what was missed.
  if (came.first !== next) return came;
  const steps = [...known.steps, ...came.steps];
  const surplus = Math.max(0, steps.length - MOST_TREND_STEPS);
  return { first: known.first + surplus, steps: steps.slice(surplus) };
}

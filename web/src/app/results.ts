/** The results of the analysis, read after the first picture is on the screen. */

import type { Layers } from "../draw/scene";
import { NO_LAYERS } from "../draw/timeline";
import { waitNamed } from "../layout/colors";
import { EmbeddedSource } from "../model/embedded";
import { IdleIntervals } from "../model/idle";
import { Kernels } from "../model/kernels";
import { learn, ofData } from "../model/language";
import {
  type Changes,
  COMPUTE,
  type Ledger,
  type Meta,
  type Translations,
  type Understood,
  type Verdict,
} from "../model/meta";
import { Slack } from "../model/slack";
import type { Source, Span } from "../model/source";
import { Spans } from "../model/spans";
import { durationText } from "../model/time";
import type { WaitedFor } from "../panels/details";

export interface Results {
  layers: Layers;
  changes: Changes | null;
  verdict: Verdict | null;
  understood: Understood | null;
  ledger: Ledger | null;
  slack: Slack | null;
  /** The first and the last step that the analysis is about, if not the whole run. */
  analyzed: [number, number] | null;
}

export const NO_RESULTS: Results = {
  layers: NO_LAYERS,
  changes: null,
  verdict: null,
  understood: null,
  ledger: null,
  slack: null,
  analyzed: null,
};

export async function readResults(source: Source): Promise<Results> {
  const [words, changes, verdict, understood, table, critical, ideal, ledger, slack, kernels, analyzed] =
    await Promise.all([
      source.json("translations"),
      source.json("comparison"),
      source.json("verdict"),
      source.json("understood"),
      source.table("idle"),
      source.table("critical_path"),
      source.table("ideal"),
      source.json("ledger"),
      source.table("slack"),
      source.table("kernels"),
      source.json("analyzed"),
    ]);
  learn(words as Translations | undefined);
  const path = critical ? critical.values("span") : new Float64Array(0);
  const idle = table && new IdleIntervals(table, source instanceof EmbeddedSource ? source.spans : null);
  return {
    layers: {
      idle,
      critical: critical && new Set(path),
      criticalIds: [...path],
      ideal: ideal && new Spans(ideal),
      kernels: kernels && new Kernels(kernels),
    },
    changes: changes as Changes | null,
    verdict: verdict as Verdict | null,
    understood: understood as Understood | null,
    ledger: ledger as Ledger | null,
    slack: slack && new Slack(slack),
    analyzed: analyzed as [number, number] | null,
  };
}

/** Return what a span's rank waited for before it: the contiguous idle intervals up to its start, latest first. */
export function waitedFor(meta: Meta, idle: IdleIntervals | null, span: Span): WaitedFor[] {
  if (!idle || span.lane !== COMPUTE) return [];
  return idle.before(span.row, span.start).map((place) => {
    const words = [ofData(waitNamed(meta, idle.waitingFor(place)).label), idle.text(place)]
      .filter(Boolean)
      .join(": ");
    return {
      words: `${durationText(idle.duration[place]!, meta.time_unit)}: ${words}`,
      id: idle.waitsFor(place),
    };
  });
}

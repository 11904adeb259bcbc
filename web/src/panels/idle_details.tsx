/** An idle interval: what its rank waited for, why, and the chain behind it. */

import { waitNamed } from "../layout/colors";
import type { Hop } from "../layout/idle_chain";
import type { Viewer } from "../layout/viewer";
import type { IdleIntervals } from "../model/idle";
import { ofData, t } from "../model/language";
import type { Span } from "../model/source";
import { countText, durationText } from "../model/time";

/** One line about an interval, beside the picture and for screen readers. */
export function idleSentence(viewer: Viewer, idle: IdleIntervals, place: number): string {
  const words = [
    t`idle, rank ${viewer.meta.ranks.rank[idle.row[place]!]!}`,
    durationText(idle.duration[place]!, viewer.meta.time_unit),
    t`waiting for ${ofData(waitNamed(viewer.meta, idle.waitingFor(place)).label)}`,
  ];
  const cause = idle.causeOf(place);
  if (cause) words.push(t`cause: ${causeText(cause)}`);
  return words.join(" · ");
}

export function IdleDetails({ viewer, idle, place }: { viewer: Viewer; idle: IdleIntervals; place: number }) {
  const { meta } = viewer;
  const unit = meta.time_unit;
  const [start, duration] = [idle.start[place]!, idle.duration[place]!];
  const step = meta.steps.find((one) => one.step === idle.step(place));
  const chain = viewer.selection.idleChain.value;
  const cause = idle.causeOf(place);
  const facts: [string, string][] = [
    ["rank", String(meta.ranks.rank[idle.row[place]!])],
    ["step", step ? String(step.step) : t("unknown")],
    [
      "start",
      step
        ? t`${durationText(start - step.start, unit)} after the start of the step`
        : durationText(start, unit),
    ],
    [
      "duration",
      unit === "cost"
        ? durationText(duration, unit)
        : `${durationText(duration)} (${countText(duration)} ns)`,
    ],
    ["waiting for", ofData(waitNamed(meta, idle.waitingFor(place)).label)],
    ["largest cause", cause ? causeText(cause) : t("unknown")],
  ];
  return (
    <div>
      <h3 class="action">{t("Idle interval")}</h3>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{ofData(name)}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        {chain?.culprit && (
          <div title={t("The action that takes or starts late by this cause; framed in the picture")}>
            <dt>{t("caused by")}</dt>
            <dd>
              <SpanLink viewer={viewer} span={chain.culprit} />
            </dd>
          </div>
        )}
      </dl>
      {chain && chain.hops.length > 0 && (
        <ol class="chain" aria-label={t("What was waited for")}>
          {chain.hops.map((hop) => (
            <li key={hop.place}>
              <HopWords viewer={viewer} idle={idle} hop={hop} />
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}

function HopWords({ viewer, idle, hop: { place, span } }: { viewer: Viewer; idle: IdleIntervals; hop: Hop }) {
  const rank = viewer.meta.ranks.rank[idle.row[place]!];
  return (
    <>
      {t`rank ${String(rank)} waited ${durationText(idle.duration[place]!, viewer.meta.time_unit)} for`}{" "}
      <SpanLink viewer={viewer} span={span} />
    </>
  );
}

function SpanLink({ viewer, span }: { viewer: Viewer; span: Span }) {
  return (
    <button type="button" class="link" onClick={() => void viewer.select(span.id, true)}>
      {viewer.sentence(span)}
    </button>
  );
}

function causeText(cause: string): string {
  return ofData(cause === "data_parallel_wait" ? "data-parallel wait" : cause.replaceAll("_", " "));
}

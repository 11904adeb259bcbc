/** All recorded facts of the selected span, and what its rank waited for before it. */

import { useEffect, useState } from "preact/hooks";
import type { Viewer } from "../layout/viewer";
import { ofData, t } from "../model/language";
import { type Clock, isAction, type Kind, LANES } from "../model/meta";
import type { Span } from "../model/source";
import { countText, durationText, momentText } from "../model/time";
import { IdleDetails } from "./idle_details";
import { KernelDetails } from "./kernel";
import { Swatch } from "./legend";

const LONGEST_NAME = 2000;

/** An idle interval before a span, and the id of the span that ended it, if recorded. */
export interface WaitedFor {
  words: string;
  id: number | null;
}

interface DetailsProps {
  viewer: Viewer;
  waitedFor: (span: Span) => WaitedFor[];
  slackOf: (span: Span) => number | null;
}

export function Details({ viewer, waitedFor, slackOf }: DetailsProps) {
  const span = viewer.selection.selected.value;
  const kernel = viewer.selection.kernel.value;
  const idle = viewer.idle.value;
  const gap = viewer.selection.idle.value;
  if (idle && gap !== null) return <IdleDetails viewer={viewer} idle={idle} place={gap} />;
  if (kernel) return <KernelDetails viewer={viewer} kernel={kernel} />;
  if (!span)
    return (
      <p class="quiet">
        {t(
          "Click a span to see its details and the path of its micro-batch through the stages, or an idle interval to see what its rank waited for.",
        )}
      </p>
    );
  const kind = viewer.meta.kinds.find((one) => one.code === span.kind);
  const slack = slackOf(span);
  return (
    <div>
      <h3 class="action">
        {kind && <Swatch kind={kind} shades={1} />}
        {heading(span, kind)}
      </h3>
      <dl class="facts">
        {facts(viewer, span, kind).map(([name, value]) => (
          <div key={name}>
            <dt>{ofData(name)}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        {slack !== null && (
          <div title={t("How much later it could have ended without a longer step")}>
            <dt>{t("slack")}</dt>
            <dd>
              {slack === 0 ? t("none: on a critical path") : durationText(slack, viewer.meta.time_unit)}
            </dd>
          </div>
        )}
        {waitedFor(span).map((wait) => (
          <div key={wait.words}>
            <dt>{t("waited for")}</dt>
            <dd>
              {wait.words}
              {wait.id !== null && <Awaited viewer={viewer} id={wait.id} />}
            </dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

/** The span that was waited for; a click selects it. */
function Awaited({ viewer, id }: { viewer: Viewer; id: number }) {
  const [span, setSpan] = useState<Span | null>(null);
  useEffect(() => void viewer.source.details(id).then(setSpan, () => setSpan(null)), [viewer.source, id]);
  if (!span) return null;
  return (
    <>
      {" "}
      <button type="button" class="link" onClick={() => void viewer.select(id, true)}>
        ({viewer.sentence(span)})
      </button>
    </>
  );
}

function heading(span: Span, kind: Kind | undefined): string {
  const name = ofData(kind?.name.replaceAll("_", " ") ?? "span");
  return isAction(kind) && span.stage !== null && span.microbatch !== null
    ? `${name} ${kind!.letter}${span.stage}.${span.microbatch}`
    : name;
}

function facts(viewer: Viewer, span: Span, kind: Kind | undefined): [string, string][] {
  const { meta } = viewer;
  const unit = meta.time_unit;
  const step = meta.steps.find((one) => one.step === span.step);
  const machine = meta.ranks.machine[span.row] ?? null;
  const found: [string, string | null][] = [
    ["kind", kind ? `${ofData(kind.name.replaceAll("_", " "))} (${kind.letter})` : null],
    ["rank", String(meta.ranks.rank[span.row])],
    ["stage", text(span.stage)],
    ["chunk", text(span.chunk)],
    ["micro-batch", text(span.microbatch)],
    ["step", text(span.step)],
    [
      "start",
      step
        ? t`${durationText(span.start - step.start, unit)} after the start of the step`
        : durationText(span.start, unit),
    ],
    ["start on the clock", unit === "cost" ? null : `${momentText(meta.base_ns, span.start)} ns`],
    [
      "duration",
      unit === "cost"
        ? t`${durationText(span.duration, unit)} units of cost`
        : `${durationText(span.duration)} (${countText(span.duration)} ns)`,
    ],
    ["host blocked", span.wait_duration === null ? null : durationText(span.wait_duration, unit)],
    ["peer", span.peer === null ? null : t`rank ${span.peer}`],
    ["size", span.bytes === null ? null : `${countText(span.bytes)} B`],
    ["overlapped pair", text(span.pair)],
    ["lane", ofData(LANES[span.lane] ?? "") || null],
    ["machine", machine],
    ["device", meta.ranks.device[span.row] ?? null],
    ["clock error", clockError(meta.clocks.find((one) => one.machine === machine))],
    [
      "name",
      span.name === null
        ? null
        : span.name.slice(0, LONGEST_NAME) + (span.name.length > LONGEST_NAME ? " …" : ""),
    ],
  ];
  return found.filter((fact): fact is [string, string] => fact[1] !== null);
}

function clockError(clock: Clock | undefined): string | null {
  if (!clock) return null;
  const { error_lo_ns: low, error_hi_ns: high } = clock;
  if (low === null || high === null) return t("unknown");
  return low === 0 && high === 0
    ? t("none: reference clock")
    : t`${durationText(low)} to +${durationText(high)}`;
}

function text(value: number | null): string | null {
  return value === null ? null : String(value);
}

/** Statistics of a selection, stages and steps, and a comparison. */

import { useEffect, useState } from "preact/hooks";
import { broughtOther, compareWith, showOther, showSteps } from "../layout/compared";
import { recordedMetrics, shade } from "../layout/rank_heat";
import type { Viewer } from "../layout/viewer";
import type { Table } from "../model/columns";
import { ofData, t } from "../model/language";
import { changeText, countText, durationText, percentText } from "../model/time";
import { MetricChoice } from "./cell_map";
import { TEXTS } from "./texts";

export function SelectionStatistics({ viewer }: { viewer: Viewer }) {
  const selection = viewer.selection.statistics.value;
  if (!selection) return <p class="quiet">{t("Drag with Shift, or press M and drag, to select a range.")}</p>;
  const unit = viewer.meta.time_unit;
  const long = selection.end - selection.start;
  const area = long * selection.row_count;
  const names = new Map(viewer.meta.kinds.map((kind) => [kind.code, ofData(kind.name.replaceAll("_", " "))]));
  return (
    <div>
      <dl class="facts">
        <div>
          <dt>{t("length")}</dt>
          <dd>
            {selection.row_count === 1
              ? t`${durationText(long, unit)} on 1 row`
              : t`${durationText(long, unit)} on ${selection.row_count} rows`}
          </dd>
        </div>
        <div>
          <dt>{t("spans")}</dt>
          <dd>{countText(selection.span_count)}</dd>
        </div>
        <div>
          <dt>{t("sum")}</dt>
          <dd>{durationText(selection.sum_ns, unit)}</dd>
        </div>
        <div>
          <dt>{t("mean")}</dt>
          <dd>{selection.span_count ? durationText(selection.sum_ns / selection.span_count, unit) : "–"}</dd>
        </div>
        <div>
          <dt>{t("busy")}</dt>
          <dd>{durationText(selection.busy_ns, unit)}</dd>
        </div>
        <div>
          <dt>{t("bubble")}</dt>
          <dd>
            {t`${durationText(selection.idle_ns, unit)} (${area > 0 ? percentText(selection.idle_ns / area) : "–"} of rows × length)`}
          </dd>
        </div>
        <div>
          <dt>{t("host blocked")}</dt>
          <dd>{durationText(selection.wait_ns, unit)}</dd>
        </div>
      </dl>
      <table class="figures">
        <thead>
          <tr>
            <th scope="col">{t("kind")}</th>
            <th scope="col">{t("spans")}</th>
            <th scope="col">{t("sum")}</th>
            <th scope="col">{t("mean")}</th>
          </tr>
        </thead>
        <tbody>
          {selection.kinds.map((one) => (
            <tr key={one.kind}>
              <th scope="row">{names.get(one.kind)}</th>
              <td>{countText(one.count)}</td>
              <td>{durationText(one.sum_ns, unit)}</td>
              <td>{durationText(one.sum_ns / one.count, unit)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {selection.waits.length > 0 && (
        <table class="figures">
          <thead>
            <tr>
              <th scope="col">{t("idle, waiting for")}</th>
              <th scope="col">{t("sum")}</th>
            </tr>
          </thead>
          <tbody>
            {selection.waits.map((one) => (
              <tr key={one.waiting_for}>
                <th scope="row">{ofData(one.waiting_for.replaceAll("_", " "))}</th>
                <td>{durationText(one.sum_ns, unit)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <button type="button" onClick={() => void viewer.selection.setRange(null)}>
        {t("Clear the selection")}
      </button>
    </div>
  );
}

const METRICS = ["action_ns", "wait_ns", "idle_ns"] as const;
const MOST_STEPS = 12;

/** Stages by steps; a click goes to the step. */
export function HeatMap({ viewer }: { viewer: Viewer }) {
  const [table, setTable] = useState<Table | null>(null);
  const [metric, setMetric] = useState<(typeof METRICS)[number]>("action_ns");
  useEffect(() => void viewer.source.table("heat").then(setTable, () => setTable(null)), [viewer.source]);
  if (!table) return null;
  const [steps, stages, values] = [table.ints("step"), table.ints("stage"), table.values(metric)];
  const all = [...new Set(steps)].sort((a, b) => a - b);
  const rows = [...new Set(stages)].sort((a, b) => a - b);
  const current = Math.max(0, all.indexOf(viewer.camera.step.value?.step ?? -1));
  const first = Math.min(Math.max(0, current - (MOST_STEPS >> 1)), Math.max(0, all.length - MOST_STEPS));
  const shown = all.slice(first, first + MOST_STEPS);
  const cells = new Map<string, number>();
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < table.rows; i++) {
    const value = values[i]!;
    if (Number.isNaN(value)) continue;
    [low, high] = [Math.min(low, value), Math.max(high, value)];
    cells.set(`${steps[i]} ${stages[i]}`, value);
  }
  return (
    <div>
      <MetricChoice
        names={recordedMetrics(table, METRICS)}
        words={TEXTS.stageMetrics}
        chosen={metric}
        choose={setMetric}
      />
      <div class="heat-window" tabIndex={0} role="region" aria-label={t("Stages by steps")}>
        <table class="heat">
          <thead>
            <tr>
              <th scope="col">{t("stage")}</th>
              {shown.map((step) => (
                <th key={step} scope="col">
                  {step}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((stage) => (
              <tr key={stage}>
                <th scope="row">{stage}</th>
                {shown.map((step) => (
                  <HeatCell
                    key={step}
                    viewer={viewer}
                    step={step}
                    stage={stage}
                    value={cells.get(`${step} ${stage}`)}
                    low={low}
                    high={high}
                  />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="quiet">
        {t`${durationText(low, viewer.meta.time_unit)} (pale) to ${durationText(high, viewer.meta.time_unit)} (strong), per stage and step`}
      </p>
    </div>
  );
}

interface HeatCellProps {
  viewer: Viewer;
  step: number;
  stage: number;
  value: number | undefined;
  low: number;
  high: number;
}

function HeatCell({ viewer, step, stage, value, low, high }: HeatCellProps) {
  if (value === undefined) return <td />;
  const fraction = shade(value, low, high);
  const title = t`stage ${stage}, step ${step}: ${durationText(value, viewer.meta.time_unit)}`;
  const go = (): void => viewer.camera.goToStep(viewer.meta.steps.findIndex((one) => one.step === step));
  return (
    <td>
      <button
        type="button"
        title={title}
        aria-label={title}
        style={{
          background: `color-mix(in srgb, var(--heat-high) ${Math.round(100 * fraction)}%, var(--heat-low))`,
        }}
        onClick={go}
      />
    </td>
  );
}

/** Choose a step to compare the one in view with. */
function StepChoice({ viewer }: { viewer: Viewer }) {
  const { steps } = viewer.meta;
  const own = viewer.camera.step.value;
  const [wanted, setWanted] = useState("");
  if (steps.length < 2 || !own) return null;
  const other = wanted === "" ? steps[steps.indexOf(own) ? 0 : 1]!.step : Number(wanted);
  const go = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!(await showSteps(viewer, own.step, other))) viewer.notify(TEXTS.noSuchStep(String(other)));
  };
  return (
    <form class="step-choice" onSubmit={(event) => void go(event)}>
      <label>
        {TEXTS.compareStep(String(own.step))}{" "}
        <input
          type="number"
          min={steps[0]!.step}
          max={steps[steps.length - 1]!.step}
          value={other}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
      </label>
      <button type="submit">{TEXTS.compare}</button>
    </form>
  );
}

export function ComparisonStatistics({ viewer, onOpen }: { viewer: Viewer; onOpen: () => void }) {
  const comparison = viewer.comparison.value;
  if (!comparison)
    return (
      <div>
        <p class="quiet">
          {t(
            "Lay another run under this one: blocks are colored by how much longer or shorter the same action took.",
          )}
        </p>
        <StepChoice viewer={viewer} />
        {viewer.comparing.value > 0 && <p class="quiet">{t("Comparing with the other run …")}</p>}
        {broughtOther(viewer) && viewer.comparing.value === 0 && (
          <button type="button" onClick={() => void showOther(viewer, true)}>
            {t("Show the comparison again")}
          </button>
        )}
        <button type="button" onClick={onOpen}>
          {t("Open another run's page …")}
        </button>
      </div>
    );
  const change = comparison.own_ns / comparison.other_ns - 1;
  const unit = viewer.meta.time_unit;
  const { onlyStep, absentRanks } = comparison;
  return (
    <div>
      <dl class="facts">
        <div>
          <dt>{comparison.steps ? t("other step") : t("other run")}</dt>
          <dd>{ofData(comparison.title)}</dd>
        </div>
        <div>
          <dt>{t("actions matched")}</dt>
          <dd>{countText(comparison.matched)}</dd>
        </div>
        <div>
          <dt>{t("without a match")}</dt>
          <dd>{countText(comparison.unmatched)}</dd>
        </div>
        <div>
          <dt>{t("work of the matched")}</dt>
          <dd>
            {t`${durationText(comparison.own_ns, unit)} here, ${durationText(comparison.other_ns, unit)} there`}
            {comparison.other_ns ? ` (${changeText(change)})` : ""}
          </dd>
        </div>
      </dl>
      {onlyStep !== null && <p class="quiet">{TEXTS.onlyStep(String(onlyStep))}</p>}
      {absentRanks > 0 && <p class="quiet">{TEXTS.absentRanks(absentRanks)}</p>}
      {comparison.cut > 0 && <p class="quiet">{TEXTS.spansCut(countText(comparison.cut))}</p>}
      <button type="button" onClick={() => compareWith(viewer, null)}>
        {t("End the comparison")}
      </button>
    </div>
  );
}

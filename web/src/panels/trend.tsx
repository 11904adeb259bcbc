/** The trend of a running training: iteration, lost time by cause, slowest rank and stage, and throughput. */

import { CHART, CHARTED_STEPS, largestCauses, lineOf, stackOf } from "../layout/trend_chart";
import type { Viewer } from "../layout/viewer";
import { ofData, t } from "../model/language";
import { countText, durationText, percentText } from "../model/time";
import type { Slowest, TrendStep } from "../model/training";
import { TEXTS } from "./texts";

const MOST_CAUSES = 5;
/** Colors that people with color vision deficiency can distinguish (Okabe and Ito, 2008). */
const CAUSE_COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9"];

export function Trend({ viewer }: { viewer: Viewer }) {
  const steps = viewer.live.trend.value.steps.slice(-CHARTED_STEPS);
  if (steps.length === 0) return <p class="quiet">{TEXTS.noTrend}</p>;
  const time = (ns: number): string => durationText(Math.round(ns));
  const rate = (perSecond: number): string => countText(Math.round(perSecond));
  const unit = steps.filter((step) => step.data).at(-1)?.data?.unit;
  return (
    <div class="trend">
      <p class="quiet">{TEXTS.trendSteps(String(steps[0]!.step), String(steps.at(-1)!.step))}</p>
      <Lines title={t("iteration")} series={[steps.map((step) => step.iteration_ns)]} text={time} />
      <LostTime steps={steps} />
      <Place name="rank" steps={steps} of={(step) => step.slowest_rank} />
      <Place name="stage" steps={steps} of={(step) => step.slowest_stage} />
      {unit && (
        <Lines
          title={t`${ofData(unit)} per second`}
          series={[steps.map((step) => step.data?.per_second ?? null)]}
          text={rate}
        />
      )}
    </div>
  );
}

interface LinesProps {
  title: string;
  /** The first one is strong. */
  series: (number | null)[][];
  text: (value: number) => string;
  note?: string;
}

function Lines({ title, series, text, note = "" }: LinesProps) {
  const top = Math.max(...series.flat().map((value) => value ?? 0), 0);
  const lines = series.map((values) => lineOf(values, top));
  const main = lines[0];
  if (!main) return null;
  const range = t`${text(main.low)} to ${text(main.high)}`;
  return (
    <figure>
      <figcaption>
        <span>{title}</span>
        <span>
          {note || text(main.last!)} <span class="quiet">({range})</span>
        </span>
      </figcaption>
      <svg
        viewBox={`0 0 ${CHART.width} ${CHART.height}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={t`${title}: ${range}, last ${text(main.last!)}`}
      >
        {lines.map((line, i) => line && <path key={i} class={i ? "line weak" : "line"} d={line.path} />)}
      </svg>
    </figure>
  );
}

/** The slowest rank or stage of each step, and the median of all. */
function Place({
  name,
  steps,
  of,
}: {
  name: string;
  steps: TrendStep[];
  of: (step: TrendStep) => Slowest | null;
}) {
  const last = steps
    .map(of)
    .filter((slowest) => slowest !== null)
    .at(-1);
  if (!last) return null;
  const note = `${ofData(name)} ${last.place}, ${durationText(Math.round(last.work_ns))}`;
  return (
    <Lines
      title={t`slowest ${ofData(name)}, and median`}
      series={[
        steps.map((step) => of(step)?.work_ns ?? null),
        steps.map((step) => of(step)?.median_ns ?? null),
      ]}
      text={(ns) => durationText(Math.round(ns))}
      note={note}
    />
  );
}

function LostTime({ steps }: { steps: TrendStep[] }) {
  const whole = steps.filter((step) => step.iteration_ns !== null);
  const causes = largestCauses(whole, MOST_CAUSES);
  if (causes.length === 0) return null;
  const sums = whole.map((_, i) => causes.reduce((sum, [, values]) => sum + values[i]!, 0));
  const top = Math.max(...sums);
  const areas = stackOf(
    causes.map(([, values]) => values),
    top,
  );
  const label = (cause: string): string => ofData(cause.replaceAll("_", " "));
  const now = causes.map(([cause, values]) => `${label(cause)} ${percentText(values.at(-1)!)}`);
  return (
    <figure>
      <figcaption>
        <span>{t("lost time by cause")}</span>
        <span class="quiet">{t`of the iteration, up to ${percentText(top)}`}</span>
      </figcaption>
      <svg
        viewBox={`0 0 ${CHART.width} ${CHART.height}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={t`lost time by cause, last: ${now.join(", ")}`}
      >
        {areas.map((path, i) => (
          <path key={causes[i]![0]} d={path} fill={CAUSE_COLORS[i]} />
        ))}
      </svg>
      <ul class="trend-causes">
        {causes.map(([cause, values], i) => (
          <li key={cause}>
            <span class="swatch" style={{ background: CAUSE_COLORS[i] }} aria-hidden="true" />
            {label(cause)} <span class="quiet">{percentText(values.at(-1)!)}</span>
          </li>
        ))}
      </ul>
    </figure>
  );
}

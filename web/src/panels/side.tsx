/** The side panel: verdict, selected span, statistics, ledger, heat map and display options. */

import type { ComponentChildren } from "preact";
import { broughtOther } from "../layout/compared";
import { IDEAL_PLACES } from "../layout/hash";
import { type Flag, LAYER_NAMES } from "../layout/hit";
import { GROUPINGS, type Grouping, LARGEST_PITCH, SORTINGS, type Sorting } from "../layout/rows";
import type { Viewer } from "../layout/viewer";
import { ofData, t } from "../model/language";
import type { Changes, Diagnostic, Ledger, Understood, Verdict } from "../model/meta";
import type { Span } from "../model/source";
import { countText } from "../model/time";
import { Account } from "./account";
import { type PageActions, PICTURE_FORMATS } from "./commands";
import { Counters } from "./counters";
import { Details, type WaitedFor } from "./details";
import { LiveSections } from "./live";
import { NoteList } from "./notes";
import { RankHeatMap } from "./rank_heat";
import { ComparisonStatistics, HeatMap, SelectionStatistics } from "./statistics";
import { TEXTS } from "./texts";
import { Transfers } from "./transfers";
import { UnderstoodAs, VerdictWords } from "./verdict";

/** With more ranks the map of ranks by steps is the way into the run, and open. */
const FEW_RANKS = 16;

interface SideProps {
  viewer: Viewer;
  page: PageActions;
  isDark: boolean;
  changes: Changes | null;
  verdict: Verdict | null;
  understood: Understood | null;
  ledger: Ledger | null;
  analyzed: [number, number] | null;
  waitedFor: (span: Span) => WaitedFor[];
  slackOf: (span: Span) => number | null;
}

export function Side({
  viewer,
  page,
  changes,
  verdict,
  understood,
  ledger,
  analyzed,
  isDark,
  ...of
}: SideProps) {
  const { waitedFor, slackOf } = of;
  const { sections, diagnostics } = viewer.meta;
  const problems = diagnostics.length;
  return (
    <aside class="side" aria-label={t("Details and statistics")}>
      {viewer.isOtherShown.value && (
        <Section title={t("What changed")} isPrinted>
          {changes && <ChangeWords changes={changes} />}
        </Section>
      )}
      <LiveSections viewer={viewer} section={Section} />
      {sections.includes("verdict") && (
        <Section title={t("Why")} isPrinted>
          {analyzed && <p class="quiet">{TEXTS.analyzedSteps(String(analyzed[0]), String(analyzed[1]))}</p>}
          {verdict && <VerdictWords viewer={viewer} verdict={verdict} />}
        </Section>
      )}
      {understood && (
        <Section title={t("Understood as")}>
          <UnderstoodAs rows={understood} />
        </Section>
      )}
      <Section title={t("Selected span or interval")}>
        <Details viewer={viewer} waitedFor={waitedFor} slackOf={slackOf} />
      </Section>
      <Section title={TEXTS.notes}>
        <NoteList viewer={viewer} page={page} />
      </Section>
      <Section title={t("Selection")}>
        <SelectionStatistics viewer={viewer} />
      </Section>
      {ledger && (
        <Section title={t("Where the time went")} isPrinted>
          <Account viewer={viewer} ledger={ledger} />
        </Section>
      )}
      {sections.includes("heat") && (
        <Section title={t("Stages by steps")}>
          <HeatMap viewer={viewer} />
        </Section>
      )}
      {sections.includes("rank_heat") && (
        <Section title={TEXTS.rankHeat} isClosed={viewer.meta.ranks.rank.length <= FEW_RANKS}>
          <RankHeatMap viewer={viewer} isDark={isDark} />
        </Section>
      )}
      {sections.includes("counters") && (
        <Section title={TEXTS.counters} isClosed>
          <Counters viewer={viewer} />
        </Section>
      )}
      {sections.includes("transfers") && (
        <Section title={TEXTS.transfers} isClosed>
          <Transfers viewer={viewer} isDark={isDark} />
        </Section>
      )}
      <Section title={t("View")}>
        <ViewChoices viewer={viewer} />
        <p class="save-picture">
          {TEXTS.picture}{" "}
          {PICTURE_FORMATS.map((format) => (
            <button
              type="button"
              key={format}
              aria-label={TEXTS.savePicture(format.toUpperCase())}
              onClick={() => page.save(format)}
            >
              {format.toUpperCase()}
            </button>
          ))}
        </p>
      </Section>
      <Section title={t("Compare")} isClosed={!broughtOther(viewer)}>
        <ComparisonStatistics viewer={viewer} onOpen={page.openComparison} />
      </Section>
      {problems > 0 && (
        <Section title={t`Diagnostics (${countText(problems)})`}>
          <Diagnostics diagnostics={diagnostics} />
        </Section>
      )}
    </aside>
  );
}

function Section({
  title,
  children,
  isClosed = false,
  isPrinted = false,
}: {
  title: string;
  children: ComponentChildren;
  isClosed?: boolean;
  isPrinted?: boolean;
}) {
  return (
    <details class={isPrinted ? "section printed" : "section"} open={!isClosed}>
      <summary>
        <h2>{title}</h2>
      </summary>
      {children}
    </details>
  );
}

/** Layers to choose, each with the section of the data that it needs. */
const FLAGS: [Flag, string | null][] = [
  ["arrows", null],
  ["waits", null],
  ["comm", null],
  ["host", null],
  ["idle", "idle"],
  ["critical", "critical_path"],
  ["clocks", null],
  ["minimap", null],
];

function ViewChoices({ viewer }: { viewer: Viewer }) {
  const { meta } = viewer;
  const choice = viewer.display.rowChoice.value;
  const hasClocks = meta.clocks.some((clock) => clock.error_hi_ns !== null);
  const flags = FLAGS.filter(
    ([flag, section]) =>
      (section === null || meta.sections.includes(section)) && (flag !== "clocks" || hasClocks),
  );
  return (
    <div class="view-choices">
      <label>
        {t("group rows by")}
        <select
          value={choice.group}
          onChange={(event) =>
            (viewer.display.rowChoice.value = { ...choice, group: event.currentTarget.value as Grouping })
          }
        >
          {GROUPINGS.map((group) => (
            <option key={group} value={group}>
              {group === "dp" ? t("data-parallel replica") : ofData(group)}
            </option>
          ))}
        </select>
      </label>
      <label>
        {t("sort rows by")}
        <select
          value={choice.sort}
          onChange={(event) =>
            (viewer.display.rowChoice.value = { ...choice, sort: event.currentTarget.value as Sorting })
          }
        >
          {SORTINGS.map((sort) => (
            <option key={sort} value={sort}>
              {ofData(sort)}
            </option>
          ))}
        </select>
      </label>
      <label>
        {t("row height")}
        <input
          type="range"
          min={1}
          max={LARGEST_PITCH}
          value={viewer.display.pitch.value}
          onInput={(event) => viewer.display.setPitch(Number(event.currentTarget.value))}
        />
      </label>
      {meta.sections.includes("ideal") && (
        <label>
          {t("ideal schedule")}
          <select
            value={viewer.display.ideal.value}
            onChange={(event) =>
              (viewer.display.ideal.value = event.currentTarget.value as (typeof IDEAL_PLACES)[number])
            }
          >
            {IDEAL_PLACES.map((place) => (
              <option key={place} value={place}>
                {ofData(place)}
              </option>
            ))}
          </select>
        </label>
      )}
      <fieldset>
        <legend class="sr-only">{t("Layers")}</legend>
        {flags.map(([flag]) => (
          <label key={flag} class="check">
            <input
              type="checkbox"
              checked={viewer.display.flags.value.has(flag)}
              onChange={() => viewer.display.toggle(flag)}
            />{" "}
            {LAYER_NAMES[flag]}
          </label>
        ))}
      </fieldset>
      {choice.hidden.length > 0 && (
        <button type="button" onClick={() => (viewer.display.rowChoice.value = { ...choice, hidden: [] })}>
          {choice.hidden.length === 1 ? t("Show 1 hidden row") : t`Show ${choice.hidden.length} hidden rows`}
        </button>
      )}
    </div>
  );
}

const MOST_DIAGNOSTICS = 100;

function ChangeWords({ changes }: { changes: Changes }) {
  return (
    <div class="verdict">
      {changes.sentences.map((sentence) => (
        <p key={sentence}>{ofData(sentence)}</p>
      ))}
      {changes.diagnostics.length > 0 && <Diagnostics diagnostics={changes.diagnostics} />}
    </div>
  );
}

function Diagnostics({ diagnostics }: { diagnostics: Diagnostic[] }) {
  return (
    <ul class="diagnostics">
      {diagnostics.slice(0, MOST_DIAGNOSTICS).map((one, i) => (
        <li key={i} class={one.severity}>
          <b>{ofData(one.severity)}</b> {one.rank === null ? "" : `${t`rank ${one.rank}`}: `}
          {ofData(one.message)}
          {one.count > 1 ? ` (${countText(one.count)})` : ""}
          {one.source && (
            <span class="quiet">
              {" "}
              {one.source}
              {one.location ? `, ${ofData(one.location)}` : ""}
            </span>
          )}
        </li>
      ))}
      {diagnostics.length > MOST_DIAGNOSTICS && (
        <li class="quiet">{t`and ${countText(diagnostics.length - MOST_DIAGNOSTICS)} more`}</li>
      )}
    </ul>
  );
}

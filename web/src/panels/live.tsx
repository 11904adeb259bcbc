/** A running training: its state in one line above the picture, and its ranks, alarms and trend beside it. */

import type { ComponentChildren, ComponentType } from "preact";
import type { Viewer } from "../layout/viewer";
import { ofData, t } from "../model/language";
import { countText, durationText, percentText } from "../model/time";
import type { RankState, Training } from "../model/training";
import { TEXTS } from "./texts";
import { Trend } from "./trend";

/** One line: the connection, the last step, and how many ranks are in which condition. */
export function LiveBar({ viewer }: { viewer: Viewer }) {
  const connection = viewer.live.connection.value;
  const training = viewer.live.training.value;
  if (connection === "none" || (!training && connection === "connected")) return null;
  const isOver = training?.outcome === "is over";
  const state = connection === "connected" ? (isOver ? TEXTS.over : TEXTS.live) : TEXTS[connection];
  const newest = viewer.live.trend.value.steps.at(-1);
  return (
    <section class={`live-bar ${connection}`} aria-label={TEXTS.liveBar}>
      <span class="live-state" role="status">
        <span class="live-dot" aria-hidden="true" />
        {state}
      </span>
      {training && <FollowButton viewer={viewer} />}
      {training && <Facts viewer={viewer} training={training} />}
      {viewer.live.isHeld.value && newest && <span>{TEXTS.held(String(newest.step))}</span>}
    </section>
  );
}

function FollowButton({ viewer }: { viewer: Viewer }) {
  const { isFollowing } = viewer.live;
  return (
    <button
      type="button"
      class="follow"
      title={TEXTS.followTitle}
      aria-pressed={isFollowing.value}
      onClick={() => (isFollowing.value = !isFollowing.value)}
    >
      {TEXTS.follow}
    </button>
  );
}

function Facts({ viewer, training }: { viewer: Viewer; training: Training }) {
  const last = viewer.live.trend.value.steps.at(-1);
  const whole = viewer.live.trend.value.steps.filter((step) => step.iteration_ns !== null).at(-1);
  const facts: [string, boolean][] = [];
  if (last) facts.push([t`step ${last.step}`, false]);
  if (whole) facts.push([t`iteration ${durationText(Math.round(whole.iteration_ns!))}`, false]);
  if (last?.bubble != null) facts.push([t`bubble ${percentText(last.bubble)}`, false]);
  for (const [condition, count] of Object.entries(training.conditions))
    facts.push([
      `${countText(count)} ${ofData(condition)}`,
      condition !== "running" && condition !== "ended",
    ]);
  if (training.behind_count) facts.push([TEXTS.behind(countText(training.behind_count)), true]);
  if (training.dropped_spans) facts.push([TEXTS.dropped(countText(training.dropped_spans)), true]);
  if (training.skipped) facts.push([TEXTS.skipped(countText(training.skipped)), false]);
  if (training.clock_error_ns) facts.push([TEXTS.clocks(durationText(training.clock_error_ns)), false]);
  if (training.clock_error_ns === null && training.measured) facts.push([TEXTS.clocksUnknown, false]);
  return (
    <ul class="live-facts">
      {facts.map(([text, isBad]) => (
        <li key={text} class={isBad ? "bad" : ""}>
          {text}
        </li>
      ))}
    </ul>
  );
}

interface SectionProps {
  title: string;
  children: ComponentChildren;
}

/** The sections of the side panel about a running training. */
export function LiveSections({
  viewer,
  section: Section,
}: {
  viewer: Viewer;
  section: ComponentType<SectionProps>;
}) {
  const training = viewer.live.training.value;
  if (!training) return null;
  return (
    <>
      <Section title={TEXTS.ranks}>
        <Ranks viewer={viewer} training={training} />
      </Section>
      <Section title={TEXTS.alarms(countText(training.alarm_count))}>
        <Alarms training={training} />
      </Section>
      <Section title={TEXTS.trend}>
        <Trend viewer={viewer} />
      </Section>
    </>
  );
}

/** What each rank does; if the training has stopped, why, and what each waits for. */
function Ranks({ viewer, training }: { viewer: Viewer; training: Training }) {
  const hidden = training.rank_count - training.ranks.length;
  return (
    <div class="live-ranks">
      {training.has_stopped && (
        <div class="hang" role="alert">
          {training.sentences.map((sentence) => (
            <p key={sentence}>{ofData(sentence)}</p>
          ))}
        </div>
      )}
      {training.missing_ranks.length > 0 && <p>{TEXTS.noRecording(training.missing_ranks.join(", "))}</p>}
      <div class="live-ranks-list" tabIndex={0} role="region" aria-label={TEXTS.ranks}>
        <table>
          <thead>
            <tr>
              <th scope="col">{t("rank")}</th>
              <th scope="col">{t("step")}</th>
              <th scope="col">{t("condition, last action")}</th>
            </tr>
          </thead>
          <tbody>
            {training.ranks.map((rank) => (
              <RankRow key={rank.rank} viewer={viewer} rank={rank} />
            ))}
          </tbody>
        </table>
      </div>
      {hidden > 0 && <p class="quiet">{TEXTS.moreRanks(countText(hidden))}</p>}
    </div>
  );
}

function RankRow({ viewer, rank }: { viewer: Viewer; rank: RankState }) {
  const row = viewer.meta.ranks.rank.indexOf(rank.rank);
  return (
    <tr class={rank.is_culprit ? "culprit" : rank.condition}>
      <th scope="row">
        <button
          type="button"
          class="link"
          title={t`Show the row of rank ${rank.rank}`}
          disabled={row < 0}
          onClick={() => viewer.display.revealRow(row)}
        >
          {rank.rank}
        </button>
      </th>
      <td>{rank.step ?? "–"}</td>
      <td>
        <b>{ofData(rank.condition)}</b> {ofData(rank.doing)}
        {rank.behind > 0 && <span class="bad"> · {TEXTS.stepsBehind(rank.behind)}</span>}
        {rank.chain.length > 0 && (
          <span class="quiet"> · {TEXTS.waitsFor(rank.chain.map((one) => t`rank ${one}`).join(" → "))}</span>
        )}
      </td>
    </tr>
  );
}

function Alarms({ training }: { training: Training }) {
  if (training.alarms.length === 0) return <p class="quiet">{TEXTS.noAlarm}</p>;
  return (
    <ul class="alarms" aria-live="polite">
      {training.alarms.map((alarm) => (
        <li key={alarm.number} class={alarm.is_over ? "quiet" : "active"}>
          {alarm.sentences.map((sentence) => (
            <p key={sentence}>{ofData(sentence)}</p>
          ))}
        </li>
      ))}
    </ul>
  );
}

/** The account of lost time: by cause, each opening into what it comes from, all with one denominator. */

import { useState } from "preact/hooks";
import { waitNamed } from "../layout/colors";
import { stageLabel } from "../layout/rows";
import type { Viewer } from "../layout/viewer";
import type { IdleIntervals } from "../model/idle";
import { ofData, t } from "../model/language";
import type { Ledger, LedgerPart, Origin } from "../model/meta";
import { durationText, percentText } from "../model/time";

export function Account({ viewer, ledger }: { viewer: Viewer; ledger: Ledger }) {
  const most = Math.max(...ledger.parts.map((part) => Math.abs(part.ns ?? 0)), 1);
  return (
    <div>
      <p class="quiet">
        {t`Everything is per rank and step, in percent of ${durationText(ledger.total_ns, viewer.meta.time_unit)} (${ofData(ledger.denominator)}).`}
      </p>
      <ul class="ledger">
        {ledger.parts.map((part) => (
          <Part key={part.name} viewer={viewer} ledger={ledger} part={part} most={most} />
        ))}
      </ul>
    </div>
  );
}

interface PartProps {
  viewer: Viewer;
  ledger: Ledger;
  part: LedgerPart;
  most: number;
}

/** One cause; a click opens it, and shows only the idle intervals of which it is the largest cause. */
function Part({ viewer, ledger, part, most }: PartProps) {
  const [isOpen, setIsOpen] = useState(false);
  const isChosen = viewer.display.causeFilter.value === part.name;
  const hasIntervals = viewer.idle.value?.causes.includes(part.name) ?? false;
  const choose = (): void => {
    setIsOpen(!isOpen);
    viewer.display.causeFilter.value = isOpen || !hasIntervals ? null : part.name;
  };
  const color = barColor(viewer, part.name);
  return (
    <li>
      <button
        type="button"
        title={part.ns === null ? `${ofData(part.meaning)} ${t("Not recorded.")}` : ofData(part.meaning)}
        disabled={part.origins.length === 0 && !hasIntervals}
        aria-expanded={part.origins.length > 0 ? isOpen : undefined}
        aria-pressed={isChosen}
        onClick={choose}
      >
        <span class="ledger-name">{ofData(part.label)}</span>
        <span class="ledger-value">{valueText(viewer, part.ns, part.fraction)}</span>
        <span class="bar" style={{ width: `${(100 * Math.abs(part.ns ?? 0)) / most}%`, background: color }} />
      </button>
      {isOpen && part.origins.length > 0 && (
        <ul class="origins" aria-label={t`What ${ofData(part.label)} comes from`}>
          {part.origins.map((origin) => (
            <OriginRow
              key={JSON.stringify(origin)}
              viewer={viewer}
              ledger={ledger}
              part={part}
              origin={origin}
            />
          ))}
        </ul>
      )}
    </li>
  );
}

type OriginProps = Omit<PartProps, "most"> & { origin: Origin };

/** A rank or link; a click goes to the longest idle interval that it causes. */
function OriginRow({ viewer, ledger, part, origin }: OriginProps) {
  const value = <span class="ledger-value">{valueText(viewer, origin.ns, origin.ns / ledger.total_ns)}</span>;
  const idle = viewer.idle.value;
  const place = idle ? longestOf(viewer, idle, part.name, origin) : -1;
  if (place < 0)
    return (
      <li class="origin">
        <span>{originText(viewer, origin)}</span>
        {value}
      </li>
    );
  return (
    <li>
      <button
        type="button"
        class="origin"
        title={t("Go to the longest idle interval of this cause")}
        onClick={() => void viewer.selectIdle(place, true)}
      >
        <span class="link">{originText(viewer, origin)}</span>
        {value}
      </button>
    </li>
  );
}

function valueText(viewer: Viewer, ns: number | null, fraction: number | null): string {
  if (ns === null || fraction === null) return t("not recorded");
  return `${durationText(ns, viewer.meta.time_unit)} · ${percentText(fraction)}`;
}

function originText(viewer: Viewer, { rank, peer, pipeline, victim }: Origin): string {
  if (peer !== null) return t`transfers from rank ${rank} to rank ${peer}`;
  if (rank !== null) {
    const stage = stageLabel(viewer.meta, viewer.meta.ranks.rank.indexOf(rank));
    return stage ? t`rank ${rank}, ${stage}` : t`rank ${rank}`;
  }
  if (pipeline !== null) return t`pipeline of rank ${pipeline}`;
  return victim === null ? t("everything else") : t`idle on rank ${victim}`;
}

/** The longest idle interval of an origin; of a rank, first those of which it is the culprit. */
function longestOf(viewer: Viewer, idle: IdleIntervals, cause: string, origin: Origin): number {
  const rowOf = (rank: number): number => viewer.meta.ranks.rank.indexOf(rank);
  const { rank, peer, victim } = origin;
  const own = (place: number): boolean => idle.causeOf(place) === cause;
  if (peer !== null)
    return idle.longest(
      (place) =>
        idle.waitingFor(place).startsWith("transfer") &&
        idle.row[place] === rowOf(peer) &&
        idle.waitsForRow(place) === rowOf(rank!),
    );
  if (rank !== null) return idle.longest((place) => own(place) && idle.culpritRow(place) === rowOf(rank));
  return victim === null ? -1 : idle.longest((place) => own(place) && idle.row[place] === rowOf(victim));
}

/** The color of the wait that most of the cause's idle intervals have. */
export function barColor(viewer: Viewer, cause: string): string {
  const wait = viewer.idle.value?.mainWait(cause);
  return wait ? waitNamed(viewer.meta, wait).color : "var(--quiet)";
}

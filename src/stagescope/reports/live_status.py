"""The state of a running training as the page shows it: what each rank does, alarms, and the quality of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.analysis.hangs.conditions import RUNNING
from stagescope.reports.hang_text import hang_rows, hang_sentences
from stagescope.reports.translations import translations_of
from stagescope.reports.watch_text import alarm_sentences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagescope.analysis.hangs.culprits import HangReport
    from stagescope.analysis.watching.alarms import Alarms
    from stagescope.analysis.watching.progress import Progress

MOST_RANKS = 64
"""Ranks that are listed: those that hold up the training, that have stopped or are behind come first."""

MOST_ALARMS = 20


class LiveStatus(NamedTuple):
    """What is known of a training at a moment.

    `measured` and `skipped` count steps.
    """

    processes: HangReport
    progress: Mapping[int, Progress]
    alarms: Alarms
    measured: int
    skipped: int
    dropped_spans: int | None
    clock_error_ns: int | None


def status_json(status: LiveStatus) -> dict[str, Any]:
    """Return the state as JSON."""
    rows = list(_rank_rows(status))
    state = _state(status, rows)
    alarms = [sentence for alarm in state["alarms"] for sentence in alarm["sentences"]]
    texts = [*state["sentences"], *alarms, *(row["doing"] for row in state["ranks"])]
    return {**state, "translations": translations_of(texts)}


def _state(status: LiveStatus, rows: list[dict[str, Any]]) -> dict[str, Any]:
    report = status.processes
    return {
        "outcome": report.outcome,
        "has_stopped": report.has_stopped,
        "sentences": hang_sentences(report),
        "culprits": list(report.culprits),
        "missing_ranks": list(report.missing),
        "ranks": rows[:MOST_RANKS],
        "rank_count": len(rows),
        "behind_count": sum(row["behind"] > 0 for row in rows),
        "conditions": _counts(report),
        "alarms": [
            {
                "number": alarm.number,
                "is_over": alarm.end_step is not None,
                "sentences": alarm_sentences(alarm),
            }
            for alarm in status.alarms.all[: -MOST_ALARMS - 1 : -1]
        ],
        "alarm_count": len(status.alarms.all),
        "measured": status.measured,
        "skipped": status.skipped,
        "dropped_spans": status.dropped_spans,
        "clock_error_ns": status.clock_error_ns,
    }


def _counts(report: HangReport) -> dict[str, int]:
    found: dict[str, int] = {}
    for condition in report.conditions.values():
        found[condition] = found.get(condition, 0) + 1
    return found


def _rank_rows(status: LiveStatus) -> Iterator[dict[str, Any]]:
    """Yield a row per rank, those to look at first."""
    report = status.processes
    doing = {int(rank): text for rank, _, _, text in hang_rows(report, most=len(report.states))}
    culprits = set(report.culprits)

    def concern(rank: int) -> tuple[bool, bool, bool, int]:
        behind = status.progress[rank].behind if rank in status.progress else 0
        return rank not in culprits, report.conditions[rank] == RUNNING, not behind, rank

    for state in sorted(report.states, key=lambda each: concern(each.rank)):
        rank, last = state.rank, status.progress.get(state.rank)
        condition = report.conditions[rank]
        text = doing[rank]
        if condition == RUNNING and last is not None and state.is_recorded:
            text = f"{last.action}, {text}"
        yield {
            "rank": rank,
            "condition": condition,
            "is_culprit": rank in culprits,
            "step": state.step,
            "behind": last.behind if last is not None else 0,
            "doing": text,
            "chain": [each.rank for each in report.chain_of(rank)],
        }

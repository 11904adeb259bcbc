"""The metrics of a training that is watched: names, units and labels, and the present values.

Prometheus, OpenTelemetry and the loggers of runs all show this table. Names and units are those of Prometheus: seconds,
ratios from 0 to 1, and `_total` for counts that only rise. A value that is unknown is absent, not 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.hangs.conditions import CONDITIONS
from stagescope.analysis.watching.step_values import BUBBLE, ITERATION, LINK, PART, RANK, STEP, Subject
from stagescope.analysis.watching.trends import rank_work, stage_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stagescope.analysis.watching.step_values import StepValues
    from stagescope.api.watching import Update

NS = 1e-9

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


@dataclass
class Snapshot:
    """What is known of a training after its updates: the last step, counts since the start, and its processes.

    `whole` is the last step with an iteration: that of the last step of a training has no end.
    With `per_rank`, the values of each rank and link are metrics as well: as many series as there are ranks and links.
    """

    per_rank: bool = False
    last: StepValues | None = None
    whole: StepValues | None = None
    steps: int = 0
    skipped: int = 0
    alarms: set[int] = field(default_factory=set)
    active_alarms: set[int] = field(default_factory=set)
    hangs: int = 0
    update: Update | None = None

    def add(self, update: Update) -> None:
        """Take what is new."""
        for values in update.steps:
            self.last = values
            self.whole = values if values.quantity(ITERATION) is not None else self.whole
        self.steps += len(update.steps)
        self.skipped += update.skipped
        for alarm in update.alarms:
            self.alarms.add(alarm.number)
            self.active_alarms.discard(alarm.number)
            if alarm.end_step is None:
                self.active_alarms.add(alarm.number)
        self.hangs += update.stopped
        self.update = update

    def quantity(self, name: str) -> float | None:
        """Return a quantity of the last step or iteration, None if it is unknown."""
        source = self.last if name in {BUBBLE, STEP} else self.whole
        return None if source is None else source.quantity(name)

    def values_of(self, kind: str) -> Iterator[tuple[Subject, float]]:
        """Yield the values of the last step, or of the last iteration, about one kind of subject."""
        source = self.whole if kind == PART else self.last
        for subject, value in ({} if source is None else source.values).items():
            if subject.kind == kind:
                yield subject, value


class Metric(NamedTuple):
    """One metric: `samples` returns its present values; without any, the metric is absent."""

    name: str
    description: str
    samples: Callable[[Snapshot], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    is_count: bool = False

    @property
    def unit(self) -> str:
        """The unit in the notation of UCUM, as OpenTelemetry wants it."""
        return "s" if self.name.endswith("_seconds") else "1"


def _single(value: float | None) -> list[Sample]:
    return [] if value is None else [((), value)]


def _seconds(name: str) -> Callable[[Snapshot], list[Sample]]:
    def samples(snapshot: Snapshot) -> list[Sample]:
        value = snapshot.quantity(name)
        return _single(None if value is None else value * NS)

    return samples


def _lost(snapshot: Snapshot) -> list[Sample]:
    parts = [subject.part for subject, _ in snapshot.values_of(PART) if subject.part is not None]
    shares = {part: snapshot.quantity(part) for part in parts}
    return [((part,), share) for part, share in shares.items() if share is not None]


def _of_stages(snapshot: Snapshot) -> list[Sample]:
    """Return the longest time that a rank of each pipeline rank took for its actions."""
    if snapshot.update is None or snapshot.last is None:
        return []
    longest = stage_work(rank_work(snapshot.last), snapshot.update.stages)
    return [((str(stage),), value * NS) for stage, value in longest.items()]


def _of_ranks(snapshot: Snapshot) -> list[Sample]:
    if not snapshot.per_rank:
        return []
    return [((str(subject.rank),), value * NS) for subject, value in snapshot.values_of(RANK)]


def _of_links(snapshot: Snapshot) -> list[Sample]:
    if not snapshot.per_rank:
        return []
    return [
        ((str(subject.rank), str(subject.peer), subject.direction or ""), value * NS)
        for subject, value in snapshot.values_of(LINK)
    ]


def _processes(snapshot: Snapshot) -> list[Sample]:
    if snapshot.update is None:
        return []
    counts = Counter(snapshot.update.processes.conditions.values())
    return [((condition,), counts[condition]) for condition in CONDITIONS]


def _hung(snapshot: Snapshot) -> list[Sample]:
    return _single(None if snapshot.update is None else float(snapshot.update.processes.has_stopped))


def _clock(snapshot: Snapshot) -> list[Sample]:
    error_ns = snapshot.update.clock_error_ns if snapshot.update else None
    return _single(None if error_ns is None else error_ns * NS)


def _dropped(snapshot: Snapshot) -> list[Sample]:
    return _single(snapshot.update.dropped_spans if snapshot.update else None)


METRICS: tuple[Metric, ...] = (
    Metric("stagescope_iteration_seconds", "Duration of the last measured iteration.", _seconds(ITERATION)),
    Metric("stagescope_pipeline_window_seconds", "Pipeline window of the last measured step.", _seconds(STEP)),
    Metric(
        "stagescope_bubble_ratio", "Bubble of the last measured step, as a fraction of its pipeline window.",
        lambda snapshot: _single(snapshot.quantity(BUBBLE)),
    ),
    Metric(
        "stagescope_lost_time_ratio", "Lost time of the last measured iteration by cause, as a fraction of it.",
        _lost, ("cause",),
    ),
    Metric(
        "stagescope_stage_work_seconds",
        "Time of all actions of a rank in the last step: the longest.",
        _of_stages, ("pipeline_rank",),
    ),
    Metric(
        "stagescope_rank_work_seconds", "Time of all actions of a rank in the last measured step.",
        _of_ranks, ("rank",),
    ),
    Metric(
        "stagescope_message_seconds", "Median time of a message of a link in the last step.",
        _of_links, ("rank", "peer", "direction"),
    ),
    Metric(
        "stagescope_step", "Number of the last measured step.",
        lambda snapshot: _single(None if snapshot.last is None else snapshot.last.step),
    ),
    Metric(
        "stagescope_steps_total", "Steps measured since the watch began.",
        lambda snapshot: _single(snapshot.steps), is_count=True,
    ),
    Metric(
        "stagescope_steps_skipped_total", "Complete steps that could not be measured.",
        lambda snapshot: _single(snapshot.skipped), is_count=True,
    ),
    Metric(
        "stagescope_alarms_total", "Alarms since the watch began.",
        lambda snapshot: _single(len(snapshot.alarms)), is_count=True,
    ),
    Metric(
        "stagescope_alarms_active", "Alarms that last.", lambda snapshot: _single(len(snapshot.active_alarms))
    ),
    Metric(
        "stagescope_hangs_total", "How often the training stopped: a hang, killed ranks, or an exception.",
        lambda snapshot: _single(snapshot.hangs), is_count=True,
    ),
    Metric("stagescope_hung", "1 while the training hangs or has crashed, 0 otherwise.", _hung),
    Metric("stagescope_ranks", "Ranks with a recording, by what they do.", _processes, ("condition",)),
    Metric(
        "stagescope_dropped_spans_total", "Spans that the recorder dropped, as far as recordings state it.",
        _dropped, is_count=True,
    ),
    Metric(
        "stagescope_clock_error_seconds",
        "Largest guaranteed error between machines, if it is bounded.", _clock,
    ),
)  # fmt: skip
"""All metrics. The number of series does not grow with the number of ranks, except for those of ranks and links."""

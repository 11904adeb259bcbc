"""A running training as the local server shows it: its last steps as a run, replaced as they are recorded.

One thread reads what was added, publishes everything in memory as a new version of the run, and measures the steps as
`stagescope watch` does. Another one analyzes the last complete steps, which takes longer. Both rest after their work,
so that the server uses less than one processor however fast spans come. A third thread would make versions later: all
of them wait for the lock of the interpreter.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
from polars.exceptions import PolarsError

from stagescope.analysis.watching.progress import measure_progress
from stagescope.analysis.watching.step_values import within_steps
from stagescope.analysis.watching.trends import Trends, trend_json
from stagescope.api.settled_steps import SettledSteps
from stagescope.api.watching import Watcher
from stagescope.exporters.layers import AnalysisLayers
from stagescope.ingest.recording.latest import read_process_states
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines
from stagescope.record.format import SUFFIX
from stagescope.reports.live_status import LiveStatus, status_json
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.server.live import VersionedRun
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.sources import save_timeline
from stagescope.vocabulary.errors import InputError, StagescopeError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from stagescope.analysis.watching.progress import Progress
    from stagescope.api.watching import Update
    from stagescope.model import Timeline
    from stagescope.viewer.tiles.run import RunView

MOST_BYTES = 10 * 2**20
"""Of all spans in memory: 130,000."""

ANALYZED_SPANS, MOST_ANALYZED_STEPS = 20_000, 8
"""The last complete steps of which the page has the analysis; one step at least, which takes 3 s of a processor for
100,000 spans."""

LOOK_S = 0.05
"""How often files are looked at. Processes write twice a second."""

BETWEEN_VERSIONS_S = 0.25
"""Ranks do not write at the same moment; what they write within so short a time after a version is shown together."""

MOST_PROCESSOR = 0.8
"""Share of a processor that all threads together may use: reading rests until they have used no more."""

MEASURING_SHARE, ANALYZING_SHARE = 0.15, 0.1
"""Shares of the time for measuring steps, and for the analysis."""

LEAST_BETWEEN_ANALYSES_S = 3.0
WRITTEN_S = 60.0
"""A training runs if one of its processes has written within this time; they write every four seconds."""

STATUS_S = 1.0
"""The state of the ranks is published so often, also while nothing is recorded."""


class Analyzed(NamedTuple):
    """Complete steps from `first` to `last`, which an analysis describes: their spans, and its results."""

    first: int
    last: int
    timeline: Timeline
    extras: AnalysisLayers


class LiveTraining(VersionedRun):
    """The last steps of a running training, its state and its trend. `start` begins to follow it, `close` ends that.

    Raises InputError if nothing can be read or shown yet.
    """

    def __init__(self, *directories: str | os.PathLike[str]) -> None:
        """Read what there is."""
        self._directories = directories
        self._watcher = Watcher(*directories, most_bytes=MOST_BYTES)
        self._trends = Trends()
        # Another server may have made versions of the same training: a page that is still open has their names.
        self._name, self._made = secrets.token_hex(6), 0
        self._position = -1
        self._analyzed: Analyzed | None = None
        self._skipped = 0
        self._problems: dict[str, str | None] = dict.fromkeys(("reading", "analysis"))
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._steps = SettledSteps()
        self._restarts = 0
        self._progress: Mapping[int, Progress] = {}
        update = self._watcher.update(latest_only=True)
        while update.has_more:
            update = self._watcher.update(latest_only=True)
        self._folder = tempfile.TemporaryDirectory(prefix="stagescope-live-")
        super().__init__(self._view(), drop=self._remove)
        self._publish(update)

    def start(self) -> None:
        """Follow the training in the background."""
        for work in (self._follow, self._analyze):
            thread = threading.Thread(target=work, name="stagescope-live", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """End following, and remove all files."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._folder.cleanup()

    def trend_since(self, number: int) -> Mapping[str, Any]:
        """Return the measured steps from a number on, as far as they are kept."""
        with self._lock:
            first, steps = self._trends.since(number)
        return {"first": first, "steps": trend_json(steps)}

    def _follow(self) -> None:
        """Publish what was added, and measure steps, again and again, with rests."""
        rest_s, measure_not_before_s, published_s = 0.0, 0.0, 0.0
        while not self._ended.wait(max(LOOK_S, rest_s)):
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            is_new = False
            with self._reporting("reading"):
                update = self._watcher.update(measure=False, latest_only=True)
                is_new = self._show_if_new()
                update = replace(update, processes=self._watcher.look_at_processes(latest_only=True))
                if began_s >= measure_not_before_s:
                    update, measure_not_before_s = self._measure()
                now_s = time.monotonic()
                if update.steps or update.alarms or update.skipped or now_s - published_s > STATUS_S:
                    published_s = now_s
                    self._publish(update)
            used_s = time.process_time() - began_cpu_s
            least_s = BETWEEN_VERSIONS_S if is_new else 0.0
            rest_s = max(used_s / MOST_PROCESSOR, least_s) - (time.monotonic() - began_s)

    def _measure(self) -> tuple[Update, float]:
        """Measure complete steps, after the picture, which need not wait for that. Return when it may happen again."""
        began_cpu_s = time.process_time()
        update = self._watcher.update(latest_only=True)
        # Of the processor, not of the clock: other programs may have it for most of the time.
        used_s = time.process_time() - began_cpu_s if update.steps else 0.0
        return update, time.monotonic() + used_s / MEASURING_SHARE

    def _show_if_new(self) -> bool:
        """Publish the last steps as a version of the run, if anything was read since; return whether there was."""
        is_new = self._watcher.position != self._position
        if is_new:
            self.show(self._view())
        return is_new

    def _view(self) -> RunView:
        """Return the last steps as a run: the analyzed ones as they were analyzed, and all others."""
        self._position = self._watcher.position
        if self._watcher.restarts > self._restarts:
            self._restarts, self._steps, self._analyzed = self._watcher.restarts, SettledSteps(), None
        recent = self._watcher.recent(self._steps.last)
        if recent is None:
            raise InputError.no_recordings(self._directories[0])
        timeline = self._steps.take(recent, self._watcher.complete_step)
        self._progress = measure_progress(timeline)
        analyzed, extras = self._analyzed, AnalysisLayers()
        if analyzed is not None and analyzed.first >= self._steps.first:
            timeline = with_analyzed(timeline, analyzed.timeline)
            extras = analyzed.extras
        elif analyzed is not None:  # its steps are no longer shown
            extras = AnalysisLayers(objects=without_rows(analyzed.extras.objects))
        bubbles = step_bubbles(self._steps.spans, find_pipelines(timeline.spans, timeline.ranks))
        self._made += 1
        folder = Path(self._folder.name) / f"{self._name}-{self._made}"
        folder.mkdir()
        save_timeline(timeline, folder, replace(extras, bubbles=bubbles, steps=None))
        return open_run(folder)

    def _remove(self, run: RunView) -> None:
        shutil.rmtree(Path(self._folder.name) / run.version, ignore_errors=True)

    def _publish(self, update: Update) -> None:
        """Take the steps of an update, and publish the state of the training."""
        self._skipped += update.skipped
        with self._lock:
            self._trends.add(update.steps, update.stages, update.data_rates)
        status = LiveStatus(
            update.processes, self._progress, self._watcher.alarms, self._trends.count, self._skipped,
            update.dropped_spans, update.clock_error_ns,
        )  # fmt: skip
        self.training = status_json(status)
        self.announce()

    def _analyze(self) -> None:
        """Analyze the last complete steps again and again, with rests."""
        rest_s = 0.0
        while not self._ended.wait(max(LEAST_BETWEEN_ANALYSES_S, rest_s)):
            began_s = time.process_time()
            with self._reporting("analysis"):
                found = self._last_steps()
                if found is not None:
                    self._analyzed = analyze_steps(*found)
            rest_s = (time.process_time() - began_s) * (1 / ANALYZING_SHARE - 1)

    def _last_steps(self) -> tuple[Timeline, int, int] | None:
        """Return the last complete steps that are not analyzed yet, None without."""
        settled = self._steps.timeline
        steps = [] if settled is None else sorted(set(settled.spans["step"].drop_nulls()))
        if settled is None or not steps or (self._analyzed is not None and self._analyzed.last == steps[-1]):
            return None
        count = max(1, min(MOST_ANALYZED_STEPS, ANALYZED_SPANS * len(steps) // settled.spans.height))
        return settled, steps[-count:][0], steps[-1]

    @contextmanager
    def _reporting(self, part: str) -> Iterator[None]:
        """Publish the problem of a part that failed; pages keep the last version."""
        problem = None
        try:
            yield
        except (StagescopeError, PolarsError, OSError, ValueError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - the next look may succeed, and pages show why this one did not
            problem = f"internal error: {type(error).__name__}: {error}"
        self._problems[part] = problem
        first = next(filter(None, self._problems.values()), None)
        if first != self.problem:
            self.problem = first
            self.announce()


def is_running(*paths: str | os.PathLike[str]) -> bool:
    """Return whether paths are directories of recordings to which a process has written within the last minute."""
    if not paths or not all(Path(path).is_dir() for path in paths):
        return False
    if not any(any(Path(path).rglob(f"*{SUFFIX}")) for path in paths):
        return False
    try:
        states = read_process_states(paths)
    except StagescopeError:
        return False
    return any(state.end_reason is None and state.written_s < WRITTEN_S for state in states)


def analyze_steps(timeline: Timeline, first: int, last: int) -> Analyzed:
    """Return the analysis of some steps of a timeline."""
    chosen = within_steps(timeline, first, last)
    extras = gather_extras(chosen)
    return Analyzed(
        first, last, chosen, replace(extras, objects={**extras.objects, "analyzed": [first, last]})
    )


def without_rows(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sentences and sums of an analysis whose spans are not shown."""
    verdict = objects.get("verdict") or {}
    findings = [{**finding, "row": None} for finding in verdict.get("findings", ())]
    return {**objects, "verdict": {**verdict, "findings": findings}} if verdict else dict(objects)


def with_analyzed(timeline: Timeline, analyzed: Timeline) -> Timeline:
    """Return a timeline with the spans of another one first, in place of its own in that time.

    Rows of results about the analyzed spans are then rows of the whole. The alignment of clocks changes a little with
    every reading, so its spans are those that were analyzed.
    """
    steps = analyzed.spans["step"].drop_nulls()
    begin, end = analyzed.spans["start_ns"].min(), analyzed.spans["end_ns"].max()
    is_in = pl.col("step").is_between(steps.min(), steps.max())
    is_between = pl.col("step").is_null() & (pl.col("start_ns") >= begin) & (pl.col("end_ns") <= end)
    others = timeline.spans.filter(~(is_in.fill_null(value=False) | is_between))
    return replace(timeline, spans=pl.concat([analyzed.spans, others]))

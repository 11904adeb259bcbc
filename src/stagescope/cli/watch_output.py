"""The outputs of ``stagescope watch``: a view that a terminal shows, a log of lines, and JSON lines."""

from __future__ import annotations

import json
import time
from itertools import chain
from textwrap import TextWrapper
from typing import TYPE_CHECKING

from stagescope.cli.console import echo, terminal_width
from stagescope.reports.aligned import aligned
from stagescope.reports.hang_text import hang_rows, hang_sentences
from stagescope.reports.watch_text import (
    alarm_json,
    cause_rows,
    event_lines,
    headline,
    sparkline,
    step_json,
)
from stagescope.vocabulary.number_ranges import ranks_text
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.analysis.watching.step_values import StepValues
    from stagescope.api.watching import Look, Watcher

STATUS_EVERY_S = 30.0
SPARKLINE_WIDTH = 60
MOST_RANKS = 12
MOST_ALARMS = 5


class JsonLines:
    """One JSON object per step, alarm and hang."""

    def show(self, look: Look) -> None:
        """Print what is new."""
        for values in look.steps:
            self._print("step", step_json(values))
        for alarm in look.alarms:
            self._print("alarm", alarm_json(alarm))
        if look.hang_began:
            facts = {"culprits": list(look.processes.culprits), "sentences": hang_sentences(look.processes)}
            self._print("hang", facts)
        if look.hang_ended:
            self._print("hang_over", {})

    def _print(self, event: str, facts: dict[str, object]) -> None:
        echo(json.dumps({"event": event, **facts}))


class Log:
    """A line per alarm as it happens, and one about the state twice a minute."""

    def __init__(self, watcher: Watcher) -> None:
        """Print what a watcher finds."""
        self._watcher = watcher
        self._status_s = float("-inf")
        self._last: StepValues | None = None

    def show(self, look: Look) -> None:
        """Print what is new."""
        self._last = look.steps[-1] if look.steps else self._last
        for alarm in look.alarms:
            for line in event_lines(alarm):
                echo(line)
        for line in _hang_lines(look):
            echo(line)
        if look.is_over or time.monotonic() - self._status_s > STATUS_EVERY_S:
            self._status_s = time.monotonic()
            echo(headline(self._watcher.alarms, self._last))
        if look.is_over:
            echo(printable(hang_sentences(look.processes)[0]))


class View:
    """The state of a training, which replaces itself on the terminal."""

    def __init__(self, watcher: Watcher, replace: Callable[[str], object]) -> None:
        """Show what a watcher finds with `replace`."""
        self._watcher = watcher
        self._replace = replace
        self._last: StepValues | None = None
        self._skipped = 0

    def show(self, look: Look) -> None:
        """Replace the text."""
        self._last = look.steps[-1] if look.steps else self._last
        self._skipped += look.skipped
        width = terminal_width()
        wrapper = TextWrapper(width, subsequent_indent="  ", drop_whitespace=False, break_on_hyphens=False)
        wrapped = (wrapper.wrap(line) or [""] for line in self._lines(look))
        self._replace("\n".join(chain.from_iterable(wrapped)))

    def _lines(self, look: Look) -> Iterator[str]:
        alarms = self._watcher.alarms
        yield headline(alarms, self._last)
        bars = sparkline(alarms.history, SPARKLINE_WIDTH)
        if bars:
            yield f"iterations {bars}"
        if self._skipped:
            yield f"{self._skipped} steps were not measured"
        causes = cause_rows(alarms.history)
        if causes:
            yield ""
            yield from aligned(("lost time", "now", "usual"), causes, (0,))
        yield ""
        yield from self._ranks(look)
        yield ""
        yield from _hang_lines(look) if look.hang_began else _state_lines(look)
        for alarm in alarms.all[-MOST_ALARMS:]:
            yield from event_lines(alarm)
        if not alarms.all:
            yield "no alarm"

    def _ranks(self, look: Look) -> Iterator[str]:
        rows = [tuple(map(printable, row)) for row in hang_rows(look.processes)]
        yield from aligned(("rank", "condition", "step", "last"), rows[:MOST_RANKS], (1, 3))
        if len(look.processes.states) > min(len(rows), MOST_RANKS):
            yield f"... and {len(look.processes.states) - min(len(rows), MOST_RANKS)} more ranks"
        if look.processes.missing:
            yield f"No recording of {ranks_text(look.processes.missing)}."


def _hang_lines(look: Look) -> Iterator[str]:
    if look.hang_began:
        yield from (f"hang: {printable(sentence)}" for sentence in hang_sentences(look.processes))
    if look.hang_ended:
        yield "hang: over, all ranks record again"


def _state_lines(look: Look) -> Iterator[str]:
    if look.processes.is_hung:
        yield from (f"hang: {printable(sentence)}" for sentence in hang_sentences(look.processes))

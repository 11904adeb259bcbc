"""What ``stagescope watch`` prints: a view on a terminal, a log in a pipe, or JSON lines."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from itertools import chain
from math import ceil
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from stagescope.cli.console import echo, echo_data, terminal_width
from stagescope.cli.diagnostics import diagnostic_lines
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
    from stagescope.api.watching import Update, Watcher
    from stagescope.model.diagnostics import Diagnostic

STATUS_EVERY_S = 30.0
SPARKLINE_WIDTH = 60
MOST_RANKS = 12
MOST_ALARMS = 5
MOST_DIAGNOSTICS = 5
RESTARTED = "A new attempt of the training has begun."
CONTINUES = "The training continues: all ranks record spans."


def alarm_events(update: Update) -> Iterator[dict[str, Any]]:
    """Yield the alarms that began, changed or ended, and whether the training stopped, as plain data."""
    for alarm in update.alarms:
        yield {"event": "alarm", **alarm_json(alarm)}
    if update.stopped:
        culprits, sentences = list(update.processes.culprits), hang_sentences(update.processes)
        yield {"event": "stopped", "culprits": culprits, "sentences": sentences}
    if update.continues:
        yield {"event": "continues", "sentences": [CONTINUES]}


def restart_sentence(update: Update) -> str:
    """Return that a new attempt is waited for."""
    return f"waiting up to {ceil(update.restart_wait_s)} s for the launcher to start the training again"


class JsonLines:
    """One JSON object per line: steps, alarms, diagnostics, dropped spans, and whether the training stopped."""

    def __init__(self) -> None:
        """Begin without dropped spans."""
        self._dropped = 0
        self._is_waiting = False

    def show(self, update: Update) -> None:
        """Print what is new."""
        dropped = [{"event": "dropped_spans", "count": update.dropped_spans}]
        is_new = (update.dropped_spans or 0) != self._dropped
        self._dropped = update.dropped_spans or 0
        steps = ({"event": "step", **step_json(values)} for values in update.steps)
        found = ({"event": "diagnostic", **asdict(one)} for one in update.diagnostics)
        begun = ({"event": "restarted", "sentences": [RESTARTED]},) if update.is_restarted else ()
        for event in (*begun, *steps, *found, *(dropped if is_new else ()), *alarm_events(update)):
            echo_data(json.dumps(event))
        if update.restart_wait_s and not self._is_waiting:
            event = {"event": "waiting_for_restart", "seconds": update.restart_wait_s}
            echo_data(json.dumps({**event, "sentences": [restart_sentence(update)]}))
        self._is_waiting = bool(update.restart_wait_s)


class Log:
    """Alarms and diagnostics as they are found, and a line about the state twice a minute."""

    def __init__(self, watcher: Watcher) -> None:
        """Print what a watcher finds."""
        self._watcher = watcher
        self._status_s = float("-inf")
        self._last: StepValues | None = None
        self._skipped = 0
        self._was_over = False
        self._awaited: tuple[int, ...] = ()

    def show(self, update: Update) -> None:
        """Print what is new."""
        last = None if update.is_restarted else self._last
        self._last = update.steps[-1] if update.steps else last
        self._skipped += update.skipped
        for line in (*diagnostic_lines(update.diagnostics), *_news(update)):
            echo(line)
        is_newly_over, self._was_over = update.is_over and not self._was_over, update.is_over
        is_waiting = update.is_over or bool(update.processes.awaited)
        if is_newly_over or (not is_waiting and time.monotonic() - self._status_s > STATUS_EVERY_S):
            self._status_s = time.monotonic()
            echo(headline(self._watcher.alarms, self._last, self._skipped, update.dropped_spans))
        if is_newly_over:
            for sentence in _sentences(update):
                echo(sentence)
            if update.restart_wait_s:
                echo(restart_sentence(update))
        if update.processes.awaited != self._awaited:
            self._awaited = update.processes.awaited
            for sentence in _sentences(update) if self._awaited and not update.is_over else ():
                echo(sentence)


class View:
    """The state of a training, which replaces itself on the terminal."""

    def __init__(self, watcher: Watcher, replace: Callable[[str], object]) -> None:
        """Show what a watcher finds with `replace`."""
        self._watcher = watcher
        self._replace = replace
        self._last: StepValues | None = None
        self._skipped = 0
        self._diagnostics: tuple[Diagnostic, ...] = ()

    def show(self, update: Update) -> None:
        """Replace the text."""
        last = None if update.is_restarted else self._last
        self._last = update.steps[-1] if update.steps else last
        self._skipped += update.skipped
        self._diagnostics += update.diagnostics
        width = terminal_width()
        wrapper = TextWrapper(width, subsequent_indent="  ", drop_whitespace=False, break_on_hyphens=False)
        wrapped = (wrapper.wrap(line) or [""] for line in self._lines(update, width))
        self._replace("\n".join(chain.from_iterable(wrapped)))

    def _lines(self, update: Update, width: int) -> Iterator[str]:
        alarms = self._watcher.alarms
        yield headline(alarms, self._last, self._skipped, update.dropped_spans)
        label = "iterations "
        bars = sparkline(alarms.history, max(1, min(SPARKLINE_WIDTH, width - len(label))))
        if bars:
            yield f"{label}{bars}"
        causes = cause_rows(alarms.history)
        if causes:
            yield ""
            yield from aligned(("lost time", "now", "usual"), causes, (0,))
        yield ""
        yield from self._ranks(update)
        yield ""
        yield from diagnostic_lines(self._diagnostics, MOST_DIAGNOSTICS)
        if update.processes.has_stopped or update.processes.awaited:
            yield from _sentences(update)
        if update.restart_wait_s:
            yield restart_sentence(update)
        for alarm in alarms.all[-MOST_ALARMS:]:
            yield from event_lines(alarm)
        if not alarms.all and not update.processes.has_stopped:
            yield "no alarm"

    def _ranks(self, update: Update) -> Iterator[str]:
        rows = [tuple(map(printable, row)) for row in hang_rows(update.processes)][:MOST_RANKS]
        yield from aligned(("rank", "condition", "step", "last"), rows, (1, 3))
        hidden = len(update.processes.states) - len(rows)
        if hidden:
            yield f"... and {hidden} more ranks"
        if update.processes.missing:
            yield f"No recording of {ranks_text(update.processes.missing)}."


def _news(update: Update) -> Iterator[str]:
    """Yield the lines of alarms and hangs that began or ended; the log ends with the outcome."""
    if update.is_restarted:
        yield RESTARTED
    for alarm in update.alarms:
        yield from event_lines(alarm)
    if update.stopped and not update.is_over:
        yield from _sentences(update)
    if update.continues:
        yield CONTINUES


def _sentences(update: Update) -> Iterator[str]:
    return map(printable, hang_sentences(update.processes))

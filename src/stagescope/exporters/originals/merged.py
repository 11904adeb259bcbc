"""What both merged traces have in common: the originals one after the other, beside the actions of the run.

A merged trace has the tracks of the run as every export of stagescope has them (actions, transfers, the arrows of
messages, and those of collectives whose number in their group is known), and below them every thread, stream and
counter of the original traces with its slices and arrows from launch to kernel. Each timestamp is corrected on its own,
so that no drift remains. One original is in memory at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stagescope.exporters.originals.collective_flows import with_collective_flows
from stagescope.exporters.originals.events import OriginalEvents, read_events
from stagescope.exporters.originals.files import find_originals, no_progress
from stagescope.exporters.tracks import lay_out
from stagescope.exporters.writer import Writer
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from stagescope.exporters.originals.files import Original, Progress
    from stagescope.exporters.tracks import Layout
    from stagescope.exporters.writer import Written
    from stagescope.model import Timeline


class Drawn(NamedTuple):
    """The layout of the run with arrows between collectives, and the originals to draw below it."""

    layout: Layout
    originals: list[Original]


def prepare(timeline: Timeline) -> Drawn:
    """Return what to draw. Raises OutputError where the original of a rank is missing."""
    originals = find_originals(timeline)
    layout = lay_out(timeline)
    flows, _ = with_collective_flows(layout.slices, layout.flows)
    return Drawn(replace(layout, flows=flows), originals)


class Totals:
    """Counts of what was drawn of all originals."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.slices = self.flows = self.trimmed = self.left_out = 0
        self.track_names: list[str] = []

    def add(self, events: OriginalEvents) -> None:
        """Count the events of one original."""
        self.slices += len(events.slices)
        self.flows += count_flows(events)
        self.trimmed += events.trimmed
        self.left_out += events.left_out
        self.track_names += [track_name(events, number) for number in range(len(events.tracks))]

    def diagnostics(self) -> Iterable[Diagnostic]:
        """Return what was not drawn as it was recorded."""
        if self.trimmed:
            text = "slices of the originals end within a microsecond after the slice around them, and were trimmed"
            yield Diagnostic("info", text, count=self.trimmed, code="slices.trimmed")
        if self.left_out:
            text = "events of the originals are instants or have no time, and were left out"
            yield Diagnostic("info", text, count=self.left_out, code="events.not_merged")


def each_original(drawn: Drawn, totals: Totals, on_progress: Progress) -> Iterator[OriginalEvents]:
    """Yield the events of one original after the other, and count them."""
    on_progress(0, len(drawn.originals))
    for done, original in enumerate(drawn.originals, start=1):
        events = read_events(original)
        totals.add(events)
        yield events
        on_progress(done, len(drawn.originals))


def merging_writer(
    name: str, suffix: str, description: str, write: Callable[[Timeline, Path, Progress], Written]
) -> Writer:
    """Return the writer of a merged trace, whose function `write` also gets what to call with the progress."""

    def made(on_progress: Progress) -> Writer:
        def write_with(timeline: Timeline, path: Path) -> Written:
            return write(timeline, path, on_progress)

        return Writer(name, suffix, description, write_with, with_progress=made)

    return made(no_progress)


def count_flows(events: OriginalEvents) -> int:
    """Return how many arrows have both ends: one start, and each of its ends."""
    begun = {end.flow for end in events.flows if end.is_start}
    return sum(not end.is_start and end.flow in begun for end in events.flows)


def process_name(events: OriginalEvents, pid: int | str) -> str:
    """Return the heading of a process of an original: its rank, and the name that the original has for it."""
    own = events.names.get((pid, None))
    return f"rank {events.original.rank}: {own or 'process'} {pid}"


def track_name(events: OriginalEvents, number: int) -> str:
    """Return the name of a track of an original: that of the thread or stream, and its lane from the second one on."""
    track = events.tracks[number]
    name = events.names.get((track.pid, track.tid)) or str(track.tid)
    lane = f" ({track.lane + 1})" if track.lane else ""
    return f"{name}{lane}"

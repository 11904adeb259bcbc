"""One recording: a process, or the part of it between a start and a stop of the recorder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.recording.facts import FAR_NS

if TYPE_CHECKING:
    from stagescope.ingest.recording.facts import Facts
    from stagescope.ingest.recording.frames import Contents
    from stagescope.model.diagnostics import Diagnostic


@dataclass(frozen=True)
class Process:
    """A recording with its rank, the file that it was read from, and the name of its clock.

    `facts` are those about its spans, which `contents` has no more where a run is read one part at a time. `clock` is
    empty until `assign_clocks` has compared all recordings. `notes` is what was found in its files.
    """

    rank: int
    source: str
    contents: Contents
    facts: Facts
    clock: str = ""
    notes: tuple[Diagnostic, ...] = ()

    @property
    def host(self) -> str | None:
        """Host name as seen by the process."""
        host = self.contents.header.get("host")
        return str(host) if host else None

    @property
    def action_count(self) -> int:
        """Number of forwards and backwards."""
        return self.facts.actions

    @property
    def step_count(self) -> int:
        """Number of steps that were completed, of steps with spans where nothing marks the steps themselves.

        Steps that were not asked for are counted, too.
        """
        return len(np.union1d(self.facts.steps, self.contents.unchosen_steps))

    @cached_property
    def offset_ns(self) -> int:
        """What its tightest anchor adds to its timestamps to give the wall clock; 0 without an anchor."""
        anchors = self.contents.anchors
        if not len(anchors):
            return 0
        best = anchors[anchors["width_ns"].argmin()]
        return int(best["realtime_ns"] - best["monotonic_ns"])

    @cached_property
    def extent_ns(self) -> tuple[int, int]:
        """First and last moment of the recording, on its own clock."""
        anchors = self.contents.anchors["monotonic_ns"]
        first_ns, last_ns = self.facts.extent_ns or (FAR_NS, -FAR_NS)
        moments = [first_ns, anchors.min(initial=FAR_NS)]
        ends = [last_ns, anchors.max(initial=-FAR_NS)]
        began_ns = self.contents.header.get("process_start_ns")
        if isinstance(began_ns, int) and abs(began_ns) < FAR_NS:
            moments.append(began_ns)
            ends.append(began_ns)
        first, last = int(min(moments)), int(max(ends))
        return (first, last) if first <= last else (0, 0)

    @property
    def wall_extent_ns(self) -> tuple[int, int]:
        """First and last moment of the recording, on the wall clock."""
        first_ns, last_ns = self.extent_ns
        return first_ns + self.offset_ns, last_ns + self.offset_ns

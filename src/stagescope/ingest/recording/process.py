"""One recording: a process, or the part of it between a start and a stop of the recorder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME, STEP_CODE

if TYPE_CHECKING:
    from stagescope.ingest.recording.frames import Contents
    from stagescope.model.diagnostics import Diagnostic

ACTION_CODES = [BY_NAME[kind].code for kind in ACTION_KINDS]


@dataclass(frozen=True)
class Process:
    """A recording with its rank, the file that it was read from, and the name of its clock.

    `clock` is empty until `assign_clocks` has compared all recordings. `notes` is what was found when its files were
    joined.
    """

    rank: int
    source: str
    contents: Contents
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
        return int(np.isin(self.contents.spans["kind"], ACTION_CODES).sum())

    @property
    def step_count(self) -> int:
        """Number of steps that were completed, of steps with spans where nothing marks the steps themselves.

        Steps that were not asked for are counted, too.
        """
        spans = self.contents.spans
        is_marker = spans["kind"] == STEP_CODE
        numbers = spans["step"][is_marker] if is_marker.any() else spans["step"][spans["step"] >= 0]
        return len(np.unique(np.concatenate([numbers, self.contents.unchosen_steps])))

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
        spans, anchors = self.contents.spans, self.contents.anchors["monotonic_ns"]
        moments = [spans["start_ns"].min(initial=2**62), anchors.min(initial=2**62)]
        ends = [spans["end_ns"].max(initial=-(2**62)), anchors.max(initial=-(2**62))]
        began_ns = self.contents.header.get("process_start_ns")
        if isinstance(began_ns, int) and abs(began_ns) < 2**62:
            moments.append(began_ns)
            ends.append(began_ns)
        first, last = int(min(moments)), int(max(ends))
        return (first, last) if first <= last else (0, 0)

    @property
    def wall_extent_ns(self) -> tuple[int, int]:
        """First and last moment of the recording, on the wall clock."""
        first_ns, last_ns = self.extent_ns
        return first_ns + self.offset_ns, last_ns + self.offset_ns

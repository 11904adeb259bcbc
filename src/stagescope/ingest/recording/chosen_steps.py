"""The records of some steps, so that those of all others need no memory after their file was read.

What has no step belongs to the steps if it began after the steps before them and before the steps after them.
ingest/step_selection.py applies the same rule to the tables of a run. For that, the markers of the steps next to the
chosen ones are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.recording.columns import concatenated
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from stagescope.ingest.recording.columns import Columns
    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process
    from stagescope.vocabulary.steps import StepRange

ALWAYS_NS = 2**63 - 1


def with_chosen_steps(contents: Contents, steps: StepRange | None, most_spans: int | None = None) -> Contents:
    """Return the content of a file without the spans and counters of other steps, which `unchosen` counts.

    A file in which no span has a step is returned as it is: its steps are unknown until all files were read. If more
    than `most_spans` of a file that was read in blocks are left, they stay in it.
    """
    if steps is None:
        return contents
    bounds_ns = _bounds(contents, steps)
    if bounds_ns is None:
        return contents.in_memory(most_spans)
    kept: list[Columns] = []
    count, is_few = 0, True
    others = np.empty(0, np.int32)
    for spans in contents.blocks():
        is_kept = _are_kept(spans, steps, bounds_ns)
        count += int(is_kept.sum())
        is_few = most_spans is None or count <= most_spans
        kept = [*kept, spans.where(is_kept)] if is_few else []
        numbers = spans["step"][~is_kept]
        others = np.union1d(others, numbers[numbers >= 0]).astype(np.int32)
    first_ns, last_ns = bounds_ns
    counters = contents.counters
    is_counted = np.where(
        counters["step"] >= 0,
        (counters["step"] >= steps.start) & (counters["step"] < steps.stop),
        (counters["time_ns"] >= first_ns) & (counters["time_ns"] < last_ns),
    )
    chosen = replace(
        contents,
        counters=counters[is_counted],
        unchosen_spans=contents.span_count - count,
        unchosen_steps=others,
    )
    if is_few:
        return replace(chosen, spans=concatenated(kept), long=None)
    return chosen.with_changed_spans(partial(_chosen, steps=steps, bounds_ns=bounds_ns), count)


def _chosen(spans: Columns, steps: StepRange, bounds_ns: tuple[int, int]) -> Columns:
    return spans.where(_are_kept(spans, steps, bounds_ns))


def _bounds(contents: Contents, steps: StepRange) -> tuple[int, int] | None:
    """Return when the steps before the chosen ones ended and those after them began, None if no span has a step.

    Where steps are marked, the markers state it.
    """
    of_markers, of_spans = _Bounds(), _Bounds()
    for spans in contents.blocks():
        has_step = spans["step"] >= 0
        of_markers.add(spans, has_step & (spans["kind"] == STEP_CODE), steps)
        of_spans.add(spans, has_step, steps)
    found = of_markers if of_markers.is_known else of_spans
    return (found.first_ns, found.last_ns) if found.is_known else None


@dataclass
class _Bounds:
    is_known: bool = False
    first_ns: int = -ALWAYS_NS
    last_ns: int = ALWAYS_NS

    def add(self, spans: Columns, chosen: npt.NDArray[np.bool_], steps: StepRange) -> None:
        """Add the chosen ones of some spans."""
        number = spans["step"]
        self.is_known |= bool(chosen.any())
        ends_ns = spans["end_ns"][chosen & (number < steps.start)]
        starts_ns = spans["start_ns"][chosen & (number >= steps.stop)]
        self.first_ns = int(ends_ns.max(initial=self.first_ns))
        self.last_ns = int(starts_ns.min(initial=self.last_ns))


def _are_kept(spans: Columns, steps: StepRange, bounds_ns: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return which spans belong to the chosen steps, or mark the steps next to them."""
    number, (first_ns, last_ns) = spans["step"], bounds_ns
    has_step = number >= 0
    is_marker = has_step & (spans["kind"] == STEP_CODE)
    is_chosen = (number >= steps.start) & (number < steps.stop)
    is_between = ~has_step & (spans["start_ns"] >= first_ns) & (spans["start_ns"] < last_ns)
    is_next = is_marker & ((spans["end_ns"] == first_ns) | (spans["start_ns"] == last_ns))
    kept: npt.NDArray[np.bool_] = is_chosen | is_between | is_next
    return kept


def require_chosen_steps(processes: Iterable[Process], steps: StepRange | None) -> None:
    """Raise InputError if other steps were recorded, but none of these."""
    if steps is None:
        return
    numbers = np.unique(np.concatenate([process.facts.every_step for process in processes]))
    if ((numbers >= steps.start) & (numbers < steps.stop)).any():
        return
    others = np.concatenate([numbers, *(process.contents.unchosen_steps for process in processes)])
    if len(others):
        raise InputError.no_steps(str(steps), int(others.min()), int(others.max()))

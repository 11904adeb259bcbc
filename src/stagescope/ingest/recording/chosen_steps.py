"""The records of some steps, so that those of all others need no memory after their file was read.

What has no step belongs to the steps if it began after the steps before them and before the steps after them.
ingest/step_selection.py applies the same rule to the tables of a run. For that, the markers of the steps next to the
chosen ones are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process
    from stagescope.vocabulary.steps import StepRange

ALWAYS_NS = 2**63 - 1


def with_chosen_steps(contents: Contents, steps: StepRange | None) -> Contents:
    """Return the content of a file without the spans and counters of other steps, which `unchosen` counts.

    A file in which no span has a step is returned as it is: its steps are unknown until all files were read.
    """
    spans = contents.spans
    number = spans["step"]
    has_step = number >= 0
    if steps is None or not has_step.any():
        return contents
    is_marker = has_step & (spans["kind"] == STEP_CODE)
    basis = is_marker if is_marker.any() else has_step
    first_ns = spans["end_ns"][basis & (number < steps.start)].max(initial=-ALWAYS_NS)
    last_ns = spans["start_ns"][basis & (number >= steps.stop)].min(initial=ALWAYS_NS)
    is_chosen = (number >= steps.start) & (number < steps.stop)
    is_between = ~has_step & (spans["start_ns"] >= first_ns) & (spans["start_ns"] < last_ns)
    is_next = is_marker & ((spans["end_ns"] == first_ns) | (spans["start_ns"] == last_ns))
    is_kept = is_chosen | is_between | is_next
    counters = contents.counters
    is_counted = np.where(
        counters["step"] >= 0,
        (counters["step"] >= steps.start) & (counters["step"] < steps.stop),
        (counters["time_ns"] >= first_ns) & (counters["time_ns"] < last_ns),
    )
    return replace(
        contents,
        spans=spans.where(is_kept),
        counters=counters[is_counted],
        unchosen_spans=int((~is_kept).sum()),
        unchosen_steps=np.unique(number[has_step & ~is_kept]),
    )


def require_chosen_steps(processes: Iterable[Process], steps: StepRange | None) -> None:
    """Raise InputError if other steps were recorded, but none of these."""
    if steps is None:
        return
    numbers = [process.contents.spans["step"] for process in processes]
    if any(((own >= steps.start) & (own < steps.stop)).any() for own in numbers):
        return
    others = np.concatenate([*numbers, *(process.contents.unchosen_steps for process in processes)])
    others = others[others >= 0]
    if len(others):
        raise InputError.no_steps(str(steps), int(others.min()), int(others.max()))

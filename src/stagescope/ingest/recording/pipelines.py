"""The pipelines that one process ran one after the other, of which one is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagescope.model.diagnostics import Diagnostic
from stagescope.record.format import NONE
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from stagescope.ingest.recording.process import Process


def choose_pipeline(processes: Sequence[Process], wanted: str | None) -> tuple[str | None, list[Diagnostic]]:
    """Return the label of the pipeline to show, None for everything, and a diagnostic if there are several.

    The default is the one that took the most time. Processes that ran one schedule each are one training, whatever
    the schedules are. Raises InputError if no process ran a pipeline `wanted`.
    """
    times_ns: dict[str, int] = {}
    steps: dict[str, set[int]] = {}
    has_several = False
    for process in processes:
        has_several |= len(process.facts.labels) > 1
        for label, (time_ns, own_steps) in process.facts.labels.items():
            times_ns[label] = times_ns.get(label, 0) + time_ns
            steps.setdefault(label, set()).update(own_steps.tolist())
    if wanted is not None and wanted not in times_ns:
        raise InputError.no_pipeline(wanted, times_ns)
    if not has_several:
        return None, []
    chosen = wanted if wanted is not None else max(times_ns, key=lambda label: times_ns[label])
    described = ", ".join(
        f"{label} ({len(steps[label])} steps, {duration_text(time_ns // len(processes))} per rank)"
        for label, time_ns in times_ns.items()
    )
    text = f"the training ran {len(times_ns)} pipelines, of which {chosen} is shown (--pipeline NAME): {described}"
    return chosen, [Diagnostic("info", text, count=len(times_ns), code="pipelines.several")]


def is_of_pipeline(
    process: Process, steps: npt.NDArray[np.int32], label: str | None
) -> npt.NDArray[np.bool_]:
    """Return whether each record, by its step, belongs to pipeline `label` (None: to any) or to no step."""
    if label is None:
        return np.ones(len(steps), np.bool_)
    _, own = process.facts.labels.get(label, (0, ()))
    return np.isin(steps, [*own, NONE])


def schedule_of(process: Process, label: str | None) -> Any:
    """Return the name of the schedule that the framework declared for a pipeline."""
    header = process.contents.header
    declared = header.get("schedules", {}).get(label) if label else None
    return (declared or header.get("schedule", {})).get("name")

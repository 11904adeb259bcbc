"""One step of a stored run and the metrics of all of it, without reading the other steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis import errors_first
from stagescope.api.reading import read
from stagescope.api.saved_reports import metrics_of_stored_run, stored_with, with_damage
from stagescope.ingest.stored_run import count_stored_actions
from stagescope.model.step_actions import typical_step
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Unpack

    from stagescope.analysis import Report
    from stagescope.api.reading import RunFacts
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest


class ShownStep(NamedTuple):
    """A timeline with the spans of one step, and the metrics of the whole run."""

    timeline: Timeline
    metrics: Report


def show_stored_run(
    *paths: str | os.PathLike[str],
    step: int | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    **facts: Unpack[RunFacts],
) -> ShownStep | None:
    """Return a step of a stored run, by default a typical one, and the metrics of the run from its saved report.

    The typical step is found by counting the actions in one file after the other. Then the rows of the step are read.
    Damage of the files with the step is in the diagnostics of the metrics and their timeline. None in the cases of
    `metrics_of_stored_run`, and for a run without steps. `on_progress` is as for that.

    Raises InputError if the step was not recorded, and what `metrics_of_stored_run` and `read` raise.
    """
    metrics = metrics_of_stored_run(*paths, on_progress=on_progress, **facts)
    found = None if metrics is None else stored_with(paths, facts)
    if metrics is None or found is None:
        return None
    chosen = typical_step(count_stored_actions(*found)) if step is None else _recorded(*found, step)
    if chosen is None:
        return None
    of_step: RunFacts = {**facts, "steps": StepRange(chosen, chosen + 1)}
    timeline = read(*paths, **of_step)
    return ShownStep(timeline, with_damage(metrics, errors_first(timeline.diagnostics)))


def _recorded(directory: Path, manifest: Manifest, step: int) -> int:
    """Return a step that spans of a stored run have. Raises InputError for any other."""
    if step not in count_stored_actions(directory, manifest, StepRange(step, step + 1))["step"]:
        raise InputError.no_step(step, count_stored_actions(directory, manifest)["step"])
    return step

"""Open a stored run: its timeline as it was stored, with the alignment of its clocks."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stagescope.clocks import align_clocks, report_from_json
from stagescope.ingest.merge import WALL_CLOCK_CODE
from stagescope.ingest.stored_run import READER, read_stored_run
from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.parallel import DEFAULT_ORDER
from stagescope.vocabulary.steps import StepRange, wanted_steps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagescope.clocks import ClockReport
    from stagescope.ingest import Inputs
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest


def stored_run_of(inputs: Inputs) -> Path | None:
    """Return the directory of the stored run that is the only input; None without one.

    Raises InputError if there is more input than that.
    """
    manifests = inputs.files.get(READER, ())
    if not manifests:
        return None
    if inputs.file_count > 1:
        raise InputError.stored_with_others(manifests[0].parent)
    return manifests[0].parent


def open_stored_run(directory: Path, facts: Mapping[str, Any], *, align: bool) -> Timeline:
    """Return the timeline of a stored run.

    Of the facts, `steps` selects what is read. Raises UsageError for others than those with which the run was stored,
    and for `align=False` if it was stored with aligned clocks; InputError if the run cannot be read.
    """
    timeline, manifest = read_stored_run(directory, wanted_steps(facts.get("steps")))
    other = other_facts(manifest, facts)
    if other:
        raise UsageError.fact_of_stored_run(directory, other[0])
    if not manifest.aligned:
        return aligned(timeline) if align else timeline
    if not align:
        raise UsageError.stored_aligned(directory)
    return replace(timeline, alignment=alignment_of(directory, manifest))


def other_facts(manifest: Manifest, facts: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that a caller stated with which the run was not stored, besides `steps`."""
    return [
        name for name, value in stated(facts).items() if name != "steps" and manifest.facts.get(name) != value
    ]


def alignment_of(directory: Path, manifest: Manifest) -> ClockReport | None:
    """Return how the clocks of a stored run were aligned. Raises InputError if the manifest is damaged."""
    try:
        return None if manifest.alignment is None else report_from_json(manifest.alignment)
    except (KeyError, TypeError, IndexError) as error:
        raise InputError.damaged(directory, f"the alignment in its manifest is damaged: {error}") from None


def stated(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a run that a caller stated: those that are not the defaults of `read`."""
    plain = {name: _plain(value) for name, value in facts.items()}
    is_default = {"order": DEFAULT_ORDER, "kernels": False, "map": {}, "only": {}}
    return {
        name: value
        for name, value in plain.items()
        if value is not None and name != "limits" and not (name in is_default and value == is_default[name])
    }


def _plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if isinstance(value, StepRange) else value


def aligned(timeline: Timeline) -> Timeline:
    """Return a timeline that was read with timestamps as recorded with the clocks of its machines aligned."""
    # The diagnostic that timestamps are on wall clocks no longer holds; alignment adds its own findings instead.
    diagnostics = timeline.diagnostics
    still_valid = diagnostics["code"].ne_missing(WALL_CLOCK_CODE)
    return align_clocks(replace(timeline, diagnostics=diagnostics.filter(still_valid))).timeline

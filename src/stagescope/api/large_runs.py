"""A stored run that is too large to be read as a whole, as the local server shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stagescope.api.saved_reports import load_report, report_of_stored_run
from stagescope.api.stored_runs import alignment_of, stored_run_of
from stagescope.execution.processes import Processes
from stagescope.execution.spawning import can_spawn
from stagescope.exporters.layers import AnalysisLayers
from stagescope.ingest.stored_run import fetch_parts, read_manifest, read_small_tables
from stagescope.viewer.analysis_data import saved_report_extras
from stagescope.viewer.tiles.stored import LargeRun, is_large
from stagescope.vocabulary.errors import StagescopeError

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.ingest import Inputs


PART_ANALYZED = "steps.too_many"
"""The diagnostic of a report that is about some steps, because all did not fit into memory."""


def find_large_run(inputs: Inputs) -> tuple[LargeRun, AnalysisLayers] | None:
    """Return a large stored run that is the only input, and what its report adds to the page; None for other input.

    A run without a saved report is analyzed first, in a process of its own: the memory that this takes is free
    afterwards. Raises InputError if its manifest or one of its small tables is damaged.
    """
    directory = stored_run_of(inputs)
    manifest = None if directory is None else read_manifest(directory)
    if directory is None or manifest is None or not (is_large(manifest) and manifest.aligned):
        return None
    fetch_parts(
        directory, manifest
    )  # here, because the process that analyzes has no access to an object store
    timeline = replace(read_small_tables(directory, manifest), alignment=alignment_of(directory, manifest))
    report = load_report(directory)
    if report is None:
        _analyze(directory)
        report = load_report(directory)
    if report is None:
        return LargeRun(directory, manifest, timeline), AnalysisLayers()
    judged = timeline.with_diagnostics([one for one in report.diagnostics if one.code == PART_ANALYZED])
    return LargeRun(directory, manifest, judged, report.unaligned), saved_report_extras(report)


def _analyze(directory: Path) -> None:
    """Save the report of a stored run, if it can be analyzed; the page states what is missing without it."""
    try:
        if can_spawn():
            list(Processes(1, lambda _: None).map(_save, [directory]))
        else:
            _save(directory)
    except StagescopeError:
        return


def _save(directory: Path) -> None:
    report_of_stored_run(directory)

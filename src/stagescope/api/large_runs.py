"""Stored runs that are too large to be read or analyzed as a whole, as the local server shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stagescope.api.saved_reports import is_quick_to_analyze, load_report, report_of_stored_run
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

    from stagescope.analysis import Report
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
    report = _report_of(directory)
    if report is None:
        return LargeRun(directory, manifest, timeline), AnalysisLayers()
    judged = timeline.with_diagnostics([one for one in report.diagnostics if one.code == PART_ANALYZED])
    return LargeRun(directory, manifest, judged, report.unaligned), saved_report_extras(report)


def results_of_ranges(inputs: Inputs) -> AnalysisLayers | None:
    """Return steps, verdict, findings and lost time of a stored run that is analyzed in ranges of steps.

    They are equal to those of an analysis at once, which takes more memory and time. None for other input, and for a
    run that was not and cannot be analyzed that way.
    """
    directory = stored_run_of(inputs)
    manifest = None if directory is None else read_manifest(directory)
    if directory is None or manifest is None or is_quick_to_analyze(manifest) or not manifest.aligned:
        return None
    report = _report_of(directory)
    is_partial = report is not None and any(one.code == PART_ANALYZED for one in report.diagnostics)
    return None if report is None or is_partial else saved_report_extras(report)


def _report_of(directory: Path) -> Report | None:
    """Return the saved report of a stored run, which is analyzed first if it has none; None if it cannot be."""
    report = load_report(directory)
    if report is None:
        _analyze(directory)
        report = load_report(directory)
    return report


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

"""The report of a stored run: saved beside it once, and loaded from there afterwards."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope import __version__
from stagescope.analysis import build_explained_report, errors_first, unexplained
from stagescope.analysis.sampled_pipelines import has_large_steps
from stagescope.analysis.saved import (
    SavedParts,
    facts_json,
    parse_facts,
    restore_report,
    saved_pieces,
    saved_tables,
)
from stagescope.api.code_checksums import checksum_of_code
from stagescope.api.range_reports import analyzed_in_ranges
from stagescope.api.reading import inputs_of, read_options
from stagescope.api.stored_runs import alignment_of, open_stored_run, stated, stored_run_of
from stagescope.execution import executor_for, memory_returned_soon
from stagescope.exporters.stored_run import locked, write_results
from stagescope.ingest.memory_need import memory_bytes
from stagescope.ingest.stored_run import (
    DAMAGED,
    is_intact,
    known_steps,
    load_result,
    open_lazily,
    read_manifest,
    read_results,
)
from stagescope.model import empty_timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.lazy import with_known
from stagescope.model.stored_run import manifest_checksum
from stagescope.model.tables import RANKS
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import CommandError, InputError, OutputError, UsageError
from stagescope.vocabulary.limits import (
    BY_NAME,
    changed_limits,
    checked_limits,
    limits_in_force,
    require,
    require_if_stated,
)
from stagescope.vocabulary.steps import StepRange, wanted_steps

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Unpack

    from stagescope.analysis import Report
    from stagescope.analysis.saved.facts import ReportFacts
    from stagescope.api.joined_tables import JoinedTables
    from stagescope.api.range_reports import ReportOfRanges
    from stagescope.api.reading import RunFacts
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest, Results

SPAN_BYTES = 650
"""What the analysis of a stored run may take per span: 420 were measured (docs/performance.md), with a margin for runs
of fewer actions per span."""
STORING_BYTES = 1_500_000_000
"""Memory that a process may take, so that larger runs are analyzed in ranges of steps."""
LARGE_FOR_ONE_SPANS = 25_000_000
"""Runs of more than this are analyzed by a process that is started for it, also if there is only one worker."""
MEMORY_SHARE = 0.75
"""Of the memory of a machine, for the analysis."""
LIMITS_OF_SPANS = ("steps", "stages", "microbatches", "microbatch-number", "names", "name-length")
"""Limits that only the spans of a run can exceed: if a caller lowers one, they are read."""
CODE = ("analysis", "model", "schedules", "vocabulary")
"""Parts whose code determines the results of analysis."""


class SavedReport(NamedTuple):
    """Whether a report was computed, or was there already, and which steps it is about, as "A:B"; None for all."""

    is_new: bool
    steps: str | None


def save_report(
    directory: str | os.PathLike[str],
    *,
    workers: int | None = None,
    cluster: str | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    on_notice: Callable[[str], object] = str,
) -> SavedReport:
    """Analyze a stored run, unless its report is there already, and save the report beside it.

    `load_report` returns it afterwards. A run of more than about two million spans is analyzed in ranges of steps
    (range_reports.py), by `workers` processes, by default one for each processor, or by a `cluster`; see `store` for
    both, and for `on_notice`. `on_progress` is called with the number of their tasks that are done, and of all.

    A smaller one is analyzed at once, and so is one that was stored without alignment; `cached_input` returns a copy of
    that with aligned clocks. If the analysis needs more memory than this machine has, as many steps from the middle of
    the run are analyzed as fit, and a warning in the diagnostics of the report states that.

    Raises InputError if the run cannot be read, or if not even one step fits into memory; OutputError if another
    process is writing the run, or if the report cannot be written; CommandError if the libraries of the extra ``store``
    are missing, or the cluster cannot be reached; UsageError for an unknown `cluster`.
    """
    place = Path(directory)
    with locked(place):
        manifest = read_manifest(place)
        found = saved_results(place, manifest)
        if found is not None and _is_kept(place, found, manifest):
            return SavedReport(is_new=False, steps=found.steps)
        with _report_of_ranges(place, manifest, (workers, cluster, on_notice), on_progress) as analyzed:
            if analyzed is not None:
                _save(place, manifest, analyzed.report, joined=analyzed.joined)
                return SavedReport(is_new=True, steps=None)
        report, text = _report_at_once(place, manifest)
        _save(place, manifest, report, text)
    return SavedReport(is_new=True, steps=text)


def _save(
    directory: Path,
    manifest: Manifest,
    report: Report,
    steps: str | None = None,
    joined: JoinedTables | None = None,
) -> None:
    """Save a report of some steps of a run, None for all; `joined` are tables that workers make."""
    of = (code_version(), manifest_checksum(asdict(manifest)), steps)
    write_results(directory, of, facts_json(report).decode(), _tables(report, joined))


def _tables(
    report: Report, joined: JoinedTables | None
) -> Iterator[tuple[str, Iterator[pl.DataFrame] | Path]]:
    """Yield the tables to save: first those of this process, while workers make the others."""
    names = frozenset() if joined is None else joined.names
    yield from ((name, rows) for name, rows in saved_pieces(report) if name not in names)
    if joined is not None:
        yield from joined.files().items()


@contextmanager
def _report_of_ranges(
    directory: Path,
    manifest: Manifest,
    executor: tuple[int | None, str | None, Callable[[str], object]],
    on_progress: Callable[[int, int], object] | None,
) -> Iterator[ReportOfRanges | None]:
    """Yield the report of a run that is analyzed in ranges of steps; None if it is small, or was not aligned."""
    if is_quick_to_analyze(manifest) or not manifest.aligned:
        yield None
        return
    has_large = has_large_steps(len(known_steps(directory, manifest)), manifest.span_count)
    is_large = manifest.span_count > LARGE_FOR_ONE_SPANS
    try:
        with (
            memory_returned_soon() if has_large else nullcontext(),
            executor_for(*executor, is_large=is_large) as started,
            analyzed_in_ranges(directory, manifest, started, on_progress) as found,
        ):
            yield found
    except OSError as reason:
        raise OutputError.not_stored(directory, reason) from reason


def _report_at_once(directory: Path, manifest: Manifest) -> tuple[Report, str | None]:
    """Return the report of a run, or of as many of its steps as fit into memory, and which these are."""
    steps = _steps_that_fit(directory, manifest)
    timeline = open_stored_run(directory, {"steps": steps}, align=True)
    if steps is not None:
        timeline = _noted(timeline, known_steps(directory, manifest), steps)
    return build_explained_report(timeline), None if steps is None else str(steps)


def load_report(*paths: str | os.PathLike[str], **facts: Unpack[RunFacts]) -> Report | None:
    """Return the saved report of a stored run, whatever the size of the run within a few seconds.

    It equals what `analyze` returns for the run, or for the steps that were analyzed: its tables are loaded when they
    are used, and those that were not saved are computed from the spans, which are read then. None for anything that has
    to be analyzed: other input than one stored run, other facts than those with which it was stored, a run that was not
    analyzed, or by another version of stagescope, one with missing files, one whose sources have changed, and limits on
    what only spans show that are lower than by default. `paths` and `facts` are those of `read`.

    Raises InputError and UsageError as `read` does.
    """
    with limits_in_force(checked_limits(facts.get("limits"))):
        found = stored_with(paths, facts)
        results = None if found is None else saved_results(*found)
        return None if found is None or results is None else _restored(*found, results)


def report_of_stored_run(
    *paths: str | os.PathLike[str],
    on_progress: Callable[[int, int], object] | None = None,
    **facts: Unpack[RunFacts],
) -> Report | None:
    """Return the saved report of a stored run; if there is none yet, analyze the run and save its report first.

    None in the other cases of `load_report`, and if the report cannot be saved: the directory cannot be written to, or
    the libraries of the extra ``store`` are missing. `on_progress` is that of `save_report`, which also states what is
    raised.
    """
    found = load_report(*paths, **facts)
    directory = None if found is not None else _unanalyzed(paths, facts)
    if directory is None:
        return found
    try:
        with limits_in_force(checked_limits(facts.get("limits"))):
            save_report(directory, on_progress=on_progress)
    except (OutputError, CommandError):
        return None
    return load_report(*paths, **facts)


def metrics_of_stored_run(
    *paths: str | os.PathLike[str],
    on_progress: Callable[[int, int], object] | None = None,
    **facts: Unpack[RunFacts],
) -> Report | None:
    """Return what `analyze(run, explain=False)` returns for a stored run, from its saved report, without reading spans.

    A run that is analyzed in ranges of steps is analyzed first if it has no report. None in the other cases of
    `report_of_stored_run`, and for a smaller run without a report, of which only these metrics have to be computed.
    `on_progress` is that of `save_report`, which also states what is raised.
    """
    report = load_report(*paths, **facts)
    directory = None if report is not None else _unanalyzed(paths, facts)
    if directory is not None and not is_quick_to_analyze(read_manifest(directory)):
        report = report_of_stored_run(*paths, on_progress=on_progress, **facts)
    return None if report is None else unexplained(report)


def large_run_of(
    *paths: str | os.PathLike[str],
    on_progress: Callable[[int, int], object] | None = None,
    **facts: Unpack[RunFacts],
) -> tuple[Path, Manifest, Report] | None:
    """Return the directory, manifest and report of a stored run that is analyzed in ranges of steps; None for others.

    Everything else is as in `report_of_stored_run`.
    """
    found = stored_with(paths, facts)
    if found is None or is_quick_to_analyze(found[1]) or not found[1].aligned:
        return None
    report = report_of_stored_run(*paths, on_progress=on_progress, **facts)
    return None if report is None else (*found, report)


def with_damage(report: Report, read_now: Iterable[Diagnostic]) -> Report:
    """Return a saved report with the damage among the diagnostics of what was read now."""
    known = errors_first(report.timeline.diagnostics)
    damage = [each for each in read_now if each.code == DAMAGED and each not in known]
    if not damage:
        return report
    # The other tables of the timeline are only read if they are used.
    noted = with_known(report.timeline, diagnostics=diagnostics_table([*known, *damage]))
    every = errors_first(diagnostics_table([*report.diagnostics, *damage]))
    return replace(report, timeline=noted, diagnostics=every)


def is_quick_to_analyze(manifest: Manifest) -> bool:
    """Return whether a run is analyzed at once: that takes no more memory than storing it."""
    return manifest.span_count * SPAN_BYTES <= STORING_BYTES


@cache
def code_version() -> str:
    """Return the version of stagescope with a checksum of the code that computes a report."""
    return f"stagescope {__version__} {checksum_of_code(CODE)}"


def stored_with(paths: Sequence[str | os.PathLike[str]], facts: RunFacts) -> tuple[Path, Manifest] | None:
    """Return the directory and manifest of the only input, if it is a run that was stored with these facts."""
    options = read_options(**facts)
    directory = stored_run_of(inputs_of(paths, is_mapped=options.mapping is not None))
    if directory is None or "steps" in stated(facts):
        return None
    manifest = read_manifest(directory)
    limits = checked_limits(facts.get("limits"))
    with limits_in_force(limits):
        require_if_stated("spans", manifest.span_count, directory)
        require("ranks", sum(part.rows for part in manifest.parts if part.table == RANKS.name), directory)
    if any(0 < limits.get(name, 0) < BY_NAME[name].default for name in LIMITS_OF_SPANS):
        return None
    is_same = all(manifest.facts.get(name) == value for name, value in stated(facts).items())
    return (directory, manifest) if is_same else None


def _unanalyzed(paths: Sequence[str | os.PathLike[str]], facts: RunFacts) -> Path | None:
    """Return the directory of a stored run with aligned clocks that is whole, and so can have a report."""
    found = stored_with(paths, facts)
    if found is None or not found[1].aligned:
        return None
    return found[0] if open_lazily(*found, None, None) is not None else None


def saved_results(directory: Path, manifest: Manifest) -> Results | None:
    """Return the results of analysis of a stored run with aligned clocks; None without any that can be used."""
    if not manifest.aligned:
        return None
    return read_results(directory, code_version(), manifest_checksum(asdict(manifest)))


def _is_kept(directory: Path, found: Results, manifest: Manifest) -> bool:
    """Return whether saved results are whole, and about as many steps as this machine can analyze."""
    if found.steps is not None and found.steps != str(_steps_that_fit(directory, manifest)):
        return False
    return _facts(found) is not None and is_intact(directory, found)


def _restored(directory: Path, manifest: Manifest, results: Results) -> Report | None:
    facts, schemas = _facts(results), _schemas()
    try:
        steps = wanted_steps(results.steps)
    except UsageError:
        return None
    if facts is None:
        return None
    alignment = alignment_of(directory, manifest)
    timeline = open_lazily(directory, manifest, alignment, steps, facts.diagnostics)
    if timeline is None:
        return None

    def load(name: str) -> pl.DataFrame:
        return load_result(directory, results, name, schemas[name])

    return restore_report(SavedParts(facts, load, timeline))


def _facts(results: Results) -> ReportFacts | None:
    """Return the facts of saved results; None if they are not what stagescope wrote."""
    try:
        return parse_facts(results.report.encode())
    except ValueError:
        return None


@cache
def _schemas() -> dict[str, pl.Schema]:
    """Return the columns of all tables, which do not depend on the run: those of a run without rows."""
    return {name: rows.schema for name, rows in saved_tables(build_explained_report(empty_timeline()))}


def _steps_that_fit(directory: Path, manifest: Manifest) -> StepRange | None:
    """Return the steps in the middle of a run whose analysis fits into memory; None if that of all does.

    Raises InputError if not even one does.
    """
    have_bytes, need_bytes = memory_bytes(), manifest.span_count * SPAN_BYTES
    if have_bytes is None or need_bytes <= MEMORY_SHARE * have_bytes or "spans" in changed_limits():
        return None
    steps = known_steps(directory, manifest)
    fitting = int(len(steps) * MEMORY_SHARE * have_bytes / need_bytes)
    if not fitting:
        raise InputError.too_large_to_analyze(directory, manifest.span_count, need_bytes, have_bytes)
    first = (len(steps) - fitting) // 2
    return StepRange(steps[first], steps[first + fitting - 1] + 1)


def _noted(timeline: Timeline, every: Sequence[int], steps: StepRange) -> Timeline:
    """Return the timeline of some steps, with a warning instead of the note that a caller chose them."""
    kept = timeline.diagnostics.filter(pl.col("code") != "steps.selected")
    count = sum(step in steps for step in every)
    text = (
        f"only {count} of {counted(len(every), 'step')} were analyzed ({steps}), as many as fit into the memory of the "
        "machine that stored the run; `stagescope report --steps A:B` analyzes others"
    )
    note = Diagnostic("warning", text, count=len(every) - count, code="steps.too_many")
    return replace(timeline, diagnostics=kept).with_diagnostics([note])

"""The report of a stored run: saved beside it once, and loaded from there afterwards."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope import __version__
from stagescope.analysis import build_explained_report
from stagescope.analysis.saved import SavedParts, facts_json, parse_facts, restore_report, saved_tables
from stagescope.api.reading import inputs_of, read_options
from stagescope.api.stored_runs import alignment_of, open_stored_run, stated, stored_run_of
from stagescope.exporters.stored_run import locked, write_results
from stagescope.ingest.recording.memory_need import memory_bytes
from stagescope.ingest.stored_run import is_intact, load_result, open_lazily, read_manifest, read_results
from stagescope.model import empty_timeline
from stagescope.model.stored_run import CHECKSUM_BYTES, manifest_checksum
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import changed_limits, checked_limits, limits_in_force

if TYPE_CHECKING:
    import os

    import polars as pl
    from typing_extensions import Unpack

    from stagescope.analysis import Report
    from stagescope.analysis.saved.facts import ReportFacts
    from stagescope.api.reading import RunFacts
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest, Results

SPAN_BYTES = 650
"""Reading and analyzing a stored run takes this much memory per span at its peak (docs/performance.md)."""
CODE = ("analysis", "model", "schedules", "vocabulary")
"""Parts whose code determines the results of analysis."""


def save_report(directory: str | os.PathLike[str]) -> bool:
    """Analyze a stored run, save the report beside it, and return whether it was computed: not if it was there already.

    `load_report` returns it afterwards. Raises InputError if the run cannot be read, or if the analysis needs more
    memory than there is; OutputError if another process is writing the run, or if the report cannot be written.
    """
    place = Path(directory)
    with locked(place):
        manifest = read_manifest(place)
        found = _results(place, manifest)
        if found is not None and _facts(found) is not None and is_intact(place, found):
            return False
        _require_memory(place, manifest.span_count)
        report = build_explained_report(open_stored_run(place, {}, align=True))
        of = (code_version(), manifest_checksum(asdict(manifest)))
        write_results(place, of, facts_json(report).decode(), saved_tables(report))
    return True


def load_report(*paths: str | os.PathLike[str], **facts: Unpack[RunFacts]) -> Report | None:
    """Return the saved report of a stored run, whatever the size of the run within a few seconds.

    It equals what `analyze` returns for the run: its tables are loaded when they are used, and those that were not
    saved are computed from the spans, which are read then. None for anything that has to be analyzed: other input than
    one stored run, other facts than those with which it was stored, a run that was not analyzed, or by another version
    of stagescope, one with missing files, and one whose sources have changed. `paths` and `facts` are those of `read`.

    Raises InputError and UsageError as `read` does.
    """
    options = read_options(**facts)
    with limits_in_force(checked_limits(facts.get("limits"))):
        directory = stored_run_of(inputs_of(paths, is_mapped=options.mapping is not None))
        if directory is None or "steps" in stated(facts):
            return None
        manifest = read_manifest(directory)
        if any(manifest.facts.get(name) != value for name, value in stated(facts).items()):
            return None
        results = _results(directory, manifest)
        timeline = (
            None if results is None else open_lazily(directory, manifest, alignment_of(directory, manifest))
        )
        if results is None or timeline is None:
            return None
        return _restored(directory, results, timeline)


@cache
def code_version() -> str:
    """Return the version of stagescope with a checksum of the code that computes a report."""
    package = Path(__file__).parents[1]
    sum_ = blake2b(digest_size=CHECKSUM_BYTES)
    for part in CODE:
        for path in sorted((package / part).rglob("*.py")):
            sum_.update(path.read_bytes())
    return f"stagescope {__version__} {sum_.hexdigest()}"


def _results(directory: Path, manifest: Manifest) -> Results | None:
    """Return the results of analysis of a stored run with aligned clocks; None without any that can be used."""
    if not manifest.aligned:
        return None
    return read_results(directory, code_version(), manifest_checksum(asdict(manifest)))


def _restored(directory: Path, results: Results, timeline: Timeline) -> Report | None:
    facts = _facts(results)
    if facts is None:
        return None
    schemas = _schemas()

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


def _require_memory(directory: Path, spans: int) -> None:
    """Raise InputError if the analysis of this many spans needs more memory than there is."""
    have_bytes, need_bytes = memory_bytes(), spans * SPAN_BYTES
    if have_bytes is not None and need_bytes > have_bytes and "spans" not in changed_limits():
        raise InputError.too_large_to_analyze(directory, spans, need_bytes, have_bytes)

"""Reader of stored runs: every file is checked before it is used, and what is damaged is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from polars.exceptions import PanicException, PolarsError

from stagescope.ingest.memory_need import require_memory_for
from stagescope.ingest.merge import check_limits
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.step_selection import select_steps
from stagescope.ingest.step_sizes import require_step_sizes
from stagescope.ingest.stored_run import errors
from stagescope.ingest.stored_run.manifest import read_manifest, recognize_manifest
from stagescope.ingest.streams import open_stream
from stagescope.model import Timeline, empty_timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.lazy import lazily
from stagescope.model.step_actions import count_actions, join_counts
from stagescope.model.step_ranges import is_in_steps
from stagescope.model.stored_run import (
    CHECKSUM_BYTES,
    MANIFEST,
    PARTITIONED,
    TABLE_OF,
    WHOLE,
    Manifest,
    declared_columns,
)
from stagescope.model.tables import DIAGNOSTICS, SPANS, STEPS, TABLES
from stagescope.model.validate import conform, in_order_together
from stagescope.storage.mirror import fetch_missing, size_of
from stagescope.vocabulary.errors import InputError, TableError
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stagescope.model.stored_run import Part, Source
    from stagescope.model.tables import Table
    from stagescope.model.timeline import Alignment
    from stagescope.vocabulary.steps import StepRange


DAMAGED, SOURCE_CHANGED = "store.damaged", "store.source_changed"


class StoredRun(NamedTuple):
    """The timeline of a stored run, without its alignment, and the manifest."""

    timeline: Timeline
    manifest: Manifest


def read_stored_run(directory: Path, steps: StepRange | None = None) -> StoredRun:
    """Return the timeline of a stored run, or of some of its steps, and the manifest.

    Files that are missing, changed or no tables any more are left out and counted in diagnostics (`store.damaged`), as
    are sources that have changed since they were stored (`store.source_changed`). Raises InputError if the run is
    unfinished or of a newer format, if a limit is exceeded, if no file with spans can be read, and
    if there is none of these steps.
    """
    manifest = read_manifest(directory)
    wanted = _wanted_parts(manifest, steps)
    if steps is None:
        require("spans", manifest.span_count, directory)
        require_memory_for(manifest.span_count)
    needed = steps if _has_steps(manifest) else None
    fetch_missing(directory / part.path for part in wanted)
    tables: dict[str, list[pl.DataFrame]] = {table.name: [] for table in TABLES}
    notes: list[Diagnostic] = []
    for part in wanted:
        rows = _rows_of(directory, part, needed)
        if isinstance(rows, str):
            notes.append(_damaged(directory, part, rows))
        else:
            tables[part.table].append(rows)
    span_parts = sum(part.table == SPANS.name for part in wanted)
    if span_parts and not tables[SPANS.name]:
        raise errors.nothing_left(directory, span_parts)
    require("spans", sum(rows.height for rows in tables[SPANS.name]), directory)
    frames = {name: _joined(parts, TABLE_OF[name]) for name, parts in tables.items()}
    timeline = Timeline(**frames).with_diagnostics(  # type: ignore[arg-type]  # the names are those of the tables
        [*notes, *_changed_sources(directory, manifest)]
    )
    check_limits([timeline])
    selected = select_steps(timeline, steps)
    require_step_sizes(selected, directory)
    return StoredRun(selected, manifest)


def open_lazily(
    directory: Path,
    manifest: Manifest,
    alignment: Alignment | None,
    steps: StepRange | None,
    notes: Iterable[Diagnostic] = (),
) -> Timeline | None:
    """Return the timeline of a stored run, of which spans, steps, counters and kernels are read on first use.

    With `steps` it has the rows of these steps only. Of `notes`, the damage that an analysis of the run found is added
    to its diagnostics.

    None if a file is missing or has another size, if one of the tables that are always read is damaged, or if sources
    have changed: then only reading everything states what is wrong. Reading raises InputError for damage.
    """
    if not is_as_stored(directory, manifest):
        return None
    known: dict[str, object] = {"alignment": alignment}
    damage = diagnostics_table([note for note in notes if note.code == DAMAGED])
    for part in manifest.parts:
        if part.pipeline is None:
            rows = _rows_of(directory, part)
            if isinstance(rows, str):
                return None
            known[part.table] = pl.concat([rows, damage]) if part.table == DIAGNOSTICS.name else rows
    if known.keys() != {"alignment", *(table.name for table in WHOLE)}:
        return None
    whole = cache(lambda: _undamaged(directory, steps))
    return lazily(Timeline, known, {table.name: partial(_table, whole, table.name) for table in PARTITIONED})


def is_as_stored(directory: Path, manifest: Manifest) -> bool:
    """Return whether all files of a stored run have the sizes that they had, and no source has changed since."""
    sizes = (size_of(directory / part.path) == part.size_bytes for part in manifest.parts)
    return all(sizes) and not _changed_sources(directory, manifest)


def stored_state(directory: Path, manifest: Manifest) -> str:
    """Return a text that is the same while is_as_stored is, and changes with every further change of files."""
    sizes = {part.path: size_of(directory / part.path) for part in manifest.parts}
    damaged = [
        (part.path, sizes[part.path]) for part in manifest.parts if sizes[part.path] != part.size_bytes
    ]
    changed = [(source.path, _now(source)) for source in manifest.sources if _has_changed(source)]
    return json.dumps([damaged, changed])


def _table(whole: Callable[[], Timeline], name: str) -> pl.DataFrame:
    found: pl.DataFrame = getattr(whole(), name)
    return found


def _undamaged(directory: Path, steps: StepRange | None) -> Timeline:
    timeline = read_stored_run(directory, steps).timeline
    damage = timeline.diagnostics.filter(pl.col("code") == DAMAGED)
    if damage.height:
        raise InputError.damaged(directory, damage["message"][0])
    return timeline


def _wanted_parts(manifest: Manifest, steps: StepRange | None) -> list[Part]:
    """Return the parts that may have rows of some steps.

    The table of steps, which is small, is always read as a whole: it states when the steps before and after began.
    """
    if steps is None or not _has_steps(manifest):
        return list(manifest.parts)
    return [
        part
        for part in manifest.parts
        if part.table == STEPS.name
        or part.first_step is None
        or part.last_step is None
        or (part.first_step < steps.stop and part.last_step >= steps.start)
    ]


def known_steps(directory: Path, manifest: Manifest) -> list[int]:
    """Return the numbers of the steps of a stored run, sorted; without those of files that are damaged."""
    table = STEPS.name if _has_steps(manifest) else SPANS.name
    found: set[int] = set()
    fetch_missing(directory / part.path for part in manifest.parts if part.table == table)
    for part in manifest.parts:
        rows = _rows_of(directory, part) if part.table == table else ""
        if not isinstance(rows, str):
            found.update(rows["step"].drop_nulls().unique())
    return sorted(found)


def count_stored_actions(directory: Path, manifest: Manifest, steps: StepRange | None = None) -> pl.DataFrame:
    """Return what count_actions does for the spans of a stored run, sorted; without those of files that are damaged.

    One file after the other is read, and a few columns of it are decoded; with `steps`, only files that may have them.
    """
    parts = [part for part in _wanted_parts(manifest, steps) if part.table == SPANS.name]
    fetch_missing(directory / part.path for part in parts)
    counts = (_collected(directory, part, lambda rows: count_actions(rows).collect()) for part in parts)
    none = count_actions(SPANS.empty().lazy()).collect()
    return join_counts([none, *(rows for rows in counts if not isinstance(rows, str))])


def _has_steps(manifest: Manifest) -> bool:
    return any(part.table == STEPS.name and part.rows for part in manifest.parts)


def read_small_tables(directory: Path, manifest: Manifest) -> Timeline:
    """Return a timeline with the tables of a stored run that are not divided, and no spans, steps or counters.

    A warning states sources that have changed since. Raises InputError if one of its files is missing or damaged.
    """
    small = {part.table: read_part(directory, part) for part in manifest.parts if part.pipeline is None}
    timeline = replace(empty_timeline(), **small)  # type: ignore[arg-type]  # the names are those of the tables
    return timeline.with_diagnostics(_changed_sources(directory, manifest))


def fetch_parts(directory: Path, manifest: Manifest) -> None:
    """Copy the files of a stored run on an object store that are not here yet. Raises InputError as `mirror` does."""
    fetch_missing(directory / part.path for part in manifest.parts)


def read_part(directory: Path, part: Part) -> pl.DataFrame:
    """Return the rows of one file of a stored run. Raises InputError if it is missing, changed or damaged."""
    rows = _rows_of(directory, part)
    if isinstance(rows, str):
        raise InputError.damaged(directory, f"{part.path} {rows}: store the run again")
    return rows


def read_or_note(directory: Path, part: Part) -> pl.DataFrame | Diagnostic:
    """Return the rows of one file of a stored run, or the diagnostic that states what is wrong with it."""
    rows = _rows_of(directory, part)
    return _damaged(directory, part, rows) if isinstance(rows, str) else rows


def _rows_of(directory: Path, part: Part, steps: StepRange | None = None) -> pl.DataFrame | str:
    """Return the rows of a part that select_steps may keep, or what is wrong with its file."""

    def collect(stored: pl.LazyFrame) -> pl.DataFrame:
        rows = declared_columns(stored.filter(_may_be_kept(part, steps)).collect())
        return _typed(rows, TABLE_OF[part.table], part.path)

    return _collected(directory, part, collect)


def _collected(
    directory: Path, part: Part, collect: Callable[[pl.LazyFrame], pl.DataFrame]
) -> pl.DataFrame | str:
    """Return what `collect` returns for the rows of a part as they are stored, or what is wrong with its file."""
    try:
        with open_stream(directory / part.path) as file:  # which refuses pipes and devices
            content = file.read()
    except InputError as reason:
        return f"cannot be read: {reason}"
    if blake2b(content, digest_size=CHECKSUM_BYTES).hexdigest() != part.checksum:
        return "has changed since it was stored"
    try:
        stored = pl.scan_parquet(BytesIO(content), hive_partitioning=False)
        count = stored.select(pl.len()).collect().item()
        if count != part.rows:  # equal values take no space in the file, but memory when it is read
            return f"has {count} rows instead of {part.rows}"
        return collect(stored)
    except (PolarsError, TableError, PanicException) as error:
        return f"is no table of a stored run: {error}"


def _may_be_kept(part: Part, steps: StepRange | None) -> pl.Expr:
    """Return whether a row is of some steps, or of no step; the table of steps is always needed as a whole."""
    if steps is None or part.first_step is None or part.table == STEPS.name:
        return pl.lit(value=True)
    return pl.col("step").is_null() | is_in_steps(steps)


def _typed(rows: pl.DataFrame, table: Table, where: str) -> pl.DataFrame:
    """Return rows with the types of their table. Those of a whole table keep their order, which may have a meaning."""
    sorted_rows = conform(rows, table, where)
    return (
        sorted_rows
        if table in PARTITIONED
        else rows.select(pl.col(c.name).cast(c.dtype) for c in table.columns)
    )


def _joined(parts: list[pl.DataFrame], table: Table) -> pl.DataFrame:
    return in_order_together(parts, table) if len(parts) > 1 else next(iter(parts), table.empty())


def _damaged(directory: Path, part: Part, what: str) -> Diagnostic:
    text = f"{part.path} {what}; its {part.rows} rows are missing: store the run again"
    return Diagnostic("error", text, str(directory), count=max(1, part.rows), code=DAMAGED)


def _changed_sources(directory: Path, manifest: Manifest) -> list[Diagnostic]:
    """Return a warning if files that the run was stored from have changed. Those that are gone have not."""
    changed = [source.path for source in manifest.sources if _has_changed(source)]
    if not changed:
        return []
    others = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
    text = f"{changed[0]}{others} changed after the run was stored: store it again to use what is new"
    return [Diagnostic("warning", text, str(directory), count=len(changed), code=SOURCE_CHANGED)]


def _has_changed(source: Source) -> bool:
    return _now(source) not in (None, (source.size_bytes, source.modified_ns))


def _now(source: Source) -> tuple[int, int] | None:
    """Return the size and the time of the last change of a source, None if it is gone."""
    try:
        now = Path(source.path).stat()
    except (OSError, ValueError):
        return None
    return now.st_size, now.st_mtime_ns


def _read(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    timeline = read_stored_run(paths[0].parent, options.steps).timeline
    options.done(paths[0])
    return timeline


READER = Reader(
    "stored",
    (MANIFEST,),
    "runs that `stagescope store` wrote: a directory of Parquet files",
    recognize_manifest,
    _read,
)

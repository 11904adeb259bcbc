"""What all parts of a run that is stored in parts show together: diagnostics, pipelines and the number of rows.

Where some steps are selected, the rows of all parts wait in files first: those of a rank without steps are selected by
the steps of all other ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import polars as pl

from stagescope.api.detached_tables import attach
from stagescope.api.run_parts import (
    Selection,
    Unjoined,
    Unobserved,
    Unselected,
    join_slices,
    keep_part,
    observe_part,
)
from stagescope.exporters.stored_run.partitions import with_step_range
from stagescope.ingest.stages import note_ranks_without_stages
from stagescope.ingest.step_selection import note_of_selected, windows_of_run
from stagescope.ingest.step_sizes import require_stated_sizes
from stagescope.model import SPANS
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.lazy import TableParts
from stagescope.model.pipelines import find_pipelines
from stagescope.model.step_ranges import is_in_steps
from stagescope.model.stored_run import NONE, PARTITIONED
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.limits import require, require_if_stated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from stagescope.api.run_division import DividedRun
    from stagescope.api.run_parts import Observation, ReadRows
    from stagescope.execution import Executor
    from stagescope.exporters.stored_run.partitions import StepRanges
    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import StepRange

Result = TypeVar("Result")

NOTE_ORDER = ("values.impossible", "timestamps.implausible", "spans.reversed", "waits.reversed")
VALUE_ORDER = ("spans", "step", "pair", "bytes", "microbatch", "stage", "chunk", "peer", "values")


class ObservedRun(NamedTuple):
    """A run, its tables of ranks, clocks and diagnostics, and what each of its parts shows."""

    run: DividedRun
    tables: Timeline
    observations: list[Observation]

    @property
    def lacks_stated_peers(self) -> bool:
        """Whether transfers of the recordings name their peers, but none of those that were selected."""
        names_peers = any(part.run.names_peers for part in self.run.parts)
        return names_peers and not any(each.edges.height for each in self.observations)


def observe_run(
    run: DividedRun,
    executor: Executor,
    directory: Path,
    steps: StepRange | None,
    on_done: Callable[[float], object],
) -> ObservedRun:
    """Return what the parts of a run show, each of which is observed; of some steps, None for all.

    `on_done` gets the share of each part when it was read or observed. Raises OSError, and InputError if the run has
    more than the limits allow, or none of the steps.
    """
    recordings = sum(len(part.decisions.processes) for part in run.parts)
    shares = [len(part.decisions.processes) / recordings / part.run.slices for part in run.parts]
    if steps is None:
        unobserved = [Unobserved(part, directory) for part in run.parts]
        observations = list(_done(executor.map(observe_part, unobserved), shares, on_done))
        tables = _with_notes_of_rows(run, [each.read for each in observations], steps)
        return ObservedRun(run, tables, _joined(run, observations, executor, directory))
    halves = [share / 2 for share in shares]
    unselected = [Unselected(part, directory, steps) for part in run.parts]
    kept = list(_done(executor.map(keep_part, unselected), halves, on_done))
    tables = _with_notes_of_rows(run, [each.read for each in kept], steps)
    windows = windows_of_run([each.steps for each in kept], run.tables.ranks, steps)
    selected = [
        Unobserved(part, directory, Selection(steps, own.rows, own.ranks, windows.of(own.ranks["rank"])))
        for part, own in zip(run.parts, kept, strict=True)
    ]
    observations = list(_done(executor.map(observe_part, selected), halves, on_done))
    found = pl.concat([each.steps for each in observations]).drop_nulls().n_unique()
    tables = tables.with_diagnostics([note_of_selected(found, steps, windows)])
    return ObservedRun(run, tables, _joined(run, observations, executor, directory))


def _joined(
    run: DividedRun, observations: Sequence[Observation], executor: Executor, directory: Path
) -> list[Observation]:
    """Return the observations with the messages that begin in one slice of time and end in another one."""
    found = list(observations)
    groups: list[list[int]] = []
    for number, part in enumerate(run.parts):
        if part.run.in_time and part.slice is not None:
            groups += [[]] if part.slice.number == 0 else []
            groups[-1].append(number)
    items = [
        Unjoined(
            run.parts[own[0]],
            tuple(found[number].observed for number in own),
            tuple(each for number in own if (each := found[number].transfers) is not None),
            directory,
        )
        for own in groups
    ]
    for own, joined in zip(groups, executor.map(join_slices, items), strict=True):
        for number, observed in zip(own, joined, strict=True):
            found[number] = found[number]._replace(observed=observed)
    return found


def _done(
    results: Iterable[Result], shares: Sequence[float], on_done: Callable[[float], object]
) -> Iterator[Result]:
    for result, share in zip(results, shares, strict=True):
        yield result
        on_done(share)


def _with_notes_of_rows(run: DividedRun, parts: Sequence[ReadRows], steps: StepRange | None) -> Timeline:
    """Return the tables of the run with the diagnostics about its rows, where reading it at once has them.

    Raises InputError if the run has more than the limits allow.
    """
    found = [note for each in parts for note in each.notes]
    totals: dict[tuple[object, ...], Diagnostic] = {}
    for note in found:
        key = (note.code, note.message, note.source, note.rank, note.location)
        before = totals.get(key)
        totals[key] = note if before is None else replace(note, count=before.count + note.count)

    def place(note: Diagnostic) -> tuple[int, int, int]:
        code = NOTE_ORDER.index(note.code) if note.code in NOTE_ORDER else len(NOTE_ORDER)
        word = note.message.split(" ", 1)[0]
        return code, VALUE_ORDER.index(word) if word in VALUE_ORDER else len(VALUE_ORDER), note.rank or 0

    rows = diagnostics_table(sorted(totals.values(), key=place))
    stages = pl.concat(each.stages for each in parts).group_by("rank").agg(pl.any("has_stage"))
    last = [] if run.placement.rule is None else note_ranks_without_stages(stages)
    diagnostics = pl.concat([run.before, rows, run.tables.diagnostics])
    tables = replace(run.tables, diagnostics=diagnostics).with_diagnostics(last)
    _check_limits(parts, tables, steps)
    return tables


def _check_limits(parts: Sequence[ReadRows], tables: Timeline, steps: StepRange | None) -> None:
    """Raise InputError if the run has more than the limits allow, or one of the steps."""
    source = next(iter(tables.ranks["source"].drop_nulls()), "the run")
    names = pl.concat([each.names for each in parts]).unique()
    longest = max((len(name) for name in names.drop_nulls()), default=0)
    require_if_stated("spans", sum(each.spans for each in parts), source)
    require("ranks", tables.ranks.height, source)
    require("steps", pl.concat([each.steps for each in parts]).n_unique(), source)
    require("names", len(names), source)
    require("name-length", longest, source)
    sizes = pl.concat([each.sizes for each in parts])
    require_stated_sizes(sizes.filter(pl.col("step").is_null() | is_in_steps(steps)), source)


def counts_of_pipelines(
    observations: Sequence[Observation], pipelines: pl.DataFrame
) -> Iterable[pl.DataFrame]:
    """Return for each part how many rows (n) of each table its pipelines have in every step.

    They are read whenever they are iterated, one part after the other: those of all parts have a row for each step of
    each pipeline.
    """
    keys = ("table", "pipeline", "step")
    table = pl.col("table").cast(pl.Enum([table.name for table in PARTITIONED]))

    def of_part(observation: Observation) -> pl.DataFrame:
        counts: pl.DataFrame = attach(observation.counts)
        placed = counts.with_columns(table).join(pipelines, on="rank", how="left")
        return placed.with_columns(pl.col("pipeline").fill_null(NONE)).group_by(keys).agg(pl.sum("n"))

    return TableParts(observations, of_part)


def counts_of_ranges(counts: Iterable[pl.DataFrame], ranges: StepRanges) -> pl.DataFrame:
    """Return how many rows (n) of each table the pipelines have in every range of steps, by the number of the part."""
    keys = ("table", "pipeline", "step_range")
    sums = [with_step_range(each, ranges).group_by(keys).agg(pl.sum("n")) for each in counts]
    parts = pl.concat([each.with_columns(part=pl.lit(number)) for number, each in enumerate(sums)])
    return parts.with_columns(pl.col("table").cast(pl.String))


def pipelines_of(observations: Sequence[Observation], run: DividedRun) -> pl.DataFrame:
    """Return rank and pipeline of the ranks with actions, as find_pipelines does for the whole run."""
    edges = pl.concat(each.edges for each in observations).sort("rank", "peer")
    acted = pl.concat([each.acted for each in observations])
    rows = pl.concat(
        [
            edges.with_columns(pl.col("kind").cast(pl.String)),
            pl.DataFrame(
                {"rank": acted, "kind": ACTION_KINDS[0]}, schema={"rank": pl.Int32, "kind": pl.String}
            ),
            *(each.first_actions.with_columns(pl.col("kind").cast(pl.String)) for each in observations),
        ],
        how="diagonal",
    )
    spans = conform(rows.with_columns(lane=pl.lit("host"), start_ns=0, end_ns=0), SPANS)
    return find_pipelines(spans, run.tables.ranks)

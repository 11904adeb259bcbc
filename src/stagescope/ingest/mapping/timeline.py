"""The Timeline of the slices of a trace of any tool, by the mapping that fits it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.steps import steps_of_ranks
from stagescope.ingest.mapping.checks import (
    StatedArguments,
    check_fields,
    check_identity,
    check_iterations,
    check_repetitions,
)
from stagescope.ingest.mapping.choice import ASSUMED, GIVEN, choose_mapping
from stagescope.ingest.mapping.errors import no_action_names, no_mapped_spans, no_slices
from stagescope.ingest.mapping.ranks import rank_rows, with_peers, with_ranks
from stagescope.ingest.mapping.spans import NAMED_KINDS, mapped_spans, merged_slices, restricted
from stagescope.ingest.source_clocks import source_clocks
from stagescope.model import SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform, in_order
from stagescope.vocabulary.kinds import ACTION_KINDS, RECEIVES, SENDS
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.mapping.choice import Choice
    from stagescope.ingest.mapping.mapping import EventMapping
    from stagescope.ingest.mapping.slices import TraceSlices
    from stagescope.ingest.memory_need import ReadingNeed
    from stagescope.ingest.reader import ReadOptions

MOST_SHOWN = 5
MAPPED_SPAN_BYTES = 98
"""Of a mapped span with its file. Those of all files are in memory at once."""


def timeline_of_slices(
    files: list[TraceSlices], options: ReadOptions, diagnostics: Sequence[Diagnostic] = ()
) -> Timeline:
    """Return the Timeline of the slices that the mapping of the call matches, or a shipped or common one that fits.

    `diagnostics` are findings about the files of the call, to which those of reading them are added. The slices of each
    file are removed from `files` when they are mapped, so that their memory can be used for spans. Raises InputError
    if nothing matches, if actions have neither a step nor a micro-batch, if an action repeats within a step, if the
    steps contradict the iterations that the trace states, and if the spans need more memory than there is.
    """
    found = [*diagnostics, *(row for file in files for row in file.diagnostics)]
    names = _names(files)
    choice = choose_mapping(files, names, options)
    if not names:
        raise no_slices(files[0].path, [row.message for row in found])
    if choice is None:
        raise no_action_names(files[0].path, options.pattern, names[:MOST_SHOWN])
    stated = StatedArguments()
    spans, total = _spans(files, choice.mapping, stated, options.need)
    if not spans["kind"].is_in(ACTION_KINDS).any():
        raise no_mapped_spans(files[0].path, choice.mapping.source, names[:MOST_SHOWN])
    found += _notes(choice, spans, total, is_described=options.mapping is not None)
    check_fields(spans, choice, files)
    check_identity(spans, stated, files)
    spans = with_ranks(spans, files, found)
    require("ranks", spans["rank"].n_unique(), files[0].path)  # before the work per rank
    if choice.mapping.merges:
        spans = merged_slices(spans)
    if choice.mapping.counts_microbatches:
        spans = _counted(spans)
        text = "no event states a micro-batch: actions are counted in the order of their step, as for 1F1B and GPipe"
        found.append(Diagnostic("warning", text, code="actions.numbered_by_count"))
    spans = _with_steps(spans)
    require("steps", spans["step"].n_unique(), files[0].path)
    check_iterations(spans, choice, stated, files)
    check_repetitions(spans, files)
    clocks = [
        "wall clock" if file.has_epoch else f"time of file {number}" for number, file in enumerate(files)
    ]
    ranks = rank_rows(spans, files, clocks)
    used = sorted({clocks[number] for number in spans["file"].unique()})
    name = pl.when(pl.col("kind").is_in(NAMED_KINDS)).then(pl.col("slice_name").cast(pl.String))
    spans = with_peers(spans, ranks).select(
        *(column for column in SPANS.names if column in spans.columns), name=name
    )
    return Timeline(
        spans=conform(_in_order(spans), SPANS),
        ranks=ranks,
        steps=STEPS.empty(),
        clocks=source_clocks(dict.fromkeys(used), "as in the trace"),
        diagnostics=diagnostics_table(found),
    )


def _in_order(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans in the order of their table. Their columns are taken out of `spans` one by one.

    Sorting all columns at once takes the memory of three such tables.
    """
    order = in_order(spans.select(SPANS.order).with_row_index("row"), SPANS)["row"]
    return pl.DataFrame([spans.drop_in_place(name).rechunk().gather(order) for name in spans.columns])


def _names(files: Sequence[TraceSlices]) -> list[str]:
    """Return the names of slices, the most frequent first."""
    counts = [
        file.slices.group_by("name").len().with_columns(pl.col("name").cast(pl.String)) for file in files
    ]
    total = pl.concat(counts).group_by("name").agg(pl.sum("len"))
    return total.sort("len", "name", descending=[True, False])["name"].to_list()


def _spans(
    files: list[TraceSlices], mapping: EventMapping, stated: StatedArguments, need: ReadingNeed | None
) -> tuple[pl.DataFrame, int]:
    """Return the mapped spans of all files, with the number of their `file`, and the number of slices.

    The slices are removed from the files. Raises InputError if the spans need more memory than there is.
    """
    parts = []
    total = found = 0
    for number, file in enumerate(files):
        slices = restricted(file.slices, mapping)
        files[number] = replace(file, slices=file.slices.clear())
        total += slices.height
        stated.add(slices)
        spans = mapped_spans(slices, file.path, number, mapping)
        parts.append(spans.with_columns(file=pl.lit(number, pl.Int32)))
        found += spans.height
        if need is not None:
            need.mapped(found, MAPPED_SPAN_BYTES)
    return pl.concat(parts), total


def _notes(choice: Choice, spans: pl.DataFrame, total: int, *, is_described: bool) -> list[Diagnostic]:
    # Spans that end before they start are dropped, with an error, where the files of a run are merged.
    used = int((spans["end_ns"] >= spans["start_ns"]).sum())
    share = f"{used:,} of {total:,} slices are used"
    source = choice.mapping.source
    how = "" if choice.reason == GIVEN else f", which was {choice.reason}"
    notes = []
    if choice.reason == ASSUMED and not is_described:
        text = f"slices named like {source} are read as actions (describe other names with --pattern)"
        notes.append(Diagnostic("info", text, code="actions.assumed_names"))
    else:
        share = f"{share}, by the mapping {source}{how}"
    notes.append(Diagnostic("info", share, count=max(1, used), code="trace.mapped"))
    if unmapped := total - spans.height:
        text = f"slices match no rule of {source}"
        notes.append(Diagnostic("info", text, count=unmapped, code="trace.unmapped"))
    return notes


def _counted(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans; actions and transfers without a micro-batch have their place in the step of their rank."""
    is_numbered = pl.col("kind").is_in((*ACTION_KINDS, *SENDS, *RECEIVES)) & pl.col("step").is_not_null()
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "step", "kind", "stage")
    ordered = spans.sort("start_ns", maintain_order=True)
    return ordered.with_columns(microbatch=pl.coalesce("microbatch", pl.when(is_numbered).then(place)))


def _with_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with steps: as mapped, else a new step whenever a rank repeats an action."""
    if spans["step"].null_count() < spans.height:
        return spans
    numbers = pl.col("rank", "step", "stage", "microbatch").cast(pl.Int32)
    # These columns are copied several times.
    stepped = steps_of_ranks(spans.select(numbers, "kind", "start_ns", "end_ns").with_row_index("row"))
    rows, steps = stepped["row"], stepped["step"]
    del stepped
    return spans[rows].with_columns(steps)

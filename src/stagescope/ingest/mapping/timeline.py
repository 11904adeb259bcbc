"""The Timeline of the slices of a trace of any tool, by the mapping that fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.steps import steps_of_ranks
from stagescope.ingest.mapping.checks import check_fields, check_identity, check_iterations, check_repetitions
from stagescope.ingest.mapping.choice import ASSUMED, GIVEN, choose_mapping
from stagescope.ingest.mapping.errors import no_action_names, no_mapped_spans, no_slices
from stagescope.ingest.mapping.ranks import rank_rows, with_peers, with_ranks
from stagescope.ingest.mapping.spans import mapped_spans, merged_slices, restricted
from stagescope.ingest.source_clocks import source_clocks
from stagescope.model import SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import ACTION_KINDS, RECEIVES, SENDS
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.mapping.choice import Choice
    from stagescope.ingest.mapping.slices import TraceSlices
    from stagescope.ingest.reader import ReadOptions

MOST_SHOWN = 5


def timeline_of_slices(
    files: Sequence[TraceSlices], options: ReadOptions, diagnostics: Sequence[Diagnostic] = ()
) -> Timeline:
    """Return the Timeline of the slices that the mapping of the call matches, or a shipped or common one that fits.

    `diagnostics` are findings about the files of the call, to which those of reading them are added. Raises InputError
    if nothing matches, if actions have neither a step nor a micro-batch, if an action repeats within a step, and if the
    steps contradict the iterations that the trace states.
    """
    found = [*diagnostics, *(row for file in files for row in file.diagnostics)]
    names = _names(files)
    choice = choose_mapping(files, names, options)
    if not names:
        raise no_slices(files[0].path, [row.message for row in found])
    if choice is None:
        raise no_action_names(files[0].path, options.pattern, names[:MOST_SHOWN])
    spans = _spans(files, choice, options, found)
    check_fields(spans, choice, files)
    check_identity(spans, choice, files)
    ranked = with_ranks(spans, files, found)
    require("ranks", ranked["rank"].n_unique(), files[0].path)  # before the work per rank
    if choice.mapping.merges:
        ranked = merged_slices(ranked)
    if choice.mapping.counts_microbatches:
        ranked = _counted(ranked)
        text = "no event states a micro-batch: actions are counted in the order of their step, as for 1F1B and GPipe"
        found.append(Diagnostic("warning", text, code="actions.numbered_by_count"))
    stepped = _with_steps(ranked)
    require("steps", stepped["step"].n_unique(), files[0].path)
    check_iterations(stepped, choice, files)
    check_repetitions(stepped, files)
    ranks = rank_rows(stepped)
    return Timeline(
        spans=conform(with_peers(stepped, ranks), SPANS),
        ranks=ranks,
        steps=STEPS.empty(),
        clocks=source_clocks(dict.fromkeys(stepped["clock"].unique().sort()), "as in the trace"),
        diagnostics=diagnostics_table(found),
    )


def _names(files: Sequence[TraceSlices]) -> list[str]:
    """Return the names of slices, the most frequent first."""
    every = pl.concat(file.slices.select("name") for file in files)
    return every.group_by("name").len().sort("len", "name", descending=[True, False])["name"].to_list()


def _spans(
    files: Sequence[TraceSlices], choice: Choice, options: ReadOptions, diagnostics: list[Diagnostic]
) -> pl.DataFrame:
    """Return the mapped spans of all files, with `clock`, `source` and `file`, and report the share that is used."""
    parts = []
    total = 0
    for number, file in enumerate(files):
        total += restricted(file.slices, choice.mapping).height
        clock = "wall clock" if file.has_epoch else f"time of file {number}"
        columns = {"source": pl.lit(str(file.path)), "clock": pl.lit(clock), "file": pl.lit(number)}
        parts.append(mapped_spans(file, number, choice.mapping).with_columns(**columns))
    spans = pl.concat(parts)
    if spans.filter(pl.col("kind").is_in(ACTION_KINDS)).is_empty():
        raise no_mapped_spans(files[0].path, choice.mapping.source, _names(files)[:MOST_SHOWN])
    diagnostics += _notes(choice, spans, total, is_described=options.mapping is not None)
    return spans


def _notes(choice: Choice, spans: pl.DataFrame, total: int, *, is_described: bool) -> list[Diagnostic]:
    # Spans that end before they start are dropped, with an error, where the files of a run are merged.
    used = spans.filter(pl.col("end_ns") >= pl.col("start_ns")).height
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
    return steps_of_ranks(spans.with_columns(pl.col("rank", "step", "stage", "microbatch").cast(pl.Int32)))

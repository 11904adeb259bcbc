"""Refuse what a mapping makes of a trace where it cannot be right, before anything is concluded from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.mapping.choice import ITERATION_KEYS
from stagescope.ingest.mapping.errors import no_identity, no_values, repeated_actions, wrong_steps
from stagescope.ingest.mapping.proposal import MICROBATCH_KEYS, proposed_options
from stagescope.ingest.mapping.spans import restricted
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.mapping.choice import Choice
    from stagescope.ingest.mapping.slices import TraceSlices

MOST_NAMES = 5
IDENTITY = ("step", "rank", "kind", "stage", "chunk", "pp", "microbatch")
OF_TRANSFERS = ("peer", "peer_pp", "peer_stage", "bytes")
DISTINCT_BY = (("tid", "thread"), ("pid", "process"), ("thread", "thread_name"), ("category", "category"))
"""Options of ``--only`` and their columns, by which two runs in one trace may differ."""


def check_fields(spans: pl.DataFrame, choice: Choice, files: Sequence[TraceSlices]) -> None:
    """Raise InputError if no action has a value of a field that the mapping states for all slices."""
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    for name, expression in choice.mapping.fields.items():
        if name not in OF_TRANSFERS and not actions[name].count():
            raise no_values(files[0].path, name, expression.text)


def check_identity(spans: pl.DataFrame, choice: Choice, files: Sequence[TraceSlices]) -> None:
    """Raise InputError if neither the step nor the micro-batch of any action is known."""
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    known = actions["step"].is_not_null() | actions["microbatch"].is_not_null()
    if known.any():
        return
    names = actions.group_by("slice_name").len().sort("len", "slice_name", descending=[True, False])
    slices = restricted(files[0].slices, choice.mapping)
    keys = [*ITERATION_KEYS, *MICROBATCH_KEYS]
    present = [key for key in keys if f"args.{key}" in slices.columns and slices[f"args.{key}"].count()]
    raise no_identity(
        files[0].path, names["slice_name"].head(MOST_NAMES).to_list(), proposed_options(present)
    )


def check_iterations(spans: pl.DataFrame, choice: Choice, files: Sequence[TraceSlices]) -> None:
    """Raise InputError if steps were counted, and events state another number of iterations."""
    if "step" in choice.mapping.fields or any("step" in rule.fields for rule in choice.mapping.rules):
        return
    steps = spans["step"].drop_nulls().n_unique()
    for key in ITERATION_KEYS:
        column = f"args.{key}"
        stated = pl.concat(
            [
                restricted(file.slices, choice.mapping)[column]
                for file in files
                if column in file.slices.columns
            ]
            or [pl.Series([], dtype=pl.String)]
        )
        iterations = stated.cast(pl.Int64, strict=False).drop_nulls().n_unique()
        if iterations and steps != iterations:
            raise wrong_steps(files[0].path, steps, key, iterations)


def check_repetitions(spans: pl.DataFrame, files: Sequence[TraceSlices]) -> None:
    """Raise InputError if an action occurs more than once in a step of a rank."""
    actions = spans.filter(
        pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null() & pl.col("microbatch").is_not_null()
    )
    repeated = actions.filter(pl.struct(IDENTITY).is_duplicated())
    if repeated.is_empty():
        return
    first = repeated.sort("step", "rank", "start_ns").row(0, named=True)
    example = f"{first['kind']} of micro-batch {first['microbatch']} in step {first['step']} of rank {first['rank']}"
    raise repeated_actions(files[0].path, repeated.height, example, _selection(repeated))


def _selection(repeated: pl.DataFrame) -> str | None:
    """Return the option that leaves each of the repeated actions once; None if no text differs."""
    for option, column in DISTINCT_BY:
        values = repeated[column].drop_nulls().unique().sort()
        if len(values) > 1 and not repeated.select(pl.struct(*IDENTITY, column).is_duplicated().any()).item():
            choices = [f"--only {option}={value}" for value in values[:2]]
            return " or ".join(choices)
    return None

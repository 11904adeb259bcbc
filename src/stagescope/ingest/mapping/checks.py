"""Refuse what a mapping makes of a trace where it cannot be right, before anything is concluded from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.mapping.choice import ITERATION_KEYS
from stagescope.ingest.mapping.errors import no_identity, no_values, repeated_actions, wrong_steps
from stagescope.ingest.mapping.expressions import ARGS
from stagescope.ingest.mapping.proposal import MICROBATCH_KEYS, proposed_options
from stagescope.model.row_numbers import number_rows
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


class StatedArguments:
    """What the slices of the files state about their identity, apart from the mapping."""

    def __init__(self) -> None:
        """Begin with no file."""
        self._keys: list[list[str]] = []
        self._iterations: dict[str, list[pl.Series]] = {key: [] for key in ITERATION_KEYS}

    def add(self, slices: pl.DataFrame) -> None:
        """Note what the slices of the next file state."""
        columns = {key: f"{ARGS}.{key}" for key in (*ITERATION_KEYS, *MICROBATCH_KEYS)}
        present = [
            key for key, column in columns.items() if column in slices.columns and slices[column].count()
        ]
        self._keys.append(present)
        for key in present:
            if key in self._iterations:
                texts = slices[columns[key]].unique().cast(pl.String)
                self._iterations[key].append(texts.cast(pl.Int64, strict=False).unique())

    @property
    def keys_of_first_file(self) -> list[str]:
        """The arguments of the first file that may state a step or a micro-batch."""
        return self._keys[0]

    def iterations(self, key: str) -> int:
        """Return how many different numbers the argument `key` has in all files."""
        stated = self._iterations[key]
        return pl.concat(stated).drop_nulls().n_unique() if stated else 0


def check_fields(spans: pl.DataFrame, choice: Choice, files: Sequence[TraceSlices]) -> None:
    """Raise InputError if no action has a value of a field that the mapping states for all slices."""
    is_action = spans["kind"].is_in(ACTION_KINDS)
    for name, expression in choice.mapping.fields.items():
        if name not in OF_TRANSFERS and not (is_action & spans[name].is_not_null()).any():
            raise no_values(files[0].path, name, expression.text)


def check_identity(spans: pl.DataFrame, stated: StatedArguments, files: Sequence[TraceSlices]) -> None:
    """Raise InputError if neither the step nor the micro-batch of any action is known."""
    is_action = spans["kind"].is_in(ACTION_KINDS)
    if (is_action & (spans["step"].is_not_null() | spans["microbatch"].is_not_null())).any():
        return
    names = spans.filter(is_action).group_by(pl.col("slice_name").cast(pl.String)).len()
    most = names.sort("len", "slice_name", descending=[True, False])["slice_name"].head(MOST_NAMES)
    raise no_identity(files[0].path, most.to_list(), proposed_options(stated.keys_of_first_file))


def check_iterations(
    spans: pl.DataFrame, choice: Choice, stated: StatedArguments, files: Sequence[TraceSlices]
) -> None:
    """Raise InputError if steps were counted, and events state another number of iterations."""
    if "step" in choice.mapping.fields or any("step" in rule.fields for rule in choice.mapping.rules):
        return
    steps = spans["step"].drop_nulls().n_unique()
    for key in ITERATION_KEYS:
        iterations = stated.iterations(key)
        if iterations and steps != iterations:
            raise wrong_steps(files[0].path, steps, key, iterations)


def check_repetitions(spans: pl.DataFrame, files: Sequence[TraceSlices]) -> None:
    """Raise InputError if an action occurs more than once in a step of a rank."""
    is_known = (
        pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null() & pl.col("microbatch").is_not_null()
    )
    identities = spans.lazy().filter(is_known).select(IDENTITY).collect()
    if len(number_rows(identities).first) == identities.height:
        return
    actions = spans.filter(is_known)
    repeated = actions.filter(pl.struct(IDENTITY).is_duplicated())
    first = repeated.sort("step", "rank", "start_ns").row(0, named=True)
    example = f"{first['kind']} of micro-batch {first['microbatch']} in step {first['step']} of rank {first['rank']}"
    raise repeated_actions(files[0].path, repeated.height, example, _selection(repeated))


def _selection(repeated: pl.DataFrame) -> str | None:
    """Return the option that leaves each of the repeated actions once; None if no text differs."""
    for option, column in DISTINCT_BY:
        values = repeated[column].drop_nulls().unique().cast(pl.String).sort()
        if len(values) > 1 and not repeated.select(pl.struct(*IDENTITY, column).is_duplicated().any()).item():
            choices = [f"--only {option}={value}" for value in values[:2]]
            return " or ".join(choices)
    return None

"""Slices: the named intervals of a trace of another tool, in the form that a mapping reads.

A reader makes one `TraceSlices` per file. Besides the columns of SLICES, its table has a column of text ``args.KEY``
for each argument that `wanted_arguments` names, unless no event has it; numbers are written as such, and null means
that an event lacks it. All texts are numbers in their list of the different ones (pl.Enum): the slices of all files are
in memory until the mapping is known, texts repeat, and patterns are applied to every different text once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from stagescope.ingest.mapping.expressions import ARGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stagescope.model.diagnostics import Diagnostic

SLICES: dict[str, Any] = {
    "name": pl.String, "category": pl.String, "process": pl.String, "thread": pl.String,
    "process_name": pl.String, "thread_name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
}  # fmt: skip
"""The columns of every table of slices, before `coded`. `process` and `thread` are the ids, as text."""

BEGINS, ENDS = ("B", "b", "S"), ("E", "e", "F")
"""Phases of the Trace Event Format: pairs on a thread, asynchronous pairs, and their older form."""

ASYNCHRONOUS = ("b", "e", "S", "F")
NO_NAME = 0

HALF_NS = 0.0005
EPSILON = 2.0**-52
"""The resolution of a time: half a nanosecond in microseconds, or the spacing of doubles relative to their value."""


@dataclass(frozen=True)
class TraceSlices:
    """The slices of one file, whether they count from the Unix epoch, and what was found while reading them."""

    path: Path
    slices: pl.DataFrame
    has_epoch: bool = False
    diagnostics: list[Diagnostic] = field(default_factory=list)


def coded(slices: pl.DataFrame) -> pl.DataFrame:
    """Return slices with each text as its number in the list of the different texts of its column."""
    return slices.with_columns(
        slices[name].cast(pl.Enum(slices[name].drop_nulls().unique(maintain_order=True)))
        for name, dtype in slices.schema.items()
        if dtype == pl.String
    )


def decoded(codes: pl.Series, texts: Sequence[str]) -> pl.Series:
    """Return the texts that have these numbers, in the form of `coded`; null is null."""
    return pl.Series(texts, dtype=pl.Enum(texts)).gather(codes)


def different_texts(column: pl.Series) -> list[str]:
    """Return the texts of a column in the order of their numbers; not all of them are in a part of its rows."""
    return cast("pl.Enum", column.dtype).categories.to_list()


def of_texts(column: pl.Series, values: Sequence[Any] | pl.Series, dtype: Any) -> pl.Series:
    """Return the value of the text in each row, null if it has none; `values` are those of `different_texts`."""
    return pl.Series(values=values, dtype=dtype).gather(column.to_physical())


def argument_columns(keys: Iterable[str]) -> dict[str, Any]:
    """Return the columns for arguments, and their type."""
    return {f"{ARGS}.{key}": pl.String for key in keys}


def argument_text(arguments: Mapping[str, Any], key: str) -> str | None:
    """Return an argument as text: a number, a text, or null for everything else.

    ``a.b`` is the argument of that name, or else `b` in the object that is the argument `a`.
    """
    found: Any = arguments.get(key)
    if found is None and "." in key:
        outer, _, inner = key.partition(".")
        below = arguments.get(outer)
        return argument_text(below, inner) if isinstance(below, dict) else None
    if isinstance(found, bool):
        return str(int(found))
    if isinstance(found, float) and found.is_integer() and abs(found) < 2**63:
        return str(int(found))
    return str(found).strip() if isinstance(found, str | int | float) else None


def paired(events: pl.DataFrame, arguments: Sequence[str] = ()) -> tuple[pl.DataFrame, int]:
    """Return one row per pair of begin and end, with the end in `end`, and the number of events without a partner.

    `events` are those of BEGINS and ENDS: ph, the numbers of the texts name (NO_NAME is the empty one), category,
    process, thread and id, ts, and the columns `arguments`. On a thread, an end that has a name ends the last begin
    with that name, so that slices may overlap; where ends have no names, the last begun is the first to end.
    Asynchronous events of one category, id and name form pairs. Times order the events; where they differ by no more
    than their resolution, the order of the file does. Arguments of the end complete those of the begin, and replace
    them.
    """
    is_begin = pl.col("ph").is_in(BEGINS)
    is_free = pl.col("ph").is_in(ASYNCHRONOUS)
    thread = ["process", "thread"]
    has_names = (is_begin | (pl.col("name") != NO_NAME)).all().over([*thread, is_free.alias("is_free")])
    of_category = pl.col("category").cast(pl.UInt64) * pl.lit(2**32, pl.UInt64) + pl.col("id").cast(pl.UInt64)
    keyed = events.with_row_index("row").with_columns(
        key_name=pl.when(has_names | is_free).then("name").otherwise(NO_NAME),
        key_thread=pl.when(is_free).then(of_category).otherwise(pl.col("thread").cast(pl.UInt64)),
        is_free=is_free,
    )
    lane = ["process", "is_free", "key_thread", "key_name"]
    # Pairs are adjacent among the events of one nesting depth; a begin without an end has another begin after it.
    change = pl.when(is_begin).then(1).otherwise(-1)
    deep = keyed.sort(_time_in_order(lane), "row").with_columns(
        depth=change.cum_sum().over(lane) + pl.when(is_begin).then(0).otherwise(1)
    )
    key = [*lane, "depth"]
    follows = pl.col("ph").shift(-1).over(key).is_in(ENDS)
    ends = pl.when(follows).then(pl.col("ts").shift(-1).over(key))
    merged = [
        pl.coalesce(pl.when(follows).then(pl.col(name).shift(-1).over(key)), name).alias(name)
        for name in arguments
    ]
    found = deep.with_columns(end=ends, **{column.meta.output_name(): column for column in merged})
    pairs = found.filter(is_begin & pl.col("end").is_not_null())
    return pairs.select(*events.columns, "end"), events.height - 2 * pairs.height


def _time_in_order(lane: Sequence[str]) -> pl.Expr:
    """Return `ts`, or the latest time before it in the file if that is later by no more than the resolution.

    Tools compute an end as the sum of a begin and a duration. As doubles, the sum can be later than the begin of the
    next slice, which is the same time.
    """
    latest = pl.col("ts").fill_nan(None).cum_max().over(lane)
    resolution = pl.max_horizontal(pl.lit(HALF_NS), pl.col("ts").abs() * EPSILON)
    return pl.when(latest - pl.col("ts") <= resolution).then(latest).otherwise("ts")

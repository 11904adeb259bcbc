"""Apply a mapping to slices: the spans of the slices that its rules match, with their identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.name_pattern import LANE_OF, NUMBERS
from stagescope.ingest.annotations.rank_names import RANK_IN_NAME
from stagescope.ingest.mapping.mapping import FIELDS, TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagescope.ingest.annotations.name_pattern import NamePattern
    from stagescope.ingest.mapping.expressions import Expression
    from stagescope.ingest.mapping.mapping import EventMapping, Rule
    from stagescope.ingest.mapping.patterns import TextPattern
    from stagescope.ingest.mapping.slices import TraceSlices

PREFIX_OF = {column: name for name, column in TEXTS.items()}
"""What the numbers that a pattern finds in a column are called in expressions: ``thread.pp`` in thread_name."""

LARGEST = 2**31
BITS_64 = ("bytes",)
NAMED_KINDS = ("other", "collective", "send", "recv")


def mapped_spans(file: TraceSlices, number: int, mapping: EventMapping) -> pl.DataFrame:
    """Return the spans in one file: kind, lane, name, the FIELDS, process, thread, start_ns, end_ns, and arguments.

    `number` counts the files of the call. Of a field below 0 or of 2**31 and more nothing is known (null).
    """
    slices = restricted(file.slices, mapping)
    rank = RANK_IN_NAME.search(file.path.name)
    slices = slices.with_columns(
        pl.lit(number, pl.Int64).alias("file.number"),
        pl.lit(int(rank[1]) if rank else None, pl.Int64).alias("file.rank"),
    )
    for column, pattern in mapping.texts:
        slices = _with_numbers(slices, column, pattern)
    parts = []
    open_rows = pl.Series(values=[True]).new_from_index(0, slices.height)
    for rule in mapping.rules:
        matched = open_rows & _matches(slices, rule)
        open_rows &= ~matched
        if matched.any():
            parts.append(_rule_spans(slices.filter(matched), rule, mapping))
    empty = _rule_spans(slices.clear(), mapping.rules[0], mapping)
    return pl.concat([empty.select(COLUMNS), *(part.select(COLUMNS) for part in parts)])


def restricted(slices: pl.DataFrame, mapping: EventMapping) -> pl.DataFrame:
    """Return the slices that `only` of a mapping leaves."""
    for column, pattern in mapping.only:
        slices = slices.filter(_texts_that(slices, column, pattern))
    return slices


def merged_slices(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with one for each action whose kernels or parts are several slices.

    Slices of an action are apart where another action of the same kind and stage of the rank begins between them: then
    they are of different steps.
    """
    rows = spans.sort("rank", "start_ns", maintain_order=True)
    lane = ["rank", "kind", "stage"]
    is_next = pl.col("microbatch").ne_missing(pl.col("microbatch").shift(1).over(lane))
    runs = rows.with_columns(run=is_next.cum_sum().over(lane))
    firsts = [pl.first(name) for name in spans.columns if name not in {*lane, "start_ns", "end_ns"}]
    return (
        runs.group_by(*lane, "run", maintain_order=True)
        .agg(*firsts, pl.min("start_ns"), pl.max("end_ns"))
        .select(spans.columns)
    )


def _matches(slices: pl.DataFrame, rule: Rule) -> pl.Series:
    found: pl.Series = pl.Series(values=[True]).new_from_index(0, slices.height)
    for column, pattern in rule.where:
        found = found & _texts_that(slices, column, pattern)
    if rule.names is not None:
        known = [name for name in slices["name"].unique() if rule.names.action(name) is not None]
        found = found & slices.select(pl.col("name").is_in(known)).to_series()
    return found


def _texts_that(slices: pl.DataFrame, column: str, pattern: TextPattern) -> pl.Series:
    """Return which rows have a text that matches; every different text is tried once."""
    texts: Iterable[str] = slices[column].drop_nulls().unique() if column in slices.columns else ()
    known = [text for text in texts if pattern.find(text) is not None]
    matched = pl.col(column).is_in(known).fill_null(value=False) if known else pl.lit(value=False)
    return slices.with_columns(matched.alias("matched"))["matched"]


def _with_numbers(slices: pl.DataFrame, column: str, pattern: TextPattern) -> pl.DataFrame:
    """Return the slices with a column for each number that a pattern finds in the texts of a column."""
    if not pattern.numbers:
        return slices
    prefix = PREFIX_OF.get(column, column)
    texts = slices[column].drop_nulls().unique()
    rows = [{column: text, **{f"{prefix}.{name}": value for name, value in (pattern.find(text) or {}).items()}}
            for text in texts]  # fmt: skip
    schema = {column: pl.String, **{f"{prefix}.{name}": pl.Int64 for name in pattern.numbers}}
    found = pl.DataFrame(rows, schema)
    return slices.drop(schema.keys() - {column}, strict=False).join(
        found, on=column, how="left", maintain_order="left"
    )


def _with_actions(slices: pl.DataFrame, names: NamePattern) -> pl.DataFrame:
    """Return the slices with `kind`, `lane` and the numbers that a pattern for names finds."""
    found = [(name, action) for name in slices["name"].unique() if (action := names.action(name)) is not None]
    rows = [
        {"name": name, "kind": action.kind, "lane": action.lane,
         **{f"name.{number}": value for number, value in action.numbers.items()}}
        for name, action in found
    ]  # fmt: skip
    schema = {
        "name": pl.String,
        "kind": pl.String,
        "lane": pl.String,
        **{f"name.{each}": pl.Int64 for each in NUMBERS},
    }
    return slices.join(pl.DataFrame(rows, schema), on="name", how="left", maintain_order="left")


def _rule_spans(slices: pl.DataFrame, rule: Rule, mapping: EventMapping) -> pl.DataFrame:
    if rule.names is not None:
        slices = _with_actions(slices, rule.names)
    else:
        lane = rule.lane or LANE_OF[str(rule.kind)]
        slices = slices.with_columns(pl.lit(rule.kind).alias("kind"), pl.lit(lane).alias("lane"))
    patterns = [*mapping.texts, *rule.where]
    for column, pattern in rule.where:
        slices = _with_numbers(slices, column, pattern)
    implied = {
        name: f"{PREFIX_OF.get(column, column)}.{name}"
        for column, pattern in patterns
        for name in pattern.numbers
    }
    if rule.names is not None:
        implied |= {name: f"name.{name}" for name in NUMBERS}
    return _with_fields(slices, {**mapping.fields, **rule.fields}, implied)


def _with_fields(
    slices: pl.DataFrame, stated: Mapping[str, Expression], implied: Mapping[str, str]
) -> pl.DataFrame:
    columns = []
    for name in FIELDS:
        if name in stated:
            values = _values(slices, stated[name])
        elif name in implied:
            values = slices[implied[name]]
        else:
            values = pl.Series([None], dtype=pl.Int64).new_from_index(0, slices.height)
        columns.append(values.alias(name))
    largest = {name: 2**62 if name in BITS_64 else LARGEST for name in FIELDS}
    known = [pl.when(pl.col(name).is_between(0, largest[name] - 1)).then(name).alias(name) for name in FIELDS]
    with_fields = slices.drop(FIELDS.keys(), strict=False).with_columns(columns).with_columns(known)
    return with_fields.with_columns(
        slice_name=pl.col("name"), name=pl.when(pl.col("kind").is_in(NAMED_KINDS)).then("name")
    )


def _values(slices: pl.DataFrame, expression: Expression) -> pl.Series:
    """Return the values of an expression; names that no pattern and no event of this trace has are null."""
    renamed = {"pid": "process", "tid": "thread"}
    columns = {}
    for column in expression.columns:
        present = renamed.get(column, column)
        known = present in slices.columns
        columns[column] = (
            slices[present] if known else pl.Series([None], dtype=pl.Int64).new_from_index(0, slices.height)
        )
    return expression.values(pl.DataFrame(columns)) if columns else expression.values(slices)


COLUMNS: Iterable[str] = (
    "kind", "lane", "name", "slice_name", *FIELDS, "category", "process", "thread", "thread_name", "start_ns", "end_ns",
)  # fmt: skip

"""Apply a mapping to slices: the spans of the slices that its rules match, with their identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.ingest.annotations.name_pattern import LANE_OF, NUMBERS
from stagescope.ingest.annotations.rank_names import RANK_IN_NAME
from stagescope.ingest.mapping.mapping import FIELDS, TEXTS
from stagescope.ingest.mapping.slices import different_texts, of_texts
from stagescope.model.tables import KindType, LaneType

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.ingest.annotations.name_pattern import NamePattern
    from stagescope.ingest.mapping.expressions import Expression
    from stagescope.ingest.mapping.mapping import EventMapping, Rule
    from stagescope.ingest.mapping.patterns import TextPattern

PREFIX_OF = {column: name for name, column in TEXTS.items()}
"""What the numbers that a pattern finds in a column are called in expressions: ``thread.pp`` in thread_name."""

LARGEST = {pl.Int32: 2**31 - 1, pl.Int64: 2**62 - 1}
NAMED_KINDS = ("other", "collective", "send", "recv")

FIELD_TYPES = {**dict.fromkeys(FIELDS, pl.Int32), "bytes": pl.Int64}
TEXTS_OF_SPANS = ("category", "process", "thread", "thread_name")
SPAN_COLUMNS: dict[str, Any] = {
    "kind": KindType, "lane": LaneType, "slice_name": pl.Categorical(), **FIELD_TYPES,
    **dict.fromkeys(TEXTS_OF_SPANS, pl.Categorical()), "start_ns": pl.Int64, "end_ns": pl.Int64,
}  # fmt: skip


def mapped_spans(slices: pl.DataFrame, path: Path, number: int, mapping: EventMapping) -> pl.DataFrame:
    """Return the spans among the slices of one file that `restricted` leaves, with the columns of SPAN_COLUMNS.

    `number` counts the files of the call. Of a field below 0 or of 2**31 and more nothing is known (null). The text of
    a slice is one of a list that all files share (pl.Categorical).
    """
    rank = RANK_IN_NAME.search(path.name)
    of_file = (
        pl.lit(number, pl.Int64).alias("file.number"),
        pl.lit(int(rank[1]) if rank else None, pl.Int64).alias("file.rank"),
    )
    parts = []
    open_rows = _repeated(True, pl.Boolean, slices.height)
    for rule in mapping.rules:
        matched = open_rows & _matches(slices, rule)
        open_rows &= ~matched
        if matched.any():
            parts.append(_rule_spans(slices.filter(matched).with_columns(of_file), rule, mapping))
    return pl.concat([pl.DataFrame(schema=SPAN_COLUMNS), *parts])


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
    found = _repeated(True, pl.Boolean, slices.height)
    for column, pattern in rule.where:
        found = found & _texts_that(slices, column, pattern)
    if rule.names is not None:
        known = [rule.names.action(text) is not None for text in different_texts(slices["name"])]
        found = found & of_texts(slices["name"], known, pl.Boolean)
    return found


def _texts_that(slices: pl.DataFrame, column: str, pattern: TextPattern) -> pl.Series:
    """Return which rows have a text that matches."""
    if column not in slices.columns:
        return _repeated(False, pl.Boolean, slices.height)
    known = [pattern.find(text) is not None for text in different_texts(slices[column])]
    found: pl.Series = of_texts(slices[column], known, pl.Boolean).fill_null(value=False)
    return found


def _with_numbers(slices: pl.DataFrame, column: str, pattern: TextPattern) -> pl.DataFrame:
    """Return the slices with a column for each number that a pattern finds in the texts of a column."""
    prefix = PREFIX_OF.get(column, column)
    if column not in slices.columns:
        return slices.with_columns(
            pl.lit(None, pl.Int32).alias(f"{prefix}.{name}") for name in pattern.numbers
        )
    found = [pattern.find(text) or {} for text in different_texts(slices[column])] if pattern.numbers else []
    numbers = {name: [one.get(name) for one in found] for name in pattern.numbers}
    return slices.with_columns(
        of_texts(slices[column], values, pl.Int32).alias(f"{prefix}.{name}")
        for name, values in numbers.items()
    )


def _with_actions(slices: pl.DataFrame, names: NamePattern) -> pl.DataFrame:
    """Return the slices with `kind`, `lane` and the numbers that a pattern for names finds, unless they have them."""
    found = [names.action(text) for text in different_texts(slices["name"])]
    values: dict[str, tuple[Any, list[Any]]] = {
        "kind": (KindType, [action and action.kind for action in found]),
        "lane": (LaneType, [action and action.lane for action in found]),
    }
    for each in NUMBERS:
        numbers = [None if action is None else action.numbers.get(each) for action in found]
        values[f"name.{each}"] = pl.Int32, numbers
    return slices.with_columns(
        of_texts(slices["name"], of_text, dtype).alias(name)
        for name, (dtype, of_text) in values.items()
        if name not in slices.columns
    )


def _rule_spans(slices: pl.DataFrame, rule: Rule, mapping: EventMapping) -> pl.DataFrame:
    for column, pattern in mapping.texts:
        slices = _with_numbers(slices, column, pattern)
    if rule.names is not None:
        slices = _with_actions(slices, rule.names)
    else:
        lane = rule.lane or LANE_OF[str(rule.kind)]
        slices = slices.with_columns(kind=pl.lit(rule.kind, KindType), lane=pl.lit(lane, LaneType))
    for column, pattern in rule.where:
        slices = _with_numbers(slices, column, pattern)
    implied = {
        name: f"{PREFIX_OF.get(column, column)}.{name}"
        for column, pattern in (*mapping.texts, *rule.where)
        for name in pattern.numbers
    }
    if rule.names is not None:
        implied |= {name: f"name.{name}" for name in NUMBERS}
    stated = {**mapping.fields, **rule.fields}
    texts = [pl.col(name).cast(pl.Categorical) for name in TEXTS_OF_SPANS]
    fields = [_field(slices, name, stated.get(name), implied.get(name)) for name in FIELDS]
    named = slices.with_columns(*texts, slice_name=pl.col("name").cast(pl.Categorical))
    return named.with_columns(fields).select(*SPAN_COLUMNS)


def _field(slices: pl.DataFrame, name: str, stated: Expression | None, implied: str | None) -> pl.Series:
    """Return the values of a field: those of an expression, or of a number in a text; null if there is neither."""
    dtype = FIELD_TYPES[name]
    if stated is not None:
        values = _values(slices, stated)
    elif implied is not None:
        values = slices[implied]
    else:
        return _repeated(None, dtype, slices.height).alias(name)
    is_known = pl.col(name).is_between(0, LARGEST[dtype])
    found: pl.Series = values.to_frame(name).select(pl.when(is_known).then(name).cast(dtype)).to_series()
    return found


def _values(slices: pl.DataFrame, expression: Expression) -> pl.Series:
    """Return the values of an expression; names that no pattern and no event of this trace has are null."""
    renamed = {"pid": "process", "tid": "thread"}
    columns = {}
    for column in expression.columns:
        present = renamed.get(column, column)
        if present not in slices.columns:
            columns[column] = _repeated(None, pl.Int64, slices.height)
        elif isinstance(slices.schema[present], pl.Enum):
            numbers = pl.Series(different_texts(slices[present]), dtype=pl.String).cast(
                pl.Int64, strict=False
            )
            columns[column] = of_texts(slices[present], numbers, pl.Int64)
        else:
            columns[column] = slices[present]
    return expression.values(pl.DataFrame(columns)) if columns else expression.values(slices)


def _repeated(value: object, dtype: Any, height: int) -> pl.Series:
    found: pl.Series = pl.Series([value], dtype=dtype).new_from_index(0, height)
    return found

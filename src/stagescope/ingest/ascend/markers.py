"""Actions of one profile from its marks, in device time.

A mark is an mstx range: a call on the host (MSTX_EVENTS) whose task on the device (TASK) has the same connectionId. The
text of a mark is free text of the training script; `ACTION_NAMES` declares which texts are actions, following the guide
of pp_chart (msprof-analyze 26.2, docs/en/advanced_features/pp_chart.md) and the functions that it decorates.
"""

from __future__ import annotations

import ast
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.ingest.ascend.pipeline_info import BACKWARD, FORWARD, OVERLAP, RAW_ACTIONS, WEIGHT
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.limits import limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.ingest.database import Database

ACTION_NAMES: tuple[tuple[str, str], ...] = (
    (r"forward_step(_no_model_graph|_with_model_graph)?", FORWARD),
    (r"backward_step(_with_model_graph)?", BACKWARD),
    (r"forward_backward_overlap(p?ing|ped)", OVERLAP),  # the guide spells it "overlaping"
    (r"WeightGradStore[._]pop(_single)?", WEIGHT),
)
"""Regular expressions for whole names of marks, and the marker of each."""

TEXT_PATTERNS = ("%forward%", "%backward%", "%WeightGradStore%", "%opName%")
"""SQL LIKE patterns of relevant texts. msprof-analyze takes every match of the first two for an action."""

SHOWN_NAMES = 3
LARGEST_NUMBER = 2**31 - 1
MICROBATCH_KEYS = ("current_microbatch", "microbatch_id", "microbatch")
CHUNK_KEYS = ("model_chunk_id", "chunk", "vpp_rank", "vpp")

STRINGS = {"number": pl.Int64, "text": pl.String}
MARKS = {
    "text": pl.Int64,
    "connection": pl.Int64,
    "host_start_ns": pl.Int64,
    "host_end_ns": pl.Int64,
}
TASKS = {"connection": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
STEP_TIMES = {"step": pl.Int32, "host_start_ns": pl.Int64, "step_end_ns": pl.Int64}


class MarkFields(NamedTuple):
    """Fields of a mark's text: the marker (None if it is not an action), the name, and numbers if recorded."""

    marker: str | None
    name: str
    microbatch: int | None = None
    chunk: int | None = None


class Marks(NamedTuple):
    """Marks of one profile, with their tasks' start_ns and end_ns, and diagnostics.

    * `actions`: the columns of RAW_ACTIONS, host_start_ns and host_end_ns
    * `other`: text, start_ns and end_ns of the marks that are JSON objects with `opName`, the marks of communication
    """

    actions: pl.DataFrame
    other: pl.DataFrame
    notes: list[Diagnostic]


@lru_cache(maxsize=65536)
def parse_message(text: str) -> MarkFields:
    """Return the fields of a mark's text: a Python dict as the guide's decorator writes it, JSON, or a plain name.

    >>> parse_message("{'name': 'forward_step', 'current_microbatch': 3}")
    MarkFields(marker='forward', name='forward_step', microbatch=3, chunk=None)
    """
    facts = read_object(text)
    name = str(facts.get("name", text)) if facts else text.strip()
    marker = next((marker for pattern, marker in ACTION_NAMES if re.fullmatch(pattern, name)), None)
    return MarkFields(marker, name, _number(facts, MICROBATCH_KEYS), _number(facts, CHUNK_KEYS))


def read_object(text: str) -> dict[str, Any]:
    """Return the object in a text of JSON or a Python dict literal, an empty dict for any other text."""
    # A syntax tree takes a hundred times the memory of its text.
    if not text.lstrip().startswith("{") or len(text) > limit("name-length"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def _number(facts: dict[str, Any], keys: Iterable[str]) -> int | None:
    values = (facts[key] for key in keys if key in facts)
    numbers = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
    return next((number for number in numbers if 0 <= number < LARGEST_NUMBER), None)


def read_marks(database: Database, rank: int) -> Marks:
    """Return the marks of a profile that are actions or communication, with the times of their tasks.

    A mark without a task is omitted and counted: the time of the host call is not the time of the device work. A mark
    with several tasks lasts from the first start to the last end.
    """
    # Texts first: marks store the number of their text, so only relevant marks are loaded.
    texts = _texts(database)
    database.check_references("MSTX_EVENTS", "message", "STRING_IDS", "id")
    fields = {number: parse_message(text) for number, text in texts.items()}
    marks = _read(database, texts)
    timed, untimed = _on_device(database, marks)
    actions = [number for number, each in fields.items() if each.marker]
    other = [number for number, text in texts.items() if "opName" in text and not fields[number].marker]
    of_action = pl.col("text").is_in(actions)
    untimed_actions = untimed.filter(of_action).height
    names = {fields[number].name for number in marks["text"].unique() if not fields[number].marker}
    return Marks(
        _actions(timed.filter(of_action), fields, rank),
        _other(timed.filter(pl.col("text").is_in(other)), texts),
        [*_unknown(names, database, rank), *_without_task(untimed_actions, database, rank)],
    )


def _texts(database: Database) -> dict[int, str]:
    """Return the texts of possibly relevant marks by number, including others that match the same patterns."""
    columns = database.columns("STRING_IDS", "t", ("id", "value"))
    alike = " OR ".join("t.value LIKE ?" for _ in TEXT_PATTERNS)
    query = f"SELECT t.rowid, {columns} FROM STRING_IDS t WHERE {alike}"  # noqa: S608 - declared names
    rows = database.rows("STRING_IDS", query, TEXT_PATTERNS)
    return dict(database.typed("STRING_IDS", rows, STRINGS).drop_nulls().iter_rows())


def _read(database: Database, texts: Iterable[int]) -> pl.DataFrame:
    columns = database.columns("MSTX_EVENTS", "t", ("message", "connectionId", "startNs", "endNs"))
    chosen = "t.message IN (SELECT value FROM json_each(?))"
    query = f"SELECT t.rowid, {columns} FROM MSTX_EVENTS t WHERE {chosen}"  # noqa: S608 - declared names
    rows = database.rows("MSTX_EVENTS", query, [json.dumps(sorted(texts))])
    marks = database.typed("MSTX_EVENTS", rows, MARKS).drop_nulls("text")
    return marks.unique("connection", keep="first", maintain_order=True)


def _on_device(database: Database, marks: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the marks with start_ns and end_ns of their tasks, and the marks without a task.

    TASK has no index on connectionId and has hundreds of thousands of rows, so the cheap range condition is tested
    first: the ids of marks start at 4,000,000,001 (START_CONNECTION_ID_MSTX of Ascend/msprof), above all others.
    """
    connections = marks["connection"].drop_nulls()
    if connections.is_empty():
        return marks.with_columns(start_ns=pl.lit(0, pl.Int64), end_ns=pl.lit(0, pl.Int64)).clear(), marks
    columns = database.columns("TASK", "t", ("connectionId", "startNs", "endNs"))
    query = (
        f"SELECT t.rowid, {columns} FROM TASK t WHERE t.connectionId BETWEEN ? AND ? "  # noqa: S608 - declared names
        "AND t.connectionId IN (SELECT value FROM json_each(?))"
    )
    wanted = json.dumps(connections.to_list())
    rows = database.rows("TASK", query, [connections.min(), connections.max(), wanted])
    read = database.typed("TASK", rows, TASKS)
    tasks = read.drop_nulls().group_by("connection").agg(pl.min("start_ns"), pl.max("end_ns"))
    timed = marks.join(tasks, on="connection", how="inner", maintain_order="left")
    return timed, marks.join(tasks, on="connection", how="anti")


def _actions(marks: pl.DataFrame, fields: dict[int, MarkFields], rank: int) -> pl.DataFrame:
    numbers = marks["text"].unique()
    words = pl.DataFrame(
        [(number, *fields[number]) for number in numbers],
        schema={"text": pl.Int64, "marker": pl.String, "message": pl.String, "recorded_microbatch": pl.Int32,
                "recorded_chunk": pl.Int32},
        orient="row",
    )  # fmt: skip
    named = marks.join(words, on="text", how="left")
    numbers_known = {"rank": pl.lit(rank, pl.Int32), "step": pl.lit(None, pl.Int32)}
    return named.with_columns(**numbers_known).select(*RAW_ACTIONS, "host_start_ns", "host_end_ns")


def _other(marks: pl.DataFrame, texts: dict[int, str]) -> pl.DataFrame:
    found = [texts[number] for number in marks["text"]]
    return marks.select(pl.Series("text", found, pl.String), "start_ns", "end_ns")


def _unknown(names: set[str], database: Database, rank: int) -> Iterable[Diagnostic]:
    alike = sorted(name for name in names if "opName" not in name)
    if alike:
        shown = ", ".join(map(repr, alike[:SHOWN_NAMES])) + (", ..." if alike[SHOWN_NAMES:] else "")
        text = f"ignored marks that are not pipeline actions: {shown}"
        source, table = str(database.path), "table MSTX_EVENTS"
        yield Diagnostic("info", text, source, rank, table, len(alike), code="marks.unrecognized")


def _without_task(count: int, database: Database, rank: int) -> Iterable[Diagnostic]:
    if count:
        text = "marks of actions have no task on the device and were omitted"
        yield Diagnostic(
            "error", text, str(database.path), rank, "table TASK", count, code="marks.without_task"
        )


def read_step_times(database: Database, rank: int) -> pl.DataFrame:
    """Return the steps of a profile on the host: rank, step, host_start_ns, step_end_ns; empty if it records none."""
    steps = database.frame("STEP_TIME", ("id", "startNs", "endNs"), STEP_TIMES)
    return steps.drop_nulls().with_columns(rank=pl.lit(rank, pl.Int32))


def without_nested(actions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the actions of all ranks that are not nested in another, sorted by rank and start, and the nested ones.

    A decorated function that calls another makes a mark inside a mark, on both the host and the device. A mark inside
    another on the device only runs concurrently on a stream of its own, and is kept.
    """
    ordered = actions.sort("rank", "start_ns", "end_ns", descending=[False, False, True]).with_row_index(
        "row"
    )
    is_longest = pl.col("end_ns") > pl.col("end_ns").cum_max().shift(1, fill_value=-1)
    longest = pl.when(is_longest).then("row").forward_fill().shift(1).over("rank")
    outer = ordered.select("row", "end_ns", "host_start_ns", "host_end_ns")
    pairs = ordered.with_columns(outer=longest).join(
        outer, left_on="outer", right_on="row", how="left", suffix="_outer", maintain_order="left"
    )
    inside = (
        (pl.col("end_ns") <= pl.col("end_ns_outer"))
        & (pl.col("host_start_ns") >= pl.col("host_start_ns_outer")).fill_null(value=True)
        & (pl.col("host_end_ns") <= pl.col("host_end_ns_outer")).fill_null(value=True)
    ).fill_null(value=False)
    nested = pairs.select(inside).to_series()
    return ordered.filter(~nested).drop("row"), ordered.filter(nested).drop("row")


def with_steps(actions: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the actions with the step in which their mark started on the host, null outside of every step.

    On a rank without recorded steps, all actions are in step 0.
    """
    at_start = actions.select("rank", "host_start_ns").with_row_index("row").sort("host_start_ns")
    found = at_start.join_asof(
        steps.sort("host_start_ns"),
        on="host_start_ns",
        by="rank",
        strategy="backward",
        check_sortedness=False,
    ).sort("row")
    inside = pl.when(pl.col("host_start_ns") <= pl.col("step_end_ns")).then("step")
    step = found.select(
        pl.when(pl.col("rank").is_in(steps["rank"].unique().implode())).then(inside).otherwise(0)
    )
    return actions.with_columns(step.to_series().cast(pl.Int32).alias("step"))

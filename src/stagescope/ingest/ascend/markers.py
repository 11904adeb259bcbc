"""The pipeline's actions as the marks of one profile show them, in the time of the device.

A mark is a range of mstx: a call on the host (MSTX_EVENTS) whose task on the device (TASK) has the same connectionId.
The text of a mark is what somebody wrote into the training script; `ACTION_NAMES` declares which of them are actions,
after the guide of pp_chart (msprof-analyze 26.2, docs/en/advanced_features/pp_chart.md) and the functions that it
decorates.
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.ingest.database import Database

ACTION_NAMES: tuple[tuple[str, str], ...] = (
    (r"forward_step(_no_model_graph|_with_model_graph)?", FORWARD),
    (r"backward_step(_with_model_graph)?", BACKWARD),
    (r"forward_backward_overlap(p?ing|ped)", OVERLAP),  # the guide writes overlaping
    (r"WeightGradStore[._]pop(_single)?", WEIGHT),
)
"""Whole names of marks, and what they stand for."""

LOOKS_LIKE = ("%forward%", "%backward%", "%WeightGradStore%", "%opName%")
"""What the texts of interest have in common, in the words of SQL. msprof-analyze takes the first two for actions."""

SHOWN_NAMES = 3
MICROBATCH_KEYS = ("current_microbatch", "microbatch_id", "microbatch")
CHUNK_KEYS = ("model_chunk_id", "chunk", "vpp_rank", "vpp")

MARKS = {
    "text": pl.Int64,
    "connection": pl.Int64,
    "host_start_ns": pl.Int64,
    "host_end_ns": pl.Int64,
}
TASKS = {"connection": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
STEP_TIMES = {"step": pl.Int32, "host_start_ns": pl.Int64, "step_end_ns": pl.Int64}


class Said(NamedTuple):
    """What the text of a mark says: its action, None for none, the name, and what the name does not."""

    marker: str | None
    name: str
    microbatch: int | None = None
    chunk: int | None = None


class Marks(NamedTuple):
    """The marks of one profile, their tasks as start_ns and end_ns, and what had to be said about them.

    actions   the columns of RAW_ACTIONS, with host_start_ns and host_end_ns
    other  text, start_ns, end_ns of the marks that are JSON objects with `opName`, the marks of communication
    """

    actions: pl.DataFrame
    other: pl.DataFrame
    notes: list[Diagnostic]


@lru_cache(maxsize=65536)
def parse_message(text: str) -> Said:
    """Return what the text of a mark says: a Python dict as the guide's decorator writes it, JSON, or a plain name.

    >>> parse_message("{'name': 'forward_step', 'current_microbatch': 3}")
    Said(marker='forward', name='forward_step', microbatch=3, chunk=None)
    """
    facts = read_object(text)
    name = str(facts.get("name", text)) if facts else text.strip()
    marker = next((marker for pattern, marker in ACTION_NAMES if re.fullmatch(pattern, name)), None)
    return Said(marker, name, _number(facts, MICROBATCH_KEYS), _number(facts, CHUNK_KEYS))


def read_object(text: str) -> dict[str, Any]:
    """Return the object that a text writes down in JSON or as a Python dict, an empty one if it does not."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def _number(facts: dict[str, Any], keys: Iterable[str]) -> int | None:
    values = (facts[key] for key in keys if key in facts)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


def read_marks(database: Database, rank: int) -> Marks:
    """Return the marks of a profile that are actions or communication, with the times of their tasks.

    A mark without a task is left out and counted: when the host called is not when the device worked. A mark with
    several tasks lasts from the first start to the last end.
    """
    texts = _texts(database)
    said = {number: parse_message(text) for number, text in texts.items()}
    marks = _read(database, texts)
    timed, lost = _on_device(database, marks)
    actions = [number for number, each in said.items() if each.marker]
    other = [number for number, text in texts.items() if "opName" in text and not said[number].marker]
    of_action = pl.col("text").is_in(actions)
    lost_actions = lost.filter(of_action).height
    names = {said[number].name for number in marks["text"].unique() if not said[number].marker}
    return Marks(
        _actions(timed.filter(of_action), said, rank),
        _other(timed.filter(pl.col("text").is_in(other)), texts),
        [*_unknown(names, database, rank), *_without_task(lost_actions, database, rank)],
    )


def _texts(database: Database) -> dict[int, str]:
    """Return by number the texts that may stand in marks of interest, others that look alike among them."""
    columns = database.columns("STRING_IDS", "t", ("id", "value"))
    alike = " OR ".join("t.value LIKE ?" for _ in LOOKS_LIKE)
    query = f"SELECT t.rowid, {columns} FROM STRING_IDS t WHERE {alike}"  # noqa: S608 - declared names
    return {number: str(text) for number, text in database.rows("STRING_IDS", query, LOOKS_LIKE)}


def _read(database: Database, texts: Iterable[int]) -> pl.DataFrame:
    columns = database.columns("MSTX_EVENTS", "t", ("message", "connectionId", "startNs", "endNs"))
    chosen = "t.message IN (SELECT value FROM json_each(?))"
    query = f"SELECT t.rowid, {columns} FROM MSTX_EVENTS t WHERE {chosen}"  # noqa: S608 - declared names
    rows = database.rows("MSTX_EVENTS", query, [json.dumps(sorted(texts))])
    return _frame(rows, MARKS).unique("connection", keep="first", maintain_order=True)


def _on_device(database: Database, marks: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the marks with start_ns and end_ns of their tasks, and those without a task.

    TASK has no index on connectionId and holds hundreds of thousands of rows, which are compared with the bounds
    first: the ids of marks begin at 4,000,000,001 (START_CONNECTION_ID_MSTX of Ascend/msprof), above all others.
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
    tasks = _frame(rows, TASKS).drop_nulls().group_by("connection").agg(pl.min("start_ns"), pl.max("end_ns"))
    timed = marks.join(tasks, on="connection", how="inner", maintain_order="left")
    return timed, marks.join(tasks, on="connection", how="anti")


def _frame(rows: Sequence[tuple[object, ...]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row", strict=False)


def _actions(marks: pl.DataFrame, said: dict[int, Said], rank: int) -> pl.DataFrame:
    numbers = marks["text"].unique()
    words = pl.DataFrame(
        [(number, *said[number]) for number in numbers],
        schema={"text": pl.Int64, "marker": pl.String, "message": pl.String, "said_microbatch": pl.Int32,
                "said_chunk": pl.Int32},
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
        text = f"marks that are no actions of the pipeline were passed over: {shown}"
        yield Diagnostic("info", text, str(database.path), rank, "table MSTX_EVENTS", len(alike))


def _without_task(count: int, database: Database, rank: int) -> Iterable[Diagnostic]:
    if count:
        text = "marks of actions have no task on the device and were left out"
        yield Diagnostic("error", text, str(database.path), rank, "table TASK", count)


def read_step_times(database: Database, rank: int) -> pl.DataFrame:
    """Return the steps of a profile on the host: rank, step, host_start_ns, step_end_ns; no row where it has none."""
    columns = database.columns("STEP_TIME", "t", ("id", "startNs", "endNs"))
    query = f"SELECT t.rowid, {columns} FROM STEP_TIME t"  # noqa: S608 - declared names
    rows = database.rows("STEP_TIME", query) if database.has("STEP_TIME") else []
    return _frame(rows, STEP_TIMES).drop_nulls().with_columns(rank=pl.lit(rank, pl.Int32))


def without_nested(actions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the actions of all ranks that stand inside no other, sorted by rank and start, and those that do.

    A decorated function that calls another makes a mark inside a mark, on the host and on the device. What is inside
    on the device alone runs beside the other on a stream of its own, and stays.
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
    """Return the actions with the step in which their mark began on the host, null outside of every step.

    A rank without any step is in step 0 all the time.
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

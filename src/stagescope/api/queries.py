"""Query the tables of a run with SQL."""

from __future__ import annotations

import re
from concurrent.futures import Future, TimeoutError  # noqa: A004  # another class until Python 3.11
from threading import TIMEOUT_MAX, Thread
from typing import TYPE_CHECKING

import polars as pl
from polars.exceptions import PanicException, PolarsError

from stagescope.analysis import Report
from stagescope.api.analyses import analyze
from stagescope.exporters.new_files import new_file
from stagescope.model import TABLES
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.limits import checked_limits, limit, limits_in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from io import BufferedWriter
    from pathlib import Path

    from stagescope.model import Timeline

READING = re.compile(r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*(select|with|from)\b", re.IGNORECASE | re.DOTALL)
FROM_FILES = re.compile(r"\b(?:read|scan)_\w+[\"`\]]?\s*(?:\(|/\*|--)", re.IGNORECASE)
"""Functions with which Polars reads files, also in quotes or before a comment; a query reads the tables of the run."""

RUN_TABLES: Mapping[str, str] = {table.name: table.row for table in TABLES}
"""The tables that were recorded, and what a row of each is (docs/formats.md)."""

REPORT_TABLES: Mapping[str, tuple[str, str]] = {
    "report_steps": ("steps", "one step and rank, with its bubble"),
    "report_ranks": ("ranks", "one rank, with its bubble"),
    "stages": ("stages", "one stage, with the cost of a micro-batch"),
    "ledger": ("ledger", "one step of a pipeline, divided among causes of lost time"),
    "iterations": ("iterations", "one iteration of a rank, divided among causes of lost time"),
    "losses": ("losses", "one cause of lost time in the iterations"),
    "culprits": ("culprits", "one rank or link that makes a rank idle"),
    "idle": ("idle", "one idle interval, with its cause and what it waited for"),
    "outliers": ("outliers", "one action that took far longer than usual"),
    "critical_path": ("critical_path", "one part of the critical path of a step"),
    "slack": ("slack", "one action, with how much later it could have ended"),
    "findings": ("findings", "one finding"),
    "improvements": ("improvements", "one possible change, with the predicted step"),
    "collectives": ("collectives", "one collective call of a rank"),
    "transfers": ("transfers", "one pair of ranks, with the messages from one to the other"),
    "late_ranks": ("late_ranks", "one rank that arrives late at collectives"),
    "slowdowns": ("slowdowns", "one kind of operation, with what its slowdown costs"),
    "kernel_communication": ("kernel_communication", "one action, with its exposed and hidden communication"),
}
"""The tables that the report adds, with the property of Report and what a row is (docs/analysis-tables.md)."""


def sql(run: Timeline | Report, query: str, *, limits: Mapping[str, int | str] | None = None) -> pl.DataFrame:
    """Return the result of a SQL query over the tables of a run.

    `query` is one statement that begins with SELECT, WITH or FROM, in the dialect of Polars (``polars.SQLContext``).
    The tables of a Timeline have their own names: spans, ranks, steps, clocks, diagnostics, counters, kernels. Those of
    its report are stages, ledger, iterations, losses, culprits, idle, outliers, critical_path, slack, findings,
    improvements, collectives, transfers, late_ranks, slowdowns and kernel_communication, and report_steps and
    report_ranks for `Report.steps` and `Report.ranks`; they are computed if the query names them. Times are integer
    nanoseconds, enumerations are text.

    A query that takes longer than the limit `query`, 60 s, is given up, such as a recursive one without an end;
    ``limits={"query": 600}`` changes it, 0 removes it. Its thread then goes on until the process ends.

    Integers have 64 bits at most, and results beyond them wrap around silently, as in Polars: cast an operand to
    DOUBLE where that can happen.

    Raises UsageError if the query is not a query, reads files, fails or takes too long.

    >>> from stagescope.api import simulate
    >>> run = simulate("1f1b", ranks=2, microbatches=4).timeline
    >>> sql(run, "select rank, count(*) as actions from spans group by rank order by rank").rows()
    [(0, 8), (1, 8)]
    """
    checked_query(query)
    frames = {name: spelled(frame) for name, frame in tables_in(run, query).items()}
    with limits_in_force(checked_limits(limits)):
        seconds = limit("query")
    try:
        return _within(seconds, lambda: pl.SQLContext(frames, eager=True).execute(query))
    except UnicodeEncodeError:  # an argument that is not UTF-8
        raise UsageError.query_failed("it is not valid Unicode text") from None
    except (PolarsError, PanicException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError.query_failed(reason) from None


def checked_query(query: str) -> str:
    """Return a query that only reads, and only the tables of a run. Raises UsageError for any other statement."""
    if READING.match(query) is None:
        raise UsageError.not_a_query(query)
    if FROM_FILES.search(query):
        raise UsageError.query_failed("a query reads the tables of the run, not files")
    return query


def _within(seconds: int, execute: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Return what `execute` returns or raises. Raises UsageError after `seconds`: Polars cannot be interrupted."""
    done: Future[pl.DataFrame] = Future()

    def run() -> None:
        try:
            done.set_result(execute())
        except BaseException as error:  # noqa: BLE001  # raised again where the result is awaited
            done.set_exception(error)

    Thread(target=run, daemon=True, name="stagescope query").start()
    try:
        return done.result(min(seconds, TIMEOUT_MAX))
    except TimeoutError:
        reason = (
            f"it takes longer than the limit of {seconds} s (if it has an end, --limit query={10 * seconds})"
        )
        raise UsageError.query_failed(reason) from None


def tables_in(run: Timeline | Report, query: str) -> dict[str, pl.DataFrame]:
    """Return the tables whose names occur in a query: those of the report take time to compute."""
    words = set(re.findall(r"\w+", query.lower()))
    timeline = run.timeline if isinstance(run, Report) else run
    frames: dict[str, pl.DataFrame] = {name: getattr(timeline, name) for name in RUN_TABLES if name in words}
    wanted = [name for name in REPORT_TABLES if name in words]
    if wanted:
        report = run if isinstance(run, Report) else analyze(run)
        frames |= {name: getattr(report, REPORT_TABLES[name][0]) for name in wanted}
    return frames


def spelled(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table with its enumerations as text."""
    return frame.with_columns(pl.col(pl.Enum).cast(pl.String))


def write_query(result: pl.DataFrame, path: Path, *, force: bool = False) -> None:
    """Write the result of a query to a file, whose suffix is one of QUERY_FORMATS.

    Raises OutputError if the file exists and `force` is not set, and if it cannot be written; UsageError for a column
    that the format cannot contain.
    """
    write = QUERY_FORMATS[path.suffix.lower()]
    try:
        with new_file(path, force=force) as unfinished, unfinished.open("wb") as file:
            write(result, file)
    except (PolarsError, PanicException) as error:
        raise UsageError.query_failed(str(error).splitlines()[0]) from None


QUERY_FORMATS: Mapping[str, Callable[[pl.DataFrame, BufferedWriter], object]] = {
    ".csv": lambda result, file: result.write_csv(file),
    ".json": lambda result, file: result.write_json(file),
    ".parquet": lambda result, file: result.write_parquet(file),
}
"""How the result of a query is written, by the suffix of the file."""

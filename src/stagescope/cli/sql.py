"""``stagescope sql``: the tables of a run, queried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo, echo_data
from stagescope.cli.reading import align_option, exit_code, read_paths, reading_options, warn_errors
from stagescope.cli.run_paths import RUN_PATH
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.language import Foreign
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    import polars as pl

    from stagescope.api import RunFacts

MOST_ROWS = 50


@click.command(
    "sql",
    epilog="""
    \b
    Examples:
      stagescope sql recordings "select kind, count(*) as n from spans group by kind"
      stagescope sql recordings "select * from idle order by end_ns - start_ns desc limit 5"
      stagescope sql run.stagescope "select rank, sum(bytes) as bytes from spans group by rank" -o bytes.csv
      stagescope sql recordings "select step, end_ns from steps where rank = 0" --rows 0
    """,
)
@click.argument("path", metavar="PATH", type=RUN_PATH)
@click.argument("query", metavar="QUERY")
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(min=0),
    default=MOST_ROWS,
    show_default=True,
    help="Most rows to print; 0 for all.",
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="Write the result to a .csv, .json or .parquet file instead.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@align_option
@reading_options
def command(
    path: Path, query: str, facts: RunFacts, rows: int, output: Path | None, *, align: bool, force: bool
) -> int:
    """Query the tables of a run with SQL, in the dialect of Polars.

    The tables are spans, ranks, steps, clocks, diagnostics, counters and kernels (docs/formats.md), and of the report
    stages, ledger, iterations, losses, culprits, idle, outliers, critical_path, slack, findings, improvements,
    collectives, late_ranks, slowdowns, kernel_communication, report_steps and report_ranks (docs/analysis-tables.md).
    Times are nanoseconds. A query that takes longer than 60 s is given up (--limit query=SECONDS). Results beyond 64
    bits wrap around, as in Polars: cast to DOUBLE where that can happen.
    """
    from stagescope import api

    if output is not None and output.suffix.lower() not in api.QUERY_FORMATS:
        raise UsageError.query_output(output, tuple(api.QUERY_FORMATS))
    timeline = read_paths([path], facts, align=align)
    result = api.sql(timeline, query, limits=facts.get("limits"))
    if output is None:
        _print(result, rows)
    else:
        api.write_query(result, output, force=force)
        echo(f"wrote {output}: {counted(result.height, 'row')}")
    return exit_code(timeline, warn_errors(timeline))


def _print(result: pl.DataFrame, rows: int) -> None:
    from stagescope.reports.aligned import aligned

    shown = result.head(rows) if rows else result
    head = tuple(map(Foreign, result.columns))
    if not head:
        return
    text = [place for place, dtype in enumerate(result.dtypes) if not dtype.is_numeric()]
    for line in aligned(head, [tuple(map(_cell, row)) for row in shown.iter_rows()], text):
        echo_data(line)
    if shown.height < result.height:
        echo(
            f"... and {result.height - shown.height} more rows: --rows 0 prints all, -o OUT writes them to a file"
        )


def _cell(value: object) -> str:
    """Return a value as one line: nothing for null, and fractions without the digits that rounding adds."""
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else Foreign(printable(str(value)))

"""``stagescope store``: a run as a directory of Parquet files that every command reads."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo, error_console
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.reading import (
    FileBar,
    TaskBar,
    TileBar,
    align_option,
    exit_code,
    reading_options,
    warn_partial,
)
from stagescope.cli.run_paths import RUN_PATH
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.language import localized
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.api import RunFacts, Stored
    from stagescope.model.diagnostics import Diagnostic

MANY_SPANS = 200_000
"""Analyzing fewer takes no longer than a second or two."""


@click.command(
    "store",
    epilog="""
    \b
    Examples:
      stagescope store recordings -o run.stagescope
      stagescope report run.stagescope
      stagescope store recordings -o run.stagescope --page && stagescope open run.stagescope
      stagescope store s3://bucket/recordings -o run.stagescope
      stagescope store recordings -o run.stagescope --cluster tcp://127.0.0.1:8786
      duckdb -c "select kind, count(*) from 'run.stagescope/spans/**/*.parquet' group by kind"
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=RUN_PATH)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    required=True,
    type=click.Path(),
    help="Directory of the stored run, such as run.stagescope.",
)
@click.option("--force", is_flag=True, help="Replace a run in DIR that was stored from other files.")
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Processes that write the files and analyze a large run.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Write on a cluster: local:4, tcp://HOST:8786, slurm or ray (docs/scale.md).",
)
@click.option(
    "--analysis/--no-analysis",
    default=True,
    help="Also analyze the run, which is the default, or leave that to its first report.",
)
@click.option(
    "--page/--no-page",
    default=False,
    help="Also prepare its page in DIR/page, so that `stagescope open DIR` shows it at once to everyone, or leave "
    "that to the first `open` of each user, which is the default.",
)
@align_option
@reading_options
def command(
    paths: tuple[Path, ...],
    facts: RunFacts,
    output: str,
    workers: int | None,
    cluster: str | None,
    *,
    align: bool,
    analysis: bool,
    page: bool,
    force: bool,
) -> int:
    """Store a run as Parquet files, partitioned by pipeline and steps, which every command reads.

    The clocks are aligned. The run is analyzed once, so that `stagescope report` prints its report within seconds; the
    exit code is that of the report. If storing is interrupted, the same command goes on where it stopped; if DIR has
    the run already, only missing and damaged files are written.
    """
    from stagescope import api

    with ExitStack() as shown:
        stored = api.store(
            *paths,
            out=output,
            align=align,
            force=force,
            workers=workers,
            cluster=cluster,
            on_progress=FileBar(shown, paths).show,
            on_notice=_notice,
            **facts,
        )
    warn_partial(stored)
    manifest = stored.manifest
    per_span = f" ({manifest.size_bytes / manifest.span_count:.1f} B per span)" if manifest.span_count else ""
    kept = f", {stored.kept} were there already" if stored.kept else ""
    echo(
        f"stored {manifest.span_count} spans in {stored.path}: {size_text(manifest.size_bytes)}{per_span}, "
        f"{stored.written} files written{kept}"
    )
    found = _analyze(stored, workers, cluster) if analysis and align else []
    print_diagnostics([*found, *api.sorted_diagnostics(stored)])
    if page:
        _prepare_page(stored, align=align)
    return exit_code(stored, found)


def _prepare_page(stored: Stored, *, align: bool) -> None:
    """Save the tiles that `stagescope open` shows beside the run."""
    from stagescope import api

    with ExitStack() as shown:
        page = api.save_page(stored.path, align=align, on_tiles=TileBar(shown).show)
    words = f"{stored.path}{'' if align else ' --no-align'}"
    begin = "prepared the page" if page.is_new else "kept the prepared page"
    echo(
        f"{begin} of {page.span_count} spans ({size_text(page.size_bytes)} in {page.path}): "
        f"`stagescope open {words}` shows it"
    )


def _notice(text: str) -> None:
    echo(f"stagescope: {text}", err=True)


def _analyze(stored: Stored, workers: int | None, cluster: str | None) -> list[Diagnostic]:
    """Save the report of a stored run beside it, or print why not: the run itself is stored.

    Returns the errors that the analysis has found, such as stages that are missing.
    """
    from stagescope import api

    with ExitStack() as shown:
        bar = TaskBar(shown, "analyzing the run")
        if (
            sys.stderr.isatty()
            and stored.manifest.span_count >= MANY_SPANS
            and api.is_quick_to_analyze(stored.manifest)
        ):
            shown.enter_context(error_console().status(localized("analyzing the run")))
        try:
            saved = api.save_report(
                stored.path, workers=workers, cluster=cluster, on_progress=bar.show, on_notice=_notice
            )
        except InputError as error:
            echo(f"stagescope: {error}", err=True)
            echo(f"  {error.hint}", err=True)
            return []
    if saved.is_new:
        which = f"steps {saved.steps}, as many as fit into memory" if saved.steps else "all steps"
        echo(f"analyzed {which}: `stagescope report {stored.path}` prints the report")
    report = api.load_report(stored.path)
    known = set(api.sorted_diagnostics(stored))
    every = [] if report is None else report.diagnostics
    return [each for each in every if each.severity == "error" and each not in known]

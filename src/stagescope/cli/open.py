"""``stagescope open``: the viewer in the browser, from a server on this machine, for runs of any size."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.arenas import share_arenas
from stagescope.cli.console import echo
from stagescope.cli.reading import FileBar, TileBar, align_option, cache_notice, reading_options
from stagescope.cli.run_paths import RUN_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagescope.api import RunFacts

LATEST = ", the latest of a running training"


@click.command(
    "open",
    epilog="""
    \b
    Examples:
      stagescope open recordings
      stagescope open after --compare before                as stagescope compare before after, with both pictures
      stagescope open recordings --whole
      stagescope open s3://bucket/run.stagescope
      stagescope open recordings --port 8000 --no-browser   from elsewhere: ssh -L 8000:127.0.0.1:8000 HOST
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=RUN_PATH)
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Loopback address.")
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Port; omit to pick a free one."
)
@click.option("--browser/--no-browser", default=True, help="Open the browser, or only print the link.")
@click.option("--whole", is_flag=True, help="Read all of a training that is still running.")
@click.option(
    "--compare",
    metavar="RUN",
    type=RUN_PATH,
    help="Compare with an earlier run, which is read with the same options and shown below this one.",
)
@align_option
@reading_options
def command(
    paths: tuple[Path, ...],
    facts: RunFacts,
    host: str,
    port: int,
    compare: Path | None,
    *,
    browser: bool,
    align: bool,
    whole: bool,
) -> int:
    """Open a run in the browser, from a server that only this machine can reach.

    Ctrl-C ends the server. If PATH is a directory of recordings that a training is writing, the page follows it: its
    last steps, what each rank does, trends and alarms. With --whole, --compare, or options about how PATH is read, all
    of it is read, and read again when the files change. The tiles that make large runs fast are kept in the cache
    directory, unless a stored run has them beside it (store --page).
    """
    from stagescope import api

    share_arenas()
    with ExitStack() as shown:
        bars: dict[str, Any] = {"on_progress": FileBar(shown, paths).show, "on_tiles": TileBar(shown).show}
        viewer = api.prepare_viewer(
            *paths,
            compare=compare,
            host=host,
            port=port,
            align=align,
            live=not whole,
            on_notice=cache_notice,
            **bars,
            **facts,
        )
    warn_partial(viewer.meta)
    if viewer.compared is not None:
        warn_partial(viewer.compared)
    with viewer.ended_by_ctrl_c():
        echo(
            f"{viewer.meta['title']} · {viewer.meta['span_count']:,} spans{LATEST if viewer.is_live else ''}"
        )
        if viewer.compared is not None:
            echo(f"compared with {viewer.compared['title']} · {viewer.compared['span_count']:,} spans")
        echo(f"open {viewer.link}")
        echo("  this link works once; Ctrl-C ends the server")
        if browser and _has_display():
            viewer.open_browser()
        viewer.run()
    echo("ended")
    return 0


def warn_partial(meta: Mapping[str, Any]) -> None:
    """Print a warning on standard error if data are missing from the run that `meta` describes."""
    errors = [row["message"] for row in meta["diagnostics"] if row["severity"] == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more, see the viewer)" if len(errors) > 1 else ""
        echo(f"stagescope: partial data: {errors[0]}{more}", err=True)


def _has_display() -> bool:
    """Return whether a browser would open in a window; a text browser would take over this terminal."""
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )

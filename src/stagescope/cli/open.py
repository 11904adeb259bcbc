"""``stagescope open``: the viewer in the browser, from a server on this machine, for runs of any size."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.reading import Progress, align_option, reading_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagescope.ingest.reader import ReadOptions
    from stagescope.viewer.tiles.run import RunView

MANY_SPANS = 2_000_000
"""Fewer spans than this are ready before a person wonders."""


@click.command(
    "open",
    epilog="""
    \b
    Examples:
      stagescope open recordings
      stagescope open recordings --port 8000 --no-browser   from elsewhere: ssh -L 8000:127.0.0.1:8000 HOST
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Loopback address.")
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Port; a free one unless given."
)
@click.option("--browser/--no-browser", default=True, help="Open the browser; without, print the link alone.")
@align_option
@reading_options
def command(
    paths: tuple[Path, ...], options: ReadOptions, host: str, port: int, *, browser: bool, align: bool
) -> int:
    """Show a run in the browser, from a server that answers on this machine alone. Ctrl-C ends it.

    What is being recorded into PATH meanwhile is shown too: the viewer notices when there is more. The levels of
    detail that make large runs fast are kept in the cache directory.
    """
    from stagescope import api as workflow
    from stagescope.viewer.server.live import LiveRun, Opener
    from stagescope.viewer.server.serve import listen, require_loopback

    require_loopback(host)  # before minutes of work
    stamp = workflow.view_stamp(*paths)
    read = partial(workflow.view_run, *paths, align=align)
    run = _with_progress(read, options, paths)
    say_partial(run)
    again = Opener(partial(workflow.view_stamp, *paths), partial(read, options=options))
    listening = listen(LiveRun(again, run, stamp), host, port)
    with listening.ended_by_ctrl_c():
        click.echo(f"{run.meta['title']} · {run.meta['span_count']:,} spans")
        click.echo(f"open {listening.link}")
        click.echo("  this link works once; Ctrl-C ends the server")
        if browser and _has_screen():
            _open_browser(listening.link)
        listening.run()
    click.echo("ended")
    return 0


def _with_progress(read: Callable[..., RunView], options: ReadOptions, paths: Sequence[Path]) -> RunView:
    """Return the run, with bars on standard error where it takes long and somebody watches."""
    with ExitStack() as shown:
        reading = Progress(shown, paths)
        levels = LevelBar(shown)
        return read(
            options=replace(options, on_read=reading.advance), on_found=reading.begin, on_levels=levels.show
        )


class LevelBar:
    """A bar on standard error that counts spans; nothing where they are few or no terminal watches."""

    def __init__(self, shown: ExitStack) -> None:
        """Show the bar until `shown` is left."""
        self._shown = shown
        self._update: Callable[[int], object] | None = None

    def show(self, done: int, every: int) -> None:
        """Show how many spans are done."""
        if self._update is None and every >= MANY_SPANS and sys.stderr.isatty():
            self._update = self._begin(every)
        if self._update is not None:
            self._update(done)

    def _begin(self, every: int) -> Callable[[int], object]:
        from rich.console import Console
        from rich.progress import Progress as Bar

        bar = self._shown.enter_context(Bar(console=Console(stderr=True), transient=True))
        task = bar.add_task(f"making levels of {every:,} spans", total=every)
        return lambda done: bar.update(task, completed=done)


def say_partial(run: RunView) -> None:
    """Say on standard error that data are missing from the run, if they are."""
    errors = [row["message"] for row in run.meta["diagnostics"] if row["severity"] == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more, see the viewer)" if len(errors) > 1 else ""
        click.echo(f"stagescope: partial data: {errors[0]}{more}", err=True)


def _has_screen() -> bool:
    """Tell whether a browser would open in a window, and not in this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _open_browser(link: str) -> None:
    """Open the browser by way of a private file: its command line, which every user can see, has no token then."""
    from stagescope.viewer.server.launch import open_browser

    open_browser(link)

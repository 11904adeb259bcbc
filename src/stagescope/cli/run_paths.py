"""Arguments that name a run: a path, or the address of an object store, with the progress of fetching it."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import error_console

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE_BYTES = 4 << 20
"""Less is fetched within about a second, too fast for a progress bar to be useful."""


class RunPath(click.Path):
    """A path of this machine; an address such as s3://bucket/recordings stays text, which `stagescope.read` takes."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """Return the argument, and prepare to show the progress of fetching it."""
        from stagescope.storage.addresses import is_address

        if not is_address(value):
            return Path(os.fsdecode(super().convert(value, param, ctx)))
        from stagescope.storage.mirror import on_fetched

        on_fetched.set(FetchBar().show)
        return str(value)


RUN_PATH = RunPath()


class FetchBar:
    """A progress bar on standard error while files are fetched; not shown if standard error is not a terminal."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._shown = ExitStack()
        self._update: Callable[[int], object] | None = None

    def show(self, done_bytes: int, all_bytes: int) -> None:
        """Show how many bytes have been fetched; the bar disappears when these are all."""
        if self._update is None and done_bytes < all_bytes >= LARGE_BYTES and sys.stderr.isatty():
            self._update = self._begin(all_bytes)
        if self._update is not None:
            self._update(done_bytes)
        if done_bytes >= all_bytes:
            self._shown.close()
            self._update = None

    def _begin(self, all_bytes: int) -> Callable[[int], object]:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        bar = self._shown.enter_context(Progress(*columns, console=error_console(), transient=True))
        task = bar.add_task("fetching", total=all_bytes)
        return lambda done: bar.update(task, completed=done)

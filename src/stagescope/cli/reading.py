"""What the commands that read a run have in common: options, progress, and saying first if data are missing."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import wraps
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import click

from stagescope.vocabulary.parallel import DEFAULT_ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagescope.clocks import Aligned
    from stagescope.ingest.reader import ReadOptions
    from stagescope.model import Timeline
MANY_FILES = 16
LARGE_BYTES = 64 << 20
"""Fewer and smaller files than this are read before a person wonders."""

EXIT_PARTIAL = 1

SIZES = {
    "pp": "Pipeline stages",
    "tp": "Tensor-parallel size",
    "dp": "Data-parallel size",
    "cp": "Context-parallel size",
}
UNLESS_SAID = "where the files do not say it."


def reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command the options that say what files may not: parallel sizes, schedule, micro-batches.

    The command gets all of them together as `options`, a ReadOptions.
    """

    @wraps(function)
    def with_options(**arguments: Any) -> Any:
        layout = {name: arguments.pop(name) for name in (*SIZES, "order")}
        said = {name: arguments.pop(name) for name in ("schedule", "microbatches", "pattern")}
        return function(options=_read_options(layout, said), **arguments)

    sizes = [_number(f"--{name}", f"{meaning}, {UNLESS_SAID}") for name, meaning in SIZES.items()]
    order = click.option(
        "--order",
        metavar="DIMS",
        default=DEFAULT_ORDER,
        show_default=True,
        help="How ranks are numbered, the fastest dimension first.",
    )
    schedule = click.option(
        "--schedule", "--pp-type", metavar="NAME", help=f"Schedule that was run, {UNLESS_SAID}"
    )
    microbatches = _number("--microbatches", f"Micro-batches per step, {UNLESS_SAID}")
    pattern = click.option(
        "--pattern",
        metavar="TEXT",
        help="How a trace calls its actions, such as '{kind}_{microbatch}', where it is not known here.",
    )
    added: list[Callable[..., Any]] = [*sizes, order, schedule, microbatches, pattern]
    for option in reversed(added):
        with_options = option(with_options)
    return with_options


def _number(name: str, help_text: str) -> Callable[..., Any]:
    return click.option(name, metavar="N", type=click.IntRange(min=1), help=help_text)


def _read_options(layout: dict[str, Any], said: dict[str, Any]) -> ReadOptions:
    from stagescope.ingest.layout import Layout
    from stagescope.ingest.reader import ReadOptions

    return ReadOptions(Layout(**layout), **said)


def align_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command `--no-align`; it gets `align`, False where stamps are to stay as they were read."""
    text = "Leave every machine's stamps on its own wall clock."
    return click.option("--no-align", "align", is_flag=True, flag_value=False, default=True, help=text)(
        function
    )


def read_paths(paths: Sequence[Path], options: ReadOptions | None = None, *, align: bool = True) -> Aligned:
    """Return the timeline of `paths` and what was found of its clocks; without `align`, raw stamps and no such report.

    Says so on standard error, first of all, if data are missing from the timeline. While many files are read, a
    terminal shows how many are done.
    """
    from dataclasses import replace

    from stagescope import api as workflow
    from stagescope.clocks import Aligned, ClockReport
    from stagescope.ingest.reader import ReadOptions

    with ExitStack() as shown:
        progress = Progress(shown, paths)
        options = replace(options or ReadOptions(), on_read=progress.advance)
        raw = workflow.read(*paths, options=options, align=False, on_found=progress.begin)
    read = workflow.bring_to_one_clock(raw) if align else Aligned(raw, ClockReport(()))
    say_partial(read.timeline)
    return read


def exit_code(timeline: Timeline) -> int:
    """Return the exit code of a command that did all it could with `timeline`."""
    return EXIT_PARTIAL if timeline.is_partial else 0


class Progress:
    """A bar on standard error that counts files; nothing where they are few and small, or no terminal watches."""

    def __init__(self, shown: ExitStack, paths: Sequence[Path] = ()) -> None:
        """Show the bar until `shown` is left; `paths` are what is read."""
        self._shown = shown
        self._paths = paths
        self._advance: Callable[[], object] | None = None

    def begin(self, file_count: int) -> None:
        """Show the bar for so many files."""
        if not sys.stderr.isatty() or not (file_count >= MANY_FILES or _are_large(self._paths)):
            return
        from rich.console import Console
        from rich.progress import Progress as Bar

        bar = self._shown.enter_context(Bar(console=Console(stderr=True), transient=True))
        files = f"{file_count} files" if file_count > 1 else "1 file"
        task = bar.add_task(f"reading {files}", total=file_count)
        self._advance = lambda: bar.advance(task)

    def advance(self, _path: Path) -> None:
        """Count one file more."""
        if self._advance is not None:
            self._advance()


def _are_large(paths: Sequence[Path]) -> bool:
    """Tell whether files, and all in directories, take long to read."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    sizes = (file.stat().st_size for file in files if file.is_file())
    return any(total >= LARGE_BYTES for total in accumulate(sizes))


def say_partial(timeline: Timeline) -> None:
    """Say on standard error that data are missing from `timeline`, if they are."""
    if not timeline.is_partial:
        return
    errors = timeline.diagnostics.filter(timeline.diagnostics["severity"] == "error")
    more = f" (and {errors.height - 1} more, see below)" if errors.height > 1 else ""
    click.echo(f"stagescope: partial data: {errors['message'][0]}{more}", err=True)
    click.echo("  what follows holds for what was recorded, and the exit code is 1", err=True)

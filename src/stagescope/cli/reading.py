"""Options, progress bars and warnings that the commands which read a run share."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from stagescope.cli.console import echo, echo_data, error_console
from stagescope.cli.mapping_options import MAPPING_OPTIONS, mapping_facts
from stagescope.storage.cache_directory import keep_nothing
from stagescope.vocabulary.language import localized
from stagescope.vocabulary.limits import BY_NAME, parse_limits
from stagescope.vocabulary.parallel import DEFAULT_ORDER

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    import polars as pl

    from stagescope.analysis import Report
    from stagescope.api import RunFacts
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic

MANY_FILES = 16
LARGE_BYTES = 64 << 20
"""Fewer and smaller files are read within about a second, too fast for a progress bar to be useful."""

Found = TypeVar("Found")

EXIT_PARTIAL = 1
PARTIAL_RESULTS = "  the results are for the data that were recorded; the exit code is 1"

SIZES = {
    "pp": "Pipeline-parallel size",
    "tp": "Tensor-parallel size",
    "dp": "Data-parallel size",
    "cp": "Context-parallel size",
}
OTHER_FACTS = ("order", "schedule", "microbatches", "pattern", "attempt", "pipeline", "steps", "kernels")
"""Options with the names of keywords of `stagescope.read`."""
IF_UNKNOWN = "if the files do not contain it."


def reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command the options for facts that the files may not contain: parallel sizes, schedule, micro-batches.

    The command gets them together as `facts`, the keywords of `stagescope.read`.
    """

    @wraps(function)
    def with_facts(**arguments: Any) -> Any:
        facts = {name: arguments.pop(name) for name in (*SIZES, *OTHER_FACTS)}
        limits = parse_limits(arguments.pop("limits")) or None
        keep_nothing(is_wanted=arguments.pop("no_cache"))
        return function(facts={**facts, "limits": limits, **mapping_facts(arguments)}, **arguments)

    sizes = [_number(f"--{name}", f"{meaning}, {IF_UNKNOWN}") for name, meaning in SIZES.items()]
    order = click.option(
        "--order",
        metavar="DIMS",
        default=DEFAULT_ORDER,
        show_default=True,
        help="Order in which ranks are numbered, fastest dimension first.",
    )
    schedule = click.option(
        "--schedule", "--pp-type", metavar="NAME", help=f"Pipeline schedule that ran, {IF_UNKNOWN}"
    )
    microbatches = _number("--microbatches", f"Micro-batches per step, {IF_UNKNOWN}")
    pattern = _text(
        "--pattern",
        "TEXT",
        "Names of actions in a Chrome trace, such as '{kind}_{microbatch}', if they are not recognized.",
    )
    attempt = click.option(
        "--attempt",
        metavar="N",
        type=click.IntRange(min=0),
        help="Attempt to read of a run that was restarted, from 0; omit for the last complete one.",
    )
    pipeline = _text(
        "--pipeline",
        "NAME",
        "Pipeline to read if each process ran several, such as GPipe; omit for the one that took the most time.",
    )
    steps = _text("--steps", "A:B", "Steps to read, such as 100:110 for 100 to 109; omit for all.")
    kernels = click.option("--kernels", is_flag=True, help="Also read every kernel of a device trace.")
    limits = click.option(
        "--limit",
        "limits",
        metavar="NAME=VALUE",
        multiple=True,
        help=f"Change a limit on what files may contain: {', '.join(BY_NAME)}; may be repeated.",
    )
    added = [
        *sizes, order, schedule, microbatches, pattern, *MAPPING_OPTIONS, attempt, pipeline, steps, kernels, limits,
        _no_cache(),
    ]  # fmt: skip
    for option in reversed(added):
        with_facts = option(with_facts)
    return with_facts


def _no_cache() -> Callable[..., Any]:
    text = "Keep nothing in the cache, where large runs are stored once (docs/scale.md)."
    return click.option("--no-cache", is_flag=True, help=text)


def _number(name: str, help_text: str) -> Callable[..., Any]:
    return click.option(name, metavar="N", type=click.IntRange(min=1), help=help_text)


def _text(name: str, metavar: str, help_text: str) -> Callable[..., Any]:
    return click.option(name, metavar=metavar, help=help_text)


def align_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command `--no-align`; the command gets `align`, which is False if clocks must not be aligned."""
    text = "Keep the timestamps of each machine on its own wall clock."
    return click.option("--no-align", "align", is_flag=True, flag_value=False, default=True, help=text)(
        function
    )


def skip_steps_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command `--skip-steps STEPS`; the command gets it as text, for `parse_skipped`."""
    text = "Leave steps out of the totals: N for the first N of a run, A:B for a range of numbers."
    return click.option("--skip-steps", metavar="N|A:B", help=text)(function)


def read_paths(
    paths: Sequence[str | os.PathLike[str]],
    facts: RunFacts | None = None,
    *,
    align: bool = True,
    run: str | None = None,
) -> Timeline:
    """Return the Timeline of `paths`, with a warning on standard error if data are missing.

    On a terminal, a bar shows the progress of many or large files. `run` is how the warning names one of several runs.
    """
    return read_cached(*cached_paths(paths, facts or {}, align=align), align=align, run=run)


def read_cached(
    paths: Sequence[str | os.PathLike[str]], facts: RunFacts, *, align: bool = True, run: str | None = None
) -> Timeline:
    """Return what `read_paths` does, of what `cached_paths` returned: what it read directly is not tried again."""
    from stagescope import api

    with ExitStack() as shown:
        timeline = api.read(*paths, **facts, align=align, on_progress=FileBar(shown, paths).show)
    warn_partial(timeline, run)
    return timeline


def while_analyzing(load: Callable[[Callable[[int, int], object]], Found]) -> Found:
    """Return what `load` returns for a stored run, which it may have to analyze first; it is given a progress bar."""
    with ExitStack() as shown:
        return load(TaskBar(shown, "analyzing the run").show)


def read_metrics(paths: Sequence[str | os.PathLike[str]], facts: RunFacts) -> Report | None:
    """Return the times per step and rank of a stored run from its saved report; None for what has to be read.

    `paths` and `facts` are from `cached_paths`. Warnings and the progress bar are those of `read_paths`.
    """
    from stagescope import api

    report = while_analyzing(lambda show: api.metrics_of_stored_run(*paths, on_progress=show, **facts))
    if report is not None:
        warn_partial(report.timeline)
    return report


def cached_paths(
    paths: Sequence[str | os.PathLike[str]], facts: RunFacts, *, align: bool = True
) -> tuple[Sequence[str | os.PathLike[str]], RunFacts]:
    """Return what to read instead of large inputs: the run in the cache, stored now if need be, and its facts."""
    from stagescope import api

    with ExitStack() as shown:
        bar = FileBar(shown, paths, "storing")
        return api.cached_input(paths, facts, api.Shown(cache_notice, bar.show), align=align)


def cache_notice(text: str) -> None:
    """Print a sentence about the cache on standard error, which leaves standard output to results."""
    echo(f"stagescope: {text}", err=True)


def exit_code(timeline: Read, found: Iterable[Diagnostic] = ()) -> int:
    """Return 1 if data are missing from the timeline that a command used, or if an analysis found an error in it."""
    has_error = any(diagnostic.severity == "error" for diagnostic in found)
    return EXIT_PARTIAL if timeline.is_partial or has_error else 0


class Read(Protocol):
    """What was read or stored, and what was wrong with it."""

    @property
    def is_partial(self) -> bool:
        """Whether data are known to be missing."""

    @property
    def diagnostics(self) -> pl.DataFrame:
        """The table DIAGNOSTICS."""


class FileBar:
    """A progress bar on standard error for many or large files; not shown if standard error is not a terminal."""

    def __init__(
        self, shown: ExitStack, paths: Sequence[str | os.PathLike[str]] = (), verb: str = "reading"
    ) -> None:
        """Prepare a bar that disappears when `shown` is left; `paths` are being read."""
        self._verb = verb
        self._shown = shown
        self._paths = paths
        self._update: Callable[[int], object] | None = None

    def show(self, done: int, file_count: int) -> None:
        """Show that `done` of `file_count` files have been read; the first call has `done` 0."""
        if done == 0 and sys.stderr.isatty() and (file_count >= MANY_FILES or _are_large(self._paths)):
            self._update = self._begin(file_count)
        if self._update is not None:
            self._update(done)

    def _begin(self, file_count: int) -> Callable[[int], object]:
        files = f"{file_count} files" if file_count > 1 else "1 file"
        return _shown_bar(self._shown, f"{self._verb} {files}", file_count)


class TaskBar:
    """A progress bar on standard error for long work; not shown if standard error is not a terminal."""

    def __init__(self, shown: ExitStack, text: str) -> None:
        """Prepare a bar that disappears when `shown` is left; `text` is what is being done."""
        self._shown, self._text = shown, text
        self._update: Callable[[int], object] | None = None

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` tasks are done; the first call has `done` 0."""
        if done == 0 and sys.stderr.isatty():
            self._update = _shown_bar(self._shown, self._text, total)
        if self._update is not None:
            self._update(done)


MANY_SPANS = 2_000_000
"""Making the tiles of fewer takes about a second, too short for a progress bar to be useful."""


class TileBar:
    """A progress bar on standard error for many spans; not shown if standard error is not a terminal."""

    def __init__(self, shown: ExitStack) -> None:
        """Prepare a bar that disappears when `shown` is left."""
        self._shown = shown
        self._update: Callable[[int], object] | None = None

    def show(self, done: int, span_count: int) -> None:
        """Show that the tiles of `done` of `span_count` spans have been made."""
        if self._update is None and span_count >= MANY_SPANS and sys.stderr.isatty():
            self._update = _shown_bar(self._shown, f"making tiles of {span_count:,} spans", span_count)
        if self._update is not None:
            self._update(done)


def _shown_bar(shown: ExitStack, text: str, total: int) -> Callable[[int], object]:
    """Show a bar until `shown` is left, and return the function that updates it."""
    from rich.progress import Progress

    # The time left is an estimate from the last five minutes: a file of a large run may take a second.
    bar = shown.enter_context(Progress(console=error_console(), transient=True, speed_estimate_period=300.0))
    task = bar.add_task(localized(text), total=total)
    return lambda done: bar.update(task, completed=done)


def _are_large(paths: Sequence[str | os.PathLike[str]]) -> bool:
    """Return whether the files, including those in directories, have LARGE_BYTES together."""
    places = map(Path, paths)  # addresses of object stores are no files, and have a bar of their own
    files = (file for path in places for file in (path.rglob("*") if path.is_dir() else [path]))
    sizes = (file.stat().st_size for file in files if file.is_file())
    return any(total >= LARGE_BYTES for total in accumulate(sizes))


def warn_errors(found_in: Timeline | Report, run: str | None = None) -> list[Diagnostic]:
    """Return the errors that analysis finds in a timeline, for `exit_code`, and print them on standard error.

    This is for commands that print no diagnostics: the errors of which `warn_partial` printed the number are printed
    as well. `found_in` is the timeline or its report, `run` is that of `read_paths`.
    """
    from stagescope import api
    from stagescope.analysis import Report
    from stagescope.cli.diagnostics import diagnostic_lines

    timeline = found_in.timeline if isinstance(found_in, Report) else found_in
    known = [each for each in api.sorted_diagnostics(timeline) if each.severity == "error"]
    found = api.find_errors(found_in)
    shown = [replace(each, message=_of_run(each.message, run)) for each in (*known[1:], *found)]
    for line in diagnostic_lines(shown):
        echo_data(line, err=True)
    if found and not known:
        echo(PARTIAL_RESULTS, err=True)
    return found


def _of_run(message: str, run: str | None) -> str:
    """Return a message with the run that it is about, as the diagnostics of a comparison name it."""
    return f"{run} run: {message}" if run else message


def warn_partial(timeline: Read, run: str | None = None) -> None:
    """Print a warning on standard error if data are missing from `timeline`; `run` is that of `read_paths`."""
    if not timeline.is_partial:
        return
    errors = timeline.diagnostics.filter(timeline.diagnostics["severity"] == "error")
    more = f" (and {errors.height - 1} more, see below)" if errors.height > 1 else ""
    text = _of_run(f"partial data: {errors['message'][0]}{more}", run)
    echo(f"stagescope: {text}", err=True)
    echo(PARTIAL_RESULTS, err=True)

"""``stagescope simulate``: simulate schedules, and compare them."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from stagescope.cli.console import echo, echo_data
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.written import written_text
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.api import SimulatedStep
    from stagescope.cli.cost_words import GivenCosts
    from stagescope.schedules import Order
    from stagescope.schedules.search.fastest import SearchResult

EVERY = "all"
NARROWEST = 40


@click.command(
    "simulate",
    epilog="""
    \b
    Examples:
      stagescope simulate --list
      stagescope simulate dualpipev --ranks 4 --microbatches 10
      stagescope simulate zb-h1 --ranks 4 --microbatches 8 --cost F=1,I=1,W=1 -o zb-h1.svg
      stagescope simulate interleaved --ranks 4 --microbatches 8 --chunks 2 --option group_size=4
      stagescope simulate --compare 1f1b,zb-h1,dualpipev --ranks 4 --microbatches 16
      stagescope simulate --compare all --ranks 8 --microbatches 32 --cost F=2.5ms,B=5ms --memory-limit 8
      stagescope simulate --order schedule.csv --cost F=1,B=2,FB=2.5 --hop 0.1
    """,
)
@click.argument("schedule", required=False)
@click.option("--ranks", metavar="P", type=int, help="Pipeline ranks.")
@click.option("--microbatches", metavar="M", type=int, help="Micro-batches of one step.")
@click.option(
    "--chunks", metavar="V", type=int, help="Model chunks per rank (default: depends on the schedule)."
)
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the schedule; see --list.",
)
@click.option(
    "--cost",
    metavar="COSTS",
    default="",
    help="Costs of one micro-batch on one stage: F, B, I, W, O (optimizer), FB (overlapped pair), such as F=1,B=2 or "
    "F=2.5ms,B=5ms. F=1:1:2 gives one per stage (default: F=1, I=1, W=1, B=2).",
)
@click.option("--hop", metavar="TIME", default="", help="Latency of a message between ranks, as in --cost.")
@click.option(
    "--order",
    "order_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Simulate the order in FILE: torch's schedule CSV, or one line per rank such as F0.0 F0.1 B0.0.",
)
@click.option(
    "--compare", metavar="NAMES", help="Compare schedules, separated by commas, or all of them with 'all'."
)
@click.option(
    "--memory-limit",
    metavar="N",
    type=float,
    help="With --compare: peak activations allowed per rank, where 1 is its share of the model for one micro-batch.",
)
@click.option(
    "--list", "list_all", is_flag=True, help="List all schedules with their constraints and options."
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="Write .svg, .html, .pftrace, .json (chrome), .csv or .parquet instead of a chart in the terminal.",
)
@click.option("--to", "to_format", metavar="FORMAT", help="Format of OUT (default: from its suffix).")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option(
    "--width",
    metavar="N",
    type=click.IntRange(min=NARROWEST),
    help="Width of the chart in columns (default: the terminal).",
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Use ASCII characters only.")
@click.option("--no-color", is_flag=True, help="Disable color, like NO_COLOR in the environment.")
def command(**words: Any) -> int:
    """Simulate schedules, and compare them.

    SCHEDULE is a name from --list. The simulation is exact and without noise: every action starts as soon as its
    rank is free and its inputs have arrived.
    """
    call = Call(**words)
    asked = [word for word, given in (("--list", call.list_all), ("--compare", call.compare),
             ("--order", call.order_file), ("SCHEDULE", call.schedule)) if given]  # fmt: skip
    if len(asked) != 1:
        raise UsageError.one_of(("SCHEDULE", "--order FILE", "--compare NAMES", "--list"), asked)
    if call.list_all:
        return _list_schedules()
    from stagescope.cli.cost_words import parse_costs

    given = parse_costs(call.cost, call.hop)
    return _compare(call, given) if call.compare else _show(call, given)


class Call(NamedTuple):
    """The arguments of the command."""

    schedule: str | None
    ranks: int | None
    microbatches: int | None
    chunks: int | None
    options: tuple[str, ...]
    cost: str
    hop: str
    order_file: Path | None
    compare: str | None
    memory_limit: float | None
    list_all: bool
    output: Path | None
    to_format: str | None
    force: bool
    width: int | None
    ascii_only: bool
    no_color: bool

    def sizes(self) -> tuple[int, int]:
        """Return ranks and micro-batches; raises UsageError if one is missing."""
        if self.ranks is None or self.microbatches is None:
            raise UsageError.sizes_missing()
        return self.ranks, self.microbatches


def _list_schedules() -> int:
    from stagescope.reports.simulations import schedule_list

    echo_data(schedule_list())
    return 0


def _show(call: Call, given: GivenCosts) -> int:
    """Simulate one order, show or write it, and print a summary."""
    from stagescope import api
    from stagescope.cli.show import print_chart, supports_unicode
    from stagescope.reports.simulations import simulation_summary

    if call.memory_limit is not None:
        raise UsageError.only_with("--memory-limit", "--compare")
    name, actions = _order(call, given)
    step = api.simulate(actions, given.costs, name=name, in_cost_units=given.in_cost_units)
    if call.output is not None:
        _write(call, step)
    else:
        print_chart(step.timeline, width=call.width, ascii_only=call.ascii_only, no_color=call.no_color)
    summary = simulation_summary(
        step.simulation, step.bound, step.peak_in_flight, in_cost_units=given.in_cost_units
    )
    echo()
    echo(summary if supports_unicode() and not call.ascii_only else summary.replace("µ", "u"))
    return 0


def _write(call: Call, step: SimulatedStep) -> None:
    from stagescope import api

    written = api.export(step.timeline, call.output or "", format=call.to_format, force=call.force)
    echo(written_text(written))
    print_diagnostics(written.diagnostics)


def _order(call: Call, given: GivenCosts) -> tuple[str, Order]:
    """Return the name and the order to simulate."""
    from stagescope.schedules import order, read_order

    if call.order_file is not None:
        if (call.ranks, call.microbatches, call.chunks, call.options) != (None, None, None, ()):
            raise UsageError.only_with("--ranks, --microbatches, --chunks, --option", "SCHEDULE")
        found = read_order(call.order_file)
        if found.skipped:
            counts = ", ".join(f"{count} {kind}" for kind, count in found.skipped.items())
            echo(
                f"skipped cells in {call.order_file} (the simulation schedules communication itself): {counts}",
                err=True,
            )
        return call.order_file.stem, found.order
    name = call.schedule or ""
    options = _options(name, call.options, given)
    ranks, microbatches = call.sizes()
    return name, order(name, ranks=ranks, microbatches=microbatches, chunks=call.chunks, **options)


def _options(name: str, words: tuple[str, ...], given: GivenCosts) -> dict[str, object]:
    """Return the options of a schedule; one that searches for its order gets the costs.

    zb-v can search for an order as well, but keeps its fixed order here: only searches with a memory limit need costs.
    """
    from stagescope.schedules.catalog import find_schedule

    known = {option.name for option in find_schedule(name).options}
    options: dict[str, object] = {"costs": given.costs} if {"costs", "memory_limit"} <= known else {}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals:
            raise UsageError.option_malformed(word)
        options[option.replace("-", "_")] = _value(value)
    return options


def _value(text: str) -> object:
    """Return the number, boolean or None that a text denotes, otherwise the text."""
    words: dict[str, object] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if text.removeprefix("-").isdecimal() else text


def _compare(call: Call, given: GivenCosts) -> int:
    """Print a comparison of schedules, and faster alternatives to the first one."""
    from stagescope.reports.simulations import comparison_table

    if call.output is not None or call.options:
        raise UsageError.only_with("-o and --option", "one SCHEDULE")
    names = [name.strip() for name in (call.compare or "").split(",") if name.strip()]
    found = _search(call, given, names)
    echo(comparison_table(found, in_cost_units=given.in_cost_units))
    current = "1f1b" if names == [EVERY] else names[0]
    if found.find(current) is not None and len(found.ranked) > 1:
        echo()
        echo("\n".join(found.advice(current)))
    return 0 if found.ranked else 1


def _search(call: Call, given: GivenCosts, names: list[str]) -> SearchResult:
    """Return the simulations of all named schedules, with a progress bar in a terminal."""
    from stagescope.schedules import NAMES, Scope, find_fastest

    ranks, microbatches = call.sizes()
    tried = tuple(dict.fromkeys(NAMES if names == [EVERY] else names))
    chunks = () if call.chunks is None else (call.chunks,)
    with ExitStack() as shown:
        scope = Scope(names=tried, chunks=chunks, on_progress=_progress(shown, len(tried)))
        return find_fastest(
            given.costs, ranks=ranks, microbatches=microbatches, memory_limit=call.memory_limit, scope=scope
        )


def _progress(shown: ExitStack, length: int) -> Callable[[int, int, str], object] | None:
    """Return the progress callback of a search; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        return None
    bar = shown.enter_context(click.progressbar(length=length, label="simulating", file=sys.stderr))
    return lambda done, _all, _name: bar.update(done - bar.pos)

"""Simulated schedules as text: the summary of one, a comparison of several, and the list of all."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from stagescope.model.simulated import simulated_time_text
from stagescope.reports.aligned import GAP, aligned
from stagescope.reports.sampled import evenly_chosen
from stagescope.schedules.catalog import SCHEDULES
from stagescope.schedules.search.fastest import memory_text
from stagescope.vocabulary.language import localized, wrapped
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagescope.schedules.bounds import LowerBound
    from stagescope.schedules.registry import Schedule
    from stagescope.schedules.search.fastest import Candidate, SearchResult
    from stagescope.schedules.simulation import Simulation

MOST_ROWS = 16
"""Rows of the table of ranks; of more ranks, neighbors with the same times share a row."""

PAGE_WIDTH = 100


def simulation_summary(
    simulation: Simulation,
    bound: LowerBound,
    peak_in_flight: Mapping[int, int],
    *,
    in_cost_units: bool = False,
) -> str:
    """Return the main results of a simulated step, each fraction with its denominator, then a table of the ranks.

    `peak_in_flight` is the peak number of chunk activations of each rank.
    """
    makespan_ns, bound_ns = simulation.makespan_ns, bound.makespan_ns
    makespan, least = (
        simulated_time_text(each, in_cost_units=in_cost_units) for each in (makespan_ns, bound_ns)
    )
    excess = percent_text((makespan_ns - bound_ns) / bound_ns if bound_ns else None)
    bubble, own = map(percent_text, (simulation.bubble_fraction, simulation.own_span_bubble_fraction))
    peak = max(peak_in_flight.values(), default=0)
    lines = [
        f"makespan         {makespan}",
        f"lower bound      {least} (from {bound.reason}); the makespan is {excess} above it",
        f"bubble           {bubble} of ranks x makespan",
        f"own-span bubble  {own} of the longest rank's first start to last end",
        f"peak memory      {peak} chunk activations on one rank",
    ]
    return "\n".join([*lines, "", *_rank_lines(simulation, peak_in_flight, in_cost_units=in_cost_units)])


def _rank_lines(
    simulation: Simulation, peak_in_flight: Mapping[int, int], *, in_cost_units: bool
) -> Iterator[str]:
    """Yield a row per rank, or of many ranks a row per group of neighbors that are equally busy."""
    ranks = sorted(simulation.order)
    times = {rank: (simulation.busy_ns[rank], simulation.idle_ns[rank]) for rank in ranks}
    groups = [[rank] for rank in ranks]
    if len(ranks) > MOST_ROWS:
        groups = [list(equal) for _, equal in groupby(ranks, key=times.__getitem__)]
    shown = [groups[index] for index in evenly_chosen(len(groups), MOST_ROWS)]
    rows = [
        (
            _range_text(group),
            *(simulated_time_text(time, in_cost_units=in_cost_units) for time in times[group[0]]),
            _range_text([peak_in_flight[rank] for rank in group]),
        )
        for group in shown
    ]
    yield from aligned(("rank", "busy", "idle", "peak chunks"), rows)
    if hidden := len(ranks) - sum(map(len, shown)):
        yield f"{hidden} ranks not shown"


def _range_text(numbers: list[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least}-{most}"


def comparison_table(result: SearchResult, *, in_cost_units: bool = False) -> str:
    """Return a table of schedules, fastest first, with the meaning of its columns and the impossible schedules."""
    head = ("schedule", "makespan", "bubble", "own span", "above bound", "memory", "parameters")
    rows = [_candidate_row(each, in_cost_units=in_cost_units) for each in result.ranked]
    lines = [*aligned(head, rows, left={0}), ""] if rows else []
    lines += [
        "bubble: idle share of ranks x makespan; own span: idle share of the longest rank, from first start to last",
        "end; above bound: makespan above the lower bound; memory: peak activations on one rank, where 1 is its",
        "share of the model for one micro-batch; parameters: copies of the model. Costs are those of a rank's share",
        "of the model: each of v chunks costs 1/v.",
    ]
    if result.rejected:
        lines += ["", "not possible:"]
    for rejected in result.rejected:
        reason = rejected.reason.removeprefix(f"{rejected.trial.name} ")
        words = f"{rejected.trial}: {reason}" + (f"; {rejected.hint}" if rejected.hint else "")
        lines += wrapped(words, PAGE_WIDTH, GAP, GAP * 2)
    return "\n".join(lines)


def _candidate_row(candidate: Candidate, *, in_cost_units: bool) -> tuple[str, ...]:
    bound_ns = candidate.lower_bound_ns
    return (
        str(candidate.trial),
        simulated_time_text(candidate.makespan_ns, in_cost_units=in_cost_units),
        percent_text(candidate.bubble_fraction),
        percent_text(candidate.own_span_bubble_fraction),
        percent_text((candidate.makespan_ns - bound_ns) / bound_ns if bound_ns else None),
        memory_text(candidate.peak_memory),
        str(candidate.model_copies),
    )


def schedule_list() -> str:
    """Return the list of all schedules with placement, chunks, constraints and options, in the current language."""
    return "\n\n".join("\n".join(_schedule_lines(schedule)) for schedule in SCHEDULES)


def _schedule_lines(schedule: Schedule) -> Iterator[str]:
    least = schedule.least_chunks
    chunks = (
        f"{schedule.chunks}" if least is None else f"{schedule.chunks}, or any number of at least {least}"
    )
    facts = [
        f"placement {schedule.placement}; chunks per rank: {chunks}; peak memory {schedule.peak_memory}",
        f"source: {schedule.source}",
        *(f"needs {constraint.needs}" for constraint in schedule.constraints),
        *(f"option {option.name}={option.default}: {option.meaning}" for option in schedule.options),
    ]
    yield f"{schedule.name}{GAP}{localized(schedule.title)}"
    for fact in facts:
        yield from wrapped(fact, PAGE_WIDTH, GAP * 2, GAP * 3)

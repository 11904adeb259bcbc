"""The second pass over a run in ranges of steps: the causes of idle time, and what else is measured of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

import polars as pl

from stagescope.analysis.collectives.meetings import MEETINGS
from stagescope.analysis.graph.critical_path import CRITICAL_PATH
from stagescope.analysis.idle.ledger import IDLE_LEDGER, LEDGER, Ledger
from stagescope.analysis.idle.origins import ORIGINS
from stagescope.analysis.idle.removal_orders import REMOVAL_ORDERS
from stagescope.analysis.iteration.boundaries import ITERATION_STEPS
from stagescope.analysis.iteration.ledger import ITERATIONS
from stagescope.analysis.statistics.transfer_totals import add_transfers, measure_transfers
from stagescope.analysis.step_results import (
    ChosenSteps,
    PipelineResults,
    StepResults,
    join_results,
    measure_outside,
    measure_spans,
    measure_waits,
)
from stagescope.analysis.unrecorded import RecordedCauses, find_recorded_causes, join_recorded_causes
from stagescope.execution.memory import return_memory
from stagescope.model.collectives import COLLECTIVES
from stagescope.model.lazy import lazily
from stagescope.model.step_ranges import is_in_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.model.diagnostics import Diagnostic

OF_PIPELINES: dict[str, Sequence[str]] = {
    "critical_path": CRITICAL_PATH.order,
    "idle_of_iterations": ("step", "rank"),
    "idle_of_own_spans": ("step", "rank"),
    "collectives": COLLECTIVES.order,
}
"""Tables of Intermediates that some pipelines show, given the spans of others that they meet, and how they are sorted.
"""
OF_ITERATIONS: dict[str, Sequence[str]] = {
    "iteration_steps": ITERATION_STEPS.order,
    "iterations": ITERATIONS.order,
    "late_starts": ("step", "pipeline"),
    "meetings": MEETINGS.order,
}
"""Likewise, those that depend on the ledger of all pipelines."""
OF_RUN = OF_PIPELINES | OF_ITERATIONS
"""Tables of Intermediates in which rows of a step depend on it and the steps next to it, and how they are sorted."""
OF_INPUTS = ("critical_path",)
"""Tables of OF_RUN that depend on the latest input of every action, and not on the ledger."""
OF_LEDGER: dict[str, Sequence[str]] = {
    "steps": LEDGER.order,
    "ranks": IDLE_LEDGER.order,
    "losses": LEDGER.order,
    "origins": ORIGINS.order,
    "orders": REMOVAL_ORDERS.order,
}
"""Likewise, of a Ledger."""
OF_ACTIONS = ("actions", "basis", "costs", "ledger")
"""Results of Intermediates with values for every action."""


class MeasuredPipelines(NamedTuple):
    """What was measured of some pipelines of a range of steps: see RangeAnalysis."""

    tables: dict[str, pl.DataFrame]
    transfers: pl.DataFrame
    recorded: RecordedCauses
    of_actions: tuple[Diagnostic, ...]
    of_ledger: tuple[Diagnostic, ...]
    results: PipelineResults


class RangeAnalysis(NamedTuple):
    """What was measured of a range of steps.

    `tables` has those of OF_RUN and OF_LEDGER, `between`, the parts of BetweenSteps, and `contradictions`, from
    find_contradictions. `transfers` is from measure_transfers, and `recorded` from find_recorded_causes. The
    diagnostics are those of the actions and of the ledger.
    """

    tables: dict[str, pl.DataFrame]
    transfers: pl.DataFrame
    recorded: RecordedCauses
    of_actions: tuple[Diagnostic, ...]
    of_ledger: tuple[Diagnostic, ...]
    results: StepResults


def analyze_range(known: Intermediates, chosen: ChosenSteps) -> RangeAnalysis:
    """Return what is measured of the steps of `known`, whose timeline also has the steps before and after them."""
    return join_pipelines(known, [measure_pipelines(known, chosen)], chosen)


def measure_pipelines(known: Intermediates, chosen: ChosenSteps) -> MeasuredPipelines:
    """Return what is measured of the pipelines of `known` without the ledger of others.

    A step may have millions of spans: results are released as soon as nothing needs them.
    """
    known = known.with_results()
    own = is_in_steps(known.steps)
    tables = _tables(known, OF_INPUTS)
    known = known.without_results("inputs")
    tables |= _tables(known, [name for name in OF_PIPELINES if name not in OF_INPUTS])
    tables |= {
        f"ledger_{name}": _sorted(getattr(known.ledger, name).filter(own), order)
        for name, order in OF_LEDGER.items()
    }
    tables["contradictions"] = known.actions.contradictions
    of_actions, of_ledger = tuple(known.actions.diagnostics), tuple(known.ledger.diagnostics)
    recorded = find_recorded_causes(known.timeline.spans, known.actions)
    waits = measure_waits(known, chosen)
    known = known.without_results(*OF_ACTIONS)
    return_memory()
    known = known.with_results(messages=known.messages.filter(own))
    transfers = measure_transfers(known.messages)
    results = measure_spans(known, chosen, waits)
    return MeasuredPipelines(tables, transfers, recorded, of_actions, of_ledger, results)


def join_pipelines(
    known: Intermediates, parts: Sequence[MeasuredPipelines], chosen: ChosenSteps
) -> RangeAnalysis:
    """Return what is measured of a range of steps, given what was measured of all its pipelines.

    The timeline of `known` has the spans of all pipelines, or their outlines (model/outlines.py).
    """
    orders = OF_PIPELINES | {f"ledger_{name}": order for name, order in OF_LEDGER.items()}
    tables = {name: _joined([each.tables[name] for each in parts], order) for name, order in orders.items()}
    tables["contradictions"] = pl.concat(each.tables["contradictions"] for each in parts)
    ledger = {name: tables[f"ledger_{name}"] for name in OF_LEDGER}
    known = known.with_results(ledger=_ledger_of(ledger))
    tables |= _tables(known, OF_ITERATIONS)
    tables["between"] = known.between_steps.parts.filter(is_in_steps(known.steps))
    outside = measure_outside(known, chosen)
    results = join_results([each.results for each in parts])
    return RangeAnalysis(
        tables=tables,
        transfers=add_transfers(each.transfers for each in parts),
        recorded=join_recorded_causes(each.recorded for each in parts),
        of_actions=tuple(note for each in parts for note in each.of_actions),
        of_ledger=tuple(note for each in parts for note in each.of_ledger),
        results=StepResults(results, outside),
    )


def _ledger_of(tables: dict[str, pl.DataFrame]) -> Ledger:
    """Return a ledger without what it has for single actions."""
    later = dict.fromkeys(("classes", "delays"), _given_up)
    return lazily(Ledger, {**tables, "diagnostics": ()}, later)


def _given_up() -> NoReturn:
    raise LookupError("results for single actions were given up")


def _tables(known: Intermediates, names: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Return some tables of OF_RUN, with the rows of the steps of `known`."""
    own = is_in_steps(known.steps)
    return {name: _sorted(getattr(known, name).filter(own), OF_RUN[name]) for name in names}


def _joined(parts: Sequence[pl.DataFrame], order: Sequence[str]) -> pl.DataFrame:
    return parts[0] if len(parts) == 1 else _sorted(pl.concat(parts), order)


def _sorted(rows: pl.DataFrame, order: Sequence[str]) -> pl.DataFrame:
    """Return rows in the order of their table, those that are alike as they were."""
    return rows.sort(order, maintain_order=True)

"""The second pass over a run in ranges of steps: the causes of idle time, and what else is measured of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.collectives.meetings import MEETINGS
from stagescope.analysis.graph.critical_path import CRITICAL_PATH
from stagescope.analysis.idle.ledger import IDLE_LEDGER, LEDGER
from stagescope.analysis.idle.origins import ORIGINS
from stagescope.analysis.idle.removal_orders import REMOVAL_ORDERS
from stagescope.analysis.iteration.boundaries import ITERATION_STEPS
from stagescope.analysis.iteration.ledger import ITERATIONS
from stagescope.analysis.statistics.transfer_totals import measure_transfers
from stagescope.analysis.step_results import (
    ChosenSteps,
    StepResults,
    measure_spans,
    measure_waits,
)
from stagescope.execution.memory import return_memory
from stagescope.model.collectives import COLLECTIVES
from stagescope.model.step_ranges import is_in_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.model.diagnostics import Diagnostic

OF_RUN: dict[str, Sequence[str]] = {
    "idle_of_iterations": ("step", "rank"),
    "idle_of_own_spans": ("step", "rank"),
    "iteration_steps": ITERATION_STEPS.order,
    "iterations": ITERATIONS.order,
    "late_starts": ("step", "pipeline"),
    "collectives": COLLECTIVES.order,
    "meetings": MEETINGS.order,
    "critical_path": CRITICAL_PATH.order,
}
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


class RangeAnalysis(NamedTuple):
    """What was measured of a range of steps.

    `tables` has those of OF_RUN and OF_LEDGER, `between`, the parts of BetweenSteps, and `contradictions`, from
    find_contradictions. `transfers` is from measure_transfers, and `unrecorded` from find_unrecorded. The diagnostics
    are those of the actions and of the ledger.
    """

    tables: dict[str, pl.DataFrame]
    transfers: pl.DataFrame
    unrecorded: frozenset[str]
    has_transfers: bool
    of_actions: tuple[Diagnostic, ...]
    of_ledger: tuple[Diagnostic, ...]
    results: StepResults


def analyze_range(known: Intermediates, chosen: ChosenSteps) -> RangeAnalysis:
    """Return what is measured of the steps of `known`, whose timeline also has the steps before and after them.

    A step may have millions of spans: results are released as soon as nothing needs them.
    """
    own = is_in_steps(known.steps)
    tables = _tables(known, OF_INPUTS)
    known = known.without_results("inputs")
    tables |= _tables(known, [name for name in OF_RUN if name not in OF_INPUTS])
    tables |= {
        f"ledger_{name}": _sorted(getattr(known.ledger, name).filter(own), order)
        for name, order in OF_LEDGER.items()
    }
    tables["between"] = known.between_steps.parts.filter(own)
    tables["contradictions"] = known.actions.contradictions
    of_actions, of_ledger = tuple(known.actions.diagnostics), tuple(known.ledger.diagnostics)
    has_transfers, unrecorded = known.actions.has_transfers, known.unrecorded
    waits = measure_waits(known, chosen)
    known = known.without_results(*OF_ACTIONS)
    return_memory()
    known = known.with_results(messages=known.messages.filter(own))
    return RangeAnalysis(
        tables=tables,
        transfers=measure_transfers(known.messages),
        unrecorded=unrecorded,
        has_transfers=has_transfers,
        of_actions=of_actions,
        of_ledger=of_ledger,
        results=measure_spans(known, chosen, waits),
    )


def _tables(known: Intermediates, names: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Return some tables of OF_RUN, with the rows of the steps of `known`."""
    own = is_in_steps(known.steps)
    return {name: _sorted(getattr(known, name).filter(own), OF_RUN[name]) for name in names}


def _sorted(rows: pl.DataFrame, order: Sequence[str]) -> pl.DataFrame:
    """Return rows in the order of their table, those that are alike as they were."""
    return rows.sort(order, maintain_order=True)

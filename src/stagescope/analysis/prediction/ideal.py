"""The ideal schedule of a run: when every action would have run if all stages cost the same.

The schedule is the one that the measured order is recognized as, or else the declared one. It is simulated once, every
kind at its mean measured cost over all stages, without transfers and launch delays, and aligned with the start of every
step. Lateness is the measured start minus the ideal start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.measured_order import measured_order
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.prediction.mean_costs import PAIR, MeanCosts, fit_costs
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.tables import Column, KindType, Table
from stagescope.schedules.catalog import order
from stagescope.schedules.recognition.recognizer import recognize
from stagescope.schedules.simulator import simulate
from stagescope.schedules.spellings import known_schedule
from stagescope.vocabulary.errors import ScheduleError
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.schedules.action import Order
    from stagescope.schedules.recognition.result import Recognition
    from stagescope.schedules.simulation import Simulation

IDEAL = Table(
    "ideal",
    "one action, and when it would have run in the ideal schedule",
    ("action",),
    (
        Column("action", pl.UInt32, "", "Action, a row of actions."),
        Column("ideal_place", pl.UInt32, "", "Its index in the schedule's order of its rank.", nullable=True),
        Column(
            "ideal_start_ns",
            pl.Int64,
            "ns",
            "Its ideal start; null: not in the schedule.",
            nullable=True,
        ),
        Column("ideal_end_ns", pl.Int64, "ns", "Its ideal end.", nullable=True),
        Column("late_ns", pl.Int64, "ns", "Measured start minus ideal start.", nullable=True),
    ),
)

ORDER_DISTANCE = Table(
    "order distance",
    "the distance of the order of one rank in one step from the schedule",
    ("pipeline", "step", "rank"),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("actions", pl.UInt32, "", "Its actions: the denominator."),
        Column("overtaken", pl.UInt32, "", "Actions that ran after one that follows them in the schedule."),
        Column("unscheduled", pl.UInt32, "", "Actions that are not in the schedule."),
        Column("distance_fraction", pl.Float64, "", "(overtaken + unscheduled) / actions."),
    ),
)


@dataclass(frozen=True)
class Ideal:
    """The tables IDEAL and ORDER_DISTANCE, and where they come from.

    `schedule` is its name in the catalog; None if unknown, and then both tables are empty. `source` is "recognized" or
    "declared", `evidence` a sentence with the reason. `makespan_ns` is the length of an ideal step. `alternatives` are
    other schedules with the same order, which the evidence cannot exclude.
    """

    schedule: str | None
    source: str | None
    evidence: str
    makespan_ns: int | None
    actions: pl.DataFrame
    ranks: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]
    alternatives: tuple[str, ...] = ()

    def agrees_with(self, declared: str | None) -> bool:
        """Return whether the schedule that ran may be the declared one, in any framework's spelling."""
        name = known_schedule(declared)
        return name is not None and name in (self.schedule, *self.alternatives)


def lay_ideal(actions: Actions, declared: str | None = None) -> Ideal:
    """Return the ideal schedule for the measured actions; `declared` is the schedule that the run declared.

    The step with the most actions is recognized, the first of several, and used for all steps.
    """
    groups = group_actions(actions.table)
    sizes = np.bincount(groups.step_of_action(), minlength=groups.steps.height)
    if not len(sizes):
        return _no_ideal("no actions")
    # An incomplete step would be recognized as another schedule, or as none.
    fullest = groups.steps.row(int(sizes.argmax()), named=True)
    found = recognize(measured_order(actions, fullest["pipeline"], fullest["step"]))
    known = _find_schedule(found, declared)
    if known is None:
        return _no_ideal(found.evidence, f"no ideal schedule to compare with: {found.evidence}")
    simulation = _simulate(actions, known.order)
    if simulation is None:
        message = f"no ideal schedule to compare with: not every action of {known.name} was measured"
        return _no_ideal(found.evidence, message)
    first_ns = groups.first_start_ns(actions.table)[groups.step_of_action()]
    laid = _lay(actions, simulation, first_ns)
    ranks = _order_distances(actions, laid)
    extra = int(laid["ideal_place"].null_count())
    message = f"actions are not in {known.name}; they have no ideal start"
    diagnostics = (Diagnostic("warning", message, count=extra, code="ideal.extra_actions"),) if extra else ()
    others = found.alternatives if found.known else ()
    return Ideal(
        known.name, known.source, found.evidence, simulation.makespan_ns, laid, ranks, diagnostics, others
    )


def unknown_ideal(reason: str, found: Diagnostic | None = None) -> Ideal:
    """Return an unknown ideal schedule, because of `reason`, which `found` states if given."""
    unknown = _no_ideal(reason, None if found else f"no ideal schedule to compare with: {reason}")
    return replace(unknown, diagnostics=(*unknown.diagnostics, *([found] if found else [])))


class _Known(NamedTuple):
    name: str
    source: str
    order: Order


def _no_ideal(evidence: str, message: str | None = None) -> Ideal:
    diagnostics = () if message is None else (Diagnostic("info", message, code="ideal.unknown"),)
    return Ideal(None, None, evidence, None, IDEAL.empty(), ORDER_DISTANCE.empty(), diagnostics)


def _find_schedule(found: Recognition, declared: str | None) -> _Known | None:
    """Return the recognized schedule, or else the declared one if it supports the measured sizes."""
    sizes = found.parameters
    if sizes is None:
        return None
    name = found.name if found.known else known_schedule(declared)
    if name is None:
        return None
    shape = {"ranks": sizes.ranks, "microbatches": sizes.microbatches}
    try:
        if found.known:
            return _Known(name, "recognized", order(name, **shape, chunks=sizes.chunks, **sizes.options))
        return _Known(name, "declared", order(name, **shape))
    except ScheduleError:
        return None


def _simulate(actions: Actions, ideal: Order) -> Simulation | None:
    """Return the ideal at the mean measured cost of every kind; None if a kind was not measured."""
    stages = int(actions.table["stage"].max()) + 1  # type: ignore[arg-type]  # a column of whole numbers
    lasting_ns = pl.col("end_ns") - pl.col("start_ns")
    means = actions.table.group_by("kind", "is_pair").agg(lasting_ns.mean())
    equal = {
        PAIR if is_pair else BY_NAME[kind].letter: dict.fromkeys(range(stages), mean_ns)
        for kind, is_pair, mean_ns in means.iter_rows()
    }
    planned = [action for row in ideal.values() for action in row]
    letters = {part.kind for action in planned for part in action.parts}
    if any(action.partner for action in planned):
        letters.add(PAIR)
    needed = 1 + max(part.stage for action in planned for part in action.parts)
    fitted = fit_costs(MeanCosts(stages, equal, 0.0, {}), needed, letters)
    return None if fitted is None else simulate(ideal, fitted.costs)


def _lay(actions: Actions, simulation: Simulation, first_ns: NDArray[np.int64]) -> pl.DataFrame:
    """Return when every action would run; a pair is identified by its first action."""
    names = {kind.letter: kind.name for kind in BY_NAME.values()}
    rows = [
        (names[part.kind], part.stage, part.microbatch, place, start_ns, end_ns)
        for rank, planned in simulation.order.items()
        for place, (action, start_ns, end_ns) in enumerate(
            zip(planned, simulation.starts_ns[rank], simulation.ends_ns[rank], strict=True)
        )
        for part in action.parts
    ]
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "kind": KindType,
        "stage": pl.Int32,
        "microbatch": pl.Int32,
        "ideal_place": pl.UInt32,
        "ideal_start_ns": pl.Int64,
        "ideal_end_ns": pl.Int64,
    }
    ideal = pl.DataFrame(rows, schema=schema, orient="row")
    window_start = pl.Series(first_ns)
    return (
        actions.table.select("action", "kind", "stage", "microbatch", "start_ns")
        .join(ideal, on=["kind", "stage", "microbatch"], how="left", maintain_order="left")
        .with_columns(pl.col("ideal_start_ns", "ideal_end_ns") + window_start)
        .with_columns(late_ns=pl.col("start_ns") - pl.col("ideal_start_ns"))
        .select(IDEAL.names)
    )


def _order_distances(actions: Actions, laid: pl.DataFrame) -> pl.DataFrame:
    """Return per rank and step how many actions the schedule has at another place."""
    rank = ["pipeline", "step", "rank"]
    place = laid["ideal_place"]
    overtaken = _is_overtaken(actions.table["place"].to_numpy() == 0, place)
    counts = (
        actions.table.select(*rank, overtaken=pl.Series(overtaken), unscheduled=place.is_null())
        .group_by(rank, maintain_order=True)
        .agg(pl.len().alias("actions"), pl.col("overtaken", "unscheduled").sum())
    )
    wrong = pl.col("overtaken") + pl.col("unscheduled")
    return counts.with_columns(distance_fraction=wrong / pl.col("actions")).select(ORDER_DISTANCE.names)


def _is_overtaken(is_first: NDArray[np.bool_], ideal_place: pl.Series) -> NDArray[np.bool_]:
    """Return which actions come after one of a later place, given which are the first of their rank and step.

    An action after one that the schedule does not have is not counted.
    """
    place = ideal_place.cast(pl.Int64).fill_null(-1).to_numpy() + 1
    # With an offset for each rank and step, larger than all places, one running maximum serves them all.
    offset = (np.cumsum(is_first) - 1) * (int(place.max(initial=0)) + 1)
    latest = np.maximum.accumulate(place + offset) - offset
    overtaken = np.zeros(len(place), dtype=np.bool_)
    overtaken[1:] = ~is_first[1:] & (place[1:] > 0) & (place[:-1] > 0) & (place[1:] < latest[:-1])
    return overtaken


def declared_schedule(ranks: pl.DataFrame) -> str | None:
    """Return the schedule that ranks declared; None if none did, or if they declared several."""
    declared = ranks["schedule"].drop_nulls().unique()
    return str(declared[0]) if len(declared) == 1 else None

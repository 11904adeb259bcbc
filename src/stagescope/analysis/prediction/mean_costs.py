"""Mean costs of actions and transfers per stage, and what they would be with more or fewer stages.

An action costs its mean duration plus the mean launch delay before it. Actions that a schedule needs but the run did
not have are derived: a full backward is the sum of its two halves, each half is half of a full backward, stages that
are split are divided equally, stages that are joined are summed. Every such assumption is stated as a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stagescope.schedules.costs import Costs
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.analysis.graph.actions import Actions

COST_NAMES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
PAIR = "pair"

HALVED = "if half of a full backward is its weight gradient"
JOINED = "if a full backward takes as long as its two halves"
SUMMED = "if an overlapped pair takes as long as its actions one after the other"


@dataclass(frozen=True)
class MeanCosts:
    """Mean durations per letter and stage in nanoseconds; PAIR means overlapped pairs, by their first action.

    `launch_delay_ns` is the mean launch delay of all actions, `hop_ns` the mean transfer between each stage and the
    next, if measured. `stages` is how many stages the model was divided into.
    """

    stages: int
    lasting_ns: Mapping[str, Mapping[int, float]]
    launch_delay_ns: float
    hop_ns: Mapping[int, float]

    def of(self, letter: str) -> list[float] | None:
        """Return the duration of one letter for every stage; None if it is unknown for a stage."""
        known = self.lasting_ns.get(letter, {})
        return [known[stage] for stage in range(self.stages)] if len(known) == self.stages else None


@dataclass(frozen=True)
class FittedCosts:
    """Costs for the simulator, and the assumptions behind them, as clauses that begin with "if"."""

    costs: Costs
    conditions: tuple[str, ...]


def find_mean_costs(actions: Actions, columns: pl.DataFrame, lag_ns: pl.Series) -> MeanCosts:
    """Return the mean costs of actions.

    `columns` has duration_ns, launch_delay_ns and is_counted for every action, `lag_ns` a value per row of needs;
    only counted actions and the transfers that they needed are averaged.
    """
    table = pl.concat([actions.table.select("kind", "is_pair", "stage"), columns], how="horizontal")
    stages = int(table["stage"].max() or 0) + 1  # type: ignore[arg-type]  # a column of whole numbers
    counted = table.filter("is_counted")
    lasting: dict[str, dict[int, float]] = {}
    key = ("kind", "is_pair", "stage")
    means = (
        counted.group_by(key).agg(pl.mean("duration_ns")).sort(key)
    )  # sums of fractions depend on the order
    for kind, is_pair, stage, mean_ns in means.iter_rows():
        lasting.setdefault(PAIR if is_pair else BY_NAME[kind].letter, {})[stage] = mean_ns
    remote = (
        actions.needs.select("action", "direction", "is_remote")
        .with_columns(lag_ns=lag_ns)
        .filter(pl.col("is_remote") & (pl.col("direction") != "own"))
    )
    at = remote["action"]
    link = pl.when(pl.col("direction") == "forward").then(pl.col("stage") - 1).otherwise("stage")
    hops = (
        remote.with_columns(stage=table["stage"].gather(at), is_counted=table["is_counted"].gather(at))
        .filter("is_counted")
        .group_by(link=link)
        .agg(pl.col("lag_ns").clip(0).mean())
    )
    launch_delay_ns = counted["launch_delay_ns"].mean() or 0.0
    return MeanCosts(stages, lasting, float(launch_delay_ns), dict(hops.iter_rows()))  # type: ignore[arg-type]  # numbers


def fit_costs(mean: MeanCosts, stages: int, letters: set[str]) -> FittedCosts | None:
    """Return the costs for an order with `stages` stages and these letters, PAIR among them for pairs.

    None if they cannot be derived: actions of a stage were not recorded, or stages cannot be split or joined evenly.
    """
    if max(stages, mean.stages) % min(stages, mean.stages):
        return None
    conditions: list[str] = []
    given: dict[str, list[int]] = {}
    for letter in sorted(letters - {PAIR}):
        derived = _derive(mean, letter, conditions)
        if derived is None:
            return None
        given[COST_NAMES[letter]] = [round(each + mean.launch_delay_ns) for each in _divide(derived, stages)]
    if PAIR in letters:
        pair_ns = mean.of(PAIR)
        if pair_ns is None or stages != mean.stages:
            conditions.append(SUMMED)
        else:
            given["overlapped"] = [round(each + mean.launch_delay_ns) for each in pair_ns]
    if stages > mean.stages:
        conditions.append(f"if every stage can be cut into {stages // mean.stages} equal parts")
    elif stages < mean.stages:
        conditions.append(f"if every {mean.stages // stages} stages can be joined")
    usual_ns = sum(mean.hop_ns.values()) / len(mean.hop_ns) if mean.hop_ns else 0.0
    same = stages == mean.stages
    hop = [round(mean.hop_ns.get(link, usual_ns) if same else usual_ns) for link in range(stages)]
    costs = Costs(**given, hop=hop)  # type: ignore[arg-type]  # the names are those of actions
    return FittedCosts(costs, tuple(dict.fromkeys(conditions)))


def _derive(mean: MeanCosts, letter: str, conditions: list[str]) -> list[float] | None:
    """Return the duration of a letter per stage, derived from other letters if it was not measured."""
    measured = mean.of(letter)
    if measured is not None:
        return measured
    if letter == "B":
        of_input, of_weight = mean.of("I"), mean.of("W")
        if of_input is None or of_weight is None:
            return None
        conditions.append(JOINED)
        return [one + other for one, other in zip(of_input, of_weight, strict=True)]
    full = mean.of("B")
    if letter == "F" or full is None:
        return None
    conditions.append(HALVED)
    return [each / 2 for each in full]


def _divide(lasting_ns: list[float], stages: int) -> list[float]:
    """Return the cost of every stage when the same model is divided into more or fewer equal parts."""
    if stages >= len(lasting_ns):
        parts = stages // len(lasting_ns)
        return [each / parts for each in lasting_ns for _ in range(parts)]
    joined = len(lasting_ns) // stages
    return [sum(lasting_ns[first : first + joined]) for first in range(0, len(lasting_ns), joined)]

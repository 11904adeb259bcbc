"""What actions and transfers cost on average, stage by stage, and what they would cost with more or fewer stages.

A action costs its mean duration and the mean launch gap before it. Where a schedule needs other actions than were
measured, they are made of those: a full backward of its two halves, each half of half a full backward, stages that are
cut of equal parts, stages that are joined of their sum. Every such step is told.
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
    """Mean durations per letter and stage (PAIR: of overlapped pairs, by their first action), in nanoseconds.

    `gap_ns` is the mean launch gap of all actions, `hop_ns` the mean transfer between each stage and the next,
    where one was measured. `stages` is how many the model was cut into.
    """

    stages: int
    lasting_ns: Mapping[str, Mapping[int, float]]
    gap_ns: float
    hop_ns: Mapping[int, float]

    def of(self, letter: str) -> list[float] | None:
        """Return the duration of one letter for every stage, None where some stage's is not known."""
        known = self.lasting_ns.get(letter, {})
        return [known[stage] for stage in range(self.stages)] if len(known) == self.stages else None


@dataclass(frozen=True)
class FittedCosts:
    """Costs for the simulator, and what had to be assumed for them, as clauses that begin with "if"."""

    costs: Costs
    conditions: tuple[str, ...]


def find_mean_costs(actions: Actions, columns: pl.DataFrame, lag_ns: pl.Series) -> MeanCosts:
    """Return the mean costs of actions.

    `columns` has duration_ns, gap_ns and is_counted for every action, `lag_ns` a value per row of needs; only
    actions that are counted count, and the transfers that they needed.
    """
    table = pl.concat([actions.table.select("kind", "is_pair", "stage"), columns], how="horizontal")
    stages = int(table["stage"].max() or 0) + 1  # type: ignore[arg-type]  # a column of whole numbers
    counted = table.filter("is_counted")
    lasting: dict[str, dict[int, float]] = {}
    means = counted.group_by("kind", "is_pair", "stage").agg(pl.mean("duration_ns"))
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
    gap_ns = counted["gap_ns"].mean() or 0.0
    return MeanCosts(stages, lasting, float(gap_ns), dict(hops.iter_rows()))  # type: ignore[arg-type]  # numbers


def fit_costs(mean: MeanCosts, stages: int, letters: set[str]) -> FittedCosts | None:
    """Return the costs for an order with so many stages that has these letters, PAIR among them for pairs.

    None where they cannot be made of what was measured: actions of a stage that were not recorded, or stages that can
    be neither cut nor joined evenly.
    """
    if max(stages, mean.stages) % min(stages, mean.stages):
        return None
    conditions: list[str] = []
    given: dict[str, list[int]] = {}
    for letter in sorted(letters - {PAIR}):
        made = _made(mean, letter, conditions)
        if made is None:
            return None
        given[COST_NAMES[letter]] = [round(each + mean.gap_ns) for each in _recut(made, stages)]
    if PAIR in letters:
        together = mean.of(PAIR)
        if together is None or stages != mean.stages:
            conditions.append(SUMMED)
        else:
            given["overlapped"] = [round(each + mean.gap_ns) for each in together]
    if stages > mean.stages:
        conditions.append(f"if every stage can be cut into {stages // mean.stages} equal parts")
    elif stages < mean.stages:
        conditions.append(f"if every {mean.stages // stages} stages can be joined")
    usual_ns = sum(mean.hop_ns.values()) / len(mean.hop_ns) if mean.hop_ns else 0.0
    same = stages == mean.stages
    hop = [round(mean.hop_ns.get(link, usual_ns) if same else usual_ns) for link in range(stages)]
    costs = Costs(**given, hop=hop)  # type: ignore[arg-type]  # the names are those of actions
    return FittedCosts(costs, tuple(dict.fromkeys(conditions)))


def _made(mean: MeanCosts, letter: str, conditions: list[str]) -> list[float] | None:
    """Return the duration of a letter per stage, of other letters where it was not measured."""
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


def _recut(lasting_ns: list[float], stages: int) -> list[float]:
    """Return what every stage costs when the same model is cut into more or fewer equal parts."""
    if stages >= len(lasting_ns):
        parts = stages // len(lasting_ns)
        return [each / parts for each in lasting_ns for _ in range(parts)]
    joined = len(lasting_ns) // stages
    return [sum(lasting_ns[first : first + joined]) for first in range(0, len(lasting_ns), joined)]

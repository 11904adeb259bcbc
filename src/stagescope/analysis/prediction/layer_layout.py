"""The division of the layers among the stages that the measured costs suggest.

A stage is its layers and, at both ends of the model, what cannot move: the embedding, and the output layer with the
loss (and multi-token prediction, if the model has it). Layers take as long as those of the median stage between the
ends; what the first and the last stage cost more stays on them. Without a stage in between, the cheaper one is the
measure. A rank that is slower than its replicas does not count, and neither does an action that took far longer than
usual, such as during a garbage collection: their layers are not longer than others.

With the number of layers known, the split with the fastest slowest stage is proposed as a layout. Without it, only how
much of its layers each stage should give or take is known; the range then reaches from what whole layers allow at
COARSEST_LAYERS per stage to an exact balance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.prediction.layout_text import counts_text, layout_line, moves_text, split_points
from stagescope.schedules.layers import split_layers
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    from numpy.typing import NDArray

    from stagescope.analysis.prediction.what_if import Measured

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

COARSEST_LAYERS = 4
"""Layers of a usual stage, if their number is not known: fewer are rare."""

FEWEST_WITH_MIDDLE = 3
ENDS_TEXT = "what the first and the last stage cost more stays on them"
UNKNOWN_TEXT = f"a usual stage has at least {COARSEST_LAYERS} layers, all equally long; {ENDS_TEXT}"
KNOWN_TEXT = f"what a stage costs more than others moves with its layers or stays on its device; {ENDS_TEXT}"
WORK = ("F", "B", "I", "W")


class StageParts(NamedTuple):
    """Per kind of action and stage: the time of the layers, and of what stays on the stage."""

    layers_ns: dict[str, Floats]
    fixed_ns: dict[str, Floats]

    def of_microbatch(self) -> tuple[Floats, Floats]:
        """Return both, summed over the actions of a micro-batch."""
        layers, fixed = (np.sum(list(each.values()), axis=0) for each in self)
        return layers, fixed


class Unusual(NamedTuple):
    """What shows nothing about layers: ranks that are slower than their replicas, and outlier actions by `row`."""

    ranks: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


NOTHING_UNUSUAL = Unusual()


class LayoutPrediction(NamedTuple):
    """A change of the layout, its shortest and longest step, what the range assumes, and how to configure it."""

    change: str
    low_ns: float
    high_ns: float
    assumptions: str
    note: str


def predict_layout(
    measured: Measured, layers: Sequence[int] = (), unusual: Unusual = NOTHING_UNUSUAL
) -> LayoutPrediction | None:
    """Return the best layout, None if stages were not recorded completely, or have only overlapped pairs.

    `layers` are the layers of every stage, or their total if every stage has the same number; empty: not known.
    """
    stages = measured.mean_costs.stages
    counts = layers_per_stage(layers, stages)
    parts = _divide_stages(measured.mean_costs_without(*unusual).lasting_ns, stages, counts)
    if parts is None or stages == 1:
        return None
    if counts is None:
        return _unknown(measured, parts)
    return _known(measured, parts, counts)


def layers_per_stage(layers: Sequence[int], stages: int) -> Integers | None:
    """Return the layers of every stage, None if they are not known or do not fit the stages."""
    if len(layers) == stages and stages > 1:
        return np.array(layers)
    if len(layers) == 1 and layers[0] % stages == 0:
        return np.full(stages, layers[0] // stages)
    return None


def _divide_stages(
    lasting_ns: Mapping[str, Mapping[int, float]], stages: int, counts: Integers | None
) -> StageParts | None:
    """Return what each stage consists of, None if a stage lacks an action, and if most take no time."""
    known = {
        letter: np.array([each[stage] for stage in range(stages)])
        for letter, each in lasting_ns.items()
        if letter in WORK and len(each) == stages
    }
    if "F" not in known or not ("B" in known or "I" in known):
        return None
    if "B" in known:
        known = {letter: known[letter] for letter in "FB"}
    size = np.ones(stages) if counts is None else np.maximum(counts, 1)
    fixed = {letter: _fixed_ns(costs, size) for letter, costs in known.items()}
    parts = StageParts({letter: costs - fixed[letter] for letter, costs in known.items()}, fixed)
    return parts if np.median(parts.of_microbatch()[0]) > 0 else None


def _fixed_ns(costs: Floats, size: Floats | Integers) -> Floats:
    """Return what the first and the last stage cost more than their layers."""
    per_layer = costs / size
    middle = per_layer[1:-1]
    usual = float(np.median(middle)) if len(costs) >= FEWEST_WITH_MIDDLE else float(per_layer.min())
    fixed = np.zeros(len(costs))
    for end in (0, -1):
        fixed[end] = max(costs[end] - usual * size[end], 0.0)
    return fixed


def _unknown(measured: Measured, parts: StageParts) -> LayoutPrediction:
    layers_ns, fixed_ns = parts.of_microbatch()
    even = _even_shares(layers_ns, fixed_ns)
    usual_ns = float(np.median(layers_ns))
    counts = np.maximum(np.rint(COARSEST_LAYERS * layers_ns / usual_ns), 1).astype(np.int64)
    coarse = _best_counts(layers_ns / counts, fixed_ns, counts) / counts
    step_ns = measured.step_ns(measured.groups.window_ns(measured.actions.table))
    even_ns, coarse_ns = (_step_ns(measured, parts, each) for each in (even, coarse))
    low_ns, high_ns = sorted((even_ns, min(coarse_ns, step_ns)))
    return LayoutPrediction(
        moves_text(even), low_ns, high_ns, UNKNOWN_TEXT, "with --layers, the layout is stated"
    )


def _known(measured: Measured, parts: StageParts, counts: Integers) -> LayoutPrediction:
    layers_ns, fixed_ns = parts.of_microbatch()
    best = _best_counts(layers_ns / np.maximum(counts, 1), fixed_ns, counts)
    on_device = best / np.maximum(counts, 1)
    own_ns = np.repeat(layers_ns / np.maximum(counts, 1), counts)
    ends = np.cumsum(best)
    of_layers_ns = np.add.reduceat(own_ns, np.minimum(ends - best, len(own_ns) - 1)) * (best > 0)
    with_layers = of_layers_ns / np.where(layers_ns > 0, layers_ns, 1.0)
    steps_ns = [_step_ns(measured, parts, each) for each in (on_device, with_layers)]
    return LayoutPrediction(
        f"layers per stage {counts_text(best)} instead of {counts_text(counts)}",
        min(steps_ns),
        max(steps_ns),
        KNOWN_TEXT,
        f"Megatron: --pipeline-model-parallel-layout '{layout_line(best)}'; torch split points: {split_points(best)}",
    )


def _even_shares(layers_ns: Floats, fixed_ns: Floats) -> Floats:
    """Return the factor of the layers of every stage that makes all stages cost the same, as far as they can."""
    open_stages = np.ones(len(layers_ns), dtype=np.bool_)
    target_ns = 0.0
    # A stage whose fixed part alone is longer than the target gets no layers; the others share them.
    for _ in range(len(layers_ns)):
        target_ns = (layers_ns.sum() + fixed_ns[open_stages].sum()) / open_stages.sum()
        full = open_stages & (fixed_ns > target_ns)
        if not full.any():
            break
        open_stages &= ~full
    shares: Floats = np.where(open_stages, target_ns - fixed_ns, 0.0) / np.where(
        layers_ns > 0, layers_ns, 1.0
    )
    return shares


def _best_counts(layer_ns: Floats, fixed_ns: Floats, counts: Integers) -> Integers:
    """Return the layers per stage with the fastest slowest stage; embedding and output layer are single items."""
    costs = np.rint(np.repeat(layer_ns, counts)).astype(np.int64).tolist()
    split = split_layers([round(fixed_ns[0]), *costs, round(fixed_ns[-1])], len(counts))
    best = np.array(split.layer_counts)
    best[0] -= 1
    best[-1] -= 1
    return best


def _step_ns(measured: Measured, parts: StageParts, shares: Floats) -> float:
    """Return the step if the layers of every stage took this many times as long, replayed in the measured order."""
    factors = {}
    for letter, layers_ns in parts.layers_ns.items():
        whole_ns = layers_ns + parts.fixed_ns[letter]
        factors[letter] = (layers_ns * shares + parts.fixed_ns[letter]) / np.where(
            whole_ns > 0, whole_ns, 1.0
        )
    table, partners = measured.actions.table, measured.actions.partners
    of_action = _of_actions(table, factors)
    if len(partners):
        # How a pair divides its time cannot be measured, so each of its actions is charged half of it.
        pairs = partners["action"].to_numpy()
        of_action[pairs] = (of_action[pairs] + _of_actions(partners, factors)) / 2
    step_ns = measured.step_ns(measured.groups.window_ns(table))
    return (
        step_ns - measured.base_ns + measured.replayed_ns(measured.duration_ns * of_action, measured.lag_ns)
    )


def _of_actions(table: pl.DataFrame, factors: Mapping[str, Floats]) -> Floats:
    """Return the factor of every action; a backward that only others ran in another form has the factor of theirs."""
    stage = table["stage"].to_numpy()
    found = np.ones(len(stage))
    for kind in ACTION_KINDS:
        letter = BY_NAME[kind].letter
        factor = factors.get(letter, factors.get("B", factors.get("I")))
        if factor is not None:
            chosen = (table["kind"] == kind).to_numpy()
            found[chosen] = factor[stage[chosen]]
    return found

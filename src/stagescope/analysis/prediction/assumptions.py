"""What a prediction of another schedule assumes where nothing was measured: one scenario per combination.

* A full backward that the schedule splits: between 1/4 and 1/2 of it is the weight gradient. With I = W = F it is 1/2;
  recomputation and attention, which have no weights, make it less.
* A stage that is cut: what the first and the last stage cost more than the stages between them (embedding, output
  layer, loss) either divides like the rest or stays whole in one part. It is at most what they cost more than the
  fastest of those stages. What another stage costs more is either a part of the model, and divides, or a slower device,
  on which every part is slower.
* Additional actions, where one becomes several: each is launched with the mean delay of its stage, or with none.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.prediction.mean_costs import PAIR
from stagescope.analysis.prediction.planned_order import LETTERS, NONE, OrderCosts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.prediction.measured_cells import MeasuredCells
    from stagescope.analysis.prediction.planned_order import PlannedOrder

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

WEIGHT_SHARES = (1 / 4, 1 / 3, 5 / 12, 1 / 2)
"""The step is not monotonic in the share: some schedules fit a share in the middle best."""

EVEN, WHOLE, MOST, DEVICE = "even", "whole", "most", "device"
FEWEST_WITH_MIDDLE = 3

WEIGHT_TEXT = "1/4 to 1/2 of a full backward is its weight gradient"
JOINED_TEXT = "a full backward takes as long as its two halves"
SUMMED_TEXT = "an overlapped pair takes as long as its actions one after the other"
TWICE_TEXT = "every stage is held by two ranks"
DELAY_TEXT = "additional actions have the mean launch delay or none"


class Scenario(NamedTuple):
    """The share of a full backward that is its weight gradient, how stages divide, and delays of additional actions."""

    weight_share: float
    division: str
    with_delays: bool


class Work(NamedTuple):
    """How long one kind of action takes and its launch delay, by stage x micro-batch x step.

    `more_ns` is the launch delay of each action beyond the first one if an action becomes several. `mean_ns` is the
    mean of `lasting_ns` on every stage.
    """

    lasting_ns: Floats
    delay_ns: Floats
    more_ns: Floats
    mean_ns: Floats


def list_scenarios(
    cells: MeasuredCells, order: PlannedOrder, homes: Integers
) -> tuple[list[Scenario], list[str]]:
    """Return the scenarios of an order and what they assume, as clauses; `homes` as in assume_costs."""
    texts = []
    splits = "W" in order.letters and not (cells.has("W") and cells.has("I"))
    if splits:
        texts.append(WEIGHT_TEXT)
    if "B" in order.letters and not cells.has("B"):
        texts.append(JOINED_TEXT)
    if order.has_pairs and not (cells.has(PAIR) and cells.stages == order.stages):
        texts.append(SUMMED_TEXT)
    more, fewer = order.stages > cells.stages, order.stages < cells.stages
    if more:
        parts = order.stages // cells.stages
        texts.append(
            f"every stage is cut into {parts} equal parts, or what the first and last stage cost more stays in one part"
        )
    if fewer:
        texts.append(f"every {cells.stages // order.stages} stages are joined")
    if splits or more:
        texts.append(DELAY_TEXT)
    moves = not (more or fewer) and bool((order.rank_of_cell.max(axis=1) != homes).any())
    if moves:
        texts.append("what a stage costs more than others moves with the stage or stays on its device")
    divisions = {(False, False): (WHOLE,), (True, False): (WHOLE, DEVICE)}
    found = product(
        WEIGHT_SHARES if splits else WEIGHT_SHARES[-1:],
        divisions.get((moves, more or fewer), (WHOLE, MOST, EVEN, DEVICE)),
        (True, False) if splits or more else (True,),
    )
    return [Scenario(*each) for each in found], texts


def assume_costs(
    cells: MeasuredCells, order: PlannedOrder, homes: Integers, scenario: Scenario
) -> OrderCosts | None:
    """Return the costs of an order in one scenario, None if they cannot be derived.

    `homes` is the position of the rank of every measured stage.
    """
    stages, width = order.stages, order.microbatches
    if max(stages, cells.stages) % min(stages, cells.stages):
        return None
    steps = len(cells.window_ns)
    actions = np.zeros((len(LETTERS), stages, width, steps))
    for letter in sorted(order.letters):
        work = _work(cells, letter, scenario)
        if work is None:
            return None
        lasting_ns, delay_ns, more_ns = (
            np.broadcast_to(each, (cells.stages, width, steps))
            for each in (work.lasting_ns, work.delay_ns, work.more_ns)
        )
        whole = Work(lasting_ns, delay_ns, more_ns, work.mean_ns)
        actions[LETTERS.index(letter)] = _divide(whole, order, homes, scenario)
    usual_ns = sum(cells.hop_ns.values()) / len(cells.hop_ns) if cells.hop_ns else 0.0
    same = stages == cells.stages
    hops = np.array(
        [max(cells.hop_ns.get(link, usual_ns) if same else usual_ns, 0.0) for link in range(stages)]
    )
    pairs = None
    if order.has_pairs and same and cells.has(PAIR):
        pairs = np.broadcast_to(cells.lasting_ns[PAIR] + cells.delay_ns[PAIR], (stages, width, steps))
    return OrderCosts(actions, np.broadcast_to(hops[:, None], (stages, steps)), pairs)


def least_works_ns(cells: MeasuredCells, order: PlannedOrder, homes: Integers) -> Floats | None:
    """Return per step the work of the busiest rank, if what the first and last stage cost more cannot be divided."""
    costs = assume_costs(
        cells.without_delays(), order, homes, Scenario(WEIGHT_SHARES[-1], WHOLE, with_delays=False)
    )
    if costs is None:
        return None
    most: Floats = order.works_ns(costs).max(axis=0)
    return most


def _work(cells: MeasuredCells, letter: str, scenario: Scenario) -> Work | None:
    """Return the work of a letter on the measured stages, derived from other letters if it was not measured."""
    if cells.has(letter):
        return _measured(cells, letter, scenario)
    if letter == "B" and cells.has("I") and cells.has("W"):
        first, second = (_measured(cells, each, scenario) for each in "IW")
        return first._replace(
            lasting_ns=first.lasting_ns + second.lasting_ns, mean_ns=first.mean_ns + second.mean_ns
        )
    if letter == "F" or not cells.has("B"):
        return None
    full = _measured(cells, "B", scenario)
    share = 1 - scenario.weight_share if letter == "I" else scenario.weight_share
    delay_ns = full.delay_ns if letter == "I" else full.more_ns
    return Work(full.lasting_ns * share, delay_ns, full.more_ns, full.mean_ns * share)


def _measured(cells: MeasuredCells, letter: str, scenario: Scenario) -> Work:
    delay_ns = cells.delay_ns[letter]
    usual_ns = cells.mean_delay_ns[letter] * scenario.with_delays
    more_ns = np.broadcast_to(usual_ns, delay_ns.shape)
    return Work(cells.lasting_ns[letter], delay_ns, more_ns, cells.mean_lasting_ns[letter])


def _divide(work: Work, order: PlannedOrder, homes: Integers, scenario: Scenario) -> Floats:
    """Return what a kind of action costs on every stage of the order."""
    before, after = len(work.lasting_ns), order.stages
    if after == before and scenario.division != DEVICE:
        return work.lasting_ns + work.delay_ns
    indivisible = _indivisible(work.mean_ns, scenario.division)
    fixed_ns = work.lasting_ns * indivisible[:, None, None]
    rest_ns = work.lasting_ns - fixed_ns
    on_devices = scenario.division == DEVICE
    speeds = _speeds(work.mean_ns * (1 - indivisible), homes) if on_devices else np.ones(1)
    if after <= before:
        joined = before // after
        if on_devices:
            rest_ns = rest_ns / speeds[homes][:, None, None]
        starts = np.arange(0, before, joined)
        found = np.add.reduceat(rest_ns, starts)
        if on_devices:
            found = _on_devices(found, speeds, order)
        return found + np.add.reduceat(fixed_ns, starts) + work.delay_ns[starts]
    parts = after // before
    of = np.arange(after) // parts
    found = rest_ns[of] / parts
    if on_devices:
        found = _on_devices(found / speeds[homes[of]][:, None, None], speeds, order)
    found[0] += fixed_ns[0]
    found[-1] += fixed_ns[-1]
    is_first = (np.arange(after) % parts == 0)[:, None, None]
    costs: Floats = found + np.where(is_first, work.delay_ns[of], work.more_ns[of])
    return costs


def _indivisible(mean_ns: Floats, division: str) -> Floats:
    """Return the fraction of each stage that is more than the stages between the first and the last cost."""
    fractions = np.zeros(len(mean_ns))
    if len(mean_ns) == 1 or division == EVEN:
        return fractions
    middle = mean_ns[1:-1] if len(mean_ns) >= FEWEST_WITH_MIDDLE else mean_ns
    usual_ns = (
        float(np.median(middle))
        if division not in (MOST, DEVICE) and len(middle) < len(mean_ns)
        else float(middle.min())
    )
    for end in (0, -1):
        if mean_ns[end] > usual_ns:
            fractions[end] = 1 - usual_ns / mean_ns[end]
    return fractions


def _speeds(mean_ns: Floats, homes: Integers) -> Floats:
    """Return how long each rank takes relative to the median rank."""
    of_rank = np.bincount(homes, weights=mean_ns) / np.bincount(homes)
    usual_ns = float(np.median(of_rank))
    speeds: Floats = of_rank / usual_ns if usual_ns else np.ones(len(of_rank))
    return np.where(speeds > 0, speeds, 1.0)


def _on_devices(lasting_ns: Floats, speeds: Floats, order: PlannedOrder) -> Floats:
    """Return costs by stage, micro-batch and step on the ranks that run them in an order.

    If the measured stages do not show the speed of every rank, because ranks share them, all count as equally fast.
    """
    of_cell = np.where(order.rank_of_cell == NONE, 0, order.rank_of_cell)
    if of_cell.max(initial=0) >= len(speeds):
        return lasting_ns
    slower: Floats = lasting_ns * speeds[of_cell][:, :, None]
    return slower

"""The costs of actions and messages, in whole nanoseconds.

`Costs` is what callers specify. `action_costs` and `link_costs` expand it for the simulator into flat lists, with one
value per (stage, micro-batch) and one per pair of neighboring stages. Times are integers so that simulated times can
be compared exactly.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from stagescope.vocabulary.errors import ScheduleError

NANOSECONDS = 1_000_000_000

Amount = int | Sequence[int] | Mapping[tuple[int, int], int]
"""One number for all actions, one per stage, or one per (stage, micro-batch)."""

PerStage = int | Sequence[int]
"""One number for all stages, or one per stage."""

Cells = list[int | None]
"""One value per (stage, micro-batch), stage by stage; None where it is not known."""

ACTIONS = ("forward", "backward", "backward_input", "backward_weight", "overlapped")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of actions, messages and the end of a step. The defaults are the unit costs F = I = W = 1, B = 2.

    Times are nanoseconds. `forward`, `backward` (full), `backward_input`, `backward_weight` and `overlapped`
    are an Amount; the others are one number, or one per stage. A stage is a chunk: a rank with two chunks pays for
    both. Costs that are not given are derived for each stage and micro-batch:

    * neither a full backward nor a part: each part costs one forward, since all three have the same number of
      multiplications, and the full backward costs both parts;
    * parts without a full backward: the full one is their sum (with a single part, the other costs one forward);
    * a full backward with one part: the other part is the rest; with no part: each is half, and an odd nanosecond
      goes to the input gradient;
    * all three given: used unchanged, since a fused backward may be cheaper than its parts.

    overlapped       cost of an overlapped pair, looked up at its first part; by default the sum of its two parts
    hop              latency of a message between a stage and the next one, in either direction, if they are on
                     different ranks; the value of the last stage is not used
    message_bytes    bytes of such a message (the activation going down, its gradient going up)
    bandwidth        bytes per second of the directed link between two ranks, on which messages queue;
                     None means infinitely fast
    blocking         the sender computes nothing until its message has arrived
    grad_reduce      reduction of the gradients of one stage; starts when the last gradient of the stage is complete
                     on all ranks that hold it, overlaps with computation, and queues on each rank
    optimizer        optimizer step of one stage, after all actions and reductions of its rank
    optimizer_barrier  the optimizer waits for all ranks (global gradient norm; arXiv 2401.10241, section 4)

    Raises ScheduleError for anything but whole numbers of at least 0, and for a bandwidth without message_bytes.
    """

    forward: Amount = 1
    backward: Amount | None = None
    backward_input: Amount | None = None
    backward_weight: Amount | None = None
    overlapped: Amount | None = None
    optimizer: PerStage = 0
    hop: PerStage = 0
    bandwidth: PerStage | None = None
    message_bytes: PerStage | None = None
    blocking: bool = False
    grad_reduce: PerStage = 0
    optimizer_barrier: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, bool):
                checked = _checked(field.name, value)
                object.__setattr__(
                    self, field.name, checked
                )  # frozen dataclasses allow assignment only this way
        if self.bandwidth is not None and self.message_bytes is None:
            raise ScheduleError.bandwidth_alone()


def _checked(name: str, amount: Amount) -> Amount:
    """Return an amount in plain integers: numpy integers are slow to add one by one, and may overflow."""
    least = 1 if name == "bandwidth" else 0
    if isinstance(amount, Mapping):
        if name not in ACTIONS:
            raise ScheduleError.wrong_cost(name, amount, "one whole number or one per stage")
        return {key: _whole(name, value, least) for key, value in amount.items()}
    # A str has a length too, but is never a list of costs.
    if isinstance(amount, (int, str)) or not hasattr(amount, "__len__"):
        return _whole(name, amount, least)
    return tuple(_whole(name, value, least) for value in amount)


def _whole(name: str, value: object, least: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # a TypeError is handled below
    except TypeError:
        number = least - 1
    if number < least:
        raise ScheduleError.wrong_cost(name, value, f"a whole number, at least {least}")
    return number


class ActionCosts(NamedTuple):
    """The cost of every action; the entry for stage s and micro-batch j is at s * microbatches + j."""

    forward: Cells
    backward: Cells
    backward_input: Cells
    backward_weight: Cells
    overlapped: Cells


def action_costs(costs: Costs, stages: int, microbatches: int) -> ActionCosts:
    """Return the cost of every action of an order of these sizes, with missing costs derived.

    An entry is None if the costs have none for that micro-batch. Raises ScheduleError for costs of another number of
    stages, and for a part of the backward that costs more than the whole.
    """
    given = [getattr(costs, name) for name in ACTIONS]
    if any(isinstance(amount, Mapping) for amount in given):
        return _derived(
            [_cells(*named, stages, microbatches) for named in zip(ACTIONS, given, strict=True)], microbatches
        )
    # Deriving once per stage instead of once per action keeps this cheap for large orders.
    of_stages = _derived([_cells(*named, stages, 1) for named in zip(ACTIONS, given, strict=True)], 1)
    return ActionCosts(*([cell for cell in cells for _ in range(microbatches)] for cells in of_stages))


def _cells(name: str, amount: Amount | None, stages: int, width: int) -> Cells:
    if isinstance(amount, Mapping):
        return [amount.get((stage, microbatch)) for stage in range(stages) for microbatch in range(width)]
    if amount is None or isinstance(amount, int):
        return [amount] * (stages * width)
    return [cell for cell in per_stage(name, amount, stages) for _ in range(width)]


def per_stage(name: str, amount: PerStage, stages: int) -> list[int]:
    """Return one value per stage; raises ScheduleError for another number of values."""
    if isinstance(amount, int):
        return [amount] * stages
    if len(amount) != stages:
        raise ScheduleError.cost_count(name, len(amount), stages)
    return list(amount)


def _derived(given: list[Cells], width: int) -> ActionCosts:
    forward, backward, backward_input, backward_weight, overlapped = given
    # Counting is faster than deriving every cell of large orders whose costs are complete.
    if backward.count(None) + backward_input.count(None) + backward_weight.count(None):
        wholes = [
            _completed(*cells, cell // width)
            for cell, cells in enumerate(zip(forward, backward, backward_input, backward_weight, strict=True))
        ]
        backward, backward_input, backward_weight = (list(column) for column in zip(*wholes, strict=True))
    return ActionCosts(forward, backward, backward_input, backward_weight, overlapped)


def _completed(
    forward: int | None, full: int | None, of_input: int | None, of_weight: int | None, stage: int
) -> tuple[int | None, int | None, int | None]:
    """Return the full backward, its input part and its weight part, by the rules in `Costs`."""
    if full is None:
        of_input = forward if of_input is None else of_input
        of_weight = forward if of_weight is None else of_weight
        both = None if of_input is None or of_weight is None else of_input + of_weight
        return both, of_input, of_weight
    if of_input is None and of_weight is None:
        of_weight = full // 2
    if of_input is None:
        of_input = _rest(full, "backward_weight", of_weight or 0, stage)
    if of_weight is None:
        of_weight = _rest(full, "backward_input", of_input, stage)
    return full, of_input, of_weight


def _rest(full: int, name: str, part: int, stage: int) -> int:
    if part > full:
        raise ScheduleError.wrong_cost(name, part, f"at most the full backward of stage {stage}, {full} ns")
    return full - part


class LinkCosts(NamedTuple):
    """The cost of a message between a stage and the next one; one value per stage, the last one unused."""

    hop_ns: list[int]
    wire_ns: list[int]

    @property
    def least_ns(self) -> list[int]:
        """The time from the end of an action to the arrival of its message, without queueing."""
        return [hop + wire for hop, wire in zip(self.hop_ns, self.wire_ns, strict=True)]


def link_costs(costs: Costs, stages: int) -> LinkCosts:
    """Return latency and transmission time of the message between each stage and the next."""
    hop_ns = per_stage("hop", costs.hop, stages)
    if costs.bandwidth is None:
        return LinkCosts(hop_ns, [0] * stages)
    speeds = per_stage("bandwidth", costs.bandwidth, stages)
    sizes = per_stage("message_bytes", costs.message_bytes or 0, stages)
    # Rounded up: a message that takes part of a nanosecond must not be free.
    wire_ns = [-(-size * NANOSECONDS // speed) for size, speed in zip(sizes, speeds, strict=True)]
    return LinkCosts(hop_ns, wire_ns)

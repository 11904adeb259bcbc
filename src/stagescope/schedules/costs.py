"""What the actions of a schedule cost, in whole nanoseconds.

`Costs` is what a caller says. `action_costs` and `link_costs` turn it into flat lists, one value per
(stage, micro-batch) and one per pair of neighboring stages, which is what the simulator reads.
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
"""One value per (stage, micro-batch), stage by stage; None where nothing is known."""

ACTIONS = ("forward", "backward", "backward_input", "backward_weight", "overlapped")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of actions, messages and the end of a step. The defaults are the unit costs F = I = W = 1, B = 2.

    Times are nanoseconds. `forward`, `backward` (full), `backward_input`, `backward_weight` and `overlapped`
    are an Amount, the others one number or one per stage; a stage is a chunk, so a rank with two chunks pays
    for both. What is not given is derived, for each stage and micro-batch by itself:

    * neither backward nor a part of it: each part costs one forward, since each of the three is the same
      number of multiplications, and the full backward both parts;
    * parts without a full backward: the full one is their sum (a single part: the other costs one forward);
    * a full backward with one part: the other part is the rest; with no part: each is half, an odd
      nanosecond goes to the input gradient;
    * all three are taken as given: a fused backward may be cheaper than its parts.

    overlapped       one cost for an overlapped pair, looked up at its first action; without it a pair costs the
                     sum of its two actions
    hop              latency of a message between a stage and the next one, in either direction, where they
                     lie on different ranks; the last stage's is not used
    message_bytes    bytes of such a message (the activation going down, its gradient going up)
    bandwidth        bytes per second of the directed link between two ranks, on which messages queue;
                     None is an infinitely fast one
    blocking         the sender computes nothing until its message has arrived
    grad_reduce      reduction of the gradients of one stage, which starts when the stage's last gradient is
                     complete on all ranks that hold it; it overlaps with computing, two on one rank queue
    optimizer        optimizer step of one stage, after all actions and reductions of its rank
    optimizer_barrier  the optimizer waits for all ranks (global gradient norm; arXiv 2401.10241, section 4)

    Raises ScheduleError for anything but whole numbers from 0 on, and for a bandwidth without message_bytes.
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
                object.__setattr__(self, field.name, checked)  # the instance is frozen for everyone else
        if self.bandwidth is not None and self.message_bytes is None:
            raise ScheduleError.bandwidth_alone()


def _checked(name: str, amount: Amount) -> Amount:
    """Return an amount in plain integers: numbers of other libraries are slow to add, and may overflow."""
    least = 1 if name == "bandwidth" else 0
    if isinstance(amount, Mapping):
        if name not in ACTIONS:
            raise ScheduleError.wrong_cost(name, amount, "one whole number or one per stage")
        return {key: _whole(name, value, least) for key, value in amount.items()}
    if isinstance(amount, (int, str)) or not hasattr(amount, "__len__"):
        return _whole(name, amount, least)
    return tuple(_whole(name, value, least) for value in amount)


def _whole(name: str, value: object, least: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever it is: the TypeError is the answer
    except TypeError:
        number = least - 1
    if number < least:
        raise ScheduleError.wrong_cost(name, value, f"a whole number from {least} on")
    return number


class ActionCosts(NamedTuple):
    """The cost of every action; stage s and micro-batch j stand at s * microbatches + j."""

    forward: Cells
    backward: Cells
    backward_input: Cells
    backward_weight: Cells
    overlapped: Cells


def action_costs(costs: Costs, stages: int, microbatches: int) -> ActionCosts:
    """Return the cost of every action of an order with so many stages and micro-batches, derived where missing.

    A cell is None where the costs give none for that micro-batch. Raises ScheduleError where they are given
    for another number of stages, or where a part of the backward costs more than the whole.
    """
    given = [getattr(costs, name) for name in ACTIONS]
    if any(isinstance(amount, Mapping) for amount in given):
        return _derived(
            [_cells(*named, stages, microbatches) for named in zip(ACTIONS, given, strict=True)], microbatches
        )
    of_stages = _derived([_cells(*named, stages, 1) for named in zip(ACTIONS, given, strict=True)], 1)
    return ActionCosts(*([cell for cell in cells for _ in range(microbatches)] for cells in of_stages))


def _cells(name: str, amount: Amount | None, stages: int, width: int) -> Cells:
    if isinstance(amount, Mapping):
        return [amount.get((stage, microbatch)) for stage in range(stages) for microbatch in range(width)]
    if amount is None or isinstance(amount, int):
        return [amount] * (stages * width)
    return [cell for cell in per_stage(name, amount, stages) for _ in range(width)]


def per_stage(name: str, amount: PerStage, stages: int) -> list[int]:
    """Return one value per stage; raises ScheduleError where another number of them was given."""
    if isinstance(amount, int):
        return [amount] * stages
    if len(amount) != stages:
        raise ScheduleError.cost_count(name, len(amount), stages)
    return list(amount)


def _derived(given: list[Cells], width: int) -> ActionCosts:
    forward, backward, backward_input, backward_weight, overlapped = given
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
    """Return the full backward, its input part and its weight part by the rules that Costs states."""
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
    """What a message between a stage and the next one costs; one value per stage, the last one unused."""

    hop_ns: list[int]
    wire_ns: list[int]

    @property
    def least_ns(self) -> list[int]:
        """From the end of a action to the arrival of its message, when nothing is in the way."""
        return [hop + wire for hop, wire in zip(self.hop_ns, self.wire_ns, strict=True)]


def link_costs(costs: Costs, stages: int) -> LinkCosts:
    """Return latency and time on the wire of the message between each stage and the next."""
    hop_ns = per_stage("hop", costs.hop, stages)
    if costs.bandwidth is None:
        return LinkCosts(hop_ns, [0] * stages)
    speeds = per_stage("bandwidth", costs.bandwidth, stages)
    sizes = per_stage("message_bytes", costs.message_bytes or 0, stages)
    wire_ns = [-(-size * NANOSECONDS // speed) for size, speed in zip(sizes, speeds, strict=True)]
    return LinkCosts(hop_ns, wire_ns)

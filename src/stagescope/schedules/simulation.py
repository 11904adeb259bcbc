"""A simulated step: when every action ran, and the quantities that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action_index import NO_RANK
from stagescope.schedules.dependencies import ACTIVATION, GRADIENT
from stagescope.schedules.memory import peak_in_flight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.schedules.action import Action, Order
    from stagescope.schedules.action_index import ActionIndex
    from stagescope.schedules.costs import Costs


class TimedAction(NamedTuple):
    """One action with its rank and times; it prints like the action."""

    action: Action
    rank: int
    start_ns: int
    end_ns: int

    def __str__(self) -> str:
        return str(self.action)


class Transfer(NamedTuple):
    """One message between ranks, from the end of `producer` to the arrival of its result."""

    producer: Action
    sender: int
    receiver: int
    start_ns: int
    end_ns: int


class Reduction(NamedTuple):
    """The reduction of the gradients of one stage by all ranks that hold the stage."""

    stage: int
    ranks: tuple[int, ...]
    start_ns: int
    end_ns: int


class Interval(NamedTuple):
    """A start and an end."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Simulation:
    """One step, from 0 to `makespan_ns`, the end of its last action, reduction or optimizer step.

    `starts_ns` and `ends_ns` have one entry per action of `order`, per rank. A rank is busy while it runs an action or
    its optimizer step and idle otherwise: idle and busy add up to the makespan on every rank.
    """

    order: Order
    costs: Costs
    index: ActionIndex
    starts_ns: dict[int, list[int]]
    ends_ns: dict[int, list[int]]
    reductions: tuple[Reduction, ...]
    optimizer_steps: dict[int, Interval]
    activation_arrivals_ns: list[int]
    gradient_arrivals_ns: list[int]

    @cached_property
    def actions(self) -> tuple[TimedAction, ...]:
        """Every action with rank, start and end, rank by rank in program order."""
        return tuple(
            TimedAction(action, rank, start_ns, end_ns)
            for rank, actions in self.order.items()
            for action, start_ns, end_ns in zip(
                actions, self.starts_ns[rank], self.ends_ns[rank], strict=True
            )
        )

    @cached_property
    def makespan_ns(self) -> int:
        """The end of the last action, reduction or optimizer step; the step starts at 0."""
        return max(
            (
                *(ends[-1] for ends in self.ends_ns.values() if ends),
                *(reduction.end_ns for reduction in self.reductions),
                *(step.end_ns for step in self.optimizer_steps.values()),
            ),
            default=0,
        )

    @cached_property
    def busy_ns(self) -> dict[int, int]:
        """Per rank, the time in its actions and its optimizer step."""
        busy = {rank: sum(ends) - sum(self.starts_ns[rank]) for rank, ends in self.ends_ns.items()}
        for rank, step in self.optimizer_steps.items():
            busy[rank] += step.end_ns - step.start_ns
        return busy

    @cached_property
    def idle_ns(self) -> dict[int, int]:
        """Per rank, the part of the makespan in which it is not busy."""
        return {rank: self.makespan_ns - busy for rank, busy in self.busy_ns.items()}

    @cached_property
    def peak_memory(self) -> dict[int, int]:
        """Per rank, the most chunk activations in flight at once; see `memory` for bytes and for levels over time."""
        return peak_in_flight(self.order)

    @cached_property
    def own_span_ns(self) -> dict[int, int]:
        """Per rank, the time from the start of its first action to the end of its last, without the optimizer."""
        return {
            rank: ends[-1] - self.starts_ns[rank][0] if ends else 0 for rank, ends in self.ends_ns.items()
        }

    @property
    def bubble_fraction(self) -> float:
        """Idle time of all ranks / (ranks x makespan)."""
        whole_ns = self.makespan_ns * len(self.order)
        return sum(self.idle_ns.values()) / whole_ns if whole_ns else 0.0

    @property
    def own_span_bubble_fraction(self) -> float:
        """(cost - work) / cost of the Zero Bubble papers (arXiv 2401.10241, section 5.3).

        Cost is the longest own span of any rank, work the mean time in actions. This excludes the idle time before the
        first action of late ranks and after the last action of early ranks.
        """
        cost_ns = max(self.own_span_ns.values(), default=0)
        work_ns = sum(sum(ends) - sum(self.starts_ns[rank]) for rank, ends in self.ends_ns.items())
        return 1 - work_ns / (cost_ns * len(self.order)) if cost_ns else 0.0

    def transfers(self) -> Iterator[Transfer]:
        """Yield every message between two ranks, in the program order of the senders."""
        width = self.index.microbatches
        rules = (ACTIVATION, self.activation_arrivals_ns), (GRADIENT, self.gradient_arrivals_ns)
        outputs = {
            kind: (-rule.stage_offset * width, self.index.by_kind[rule.consumers[0]], arrivals_ns)
            for rule, arrivals_ns in rules
            for kind in rule.producers
        }
        for timed in self.actions:
            for part in timed.action.parts:
                if part.kind not in outputs:  # a stage keeps its weight gradients
                    continue
                cell_offset, receivers, arrivals_ns = outputs[part.kind]
                cell = part.stage * width + part.microbatch + cell_offset
                if 0 <= cell < len(receivers) and receivers[cell] not in (NO_RANK, timed.rank):
                    yield Transfer(part, timed.rank, receivers[cell], timed.end_ns, arrivals_ns[cell])

"""The result of a recognition, and the reasons for alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = "unknown"

SAME_ORDER = "it is the same order"
WEIGHTS_UNSEEN = "it differs only in where weight gradients run, which were not recorded"
PAIRS_UNSEEN = "it differs only in which actions overlap, which was not recorded"
ACTIONS_MISSING = "it differs only in actions that are missing here"
NEARLY_AS_CLOSE = "it is nearly as close"
OTHER_COSTS = "its search may find this order for some costs"


class Parameters(NamedTuple):
    """The arguments of `stagescope.schedules.order` that build an order.

    `options` has only recognized options: the group size of an interleaved schedule, and values other than the default.
    """

    ranks: int
    microbatches: int
    chunks: int
    options: Mapping[str, Any]


class Alternative(NamedTuple):
    """Another schedule that the order may follow, and why the evidence does not decide."""

    name: str
    parameters: Parameters
    distance: float
    reason: str


@dataclass(frozen=True)
class Recognition:
    """The recognized schedule of a measured order.

    name              a schedule of the catalog, or "unknown"
    parameters        the parameters of that schedule, or of the nearest one if the name is "unknown"
    nearest           the closest schedule in either case; empty if no placement fits
    distance          fraction of the measured actions at a different position than in the nearest schedule
    margin            how much larger the distance of the next schedule is that is not among the alternatives
    missing_fraction  fraction of the actions of the schedule that were not measured
    evidence          a sentence that explains the result
    indistinct        the orders that fit equally well, with reasons
    faults            sentences on faults of the order itself
    """

    name: str
    parameters: Parameters | None
    distance: float
    margin: float
    nearest: str
    missing_fraction: float
    evidence: str
    indistinct: tuple[Alternative, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the order has a name."""
        return self.name != UNKNOWN

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The names of other schedules that the evidence does not exclude, without repetition."""
        return tuple(dict.fromkeys(each.name for each in self.indistinct if each.name != self.name))

    def __str__(self) -> str:
        return self.evidence

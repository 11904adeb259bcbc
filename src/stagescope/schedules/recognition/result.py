"""What a measured order was recognized as, and the sentence that says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = "unknown"

SAME_ORDER = "it is the same order"
WEIGHTS_UNSEEN = "it differs only in where weight gradients run, which this order does not show"
PAIRS_UNSEEN = "it differs only in which actions overlap, which this order does not show"
LOST = "it differs only in actions that are missing here"
CLOSE = "it is nearly as close"
OTHER_COSTS = "its search may find this order for some costs"


class Parameters(NamedTuple):
    """What an order was built with; `options` holds those of `stagescope.schedules.order`.

    Only options that were found are there: an interleaved schedule's group size, and what is not the default.
    """

    ranks: int
    microbatches: int
    chunks: int
    options: Mapping[str, Any]


class Alternative(NamedTuple):
    """A schedule that the order may be just as well, and why the evidence cannot tell."""

    name: str
    parameters: Parameters
    distance: float
    reason: str


@dataclass(frozen=True)
class Recognition:
    """What a measured order is.

    `name` is a schedule of the catalog or "unknown"; `nearest` is the closest schedule either way (empty where
    no placement fits) and `parameters` are its parameters. `distance` is the share of the measured actions that
    stand elsewhere than in it, `margin` how much larger that share is for the next schedule that is not among
    the alternatives. `missing_fraction` is the share of its actions that were not measured. `indistinct` are the
    orders that fit as well, with reasons. `evidence` is a sentence for people, `faults` are sentences on what is
    wrong with the order itself.
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
        """The other schedules that the evidence cannot tell from this one, each name once."""
        return tuple(dict.fromkeys(each.name for each in self.indistinct if each.name != self.name))

    def __str__(self) -> str:
        return self.evidence

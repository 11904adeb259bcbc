"""One job of a schedule, in the field's notation: ``F0.3`` is the forward of micro-batch 3 on stage 0.

    F  forward                      B  full backward
    I  input-gradient backward      W  weight-gradient backward
    F0.3+B3.1  an overlapped pair, two jobs that run as one

Stages are global (virtual) and count from 0 in the order of the model; micro-batches count from 0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("F", "B", "I", "W")
_ACTION = re.compile(r"([FBIW])(\d+)\.(\d+)")


class Action(NamedTuple):
    """One job, or with `partner` an overlapped pair of which this is the first."""

    kind: str
    stage: int
    microbatch: int
    partner: Action | None = None

    def __str__(self) -> str:
        own = f"{self.kind}{self.stage}.{self.microbatch}"
        return own if self.partner is None else f"{own}+{self.partner}"

    @property
    def parts(self) -> tuple[Action, ...]:
        """The one or two jobs of this action, each without partner."""
        if self.partner is None:
            return (self,)
        return (self._replace(partner=None), self.partner)


Order = dict[int, list[Action]]
"""What each rank does, in the order in which it does it."""


def read_actions(actions: Sequence[Action | str]) -> list[Action]:
    """Return what one rank does, with the actions that are given as text parsed; raises as `parse_action` does."""
    return [parse_action(each) if isinstance(each, str) else each for each in actions]


def parse_action(text: str) -> Action:
    """Return the action that `text` writes down; raises ScheduleError if it is none.

    >>> parse_action("F0.3+B3.1").partner
    Action(kind='B', stage=3, microbatch=1, partner=None)
    """
    jobs = [_ACTION.fullmatch(part.strip()) for part in text.split("+")]
    found = [Action(job[1], int(job[2]), int(job[3])) for job in jobs if job]
    if len(found) != len(jobs) or len(found) > 2:  # noqa: PLR2004  # a pair is two
        raise ScheduleError.not_an_action(text)
    return found[0] if len(found) == 1 else found[0]._replace(partner=found[1])

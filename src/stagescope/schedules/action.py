"""One action of a schedule, in the usual notation: ``F0.3`` is the forward of micro-batch 3 on stage 0.

    F  forward                      B  full backward
    I  input-gradient backward      W  weight-gradient backward
    F0.3+B3.1  an overlapped pair: one action with two parts

The kinds are those of torch.distributed.pipelining, whose OVERLAP_F_B actions with `sub_actions` are the overlapped
pairs. Stages are global (virtual) and count from 0 in the order of the model; micro-batches count from 0.
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
    """One action; with a `partner`, an overlapped pair whose first part this is."""

    kind: str
    stage: int
    microbatch: int
    partner: Action | None = None

    def __str__(self) -> str:
        own = f"{self.kind}{self.stage}.{self.microbatch}"
        return own if self.partner is None else f"{own}+{self.partner}"

    @property
    def parts(self) -> tuple[Action, ...]:
        """The parts of an overlapped pair, each without partner; otherwise the action itself."""
        if self.partner is None:
            return (self,)
        return (self._replace(partner=None), self.partner)


Order = dict[int, list[Action]]
"""The actions of each rank, in program order."""


def read_actions(actions: Sequence[Action | str]) -> list[Action]:
    """Return the actions of one rank, with text parsed; raises ScheduleError like `parse_action`."""
    return [parse_action(each) if isinstance(each, str) else each for each in actions]


def parse_action(text: str) -> Action:
    """Return the action that `text` denotes; raises ScheduleError for anything else.

    >>> parse_action("F0.3+B3.1").partner
    Action(kind='B', stage=3, microbatch=1, partner=None)
    """
    matches = [_ACTION.fullmatch(part.strip()) for part in text.split("+")]
    parts = [Action(found[1], int(found[2]), int(found[3])) for found in matches if found]
    if len(parts) != len(matches) or len(parts) > 2:  # noqa: PLR2004  # a pair has two parts
        raise ScheduleError.invalid_action(text)
    return parts[0] if len(parts) == 1 else parts[0]._replace(partner=parts[1])

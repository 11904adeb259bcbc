"""Which changes were tested for a shorter step, and which schedules were not and why, as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - saved reports are decoded with these types
from typing import NamedTuple

from stagescope.vocabulary.counts import counted

UNSUPPORTED = "they do not support these numbers of ranks, stages and micro-batches"
INCOMPLETE = "ranks of the pipeline are missing"


class TriedChanges(NamedTuple):
    """How many fixes and which schedules were tested, whether another layout was, and why other schedules were not.

    `reduced` states how the schedules were simulated; empty: action by action.
    """

    fixes: int = 0
    schedules: Sequence[str] = ()
    has_layout: bool = False
    untested: Mapping[str, Sequence[str]] = {}
    reduced: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether no change was tested."""
        return not (self.fixes or self.schedules or self.has_layout)

    def sentence(self) -> str:
        """Return what was tested, and what was not and why.

        >>> TriedChanges(2, ("gpipe", "1f1b"), untested={"why": ["zb-v"]}).sentence()
        'Tested: 2 fixes; 2 schedules (gpipe, 1f1b). Schedules not tested: zb-v, because why.'
        """
        parts = [counted(self.fixes, "fix", "fixes")] if self.fixes else []
        if self.has_layout:
            parts.append("another layout of the layers")
        if self.schedules:
            how = f", where {self.reduced}" if self.reduced else ""
            parts.append(f"{counted(len(self.schedules), 'schedule')} ({', '.join(self.schedules)}){how}")
        tested = f"Tested: {'; '.join(parts)}." if parts else "No change was tested."
        reasons = [
            f"{', '.join(names)}, because {reason}" for reason, names in self.untested.items() if names
        ]
        return f"{tested} Schedules not tested: {'; '.join(reasons)}." if reasons else tested


NOTHING_TRIED = TriedChanges()

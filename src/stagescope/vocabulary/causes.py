"""Causes of lost pipeline time, and waits of idle ranks: one name each, in tables, JSON, terminal and page.

A *cause* explains lost time: the ledger (analysis/idle/ledger.py) splits the idle time of a step among CAUSES, and the
columns of its tables, the keys of the report's JSON and the conditions of ``--fail-if`` carry the same names. A *wait*
classifies one idle interval by what ended it (analysis/idle/intervals.py); a wait is what was missing at that
moment, not why, so the two sums differ.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """One cause of lost time: its name everywhere, and what it covers."""

    name: str
    meaning: str

    @property
    def column(self) -> str:
        """The column that holds its nanoseconds."""
        return f"{self.name}_ns"

    @property
    def label(self) -> str:
        """Its name in text."""
        return self.name.replace("_", " ")


CAUSES: tuple[Cause, ...] = (
    Cause("schedule_bubble", "Idle time of the schedule itself, if all stages cost the same."),
    Cause("stage_imbalance", "Stages differ in cost."),
    Cause("straggler", "A rank is slower than its data-parallel replicas."),
    Cause("jitter", "Actions of the same stage and kind differ within the step."),
    Cause("exposed_communication", "Transfers that a rank waited for."),
    Cause(
        "unattributed",
        "What no other cause covers: launch overhead, other work between actions, blocked sends, missing data.",
    ),
)
"""The causes in the order in which the ledger removes them, from the last to the first."""

BY_COLUMN: dict[str, Cause] = {cause.column: cause for cause in CAUSES}
CAUSE_COLUMNS: tuple[str, ...] = tuple(BY_COLUMN)

WAIT_LABELS: dict[str, str] = {
    "compute": "compute of another rank",
    "transfer": "a transfer",
    "launch": "the launch of its next action",
    "transfer_or_launch": "a transfer or a launch",
    "other_work": "other work",
    "unknown": "unknown",
}
"""What a rank waits for during one idle interval, by name, in the order of legends."""

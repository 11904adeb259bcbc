"""Causes of lost pipeline time, and waits of idle ranks: one name each, in tables, JSON, terminal and page.

A *cause* explains lost time: the ledger (analysis/idle/ledger.py) splits the idle time of a step among CAUSES, and the
columns of its tables, the keys of the report's JSON and the conditions of ``--fail-if`` carry the same names. A *wait*
classifies one idle interval by what ended it (analysis/idle/intervals.py); a wait is what was missing at that
moment, not why, so the two sums differ.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """One cause of lost time: its name everywhere, what it covers, and how texts spell it if that differs."""

    name: str
    meaning: str
    spelling: str = ""

    @property
    def column(self) -> str:
        """The column that holds its nanoseconds."""
        return f"{self.name}_ns"

    @property
    def label(self) -> str:
        """Its name in text."""
        return self.spelling or self.name.replace("_", " ")


CAUSES: tuple[Cause, ...] = (
    Cause("schedule_bubble", "Idle time of the schedule itself, if all stages cost the same."),
    Cause("stage_imbalance", "Stages differ in cost."),
    Cause("straggler", "A rank is slower than its data-parallel replicas."),
    Cause("data_imbalance", "Micro-batches differ in length, on all ranks alike."),
    Cause(
        "jitter",
        "Actions of one class differ within the step, beyond the length of their micro-batch.",
    ),
    Cause("exposed_communication", "Transfers that a rank waited for."),
    Cause(
        "gradient_reduction",
        "Gradients are reduced over the replicas, by this rank or by the ranks that it waits for.",
    ),
    Cause(
        "data_parallel_wait",
        "A rank waits until the last data-parallel replica has come to a reduction, or has finished.",
        "data-parallel wait",
    ),
    Cause("blocked_on_send", "A send waits for its receiver, which still works: a later stage is slow."),
    Cause("launch_overhead", "What every action takes to start although its inputs are there."),
    Cause("data_loading", "Data are loaded, by this rank or by the ranks that it waits for."),
    Cause("optimizer", "The optimizer step, of this rank or of the ranks that it waits for."),
    Cause("other_work", "Other recorded work between two actions or two steps."),
    Cause("unattributed", "What no other cause covers: nothing was recorded that explains it."),
)
"""The causes in the order in which the ledger removes them, from the last to the first.

They are those of a pipeline's window, and of the iteration, which has some of them outside of its windows as well.
"""

BY_COLUMN: dict[str, Cause] = {cause.column: cause for cause in CAUSES}
CAUSE_COLUMNS: tuple[str, ...] = tuple(BY_COLUMN)

ALWAYS_SHOWN = frozenset(
    f"{name}_ns"
    for name in (
        "schedule_bubble",
        "stage_imbalance",
        "straggler",
        "jitter",
        "exposed_communication",
        "unattributed",
    )
)
"""Columns of causes that are shown even if they are 0. The others need something recorded, and have no line without."""

NOT_RECORDED = "not recorded"
"""What texts print instead of the time of a cause of which nothing was recorded."""

MAY_BE_UNRECORDED = frozenset(
    f"{name}_ns"
    for name in (
        "exposed_communication",
        "blocked_on_send",
        "data_loading",
        "gradient_reduction",
        "optimizer",
    )
)
"""Columns of causes that only a recording of transfers, reductions, optimizer steps or loading shows; null without."""

WAIT_LABELS: dict[str, str] = {
    "compute": "compute of another rank",
    "reduction": "a gradient reduction",
    "transfer": "a transfer",
    "launch": "the launch of its next action",
    "transfer_or_launch": "a transfer or a launch",
    "other_work": "other work",
    "unknown": "unknown",
    "nothing": "the end of the step: the rank is done",
}
"""What a rank waits for during one idle interval, by name, in the order of legends."""

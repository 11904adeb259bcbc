"""Waits in progress for reductions that C++ issues inside a backward, for the state of a process.

Nothing on the Python stack shows them: the thread is in the function that runs the backward. A reduction is numbered
when the wait for it ends. While it lasts, the reduction counts as issued here, with the number that it will get.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from stagescope.record.clock import now_ns
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import CodeType, FrameType

    from stagescope.record.frameworks.groups import Group
    from stagescope.record.recorder import Recorder

_GRAD_REDUCE = BY_NAME["grad_reduce"].code
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class _Wait(NamedTuple):
    """`code` is that of the Python function that runs the backward, None if a thread of C++ waits."""

    group: Group
    name: str
    stage: int
    since_ns: int
    code: CodeType | None


class BucketWaits:
    """The waits in progress of one process, by the object that observes the reductions."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waits: dict[int, _Wait] = {}
        # A backward that fails does not end its wait.
        recorder.unfinished.append((self._waits, self._waits.clear))
        recorder.in_child.append(self._waits.clear)
        recorder.waits_in_native_code.append(self.describe)

    def begin(self, owner: object, group: Group, operation: str) -> None:
        """Note that the calling thread waits for a reduction from now on."""
        self._waits[id(owner)] = _Wait(
            group, group.name(operation), self._recorder.stage, now_ns(), _calling_code()
        )

    def end(self, owner: object) -> None:
        """Note that the wait has ended, or that another backward began."""
        self._waits.pop(id(owner), None)

    def count(self, group: Group) -> int:
        """Return how many reductions of a group are waited for."""
        return sum(wait.group is group for wait in list(self._waits.values()))

    def describe(self, codes: Collection[CodeType]) -> dict[str, object] | None:
        """Return the wait in progress, see record/process_state.py; None if there is none.

        `codes` are those of the functions that the training thread is in: without the one that ran the backward, this
        has failed.
        """
        from stagescope.record.process_state import message_facts  # only needed when nothing else happens

        messages: list[dict[str, object]] = []
        begin_ns: list[int] = []
        numbers: dict[str, int] = {}
        for group, name, stage, since_ns, code in list(self._waits.values()):
            if code is not None and code not in codes:
                continue
            number = numbers[group.text] = numbers.get(group.text, group.issued - 1) + 1
            messages.append(message_facts(_GRAD_REDUCE, since_ns, name=name, pair=number, stage=stage))
            begin_ns.append(since_ns)
        return {"call": "wait", "for": messages, "since_ns": min(begin_ns)} if messages else None


def _calling_code() -> CodeType | None:
    """Return the code of the innermost function on this stack that is none of this package."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # `inspect` is slow to import
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return None if frame is None else frame.f_code

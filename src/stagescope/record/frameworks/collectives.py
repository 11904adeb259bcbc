"""Collectives of one process: which group, the how-manieth of the group, how many bytes, and when it blocked.

A collective is recorded from its issue to the end of the wait for it. Its name is ``<operation> in <group>``, or
``<operation> (async) in <group>`` if the training receives a handle and waits for that when it likes. Its
sequence number is the number of earlier collectives that this process issued in the group. All members of a group
issue its collectives in the same order, so group and sequence number identify a collective on all of them. The peer of
a broadcast, a reduce, a scatter or a gather is its root.

A training with tensor parallelism issues hundreds of collectives in each action. They are numbered, but not recorded
one by one, unless the recording is detailed: that would cost more than recording may. Those that reduce gradients are
recorded wherever they are issued.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import finalize

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.bucket_waits import BucketWaits
from stagescope.record.frameworks.groups import group_of
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.works import works_of
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from stagescope.record.frameworks.groups import Group
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

NO_ACTION = (NONE, NONE, NONE, NONE)
COLLECTIVE, GRAD_REDUCE = BY_NAME["collective"].code, BY_NAME["grad_reduce"].code
ASYNCHRONOUS = " (async)"
"""What follows the operation if the call returned a handle to the training."""

MOST_UNDER_WAY = 64
"""Collectives that are kept until they are waited for; the oldest ones are then recorded without a wait."""

MOST_KINDS = 64


class Size:
    """The size of a collective in bytes, where no single tensor of torch has it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


Issued = tuple[int, int, int, int, tuple[int, int, int, int], int, int]
"""A collective that was issued, before it is waited for: kind, name, number in its group, bytes, where it was issued
(step, stage, chunk) and its root, and from when to when. A plain tuple, because one is made for each collective.
"""

Begun = tuple[int, int, int, int, tuple[int, int, int, int], int, Any, bool]
"""A collective that is being issued: as above, until it began on the host and on a device, and whether a thread beside
the steps issues it.
"""


class Collectives:
    """Counts and records the collectives of one process.

    `reductions` is how many calls are in progress in which collectives reduce gradients, `reduced` how many collectives
    have done so.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.works = works_of(recorder)
        self.bucket_waits = BucketWaits(recorder)
        self.reductions = self.reduced = 0
        self.is_beside = False
        self._groups: dict[int, Group] = {}
        self._groups_by_text: dict[str, Group] = {}
        self._under_way: dict[int, tuple[Issued, ...]] = {}
        self._numbers = 0
        self._coalesced: list[Issued] | None = None
        recorder.unfinished.append((self._under_way, self.close))
        recorder.in_child.append(self._begin_in_child)
        recorder.at_end.append(self._describe_counted)
        recorder.issued_collectives.append(self._issued)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the collectives that are issued in the ``with`` block one by one, also in an action."""
        recorder = self.recorder
        before, recorder.is_one_by_one = recorder.is_one_by_one, True
        try:
            yield
        finally:
            recorder.is_one_by_one = before

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Record the collectives that are issued in the ``with`` block as gradient reductions, also in an action."""
        self.reductions += 1
        try:
            with self.recording():
                yield
        finally:
            self.reductions -= 1

    def observe_reduction(self, stage: int, chunk: int = NONE) -> Observation:
        """Observe a call whose collectives reduce the gradients of a stage."""
        recorder = self.recorder
        before, recorder.action = recorder.action, (GRAD_REDUCE, stage, NONE, chunk)
        try:
            with self.reducing():
                return (yield)
        finally:
            recorder.end_reduction(before)

    def observe_one_by_one(self) -> Observation:
        """Observe a call whose collectives are recorded one by one, also in an action."""
        with self.recording():
            return (yield)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Treat collectives that are issued in the ``with`` block as running beside the actions on a device."""
        before, self.is_beside = self.is_beside, True
        try:
            yield
        finally:
            self.is_beside = before

    def counts_only(self, arguments: tuple[Any, ...]) -> bool:
        """Count a collective and return True, if it is not to be recorded one by one, or is one of a single rank.

        The first of the `arguments` is its process group, which may not be known yet.
        """
        recorder = self.recorder
        group = self._groups.get(id(arguments[0]))
        if group is None:
            return False
        if group.size <= 1:
            return True
        if recorder.action is None and not recorder.is_in_range:  # `counts_collectives`, without a call
            return False
        if recorder.is_detailed or recorder.is_one_by_one:
            return False
        if recorder.training_thread != get_ident() and self._is_of_other_thread():
            return False
        group.number()
        group.counted += 1
        return True

    def observe(
        self, operation: str, owner: Any, arguments: Sequence[Any], root: int | None = None
    ) -> Observation:
        """Observe a call that issues a collective; see `begin`. It returns the handle, or None."""
        state = self.begin(operation, owner, arguments, root)
        if state is None:
            return
        work = yield
        self.end(state, work)

    def begin(
        self, operation: str, owner: Any, arguments: Sequence[Any], root: int | None = None
    ) -> Begun | None:
        """Begin a collective in the process group `owner`; return None if it is not recorded one by one.

        Its size is that of the largest of the `arguments`. `root` is the rank in the group from which or to which all
        data goes, if there is one.
        """
        recorder = self.recorder
        group = self._groups.get(id(owner)) or self.group_of(owner)
        if group.size <= 1:
            return None
        sequence = group.number()
        is_apart = recorder.training_thread != get_ident() and self._is_of_other_thread()
        action = recorder.action
        is_counted = action is not None or recorder.is_in_range  # `counts_collectives`, without a call
        is_counted = is_counted and not (recorder.is_detailed or recorder.is_one_by_one or is_apart)
        if is_counted or not (recorder.enabled and (recorder.seen.spans or recorder.is_training)):
            group.counted += is_counted
            return None
        size_bytes = 0
        for argument in arguments:
            one = argument[0] if type(argument) is list and len(argument) == 1 else argument
            if type(one) not in _WITHOUT_SIZE:
                one_bytes = getattr(one, "nbytes", None)
                size_bytes = max(size_bytes, one_bytes if type(one_bytes) is int else size_of(one))
        kind = GRAD_REDUCE if self.reductions else COLLECTIVE
        text = group.names.get(operation) or group.name(operation)
        name = recorder.name_ids.get(text) or recorder.name_id(text)
        to = NONE if root is None else group.rank(root)
        if is_apart:
            kind, place = COLLECTIVE, (recorder.step, NONE, NONE, to)
        else:
            _, stage, _, chunk = action or NO_ACTION
            place = (recorder.step, stage, chunk, to)
        timer = recorder.timer
        start = timer.begin() if timer.device else None
        return kind, name, sequence, size_bytes, place, now_ns(), start, is_apart

    def end(self, state: Begun, work: Any) -> None:
        """Note the handle of a collective that was issued, None if it has ended."""
        end_ns = now_ns()
        kind, name, sequence, size_bytes, place, start_ns, start, is_apart = state
        issued: Issued = (kind, name, sequence, size_bytes, place, start_ns, end_ns)
        if is_apart:
            self.emit(issued, NONE, NONE)
            return
        self.reduced += kind == GRAD_REDUCE
        if start is not None and (work is None or self.is_beside):
            # The device runs it on the current stream, between these two moments.
            timer = self.recorder.timer
            timer.resolve(partial(self._emit_on_device, issued, not self.is_beside), start, timer.begin())
        elif self._coalesced is not None:
            self._coalesced.append(issued)
        elif work is None:
            self.emit(issued, start_ns, end_ns)
        else:
            self._numbers = number = self._numbers + 1
            self._under_way[number] = (issued,)
            self.works.watch(work, self._waited, what=number)
            if len(self._under_way) > MOST_UNDER_WAY:
                self._give_up(next(iter(self._under_way)))

    def _is_of_other_thread(self) -> bool:
        """Return whether the caller is a thread that works beside the steps, such as one that writes a checkpoint.

        The threads of autograd, which Python has not started, are part of a step.
        """
        thread = get_ident()
        if thread == self.recorder.training_thread or not self.recorder.training_thread:
            return False
        # threading.current_thread would register a thread that it does not know.
        known = threading._active.get(thread)  # type: ignore[attr-defined]  # noqa: SLF001  # no public name
        return known is not None and not isinstance(known, threading._DummyThread)  # noqa: SLF001  # same

    def begin_coalescing(self) -> None:
        """Wait for the collectives that are issued from now on by one handle."""
        self._coalesced = []

    def end_coalescing(self, work: object) -> None:
        """Assign that handle to the collectives that were issued since."""
        coalesced, self._coalesced = self._coalesced, None
        if coalesced:
            self._expect(work, *coalesced)

    def group_of(self, owner: Any) -> Group:
        """Return the group of a process group of torch."""
        group = self._groups.get(id(owner))
        if group is None:
            group = self.keep_group(owner, group_of(owner))
        return group

    def keep_group(self, owner: Any, found: Group) -> Group:
        """Remember the group of a process group as long as that exists; return the one that has its text already."""
        group = self._groups_by_text.setdefault(found.text, found)
        self._groups[id(owner)] = group
        finalize(owner, self._groups.pop, id(owner), None).atexit = False
        return group

    def emit(self, issued: Issued, wait_start_ns: int, wait_end_ns: int) -> None:
        """Record a collective; the times of the wait are `NONE` if it was not seen."""
        kind, name, sequence, size_bytes, (step, stage, chunk, root), start_ns, end_ns = issued
        if wait_end_ns != NONE:
            end_ns = max(wait_end_ns, start_ns)
        self.recorder.emit(kind, start_ns, end_ns, stage, NONE, chunk, root, size_bytes, wait_start_ns, wait_end_ns,
                           name, sequence, step)  # fmt: skip

    def close(self) -> None:
        """Record all collectives that were never waited for."""
        for number in list(self._under_way):
            self._give_up(number)

    def _begin_in_child(self) -> None:
        """Discard what the parent of this process has issued and counted."""
        self.works.clear()
        self._under_way.clear()
        self._coalesced = None
        for group in self._groups_by_text.values():
            group.counted = 0

    def _describe_counted(self) -> None:
        """State in the recording how many collectives of each group were not recorded one by one."""
        counted = {
            group.text: group.counted
            for group in self._groups_by_text.values()
            if group.counted and group.size > 1
        }
        if counted:
            self.recorder.describe(counted_collectives=counted)

    def describe_wait(self, number: int) -> Iterator[dict[str, object]]:
        """Yield the collectives that a wait in progress is for, see record/process_state.py."""
        from stagescope.record.process_state import message_facts  # only needed when nothing else happens

        for kind, name, sequence, _, place, start_ns, _ in self._under_way.get(number, ()):
            text = self.recorder.name_text(name)
            yield message_facts(kind, start_ns, name=text, pair=sequence, stage=place[1])

    def describe_call(self, state: Begun) -> dict[str, object]:
        """Return a collective that is being issued, as above."""
        from stagescope.record.process_state import message_facts  # only needed when nothing else happens

        kind, name, sequence, _, _, start_ns, *_ = state
        return message_facts(kind, start_ns, name=self.recorder.name_text(name), pair=sequence)

    def _issued(self) -> dict[str, int]:
        """Return the number of collectives that were issued in each group."""
        return {
            group.text: group.issued + self.bucket_waits.count(group)
            for group in list(self._groups_by_text.values())
            if group.size > 1
        }

    def _emit_on_device(self, issued: Issued, blocks: bool, start_ns: int, end_ns: int) -> None:  # noqa: FBT001  # bound by partial
        if blocks:
            self.emit(issued, start_ns, end_ns)
        else:
            self.emit((*issued[:-2], start_ns, end_ns), NONE, NONE)

    def _expect(self, work: object, *issued: Issued) -> None:
        """Record collectives at the end of the wait for their handle."""
        self._numbers += 1
        self._under_way[self._numbers] = issued
        if work is not None:
            self.works.watch(work, self._waited, what=self._numbers)
        if len(self._under_way) > MOST_UNDER_WAY:
            self._give_up(next(iter(self._under_way)))

    def _give_up(self, number: int) -> None:
        for issued in self._under_way.pop(number, ()):
            self.emit(issued, NONE, NONE)

    def _waited(self, number: int, start: Any, end: Any) -> None:
        timer = self.recorder.timer
        for issued in self._under_way.pop(number, ()):
            if timer.device is None:
                kind, name, sequence, size_bytes, (step, stage, chunk, root), start_ns, _ = issued
                end_ns = max(end, start_ns)
                self.recorder.emit(kind, start_ns, end_ns, stage, NONE, chunk, root, size_bytes, start, end, name,
                                   sequence, step)  # fmt: skip
            else:
                timer.resolve(partial(self.emit, issued), start, end)


def size_of(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in nested lists; 0 for anything else."""
    kind = type(value)
    if kind in _WITHOUT_SIZE:
        return 0
    if isinstance(value, (list, tuple)):
        return size_of(value[0]) if len(value) == 1 else sum(map(size_of, value))
    size_bytes = getattr(value, "nbytes", None)
    if isinstance(size_bytes, int):
        return size_bytes
    if size_bytes is None and len(_WITHOUT_SIZE) < MOST_KINDS:
        _WITHOUT_SIZE.add(kind)
    return 0


_WITHOUT_SIZE: set[type] = set()
"""Types of arguments that have no size, such as the options of a collective: asking them raises an exception."""


def collectives_of(recorder: Recorder) -> Collectives:
    """Return the Collectives of this recorder, shared by all frameworks of the process."""
    return shared(recorder, Collectives, recorder)

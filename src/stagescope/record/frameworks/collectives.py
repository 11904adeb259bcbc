"""Collectives of one process: which group, the how-manieth of the group, how many bytes, and when it blocked.

A collective is recorded from its issue to the end of the wait for it. Its name is ``<operation> in <group>``, and its
sequence number is the number of earlier collectives that this process issued in the group. All members of a group
issue its collectives in the same order, so group and sequence number identify a collective on all of them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import IdentityMap
from stagescope.record.frameworks.works import works_of
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

COLLECTIVE, GRAD_REDUCE = BY_NAME["collective"].code, BY_NAME["grad_reduce"].code
MOST_UNDER_WAY = 64
"""Collectives that are kept until they are waited for; the oldest ones are then recorded without a wait."""

MOST_LISTED_RANKS = 8
NAME_CHARACTERS = 8
"""Characters of the name of a group that are kept: torch numbers groups, or hashes their ranks."""


class Group(NamedTuple):
    """A process group: a text that is the same on all its members and different for all other groups, and its size."""

    text: str
    size: int


class Issued(NamedTuple):
    """A collective that was issued: what is known before it is waited for."""

    kind: int
    name: int
    sequence: int
    size_bytes: int
    step: int
    stage: int
    chunk: int
    start_ns: int
    end_ns: int


class Collectives:
    """Counts and records the collectives of one process.

    `reductions` is how many calls are in progress in which collectives reduce gradients, `reduced` how many collectives
    have done so.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.works = works_of(recorder)
        self.reductions = self.reduced = 0
        self.is_beside = False
        self._groups = IdentityMap()
        self._counts: Counter[str] = Counter()
        self._under_way: dict[int, tuple[Issued, ...]] = {}
        self._numbers = 0
        self._coalesced: list[Issued] | None = None
        recorder.unfinished.append(self.close)

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Record the collectives that are issued in the ``with`` block as gradient reductions."""
        self.reductions += 1
        try:
            yield
        finally:
            self.reductions -= 1

    def observe_reduction(self, stage: int, chunk: int = NONE) -> Observation:
        """Observe a call whose collectives reduce the gradients of a stage."""
        recorder = self.recorder
        before = recorder.stage, recorder.chunk
        recorder.stage, recorder.chunk = stage, chunk
        try:
            with self.reducing():
                return (yield)
        finally:
            recorder.stage, recorder.chunk = before

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Treat collectives that are issued in the ``with`` block as running beside the actions on a device."""
        before, self.is_beside = self.is_beside, True
        try:
            yield
        finally:
            self.is_beside = before

    def observe(self, operation: str, owner: Any, size_bytes: int) -> Observation:
        """Observe a call that issues a collective in the process group `owner` and returns its handle, or None."""
        recorder = self.recorder
        group = self.group_of(owner)
        if group.size <= 1:
            return (yield)
        sequence = self.count(group)
        if not recorder.is_training:
            return (yield)
        timer = recorder.timer
        start_ns, start = now_ns(), timer.begin() if timer.device else None
        work = yield
        issued = self._issued(operation, group, sequence, size_bytes, start_ns)
        if start is not None and (work is None or self.is_beside):
            # The device runs it on the current stream, between these two moments.
            timer.resolve(partial(self._emit_on_device, issued, not self.is_beside), start, timer.begin())
        elif self._coalesced is not None:
            self._coalesced.append(issued)
        elif work is None:
            self.emit(issued, start_ns, issued.end_ns)
        else:
            self._expect(work, issued)
        return work

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
        group = self._groups.find(owner)
        if group is None:
            group = _describe(owner)
            self._groups.keep(owner, group)
        return group  # type: ignore[no-any-return]  # what was kept above

    def count(self, group: Group) -> int:
        """Return the number of earlier collectives of a group."""
        number = self._counts[group.text]
        self._counts[group.text] = number + 1
        return number

    def emit(self, issued: Issued, wait_start_ns: int, wait_end_ns: int) -> None:
        """Record a collective; the times of the wait are `NONE` if it was not seen."""
        end_ns = issued.end_ns if wait_end_ns == NONE else max(wait_end_ns, issued.start_ns)
        self.recorder.emit(
            issued.kind,
            issued.start_ns,
            end_ns,
            issued.stage,
            NONE,
            issued.chunk,
            NONE,
            issued.size_bytes,
            wait_start_ns,
            wait_end_ns,
            issued.name,
            issued.sequence,
            step=issued.step,
        )

    def close(self) -> None:
        """Record all collectives that were never waited for."""
        for number in list(self._under_way):
            self._give_up(number)

    def name_id(self, operation: str, group: Group) -> int:
        """Return the number of the name of a collective."""
        return self.recorder.name_id(f"{operation} in {group.text}")

    def _issued(self, operation: str, group: Group, sequence: int, size_bytes: int, start_ns: int) -> Issued:
        recorder = self.recorder
        kind = GRAD_REDUCE if self.reductions else COLLECTIVE
        self.reduced += kind == GRAD_REDUCE
        name = self.name_id(operation, group)
        place = (recorder.step, recorder.stage, recorder.chunk)
        return Issued(kind, name, sequence, size_bytes, *place, start_ns, now_ns())

    def _emit_on_device(self, issued: Issued, blocks: bool, start_ns: int, end_ns: int) -> None:  # noqa: FBT001  # bound by partial
        if blocks:
            self.emit(issued, start_ns, end_ns)
        else:
            self.emit(issued._replace(start_ns=start_ns, end_ns=end_ns), NONE, NONE)

    def _expect(self, work: object, *issued: Issued) -> None:
        """Record collectives at the end of the wait for their handle."""
        self._numbers += 1
        self._under_way[self._numbers] = issued
        if work is not None:
            self.works.watch(work, partial(self._observe_wait, self._numbers))
        if len(self._under_way) > MOST_UNDER_WAY:
            self._give_up(next(iter(self._under_way)))

    def _give_up(self, number: int) -> None:
        for issued in self._under_way.pop(number, ()):
            self.emit(issued, NONE, NONE)

    def _observe_wait(self, number: int) -> Observation:
        timer = self.recorder.timer
        start = timer.begin()
        result = yield
        end = timer.begin()
        for issued in self._under_way.pop(number, ()):
            timer.resolve(partial(self.emit, issued), start, end)
        return result


def size_of(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in nested lists; 0 for anything else."""
    if isinstance(value, (list, tuple)):
        return sum(size_of(each) for each in value)
    size_bytes = getattr(value, "nbytes", 0)
    return size_bytes if isinstance(size_bytes, int) else 0


def _describe(owner: Any) -> Group:
    import torch.distributed as dist  # already imported by the training

    ranks = dist.get_process_group_ranks(owner)
    purpose = getattr(owner, "group_desc", "") or ""
    number = str(getattr(owner, "group_name", ""))[:NAME_CHARACTERS]
    known = "" if purpose == "undefined" else f"{purpose} "
    return Group(f"{known}{ranks_text(ranks)} ({number})", len(ranks))


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as short as possible.

    >>> ranks_text([0, 1, 2, 3]), ranks_text([1, 5, 9]), ranks_text([0, 3, 4])
    ('0-3', '1-9:4', '0,3,4')
    """
    first, last, count = ranks[0], ranks[-1], len(ranks)
    stride = ranks[1] - first if count > 1 else 1
    if count > 2 and stride > 0 and list(ranks) == list(range(first, last + 1, stride)):  # noqa: PLR2004  # two are listed
        return f"{first}-{last}" + (f":{stride}" if stride > 1 else "")
    listed = ",".join(map(str, ranks[:MOST_LISTED_RANKS]))
    return listed if count <= MOST_LISTED_RANKS else f"{listed},... {count} ranks to {last}"


_of_recorder: WeakKeyDictionary[Recorder, Collectives] = WeakKeyDictionary()


def collectives_of(recorder: Recorder) -> Collectives:
    """Return the Collectives of this recorder, shared by all frameworks of the process."""
    collectives = _of_recorder.get(recorder)
    if collectives is None:
        collectives = _of_recorder[recorder] = Collectives(recorder)
    return collectives

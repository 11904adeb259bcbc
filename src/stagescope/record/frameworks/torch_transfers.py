"""Sends and receives of torch.distributed outside of the schedules whose transfers are recorded with their actions.

A pipeline that is written by hand calls ``dist.send``, ``dist.irecv`` or ``dist.batch_isend_irecv``. All of them go
through the methods ``send``, ``recv`` and ``recv_anysource`` of ProcessGroup, and wait with ``Work.wait``. What they
move is unknown, so their kinds are ``send`` and ``recv``, without stage and micro-batch. The name is ``send in
<group>``, with the tag unless that is 0, and the number counts the earlier transfers with this group, tag, sender and
receiver: messages do not overtake one another, so these identify a message on both ranks.

A process that transfers tensors before it has begun a step or marked a span may be setting up its communication, as
DeepSpeed does. Such transfers are kept until it does something else that is recorded, and discarded by the first step.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import collectives_of, size_of
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.works import works_of
from stagescope.record.hooks import prepared
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from stagescope.record.calls import Call, Signature
    from stagescope.record.frameworks.groups import Group
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

SEND, RECV = BY_NAME["send"].code, BY_NAME["recv"].code
MOST_UNDER_WAY = 1024
"""Transfers that are kept until they are waited for; the oldest ones are then recorded without a wait."""

MOST_EARLY = 64
"""Transfers before anything else was recorded that are kept; a process with more of them is training."""

MOST_TAGS = 256
"""Tags of a group that are named and counted separately."""


class Transfer(NamedTuple):
    """A send or receive that was issued: everything about it but its wait. `peer` is the rank in the group."""

    kind: int
    group: Group
    peer: int
    tag: int
    size_bytes: int
    step: int
    start_ns: int
    end_ns: int


class Numbers:
    """Numbers the transfers of this process by group, tag, direction and peer."""

    def __init__(self) -> None:
        self._next: defaultdict[tuple[str, int, int, int], Iterator[int]] = defaultdict(itertools.count)
        self._tags: defaultdict[str, set[int]] = defaultdict(set)

    def known_tag(self, group: Group, tag: int) -> int:
        """Return the tag, or `NONE` for all that come after the first `MOST_TAGS` of a group."""
        tags = self._tags[group.text]
        if tag in tags or len(tags) < MOST_TAGS:
            tags.add(tag)
            return tag
        return NONE

    def number(self, transfer: Transfer, peer: int) -> int:
        """Return the number of a transfer; call this in the order in which transfers were issued."""
        return next(self._next[transfer.group.text, transfer.tag, transfer.kind, peer])


class PlainTransfers:
    """Records the transfers of one process that no schedule accounts for."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.works = works_of(recorder)
        self._collectives = collectives_of(recorder)
        self._numbers = Numbers()
        self._under_way: dict[int, list[tuple[Transfer, int]]] = {}
        self._batches = itertools.count()
        self._coalesced: list[tuple[Transfer, int]] | None = None
        self._early: list[Callable[[], object]] = []
        recorder.in_child.append(self._begin_in_child)
        recorder.unfinished.extend(((self._early, self._forget_early), (self._under_way, self.close)))
        recorder.at_end.insert(0, self._emit_early)

    @property
    def has_early(self) -> bool:
        """Whether transfers are kept until this process does something else that is recorded."""
        return bool(self._early or self._under_way)

    def ignores(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a transfer is certainly not to be recorded."""
        del arguments
        recorder = self.recorder
        return not recorder.enabled or recorder.is_in_run

    @prepared
    def watch(self, signature: Signature) -> Transmission:
        """Observe ``send``, ``recv`` or ``recv_anysource`` of a ProcessGroup, which return a handle."""
        return Transmission(self, SEND if signature.name == "send" else RECV)

    def observe(self, call: Call) -> Observation:
        """Observe a function that has the arguments of one of these methods."""
        transmission = Transmission(self, SEND if call.name == "send" else RECV)
        state = transmission.begin(tuple(call.arguments), dict(call.keywords))
        work = yield
        transmission.end(state, work)

    def begin(self, kind: int, owner: Any, tensors: Any, tag: int) -> Transfer:
        """Return a transfer in a process group that is being issued."""
        group = self._collectives.group_of(owner)
        return Transfer(
            kind, group, NONE, self._numbers.known_tag(group, tag), size_of(tensors), self.recorder.step, now_ns(), 0
        )  # fmt: skip

    def end(self, issue: Transfer, peer: int, work: object) -> int:
        """Note the handle of a transfer that was issued, and its peer in the group; `NONE` if it is yet unknown.

        Returns the number of what waits for the handle.
        """
        transfer = issue._replace(peer=peer, end_ns=now_ns())
        number = NONE if peer == NONE else self._numbers.number(transfer, peer)
        if self._coalesced is None:
            return self._expect(work, [(transfer, number)])
        self._coalesced.append((transfer, number))
        return NONE

    def begin_coalescing(self) -> None:
        """Wait for the transfers that are issued from now on by one handle."""
        self._coalesced = []

    def end_coalescing(self, work: object) -> None:
        """Assign that handle to the transfers that were issued since."""
        coalesced, self._coalesced = self._coalesced, None
        if coalesced:
            self._expect(work, coalesced)

    def close(self) -> None:
        """Record all transfers that were never waited for."""
        for batch in list(self._under_way):
            self.give_up(batch)

    def _begin_in_child(self) -> None:
        """Discard the transfers of the process from which this one was forked."""
        self._under_way.clear()
        self._early.clear()
        self._coalesced = None

    def _forget_early(self) -> None:
        if self.recorder.step != NONE:
            self._early.clear()

    def _expect(self, work: object, transfers: list[tuple[Transfer, int]]) -> int:
        """Record transfers at the end of the wait for their handle; return their number until then."""
        batch = next(self._batches)
        self._under_way[batch] = transfers
        if work is None:
            self.give_up(batch)
            return batch
        self.works.watch(work, partial(self._waited, batch, weakref.ref(work)))
        if len(self._under_way) > MOST_UNDER_WAY:
            self.give_up(next(iter(self._under_way)))
        return batch

    def give_up(self, batch: int) -> None:
        """Record transfers without a wait for them."""
        for transfer, number in self._under_way.pop(batch, ()):
            self._emit(transfer, number, NONE, NONE)

    def _waited(self, batch: int, work: Callable[[], Any], start: Any, end: Any) -> None:
        """Record what a wait was for: gloo blocks the host, NCCL the stream of the device."""
        timer = self.recorder.timer
        for transfer, number in self._under_way.pop(batch, ()):
            found, numbered = transfer, number
            if transfer.peer == NONE:  # it is known only now who has sent this
                found = transfer._replace(peer=work()._source_rank())  # noqa: SLF001  # no public name
                numbered = self._numbers.number(found, found.peer)
            timer.resolve(partial(self._emit, found, numbered), start, end)

    def describe_wait(self, batch: int, _: object) -> Iterator[dict[str, object]]:
        """Yield the transfers that a wait in progress is for, see record/process_state.py."""
        from stagescope.record.process_state import message_facts  # only needed when nothing else happens

        for transfer, _number in list(self._under_way.get(batch, ())):
            yield message_facts(transfer.kind, transfer.start_ns, peer=transfer.group.rank(transfer.peer),
                                name=transfer.group.text)  # fmt: skip

    def _emit(self, transfer: Transfer, number: int, wait_start_ns: int, wait_end_ns: int) -> None:
        recorder = self.recorder
        if recorder.is_training:
            self._emit_early()
            self._record(transfer, number, wait_start_ns, wait_end_ns)
            return
        self._early.append(partial(self._record, transfer, number, wait_start_ns, wait_end_ns))
        if len(self._early) >= MOST_EARLY:
            self._emit_early()

    def _emit_early(self) -> None:
        while self._early:
            self._early.pop(0)()

    def _record(self, transfer: Transfer, number: int, wait_start_ns: int, wait_end_ns: int) -> None:
        kind, group, peer, tag, size_bytes, step, start_ns, end_ns = transfer
        text = ("send" if kind == SEND else "recv") + (f" tag {tag}" if tag > 0 else "")
        self.recorder.emit(
            kind,
            start_ns,
            end_ns if wait_end_ns == NONE else max(wait_end_ns, start_ns),
            peer=group.ranks[peer] if 0 <= peer < len(group.ranks) else NONE,
            size_bytes=size_bytes,
            wait_start_ns=wait_start_ns,
            wait_end_ns=wait_end_ns,
            name=self.recorder.name_id(group.name(text)),
            pair=number,
            step=step,
        )


class Transmission:
    """Watches a method of a process group that sends or receives."""

    def __init__(self, transfers: PlainTransfers, kind: int) -> None:
        self._transfers = transfers
        self._kind = kind
        self.outside_runs = transfers.recorder

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Transfer, int]:
        """Begin a transfer; its peer is the second argument, and its tag the last."""
        owner, tensors, *peer, tag = (*args, *kwargs.values())
        return self._transfers.begin(self._kind, owner, tensors, tag), peer[0] if peer else NONE

    def end(self, state: tuple[Transfer, int], work: Any) -> None:
        """Note the handle of the transfer."""
        self._transfers.end(*state, work)

    def abandon(self, state: Any) -> None:
        """Forget a transfer that failed."""

    def describe(self, state: tuple[Transfer, int]) -> dict[str, object]:
        """Return the transfer that is being issued, see record/process_state.py."""
        from stagescope.record.process_state import message_facts  # only needed when nothing else happens

        transfer, peer = state
        rank = None if peer == NONE else transfer.group.rank(peer)
        return message_facts(transfer.kind, transfer.start_ns, peer=rank, name=transfer.group.text)


def plain_transfers_of(recorder: Recorder) -> PlainTransfers:
    """Return the PlainTransfers of this recorder."""
    return shared(recorder, PlainTransfers, recorder)

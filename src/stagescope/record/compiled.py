"""Plain calls in C, where the extension of native/ has been built; see docs/decisions/0020-plain-calls-are-compiled.md.

Each wrapper in C is in front of one in wrappers.py. It records the calls of which nothing is unusual, and leaves
all others to that one. Without the extension, there are only those in Python, which record the same.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Protocol

from stagescope.record.records import LANE_OF_CODE
from stagescope.record.signal_handlers import is_of_signal_handler
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device import Device
    from stagescope.record.emitter import Emitter
    from stagescope.record.frameworks.megatron_messages import Exchanges
    from stagescope.record.frameworks.torch_actions import ActionRanges
    from stagescope.record.garbage import Collections
    from stagescope.record.hooks import Creation, Function, Guard, Issues, Timed, Waits

    Parts = tuple[str, tuple[Any, ...], tuple[int, ...]]

INTERFACE = 8
"""Of the extension that belongs to this file: one that was built from other sources is not used."""

VARIABLE = "STAGESCOPE_COMPILED"
"""With 0 in it, all wrappers are those in Python."""

MONOTONIC_NS = time.monotonic_ns if isinstance(time.monotonic_ns, BuiltinFunctionType) else None
"""The clock that the extension reads. Where the recorder is given another one, nothing is left to the extension."""

KINDS, NO_LANE = 256, 255
_RECEIVE_OF_ACTION = {
    BY_NAME[action].code: BY_NAME[receive].code
    for action, receive in (
        ("forward", "recv_forward"), ("backward", "recv_backward"), ("backward_input", "recv_backward"),
    )
}  # fmt: skip


class Ring(Protocol):
    """Records that wait for the writer, packed, at most `most`; see native/ring.c. `dropped` spans did not fit."""

    dropped: int
    most: int

    def append(self, span: tuple[Any, ...], /) -> None:
        """Append a span in one of the forms of waiting.py."""

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self) -> bytes:
        """Return all records, and forget them."""

    def clear(self) -> None:
        """Forget all records."""


class Pending(Protocol):
    """The messages that are under way; see native/pending.c.

    `receives` and `last_receive` state how many receives were waited for, and the moment at which the last one ended.
    `take_over` is called before something is left to Python, if there are any. The waits for handles of a `known_class`
    are observed.
    """

    receives: int
    last_receive: Any
    take_over: Callable[[], None]
    known_class: type | None

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return and forget all messages, those created and those issued.

        Each is the address of the operation or handle, a weak reference to it, and the message; one that was issued has
        the step, the start and the end of its issue besides.
        """

    def clear(self) -> None:
        """Forget all messages."""


class Transfers(Protocol):
    """The messages of Megatron-core that are under way, and received ones no action has taken; see native/transfers.c.

    `is_on` states that a schedule is running whose messages are recorded; messages without an action have the `stage`
    and the `chunk`. The stages of the `chunks` of this rank follow from its `rank` among the `ranks` of the pipeline;
    there are 0 if they are unknown. `take_over` is called before something is left to Python, if there is any message.
    The waits for handles of a `known_class` are observed.
    """

    is_on: bool
    stage: int
    chunk: int
    chunks: int
    rank: int
    ranks: int
    take_over: Callable[[], None]
    known_class: type | None

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self) -> list[tuple[Any, ...]]:
        """Return and forget all of them, in order.

        Each has the address of a handle and a weak reference to it, or None twice; the same of a tensor; kind, rank at
        the other end, bytes and step; stage, micro-batch and chunk; start and end of the issue, and of the wait.
        """


class DeviceRecords(Protocol):
    """Records whose times a device has yet to report; see native/device.c.

    Wrappers in C mark the begin and the end of actions with events. They leave an action to Python from
    `ready_until_ns` on, after a `late` anchor has happened, with `most` records, and if no mark is `free`. `looked_ns`
    is a moment at which that anchor had not happened.
    """

    ready_until_ns: int
    looked_ns: int
    late: Any
    most: int
    free: int

    def __len__(self) -> int:
        """Return how many there are."""

    def collect(self, every: bool, /) -> int:  # noqa: FBT001  # of the extension
        """Move those whose times are known to the ring; return how many others the device has completed.

        Stops at the first that it has not completed, unless `every` is set. Raises RuntimeError for an error of the
        driver and ValueError for a time that is not possible; what has none is then dropped.
        """

    def clear(self) -> int:
        """Forget all of them, and return how many there were."""

    def take_dropped(self) -> int:
        """Return how many were dropped since the last call."""

    def append(self, event: Any, /) -> None:
        """Take an event for one more mark."""

    def add_anchor(self, anchor: Any, event: Any, device_ns: int, host_ns: int, /) -> None:
        """Add an anchor, which follows those before."""


class Moves(Protocol):
    """The transfer of DeepSpeed's engine that is in progress; see native/moves.c.

    `is_known` states that all instructions of the engine are observed, `is_paused` that what is moved now is no part of
    the transfer. While a batch of the `engine` is running, its `stage` is known, and the `mirror` that DualPipeV has
    besides. `take_over` returns the Transfer that Python follows from then on, if something is left to it.
    """

    is_known: bool
    is_paused: bool
    engine: object
    stage: int
    mirror: int
    take_over: Callable[..., object]

    def clear(self) -> None:
        """Forget the transfer."""


class Places(Protocol):
    """Values by the identity of an object, see native/places.c and `IdentityMap` in frameworks/runs.py."""

    def keep(self, owner: object, value: Any, /) -> None:
        """Store `value` for an object; does nothing for None."""

    def find(self, owner: object, default: Any = None, /) -> Any:
        """Return the value of an object."""

    def clear(self) -> None:
        """Remove everything."""


@functools.cache
def extension() -> Any:
    """Return the module _plain, None without it."""
    is_free_threaded = "t" in getattr(sys, "abiflags", "")
    if os.environ.get(VARIABLE) == "0" or is_free_threaded:
        return None
    try:
        from stagescope.record import _plain  # type: ignore[attr-defined]  # not everywhere
        from stagescope.record.emitter import Emitter
        from stagescope.record.frameworks.host_activities import HostActivities
        from stagescope.record.hooks import Guard

        if _plain.INTERFACE != INTERFACE:
            return None
        _plain.use_slots(Emitter, Guard, HostActivities)
        _plain.use_signal_handlers(is_of_signal_handler)
    except Exception:  # noqa: BLE001  # built for another version of Python: the wrappers in Python do the same
        return None
    return _plain


def ring() -> Ring | None:
    """Return an empty ring; None without the extension."""
    plain = extension()
    lanes = bytes(LANE_OF_CODE.get(code, NO_LANE) for code in range(KINDS))
    return None if plain is None else plain.Ring(lanes)


def ring_of(recorder: object) -> Ring | None:
    """Return the ring of a recorder, None if it has another queue."""
    waiting = getattr(recorder, "waiting", None)
    return waiting if hasattr(waiting, "take") else None


def pending(recorder: Emitter) -> Pending | None:
    """Return where messages under way are noted; None without the extension."""
    own = ring_of(recorder)
    if own is None:
        return None
    receives = bytes(_RECEIVE_OF_ACTION.get(code, 0) for code in range(KINDS))
    return extension().Pending(recorder, own, receives)  # type: ignore[no-any-return]


def transfers(recorder: Emitter) -> Transfers | None:
    """Return where messages of Megatron-core under way are noted; None without the extension."""
    own = ring_of(recorder)
    return None if own is None else extension().Transfers(recorder, own)


def driver_events(addresses: tuple[int, ...]) -> type | None:
    """Return the class of events that uses functions of CUDA's driver at these addresses; None without the extension.

    The functions are those of devices/cuda_driver.py, in that order.
    """
    plain = extension()
    if plain is None:
        return None
    plain.use_driver(addresses)
    return plain.Event  # type: ignore[no-any-return]


def device_records(recorder: Emitter, device: Device) -> DeviceRecords | None:
    """Return where the records of a device are noted; None without the extension, or for a device of other events."""
    own, streams = ring_of(recorder), getattr(device, "streams", None)
    if own is None or streams is None:
        return None
    from stagescope.record.devices.marks import Mark  # not needed without a device

    find_stream, index = streams
    return extension().DeviceRecords(own, find_stream, index, Mark, device.resolution_ns)  # type: ignore[no-any-return]


def moves(recorder: Emitter) -> Moves | None:
    """Return what wrappers in C know of DeepSpeed's transfers; None without the extension."""
    return None if ring_of(recorder) is None else extension().Moves()


def places() -> Places | None:
    """Return an empty IdentityMap that wrappers in C can use; None without the extension."""
    plain = extension()
    return None if plain is None else plain.Places()


def collections(recorder: Emitter, shortest_ns: int) -> Collections | None:
    """Return what keeps the times of garbage collections that take this long or longer; None without the extension."""
    own = ring_of(recorder)
    return None if own is None else extension().Collections(recorder, shortest_ns)


def plain_wrapper(original: Function, general: Function, watch: Any, guard: Guard) -> Function:
    """Return a wrapper in C in front of `general`, or that itself if there is none for its `watch`."""
    find = _PARTS.get(type(watch).__name__, _of_watch)
    parts = find(watch, guard) if extension() is not None else None
    if parts is None:
        return general
    kind, refs, numbers = parts
    return extension().wrapper(kind, original, general, refs, numbers)  # type: ignore[no-any-return]


def range_maker(
    general: Function, made: type, original: type, ranges: ActionRanges, guard: Guard
) -> Function:
    """Return what makes an object of the class `made`: one of `original` for a text in `unseen` or `pairs` of `ranges`.

    A pair begins where its object is made, and ends where the next one is, unless the guard is off. Where the methods
    of stages certainly compute all actions, the object for the name of a single one is of `original`, too.
    """
    plain = extension()
    if plain is None:
        return general
    refs = (made, original, ranges.unseen, ranges.pairs, ranges.recorder, guard)
    maker = plain.wrapper("range", original, general, refs, ())
    ranges.on_customized = functools.partial(plain.use_maker, maker)
    ranges.on_customized(ranges.are_certain)
    return maker  # type: ignore[no-any-return]


def calls_in_progress(thread: int) -> list[tuple[Any, int | None, int]]:
    """Return the calls of a thread that wrappers in C are making, the innermost first.

    Each is an action, None and its start; or a message, the start of its issue, and that of the wait for it.
    """
    plain = extension()
    return [] if plain is None else plain.in_progress(thread)


def _of_timed(timed: Timed, guard: Guard) -> Parts | None:
    method, actions = timed.method, timed.actions
    own = ring_of(actions.recorder)
    if timed.usual is not None and own is not None:
        kind, known, numbers = timed.usual
        return kind, (actions.recorder, guard, own, actions, *known), numbers
    if method is None or own is None:
        return None
    refs = (
        actions.recorder, guard, own, actions, actions.expected, timed.possible, method.chunks, method.kinds,
        method.kind, actions.pending,
    )  # fmt: skip
    return "action", refs, (method.stage_at, method.microbatch_at, method.is_certain)


def _of_creation(creation: Creation, guard: Guard) -> Parts | None:
    recorder, kind, microbatch_at, messages, see = creation
    if messages is None:
        return None
    return "creation", (recorder, guard, messages, _guarded(see, guard)), (microbatch_at, kind)


def _of_issues(issues: Issues, guard: Guard) -> Parts | None:
    recorder, _, issued, messages, known = issues
    if messages is None:
        return None
    return "issue", (recorder, guard, messages, *known, _guarded(issued, guard)), ()


def _of_waits(waits: Waits, guard: Guard) -> Parts | None:
    if waits.pending is None or waits.ended is None:
        return None
    return "wait", (guard, waits.values, waits.pending, _guarded(waits.ended, guard), waits.transfers), ()


def _of_exchanges(exchanges: Exchanges, guard: Guard) -> Parts | None:
    messages, kinds = exchanges.messages, exchanges.kinds
    if messages.transfers is None:
        return None
    refs = (
        messages.recorder, guard, messages.transfers, messages.runs, messages.places, messages.works.classes,
        _guarded(exchanges.take, guard),
    )  # fmt: skip
    return "exchange", refs, (*kinds, exchanges.is_in_order)


def _of_watch(watch: Any, guard: Guard) -> Parts | None:
    usual = getattr(watch, "usual", None)
    if usual is not None:
        kind, known, numbers = usual
        return kind, (watch.recorder, guard, ring_of(watch.recorder), watch, *known), numbers
    recorder = getattr(watch, "outside_runs", None)
    return None if ring_of(recorder) is None else ("outside_runs", (recorder, guard), ())


_PARTS: dict[str, Callable[[Any, Guard], Parts | None]] = {
    "Timed": _of_timed,
    "Creation": _of_creation,
    "Issues": _of_issues,
    "Waits": _of_waits,
    "Exchanges": _of_exchanges,
}
"""What a wrapper in C needs, by the class of what sees the calls: its kind, and what the enums of that kind declare."""


def _guarded(function: Callable[..., None], guard: Guard) -> Callable[..., None]:
    """Return a function whose errors the guard catches."""

    def call(*args: Any) -> None:
        try:
            if not guard.is_off:
                function(*args)
        except Exception as error:  # noqa: BLE001  # the training must go on
            guard.caught(error)

    return call

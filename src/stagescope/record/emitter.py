"""Where the training is, and how a span reaches the buffer of its thread.

These attributes are read and written at each action. They are slots of a class of their own: in the dictionary of an
object, each would be in another place of the memory, and the training has evicted all of them from the caches since the
last action.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from contextlib import suppress
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stagescope.record import compiled
from stagescope.record.buffers import LAST_RECORD, RECORD_BYTES, Seen
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.records import (
    LANE_OF_CODE,
    action_tail,
    is_packing_error,
    pack_middle,
    pack_plain,
    pack_span,
    plain_middle,
)
from stagescope.record.waiting import MOST_WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.buffers import ThreadBuffer
    from stagescope.record.compiled import DeviceRecords, Ring
    from stagescope.record.mirrors import Mirrors
    from stagescope.record.timing import Timer
    from stagescope.record.waiting import Ended, Plain

    Action = tuple[int, int, int, int]

MAX_TAILS = 2**10
"""Kinds, chunks and names whose constant bytes each thread keeps."""


class ActionInProgress:
    """What is read and written at each action, in two or three lines of the caches; see `Emitter`."""

    __slots__ = (
        "_computed", "action", "device_records", "enabled", "has_actions", "is_detailed", "is_in_range",
        "is_one_by_one", "mirror", "pair", "plain", "plain_in_range", "plain_middle", "thread_index", "timer",
        "waiting_thread",
    )  # fmt: skip


class Emitter(ActionInProgress):
    """Records spans of the current step.

    * `enabled`: whether it is recording. `on_change` is called when that or the step has changed.
    * `action`: the kind, stage, micro-batch and chunk of the action in progress, None outside of actions.
    * `is_in_range`: set in a range in which a schedule computes an action.
    * `is_one_by_one`: set while collectives are recorded one by one also within an action, as they are everywhere if
      the recording `is_detailed`.
    * `pair`: the number of the overlapping actions in progress.
    * `noted`: where the actions that are computed in such a range are noted, None if nothing asks for them.
    * `plain`: what all actions of this step have in common, while nothing needs to be done for an action but to record
      it: the bytes of `plain_middle` and `thread_index`. None otherwise: what is done for an action then depends on
      all the other attributes. What changes one of those in a way that matters calls `unsettle` afterwards; the next
      action that ends looks at all of them again, see `settle`.
    * `plain_in_range`: the same in a range, in which `plain` is None: what would be `plain`, `pair` and `noted`. It is
      for wrappers in C only; what else ends an action in a range looks at all of these attributes.
    * `device_records`: the records whose times a device has yet to report, where wrappers in C time actions on it; None
      otherwise. `plain` is for those wrappers only then.
    * `has_actions`: whether a framework has computed an action, so that a step without any can be reported. The first
      action of a run states it, which in Python looks at all of the other attributes for that.
    * `is_in_run`, `is_in_marked_step`: set during a run of a schedule, and in a step that the training itself marks.
    * `waiting`: spans that the writer has yet to pack (waiting.py), which are those of the thread `waiting_thread`,
      whose buffer has the index `thread_index`. 0 if no thread leaves its actions there. There are at most
      `most_waiting`.
    * `alone`: whose actions are recorded in this run, if not those of all frameworks (frameworks/runs.py).
    """

    __slots__ = (
        "_step", "alone", "is_in_marked_step", "is_in_run", "last_pair", "local", "most_waiting", "noted",
        "on_change", "seen", "waiting",
    )  # fmt: skip

    timer: Timer

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.on_change: Callable[[], object] = bool
        self._step = NONE
        self.plain_middle = plain_middle(NONE)
        self.mirror: Mirrors | None = None
        self.action: Action | None = None
        self.is_detailed = self.is_one_by_one = self.is_in_range = False
        self._computed: Any = None
        self.plain: Plain | None = None
        self.plain_in_range: tuple[Plain, int, set[Action] | None] | None = None
        self.device_records: DeviceRecords | None = None
        self.pair = NONE
        self.noted: set[Action] | None = None
        self.last_pair = 0
        self.has_actions = False
        self.is_in_run = self.is_in_marked_step = False
        self.alone: object = None
        own = compiled.ring()
        self.waiting: deque[Ended] | Ring = deque() if own is None else own
        self.most_waiting = MOST_WAITING if own is None else own.most
        self.seen = Seen()
        self.begin_empty()

    def begin_empty(self) -> None:
        """Forget the buffers of all threads."""
        self.local = threading.local()
        self.seen.spans = False
        self.waiting.clear()
        self.waiting_thread = self.thread_index = 0
        self.unsettle()

    def unsettle(self) -> None:
        """Let the next action that ends look at everything that may need to be done for it."""
        self.plain = self.plain_in_range = None

    def settle(self) -> None:
        """Set `plain` or `plain_in_range` if nothing needs to be done for an action but to record it."""
        usual = self.enabled and self.action is None and (self.is_in_range or self.pair == NONE)
        is_known = isinstance(self.waiting, deque) or now_ns is compiled.MONOTONIC_NS
        usual = usual and is_known and (self.device_records is not None or self.timer.begin is now_ns)
        if usual and self.mirror is None and self._computed is None:
            middle, _ = plain = self.plain_middle, self.thread_index
            if self.is_in_range:
                self.plain_in_range = plain, self.pair, self.noted
            else:
                self.plain = plain
            if self.plain_middle is not middle or not self.enabled:
                self.unsettle()  # meanwhile another thread has begun a step

    def enter_range(
        self, noted: set[Action] | None, *, is_pair: bool
    ) -> tuple[bool, int, set[Action] | None]:
        """Enter a range in which a schedule computes actions; return what `leave_range` needs.

        Their number is that of the range around it, unless it `is_pair`: of actions that overlap.
        """
        outer = self.is_in_range, self.pair, self.noted
        plain, around = self.plain, self.plain_in_range
        self.unsettle()
        self.is_in_range = self.enabled
        self.noted = noted
        if is_pair:
            self.pair = self.new_pair()
        if plain is not None:
            self.plain_in_range = plain, self.pair, noted
        elif around is not None:
            self.plain_in_range = around[0], self.pair, noted
        return outer

    def leave_range(self, outer: tuple[bool, int, set[Action] | None]) -> None:
        """Leave a range, maybe for the one around it."""
        inside = self.plain_in_range
        self.plain_in_range = None
        self.is_in_range, self.pair, self.noted = outer
        if inside is None:
            return
        if self.is_in_range:
            self.plain_in_range = inside[0], self.pair, self.noted
        elif self.pair == NONE:
            self.plain = inside[0]

    @property
    def stage(self) -> int:
        """Stage of the action in progress."""
        action = self.action
        return NONE if action is None else action[1]

    @property
    def chunk(self) -> int:
        """Chunk of the action in progress."""
        action = self.action
        return NONE if action is None else action[3]

    @property
    def counts_collectives(self) -> bool:
        """Whether collectives are not recorded one by one, because an action is in progress."""
        is_inside = self.action is not None or self.is_in_range
        return is_inside and not (self.is_detailed or self.is_one_by_one)

    def _set_computed(self, moment: Any) -> None:
        if moment is None:
            self._computed = None
        elif self.action is not None or self.is_in_range:
            self._computed = moment
            self.unsettle()

    computed = property(attrgetter("_computed"), _set_computed)
    """The moment of the timer at which the action in progress had computed everything and began to wait for the
    reduction of its gradients, None if it did not. What ends an action sets it to None; outside of actions it stays so.
    """

    def end_reduction(self, before: Action | None) -> None:
        """Continue with the action that was in progress before a reduction of gradients, None if there was none.

        A reduction outside of actions is nothing that the next action waited for.
        """
        self.action = before
        if before is None and not self.is_in_range:
            self._computed = None

    def _set_step(self, step: int) -> None:
        self._step = step
        self.plain_middle = plain_middle(step)
        self.unsettle()
        self.on_change()

    step = property(
        attrgetter("_step"), _set_step
    )  # whose getter is no Python function: it is asked for each action
    """Number of the current training step, `NONE` outside of any step."""

    def enter_step(self, step: int, start: int, stop: int) -> None:
        """Set the step, and record if it is one from `start` to before `stop`."""
        self._step = step
        try:
            self.plain_middle = pack_middle(NONE, NONE, NONE, step)
            self.enabled = start <= step < stop
        except (struct.error, TypeError):
            self.plain_middle, self.enabled = None, False
        self.unsettle()
        self.on_change()

    def switch(self, *, on: bool) -> None:
        """Turn recording on or off."""
        self.enabled = on
        self.unsettle()
        self.on_change()

    @property
    def has_spans(self) -> bool:
        """Whether a span was recorded since the last call of `forget_spans`."""
        return self.seen.spans

    @property
    def is_training(self) -> bool:
        """Whether this process is recording and has begun a step or recorded a span.

        Other processes load data and reduce tensors, too: they must not leave a recording.
        """
        return self.enabled and (self._step != NONE or self.seen.spans)

    def emit(  # noqa: PLR0917  # the fields of one record
        self,
        kind: int,
        start_ns: int,
        end_ns: int,
        stage: int = NONE,
        microbatch: int = NONE,
        chunk: int = NONE,
        peer: int = NONE,
        size_bytes: int = NONE,
        wait_start_ns: int = NONE,
        wait_end_ns: int = NONE,
        name: int = 0,
        pair: int = NONE,
        step: int | None = None,
    ) -> None:
        """Record one span of `step` (default: the current step) on the lane that its kind belongs to."""
        if self.waiting_thread == get_ident() and len(self.waiting) < self.most_waiting:
            self.seen.spans = True
            number = self._step if step is None else step
            self.waiting.append((start_ns, end_ns, wait_start_ns, wait_end_ns, size_bytes, number, stage, microbatch,
                                 peer, pair, name, chunk, self.thread_index, kind))  # fmt: skip
            return
        try:
            buffer = self.local.buffer
        except AttributeError:
            buffer = self._new_buffer()
        chunk_of_records = buffer.chunk or buffer.find_space()
        if chunk_of_records is None:
            return
        used = chunk_of_records.used
        try:
            pack_span(chunk_of_records.data, used, start_ns, end_ns, wait_start_ns, wait_end_ns, size_bytes,
                       self._step if step is None else step, stage, microbatch, peer, pair, name, chunk,
                       buffer.index, kind, LANE_OF_CODE[kind])  # fmt: skip
        except Exception as error:  # a value that does not fit its field must not stop the training
            if used <= LAST_RECORD:
                buffer.dropped += 1
                if is_packing_error(error):
                    return
                raise
            buffer.turn_over()  # still full, because `Span.__exit__` does not turn chunks over
        else:
            if chunk_of_records.used == used:
                self.seen.spans = True
                chunk_of_records.used = used + RECORD_BYTES
                if used == LAST_RECORD:
                    buffer.turn_over()
                return
        self.emit(  # retry in the next chunk, or after a signal handler recorded a span in the same slot
            kind,
            start_ns,
            end_ns,
            stage,
            microbatch,
            chunk,
            peer,
            size_bytes,
            wait_start_ns,
            wait_end_ns,
            name,
            pair,
            step,
        )

    def emit_action(  # noqa: PLR0917  # as in emit
        self, kind: int, start_ns: int, end_ns: int, stage: int, microbatch: int, chunk: int, name: int = 0
    ) -> None:
        """Record one action of the current step, or a span of one of few names, as `emit` does, in less time."""
        if self.waiting_thread == get_ident() and len(self.waiting) < self.most_waiting:
            self.seen.spans = True
            middle, thread = self.plain_middle, self.thread_index
            self.waiting.append((start_ns, end_ns, middle, stage, microbatch, thread, kind, chunk, name))
            return
        buffer: Any = None
        try:
            buffer = self.local.buffer
            tail = buffer.action_tails[kind, chunk, name]
            records: Any = buffer.chunk
            used = records.used  # signal handlers do not run between this line and the packing
            pack_plain(records.data, used, start_ns, end_ns, self.plain_middle, stage, microbatch, tail)
        except Exception as unusual:  # first action of a thread, full records, a value that does not fit
            if not is_packing_error(unusual):
                if buffer is not None:
                    buffer.dropped += 1
                raise
        else:
            if records.used == used:  # otherwise a signal handler has recorded a span in the same slot
                buffer.seen.spans = True
                records.used = used + RECORD_BYTES
                return
        self.emit(kind, start_ns, end_ns, stage, microbatch, chunk, NONE, NONE, NONE, NONE, name)
        self._keep_tail(kind, chunk, name)

    def _keep_tail(self, kind: int, chunk: int, name: int) -> None:
        """Prepare for more actions of this thread, of the same kind, chunk and name."""
        buffer = self.local.buffer
        if len(buffer.action_tails) < MAX_TAILS:
            with suppress(
                LookupError, TypeError, ValueError, struct.error
            ):  # no kind or chunk; `emit` has counted it
                buffer.action_tails[kind, chunk, name] = action_tail(buffer.index, kind, chunk, name)

    def expect_spans(self) -> None:
        """Start the writer now, for spans whose times become known only later."""
        if not hasattr(self.local, "buffer"):
            self._new_buffer()

    def drop(self, count: int) -> None:
        """Count `count` spans that were timed but cannot be recorded."""
        if not count:
            return
        try:
            buffer = self.local.buffer
        except AttributeError:
            buffer = self._new_buffer()
        buffer.dropped += count

    def new_pair(self) -> int:
        """Return a new number that marks two actions as overlapping."""
        self.last_pair += 1
        return self.last_pair

    def _new_buffer(self) -> ThreadBuffer:
        """Return a new buffer for the calling thread."""
        raise NotImplementedError

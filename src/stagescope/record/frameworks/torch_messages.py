"""Sends and receives of torch.distributed.pipelining, from their issue to the end of the wait for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

TAG = "_stagescope"
_RECEIVES = {BY_NAME["recv_forward"].code, BY_NAME["recv_backward"].code}


class Message(NamedTuple):
    """One tensor to send or receive. Each P2POp is tagged with one."""

    kind: int
    stage: int
    microbatch: int
    peer: int
    size_bytes: int


class Issued(NamedTuple):
    """A message whose operation has been issued, and the step it belongs to."""

    message: Message
    step: int
    start_ns: int
    end_ns: int


class Messages:
    """Follows each message from the stage method that creates it to the wait that ends it."""

    SOURCES = {  # noqa: RUF012  # a constant
        "get_fwd_recv_ops": BY_NAME["recv_forward"].code,
        "get_fwd_send_ops": BY_NAME["send_forward"].code,
        "get_bwd_recv_ops": BY_NAME["recv_backward"].code,
        "get_bwd_send_ops": BY_NAME["send_backward"].code,
    }
    """The stage methods that create the operations, and the kind of span of each."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.receives = 0
        self.last_receive: Any = None
        self._under_way: dict[int, tuple[object, list[Issued]]] = {}

    def tag_operations(self, kind: int) -> Callable[[Function], Function]:
        """Return the wrapper of a ``get_*_ops`` method, which tags each operation with its message."""

        def make(original: Function) -> Function:
            def get_ops(stage: Any, chunk_id: int) -> Any:
                operations = original(stage, chunk_id)
                if self.recorder.enabled:
                    for operation in operations:
                        tensor = operation.tensor
                        size_bytes = tensor.numel() * tensor.element_size()
                        message = Message(kind, stage.stage_index, chunk_id, operation.peer, size_bytes)
                        setattr(operation, TAG, message)
                return operations

            return get_ops

        return make

    def watch_issue(self, original: Function) -> Function:
        """Return the wrapper of ``_batch_p2p``, which remembers the messages of each handle."""

        def _batch_p2p(p2p_ops: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.recorder.enabled:
                return original(p2p_ops, *args, **kwargs)
            start_ns = now_ns()
            works = original(p2p_ops, *args, **kwargs)
            end_ns = now_ns()
            issued = [
                Issued(message, self.recorder.step, start_ns, end_ns)
                for message in (getattr(operation, TAG, None) for operation in p2p_ops)
                if message is not None
            ]
            if issued and len(works) == len(issued):
                for work, one in zip(works, issued, strict=True):
                    self._under_way[id(work)] = (work, [one])
            elif issued and works:  # a coalesced batch has one handle for all
                self._under_way[id(works[0])] = (works[0], issued)
            return works

        return _batch_p2p

    def watch_wait(self, original: Function) -> Function:
        """Return the wrapper of ``_wait_batch_p2p``, which waits for the handles one by one and times each wait.

        Gloo blocks the host. NCCL makes the compute stream wait and returns immediately, so the wait is timed on that
        stream: from the end of its preceding work until it continues.
        """

        def _wait_batch_p2p(work: Any) -> Any:
            if not self.recorder.enabled or not self._under_way:
                return original(work)
            timer = self.recorder.timer
            start = timer.begin()
            for handle in work:
                original([handle])
                end = timer.begin()
                for issued in self._under_way.pop(id(handle), (None, ()))[1]:
                    if issued.message.kind in _RECEIVES:
                        self.receives += 1
                        self.last_receive = end
                    timer.resolve(partial(self._emit, issued), start, end)
                start = end
            return None

        return _wait_batch_p2p

    def close(self) -> None:
        """Record the messages without a wait, and discard them."""
        for _, unwaited in list(self._under_way.values()):
            for issued in unwaited:
                self._emit(issued, NONE, NONE)
        self._under_way.clear()

    def _emit(self, issued: Issued, wait_start_ns: int, wait_end_ns: int) -> None:
        message = issued.message
        end_ns = issued.end_ns
        if message.kind in _RECEIVES and wait_end_ns != NONE:
            end_ns = wait_end_ns
        self.recorder.emit(
            message.kind,
            issued.start_ns,
            end_ns,
            message.stage,
            message.microbatch,
            NONE,
            message.peer,
            message.size_bytes,
            wait_start_ns,
            wait_end_ns,
            step=issued.step,
        )

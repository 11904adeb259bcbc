"""Gradient reductions of DistributedDataParallel, whose C++ reducer issues them during the last backward.

Nothing of them passes through Python. What is observed instead (torch/csrc/distributed/c10d/reducer.cpp):

* The reducer puts the gradients into buckets and issues the reduction of a bucket when its last gradient is ready. It
  keeps when each gradient was ready (``get_backward_stats``).
* At the end of the backward, a callback that it has queued in the autograd engine waits for all buckets. The engine
  runs callbacks in the order in which they were queued. Ours is queued when the gradient of the model's first
  parameter arrives, which is before the reducer queues its own: it runs when everything has been computed. It queues
  another one, which runs when everything has been reduced.

A backward that contains a reduction ends, as an action, where the wait for the reduction begins.

Whether a backward reduces is decided before it, by ``Reducer.prepare_for_backward``: DDP calls it in a forward outside
of ``no_sync``, and torch.distributed.pipelining before the last backward of a step, inside ``no_sync`` or not.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.frameworks.reductions import ALL_REDUCE, Buckets, place_of, record_buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagescope.record.frameworks.collectives import Collectives
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches


class Replica:
    """Observes the reductions of one DistributedDataParallel, without keeping it alive."""

    def __init__(self, collectives: Collectives, model: Any) -> None:
        self.collectives = collectives
        self.recorder = collectives.recorder
        self._model: Callable[[], Any] = weakref.ref(model)
        self._first_bucket: tuple[int, ...] = ()
        self._size_bytes = 0
        self._reduces: bool | None = None
        self._arrived_ns = 0
        self._computed_ns = 0
        self._computed: Any = None
        self._then: Any = None
        self._at_end: Any = None

    def install(self, model: Any, guard: Guard, patches: Patches) -> None:
        """Observe the arrival of the gradient of the model's first parameter, unless this is the only replica."""
        from torch.autograd.graph import get_gradient_edge  # already imported by the training

        parameters = model._module_parameters  # noqa: SLF001  # the parameters that the reducer numbers
        if not parameters or self.collectives.group_of(model.process_group).size <= 1:
            return
        self._size_bytes = sum(parameter.nbytes for parameter in parameters)
        self._then, self._at_end = guard.callback(self._wait_begins), guard.callback(self._wait_ends)
        arrives = guard.callback(self._gradient_arrives)
        handle = get_gradient_edge(parameters[0]).node.register_prehook(arrives)
        patches.on_undo(handle.remove)

    @property
    def exists(self) -> bool:
        """Whether the model exists."""
        return self._model() is not None

    def prepare(self, reducer: Any) -> None:
        """Note that the next backward reduces, if `reducer` is the one of this model."""
        model = self._model()
        if model is not None and model.reducer is reducer:
            self._reduces = True

    def _gradient_arrives(self, gradients: Any) -> None:
        del gradients
        self.collectives.bucket_waits.end(self)
        model = self._model()
        if model is None:
            return
        # Unknown: this version of torch has no method to observe.
        reduces = model.require_backward_grad_sync if self._reduces is None else self._reduces
        if self.recorder.is_training and reduces:
            self._arrived_ns = now_ns()
            _engine().queue_callback(self._then)

    def _wait_begins(self) -> None:
        self._computed, self._computed_ns = self.recorder.timer.begin(), now_ns()
        model = self._model()
        if model is not None:
            self.collectives.bucket_waits.begin(
                self, self.collectives.group_of(model.process_group), ALL_REDUCE
            )
        _engine().queue_callback(self._at_end)

    def _wait_ends(self) -> None:
        end, end_ns = self.recorder.timer.begin(), now_ns()
        self.collectives.bucket_waits.end(self)
        self._reduces = None if self._reduces is None else False
        model = self._model()
        if model is None:
            return
        ready_ns = self._ready_ns(model.reducer.get_backward_stats())
        computed = self._computed
        if getattr(model, "_comm_hooks", None) and self.recorder.timer.device is None:
            # A communication hook of the training runs inside the backward, after the last gradient.
            computed = self._computed_ns = min(self._computed_ns, max(ready_ns))
        bucket = self._first_bucket_of(model, ready_ns)
        start_ns = max(ready_ns[place] for place in bucket) if bucket else self._computed_ns
        place, start_ns = place_of(self.recorder), min(start_ns, self._computed_ns)
        buckets = Buckets(self._size_bytes, place, start_ns, end_ns, computed, end)
        record_buckets(self.collectives, self.collectives.group_of(model.process_group), buckets)
        self.recorder.computed = computed

    def _ready_ns(self, stats: list[int]) -> list[int]:
        """Return when each gradient was ready, on the clock of the recorder: `stats` are relative to each other."""
        return [self._arrived_ns + (ready_ns - stats[0]) for ready_ns in stats]

    def _first_bucket_of(self, model: Any, ready_ns: list[int]) -> tuple[int, ...]:
        """Return the parameters of the bucket that this backward reduced first; none if they are unknown.

        In the first backward all parameters are in a single bucket. Then the reducer fills buckets in the order in
        which the gradients were ready. If some parameters may be unused, it keeps buckets in reverse order of the
        parameters instead.
        """
        sizes = [parameter.nbytes for parameter in model._module_parameters]  # noqa: SLF001  # as above
        if len(sizes) != len(ready_ns):
            return ()
        found, places = self._first_bucket, range(len(sizes))
        if model.find_unused_parameters and not model.static_graph:
            found = self._first_bucket = found or _buckets(places, sizes, _limits(model))[-1]
        elif not found:
            in_order = sorted(places, key=ready_ns.__getitem__)
            self._first_bucket = _buckets(in_order, sizes, _limits(model))[0]
            found = tuple(places)
        return found


def _limits(model: Any) -> list[int]:
    """Return the sizes in bytes of the buckets; the last one is that of all further buckets."""
    import torch.distributed as dist  # already imported by the training

    given = list(getattr(model, "bucket_bytes_cap_list", ()))  # from torch 2.13 on
    whole = model.bucket_bytes_cap
    is_default = getattr(model, "bucket_bytes_cap_default", True)
    return given or [dist._DEFAULT_FIRST_BUCKET_BYTES if is_default else whole, whole]  # noqa: SLF001  # its only name


def _buckets(places: Sequence[int], sizes: Sequence[int], limits: Sequence[int]) -> list[tuple[int, ...]]:
    """Return parameters in buckets: each is full when it has reached its size.

    >>> _buckets([2, 1, 0], [5, 1, 1], [2, 4])
    [(2, 1), (0,)]
    """
    buckets: list[list[int]] = [[]]
    filled = 0
    for place in places:
        if filled >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
            filled = 0
        buckets[-1].append(place)
        filled += sizes[place]
    return [tuple(bucket) for bucket in buckets]


def _engine() -> Any:
    from torch.autograd import Variable  # already imported by the training

    return Variable._execution_engine  # noqa: SLF001  # its only name

"""Gradient reductions of Paddle in hooks of parameters: of ``paddle.DataParallel`` and of sharding stage 3.

Those of ``paddle.DataParallel`` are issued by its C++ reducer during the backward.

Nothing of them passes through Python. What is observed instead (paddle/fluid/distributed/collective/reducer.cc):

* The reducer puts the gradients into buckets, in reverse order of the parameters, and issues the reduction of a bucket
  when its last gradient is there. When the last gradient of all is there, it waits for all buckets. It does so in a
  backward hook of each parameter, which is registered when the reducer is made.
* A gradient hook of a parameter (``register_hook``) runs before that, a backward hook that is registered later
  (``_register_backward_hook``) after it. The last gradient of a backward arrives between the computation and the wait.

A backward that contains a reduction ends, as an action, where the wait for the reduction begins.

A backward reduces if ``EagerReducer.prepare_for_backward`` was called since the last one: by a forward outside of
``no_sync``.

Sharding stage 3 (``GroupShardedStage3._get_allreduce_fn``) reduces each gradient in a backward hook of its parameter,
by ``paddle.distributed.all_reduce``. Hooks that are registered before and after it show which collectives these are.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.paddle_transfers import size_of
from stagescope.record.frameworks.reductions import ALL_REDUCE, Buckets, place_of, record_buckets

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.frameworks.collectives import Collectives
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches


class Replica:
    """Observes the reductions of one ``paddle.DataParallel``, without keeping it alive."""

    def __init__(self, collectives: Collectives, model: Any) -> None:
        self._collectives = collectives
        self._recorder = collectives.recorder
        self._model: Callable[[], Any] = weakref.ref(model)
        self._owner = model.group.process_group
        self._first: frozenset[int] = frozenset()
        self._parameters: frozenset[int] = frozenset()
        self._size_bytes = 0
        self._reduces = False
        self._arrived: set[int] = set()
        self._reduced: set[int] = set()
        self._start_ns = self._computed_ns = self._end_ns = 0
        self._place = (NONE, NONE, NONE, NONE)
        self._computed: Any = None
        self._end: Any = None

    def install(self, guard: Guard, patches: Patches) -> None:
        """Observe the arrival of all gradients that the reducer numbers, unless this is the only replica."""
        model = self._model()
        if self._collectives.group_of(self._owner).size <= 1:
            return
        parameters = reduced_parameters(model)
        self._parameters = frozenset(range(len(parameters)))
        self._first = frozenset(model.group_indices[-1])  # buckets are reduced from the last one on
        self._size_bytes = sum(max(size_of(parameter), 0) for parameter in parameters)
        self._recorder.unfinished.append((self._reduced, self.close))
        for place, parameter in enumerate(parameters):
            arrives = guard.callback(partial(self._gradient_arrives, place))
            left = guard.callback(partial(self._gradient_left, place))
            patches.on_undo(parameter.register_hook(arrives).remove)
            # Cannot be removed: it returns no handle. The guard turns it off.
            parameter._register_backward_hook(left)  # noqa: SLF001  # no public name

    @property
    def exists(self) -> bool:
        """Whether the model exists."""
        return self._model() is not None

    def prepare(self, reducer: Any) -> None:
        """Note that the next backward reduces, if `reducer` is the one of this model."""
        model = self._model()
        if model is not None and model._reducer is reducer:  # noqa: SLF001  # no public name
            self.close()
            self._reduces = True

    def close(self) -> None:
        """Record the reduction of the last backward, if some of its gradients have never arrived."""
        if self._reduced and self._reduces:
            self._record()
        self._arrived.clear()
        self._reduced.clear()
        self._reduces = False

    def _gradient_arrives(self, place: int, gradient: Any) -> None:
        del gradient
        if not (self._reduces and self._recorder.is_training):
            return
        self._computed_ns, self._computed = now_ns(), self._recorder.timer.begin()
        self._arrived.add(place)
        # Unused parameters have no gradients, so that any of them may be the last one.
        collectives = self._collectives
        collectives.bucket_waits.begin(self, collectives.group_of(self._owner), ALL_REDUCE)
        if self._arrived >= self._first and place in self._first:
            self._start_ns = self._computed_ns

    def _gradient_left(self, place: int, *arguments: Any) -> None:
        del arguments
        if place not in self._arrived:
            return
        recorder = self._recorder
        self._end, self._end_ns = recorder.timer.begin(), now_ns()
        self._collectives.bucket_waits.end(self)
        self._reduced.add(place)
        self._place = place_of(recorder)
        recorder.computed = (
            self._computed
        )  # also where parameters without a gradient keep the count from being full
        if self._reduced == self._parameters:
            self.close()

    def _record(self) -> None:
        is_full = self._arrived >= self._first
        start_ns = self._start_ns if is_full else self._computed_ns
        buckets = Buckets(self._size_bytes, self._place, start_ns, self._end_ns, self._computed, self._end)
        record_buckets(self._collectives, self._collectives.group_of(self._owner), buckets)


def reduced_parameters(model: Any) -> list[Any]:
    """Return the parameters that the reducer of a model numbers, in its order (``DataParallel.init_reducer``)."""
    found: dict[int, Any] = {}
    for layer in model.sublayers():
        for _, parameter in layer.named_parameters(include_sublayers=False):
            if parameter is not None and parameter.trainable and not getattr(parameter, "no_sync", False):
                found.setdefault(id(parameter), parameter)
    return list(found.values())


class HookedReduction:
    """The reductions between two hooks of the parameters of one model."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._reducing = ExitStack()

    def begin(self, *arguments: Any) -> None:
        """Treat collectives as gradient reductions from now on."""
        del arguments
        self._reducing.enter_context(self._collectives.reducing())

    def end(self, *arguments: Any) -> None:
        """Treat them as before."""
        del arguments
        self._reducing.close()


def sliced_parameters(model: Any) -> list[Any]:
    """Return the parameters whose gradients a GroupShardedStage3 reduces one by one."""
    whole = {id(parameter) for parameter in model._unslice_params}  # noqa: SLF001  # no public name
    every = model._layer.parameters(include_sublayers=True)  # noqa: SLF001  # no public name
    return [parameter for parameter in every if parameter.trainable and id(parameter) not in whole]
